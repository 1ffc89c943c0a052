"""Producers wait while sealing is too far behind, and for nothing else that the sealer does."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from driftlog_agents.foundation.clocks import Clocks
from driftlog_agents.foundation.loop_slices import SLICE_S, measure_by
from driftlog_agents.log.objects.bucket_probe import BucketProbes
from driftlog_agents.log.objects.manifest_cache import ManifestCache
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.sealing.attempts import SealAttempts
from driftlog_agents.log.sealing.manifest_edits import ManifestEdits
from driftlog_agents.log.sealing.policy import SealSettings, TopicSealPolicy
from driftlog_agents.log.sealing.sealer import Sealer
from driftlog_agents.log.session.backpressure import Backpressure
from driftlog_agents.log.session.counters import LogCounters
from driftlog_agents.log.session.session_health import SessionHealth, SessionSignals
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.foundation.types import MiB
from driftlog_tiering.stores.object_store import NotFoundError
from tests.agents.log.sealing.test_policy import make_log
from tests.support.memory_object_store import MemoryObjectStore

SETTINGS = SealSettings(
    check_interval_ms=1, unsealed_bytes=10 * MiB, unsealed_bytes_per_partition=0
)
Seal = Callable[[PartitionLog], Awaitable[None]]


class Partitions:
    """These, of topics without policies."""

    def __init__(self, logs: tuple[PartitionLog, ...]) -> None:
        self._logs = logs

    def logs(self) -> list[PartitionLog]:
        return list(self._logs)

    def seal_policies(self) -> Mapping[str, TopicSealPolicy]:
        return {}

    def compacted_topics(self) -> tuple[str, ...]:
        return ()

    def buffering(self, tp: TopicPartition) -> set[str]:
        return set()

    def sealed(self, tp: TopicPartition, end: int) -> None:
        pass


class Subject(Sealer):
    """Of these partitions; sealing one is what a test says."""

    def __init__(
        self,
        *logs: PartitionLog,
        seal: Seal | None = None,
        now_ms: Callable[[], float] = lambda: 0,
    ) -> None:
        objects, self.counts = MemoryObjectStore(lambda: 0), LogCounters()
        self.pressed: list[bool] = []
        super().__init__(
            session=cast(Any, None),
            keys=cast(Any, None),
            edits=ManifestEdits(
                session=cast(Any, None),
                objects=objects,
                manifests=ManifestCache(objects, lambda: 0),
                writer=cast(Any, None),
                attempts=SealAttempts(SETTINGS, Random(1).random),
                rng=Random(1),
                now_ms=lambda: 0,
                grace=SETTINGS.grace,
            ),
            probes=BucketProbes(cast(Any, None), objects, lambda: 0),
            partitions=Partitions(logs),
            settings=SETTINGS,
            clocks=Clocks(now_ms, lambda: 0),
            signals=SessionSignals(self.counts, SessionHealth(), Backpressure(self.pressed.append)),
        )
        self.sealed: list[PartitionLog] = []
        self._seal_it = seal

    async def seal(self, log: PartitionLog, end: int | None = None) -> int:
        self.sealed.append(log)
        assert self._seal_it is not None
        await self._seal_it(log)
        return 0


async def while_it_runs(work: Callable[[], Awaitable[None]], until: Callable[[], bool]) -> None:
    """Run *work* until something is so, or for a second: it never ends by itself."""
    running = asyncio.ensure_future(work())
    for _ in range(200):
        if until() or running.done():
            break
        await asyncio.sleep(0.005)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("works", ["run", "hold_back"])
async def test_very_many_partitions_are_looked_through_in_slices(works: str) -> None:
    """
    40,000 of them took 40 ms of the event loop each second, in one step.
    """
    subject = Subject(*(make_log() for _ in range(2_000)))
    ticks = longest = 0

    def clock_s() -> float:
        nonlocal ticks
        ticks += 1
        return ticks * SLICE_S / 100

    measure_by(asyncio.get_running_loop(), clock_s)
    running = asyncio.ensure_future({"run": subject.run, "hold_back": subject.hold_back}[works]())
    async with asyncio.timeout(10):
        while ticks < 2_000:
            before = ticks
            await asyncio.sleep(0)
            longest = max(longest, ticks - before)
    running.cancel()

    assert longest < 200


async def test_what_cannot_be_sealed_is_bounded_while_sealing_never_pauses() -> None:
    """
    One partition is always due, so that a round follows the other; the damaged one grows meanwhile.
    """
    busy, damaged = make_log(500), make_log(1)
    damaged.damage = "missing"

    async def seal(log: PartitionLog) -> None:
        subject.counts.segments_sealed += 1
        damaged.unsealed_bytes += MiB
        await asyncio.sleep(0)

    subject = Subject(busy, damaged, seal=seal)
    await while_it_runs(subject.run, lambda: len(subject.sealed) > 30)

    assert {busy} == set(subject.sealed)
    assert damaged.full


async def test_a_topic_that_falls_due_is_next_while_slow_attempts_run() -> None:
    """
    250 batches of 1 kB that decode to 40 MiB each, in ten partitions, took minutes, and no other
    topic was sealed meanwhile.
    """
    bombs = [make_log(500, topic="bombs") for _ in range(10)]
    honest = make_log(1, topic="honest")
    ends, clock_ms = asyncio.Semaphore(0), 0.0

    async def seal(log: PartitionLog) -> None:
        nonlocal clock_ms
        if len(subject.sealed) == 3:
            honest.unsealed_bytes = 500 * MiB
            asyncio.get_running_loop().call_later(0.05, ends.release)  # some looks later
        await ends.acquire()
        clock_ms += 60_000
        subject.counts.segments_sealed += 1

    subject = Subject(*bombs, honest, seal=seal, now_ms=lambda: clock_ms)
    await while_it_runs(subject.run, lambda: len(subject.sealed) > 3)

    assert [*bombs[:3], honest] == subject.sealed


async def test_producers_do_not_wait_for_what_is_not_sealed_anyway() -> None:
    """
    A partition that is offline takes no records, and no sealing makes it less.
    """
    for state, expected in ((State.OFFLINE, []), (State.CLOSED, []), (State.ONLINE, [True])):
        subject = Subject(make_log(30, state=state), make_log(1))
        pressed = subject.pressed
        await while_it_runs(subject.hold_back, partial(bool, pressed))
        assert expected == pressed, state


@pytest.mark.parametrize(
    "error", [UnavailableError("not led here any more"), NotFoundError("a flush object")]
)
async def test_a_topic_that_is_deleted_while_it_is_sealed_is_no_outage(error: Exception) -> None:
    """
    Nobody has to put anything back, and nothing is tried again.
    """

    async def seal(log: PartitionLog) -> None:
        log.state = State.CLOSED
        raise error

    subject = Subject(make_log(500), seal=seal)
    with capture_logs() as lines:
        await while_it_runs(subject.run, lambda: bool(subject.sealed))

    assert [] == lines
    assert 1 == len(subject.sealed)


@pytest.mark.parametrize("end", ["deleted or moved", "offline", "no records left"])
async def test_an_outage_ends_with_the_last_partition_that_fails(end: str) -> None:
    """
    Otherwise it would last until another partition is due, perhaps for ever, and so would its
    alert.
    """
    fails, stays, small = make_log(500), make_log(400), make_log(1)

    async def seal(log: PartitionLog) -> None:
        raise UnavailableError("no answer")

    def ends(log: PartitionLog) -> None:
        if end == "no records left":
            log.slices.clear()
        else:
            log.state = State.CLOSED if end == "deleted or moved" else State.OFFLINE

    subject = Subject(fails, stays, small, seal=seal)
    outage = subject.outage
    with capture_logs() as lines:
        await while_it_runs(subject.run, lambda: {fails, stays} == set(subject.sealed))
        ends(fails)
        before = len(subject.sealed)
        await while_it_runs(subject.run, lambda: len(subject.sealed) > before + 3)
        goes_on = outage.since_ms is not None
        ends(stays)
        await while_it_runs(subject.run, lambda: outage.since_ms is None)

    assert goes_on
    assert outage.since_ms is None
    assert ["seal_failed", "sealing_resumed"] == [line["event"] for line in lines]


@pytest.mark.parametrize("left", ["no records", "not due"])
async def test_a_failure_of_long_ago_blocks_no_partition(left: str) -> None:
    """
    Its records went (by retention, say), or it is not due any more, before its object could be
    read: the next failure is the first of another outage.
    """
    log, later_ms = make_log(500), 0.0
    slices, size = list(log.slices), log.unsealed_bytes

    async def seal(_: PartitionLog) -> None:
        log.unsealed_bytes = 0
        if left == "not due":
            raise UnavailableError("no answer")
        log.slices.clear()
        raise NotFoundError("a flush object")

    async def fails(times: int) -> None:
        log.unsealed_bytes = size
        log.slices[:] = slices
        await while_it_runs(subject.run, lambda: len(subject.sealed) == times)
        await while_it_runs(subject.run, bool)  # rounds without work

    subject = Subject(log, seal=seal, now_ms=lambda: later_ms)
    with capture_logs() as lines:
        await fails(1)
        later_ms = 600_000.0
        await fails(2)

    assert [log, log] == subject.sealed
    assert not {"seal_blocked", "partition_full"} & {line["event"] for line in lines}
