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


class Reason(StrEnum):
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
    reason: Reason

    @property
    def kind(self) -> str:
        """The kind of the object, as metrics and `driftlog gc` call it.

        Raises:
            ValueError: no driftlog object has such a key.
        """
        return kind_of(self.key)


class Deleter(Protocol):
    """What the parts of the collector give their garbage to."""

    async def delete(self, garbage: Sequence[Garbage]) -> bool:
        """Delete the objects; False: not all of them, because the pass has deleted enough.

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
        max_deletes: of one pass.
    """

    def __init__(
        self,
        objects: ObjectStore,
        confirm: Callable[[], Awaitable[None]],
        *,
        max_deletes: int,
        deadline_ms: float,
    ) -> None:
        self._objects = objects
        self._confirm = confirm
        self._max_deletes = max_deletes
        self._deadline_ms = deadline_ms
        self._left = max_deletes
        self.objects: Counter[tuple[str, str]] = Counter()
        """Deleted objects, by kind and reason."""
        self.bytes: Counter[tuple[str, str]] = Counter()

    def begin_pass(self) -> None:
        """From now on so many deletes as one pass may have."""
        self._left = self._max_deletes

    async def delete(self, garbage: Sequence[Garbage]) -> bool:
        """See `Deleter`."""
        allowed = garbage[: self._left]
        for at in range(0, len(allowed), _BATCH):
            batch = allowed[at : at + _BATCH]
            kinds = [one.kind for one in batch]  # before the delete: every key is ours
            await self._confirm()
            async with asyncio.timeout(self._deadline_ms / 1000):
                await self._objects.delete([one.key for one in batch])
            self._left -= len(batch)
            for kind, one in zip(kinds, batch, strict=True):
                what = kind, one.reason.value
                self.objects[what] += 1
                self.bytes[what] += one.size_bytes
        return len(allowed) == len(garbage)


def kind_of(key: str) -> str:
    """See `Garbage.kind`."""
    match layout.parse_key(key):
        case layout.FlushKey():
            return "flush_object"
        case layout.SegmentKey():
            return "segment"
        case layout.SegmentListKey():
            return "segment_list"
        case layout.ProducerSnapshotKey():
            return "producer_snapshot"
        case layout.ManifestKey():
            return "manifest"
        case _:
            return "topic_file"
