"""Objects of the bucket by their keys: of which session or topic each is, and why it is garbage.

    a page of a listing ──▶ neighbours of one session, or of one topic ──▶ garbage, with its reason
                       ╳ a key that no driftlog writes: it is told, and stays

Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import Protocol
from uuid import UUID

from driftlog_agents.log.garbage.common.version_pairs import NamedPartition
from driftlog_tiering.formats import layout
from driftlog_tiering.stores.object_store import ObjectInfo


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


class Duties(Protocol):
    """What of the cluster's garbage this agent collects.  Two agents at once do no harm."""

    def collects_flush_objects(self) -> bool:
        """Whether this agent collects flush objects, deleted topics, heads and node ids."""
        ...

    def listing_share(self) -> tuple[int, int] | None:
        """This agent's number, from 0, among the agents that list sealed objects, and their count;
        None: it lists nothing now."""
        ...

    def edited(self) -> Iterable[NamedPartition]:
        """Partitions whose manifests this agent has edited since the last call."""
        ...


class AllDuties:
    """The duties of the only agent of a cluster; it notices no edits."""

    def collects_flush_objects(self) -> bool:
        """See `Duties`."""
        return True

    def listing_share(self) -> tuple[int, int] | None:
        """See `Duties`."""
        return 0, 1

    def edited(self) -> Iterable[NamedPartition]:
        """See `Duties`."""
        return ()


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
        case layout.TopicKey() | layout.DeletedKey() | layout.ImportKey():
            return "topic_file"
        case _:
            return "other"


# ── Flush objects ──


@dataclass(slots=True)
class SessionObjects:
    """Neighbours in a listing of flush objects: one session's."""

    session_id: str
    flushes: list[ObjectInfo] = field(default_factory=list)
    final_heads: list[ObjectInfo] = field(default_factory=list)
    """They sort last, and are deleted when the session has no other object."""

    def split(self, until_ms: float) -> tuple[list[ObjectInfo], "SessionObjects"]:
        """All objects that were put until *until_ms*, and the group of the others."""
        older = [o for o in (*self.flushes, *self.final_heads) if o.modified_ms <= until_ms]
        flushes = [info for info in self.flushes if info.modified_ms > until_ms]
        final_heads = [info for info in self.final_heads if info.modified_ms > until_ms]
        return older, SessionObjects(self.session_id, flushes, final_heads)


def by_session(objects: Iterable[ObjectInfo]) -> tuple[list[SessionObjects], list[str]]:
    """Groups the objects of a listing of flush objects, in its order.  Returns the groups, and the
    keys that no driftlog writes."""
    groups: list[SessionObjects] = []
    foreign: list[str] = []
    for info in objects:
        try:
            key = layout.parse_key(info.key)
        except ValueError:
            foreign.append(info.key)
            continue
        assert isinstance(key, layout.FlushObjectKey | layout.FinalHeadKey)
        if not groups or groups[-1].session_id != key.session_id:
            groups.append(SessionObjects(key.session_id))
        is_flush = isinstance(key, layout.FlushObjectKey)
        (groups[-1].flushes if is_flush else groups[-1].final_heads).append(info)
    return groups, foreign


# ── All objects ──

TopicObjects = tuple[UUID | None, list[ObjectInfo]]
"""Neighbours in a listing of one topic; None: flush objects."""


def by_topic(objects: Iterable[ObjectInfo]) -> tuple[list[TopicObjects], list[str]]:
    """Groups the objects of a listing of the whole bucket, in its order, without those that belong
    to neither a flush nor a topic.  Returns the groups, and the keys that no driftlog writes."""
    ours: list[tuple[UUID | None, ObjectInfo]] = []
    foreign: list[str] = []
    for info in objects:
        try:
            key = layout.parse_key(info.key)
        except ValueError:
            foreign.append(info.key)
            continue
        match key:
            case layout.FlushObjectKey():
                ours.append((None, info))
            case layout.TopicKey() | layout.DeletedKey() | layout.ImportKey():
                ours.append((key.topic_id, info))
            case (
                layout.SegmentKey()
                | layout.SegmentListKey()
                | layout.ProducerSnapshotKey()
                | layout.ManifestKey()
            ):
                ours.append((key.tp.topic_id, info))
            case _:
                pass  # these stay; a final head goes with its session's last object
    groups = groupby(ours, key=lambda one: one[0])
    return [(topic_id, [info for _, info in some]) for topic_id, some in groups], foreign


def of_deleted_topic(objects: Iterable[ObjectInfo], oldest_ms: int) -> list[Garbage]:
    """The garbage among *objects* of a deleted topic: those that were put until *oldest_ms*."""
    return [
        Garbage(info.key, info.size_bytes, GarbageReason.DELETED_TOPIC)
        for info in objects
        if info.modified_ms <= oldest_ms
    ]
