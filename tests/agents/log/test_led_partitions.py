"""If it failed: requests would wait for partitions that this agent leads no more, or get refused
where they should wait.
"""

import asyncio
from uuid import UUID

import pytest

from driftlog_agents.cluster.view import ClusterView
from driftlog_agents.foundation.loop_slices import SLICE_S, measure_by
from driftlog_agents.log.leadership.assignment import PartitionAssignments
from driftlog_agents.log.leadership.taken_partitions import Taken
from driftlog_agents.log.led_partitions import LedPartitions
from driftlog_agents.log.partition.deleted_topics import DeletedTopics
from driftlog_agents.log.partition.known_manifests import KnownManifests
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.partition.topic_logs import LedTopics
from driftlog_agents.log.partition.waiters import tell_lost, unpark
from driftlog_agents.log.session.counters import LogCounters
from driftlog_metadata.schema.model import Topic, TopicPartition
from driftlog_tiering.formats.manifest import empty_manifest

A, B = (TopicPartition(UUID(int=1), n) for n in range(2))


class Told(list[str]):
    """What waited and is told, each in a hundredth of a slice."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0

    def append(self, told: str) -> None:
        self._now_s += SLICE_S / 100
        super().append(told)

    def measure(self) -> None:
        """Slices end by the time that this takes."""
        measure_by(asyncio.get_running_loop(), lambda: self._now_s)


class Led:
    """A session that leads both partitions of a topic."""

    def __init__(self, state: State = State.ONLINE) -> None:
        deleted = DeletedTopics(lambda _: True)
        self.topics = LedTopics(deleted)
        self.topics.know(Topic(name="t", topic_id=A.topic_id, partitions=2))
        self.manifests = KnownManifests()
        self.assignments = PartitionAssignments(
            node_id=1, session_id="s", deleted=deleted, jitter=lambda: 0.0, retry_ms=1
        )
        self.counters = LogCounters()
        self.partitions = LedPartitions(
            topics=self.topics,
            assignments=self.assignments,
            manifests=self.manifests,
            view=ClusterView(),
            counters=self.counters,
            unpark=unpark,
            tell_lost=tell_lost,
        )
        self.logs = {tp: log_of(tp, state) for tp in (A, B)}
        self.served = self.partitions.open(Taken(logs=dict(self.logs), fresh={B}), 1_000)
        self.told = Told()

    def park(self, tp: TopicPartition) -> None:
        """A batch waits before its admission."""
        self.logs[tp].parked.append(lambda: self.told.append("resumed"))

    def fetch(self, tp: TopicPartition) -> None:
        """A consumer waits for records."""
        self.logs[tp].waiting_fetches[Fetch(self.told)] = None


class Fetch:
    """A fetch that waits."""

    def __init__(self, told: list[str]) -> None:
        self._told = told

    def committed(self, log: PartitionLog) -> None:
        """Not told by these tests."""

    def synced(self, log: PartitionLog) -> None:
        """Not told by these tests."""

    def unsynced(self, log: PartitionLog) -> None:
        """Not told by these tests."""

    def lost(self, log: PartitionLog) -> None:
        """The partition is led here no more."""
        self._told.append("lost")


def log_of(tp: TopicPartition, state: State) -> PartitionLog:
    """A claimed partition."""
    log = PartitionLog(topic="t", topic_id=tp.topic_id, partition=tp.partition, leader_epoch=0)
    log.state = state
    return log


def test_claimed_partitions_are_served_but_those_of_topics_deleted_meanwhile() -> None:
    """
    Those that had a leader expect batches that it has refused.
    """
    led = Led()
    gone = TopicPartition(UUID(int=9), 0)
    late = log_of(gone, State.ONLINE)
    served = led.partitions.open(Taken(logs={gone: late}), 0)

    assert (led.logs, {}) == (led.served, served)
    assert State.CLOSED is late.state
    assert led.logs[A].settled_ms > 1_000
    assert 0 == led.logs[B].settled_ms


@pytest.mark.parametrize(
    ("state", "damage", "told"),
    [
        (State.ONLINE, "", ["resumed"]),
        (State.LOADING, "", []),
        (State.LOADING, "no manifest", ["resumed"]),
    ],
)
async def test_batches_go_on_after_a_pause_unless_their_producers_are_still_loaded(
    state: State, damage: str, told: list[str]
) -> None:
    """
    The end of the load resumes them.
    """
    led = Led(state)
    log = led.logs[A]
    led.partitions.pause(log)
    led.park(A)
    log.damage = damage
    led.partitions.resume(log)

    assert (False, told) == (log.paused, led.told)


async def test_what_waits_is_told_when_a_partition_is_retired() -> None:
    """
    Fetches are refused at once, and parked batches when they look again.
    """
    led = Led()
    led.partitions.pause(led.logs[A])
    led.park(A)
    led.fetch(A)
    led.partitions.retire(led.logs[A])

    assert ["lost", "resumed"] == led.told
    assert (State.CLOSED, False) == (led.logs[A].state, led.logs[A].paused)


@pytest.mark.parametrize("end", ["retired", "deleted", "closed"])
async def test_few_of_many_that_wait_are_told_in_one_iteration(end: str) -> None:
    """
    Of all partitions together, and each of them is told once.
    """
    led = Led()
    led.told.measure()
    for tp, log in led.logs.items():
        led.partitions.pause(log)
        for _ in range(500):
            led.fetch(tp)
            led.park(tp)
    match end:
        case "retired":
            for log in led.logs.values():
                led.partitions.retire(log)
        case "deleted":
            led.partitions.remove_topic(A.topic_id)
        case _:
            led.partitions.close(led.logs.values(), lambda: None)
    told, at_once = 0, []
    for _ in range(100):
        at_once.append(len(led.told) - told)
        told = len(led.told)
        await asyncio.sleep(0)

    assert 0 < at_once[0]
    assert max(at_once) <= 101
    assert (1_000, 1_000) == (led.told.count("lost"), led.told.count("resumed"))


async def test_a_released_partition_and_a_deleted_topic_leave_nothing() -> None:
    """
    A manifest that stayed would be taken for the present one at the next claim.
    """
    led = Led()
    for log in led.logs.values():
        led.manifests.was_read(log, empty_manifest("t", A), 0)
    led.partitions.gone(led.logs[A])
    left = led.topics.logs()
    removed = [led.partitions.remove_topic(A.topic_id) for _ in range(2)]

    assert ([led.logs[B]], [True, False]) == (left, removed)
    assert [None, None] == [led.manifests.newest(log) for log in led.logs.values()]
    assert 1 == led.counters.partitions_handed_over


async def test_at_the_end_parked_batches_are_told_last() -> None:
    """
    After what must be closed before them: they are refused then.
    """
    led = Led()
    led.partitions.pause(led.logs[A])
    led.park(A)
    led.fetch(B)
    led.partitions.close(led.logs.values(), lambda: led.told.append("closed"))

    assert ["lost", "closed", "resumed"] == led.told


def test_producers_are_unknown_while_a_partition_is_loaded_and_at_first_if_it_cannot_be() -> None:
    """
    An unreadable partition may stay so: other producers do not wait for it.
    """
    led = Led(State.LOADING)
    loading = led.partitions.unknown_producers(at_first=False)
    for log in led.logs.values():
        log.damage = "no manifest"

    assert "producer state is being loaded" == loading
    assert "producer state cannot be read yet" == led.partitions.unknown_producers(at_first=True)
    assert "" == led.partitions.unknown_producers(at_first=False)


def test_partitions_that_need_an_operator_are_named_with_the_reason() -> None:
    """
    Those that serve are not.
    """
    led = Led()
    led.logs[B].state, led.logs[B].offline_reason = State.OFFLINE, "records are missing"

    assert {B: "records are missing"} == led.partitions.offline()
