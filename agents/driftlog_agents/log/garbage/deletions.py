"""Deletes garbage: every object that the collector deletes is deleted here.

    garbage ──▶ a batch ──▶ confirm: the metadata store and the bucket are the cluster's
                   ▲                     ──▶ delete ──answered──▶ counted, by kind and reason
                   └──no answer, twice────────┘

`driftlog gc --dry-run` has the same interface, and deletes nothing.

Shell.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from driftlog_agents.foundation.retry import Retry
from driftlog_agents.log.garbage.common.garbage_objects import Garbage
from driftlog_agents.log.garbage.common.metadata_reads import raise_if_not_ours
from driftlog_metadata.stores.store import MetadataStore
from driftlog_tiering.stores.object_store import ObjectStore

_BATCH: Final = 1_000
"""Keys of one delete: S3 takes so many in one request.  Fewer: more looks at the cluster file."""

_SLICE: Final = 200
"""Keys that are parsed at once on the event loop: 2 ms."""


async def believe() -> None:
    """Accepts any stores as the cluster's."""


@dataclass(frozen=True, slots=True)
class ConfirmedStores:
    """The stores from which garbage is deleted."""

    metadata: MetadataStore
    objects: ObjectStore
    confirm: Callable[[], Awaitable[None]] = believe
    """Called after names were read and before objects are deleted by them; raises FencedError if a
    store is not the cluster's."""


class Deletions:
    """See the module.

    Args:
        confirm: raises FencedError if a store is not the cluster's.
        retry: of each batch.
    """

    def __init__(
        self,
        objects: ObjectStore,
        confirm: Callable[[], Awaitable[None]],
        retry: Retry,
    ) -> None:
        self._objects = objects
        self._confirm = confirm
        self._retry = retry
        self.objects: Counter[tuple[str, str]] = Counter()
        """Deleted objects, by kind and reason."""
        self.bytes: Counter[tuple[str, str]] = Counter()

    async def delete(self, garbage: Sequence[Garbage]) -> None:
        """See `Deleter`."""
        for at in range(0, len(garbage), _BATCH):
            batch = garbage[at : at + _BATCH]
            kinds: list[str] = []  # before the delete: every key is ours
            for first in range(0, len(batch), _SLICE):
                kinds += [one.kind for one in batch[first : first + _SLICE]]
                await asyncio.sleep(0)
            await self._retry.run(partial(self._delete, batch), raise_if_not_ours)
            for kind, one in zip(kinds, batch, strict=True):
                what = kind, one.reason.value
                self.objects[what] += 1
                self.bytes[what] += one.size_bytes

    async def _delete(self, batch: Sequence[Garbage]) -> None:
        await self._confirm()
        await self._objects.delete([one.key for one in batch])
