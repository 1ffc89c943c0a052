"""Consumer groups on three agents and one etcd: the coordinator dies, moves and comes back.

Members of different clients read what is produced all the time; whoever coordinates them is
killed, drained, started again.  All is read, what was committed stays, and nobody joins again.
"""

import contextlib
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__

from tests.clients.grouping import KIP_848, Members
from tests.support import etcd_server
from tests.support.driftlog_process import DriftlogProcess

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("etcd_agents"),
]

AGENTS: Final = 3
PARTITIONS: Final = 6


@dataclass
class Cluster:
    """Three agents on one etcd."""

    agents: list[DriftlogProcess]
    topics: "itertools.count[int]" = field(default_factory=itertools.count)

    @property
    def bootstrap(self) -> str:
        return ",".join(agent.bootstrap for agent in self.agents)

    def topic(self) -> str:
        """A new one of `PARTITIONS`."""
        name = f"t{next(self.topics)}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2})
        admin.create_topics([NewTopic(name, PARTITIONS)])[name].result(60)
        return name

    def coordinator(self, group_id: str) -> DriftlogProcess:
        """Who coordinates a group, as clients are told."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2})
        described = admin.describe_consumer_groups([group_id])[group_id].result(60)
        port = described.coordinator.port
        return next(agent for agent in self.agents if agent.port == port)

    def wait_for_coordinator(
        self, group_id: str, wanted: Callable[[DriftlogProcess], bool], seconds: float = 60
    ) -> None:
        """Until the group's coordinator is one that is *wanted*."""
        deadline = time.monotonic() + seconds
        while True:
            # Its agents have just gone, or are not ready.
            with contextlib.suppress(confluent_kafka.KafkaException):
                if wanted(self.coordinator(group_id)):
                    return
            assert time.monotonic() < deadline, "the group has no such coordinator"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Agents that have new groups wait for nobody, as `driftlog dev` does."""
    folder = tmp_path_factory.mktemp("groups")
    (folder / "etcd").mkdir()
    with ExitStack() as stack:
        etcd = stack.enter_context(
            etcd_server.start(etcd_server.newest_version(), folder / "etcd", members=1)
        )
        options = ["--etcd", ",".join(etcd.endpoints), "--store", str(folder / "objects"), "--dev"]
        agents = []
        for number in range(AGENTS):
            agents.append(DriftlogProcess(folder / f"{number}", options, command=("agent", "run")))
            stack.callback(agents[-1].close)
            agents[-1].launch()
        for agent in agents:
            agent.wait_until_ready()
        yield Cluster(agents)


class Producing:
    """Numbers to all partitions in turn, until it ends."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._stop = threading.Event()
        self.sent: set[tuple[int, int]] = set()
        """Where records are that were acknowledged."""
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 120_000,
                "log_level": 2,
            }
        )
        for n in itertools.count():
            if self._stop.is_set():
                break
            producer.produce(
                self._topic, b"%d" % n, partition=n % PARTITIONS, on_delivery=self._delivered
            )
            producer.poll(0.005)
        assert producer.flush(120) == 0

    def _delivered(self, error: object, message: confluent_kafka.Message) -> None:
        assert error is None
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self.sent.add((partition, offset))

    def more(self, count: int = 100, seconds: float = 60) -> None:
        """Until so many more records are acknowledged."""
        deadline, wanted = time.monotonic() + seconds, len(self.sent) + count
        while len(self.sent) < wanted:
            assert time.monotonic() < deadline, "nothing is acknowledged"
            time.sleep(0.05)

    def __enter__(self) -> "Producing":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_members_do_not_notice_that_their_coordinator_goes(cluster: Cluster, how: str) -> None:
    """
    The coordinator is killed, or drained, while members read; it comes back.  Every record is
    read once, nobody rebalances, and what was committed last is what the group has.
    """
    topic, group_id = cluster.topic(), f"g-{uuid.uuid4().hex[:12]}"
    with Members(cluster.bootstrap, group_id, topic) as members:
        one, other = members.join("confluent"), members.join("aiokafka")
        members.until(lambda: members.shared(PARTITIONS), what="two")
        before = one.rebalances, other.rebalances
        with Producing(cluster.bootstrap, topic) as producing:
            producing.more()
            agent = cluster.coordinator(group_id)
            if how == "SIGKILL":
                agent.kill()
            else:
                agent.terminate()
            cluster.wait_for_coordinator(group_id, lambda one: one is not agent)
            producing.more()
            agent.start()
            cluster.wait_for_coordinator(group_id, lambda one: one is agent)
            producing.more()
        members.until(lambda: producing.sent <= set(members.places), what="all read")

        assert {1} == set(members.places.values())
        assert before == (one.rebalances, other.rebalances)
        members.leave(one)
        members.until(lambda: members.shared(PARTITIONS), what="one")
        members.leave(other)
    ends = {n: 1 + max(o for p, o in producing.sent if p == n) for n in range(PARTITIONS)}
    assert ends == committed(cluster, group_id, topic)


def test_members_of_the_new_protocol_do_not_notice_it_either(cluster: Cluster) -> None:
    """
    KIP-848: epochs and assignments are where another coordinator finds them.
    """
    topic, group_id = cluster.topic(), f"g-{uuid.uuid4().hex[:12]}"
    with Members(cluster.bootstrap, group_id, topic) as members:
        one, other = members.join("confluent", **KIP_848), members.join("confluent", **KIP_848)
        members.until(lambda: members.shared(PARTITIONS), what="two")
        before = one.rebalances, other.rebalances
        with Producing(cluster.bootstrap, topic) as producing:
            producing.more()
            agent = cluster.coordinator(group_id)
            agent.kill()
            cluster.wait_for_coordinator(group_id, lambda one: one is not agent)
            producing.more()
            agent.start()
            cluster.wait_for_coordinator(group_id, lambda one: one is agent)
            producing.more()
        members.until(lambda: producing.sent <= set(members.places), what="all read")

        assert {1} == set(members.places.values())
        assert before == (one.rebalances, other.rebalances)
        members.leave(one)
        members.until(lambda: members.shared(PARTITIONS), what="one")
        members.leave(other)
    ends = {n: 1 + max(o for p, o in producing.sent if p == n) for n in range(PARTITIONS)}
    assert ends == committed(cluster, group_id, topic)


def committed(cluster: Cluster, group_id: str, topic: str) -> dict[int, int]:
    """Offsets of a group, by partition."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": group_id, "log_level": 2}
    )
    try:
        asked = [TopicPartition(topic, n) for n in range(PARTITIONS)]
        return {tp.partition: tp.offset for tp in consumer.committed(asked, timeout=60)}
    finally:
        consumer.close()


def test_members_do_not_notice_a_rolling_restart(cluster: Cluster) -> None:
    """
    Each agent in turn is drained and started again: every record is read once.
    """
    topic, group_id = cluster.topic(), f"g-{uuid.uuid4().hex[:12]}"
    with Members(cluster.bootstrap, group_id, topic) as members:
        members.join("confluent", **{"partition.assignment.strategy": "range"})
        members.join("kafka-python")
        members.until(lambda: members.shared(PARTITIONS), what="two")
        with Producing(cluster.bootstrap, topic) as producing:
            for agent in cluster.agents:
                agent.terminate()
                producing.more()
                agent.start()
        members.until(lambda: producing.sent <= set(members.places), what="all read")

        assert {1} == set(members.places.values())


def test_a_coordinator_that_was_frozen_answers_nothing_old(cluster: Cluster) -> None:
    """
    SIGSTOP for longer than its session, while another agent coordinates and stores commits; when
    it goes on, no client reads an offset from it that is not the last.
    """
    topic, group_id = cluster.topic(), f"g-{uuid.uuid4().hex[:12]}"
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": group_id, "log_level": 2}
    )
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    agent = cluster.coordinator(group_id)
    others = [one.bootstrap for one in cluster.agents if one is not agent]
    agent.pause()
    elsewhere = confluent_kafka.Consumer(
        {"bootstrap.servers": ",".join(others), "group.id": group_id, "log_level": 2}
    )
    deadline = time.monotonic() + 60
    while True:
        try:
            elsewhere.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
            break
        except confluent_kafka.KafkaException:
            assert time.monotonic() < deadline
    agent.resume()

    seen = set()
    for _ in range(20):
        time.sleep(0.2)
        with contextlib.suppress(confluent_kafka.KafkaException):  # NOT_COORDINATOR: asked again
            (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=60)
            seen.add(found.offset)
    consumer.close()
    elsewhere.close()

    assert {2} == seen


def test_all_agents_together_list_all_groups(cluster: Cluster) -> None:
    """
    Each agent lists its own; the one that is asked for the coordinator is the one that has it.
    """
    topic = cluster.topic()
    names = {f"listed-{n}" for n in range(20)}
    for name in names:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": name, "log_level": 2}
        )
        consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        consumer.close()

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 2})
    deadline = time.monotonic() + 60
    while (found := admin.list_consumer_groups().result(60)).errors:
        assert time.monotonic() < deadline, found.errors  # an agent reads its groups yet
        time.sleep(0.2)
    listed = [g.group_id for g in found.valid]

    assert names == {name for name in listed if name.startswith("listed-")}
    assert len(listed) == len(set(listed))
    assert len({cluster.coordinator(name).port for name in names}) > 1
