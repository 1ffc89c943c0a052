"""A producer that follows leaders: one record at a time to each partition, at once after a move.

    produce (acks=all) ──▶ acknowledged: its time
         ╳ refused, or the connection lost ──▶ metadata from any agent ──▶ produce again, soon

It measures the cluster's gap, not a stock client's backoff.

Shell.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks import batches, wire

Address = tuple[str, int]

_RETRY_S: Final = 0.01
_DEADLINE_S: Final = 20.0
_PACE_S: Final = 0.02
"""Between an acknowledgement and the next record: 50 a second and partition at most."""


@dataclass(slots=True)
class Acks:
    """The times of one partition's acknowledgements, by `time.monotonic`, and the agent of each."""

    times: list[float] = field(default_factory=list)
    leaders: list[Address] = field(default_factory=list)

    def gap(self, since: float, until: float = float("inf")) -> float:
        """The longest time without an acknowledgement that lasted into [*since*, *until*)."""
        longest = 0.0
        for before, after in zip(self.times, self.times[1:], strict=False):
            if after >= since and before < until:
                longest = max(longest, after - before)
        return longest

    def moved(self, since: float, until: float = float("inf")) -> bool:
        """Whether another agent has acknowledged in [*since*, *until*) than before."""
        acks = list(zip(self.times, self.leaders, strict=True))
        before = [at for when, at in acks if when < since]
        after = {at for when, at in acks if since <= when < until}
        return bool(before) and bool(after - {before[-1]})

    def next_after(self, since: float) -> float | None:
        """The first acknowledgement after *since*."""
        return next((when for when in self.times if when >= since), None)


class Following:
    """Producers of all partitions of a topic; *bootstrap*: every agent that may be there."""

    def __init__(self, topic: bytes, partitions: int, bootstrap: Sequence[Address]) -> None:
        self._topic = topic
        self.bootstrap = list(bootstrap)
        self._leaders: dict[int, Address] = {}
        self._asking: asyncio.Lock = asyncio.Lock()
        self._asked = 0.0
        self.acks = [Acks() for _ in range(partitions)]
        values = batches.random_values(random.Random(1), 1, 100)
        self._batch = bytes(batches.encode_batch(values).data)

    async def run(self) -> None:
        """Produce until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for partition in range(len(self.acks)):
                tasks.create_task(self._produce(partition))

    async def leaders(self) -> dict[int, Address]:
        """The current leaders, by any agent's metadata."""
        await self._refresh(0.0)
        return dict(self._leaders)

    async def _produce(self, partition: int) -> None:
        envelope = wire.produce_envelope(7, self._topic, partition, -1, len(self._batch))
        frame = bytes(envelope.head) + self._batch + envelope.tail
        acks, failed_at = self.acks[partition], 0.0
        connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        connected: Address | None = None
        while True:
            leader = self._leaders.get(partition)
            if leader is None or failed_at:
                await self._refresh(failed_at)
                leader = self._leaders.get(partition)
            code = -1
            if leader is not None:
                try:
                    if connection is None or connected != leader:
                        _close(connection)
                        connection, connected = None, leader
                        connection = await asyncio.open_connection(*leader)
                    async with asyncio.timeout(_DEADLINE_S):
                        code = await _ask(connection, frame, envelope.error_at)
                except (OSError, EOFError, TimeoutError):
                    _close(connection)
                    connection = None
            if code == 0 and leader is not None:
                acks.times.append(time.monotonic())
                acks.leaders.append(leader)
                failed_at = 0.0
                await asyncio.sleep(_PACE_S)
            else:
                failed_at = time.monotonic()
                await asyncio.sleep(_RETRY_S)

    async def _refresh(self, since: float) -> None:
        """Request the leaders, unless another task has done so after *since*."""
        async with self._asking:
            if since and self._asked > since:
                return
            began = time.monotonic()
            for address in random.sample(self.bootstrap, len(self.bootstrap)):
                with contextlib.suppress(OSError, EOFError, TimeoutError):
                    async with asyncio.timeout(1):
                        connection = await asyncio.open_connection(*address)
                        try:
                            request = wire.metadata_request([self._topic], 1)
                            answer = await _exchange(connection, request)
                        finally:
                            _close(connection)
                    self._leaders = wire.leaders(answer).get(self._topic, {})
                    self._asked = began
                    return


async def _exchange(
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], frame: bytes
) -> bytes:
    """Send a request; returns the framed answer."""
    reader, writer = connection
    writer.write(frame)
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size, "big"))


async def _ask(
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], frame: bytes, error_at: int
) -> int:
    """The error code of a Produce answer."""
    answer = await _exchange(connection, frame)
    return int.from_bytes(answer[error_at : error_at + 2], "big", signed=True)


def _close(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None) -> None:
    if connection is not None:
        connection[1].close()
