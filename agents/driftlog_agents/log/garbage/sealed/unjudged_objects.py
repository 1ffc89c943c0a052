"""Which objects of a listing are judged now: each once, when it is first found older than grace.

    page of a listing ──▶ per partition: objects that are older than grace and were not judged
                                         whether superseded versions are overdue

A partition without new objects costs no request of its own.  A listing shows the newest version of
a partition first, and the pages of one partition follow each other.

Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import groupby
from uuid import UUID

from driftlog_agents.log.garbage.common.garbage_objects import Garbage, GarbageReason
from driftlog_agents.log.garbage.common.version_pairs import NamedPartition, overdue
from driftlog_agents.log.garbage.sealed.manifest_names import Window
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import Topic, TopicPartition
from driftlog_tiering.formats import layout
from driftlog_tiering.stores.object_store import ObjectInfo

_Ranged = layout.SegmentKey | layout.SegmentListKey
_Key = _Ranged | layout.ProducerSnapshotKey


@dataclass(slots=True)
class ListedPartition:
    """What a page shows of one partition."""

    partition: NamedPartition
    objects: dict[str, tuple[_Key, ObjectInfo]] = field(default_factory=dict)
    """Those that are judged now."""
    is_overdue: bool | None = None
    """Whether its oldest pair of versions there is overdue; None: the page shows no pair."""

    def range_of(self, kind: type[_Ranged]) -> Window:
        """The offsets of all objects of one *kind*."""
        ranges = [(key.base, key.end) for key, _ in self.objects.values() if isinstance(key, kind)]
        if not ranges:
            return 0, 0
        return min(base for base, _ in ranges), max(end for _, end in ranges)

    def garbage(self, unnamed: Set[str]) -> list[Garbage]:
        """The objects with *unnamed* keys."""
        return [
            Garbage(info.key, info.size_bytes, GarbageReason.NEVER_NAMED)
            for key, (_, info) in self.objects.items()
            if key in unnamed
        ]


class UnjudgedObjects:
    """See the module."""

    def __init__(self, grace: Grace) -> None:
        self._grace = grace
        self._judged_ms: dict[UUID, int] = {}
        """Per topic: every object whose PUT is not later was judged."""
        self._last_version: tuple[TopicPartition | None, int] = (None, 0)
        """The last partition of the page before, and the PUT of its oldest version there."""

    def of_page(
        self,
        topics: Mapping[UUID, Topic],
        page: Iterable[tuple[layout.Key, ObjectInfo]],
        now_ms: int,
    ) -> Iterator[ListedPartition]:
        """The partitions of *topics* in a page; *now_ms*: the store's clock at its listing."""
        of_partitions = [
            (key.tp, key, info)
            for key, info in page
            if isinstance(key, _Key | layout.ManifestKey) and key.tp.topic_id in topics
        ]
        for tp, entries in groupby(of_partitions, key=lambda entry: entry[0]):
            found = ListedPartition(NamedPartition(topics[tp.topic_id].name, tp))
            for _, key, info in entries:
                if isinstance(key, layout.ManifestKey):  # the newest comes first
                    same, put_ms = self._last_version
                    if same == tp:
                        found.is_overdue = overdue(put_ms, now_ms, self._grace)
                    self._last_version = tp, info.modified_ms
                elif self._is_due(tp.topic_id, info, now_ms):
                    found.objects[info.key] = key, info
            yield found

    def judge_again(self, topic_id: UUID) -> None:
        """Forgets which objects of the topic were judged."""
        self._judged_ms.pop(topic_id, None)

    def looked(self, topics: Set[UUID], left: Set[UUID], began_ms: int) -> None:
        """Every page of *topics* was looked at, and all was judged but of those that are *left*.
        The first page was listed at *began_ms* or later.  Other topics are forgotten."""
        judged = dict.fromkeys(topics - left, began_ms - self._grace.ms)
        before = {t: ms for t, ms in self._judged_ms.items() if t in topics & left}
        self._judged_ms = judged | before

    def _is_due(self, topic_id: UUID, info: ObjectInfo, now_ms: int) -> bool:
        judged_ms = self._judged_ms.get(topic_id, -1)
        return judged_ms < info.modified_ms <= now_ms - self._grace.ms
