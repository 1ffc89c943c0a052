"""The collector's reads of the metadata store: small ones, each repeated when it fails.

One pass makes some reads per session, and all of them must succeed.  So a failed read is repeated
before the pass is abandoned.

Shell.
"""

import math
from typing import Final

from driftlog_agents.foundation.retry import Retry
from driftlog_metadata.schema.codec import decode_at, decode_restore
from driftlog_metadata.schema.keys import RESTORE_KEY
from driftlog_metadata.stores.errors import StoreNotOursError
from driftlog_metadata.stores.store import Get, KeyValue, MetadataStore

MOST_FAILURES: Final = 3
"""After so many sessions, topics or partitions in a row without an answer, the store as a whole
does not answer, and the pass ends."""


class CollectorReads:
    """See the module.

    Args:
        retry: of each read.
    """

    def __init__(self, metadata: MetadataStore, retry: Retry) -> None:
        self._metadata = metadata
        self._retry = retry

    async def get(self, *keys: str) -> list[KeyValue | None]:
        """Reads keys at one revision; None for each one that does not exist.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: each attempt failed.
        """

        async def read() -> list[KeyValue | None]:
            result = await self._metadata.txn((), tuple(Get(key) for key in keys))
            return [kvs[0] if kvs else None for kvs in result.reads]

        return await self._retry.run(read, raise_if_not_ours)

    async def prefix(self, prefix: str) -> list[KeyValue]:
        """All keys under *prefix*, at one revision; raises as `get`."""

        async def read() -> list[KeyValue]:
            _, kvs = await self._metadata.get_prefix(prefix)
            return kvs

        return await self._retry.run(read, raise_if_not_ours)

    async def restored_until_ms(self) -> float:
        """Flush objects and final heads that were put until then stay, by the object store's clock.

        What a restore has listed under ``flush/`` stays until the restore is discarded, and every
        object while the restore is not finished: a partition that it could not bring back is
        restored later, from the same objects.

        Raises:
            CorruptError: the key cannot be read.
            UnavailableError, OutcomeUnknownError, TimeoutError: as `get`.
        """
        (kv,) = await self.get(RESTORE_KEY)
        if kv is None:
            return -math.inf
        listed_ms = decode_at(kv.key, kv.value, decode_restore).listed_ms
        return math.inf if listed_ms is None else listed_ms


async def raise_if_not_ours(error: Exception) -> None:
    """For `Retry`: a store that is not the cluster's is asked once."""
    if isinstance(error, StoreNotOursError):
        raise error  # the process sends this store no more requests
