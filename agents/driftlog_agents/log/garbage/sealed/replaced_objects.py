"""What was read of a partition's versions, and the order in which replaced objects are deleted.

    lists     read on demand (`manifest_names`) ──▶ there: their content
                                                ──▶ not there: empty in an older version,
                                                    `MissingListError` in a newer one
    garbage   segments and snapshots as they are found, then lists, the lowest level first

What is in a list goes before the list: a walk that is interrupted leaves what the next one finds.

Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from driftlog_agents.log.garbage.common.garbage_objects import Garbage, GarbageReason
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import Manifest, SegmentList, SegmentListRef


class MissingListError(Exception):
    """A list of *newer* is not there: another collector is at work, or it is lost."""

    def __init__(self, newer: Manifest, key: str) -> None:
        super().__init__(key)
        self.newer = newer
        self.key = key


@dataclass(slots=True)
class ListsRead:
    """Lists of one partition that were read, by key; None: it is not there."""

    lists: dict[str, SegmentList | None] = field(default_factory=dict)
    missing: bool = False
    """A list of a superseded version was not there: what was in it was collected, or is lost."""

    def require(self, ref: SegmentListRef, newer: Manifest) -> None:
        """*ref* is needed, and is to be read now.

        Raises:
            MissingListError: it was read, and is not there; *newer* has it.
        """
        if ref.key in self.lists:
            raise MissingListError(newer, ref.key)

    def add(self, ref: SegmentListRef, content: SegmentList | None) -> None:
        """*ref* was read; None: it is not there."""
        self.lists[ref.key] = content
        self.missing |= content is None

    def free(self) -> None:
        """Forget the lists, one at a time: all at once they hold up the interpreter for 20 ms."""
        while self.lists:
            self.lists.popitem()


class ReplacedObjects:
    """The objects that only one version names."""

    def __init__(self) -> None:
        self._by_level: dict[int, list[Garbage]] = {}

    def add(self, sizes: Mapping[str, int]) -> list[Garbage]:
        """Returns segments and snapshots among the objects of these keys: they go now."""
        others: list[Garbage] = []
        for key, size in sizes.items():
            garbage = Garbage(key, size, GarbageReason.REPLACED)
            if layout.LISTS_FOLDER in key:
                level = layout.parse_segment_list_key(key).level
                self._by_level.setdefault(level, []).append(garbage)
            else:
                others.append(garbage)
        return others

    def lists(self) -> Iterator[list[Garbage]]:
        """The lists, each level after those that it names."""
        for _, garbage in sorted(self._by_level.items()):
            yield garbage
