"""Rebalance callbacks: what a program may do when its group gives partitions, or takes them away.

Without these: a program that keeps state per partition cannot hand it over, and loses or repeats
records at each rebalance.
Shell.
"""

import asyncio
import threading
import time
import uuid
from typing import Any

import pytest

from driftlog import AsyncConsumer, Consumer, RebalanceCallbacks, TopicPartition
from driftlog.common.settings import ConsumerSettings
from driftlog.errors import ClosedError, CommitError, DriftlogError
from tests.clients.python_client import (
    QUICK,
    committed,
    member,
    new_topic,
    numbered,
    wait_until_left,
    write,
)
from tests.support.driftlog_process import DriftlogProcess

pytestmark = [pytest.mark.xdist_group("python_client"), pytest.mark.timeout(240)]


class Guest:
    """Another member of a group, for a while: it reads, and commits nothing."""

    def __init__(
        self, servers: str, topic: str, group: str, config: dict[str, str] | None = None
    ) -> None:
        self.assignment: list[TopicPartition] = []
        self._leave = threading.Event()
        self._consumer = member(servers, topic, group, auto_commit=False, config=config)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with self._consumer as consumer:
            while not self._leave.is_set():
                consumer.read(timeout_s=0.1)
                self.assignment = consumer.assignment()

    def leave(self) -> None:
        self._leave.set()
        self._thread.join(60)


def read_until(consumer: Consumer, condition: Any, seconds: float = 60) -> list[int]:
    """Offsets of what is read until *condition* holds."""
    offsets = []
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        offsets += [record.offset for record in consumer.read(timeout_s=0.1)]
    return offsets


def test_callbacks_are_called_with_the_partitions(servers: str) -> None:
    """
    At the first read, as another member joins and leaves, and at the end; on_revoke is not on_lost.
    """
    topic, group = new_topic(servers, 2), uuid.uuid4().hex
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    calls: list[tuple[str, int]] = []
    seen = set()

    def noted(what: str) -> Any:
        def called(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            calls.append((what, len(partitions)))
            seen.add((consumer is mine, set(partitions) <= set(consumer.assignment())))

        return called

    callbacks = RebalanceCallbacks(
        on_assign=noted("assign"), on_revoke=noted("revoke"), on_lost=noted("lost")
    )
    with member(servers, topic, group, rebalance=callbacks) as mine:
        read_until(mine, lambda: mine.assignment() == both)
        guest = Guest(servers, topic, group)
        try:
            read_until(mine, lambda: len(mine.assignment()) == 1 and guest.assignment)
        finally:
            guest.leave()
        read_until(mine, lambda: mine.assignment() == both)

    assert [("assign", 2), ("revoke", 2), ("assign", 1), ("revoke", 1)] == calls[:4]
    assert ("revoke", 2) == calls[-1]
    assert "lost" not in {what for what, _ in calls}
    assert {(True, True)} == seen


@pytest.mark.parametrize("end", ["a rebalance", "the end of the block"])
def test_a_commit_in_on_revoke_works(servers: str, end: str) -> None:
    """
    What the program has worked on so far, or offsets of its own, before the next owner begins.
    """
    topic, group = new_topic(servers), uuid.uuid4().hex
    write(servers, topic, numbered(10))
    positions = []

    def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            positions.append(consumer.position(*tp))
            consumer.commit(offsets={tp: 4})
            if end == "a rebalance" and len(positions) == 1:
                assert 4 == consumer.committed(*tp)

    callbacks = RebalanceCallbacks(on_revoke=revoked)
    with member(servers, topic, group, auto_commit=False, rebalance=callbacks) as consumer:
        assert 0 == next(consumer).offset
        assert 1 == next(consumer).offset
        if end == "a rebalance":
            guest = Guest(servers, topic, group)
            try:
                read_until(consumer, lambda: positions)
            finally:
                guest.leave()

    assert end == "a rebalance" or [2] == positions
    assert 4 == committed(servers, group, topic)


@pytest.mark.parametrize(
    "config",
    [{"group.protocol": "consumer"}, {"partition.assignment.strategy": "cooperative-sticky"}],
)
def test_partitions_are_handed_over_one_by_one(servers: str, config: dict[str, str]) -> None:
    """
    Protocols that revoke only what moves: on_revoke has that alone, a commit there works, and a
    paused partition that stays is paused still.
    """
    topic, group = new_topic(servers, 2), uuid.uuid4().hex
    for partition in (0, 1):
        write(servers, topic, numbered(10), partition)
    revoked: list[TopicPartition] = []

    def hand_over(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        revoked.extend(partitions)
        consumer.commit(offsets=dict.fromkeys(partitions, 4))

    callbacks = RebalanceCallbacks(on_revoke=hand_over)
    consumer = member(servers, topic, group, auto_commit=False, rebalance=callbacks, config=config)
    read_until(consumer, lambda: len(consumer.assignment()) == 2)
    consumer.pause(consumer.assignment())
    guest = Guest(servers, topic, group, config)
    try:
        read_until(consumer, lambda: len(consumer.assignment()) == 1 and guest.assignment)
        moved = list(revoked)
        assert 1 == len(moved)
        assert consumer.assignment() == consumer.paused() != moved
        assert 4 == consumer.committed(*moved[0])
    finally:
        guest.leave()
        consumer.close()


def test_a_block_that_fails_commits_nothing_more_in_on_revoke(servers: str) -> None:
    """
    `commit()` in the callback leaves out the record that the block was at.
    """
    topic, group = new_topic(servers), uuid.uuid4().hex
    write(servers, topic, numbered(10))
    callbacks = RebalanceCallbacks(on_revoke=lambda consumer, _: consumer.commit())
    with (  # noqa: PT012  # the error of the block comes out of its exit
        pytest.raises(ZeroDivisionError),
        member(servers, topic, group, auto_commit=False, rebalance=callbacks) as consumer,
    ):
        for record in consumer:
            if record.offset == 3:
                raise ZeroDivisionError

    assert 3 == committed(servers, group, topic)


def test_a_seek_in_on_assign_is_where_reading_begins(servers: str) -> None:
    """
    A program that keeps its offsets elsewhere; a pause there holds too.
    """
    topic, group = new_topic(servers, 2), uuid.uuid4().hex
    for partition in (0, 1):
        write(servers, topic, numbered(10), partition)

    def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            consumer.seek(*tp, 6)
        consumer.pause([tp for tp in partitions if tp.partition == 1])

    callbacks = RebalanceCallbacks(on_assign=assigned)
    with member(servers, topic, group, rebalance=callbacks) as consumer:
        read: list[tuple[int, int]] = []
        deadline = time.monotonic() + 60
        while len(read) < 4 and time.monotonic() < deadline:
            read += [(r.partition, r.offset) for r in consumer.read(timeout_s=0.2)]
        assert [(0, offset) for offset in range(6, 10)] == read
        assert [] == consumer.read(timeout_s=1)
        consumer.resume([TopicPartition(topic, 1)])
        assert (1, 6) == next(consumer)[1:3]


def test_a_pause_ends_when_the_partition_is_revoked(servers: str) -> None:
    """
    It survives polls; the next assignment begins unpaused, as Kafka's Java client has it.
    """
    topic, group = new_topic(servers), uuid.uuid4().hex
    write(servers, topic, numbered(3))
    revocations = []
    callbacks = RebalanceCallbacks(on_revoke=lambda _, tps: revocations.append(tps))
    with member(servers, topic, group, auto_commit=False, rebalance=callbacks) as consumer:
        read_until(consumer, consumer.assignment)
        consumer.pause(consumer.assignment())
        consumer.seek(topic, 0, 0)
        for _ in range(5):
            assert [] == consumer.read(timeout_s=0.2)
        guest = Guest(servers, topic, group)
        try:
            offsets = read_until(consumer, lambda: revocations)
        finally:
            guest.leave()
        offsets += read_until(consumer, lambda: consumer.assignment() and not consumer.paused())
        offsets += read_until(consumer, lambda: 2 in offsets or consumer.position(topic, 0) == 3)

    assert {0, 1, 2} == set(offsets)  # nothing was committed: each owner begins with the first


def test_what_a_callback_raises_is_raised_and_the_rebalance_goes_on(servers: str) -> None:
    """
    By the read, and by close; the partitions are assigned and revoked all the same.
    """
    topic, group = new_topic(servers), uuid.uuid4().hex
    write(servers, topic, numbered(3))

    def bad(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        raise KeyError("mine")

    consumer = member(servers, topic, group, rebalance=RebalanceCallbacks(on_assign=bad))
    with pytest.raises(KeyError, match="mine"):
        next(consumer)
    assert [0, 1, 2] == [next(consumer).offset for _ in range(3)]
    consumer.close()

    closing = member(servers, topic, group, rebalance=RebalanceCallbacks(on_revoke=bad))
    read_until(closing, closing.assignment)
    with pytest.raises(KeyError, match="mine"):
        closing.close()
    assert [] == closing.assignment()
    closing.close()


def test_a_read_in_a_callback_is_refused(servers: str) -> None:
    """
    librdkafka would wait for itself.
    """
    topic, group = new_topic(servers), uuid.uuid4().hex
    callbacks = RebalanceCallbacks(on_assign=lambda consumer, _: consumer.read())
    with (
        member(servers, topic, group, rebalance=callbacks) as consumer,
        pytest.raises(DriftlogError, match="must not read"),
    ):
        next(consumer)
    with pytest.raises(ValueError, match="only a group rebalances"):
        Consumer(topic, rebalance=callbacks)


def test_an_assignment_whose_offsets_were_not_found_is_tried_again() -> None:
    """
    The agent is silent while a member looks for the offsets of its new partitions: that read
    raises, and the next one goes on; it must not read nothing for ever.
    """
    settings = ConsumerSettings(fetch_wait_max_ms=50, request_timeout_ms=1_500)
    revoked: list[TopicPartition] = []
    callbacks = RebalanceCallbacks(on_revoke=lambda _, partitions: revoked.extend(partitions))
    with DriftlogProcess() as agent:
        topic, group = new_topic(agent.bootstrap, 2), uuid.uuid4().hex
        for partition in (0, 1):
            write(agent.bootstrap, topic, numbered(10), partition)
        consumer = member(
            agent.bootstrap, topic, group, auto_commit=False, settings=settings, rebalance=callbacks
        )
        read_until(consumer, consumer.assignment)
        guest = Guest(agent.bootstrap, topic, group)
        try:
            deadline = time.monotonic() + 30
            while not (revoked and guest.assignment) and time.monotonic() < deadline:
                if not revoked:
                    consumer.read(timeout_s=0)  # it must not find the assignment too
                time.sleep(0.05)
            time.sleep(0.5)  # the coordinator has answered both members at once
            assert [] == consumer.assignment()
            agent.pause()
            with pytest.raises(DriftlogError, match=r"could not (list|read)"):
                read_until(consumer, lambda: False, 10)
            agent.resume()
            read_until(consumer, lambda: at_end(consumer), 30)
        finally:
            agent.resume()
            guest.leave()
            consumer.close()


def at_end(consumer: Consumer) -> bool:
    """Whether it has handed out all ten records of what it is assigned."""
    return bool(consumer.assignment()) and all(
        consumer.position(*tp) == 10 for tp in consumer.assignment()
    )


def test_lost_partitions_are_not_revoked_ones(servers: str) -> None:
    """
    A member that was silent for too long: on_lost, or on_revoke where that is missing, as
    confluent-kafka has it; a commit there raises.
    """
    settings = ConsumerSettings(
        fetch_wait_max_ms=50,
        session_timeout_ms=6_000,
        max_poll_interval_ms=6_000,
        commit_timeout_ms=1_000,
    )
    members: list[tuple[str, Consumer, list[str]]] = []
    for lost_is_given in (True, False):
        topic, group = new_topic(servers), uuid.uuid4().hex
        write(servers, topic, numbered(10))
        calls: list[str] = []
        on_lost = _noted(calls, "lost") if lost_is_given else None
        callbacks = RebalanceCallbacks(on_revoke=_noted(calls, "revoke"), on_lost=on_lost)
        consumer = member(
            servers, topic, group, auto_commit=False, rebalance=callbacks, settings=settings
        )
        members.append((group, consumer, calls))
    for _, consumer, _ in members:
        assert 0 == next(consumer).offset

    wait_until_left(servers, *(group for group, _, _ in members))
    for _, consumer, calls in members:
        read_until(consumer, lambda calls=calls: calls)
        consumer.close()

    assert [["lost", "refused"], ["revoke", "refused"]] == [calls[:2] for _, _, calls in members]


def _noted(calls: list[str], what: str) -> Any:
    """A callback that notes that it was called, and that its commit was refused."""

    def called(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        calls.append(what)
        try:
            consumer.commit(offsets=dict.fromkeys(partitions, 5))
        except CommitError:
            calls.append("refused")

    return called


async def test_callbacks_of_asyncio_run_in_the_loop_and_may_await(servers: str) -> None:
    """
    The group waits for a coroutine function; commits and positions in it need the consumer's
    thread, which waits for it meanwhile.  The loop is free all the time.
    """
    topic, group = new_topic(servers), uuid.uuid4().hex
    write(servers, topic, numbered(10))
    loop_thread = threading.get_ident()
    calls: list[tuple[str, bool, int]] = []
    closing = False

    def assigned(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        calls.append(("assign", threading.get_ident() == loop_thread, len(partitions)))

    async def revoked(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        await asyncio.sleep(0.1)
        at = await consumer.position(*partitions[0])
        await consumer.commit(offsets={partitions[0]: 4})
        if not closing:
            assert 4 == await consumer.committed(*partitions[0])
        else:
            with pytest.raises(ClosedError, match="the consumer closes"):
                await consumer.committed(*partitions[0])
        calls.append(("revoke", threading.get_ident() == loop_thread, at))

    async with AsyncConsumer(
        topic,
        group=group,
        bootstrap_servers=servers,
        from_beginning=True,
        auto_commit=False,
        rebalance=RebalanceCallbacks(on_assign=assigned, on_revoke=revoked),
        settings=QUICK,
    ) as consumer:
        await anext(consumer)
        await anext(consumer)
        guest = await asyncio.to_thread(Guest, servers, topic, group)
        try:
            async with asyncio.timeout(60):
                while len(calls) < 2:
                    await consumer.read(timeout_s=0.1)
        finally:
            await asyncio.to_thread(guest.leave)
        async with asyncio.timeout(60):
            while not consumer.assignment():
                await consumer.read(max_records=0, timeout_s=0.1)
        await consumer.seek(topic, 0, 7)
        closing = True

    assert ("assign", True, 1) == calls[0]
    assert ("revoke", True) == calls[1][:2]
    assert ("revoke", True, 7) == calls[-1]
    assert 4 == committed(servers, group, topic)


async def test_what_a_callback_of_asyncio_raises_is_raised(servers: str) -> None:
    """
    By the read that waits for it.
    """
    topic, group = new_topic(servers), uuid.uuid4().hex

    async def bad(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        raise KeyError("mine")

    async with AsyncConsumer(
        topic,
        group=group,
        bootstrap_servers=servers,
        rebalance=RebalanceCallbacks(on_assign=bad),
        settings=QUICK,
    ) as consumer:
        with pytest.raises(KeyError, match="mine"):
            await anext(consumer)
        assert [] == await consumer.read(timeout_s=0.5)
        assert [TopicPartition(topic, 0)] == consumer.assignment()
