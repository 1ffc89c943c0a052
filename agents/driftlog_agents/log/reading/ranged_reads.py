"""GETs of cold reads: a deadline each, few repeats, and bounded concurrency.

Each partition has its share of the requests: objects that do not answer hold up only the reads of
their own partition.
What they return is decoded off the event loop; the error of damaged bytes names their object.

Shell.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from driftlog_agents.foundation.keyed_lock import KeyedLock
from driftlog_agents.foundation.retry import NO_ANSWER, Retry
from driftlog_agents.log.local.cached_objects import CachedObjects, ColdObjects
from driftlog_agents.log.objects.availability import (
    Availability,
    DamagedObjectError,
    ObjectUnavailableError,
)
from driftlog_agents.log.reading.read_settings import ReadSettings
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_tiering.foundation.types import Buffer, Offload
from driftlog_tiering.stores.object_store import NotFoundError

T = TypeVar("T")

_LONGEST_WAIT_MS: Final = 10_000
"""Longest time between two reads of a missing object: consumers request it all the time."""


class RangedReads:
    """The object store as cold reads use it."""

    def __init__(
        self,
        store: ColdObjects,
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
        self._shares = KeyedLock[str](settings.requests_of_partition)
        self.requests = 0

    async def get(
        self, key: str, start: int = 0, end: int | None = None, *, owner: str = ""
    ) -> Buffer:
        """Exactly the bytes ``[start, end)`` of the object; *end* None: to its end.

        *owner*: the folder of the partition that is read, where it is not that of the object.

        Raises:
            ObjectUnavailableError: no such object: replaced since its name was read, lost, or
                missing for a moment.
            DamagedObjectError: the object is shorter.
            UnavailableError: the store refused or did not answer, each time; try again later.
        """
        if self.missing.waits(key, self._now_ms()):
            raise ObjectUnavailableError(key, "missing", known=True)

        async def ask() -> Buffer:
            async with self._shares.of(owner or key.rpartition("/")[0]), self._slots:
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

    async def run(
        self, key: str, fn: Callable[..., T], *args: object, offload: Offload | None = None
    ) -> T:
        """``fn(*args)`` off the event loop, by *offload* where that is given.

        Raises:
            DamagedObjectError: *fn* found corrupt bytes; the error names *key*.
        """
        try:
            result: T = await (offload or self._offload)(fn, *args)
        except CorruptError as error:
            raise DamagedObjectError(key, str(error) or repr(error)) from error
        return result

    async def drop_stored(self, key: str) -> bool:
        """Delete what the agent's disk has of a damaged object; whether there was something."""
        return isinstance(self._store, CachedObjects) and await self._store.drop(key)
