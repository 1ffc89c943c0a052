"""What the collector reads of the metadata store: small parts, each repeated where it fails.

One pass makes some reads per session, and all of them have to succeed.  A read that fails is
therefore repeated before the pass is given up.

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from driftlog_metadata.stores.errors import (
    OutcomeUnknownError,
    StoreNotOursError,
    UnavailableError,
)
from driftlog_metadata.stores.store import Get, KeyValue, MetadataStore

T = TypeVar("T")

_ATTEMPTS: Final = 3
_RETRY_S: Final = 1.0


class CollectorReads:
    """See the module.

    Args:
        deadline_ms: of each attempt.
    """

    def __init__(self, metadata: MetadataStore, deadline_ms: float) -> None:
        self._metadata = metadata
        self._deadline_s = deadline_ms / 1000

    async def get(self, *keys: str) -> list[KeyValue | None]:
        """Keys at one revision.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: each attempt failed.
        """

        async def read() -> list[KeyValue | None]:
            result = await self._metadata.txn((), tuple(Get(key) for key in keys))
            return [kvs[0] if kvs else None for kvs in result.reads]

        return await self._repeat(read)

    async def prefix(self, prefix: str) -> list[KeyValue]:
        """All keys under *prefix*, at one revision; raises as `get`."""

        async def read() -> list[KeyValue]:
            _, kvs = await self._metadata.get_prefix(prefix)
            return kvs

        return await self._repeat(read)

    async def _repeat(self, read: Callable[[], Awaitable[T]]) -> T:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with asyncio.timeout(self._deadline_s):
                    return await read()
            except StoreNotOursError:
                raise  # the process asks this store nothing more
            except (UnavailableError, OutcomeUnknownError, TimeoutError):
                if attempt == _ATTEMPTS:
                    raise
            await asyncio.sleep(_RETRY_S)
        raise AssertionError("unreachable")
