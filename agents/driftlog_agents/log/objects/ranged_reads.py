"""GETs of cold reads: a deadline each, few repeats, and bounded concurrency.

What they return is decoded off the event loop; the error of damaged bytes names their object.

Shell.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from driftlog_agents.foundation.offload import Offload
from driftlog_agents.foundation.retry import NO_ANSWER, Retry
from driftlog_agents.log.objects.availability import (
    Availability,
    DamagedObjectError,
    ObjectUnavailableError,
)
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_tiering.stores.object_store import Buffer, NotFoundError, ObjectStore

T = TypeVar("T")

MiB: Final = 1024 * 1024

_LONGEST_WAIT_MS: Final = 10_000
"""Longest time between two reads of a missing object: consumers request it all the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """Limits of reads from the bucket; producers and tail consumers use the rest."""

    requests_at_once: int = 16
    """GETs of cold reads in flight.  More: more throughput on a distant store, for more of its
    request rate and of the agent's connections."""

    request_deadline_ms: float = 6_000
    """After this a GET counts as lost and is repeated.  Longer: a dead connection costs more.
    Three deadlines must fit into a client's request.timeout.ms (30 s); shorter: 16 MiB over a slow
    link do not arrive in one."""

    attempts: int = 3
    """How often a GET is tried before the reader gets a retriable error."""

    retry_backoff_ms: float = 50
    """Wait before the first repeat; twice as long before each further one."""

    row_group_cache_bytes: int = 64 * MiB
    """Memory for decoded row groups, of 16 MiB and more each.  More: more consumers of the sealed
    log at full speed; the others take turns."""

    flush_cache_bytes: int = 16 * MiB
    """Memory for pieces of flush objects.  More: more consumers behind the local disk."""

    index_cache_bytes: int = 16 * MiB
    """Memory for footers of segments and lists of manifests.  More: fewer GETs per random read."""

    read_ahead_bytes: int = 2 * MiB
    """Bytes of a flush object that one GET reads.  More: fewer GETs for sequential consumers, more
    wasted bytes for others."""

    prefetch_row_groups: int = 2
    """Row groups that are loaded ahead of a sequential consumer, if there is room.  0: none."""

    hold_ms: float = 1_000
    """How long a row group waits for its reader's next fetch before it may be evicted."""

    patience_ms: float = 2_000
    """How long a fetch waits for room before it evicts what another fetch reads."""

    batch_bytes: int = MiB
    """Uncompressed size of a re-encoded batch.  Larger: better compression, more client memory."""


class RangedReads:
    """The object store as cold reads use it."""

    def __init__(
        self,
        store: ObjectStore,
        settings: ReadSettings,
        now_ms: Callable[[], float],
        offload: Offload,
    ) -> None:
        self._store = store
        self._offload = offload
        self._settings = settings
        backoff_s = settings.retry_backoff_ms / 1000
        self._retry = Retry(
            wait_s=backoff_s,
            longest_wait_s=backoff_s * 2**settings.attempts,
            attempts=settings.attempts,
        )
        self._now_ms = now_ms
        self.missing = Availability[str](lambda: 1.0, longest_ms=_LONGEST_WAIT_MS)
        """Objects that are missing even after their names were read again."""
        self._slots = asyncio.Semaphore(settings.requests_at_once)
        self.requests = 0

    async def get(self, key: str, start: int = 0, end: int | None = None) -> Buffer:
        """Exactly the bytes ``[start, end)`` of the object; *end* None: to its end.

        Raises:
            ObjectUnavailableError: no such object: replaced since its name was read, lost, or
                missing for a moment.
            DamagedObjectError: the object is shorter.
            UnavailableError: the store refused or did not answer, each time; try again later.
        """
        if self.missing.waits(key, self._now_ms()):
            raise ObjectUnavailableError(key, "missing", known=True)

        async def ask() -> Buffer:
            async with self._slots:
                self.requests += 1
                async with asyncio.timeout(self._settings.request_deadline_ms / 1000):
                    return await self._store.get(key, start, end)

        try:
            body = await self._retry.run(ask)
        except NotFoundError as error:
            raise ObjectUnavailableError(key, "missing") from error
        except NO_ANSWER as error:
            why = f"{key}: {error!r}, {self._settings.attempts} times"
            raise UnavailableError(why) from error
        self.missing.found(key)
        if end is not None and len(body) != end - start:
            raise DamagedObjectError(key, f"it ends at {start + len(body)}, before {end}")
        return body

    async def run(self, key: str, fn: Callable[..., T], *args: object) -> T:
        """``fn(*args)`` off the event loop.

        Raises:
            DamagedObjectError: *fn* found corrupt bytes; the error names *key*.
        """
        try:
            result: T = await self._offload(fn, *args)
        except CorruptError as error:
            raise DamagedObjectError(key, str(error) or repr(error)) from error
        return result
