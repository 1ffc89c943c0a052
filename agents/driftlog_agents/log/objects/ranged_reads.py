"""GETs of cold reads: a deadline each, few repeats, and a bound on how many at once.

Shell.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from driftlog_agents.foundation.retry import NO_ANSWER, Retry
from driftlog_agents.log.objects.availability import (
    Availability,
    DamagedObjectError,
    ObjectUnavailableError,
)
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.stores.object_store import Buffer, NotFoundError, ObjectStore

MiB: Final = 1024 * 1024

_LONGEST_WAIT_MS: Final = 10_000
"""Between two looks for a missing object: consumers ask for it all the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """What reading from the bucket may take; producers and tail consumers have the rest."""

    requests_at_once: int = 16
    """GETs of cold reads in flight.  More: more throughput on a far store, for more of its
    request rate and of the agent's connections."""

    request_deadline_ms: float = 6_000
    """After this a GET counts as lost and is repeated.  Longer: a dead connection costs more;
    three must fit a client's patience (request.timeout.ms 30 s), one must do for 16 MiB on a
    slow link."""

    attempts: int = 3
    """How often a GET is tried before the reader gets a retriable error."""

    retry_backoff_ms: float = 50
    """Wait before the first repeat; twice as long before each further one."""

    row_group_cache_bytes: int = 64 * MiB
    """Decoded row groups in memory, of 16 MiB and more.  More: more consumers of the sealed log at
    full speed; the others take turns."""

    flush_cache_bytes: int = 16 * MiB
    """Pieces of flush objects in memory.  More: more consumers of what left the local disk."""

    index_cache_bytes: int = 16 * MiB
    """Footers of segments and lists of manifests in memory.  More: fewer GETs per random read."""

    read_ahead_bytes: int = 2 * MiB
    """Fetched of a flush object at once.  More: fewer GETs for who reads on, more wasted on who
    does not."""

    prefetch_row_groups: int = 2
    """Loaded ahead of a consumer who reads on, if there is room.  0: none."""

    hold_ms: float = 1_000
    """How long a row group waits for its reader's next fetch before it may be evicted."""

    patience_ms: float = 2_000
    """How long a fetch waits for room before it evicts what another is reading."""

    batch_bytes: int = MiB
    """Of a re-encoded batch, uncompressed.  Larger ones compress better, and cost clients more
    memory."""


class RangedReads:
    """The store, for cold reads."""

    def __init__(
        self, store: ObjectStore, settings: ReadSettings, now_ms: Callable[[], float]
    ) -> None:
        self._store = store
        self._settings = settings
        backoff_s = settings.retry_backoff_ms / 1000
        self._retry = Retry(
            wait_s=backoff_s,
            longest_wait_s=backoff_s * 2**settings.attempts,
            attempts=settings.attempts,
        )
        self._now_ms = now_ms
        self.missing = Availability[str](lambda: 1.0, longest_ms=_LONGEST_WAIT_MS)
        """Objects that are not there, although they were looked up again."""
        self._slots = asyncio.Semaphore(settings.requests_at_once)
        self.requests = 0

    async def get(self, key: str, start: int = 0, end: int | None = None) -> Buffer:
        """Exactly the bytes ``[start, end)`` of the object; *end* None: to its end.

        Raises:
            ObjectUnavailableError: no such object: replaced since it was looked up, lost, or not
                shown for a moment.
            DamagedObjectError: it is shorter.
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
