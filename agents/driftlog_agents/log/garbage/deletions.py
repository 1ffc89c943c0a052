"""Deletes garbage: every object that the collector deletes is deleted here.

    garbage ──▶ a batch ──▶ confirm: the metadata store and the bucket are the cluster's
                                  ──▶ delete ──answered──▶ counted, by kind and reason

`driftlog gc --dry-run` has the same interface, and deletes nothing.

Shell.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from driftlog_tiering.formats import layout
from driftlog_tiering.stores.object_store import ObjectStore

_BATCH: Final = 1_000
"""Keys of one delete: S3 takes so many in one request.  Fewer: more looks at the cluster file."""


_SLICE: Final = 200
"""Keys that are parsed at once on the event loop: 2 ms."""


class GarbageReason(StrEnum):
    """Why an object is garbage; the values are labels of metrics."""

    NO_RECORD = "no_flush_record"
    """No flush record names the flush object."""
    DELETED_TOPIC = "deleted_topic"
    """Its topic is deleted."""
    REPLACED = "replaced"
    """A manifest edit replaced it: a later version does not name it."""
    NEVER_NAMED = "never_named"
    """No manifest version names it: it is of an attempt that failed."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """An object to be deleted.  ``size_bytes``: 0 where neither manifest nor listing states it."""

    key: str
    size_bytes: int
    reason: GarbageReason

    @property
    def kind(self) -> str:
        """The kind of the object, as metrics and `driftlog gc` call it.

        Raises:
            ValueError: no driftlog object has such a key.
        """
        return kind_of(self.key)


class Deleter(Protocol):
    """What the parts of the collector give their garbage to."""

    async def delete(self, garbage: Sequence[Garbage]) -> None:
        """Delete the objects; when it returns, each delete was answered as done.

        Raises:
            ValueError: a key is not driftlog's.
            FencedError: a store is not the cluster's; nothing was deleted.
            UnavailableError, OutcomeUnknownError, TimeoutError: a store; some may be deleted.
        """
        ...


async def believe() -> None:
    """Accepts any stores as the cluster's."""


class Deletions:
    """See the module.

    Args:
        confirm: raises FencedError if a store is not the cluster's.
        deadline_ms: of each batch.
    """

    def __init__(
        self,
        objects: ObjectStore,
        confirm: Callable[[], Awaitable[None]],
        *,
        deadline_ms: float,
    ) -> None:
        self._objects = objects
        self._confirm = confirm
        self._deadline_ms = deadline_ms
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
            await self._confirm()
            async with asyncio.timeout(self._deadline_ms / 1000):
                await self._objects.delete([one.key for one in batch])
            for kind, one in zip(kinds, batch, strict=True):
                what = kind, one.reason.value
                self.objects[what] += 1
                self.bytes[what] += one.size_bytes


def kind_of(key: str) -> str:
    """See `Garbage.kind`."""
    match layout.parse_key(key):
        case layout.FlushObjectKey():
            return "flush_object"
        case layout.FinalHeadKey():
            return "final_head"
        case layout.SegmentKey():
            return "segment"
        case layout.SegmentListKey():
            return "segment_list"
        case layout.ProducerSnapshotKey():
            return "producer_snapshot"
        case layout.ManifestKey():
            return "manifest"
        case layout.GroupSnapshotKey():
            return "group_snapshot"
        case layout.TopicKey() | layout.DeletedKey():
            return "topic_file"
        case _:
            return "other"
