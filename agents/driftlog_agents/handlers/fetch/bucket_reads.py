"""Reads of several partitions from the bucket for one Fetch, side by side.

    read ──▶ each partition: begin, or join the same read of another request
        ──▶ the first one is there ──▶ wait a little for those that this request began ──▶ answer
                                           │
                                           └── late: it goes on; a later request takes its result

1. A partition whose objects are slow or missing delays others by `LATE_S`, once.
2. Any number of requests for the same records make one read.
3. A read that its request did not wait for leaves what it loaded in memory (`log/reading`).

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.reading.reader import LogReader
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.batches.batch import Codec
from driftlog_tiering.stores.object_store import Buffer

LATE_S: Final = 0.05
"""How long an answer that has records waits for others.  Longer: fuller answers; shorter: a slow
object delays fewer records."""

MOST_BYTES: Final = 4 * 1024 * 1024
"""Most bytes that one request reads from the bucket, but for one partition that allows more: by
default four partitions, as many as the memory for row groups serves side by side.  More: fewer
requests; less: less memory for many consumers."""

LEAST_BYTES: Final = MOST_BYTES // 8
"""What one read counts at least: it loads a row group and makes a batch, however little is asked
for.  So a request makes at most eight."""

_MOST_AT_ONCE: Final = 256
"""With so many reads in progress a request begins one alone."""


class BucketRead(NamedTuple):
    """A read of one partition: see `LogReader.read`."""

    log: PartitionLog
    offset: int
    max_bytes: int
    zstd: bool
    codec: Codec | None


Outcome = list[Buffer] | Exception | None
"""The batches, or the error of the read; None: it is late, or was not begun."""


class BucketReads:
    """See the module."""

    def __init__(self, reader: LogReader, spawn: Callable[[Awaitable[None]], Any]) -> None:
        self._reader = reader
        self._spawn = spawn
        self._reads: dict[BucketRead, asyncio.Future[list[Buffer] | Exception]] = {}

    def __len__(self) -> int:
        """Reads in progress."""
        return len(self._reads)

    async def read(self, asked: Sequence[BucketRead]) -> list[Outcome]:
        """The outcome of each; one at least is not None."""
        reads: list[asyncio.Future[list[Buffer] | Exception] | None] = []
        begun: list[asyncio.Future[list[Buffer] | Exception]] = []
        for ask in asked:
            read = self._reads.get(ask)
            if read is None and (not reads or len(self._reads) < _MOST_AT_ONCE):
                read = self._begin(ask)
                begun.append(read)
            reads.append(read)
        await asyncio.wait(
            [read for read in reads if read is not None], return_when=asyncio.FIRST_COMPLETED
        )
        late = [read for read in begun if not read.done()]
        if late:
            await asyncio.wait(late, timeout=LATE_S)
        return [read.result() if read is not None and read.done() else None for read in reads]

    def _begin(self, ask: BucketRead) -> asyncio.Future[list[Buffer] | Exception]:
        read = self._reads[ask] = asyncio.get_running_loop().create_future()
        self._spawn(self._run(ask, read))
        return read

    async def _run(self, ask: BucketRead, read: asyncio.Future[list[Buffer] | Exception]) -> None:
        log, offset, max_bytes, zstd, codec = ask
        outcome: list[Buffer] | Exception = UnavailableError("the agent stops")
        try:
            outcome = await self._reader.read(log, offset, max_bytes, zstd=zstd, codec=codec)
        except Exception as error:  # noqa: BLE001  # the requests that wait for it raise it
            outcome = error
        finally:
            del self._reads[ask]
            read.set_result(outcome)
