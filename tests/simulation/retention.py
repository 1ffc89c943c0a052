"""Retention of all topics, by time or by size, and what it may take.

1. Whenever a log start moves, what goes had expired by then: each record is older than
   `retention.ms` by some agent's wall clock, or as many bytes stay as `retention.bytes` says; or it
   was asked for (`deletions`).
2. It moves in the partition's key first: no manifest is ahead of its key.
3. What has expired goes, within a check and a little, when the faults are over.

Of odd hundreds it is by size.  What is above log start is there, as if nothing had expired
(`oracle`, `final_log`), and a log start that an agent has shown does not go back.
"""

import asyncio
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final

from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_metadata.schema.codec import decode_flush_record, decode_partition_state
from driftlog_metadata.schema.keys import FLUSHES_PREFIX, partition_key
from driftlog_metadata.schema.model import PartitionState, Topic, TopicPartition
from driftlog_tiering.formats.flush_object import decode_footer
from driftlog_tiering.formats.manifest import Manifest
from driftlog_tiering.formats.manifests import iter_segments, load_newest
from tests.simulation.faults import now
from tests.simulation.final_log import read_final_log, read_topics

if TYPE_CHECKING:
    from tests.simulation.world import World

_INTERVALS_MS: Final = (300, 1_500)
_LIMITS_MS: Final = (4_000, 15_000)
_LIMITS_BYTES: Final = (0, 4_000)
_LOOK_S: Final = 0.25
_LATE_S: Final = 20.0
"""What a seal with slow threads and an edit take, behind the check that is due."""
_SETTLES: Final = 0.6
"""Of the seeds: the end is looked at when all that is to expire has gone."""


class Retention:
    """See the module."""

    def __init__(self, world: "World") -> None:
        self._world = world
        rng = Random(f"retention {world.seed}")
        self.interval_ms = rng.randint(*_INTERVALS_MS)
        by_size = world.seed // 100 % 2 == 1
        self.limit_ms = -1 if by_size else rng.randint(*_LIMITS_MS)
        self.limit_bytes = rng.randint(*_LIMITS_BYTES) if by_size else -1
        self._settles = rng.random() < _SETTLES

    def broker(self, settings: BrokerSettings) -> BrokerSettings:
        """The settings of an agent: the defaults of its topics."""
        return replace(
            settings,
            log_retention_ms=self.limit_ms,
            log_retention_bytes=self.limit_bytes,
            log_retention_check_interval_ms=self.interval_ms,
        )

    async def run(self) -> None:
        """Look at the agents and the bucket, until cancelled."""
        world = self._world
        while True:
            await asyncio.sleep(_LOOK_S)
            for node in world.nodes:
                engine = node.process.engine
                for log in engine.logs() if engine is not None else ():
                    tp = TopicPartition(log.topic_id, log.partition)
                    if not world.older_metadata.going_on and tp.topic_id not in world.admin.dying:
                        world.oracle.told_start(tp, log.log_start)
            for topic in now(read_topics(world))[0].values():
                for partition in range(topic.partitions):
                    self._key_is_ahead(topic, TopicPartition(topic.topic_id, partition))

    def _key_is_ahead(self, topic: Topic, tp: TopicPartition) -> None:
        manifest, state = self._manifest(topic, tp), self._state(tp)
        self._expect(
            manifest is None or manifest.log_start <= state.log_start,
            f"the manifest of {tp} moved its log start before {state}",
        )

    # ── What goes ──

    def moved(self, tp: TopicPartition, before: int, after: int) -> None:
        """A log start was stored, just now."""
        world = self._world
        if tp.topic_id in world.admin.dying:
            return
        if world.deletions is not None and after <= world.deletions.asked.get(tp, 0):
            return
        world.count("log starts moved by retention")
        topic = now(read_topics(world))[0][tp.topic_id]
        if self.limit_ms >= 0:
            rows, error = now(read_final_log(world, topic.name, tp))
            if error is not None:
                raise error
            wall_ms = max(node.wall.now_ms() for node in world.nodes)
            young = [
                (offset, rows[offset].timestamp_ms - wall_ms)
                for offset in range(before, after)
                if wall_ms - rows[offset].timestamp_ms <= self.limit_ms
            ]
            self._expect(not young, f"{tp} starts at {after}: {young} had not expired")
        else:
            left = sum(size for _, size in self._sizes(topic, tp, after))
            self._expect(
                left >= self.limit_bytes,
                f"{tp} starts at {after}: {left} bytes stay of {self.limit_bytes}",
            )

    # ── What is to go ──

    async def settle(self) -> None:
        """Wait until all that is there has expired, and has gone."""
        if not self._settles or self._world.older_metadata.going_on:
            return
        await asyncio.sleep((2 * self.interval_ms + max(self.limit_ms, 0)) / 1000 + 2.0)
        late: list[str] = []
        for _ in range(int(_LATE_S / _LOOK_S)):
            late = [
                why
                for topic in (await read_topics(self._world)).values()
                for partition in range(topic.partitions)
                if (why := self._late(topic, TopicPartition(topic.topic_id, partition)))
            ]
            if not late:
                self._world.count("retention settled")
                return
            await asyncio.sleep(_LOOK_S)
        self._expect(False, f"expired records stay: {late}")

    def _late(self, topic: Topic, tp: TopicPartition) -> str:
        """What has expired of a partition and is there; empty: nothing is."""
        if tp.topic_id in self._world.admin.dying:
            return ""
        state, end = self._state(tp), self._world.ledger.ends.get(tp, 0)
        if self.limit_ms >= 0:
            return "" if state.log_start == end else f"{tp}: {state}, of {end}"
        sizes = self._sizes(topic, tp, state.log_start)
        pieces = [size for end, size in sizes if end <= state.sealed_end]
        tail = sum(size for end, size in sizes if end > state.sealed_end)
        pieces += [tail] if tail else []
        if pieces and sum(pieces[1:]) >= self.limit_bytes:
            return f"{tp}: {pieces}, where {self.limit_bytes} are to stay"
        return ""

    # ── The stores, without the agent's code paths ──

    def _state(self, tp: TopicPartition) -> PartitionState:
        kv, _ = now(self._world.metadata.get(partition_key(tp)))
        return decode_partition_state(kv.value) if kv else PartitionState()

    def _manifest(self, topic: Topic, tp: TopicPartition) -> Manifest | None:
        found, _ = now(_newest(self._world, topic, tp))
        assert found is None or isinstance(found, Manifest)
        return found

    def _sizes(self, topic: Topic, tp: TopicPartition, start: int) -> list[tuple[int, int]]:
        """End offset and size of each segment, and of each unsealed batch, that ends above
        *start*."""
        world, sealed_end = self._world, self._state(tp).sealed_end
        found: list[tuple[int, int]] = []
        manifest = self._manifest(topic, tp)
        if manifest is not None:
            found, _ = now(_segments(world, manifest, start, sealed_end))
        for kv in world.metadata.snapshot(FLUSHES_PREFIX):
            record = decode_flush_record(kv.value)
            body, _ = now(world.bucket.get(record.object_key))
            footer = decode_footer(body[record.footer_start :])
            for s in footer.slices():
                if (s.topic_id, s.partition) != (tp.topic_id, tp.partition):
                    continue
                for index in range(s.first, s.first + s.count):
                    batch = footer.batch(index)
                    end = batch.base_offset + batch.last_offset_delta + 1
                    if batch.base_offset >= sealed_end and end > start:
                        found.append((end, batch.length))
        return found

    def _expect(self, holds: bool, message: str) -> None:
        self._world.expect(holds, message)


async def _newest(world: "World", topic: Topic, tp: TopicPartition) -> Manifest | None:
    return await load_newest(world.bucket, topic.name, tp)


async def _segments(
    world: "World", manifest: Manifest, start: int, sealed_end: int
) -> list[tuple[int, int]]:
    return [
        (segment.end, segment.received_bytes)
        async for segment in iter_segments(world.bucket, manifest, start, sealed_end)
    ]
