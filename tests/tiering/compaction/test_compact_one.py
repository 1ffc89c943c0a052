"""A job compacts as an agent does: else it would lose a key's newest value, or stop agents.

Another editor is at work in some of these, as agents and other jobs are.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_tiering.compaction.compact_one import compact_one
from driftlog_tiering.compaction.policy import CleanerSettings, CompactionPolicy
from driftlog_tiering.compaction.rewrite_report import Outcome
from driftlog_tiering.compaction.sealed_partition import SealedPartition
from driftlog_tiering.formats.manifest import Busy, Edit, ReplaceSegments, SetBusy, SetLogStart
from driftlog_tiering.foundation.types import Buffer
from tests.support.memory_object_store import MemoryObjectStore
from tests.tiering.compaction.job_partition import (
    DIRTY,
    OURS,
    REPORT,
    compacted,
    edit,
    newest,
    opened,
)
from tests.tiering.compaction.test_cleaner import TP, Partition, Row, rows_from, table_of

Pair = tuple[bytes, bytes | None]
PAIRS: tuple[Pair, ...] = ((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"b", None))


class Store(MemoryObjectStore):
    """Calls *before_put* before each PUT."""

    before_put: Callable[[], Awaitable[None]] | None = None
    puts: tuple[str, ...] = ()

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        if self.before_put is not None:
            await self.before_put()
        await super().put(key, body)
        self.puts += (key,)


class Watched(Partition):
    """A partition whose bucket tells of PUTs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.store: Store = Store(lambda: self.now_ms + self.paused_ms)


async def sealed(*more: Sequence[Pair], segment_bytes: int = 600) -> Watched:
    """Five records in a segment, and *more* segments."""
    log = Watched(segment_bytes=segment_bytes)
    for pairs in (PAIRS, *more):
        base = log.manifest.end
        await log.append(rows_from(base, *pairs), base + len(pairs))
    return log


def test_a_job_leaves_what_an_agent_leaves() -> None:
    """
    Records, offsets, segments, horizons and cleaned end; and no `Busy`.
    """

    async def main() -> None:
        ours, theirs = await sealed(PAIRS), await sealed(PAIRS)
        report = await compacted(opened(ours), replace(ours.policy, min_dirty_ratio=0))
        await theirs.clean()
        found = await newest(ours)
        assert await ours.rows() == await theirs.rows()
        by_job, by_agent = await ours.segments(), await theirs.segments()
        assert [replace(each, key="") for each in by_job] == [
            replace(each, key="") for each in by_agent
        ]
        assert any(each.horizons for each in by_job)
        assert (found.cleaned_end, found.busy) == (theirs.manifest.cleaned_end, None)
        assert (report.outcome, report.records_before, report.records) == (Outcome.DONE, 10, 3)
        assert (report.pieces, report.segments_before, report.segments) == (1, 2, 1)
        assert (report.keys, report.cleaned_end) == (3, 10)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("paused_ms", "puts"), [(Grace().named_within_ms - 60_000, 2), (Grace().ms, 4)]
)
def test_objects_that_are_old_by_the_stores_clock_are_not_named(paused_ms: int, puts: int) -> None:
    """
    A hypervisor pauses the machine between two PUTs of a piece, which our clock does not count.
    The collector deletes the first object after grace; the job begins again.
    """

    async def main() -> None:
        log = await sealed(((b"d", b"1"), (b"a", b"3")))
        before = len(log.store.puts)

        async def pause() -> None:
            if len(log.store.puts) == before + 1:
                log.paused_ms = paused_ms
                if paused_ms >= Grace().ms:
                    await log.store.delete(log.store.puts[-1:])

        log.store.before_put = pause
        report = await compacted(opened(log), replace(DIRTY, segment_bytes=1))
        await newest(log)
        assert (Outcome.DONE, 7) == (report.outcome, log.manifest.cleaned_end)
        assert puts == len(log.store.puts) - before
        assert [3, 4, 5, 6] == [row.offset for row in await log.rows()]

    asyncio.run(main())


def test_a_partition_that_is_not_due_is_not_edited() -> None:
    """
    Nothing is sealed, or all of it was looked at, or too little is dirty; the report says which.
    """

    async def main() -> None:
        empty = await compacted(opened(Partition()))
        log = await sealed()
        await compacted(opened(log))
        version = (await newest(log)).version
        again = await compacted(opened(log))
        await log.append(rows_from(5, (b"d", b"1")), 6)
        part = await compacted(opened(log), replace(DIRTY, min_dirty_ratio=0.9))
        assert [Outcome.CLEAN] * 3 == [each.outcome for each in (empty, again, part)]
        assert "nothing of it is sealed" == empty.reason
        assert "looked at all" in again.reason
        assert "min.cleanable.dirty.ratio is 0.9" in part.reason
        assert version + 1 == (await newest(log)).version  # the append
        assert log.manifest.busy is None

    asyncio.run(main())


@pytest.mark.parametrize("timestamp_ms", [1_000, -1])
def test_records_younger_than_the_lag_stay_by_the_stores_clock(timestamp_ms: int) -> None:
    """
    Records without a timestamp are as old as the PUT of their segment.
    """

    async def main() -> None:
        log = Watched(now_ms=1_000)
        await log.append([Row(0, timestamp_ms, b"a", b"1"), Row(1, timestamp_ms, b"a", b"2")], 2)
        log.now_ms = 1_500
        young = await compacted(opened(log), replace(DIRTY, min_lag_ms=1_000))
        log.now_ms = 5_000
        old = await compacted(opened(log), replace(DIRTY, min_lag_ms=1_000))
        assert (Outcome.CLEAN, Outcome.DONE) == (young.outcome, old.outcome)

    asyncio.run(main())


def test_a_key_map_that_is_too_small_makes_several_runs() -> None:
    """
    One job compacts the whole partition.
    """

    async def main() -> None:
        log = await sealed([(b"k%d" % n, b"1") for n in range(9)], [(b"k1", b"2")])
        small = CleanerSettings(map_bytes=24 * 5, map_load=0.9)  # four keys
        expected = table_of(await log.rows())
        report = await compacted(opened(log), settings=small)
        await newest(log)
        assert (Outcome.DONE, 15) == (report.outcome, log.manifest.cleaned_end)
        assert report.pieces > 1
        assert expected == table_of(await log.rows())

    asyncio.run(main())


def test_a_partition_that_another_rewrites_is_left_alone_until_that_lapses() -> None:
    """
    Its own earlier attempt's mark does not count, and a mark that lapsed does not.
    """

    async def main() -> None:
        log = await sealed()
        await edit(log, SetBusy(None, Busy("other", log.now_ms + 60_000)))
        busy = await compacted(opened(log))
        assert Busy("other", log.now_ms + 60_000) == (await newest(log)).busy
        log.now_ms += 60_000
        done = await compacted(opened(log))
        assert (Outcome.BUSY, Outcome.DONE) == (busy.outcome, done.outcome)
        assert "other rewrites the partition for at most 60 s" in busy.reason

        again = await sealed()
        await edit(again, SetBusy(None, Busy("job", again.now_ms + 60_000)))
        assert Outcome.DONE == (await compacted(opened(again, by="job"))).outcome
        assert (await newest(again)).busy is None

    asyncio.run(main())


def test_a_mark_ends_within_half_of_grace_and_is_there_while_the_job_works() -> None:
    """
    Agents do not count one that ends later.
    """

    async def main() -> None:
        log = await sealed()
        seen: list[Busy | None] = []

        async def look() -> None:
            seen.append((await newest(log)).busy)

        log.store.before_put = look
        await compacted(opened(log))
        assert [Busy("job", log.now_ms + 600_000)] == seen

    asyncio.run(main())


def test_a_failure_takes_the_mark_away_and_leaves_the_partition() -> None:
    """
    A damaged segment and a missing one are named.
    """

    async def main() -> None:
        for change in ("damaged", "missing"):
            log = await sealed(PAIRS)
            key = (await log.segments())[1].key
            before = await newest(log)
            await log.store.delete([key])
            if change == "damaged":
                await log.store.put(key, [bytes(before.segments[1].size_bytes)])
            report = await compacted(opened(log))
            after = await newest(log)
            assert Outcome.FAILED == report.outcome
            assert key in report.reason
            assert (before.segments, before.cleaned_end, None) == (
                after.segments,
                after.cleaned_end,
                after.busy,
            )

    asyncio.run(main())


def test_a_job_that_lost_to_another_edit_begins_again_from_the_newest_manifest() -> None:
    """
    Once; then it tells of it.
    """

    async def main() -> None:
        for times, expected in ((1, Outcome.DONE), (9, Outcome.VOID)):
            log = await sealed(PAIRS)
            left = times

            async def replace_one(log: Watched = log) -> None:
                nonlocal left
                if left:
                    left -= 1
                    (first, *_) = await log.segments()
                    body = await log.store.get(first.key)
                    copied = replace(first, key=f"{first.key.removesuffix('.parquet')}c.parquet")
                    await MemoryObjectStore.put(log.store, copied.key, [body])
                    await edit(log, ReplaceSegments(replaced=(first,), added=(copied,)))

            log.store.before_put = replace_one
            rows = table_of(await log.rows())
            report = await compacted(opened(log))
            found = await newest(log)
            assert (expected, None) == (report.outcome, found.busy)
            assert rows == table_of(await log.rows())

    asyncio.run(main())


def test_a_put_without_an_answer_begins_the_work_again() -> None:
    """
    A few times: then the report says what the store said.
    """

    async def main() -> None:
        for times, expected in ((2, Outcome.DONE), (9, Outcome.FAILED)):
            log = await sealed(PAIRS)
            left = times

            async def fail() -> None:
                nonlocal left
                if left:
                    left -= 1
                    raise UnavailableError("slow down")

            log.store.before_put = fail
            report = await compacted(opened(log))
            assert expected == report.outcome
            assert ("slow down" in report.reason) == (expected is Outcome.FAILED)
            assert (await newest(log)).busy is None

    asyncio.run(main())


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_last_piece_whose_answer_was_lost_is_done(is_committed: bool) -> None:
    """
    The next attempt finds it in the manifest, with nothing left to do, or does it again.
    """

    async def main() -> None:
        log = await sealed(PAIRS)
        expected = table_of(await log.rows())
        lost = False

        class Unanswered(SealedPartition):
            async def _commit(self, edit: Edit, *times: Any) -> None:
                nonlocal lost
                if lost or not isinstance(edit, ReplaceSegments):
                    await super()._commit(edit, *times)
                    return
                lost = True
                if is_committed:
                    await super()._commit(edit, *times)
                raise OutcomeUnknownError("no answer")

        job = Unanswered(log.store, "t", TP, (OURS, Grace()), log.environment, "job")
        report = await compacted(job)
        found = await newest(log)
        assert lost
        assert (Outcome.DONE, "", 1) == (report.outcome, report.reason, report.pieces)
        assert (10, None) == (found.cleaned_end, found.busy)
        assert expected == table_of(await log.rows())

    asyncio.run(main())


def test_another_clusters_partition_is_not_edited() -> None:
    """
    A restore gave the bucket to another cluster while the job ran.
    """

    async def main() -> None:
        log = await sealed()
        version = (await newest(log)).version
        report = await compacted(opened(log, cluster=replace(OURS, cluster_id="older")))
        assert Outcome.FAILED == report.outcome
        assert "another cluster" in report.reason
        assert version == (await newest(log)).version

    asyncio.run(main())


@pytest.mark.parametrize("policy", [CompactionPolicy(delete_retention_ms=1_000)])
def test_a_deletion_goes_after_its_horizon_by_the_stores_clock(policy: CompactionPolicy) -> None:
    """
    And `reader_ms`, within which each leader reads the manifest again.
    """

    async def main() -> None:
        log = await sealed()
        dirty = replace(policy, min_dirty_ratio=0)
        await compacted(opened(log), dirty)
        reader_ms = CleanerSettings().reader_ms

        async def compact_more() -> list[Row]:
            await newest(log)
            base = log.manifest.end
            await log.append(rows_from(base, (b"z", b"1")), base + 1)
            await compacted(opened(log), dirty)
            await newest(log)
            return [row for row in await log.rows() if row.value is None]

        log.now_ms += reader_ms
        early = await compact_more()
        log.now_ms += 40_000
        late = await compact_more()
        assert ([b"b"], []) == ([row.key for row in early], late)

    asyncio.run(main())


@pytest.mark.parametrize("changed", [None, replace(DIRTY, min_lag_ms=10**15)])
@pytest.mark.parametrize("asked_before", [0, 1, 2, 3])
def test_what_is_acknowledged_after_a_change_of_configs_is_kept_by_the_new_ones(
    changed: CompactionPolicy | None, asked_before: int
) -> None:
    """
    The topic is not compacted any more, or its records stay longer.  The change is answered while
    the job waits, before an edit or between two of its runs, and then records are acknowledged and
    sealed.
    """

    async def main() -> None:
        log = await sealed(*[[(b"k%d" % n, b"1") for n in range(9)]] * 2)
        tail: list[Pair] = [(b"k1", b"3"), (b"k1", b"4")]
        asked = 0

        async def policy_now() -> CompactionPolicy | None:
            nonlocal asked
            asked += 1
            if asked == asked_before + 1:
                base = (await newest(log)).end
                await log.append(rows_from(base, *tail), base + len(tail))
            return DIRTY if asked <= asked_before else changed

        report = await compact_one(
            opened(log),
            REPORT,
            policy_now,
            settings=CleanerSettings(map_bytes=24 * 5, map_load=0.9),  # four keys: several runs
            new_seed=lambda: bytes(range(16)),
        )
        found = await newest(log)
        assert tail == [(row.key, row.value) for row in await log.rows()][-2:]
        assert (asked_before < 3) == (report.pieces == 0)
        assert found.cleaned_end < found.end - len(tail)
        assert ("configs have changed" in report.reason) == (changed is None)

    asyncio.run(main())


def test_a_segment_that_retention_has_taken_during_a_run_is_no_damage() -> None:
    """
    The job goes on from the newest manifest; nobody restores the object from a copy.
    """

    async def main() -> None:
        log = await sealed(PAIRS)
        asked = 0

        async def policy_now() -> CompactionPolicy:
            nonlocal asked
            asked += 1
            if asked == 2:
                (first, _) = await log.segments()
                await edit(log, SetLogStart(first.end))
                await log.store.delete([first.key])
            return DIRTY

        report = await compact_one(
            opened(log),
            REPORT,
            policy_now,
            settings=CleanerSettings(),
            new_seed=lambda: bytes(range(16)),
        )
        found = await newest(log)
        assert (Outcome.DONE, 10, None) == (report.outcome, found.cleaned_end, found.busy), report

    asyncio.run(main())
