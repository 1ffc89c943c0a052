"""Reads of several partitions from the bucket for one Fetch, side by side.

    read ──▶ each partition: take what was kept, join the same read of another request, or begin
        ──▶ the first one is there ──▶ wait a little for those that were not late yet ──▶ answer
                                           │
                                           └── late: it goes on; a later request takes its result

1. A partition whose objects are slow or missing delays others by `late_s`, once.
2. Any number of requests for the same records make one read.
3. What a read found, or its error, stays for `kept_s` if no request was there to take it: a slow
   partition has its turn beside fast ones, also if its reads end between two requests.
4. A read that waits for memory is given up when all clients that asked for it have left.

Shell.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from driftlog_agents.foundation.fair_queue import Client
from driftlog_agents.foundation.loop_slices import served_client
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.reading.reader import LogReader
from driftlog_agents.log.reading.shared_cache import WANTED
from driftlog_agents.protocol.messages.fetch import FetchRequest
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.batches.batch import Codec
from driftlog_tiering.foundation.types import Buffer

MOST_BYTES: Final = 4 * 1024 * 1024
"""Most bytes that one request reads from the bucket, but for one partition that allows more: by
default four partitions, which the memory for row groups serves side by side.  More: fewer
requests; less: less memory for many consumers."""

LEAST_BYTES: Final = MOST_BYTES // 8
"""What one read counts at least: it loads a row group and makes a batch, however little is asked
for.  So a request makes at most eight."""

_MOST_KEPT: Final = 256
_MOST_CAUSES: Final = 16
_MOST_AT_ONCE: Final = 256
"""With so many reads in progress a request begins one alone."""


@dataclass(slots=True, kw_only=True)
class BucketReadSettings:
    """How long requests and results wait."""

    late_s: float = 0.05
    """How long an answer that has records waits for others.  Longer: fuller answers; shorter: a
    slow object delays fewer records."""

    kept_s: float = 1.0
    """How long a result waits for its partition's next request.  Longer: slower clients get it;
    shorter: less memory."""

    kept_bytes: int = MOST_BYTES
    """Most bytes of all results that wait.  With more, and for larger ones, the oldest are read
    again, from the row groups in memory."""


class BucketRead(NamedTuple):
    """A read of one partition: see `LogReader.read`."""

    log: PartitionLog
    offset: int
    max_bytes: int
    zstd: bool
    codec: Codec | None


def most_bytes(request: FetchRequest) -> int:
    """Bytes that *request* reads from the bucket, at most, if its `max_bytes` allows them."""
    total = largest = 0
    for topic in request.topics:
        for asked in topic.partitions:
            size = max(LEAST_BYTES, asked.partition_max_bytes)
            total += size
            largest = max(largest, size)
    return min(total, max(largest, MOST_BYTES))


Outcome = list[Buffer] | Exception | None
"""The batches, or the error of the read; None: it is late, or was not begun."""


class _Read:
    """One read, in progress or ended."""

    __slots__ = ("clients", "done", "late", "requests")

    def __init__(self) -> None:
        self.done: asyncio.Future[Outcome]
        self.done = asyncio.get_running_loop().create_future()
        self.requests = 0
        """Requests that wait for it."""
        self.late = False
        """A request has waited `late_s` for it."""
        self.clients: set[Client] = set()
        """Those that asked for it."""

    def wanted(self) -> bool:
        """Whether one of its clients is still connected: it may be between two requests."""
        return any(not client.left for client in self.clients)


class _Kept(NamedTuple):
    read: _Read
    size_bytes: int
    timer: asyncio.TimerHandle


class BucketReads:
    """See the module."""

    def __init__(
        self,
        reader: LogReader,
        spawn: Callable[[Awaitable[None]], Any],
        settings: BucketReadSettings | None = None,
    ) -> None:
        self._settings = settings or BucketReadSettings()
        self._reader = reader
        self._spawn = spawn
        self._reads: dict[BucketRead, _Read] = {}
        """In progress."""
        self._kept: OrderedDict[BucketRead, _Kept] = OrderedDict()
        """Ended, and not taken; oldest first."""
        self.kept_bytes = 0

    def __len__(self) -> int:
        """Reads in progress."""
        return len(self._reads)

    async def read(self, asked: Sequence[BucketRead]) -> list[Outcome]:
        """The outcome of each; one at least is not None, unless the client has left."""
        reads: list[_Read | None] = []
        for ask in asked:
            read = self._take(ask) or self._reads.get(ask)
            if read is None and (not reads or len(self._reads) < _MOST_AT_ONCE):
                read = self._begin(ask)
            reads.append(read)
        waited = [read for read in reads if read is not None]
        for read in waited:
            read.requests += 1
            read.clients.add(served_client())
        try:
            await self._wait(waited)
        finally:
            for read in waited:
                read.requests -= 1
        return [
            read.done.result() if read is not None and read.done.done() else None for read in reads
        ]

    async def _wait(self, reads: Sequence[_Read]) -> None:
        """Wait for the first, and a little for the others."""
        await asyncio.wait([read.done for read in reads], return_when=asyncio.FIRST_COMPLETED)
        others = [read for read in reads if not read.done.done() and not read.late]
        if others:
            await asyncio.wait([read.done for read in others], timeout=self._settings.late_s)
            for read in others:
                read.late = True

    def _begin(self, ask: BucketRead) -> _Read:
        read = self._reads[ask] = _Read()
        self._spawn(self._run(ask, read))
        return read

    async def _run(self, ask: BucketRead, read: _Read) -> None:
        outcome: Outcome = UnavailableError("the agent stops")
        WANTED.set(read.wanted)
        try:
            outcome = await self._outcome(ask, read)
            if not read.requests and outcome is not None:
                outcome = self._keep(ask, read, outcome)
        finally:
            del self._reads[ask]
            read.done.set_result(outcome)

    async def _outcome(self, ask: BucketRead, read: _Read) -> Outcome:
        """The outcome of *ask*; None: it was given up."""
        log, offset, max_bytes, zstd, codec = ask
        while read.wanted():
            try:
                return await self._reader.read(log, offset, max_bytes, zstd=zstd, codec=codec)
            except Exception as error:  # noqa: BLE001  # the requests that wait for it raise it
                return error
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise  # the agent stops
        return None

    # ── What no request was there to take ──

    def _keep(
        self, ask: BucketRead, read: _Read, outcome: list[Buffer] | Exception
    ) -> list[Buffer] | Exception:
        """Keep *outcome* for the next request; returns it without what it holds besides."""
        size = 0
        if isinstance(outcome, Exception):
            _drop_frames(outcome)
        else:
            size = sum(map(len, outcome))
            if size == 0 or size > self._settings.kept_bytes:
                return outcome
            outcome = [bytes(batch) for batch in outcome]  # not a view of a whole object
        while self._kept and (
            len(self._kept) >= _MOST_KEPT or self.kept_bytes + size > self._settings.kept_bytes
        ):
            self._take(next(iter(self._kept)))
        kept_s = self._settings.kept_s
        timer = asyncio.get_running_loop().call_later(kept_s, self._take, ask)
        self._kept[ask] = _Kept(read, size, timer)
        self.kept_bytes += size
        return outcome

    def _take(self, ask: BucketRead) -> _Read | None:
        kept = self._kept.pop(ask, None)
        if kept is None:
            return None
        kept.timer.cancel()
        self.kept_bytes -= kept.size_bytes
        return kept.read


def _drop_frames(raised: BaseException) -> None:
    """Let the memory of the calls that raised an error go, and of those that it came from."""
    error: BaseException | None = raised
    for _ in range(_MOST_CAUSES):
        if error is None:
            return
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
