"""An object that cannot be read holds up its own partition, for a bounded time.

A 404 may be untrue for a moment, and an object that is lost may be put back.  Nothing is given up
for good, nothing needs a restart.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from structlog.testing import capture_logs

from driftlog_agents.log.objects.availability import (
    LONGEST_WAIT_MS,
    DamagedObjectError,
    ObjectUnavailableError,
)
from driftlog_agents.log.partition.partition import State
from driftlog_agents.log.reading.reader import LogReader
from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_metadata.schema.keys import FLUSHES_PREFIX
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_metadata.stores.store import KeyValue
from driftlog_tiering.stores.object_store import Listing, NotFoundError
from driftlog_tiering.stores.s3_errors import translate
from tests.agents.log.flush_records import SMALL, flushes, forget_memory, records
from tests.agents.log.lives import ONE, SETTINGS, Bucket, Life, World, now_ms, on_virtual_time

BACK_S = LONGEST_WAIT_MS / 1000 + 10
"""The longest wait, and what a takeover takes."""

PROXY = ClientError(
    {
        "Error": {"Code": "404", "Message": "Not Found"},
        "ResponseMetadata": {"HTTPStatusCode": 404},
    },
    "ListObjectsV2",
)


class Behind(Bucket):
    """A bucket that is behind: it says of some objects that they are not there."""

    def __init__(self) -> None:
        super().__init__()
        self.untrue = 0
        """Of so many GETs of flush objects."""
        self.proxy = False
        """Every LIST gets the page of a proxy."""

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if self.untrue and key.startswith("flush/") and "probe" not in key:
            self.untrue -= 1
            raise NotFoundError(key)
        return await super().get(key, start, end)

    def list(self, *args: Any, **options: Any) -> AsyncIterator[Listing]:
        if self.proxy:
            raise translate(PROXY, "list s3://b/topics/", writes=False)
        return super().list(*args, **options)


async def led_by_one_that_ended(partitions: int = 50) -> tuple[World, Behind]:
    """A world whose only agent has written to each partition and was killed."""
    world = World(t=partitions)
    world.bucket = bucket = Behind()
    life = await world.start()
    waiting = [life.produce(b"v", partition=partition) for partition in range(partitions)]
    assert {"committed"} == {await request.answer() for request in waiting}
    life.kill()
    await asyncio.sleep(10)
    return world, bucket


async def key_of(bucket: Bucket, part: str) -> str:
    """The newest object with *part* in its name."""
    (key, *_) = [
        info.key async for page in bucket.list("") for info in page.objects if part in info.key
    ]
    return key


def reader_of(life: Life) -> LogReader:
    return LogReader(
        store=life.world.bucket,
        offload=life.engine.ports.offload,
        manifests=life.engine,
        now_ms=now_ms,
    )


# ── Takeover ──


@pytest.mark.parametrize("own_disk", [False, True])
@pytest.mark.parametrize("untrue", [1, 4])
@on_virtual_time
async def test_a_404_that_is_not_true_costs_a_few_seconds(untrue: int, own_disk: bool) -> None:
    """
    All partitions are led, and none is offline.
    """
    world, bucket = await led_by_one_that_ended()
    bucket.untrue = untrue
    began_ms = now_ms()

    again = await (world if own_disk else world.other_disk()).start()

    assert {State.ONLINE} == {again.log(partition).state for partition in range(50)}
    assert now_ms() - began_ms < 6_000
    assert 0 == bucket.untrue


@pytest.mark.parametrize("what", ["missing", "damaged", "withheld"])
@on_virtual_time
async def test_a_flush_object_that_cannot_be_read_for_an_hour_costs_what_needs_it(
    what: str,
) -> None:
    """
    What its session led has no leader, and nothing else: the agent serves.  It is said with the
    object's name, once a minute.  When the object is back it is led and served without a restart.
    """
    world, bucket = await led_by_one_that_ended(4)
    (key,) = bucket.puts
    body = await bucket.get(key)
    if what == "withheld":
        bucket.withheld = {key}
    else:
        await bucket.delete([key])
        if what == "damaged":
            await bucket.put(key, [bytes(len(body))])
    with capture_logs() as lines:
        again = await world.other_disk().start(ready=False)
        await asyncio.sleep(3_000)
        led = again.engine.logs()
        requests = bucket.requests
        bucket.withheld = set()
        await bucket.delete([key])
        await bucket.put(key, [body])
        back_ms = now_ms()
        await again.ready()
    told = [line for line in lines if line["event"] == "partitions_unreadable"]
    found = [line for line in lines if line["event"] == "partitions_readable_again"]

    assert [] == led
    assert again.engine.ready.is_set()
    assert now_ms() - back_ms < BACK_S * 1000
    assert 25 <= len(told) <= 52
    assert all(key in line["error"] for line in told)
    assert 4 == sum(line["partitions"] for line in found)
    assert requests < 2_000
    assert "committed" == await again.produce(b"w", partition=2).answer()
    assert [b"v", b"w"] == [value for _, _, value in await again.committed(2)]


# ── What is sealed ──


@pytest.mark.parametrize("part", ["/manifest/", "/producers/"])
@on_virtual_time
async def test_a_manifest_or_snapshot_that_is_missing_for_an_hour_is_found_again(
    part: str,
) -> None:
    """
    Meanwhile the partition is led, and what needs neither is written; afterwards all is as before.
    """
    world = World(t=1)
    life = await world.start()
    asked = life.produce(b"0", producer=7, epoch=0, sequence=0)
    assert "committed" == await asked.answer()
    assert 1 == await life.seal()
    assert "committed" == await life.produce(b"1").answer()
    key = await key_of(world.bucket, part)
    body = await world.bucket.get(key)
    await world.bucket.delete([key])
    life.kill()
    await asyncio.sleep(10)

    with capture_logs() as lines:
        again = await world.other_disk().start()
        assert "committed" == await again.produce(b"2").answer()
        await asyncio.sleep(3_000)
        state, damage = again.log().state, again.log().damage
        await world.bucket.put(key, [body])
        await asyncio.sleep(BACK_S)
    told = [line for line in lines if line["event"] == "partition_unreadable"]

    assert (State.LOADING, True) == (state, key in damage)
    assert (State.ONLINE, "") == (again.log().state, again.log().damage)
    assert 25 <= len(told) <= 52
    assert 1 == sum(line["event"] == "partition_readable_again" for line in lines)
    asked = again.produce(b"3", producer=7, epoch=0, sequence=1)
    assert "committed" == await asked.answer()
    assert 4 == await again.seal()


@on_virtual_time
async def test_leftovers_are_set_aside_when_the_manifest_that_judges_them_was_missing() -> None:
    """
    The partition was led twice by one session, so its manifest must say where the first time ended.
    A manifest that the bucket has not, or has damaged, may never come back: the partition is led
    without it.
    """
    world = World(t=2)
    life = await world.start()
    assert "committed" == await life.produce(b"old").answer()
    log = life.log()
    await life.engine.handover.give_up([log])
    while life.engine.log("t", 0) in (None, log):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    assert "committed" == await life.produce(b"new").answer()
    await life.seal()
    world.bucket.away = True
    assert "synced" == await life.produce(b"promised", acks=ONE).answer()
    life.kill()
    world.bucket.away = False
    key = await key_of(world.bucket, "/00000/manifest/")
    body = await world.bucket.get(key)
    await world.bucket.delete([key])

    back = await world.start(ready=False)
    await asyncio.sleep(300)
    states = {log.partition: log.state for log in back.engine.logs()}
    await world.bucket.put(key, [body])
    await asyncio.sleep(BACK_S)

    assert back.engine.ready.is_set()
    assert State.OFFLINE not in states.values()
    assert [b"promised"] == [value for _, _, value in world.set_aside()]
    assert [back.session_id] == world.directories


# ── Reading ──


@on_virtual_time
async def test_a_segment_that_is_missing_is_asked_for_again_and_told_as_damage_after_a_while() -> (
    None
):
    """
    A consumer is told to ask again, for half a minute: it may be a moment's.  Then it is told, for
    a client that asks again for ever tells nobody.  What is read again is read.
    """
    world = World(t=1)
    life = await world.start()
    assert "committed" == await life.produce(b"0").answer()
    await life.seal()
    life.log().sealed_slices.clear()
    reader = reader_of(life)
    key = await key_of(world.bucket, ".parquet")
    body = await world.bucket.get(key)
    await world.bucket.delete([key])
    began_ms, told = now_ms(), dict[str, float]()
    with capture_logs() as lines:
        while now_ms() - began_ms < 3_000_000:
            with pytest.raises((ObjectUnavailableError, DamagedObjectError)) as error:
                await reader.read(life.log(), 0, 1_000, zstd=True)
            assert key in str(error.value)
            told.setdefault(type(error.value).__name__, now_ms() - began_ms)
            await asyncio.sleep(0.5)
    requests = reader.objects.requests
    await world.bucket.put(key, [body])
    await asyncio.sleep(11)

    assert 1 == len(await reader.read(life.log(), 0, 1_000, zstd=True))
    assert ["ObjectUnavailableError", "DamagedObjectError"] == list(told)
    assert 30_000 <= told["DamagedObjectError"] < 32_000
    assert requests < 1_000
    assert 25 <= sum(line["event"] == "object_missing" for line in lines) <= 52
    assert "object_gone" not in {line["event"] for line in lines}
    assert {"t-0"} == {line["partition"] for line in lines if line["event"] == "object_missing"}


@on_virtual_time
async def test_a_manifest_that_is_missing_is_looked_for_again_after_a_while() -> None:
    """
    Not at every fetch: each look lists twice, and reads the records of the tail's sessions.
    """
    world = World(t=1)
    life = await world.start()
    assert "committed" == await life.produce(b"0").answer()
    await life.seal()
    log = life.log()
    log.sealed_slices.clear()
    reader = reader_of(life)
    key = await key_of(world.bucket, "/manifest/")
    body = await world.bucket.get(key)
    await world.bucket.delete([key])
    life.engine.manifests.drop(log)
    began_ms, before = now_ms(), world.bucket.requests
    while now_ms() - began_ms < 600_000:
        with pytest.raises((ObjectUnavailableError, DamagedObjectError)) as error:
            await reader.read(log, 0, 1_000, zstd=True)
        assert key in str(error.value)
        await asyncio.sleep(0.5)
    requests = world.bucket.requests - before
    await world.bucket.put(key, [body])
    await asyncio.sleep(11)

    assert 1 == len(await reader.read(log, 0, 1_000, zstd=True))
    assert requests < 1_000
    assert not reader.objects.missing


@on_virtual_time
async def test_records_that_are_long_in_coming_hold_up_their_own_partition_alone() -> None:
    """
    Those of another are looked up meanwhile.
    """
    world = World(t=2)
    life = await world.start()
    for partition in range(2):
        assert "committed" == await life.produce(b"0", partition=partition).answer()
    held, free = life.log(0), life.log(1)
    ask, asked = world.metadata.get_prefix, asyncio.Event()

    async def late(prefix: str, **options: Any) -> tuple[int, list[KeyValue]]:
        if prefix.startswith(FLUSHES_PREFIX) and not asked.is_set():
            asked.set()
            await asyncio.sleep(60)
        return await ask(prefix, **options)

    world.metadata.get_prefix = late  # type: ignore[method-assign]
    first = asyncio.create_task(life.engine.refresh(held))
    await asked.wait()
    began_ms = now_ms()
    await life.engine.refresh(free)
    took_ms = now_ms() - began_ms
    alone = not first.done()
    await life.engine.refresh(held)

    assert took_ms < 1_000
    assert alone
    assert first.done()


@on_virtual_time
async def test_a_listing_that_a_proxy_answers_is_no_damage() -> None:
    """
    A consumer's cold read is told to try again.
    """
    world = World(t=1)
    world.bucket = bucket = Behind()
    life = await world.start()
    assert "committed" == await life.produce(b"0").answer()
    await life.seal()
    life.log().sealed_slices.clear()
    life.engine.manifests.drop(life.log())
    bucket.proxy = True
    reader = reader_of(life)

    with pytest.raises(UnavailableError, match="404"):
        await reader.read(life.log(), 0, 1_000, zstd=True)

    bucket.proxy = False
    assert 1 == len(await reader.read(life.log(), 0, 1_000, zstd=True))
    assert not life.task.done()


# ── Sealing and consolidation ──


@on_virtual_time
async def test_what_is_not_sealed_for_a_missing_object_is_sealed_when_it_is_back() -> None:
    """
    The partition is led, written to and read meanwhile.
    """
    world = World(t=1)
    life = await world.start(replace(SETTINGS, seal=SealSettings(segment_bytes=1)))
    assert "committed" == await life.produce(b"0").answer()
    log = life.log()
    forget_memory(life)
    key = world.bucket.puts[0]
    body = await world.bucket.get(key)
    await world.bucket.delete([key])
    with capture_logs() as lines:
        await asyncio.sleep(3_000)
        damage = log.damage
        assert "committed" == await life.produce(b"1").answer()
        await world.bucket.put(key, [body])
        await asyncio.sleep(BACK_S)
    told = [line for line in lines if line["event"] == "seal_blocked"]

    assert key in damage
    assert 25 <= len(told) <= 52
    assert 1 == sum(line["event"] == "seal_unblocked" for line in lines)
    assert ("", 2) == (log.damage, log.sealed_end)


@on_virtual_time
async def test_a_dead_session_is_kept_although_one_of_its_objects_is_missing() -> None:
    """
    The others are rewritten without it, and it with them when it is back.
    """
    world = World(t=2)
    first = await world.start(SMALL)
    await flushes(first, 5)
    missing = world.bucket.puts[2]
    body = await world.bucket.get(missing)
    first.kill()
    await world.bucket.delete([missing])
    second = await world.other_disk().start(SMALL, ready=False)
    await asyncio.sleep(300)
    during = await records(world)
    unread = [len(kept.unread) for kept in second.engine.flush_records.state.sessions()]
    await world.bucket.put(missing, [body])
    await asyncio.sleep(1_300)
    after = await records(world)

    assert 2 <= len(during) < 5
    assert 1 == sum(unread)
    assert missing in {record.object_key for record in during.values()}
    assert missing not in {record.object_key for record in after.values()}
