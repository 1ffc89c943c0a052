"""The keeper: records go when nobody needs them, become few, and the log stays what it was."""

import asyncio
from dataclasses import replace
from typing import Any

from driftlog_agents.log.consolidation import ConsolidationSettings
from driftlog_metadata.codec import decode_flush_record
from driftlog_metadata.keys import FLUSHES_PREFIX, FlushKey, parse_flush_key
from driftlog_metadata.model import FlushRecord
from driftlog_tiering.flush_object import Footer, decode_footer
from tests.agents.log.lives import SETTINGS, Life, World, on_virtual_time

SMALL = replace(
    SETTINGS,
    consolidation=ConsolidationSettings(
        age_ms=60_000, records=10, level_one_records=4, object_bytes=4_000, sparse_records=2
    ),
)
"""100 records are 10 here, 60 are 4, and 64 MiB are some twenty batches."""


async def records(world: World) -> dict[FlushKey, FlushRecord]:
    """What the metadata store has."""
    _, kvs = await world.metadata.get_prefix(FLUSHES_PREFIX)
    return {parse_flush_key(kv.key): decode_flush_record(kv.value) for kv in kvs}


async def footers(world: World) -> list[Footer]:
    """Of all flush objects that records name."""
    return [
        decode_footer(await world.bucket.get(r.object_key, r.footer_start, r.size_bytes))
        for r in (await records(world)).values()
    ]


async def log_of(world: World) -> dict[tuple[Any, int], list[tuple[Any, ...]]]:
    """Every batch that flush records name: its columns but for the place, and its bytes."""
    found: dict[tuple[Any, int], list[tuple[Any, ...]]] = {}
    for record in (await records(world)).values():
        body = await world.bucket.get(record.object_key)
        footer = decode_footer(body[record.footer_start :])
        for i in range(len(footer)):
            batch = footer.batch(i)
            place = (footer.topic_ids[batch.topic_index], batch.partition)
            data = bytes(body[batch.position : batch.position + batch.length])
            found.setdefault(place, []).append((*batch[2:10], batch.length, data))
    return {place: sorted(batches, key=lambda b: int(b[1])) for place, batches in found.items()}


async def flushes(life: Life, count: int, *, partitions: int = 2, first: int = 0) -> None:
    """So many flushes, each with a batch of each partition, of idempotent producers."""
    for n in range(first, first + count):
        asked = [
            life.produce(b"%d-%d" % (p, n), partition=p, producer=7 + p, epoch=0, sequence=n)
            for p in range(partitions)
        ]
        assert ["committed"] * partitions == [await request.answer() for request in asked]


async def settled(life: Life) -> None:
    """Until nothing is to be rewritten any more."""
    await asyncio.sleep(5)


@on_virtual_time
async def test_flushes_become_one_object_sorted_by_partition() -> None:
    """
    When so many wait: one record in their place, under the last sequence, with every batch.
    """
    world = World(t=2)
    life = await world.start(SMALL)
    await flushes(life, 9)
    before = await log_of(world)
    assert 9 == len(await records(world))

    await flushes(life, 1, first=9)
    await settled(life)

    (key,) = await records(world)
    assert (life.session_id, 10, 1, 0) == key
    (footer,) = await footers(world)
    assert (life.session_id, 10, 10) == (footer.session_id, footer.seq, footer.committed_seq)
    assert [(0, 0, 10), (1, 0, 10)] == [(s.partition, s.base, s.end) for s in footer.slices()]
    after = await log_of(world)
    assert {p: b[:9] for p, b in after.items()} == before
