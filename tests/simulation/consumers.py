"""Consumers that read through the product's own reader, and check each answer on the spot.

Every batch covers the offset that was asked for or follows the one before it, none reaches
above the high watermark, and who reads on gets to it.
"""

import asyncio
import contextlib
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from driftlog_agents.log.objects.availability import DamagedObjectError
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.batches.batch import Codec, check_batch
from driftlog_tiering.foundation.types import Buffer
from tests.simulation.agent import Led
from tests.simulation.batches import Row, rows_of
from tests.simulation.oracle import Lookup, random_target, table_of

if TYPE_CHECKING:
    from tests.simulation.world import World

_LIMITS = (1, 150, 400, 2_000, 20_000)
_PATIENCE_S = 10.0
"""Then a request to an agent that does not answer is given up."""

_CODECS = (None, None, None, Codec.NONE, Codec.GZIP, Codec.ZSTD)


class NotServedError(Exception):
    """The agent said so, in one of the ways that clients retry."""


@dataclass(slots=True, eq=False)
class _Poll:
    """A `Waiter`: a fetch at the high watermark."""

    done: bool = False

    def committed(self, log: PartitionLog) -> None:
        self.done = True
        log.waiting_fetches.pop(self, None)

    def unsynced(self, log: PartitionLog) -> None:
        raise AssertionError

    def synced(self, log: PartitionLog) -> None:
        raise AssertionError("a fetch waits for no sync")

    def lost(self, log: PartitionLog) -> None:
        self.done = True


@dataclass(slots=True, eq=False)
class Consumer:
    """Reads from anywhere, and sometimes on from where it was; looks times up."""

    world: "World"
    rng: Random
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    got: list[tuple[int, Row]] = field(default_factory=list)
    """Of the partition that `read_all` reads."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.05, 0.8))
            nodes = self.world.nodes
            process = (nodes[0] if len(nodes) == 1 else self.rng.choice(nodes)).process
            engine = process.engine
            if engine is None or not process.serving:
                continue
            logs = engine.logs()
            if logs:
                # Whoever has a request at a process that is killed hears no more of it.
                led = Led(process, engine, self.rng.choice(logs))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PATIENCE_S if self.world.many else None):
                        await process.do(self._visit(led))

    async def _visit(self, led: Led) -> None:
        try:
            if self.rng.random() < 0.15:
                await self._look_up(led)
            elif self.rng.random() < 0.1:
                self._poll(led)
            else:
                await self._read(led)
        except NotServedError:
            return

    def _poll(self, led: Led) -> None:
        self._see(led)
        poll = _Poll()
        led.log.waiting_fetches[poll] = None
        led.process.waits(led.engine, poll)

    async def _read(self, led: Led) -> None:
        log = led.log
        tp = TopicPartition(log.topic_id, log.partition)
        rng, end = self.rng, log.high_watermark
        self._see(led)
        offset = max(self.positions.get(tp, 0), log.log_start)
        if rng.random() < 0.5 or offset > end:
            offset = rng.randint(log.log_start, end)
        for _ in range(rng.choice((1, 1, 3, 30))):
            offset = await self._fetch(led, offset)
            if offset == log.high_watermark:
                break
        self.positions[tp] = offset

    async def read_all(self, led: Led) -> None:
        """From log start to the high watermark, with one limit per fetch.

        Raises:
            NotServedError: the session ended first.
        """
        self._see(led)
        log = led.log
        offset, end = log.log_start, log.high_watermark
        self.got = []
        while offset < end:
            try:
                offset = await self._fetch(led, offset)
            except NotServedError:
                if log.state is State.CLOSED:
                    raise
                await asyncio.sleep(0.5)
                offset = max(offset, log.log_start)
        tp = TopicPartition(log.topic_id, log.partition)
        self.world.oracle.read_back[tp] = (log.log_start, end)
        if log.topic in self.world.compacted:
            self.world.oracle.tables[tp] = table_of(self.got)

    def _see(self, led: Led) -> None:
        log = led.log
        if log.state is State.CLOSED or not led.engine.session.alive:
            raise NotServedError  # the Fetch handler looks first, too
        tp = TopicPartition(log.topic_id, log.partition)
        self.world.saw_high_watermark(tp, log.high_watermark)
        self.world.oracle.saw_start(tp, log.log_start)

    # ── One request ──

    async def _fetch(self, led: Led, offset: int) -> int:
        """Read from *offset* once; returns where the next request goes on."""
        log = led.log
        limit = self.rng.choice(_LIMITS)
        before = log.high_watermark
        start = self.world.oracle.starts.get(TopicPartition(log.topic_id, log.partition), 0)
        reader = led.process.reader
        batches = reader.read_local(log, offset, limit)
        if batches is None or self.rng.random() < 0.3:
            try:
                batches = await reader.read(
                    log,
                    offset,
                    limit,
                    zstd=self.rng.random() < 0.5,
                    codec=self.rng.choice(_CODECS),
                )
            except (UnavailableError, DamagedObjectError) as error:
                self._expect_hidden(error)
                raise NotServedError from error
            except RefusedError as error:
                deleted = error.code is ErrorCode.OFFSET_OUT_OF_RANGE and offset < log.log_start
                self._expect(
                    error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER or deleted,
                    f"{log!r} refused a fetch of {offset} with {error.code.name}: {error}",
                )
                raise NotServedError from error
        else:
            self.world.count("local reads")
        self._expect(offset >= start, f"{log!r}: {offset} is read, and was deleted up to {start}")
        return self._check(log, offset, limit, before, batches)

    def _check(
        self,
        log: PartitionLog,
        offset: int,
        limit: int,
        high_watermark: int,
        batches: list[Buffer],
    ) -> int:
        if not batches:
            self._expect(
                offset >= high_watermark, f"{log!r}: nothing at {offset}, below {high_watermark}"
            )
            return offset
        self.world.count("reads")
        size = sum(map(len, batches))
        self._expect(
            size <= limit or len(batches) == 1, f"{size} bytes for a fetch of {limit} of {log!r}"
        )
        end = offset
        for batch in batches:
            header = check_batch(batch, from_client=False)
            self._expect(
                header.base_offset <= end < header.end_offset
                if end == offset
                else header.base_offset == end,
                f"{log!r}: a batch at {header.base_offset} where {end} was to come",
            )
            end = header.end_offset
            for at, row in rows_of(bytes(batch)):
                self._expect(at < end, f"{log!r}: record {at} in a batch that ends at {end}")
                self.world.show(TopicPartition(log.topic_id, log.partition), at, row)
                if at >= offset:  # the first batch may begin before
                    self.got.append((at, row))
        self._expect(end <= log.high_watermark, f"{log!r}: read up to {end}")
        return end

    async def _look_up(self, led: Led) -> None:
        self._see(led)
        log = led.log
        tp = TopicPartition(log.topic_id, log.partition)
        before, start = log.high_watermark, log.log_start
        target_ms = random_target(self.rng, self.world.now_ms())
        reader = led.process.reader
        try:
            await led.engine.loaded(log)  # as the ListOffsets handler does
            if target_ms is None:
                found = await reader.max_timestamp(log)
            else:
                found = await reader.find_timestamp(log, target_ms)
        except (UnavailableError, DamagedObjectError) as error:
            self._expect_hidden(error)
            raise NotServedError from error
        except RefusedError as error:
            self._expect(
                error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{log!r}: {error.code.name}"
            )
            raise NotServedError from error
        self.world.count("lookups")
        ends, starts = (before, log.high_watermark), (start, log.log_start)
        self.world.oracle.looked_up(tp, Lookup(target_ms, found, ends, starts))

    def _expect_hidden(self, error: Exception) -> None:
        """What is missing is so because it is hidden."""
        damaged = isinstance(error, DamagedObjectError)
        hidden = self.world.hides_objects and str(error).endswith(": missing")
        self._expect(not damaged or hidden, f"damage: {error}")

    def _expect(self, holds: bool, message: str) -> None:
        self.world.expect(holds, message)
