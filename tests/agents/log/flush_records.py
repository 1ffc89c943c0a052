"""What tests of consolidation share: engines with small bounds, and what the stores have."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from driftlog_agents.log.consolidation.policy import ConsolidationSettings
from driftlog_agents.log.partition.tail import FlushBatches
from driftlog_metadata.schema.codec import decode_flush_record
from driftlog_metadata.schema.keys import FLUSHES_PREFIX, FlushRecordKey, parse_flush_key
from driftlog_metadata.schema.model import FlushRecord
from driftlog_tiering.formats.flush_object import Footer, decode_footer
from tests.agents.log.lives import SETTINGS, Life, World

SMALL = replace(
    SETTINGS,
    consolidation=ConsolidationSettings(
        age_ms=60_000, records=10, level_one_records=4, object_bytes=2_500, sparse_records=2
    ),
)
"""100 records are 10 here, 60 are 4, and 64 MiB are some thirty batches."""

NO_REWRITES = ConsolidationSettings(age_ms=1e12, dead_age_ms=1e12, records=10**9)
NEVER = replace(SETTINGS, consolidation=NO_REWRITES)


async def records(world: World) -> dict[FlushRecordKey, FlushRecord]:
    """What the metadata store has."""
    _, kvs = await world.metadata.get_prefix(FLUSHES_PREFIX)
    return {parse_flush_key(kv.key): decode_flush_record(kv.value) for kv in kvs}


async def levels(world: World) -> list[int]:
    """Of the records that are there."""
    return [key.level for key in await records(world)]


async def footers(world: World) -> list[Footer]:
    """Of all flush objects that records name."""
    return [
        decode_footer(await world.bucket.get(r.object_key, r.footer_start, r.size_bytes))
        for r in (await records(world)).values()
    ]


Batches = dict[tuple[int, int], list[tuple[Any, ...]]]


async def log_of(world: World) -> Batches:
    """Every batch that flush records name: its columns but for the place, and its bytes; by
    (topic, partition)."""
    found: Batches = {}
    for record in (await records(world)).values():
        body = await world.bucket.get(record.object_key)
        footer = decode_footer(body[record.footer_start :])
        for i in range(len(footer)):
            batch = footer.batch(i)
            place = (footer.topic_ids[batch.topic_index].int, batch.partition)
            data = bytes(body[batch.position : batch.position + batch.length])
            found.setdefault(place, []).append((*batch[2:10], batch.length, data))
    return {place: sorted(batches, key=lambda b: int(b[1])) for place, batches in found.items()}


async def flushes(
    life: Life, count: int, *, partitions: Sequence[int] = (0, 1), first: int = 0
) -> None:
    """So many flushes, each with a batch of each partition, of idempotent producers."""
    for n in range(first, first + count):
        asked = [
            life.produce(b"%d-%d" % (p, n), partition=p, producer=7 + p, epoch=0, sequence=n)
            for p in partitions
        ]
        assert ["committed"] * len(asked) == [await request.answer() for request in asked]


async def settled() -> None:
    """Until nothing is to be rewritten any more."""
    await asyncio.sleep(5)


def forget_memory(life: Life) -> None:
    """As if the tail had left memory and the local disk long ago."""
    for log in life.engine.logs():
        for tail in log.slices:
            assert isinstance(tail.data, FlushBatches)
            tail.data.views = None
            tail.data.file_positions = None


async def drop_unnamed(world: World) -> int:
    """What the collector does, without its patience; returns how many objects went."""
    named = {record.object_key for record in (await records(world)).values()}
    keys = [info.key async for page in world.bucket.list("flush/") for info in page.objects]
    unnamed = [key for key in keys if key not in named]
    await world.bucket.delete(unnamed)
    return len(unnamed)


def values(found: list[tuple[int, int, bytes]]) -> list[bytes]:
    """Of (offset, leader epoch, value)."""
    assert list(range(len(found))) == [offset - found[0][0] for offset, _, _ in found]
    return [value for _, _, value in found]
