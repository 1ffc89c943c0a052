"""What is logged of a bucket that takes nothing, and how long a stop then waits, is bounded."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from driftlog_agents.foundation.failure_tracker import FailureTracker
from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.store import MetadataStore, TxnResult
from driftlog_tiering.foundation.types import Buffer
from tests.agents.log.lives import ONE, SETTINGS, Bucket, Life, World, now_ms, on_virtual_time


class Refusals(list[Exception | None]):
    """The fates of a bucket that is down: each PUT is reset, for ever."""

    def __bool__(self) -> bool:
        return True

    def pop(self, _: Any = -1) -> Exception:
        return OutcomeUnknownError("reset by peer")


class NoSegments(Bucket):
    """Takes flush objects, and nothing else."""

    refuses = True

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        if self.refuses and (key.endswith(".parquet") or "/probe-" in key):
            raise UnavailableError("slow down")
        await super().put(key, body)


class Silent:
    """A metadata store that does not answer commits while it is told so."""

    def __init__(self, behind: MetadataStore) -> None:
        self._behind = behind
        self.silent = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)

    async def txn(
        self, compares: Sequence[Any], then: Sequence[Any], otherwise: Sequence[Any] = ()
    ) -> TxnResult:
        if self.silent and any("/flushes/" in op.key for op in then):
            await asyncio.sleep(3_600)
        return await self._behind.txn(compares, then, otherwise)


async def in_an_outage(world: World, seconds: float) -> Life:
    """An agent with one synced batch that the bucket has refused for so long."""
    life = await world.start()
    world.bucket.fates = Refusals()
    assert await life.produce(b"synced", acks=ONE).answer() == "synced"
    await asyncio.sleep(seconds)
    return life


def events(lines: list[Any], *names: str) -> list[str]:
    """Those that are of interest, in order."""
    return [line["event"] for line in lines if line["event"] in names]


# ── What is said ──


@on_virtual_time
async def test_an_outage_is_said_at_once_then_every_ten_seconds_and_when_it_ends() -> None:
    """
    With how often it failed; not once a PUT.
    """
    world = World()
    with capture_logs() as lines:
        life = await in_an_outage(world, 65)
        tried = len(world.bucket.puts)
        world.bucket.fates = []
        await asyncio.sleep(5)
    said = [line for line in lines if line["event"] == "flush_upload_unanswered"]
    over = [line for line in lines if line["event"] == "flushes_resumed"]

    assert tried > 30
    assert len(said) in (6, 7)
    assert said[0]["failures"] == 1
    assert said[-1]["failures"] > said[-2]["failures"] > 20
    assert [line["failures"] for line in over] == [tried]
    assert over[0]["seconds"] == pytest.approx(65, abs=3)
    assert life.engine.flusher.outage.since_ms is None


@on_virtual_time
async def test_a_metadata_store_that_does_not_answer_commits_is_said_to() -> None:
    """
    It refuses nothing, so that nobody else says it; at once, and every ten seconds.
    """
    world = World()
    stores: list[Silent] = []

    def wrap(store: MetadataStore) -> MetadataStore:
        stores.append(Silent(store))
        return cast(MetadataStore, stores[-1])

    life = await world.start(metadata=wrap)
    with capture_logs() as lines:
        stores[0].silent = True
        request = life.produce(b"x")
        await asyncio.sleep(35)
        stores[0].silent = False
        assert await request.answer() == "committed"
    said = events(lines, "commit_unanswered", "flushes_resumed")

    assert said == ["commit_unanswered"] * 4 + ["flushes_resumed"]


@on_virtual_time
async def test_a_store_that_fails_now_and_then_is_not_out() -> None:
    """
    What is committed in between ends it, and the log is as quiet.
    """
    world = World()
    with capture_logs() as lines:
        life = await world.start()
        for _ in range(40):
            world.bucket.fates = [OutcomeUnknownError("reset by peer")]
            assert await life.produce(b"x").answer() == "committed"
    said = events(lines, "flush_upload_unanswered", "flushes_resumed")

    assert life.engine.flusher.outage.lasted_ms(now_ms()) == 0
    assert said == ["flush_upload_unanswered", "flushes_resumed"]


def test_an_outage_begins_when_what_failed_was_sent() -> None:
    """
    A PUT that hangs for 15 s has failed for 15 s; but not for as long as others were taken.
    """
    outage = FailureTracker()
    outage.failed("silence", 1_000, 16_000)
    hung = outage.lasted_ms(16_000)
    outage.ended(17_000)
    outage.failed("silence", 2_000, 18_000)

    assert (hung, outage.lasted_ms(18_000)) == (15_000, 1_000)


# ── A stop ──


@on_virtual_time
async def test_a_stop_gives_a_store_up_that_has_failed_for_long() -> None:
    """
    After 5 s instead of 20; what was acks=1 is on the disk, and in the log after the next start.
    """
    world = World()
    life = await in_an_outage(world, 30)
    began = now_ms()
    with capture_logs() as lines:
        life.engine.stop()
        await life.task
    took = now_ms() - began
    world.bucket.fates = []
    again = await world.start()

    assert took == pytest.approx(5_000, abs=100)
    assert events(lines, "drain_incomplete") == ["drain_incomplete"]
    assert [(0, 0, b"synced")] == await again.committed()


@on_virtual_time
async def test_a_stop_waits_for_a_store_that_is_slow() -> None:
    """
    PUTs of 12 s are no failures.
    """
    world = World()
    life = await world.start()
    world.bucket.put_s = 12
    request = life.produce(b"x")
    await asyncio.sleep(1)
    began = now_ms()
    with capture_logs() as lines:
        await life.stop()

    assert await request.answer() == "committed"
    assert now_ms() - began == pytest.approx(11_000, abs=100)
    assert events(lines, "drain_incomplete") == []
    assert world.directories == []


@on_virtual_time
async def test_a_stop_outlasts_a_short_outage() -> None:
    """
    Failures that began 4 s before the stop, and end 4 s after it, leave nothing behind.
    """
    world = World()
    life = await in_an_outage(world, 4)
    life.engine.stop()
    await asyncio.sleep(4)
    assert not life.task.done()
    world.bucket.fates = []
    await life.task

    assert world.directories == []


# ── Sealing ──


@on_virtual_time
async def test_sealing_that_fails_says_so_every_ten_seconds() -> None:
    """
    Not once a second and partition.
    """
    world = World()
    seal = replace(SETTINGS.seal, segment_ms=1_000, small_ms=1_000)
    with capture_logs() as lines:
        world.bucket = bucket = NoSegments()
        life = await world.start(replace(SETTINGS, seal=seal))
        for partition in range(2):
            assert await life.produce(b"x", partition=partition).answer() == "committed"
        await asyncio.sleep(60)
        bucket.refuses = False
        await asyncio.sleep(5)
    said = events(lines, "seal_failed", "sealing_resumed")

    assert len(said) in (7, 8)
    assert said[-1] == "sealing_resumed"
    assert [1, 1] == [life.log(partition).sealed_end for partition in range(2)]
