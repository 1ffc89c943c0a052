"""Agents that keep their metadata in etcd share partitions: joins and leaves, under load."""

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.clients.conftest import make_topic
from tests.support import etcd_server
from tests.support.driftlog_process import DriftlogProcess, driftlog_command
from tests.support.etcd_server import EtcdCluster
from tests.support.process_usage import free_port

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("etcd_agents")]

_TTL_S = 6.0
_PARTITIONS = 8


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    """One member, of the newest version."""
    folder = tmp_path / "etcd"
    folder.mkdir()
    with etcd_server.start(etcd_server.newest_version(), folder, members=1) as cluster:
        yield cluster


class Agents:
    """Processes on one etcd and one folder of objects."""

    def __init__(self, etcd: EtcdCluster, folder: Path, count: int, *arguments: str) -> None:
        self._stack = ExitStack()
        self.all = [
            DriftlogProcess(
                folder / f"agent-{n}",
                (
                    *("--etcd", ",".join(etcd.endpoints), "--store", str(folder / "objects")),
                    *arguments,
                ),
                command=("agent", "run"),
            )
            for n in range(count)
        ]
        for agent in self.all:
            self._stack.callback(agent.close)

    def __enter__(self) -> list[DriftlogProcess]:
        return self.all

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class Told:
    """A producer of confluent-kafka, and what it was told of each value."""

    def __init__(self, agents: list[DriftlogProcess], **settings: Any) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": _servers(agents), "enable.idempotence": True, **settings}
        )
        self.sent = 0
        self.offsets: dict[tuple[int, bytes], int] = {}
        """By partition and value."""
        self.errors: list[str] = []

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self.sent += 1
        self._producer.produce(topic, value, partition=partition, on_delivery=self._delivered)
        self._producer.poll(0)

    def send_for(self, topic: str, seconds: float) -> None:
        """A record for each partition, every few milliseconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for partition in range(_PARTITIONS):
                self.send(topic, b"%d" % self.sent, partition)
            self._producer.poll(0.005)

    def flush(self) -> None:
        assert 0 == self.flush_for(90)

    def flush_for(self, seconds: float) -> int:
        """So long at most; how many are without an answer then."""
        return self._producer.flush(seconds)

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.offsets[message.partition(), message.value()] = message.offset()

    def check(self, agents: list[DriftlogProcess], topic: str) -> None:
        """No error was told, and each record is there once, at the offset that was told."""
        self.flush()
        assert [] == self.errors
        assert self.sent == len(self.offsets)
        for partition in range(_PARTITIONS):
            found = {
                (partition, value): n for n, value in enumerate(read(agents, topic, partition))
            }
            assert {at: n for at, n in self.offsets.items() if at[0] == partition} == found


def _servers(agents: list[DriftlogProcess]) -> str:
    return ",".join(agent.bootstrap for agent in agents)


def read(agents: list[DriftlogProcess], topic: str, partition: int = 0) -> list[bytes]:
    """The whole partition, in order; offsets have no gaps."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": _servers(agents),
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
    values: list[bytes] = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, f"only {len(values)} records"
            error = message.error()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                return values
            assert message.offset() == len(values)
            values.append(message.value() or b"")
    finally:
        consumer.close()


def shares(agent: DriftlogProcess, topic: str) -> list[int]:
    """How many partitions each agent leads, as *agent* tells clients; none is without a leader."""
    admin = AdminClient({"bootstrap.servers": agent.bootstrap, "log_level": 2})
    found = admin.list_topics(topic, timeout=30).topics[topic].partitions.values()
    led = Counter(partition.leader for partition in found)
    return [] if -1 in led or len(found) < _PARTITIONS else sorted(led.values())


def shared_by(count: int, agents: list[DriftlogProcess], topic: str, seconds: float) -> float:
    """Wait until all *agents* say that so many lead all partitions; how long it took."""
    began = time.monotonic()
    while not all(len(shares(agent, topic)) == count for agent in agents):
        assert time.monotonic() < began + seconds, [shares(agent, topic) for agent in agents]
        time.sleep(0.05)
    return time.monotonic() - began


def test_an_agent_that_joins_gets_its_share_and_one_that_leaves_gives_it_back_under_load(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    """
    No delivery fails, no lease is waited for, and who was told to stop ends well.
    """
    with Agents(etcd, tmp_path, 3, "--session-timeout-ms", "30000") as agents:
        first, second, third = agents
        first.start()
        second.start()
        topic = make_topic(first, _PARTITIONS)
        told = Told(agents[:2])
        told.send_for(topic, 1)
        third.start()
        with ThreadPoolExecutor(1) as aside:
            joining = aside.submit(shared_by, 3, agents, topic, 60)
            while not joining.done():
                told.send_for(topic, 0.2)
            joining.result()
            told.send_for(topic, 1)
            ended = aside.submit(first.terminate)
            began = time.monotonic()
            while not ended.done():
                told.send_for(topic, 0.2)
            assert 0 == ended.result()
            shared_by(2, agents[1:], topic, 60)
            took_s = time.monotonic() - began
            told.send_for(topic, 1)

        assert took_s < 20
        told.check(agents[1:], topic)


def test_an_etcd_that_is_away_for_a_while_costs_no_record(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    """
    Longer than a session lives: nothing is acknowledged meanwhile, everything afterwards.
    """
    with Agents(etcd, tmp_path, 1) as (agent,):
        agent.start()
        topic = make_topic(agent)
        told = Told([agent])
        for n in range(300):
            told.send(topic, b"%d" % n)
            if n == 100:
                told.flush()
                etcd.members[0].kill()
        time.sleep(_TTL_S + 4)
        acknowledged = len(told.offsets)
        etcd.members[0].start()
        told.flush()

        assert 101 == acknowledged
        assert [] == told.errors
        assert [b"%d" % n for n in range(300)] == read([agent], topic)
        assert "session_lost" in agent.log


def test_an_etcd_that_does_not_answer_is_named_at_the_start(tmp_path: Path) -> None:
    """
    Before anything is on the disk, and with what to look at; and so are options that make no sense.
    """
    command = driftlog_command()
    assert command is not None
    line = [command, "agent", "run", "--dir", str(tmp_path / "a"), "--listener", "127.0.0.1:0"]
    line += ["--http-listener", "127.0.0.1:0"]

    def refused(*arguments: str) -> str:
        ended = subprocess.run(
            [*line, *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert ended.returncode != 0
        assert "Traceback" not in ended.stderr
        return ended.stderr

    dead = f"127.0.0.1:{free_port()}"
    said = refused("--etcd", f"http://{dead}")
    assert "etcd cannot be used" in said
    assert dead in said
    assert "--etcd" in refused("--etcd", "nonsense")
    assert "--etcd" in refused("--etcd-user", "root")
    assert not (tmp_path / "a").exists()
