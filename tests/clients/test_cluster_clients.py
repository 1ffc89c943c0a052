"""What unmodified clients see of three agents on one etcd, from any of them, by either listener.

Each agent has its zone, a listener without a name and one that is called OUTSIDE, which is
advertised by another host name, so that a client tells which one it was told of.
"""

import asyncio
import itertools
import json
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import aiokafka
import aiokafka.admin
import confluent_kafka
import kafka
import kafka.admin
import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__

from tests.clients.peers import run_java
from tests.support import etcd_server
from tests.support.components import java, kafka_jars, kcat
from tests.support.driftlog_process import DriftlogProcess, driftlog_command
from tests.support.process_usage import free_port

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.xdist_group("etcd_agents"),
]

AGENTS: Final = 3
PARTITIONS: Final = 12
COUNT: Final = 20
"""Records of each partition."""

TOPIC: Final = "spread"

STREAM: Final = "streamed "
PACE_S: Final = 0.05
_DEADLINE_S: Final = 60.0
_SETTLED_S: Final = 2.0
_TRANSPORT: Final = -195
"""RD_KAFKA_RESP_ERR__TRANSPORT: the connection was closed before the answer."""
_JAVA_S: Final = 280.0
"""It streams while three agents are started, which takes a busy machine a minute and more."""

_JAVA: Final = Path(__file__).with_name("JavaCluster.java")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client says of the cluster and of one topic."""

    nodes: frozenset[tuple[int, str, int]]
    controller: int
    leaders: tuple[int, ...]
    """Of each partition; −1: none."""
    replicas: tuple[tuple[int, ...], ...]
    """Of each partition, the leader first."""
    in_sync: tuple[tuple[int, ...], ...]


class Client(Protocol):
    """A Kafka client, as far as these tests need one."""

    def describe(self, bootstrap: str, topic: str) -> Seen: ...

    def send(self, bootstrap: str, topic: str, prefix: str) -> None:
        """`COUNT` values to each partition, acknowledged by all."""

    def stream(self, bootstrap: str, topic: str, stop: Path) -> int:
        """One value to each partition every `PACE_S` until there is a file *stop*; how many each
        has got, all of them acknowledged by all."""

    def read(self, bootstrap: str, topic: str, count: int) -> list[list[tuple[int, str]]]:
        """(offset, value) of each partition from its start, until *count* of each are there."""


def values(prefix: str, count: int) -> list[list[tuple[int, str]]]:
    """What is to be read of each partition."""
    return [[(n, f"{prefix}{n}") for n in range(count)] for _ in range(PARTITIONS)]


def paced(stop: Path, *, wait: bool = True) -> Iterator[int]:
    """0, 1, 2 … until there is a file *stop*; one every `PACE_S` unless the caller waits itself."""
    for n in itertools.count():
        if stop.exists():
            return
        yield n
        if wait:
            time.sleep(PACE_S)


def await_records(bootstrap: str, topic: str, count: int) -> None:
    """Until each partition has so many."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    deadline = time.monotonic() + _DEADLINE_S
    for number in range(PARTITIONS):
        partition = confluent_kafka.TopicPartition(topic, number)
        while consumer.get_watermark_offsets(partition, timeout=30)[1] < count:
            assert time.monotonic() < deadline, f"{topic}-{number} has few records"
            time.sleep(0.05)
    consumer.close()


class Reads:
    """Of each partition, until all are there."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.found: list[list[tuple[int, str]]] = [[] for _ in range(PARTITIONS)]
        self._deadline = time.monotonic() + _DEADLINE_S

    @property
    def open(self) -> bool:
        return time.monotonic() < self._deadline and any(
            len(part) < self._count for part in self.found
        )


class Confluent:
    """librdkafka."""

    def describe(self, bootstrap: str, topic: str) -> Seen:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
        told = admin.list_topics(topic, timeout=30)
        parts = told.topics[topic].partitions
        cluster = admin.describe_cluster(request_timeout=30).result()
        assert {b.id for b in told.brokers.values()} == {node.id for node in cluster.nodes}
        return Seen(
            frozenset((node.id, node.host, node.port) for node in cluster.nodes),
            cluster.controller.id,
            tuple(parts[n].leader for n in range(PARTITIONS)),
            tuple(tuple(parts[n].replicas) for n in range(PARTITIONS)),
            tuple(tuple(parts[n].isrs) for n in range(PARTITIONS)),
        )

    def send(self, bootstrap: str, topic: str, prefix: str) -> None:
        self._send(bootstrap, topic, prefix, range(COUNT))

    def stream(self, bootstrap: str, topic: str, stop: Path) -> int:
        return self._send(bootstrap, topic, STREAM, paced(stop))

    def _send(self, bootstrap: str, topic: str, prefix: str, rounds: Iterable[int]) -> int:
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 2}
        producer = confluent_kafka.Producer(settings)
        errors: list[Any] = []
        n = -1
        for n in rounds:
            for partition in range(PARTITIONS):
                producer.produce(
                    topic,
                    f"{prefix}{n}",
                    partition=partition,
                    on_delivery=lambda error, _: errors.append(error),
                )
            producer.poll(0)
        assert 0 == producer.flush(_DEADLINE_S)
        assert [None] * ((n + 1) * PARTITIONS) == errors
        return n + 1

    def read(self, bootstrap: str, topic: str, count: int) -> list[list[tuple[int, str]]]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused: partitions are assigned",
                "enable.auto.commit": False,
                "client.rack": "zone-1",
                "log_level": 2,
            }
        )
        reads = Reads(count)
        try:
            consumer.assign(
                [confluent_kafka.TopicPartition(topic, n, 0) for n in range(PARTITIONS)]
            )
            while reads.open:
                message: Any
                for message in consumer.consume(1_000, 0.2):
                    assert message.error() is None, message.error()
                    found = message.offset(), message.value().decode()
                    reads.found[message.partition()].append(found)
        finally:
            consumer.close()
        return reads.found


class Aiokafka:
    """aiokafka."""

    def describe(self, bootstrap: str, topic: str) -> Seen:
        return asyncio.run(self._describe(bootstrap, topic))

    async def _describe(self, bootstrap: str, topic: str) -> Seen:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            cluster = await admin.describe_cluster()
            (described,) = await admin.describe_topics([topic])
        finally:
            await admin.close()
        parts = {part["partition"]: part for part in described["partitions"]}
        return Seen(
            frozenset((b["node_id"], b["host"], b["port"]) for b in cluster["brokers"]),
            cluster["controller_id"],
            tuple(parts[n]["leader"] for n in range(PARTITIONS)),
            tuple(tuple(parts[n]["replicas"]) for n in range(PARTITIONS)),
            tuple(tuple(parts[n]["isr"]) for n in range(PARTITIONS)),
        )

    def send(self, bootstrap: str, topic: str, prefix: str) -> None:
        asyncio.run(self._send(bootstrap, topic, prefix, range(COUNT)))

    def stream(self, bootstrap: str, topic: str, stop: Path) -> int:
        return asyncio.run(self._send(bootstrap, topic, STREAM, paced(stop, wait=False)))

    async def _send(self, bootstrap: str, topic: str, prefix: str, rounds: Iterable[int]) -> int:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        await producer.start()
        sent: list[Any] = []
        n = -1
        try:
            for n in rounds:
                for partition in range(PARTITIONS):
                    value = f"{prefix}{n}".encode()
                    sent.append(await producer.send(topic, value, partition=partition))
                await asyncio.sleep(PACE_S if prefix == STREAM else 0)
            await asyncio.wait_for(asyncio.gather(*sent), _DEADLINE_S)
        finally:
            await producer.stop()
        return n + 1

    def read(self, bootstrap: str, topic: str, count: int) -> list[list[tuple[int, str]]]:
        return asyncio.run(self._read(bootstrap, topic, count))

    async def _read(self, bootstrap: str, topic: str, count: int) -> list[list[tuple[int, str]]]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False
        )
        reads = Reads(count)
        await consumer.start()
        try:
            partitions = [aiokafka.TopicPartition(topic, n) for n in range(PARTITIONS)]
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, 0)
            while reads.open:
                for messages in (await consumer.getmany(timeout_ms=200)).values():
                    for m in messages:
                        reads.found[m.partition].append((m.offset, m.value.decode()))
        finally:
            await consumer.stop()
        return reads.found


class KafkaPython:
    """kafka-python."""

    def describe(self, bootstrap: str, topic: str) -> Seen:
        admin = kafka.admin.KafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            cluster = admin.describe_cluster()
            (described,) = admin.describe_topics([topic])
        finally:
            admin.close()
        parts = {part["partition_index"]: part for part in described["partitions"]}
        return Seen(
            frozenset((b["broker_id"], b["host"], b["port"]) for b in cluster["brokers"]),
            cluster["controller_id"],
            tuple(parts[n]["leader_id"] for n in range(PARTITIONS)),
            tuple(tuple(parts[n]["replica_nodes"]) for n in range(PARTITIONS)),
            tuple(tuple(parts[n]["isr_nodes"]) for n in range(PARTITIONS)),
        )

    def send(self, bootstrap: str, topic: str, prefix: str) -> None:
        self._send(bootstrap, topic, prefix, range(COUNT))

    def stream(self, bootstrap: str, topic: str, stop: Path) -> int:
        return self._send(bootstrap, topic, STREAM, paced(stop))

    def _send(self, bootstrap: str, topic: str, prefix: str, rounds: Iterable[int]) -> int:
        producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, acks="all")
        sent: list[Any] = []
        n = -1
        try:
            for n in rounds:
                for partition in range(PARTITIONS):
                    value = f"{prefix}{n}".encode()
                    sent.append(producer.send(topic, value, partition=partition))
            for future in sent:
                future.get(_DEADLINE_S)
        finally:
            producer.close()
        return n + 1

    def read(self, bootstrap: str, topic: str, count: int) -> list[list[tuple[int, str]]]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False
        )
        reads = Reads(count)
        try:
            partitions = [kafka.TopicPartition(topic, n) for n in range(PARTITIONS)]
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, 0)
            while reads.open:
                for messages in consumer.poll(timeout_ms=200).values():
                    for m in messages:
                        reads.found[m.partition].append((m.offset, m.value.decode()))
        finally:
            consumer.close()
        return reads.found


class Java:
    """The Java client, through JavaCluster.java."""

    def __init__(self) -> None:
        java()
        kafka_jars()

    def lines(self, what: str, *arguments: str) -> list[list[str]]:
        """What the program says, in fields."""
        said = run_java(str(_JAVA), what, *arguments, timeout_s=_JAVA_S)
        return [line.split("\t") for line in said.splitlines()]

    def describe(self, bootstrap: str, topic: str) -> Seen:
        lines = self.lines("describe", bootstrap, topic)
        parts = {int(line[1]): line for line in lines if line[0] == "partition"}
        (controller,) = [int(line[1]) for line in lines if line[0] == "controller"]
        return Seen(
            frozenset((int(i), host, int(port)) for kind, i, host, port, *_ in _nodes(lines)),
            controller,
            tuple(int(parts[n][2]) for n in range(PARTITIONS)),
            tuple(_numbers(parts[n][3]) for n in range(PARTITIONS)),
            tuple(_numbers(parts[n][4]) for n in range(PARTITIONS)),
        )

    def send(self, bootstrap: str, topic: str, prefix: str) -> None:
        self.lines("send", bootstrap, topic, str(PARTITIONS), str(COUNT), prefix)

    def stream(self, bootstrap: str, topic: str, stop: Path) -> int:
        pace = str(round(PACE_S * 1000))
        ((count,),) = self.lines(
            "stream", bootstrap, topic, str(PARTITIONS), str(stop), STREAM, pace
        )
        return int(count)

    def read(self, bootstrap: str, topic: str, count: int) -> list[list[tuple[int, str]]]:
        reads = Reads(count)
        for number, offset, value in self.lines(
            "read", bootstrap, topic, str(PARTITIONS), str(count)
        ):
            reads.found[int(number)].append((int(offset), value))
        return reads.found


def _nodes(lines: list[list[str]]) -> list[list[str]]:
    return [line for line in lines if line[0] == "node"]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


CLIENTS: Final[list[type[Client]]] = [Confluent, Aiokafka, KafkaPython, Java]
OUTSIDE: Final = [False, True]


def topic_of(client: type[Client], *, outside: bool) -> str:
    """What one client writes through one listener."""
    return f"{client.__name__}-{'outside' if outside else 'plain'}"


def stream_of(client: type[Client]) -> str:
    """What one client writes while agents come and go."""
    return f"{client.__name__}-stream"


class Cluster:
    """The agents, and where each listens."""

    def __init__(self, agents: list[DriftlogProcess], outside: list[int]) -> None:
        self.agents = agents
        self.outside = outside

    def bootstrap(self, agent: int, *, outside: bool) -> str:
        """One agent's address."""
        return f"127.0.0.1:{self.outside[agent]}" if outside else self.agents[agent].bootstrap

    def addresses(self, *, outside: bool) -> set[tuple[str, int]]:
        """What clients are told of all of them."""
        if outside:
            return {("localhost", port) for port in self.outside}
        return {("127.0.0.1", agent.port) for agent in self.agents}

    def create(self, topics: list[str]) -> None:
        """Topics of `PARTITIONS`, with as many replicas as there are agents."""
        admin = AdminClient({"bootstrap.servers": self.agents[0].bootstrap, "log_level": 2})
        new = [NewTopic(topic, PARTITIONS, AGENTS) for topic in topics]
        for future in admin.create_topics(new, operation_timeout=30, request_timeout=60).values():
            future.result(60)

    def leaders(self) -> list[int]:
        """Of every partition of every topic."""
        admin = AdminClient({"bootstrap.servers": self.agents[0].bootstrap, "log_level": 2})
        topics = sorted(admin.list_topics(timeout=30).topics.items())
        return [topic.partitions[n].leader for _, topic in topics for n in sorted(topic.partitions)]

    def settle(self) -> None:
        """Wait until partitions stay where they are: each new topic may move some of others."""
        deadline, since, last = time.monotonic() + _DEADLINE_S, time.monotonic(), self.leaders()
        while time.monotonic() < since + _SETTLED_S:
            assert time.monotonic() < deadline, "partitions move for ever"
            time.sleep(0.2)
            before, last = last, self.leaders()
            if last != before or -1 in last:
                since = time.monotonic()
        assert len(set(last)) == AGENTS, "somebody leads nothing"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three agents in three zones, and topics that they share."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "etcd").mkdir()
    outside = [free_port() for _ in range(AGENTS)]
    with ExitStack() as stack:
        etcd = stack.enter_context(
            etcd_server.start(etcd_server.newest_version(), folder / "etcd", members=1)
        )
        agents = []
        for number, port in enumerate(outside):
            options = [
                *("--etcd", ",".join(etcd.endpoints), "--store", str(folder / "objects")),
                *("--rack", f"zone-{number}"),
                *("--listener", f"OUTSIDE://127.0.0.1:{port}"),
                *("--advertised-listener", f"OUTSIDE://localhost:{port}"),
            ]
            agents.append(DriftlogProcess(folder / f"{number}", options, command=("agent", "run")))
            stack.callback(agents[-1].close)
            agents[-1].launch()
        for agent in agents:
            agent.wait_until_ready()
        found = Cluster(agents, outside)
        topics = [topic_of(client, outside=o) for client in CLIENTS for o in OUTSIDE]
        found.create([TOPIC, *topics, *map(stream_of, CLIENTS)])
        found.settle()
        yield found


@pytest.fixture
def truth(cluster: Cluster) -> Seen:
    """What one client says, which all others must say as well."""
    seen = Confluent().describe(cluster.agents[0].bootstrap, TOPIC)
    assert cluster.addresses(outside=False) == {(host, port) for _, host, port in seen.nodes}
    nodes = {number for number, _, _ in seen.nodes}
    assert min(nodes) == seen.controller
    assert [nodes] * PARTITIONS == [set(replicas) for replicas in seen.replicas]
    assert seen.leaders == tuple(replicas[0] for replicas in seen.replicas)
    assert seen.replicas == seen.in_sync
    return seen


@pytest.mark.parametrize("outside", OUTSIDE, ids=["plain", "outside"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_sees_the_whole_cluster_from_any_agent(
    cluster: Cluster, truth: Seen, client: type[Client], outside: bool
) -> None:
    """
    All agents, by the addresses of the listener that was asked, the same controller, and the
    leaders and replicas of every partition.
    """
    seen = [
        client().describe(cluster.bootstrap(number, outside=outside), TOPIC)
        for number in range(AGENTS)
    ]

    assert [seen[0]] * AGENTS == seen
    assert cluster.addresses(outside=outside) == {(host, port) for _, host, port in seen[0].nodes}
    assert (truth.controller, truth.leaders) == (seen[0].controller, seen[0].leaders)
    assert (truth.replicas, truth.in_sync) == (seen[0].replicas, seen[0].in_sync)


@pytest.mark.parametrize("outside", OUTSIDE, ids=["plain", "outside"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_writes_and_reads_what_all_agents_lead(
    cluster: Cluster, client: type[Client], outside: bool
) -> None:
    """
    One bootstrap address is enough: each partition is written to and read from its own leader.
    """
    kind = client()
    topic = topic_of(client, outside=outside)

    kind.send(cluster.bootstrap(1, outside=outside), topic, "value ")
    found = kind.read(cluster.bootstrap(2, outside=outside), topic, COUNT)

    assert values("value ", COUNT) == found


def test_kcat_lists_the_whole_cluster_from_any_agent(cluster: Cluster, truth: Seen) -> None:
    """
    Debian's librdkafka is an old one; it names brokers, the controller, leaders and replicas alike.
    """
    for number in range(AGENTS):
        address = cluster.bootstrap(number, outside=True)
        line = [str(kcat()), "-L", "-J", "-b", address, "-t", TOPIC]
        said = json.loads(subprocess.run(line, capture_output=True, check=True, timeout=60).stdout)
        (topic,) = said["topics"]

        assert {f"localhost:{port}" for port in cluster.outside} == {
            broker["name"] for broker in said["brokers"]
        }
        assert truth.controller == said["controllerid"]
        assert truth.leaders == tuple(part["leader"] for part in topic["partitions"])
        assert truth.replicas == tuple(
            tuple(replica["id"] for replica in part["replicas"]) for part in topic["partitions"]
        )


def test_java_is_told_of_racks_and_of_every_log_dir(cluster: Cluster, truth: Seen) -> None:
    """
    Each agent's zone; and asked for its log directory, each names the partitions that it leads.
    """
    lines = Java().lines("describe", cluster.bootstrap(1, outside=False), TOPIC)
    dirs = {int(line[1]): sorted(_numbers(line[2])) for line in lines if line[0] == "dir"}

    assert {f"zone-{number}" for number in range(AGENTS)} == {line[4] for line in _nodes(lines)}
    assert dirs == {
        node: [n for n, leader in enumerate(truth.leaders) if leader == node]
        for node, _, _ in truth.nodes
    }


@pytest.mark.timeout(400)
def test_a_rolling_restart_costs_no_client_an_error(cluster: Cluster, tmp_path: Path) -> None:
    """
    Every agent is stopped and started again, one after the other, while each client writes with
    its own settings: what it was told is there, once and in its order, and it was told no error.
    The partitions are led by all agents again in the end.
    """
    everyone = ",".join(agent.bootstrap for agent in cluster.agents)
    stop = tmp_path / "stop"
    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        streams = [
            pool.submit(client().stream, everyone, stream_of(client), stop) for client in CLIENTS
        ]
        try:
            for client in CLIENTS:
                await_records(everyone, stream_of(client), 10)
            for agent in cluster.agents:
                assert 0 == agent.terminate()
                agent.start()
        finally:
            stop.touch()
        counts = [stream.result() for stream in streams]
    cluster.settle()

    for client, count in zip(CLIENTS, counts, strict=True):
        found = client().read(cluster.agents[0].bootstrap, stream_of(client), count)
        assert values(STREAM, count) == found, client.__name__


def test_no_admin_is_refused_while_the_controller_is_restarted(cluster: Cluster) -> None:
    """
    Topics are made one after the other, without a pause, by clients that ask the agent that is
    stopped and started again: librdkafka repeats none that was refused.  What it had just sent
    when the connection was closed it does not repeat either, whichever broker closes it.
    """
    everyone = ",".join(agent.bootstrap for agent in cluster.agents)
    seen = Confluent().describe(everyone, TOPIC)
    (port,) = [port for number, _, port in seen.nodes if number == seen.controller]
    (controller,) = [agent for agent in cluster.agents if agent.port == port]
    stop = threading.Event()

    one: set[str] = set()
    two: set[str] = set()

    def make(name: str, made: set[str]) -> None:
        admin = AdminClient({"bootstrap.servers": everyone, "log_level": 2})
        while not stop.is_set():
            topic = f"{name}-{len(made)}"
            (future,) = admin.create_topics([NewTopic(topic, 1, 1)]).values()
            try:
                future.result(_DEADLINE_S)
            except confluent_kafka.KafkaException as error:
                if error.args[0].code() != _TRANSPORT:
                    raise
                name += "-again"  # It may have been made.
            else:
                made.add(topic)

    def go_on() -> None:
        """Until each of them has made three more."""
        deadline, wanted = time.monotonic() + _DEADLINE_S, [len(one) + 3, len(two) + 3]
        while len(one) < wanted[0] or len(two) < wanted[1]:
            assert not any(admin.done() for admin in admins)
            assert time.monotonic() < deadline
            time.sleep(0.05)

    with ThreadPoolExecutor(2) as pool:
        admins = [pool.submit(make, name, made) for name, made in (("one", one), ("two", two))]
        try:
            go_on()
            assert 0 == controller.terminate()
            controller.start()
            go_on()
        finally:
            stop.set()
        for done in admins:
            done.result(_DEADLINE_S)

    admin = AdminClient({"bootstrap.servers": controller.bootstrap, "log_level": 2})
    assert one | two <= admin.list_topics(timeout=30).topics.keys()


@pytest.mark.parametrize("outside", OUTSIDE, ids=["plain", "outside"])
def test_sealing_finds_the_agent_of_each_partition(cluster: Cluster, *, outside: bool) -> None:
    """
    Whichever agent is asked, and by whichever listener.
    """
    cluster.settle()  # whoever was started again may be about to lead its share
    for number in range(AGENTS):
        bootstrap = cluster.bootstrap(number, outside=outside)
        line = [str(driftlog_command()), "segments", "seal", TOPIC, "-b", bootstrap]
        done = subprocess.run(line, capture_output=True, check=False, timeout=60, text=True)

        assert (0, "") == (done.returncode, done.stderr)
        rows = [row.split() for row in done.stdout.splitlines()[1:]]
        assert [str(partition) for partition in range(PARTITIONS)] == [row[0] for row in rows]
