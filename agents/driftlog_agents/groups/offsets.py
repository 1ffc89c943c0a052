"""Committed offsets of one group: decide, persist, replay.

    commit, forget, expire ──▶ Changes ──▶ new values of the pages that they change
                                              │ stored
                                              ▼
                                            replay ──▶ fetch

A decision changes no state: only `replay` does, after the decision is stored.  So a fetch never
returns an offset that the next coordinator would not read from the store.  Offsets belong to a
topic's id: a topic that is recreated under its name has none.  They are stored in pages of 256
partitions (`storage_format`).

Source: org.apache.kafka.coordinator.group.OffsetMetadataManager, OffsetExpirationConditionImpl.
Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from driftlog_agents.groups.sizes import text_bytes
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_metadata.schema.keys import INT32_MAX, INT64_MAX
from driftlog_metadata.schema.model import TopicPartition

PAGE_PARTITIONS: Final = 256
"""Partitions whose offsets share a key.  More: fewer keys, and more bytes per commit."""

OFFSET_BYTES: Final = 300
"""Memory of a committed offset without its metadata text (measured: 250 to 330)."""

_INT64_MIN: Final = -(2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """One committed offset; *leader_epoch* −1: the client sent none.

    All numbers fit the stored format: the caller clamps them (`as_int64`).  Kafka accepts any
    offset, negative ones too.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = 0
    """Time of the commit, since 1970."""
    expire_ms: int | None = None
    """Time when it expires, if the client set one (OffsetCommit up to version 4)."""

    def __post_init__(self) -> None:
        assert is_int64(self.offset)
        assert -1 <= self.leader_epoch <= INT32_MAX
        assert is_int64(self.commit_ms)
        assert self.expire_ms is None or is_int64(self.expire_ms)

    @property
    def size_bytes(self) -> int:
        """Its approximate memory."""
        return OFFSET_BYTES + text_bytes(self.metadata)


def is_int64(number: int) -> bool:
    """Whether *number* fits an int64."""
    return _INT64_MIN <= number <= INT64_MAX


def as_int64(number: int) -> int:
    """Clamp *number* to an int64: a retention of 2^63 − 1 ms from now on never ends.

    In Kafka that sum overflows, and the offset expires at once.
    """
    return max(_INT64_MIN, min(number, INT64_MAX))


@dataclass(frozen=True, slots=True)
class PageId:
    """A page of a group's offsets: partitions ``[256 × page, 256 × page + 256)`` of a topic."""

    topic_id: UUID
    page: int


Page = Mapping[int, Committed]
"""Committed offsets by partition."""

Changes = Mapping[TopicPartition, Committed | None]
"""New committed offsets by partition; None: the offset is deleted."""


def page_of(tp: TopicPartition) -> PageId:
    """The page that holds the offset of *tp*."""
    return PageId(tp.topic_id, tp.partition // PAGE_PARTITIONS)


def verdict(committed: Committed, offset_metadata_max_bytes: int) -> ErrorCode:
    """NONE, or OFFSET_METADATA_TOO_LARGE.

    The limit counts UTF-16 units, as Kafka does: it is the length of a Java string.
    """
    units = len(committed.metadata.encode("utf-16-le")) // 2
    too_large = units > offset_metadata_max_bytes
    return ErrorCode.OFFSET_METADATA_TOO_LARGE if too_large else ErrorCode.NONE


class PageTexts:
    """Bytes of the metadata texts of each page, as they will be once *changes* are stored.

    A commit of one partition writes its whole page, and 256 texts of 4,096 characters are a
    megabyte.
    """

    def __init__(self) -> None:
        self._sizes: dict[PageId, dict[int, int]] = {}
        """By page and partition; partitions without a text are absent."""

    def add(self, changes: Changes) -> None:
        """These will be stored."""
        for tp, committed in changes.items():
            page_id = page_of(tp)
            sizes = self._sizes.get(page_id)
            if committed is not None and committed.metadata:
                sizes = self._sizes.setdefault(page_id, {})
                sizes[tp.partition] = len(committed.metadata.encode())
            elif sizes is not None:
                sizes.pop(tp.partition, None)
                if not sizes:
                    del self._sizes[page_id]

    def size_bytes(self, page_id: PageId) -> int:
        """Of one page."""
        return sum(self._sizes.get(page_id, {}).values())

    def are_too_large(self, changes: Changes, most_bytes: int) -> bool:
        """Whether *changes* make the texts of a page larger, and larger than *most_bytes*."""
        new: dict[PageId, dict[int, int]] = {}
        for tp, committed in changes.items():
            if committed is not None and committed.metadata:
                page = new.setdefault(page_of(tp), {})
                page[tp.partition] = len(committed.metadata.encode())
        for page_id, sizes in new.items():
            before = self._sizes.get(page_id, {})
            size = sum((before | sizes).values())
            if size > most_bytes and size > sum(before.values()):
                return True
        return False


class GroupOffsets:
    """See the module."""

    def __init__(self) -> None:
        self._pages: dict[PageId, dict[int, Committed]] = {}
        self.size_bytes = 0
        """Approximate memory of all committed offsets."""

    def __bool__(self) -> bool:
        return bool(self._pages)

    def __len__(self) -> int:
        return sum(map(len, self._pages.values()))

    # ── Read ──

    def get(self, tp: TopicPartition) -> Committed | None:
        """The committed offset of *tp*; None: none is committed."""
        page = self._pages.get(page_of(tp))
        return None if page is None else page.get(tp.partition)

    def items(self) -> Iterator[tuple[TopicPartition, Committed]]:
        """Every committed offset."""
        for page_id, page in self._pages.items():
            for partition, committed in page.items():
                yield TopicPartition(page_id.topic_id, partition), committed

    @property
    def topic_ids(self) -> set[UUID]:
        """The topics that have committed offsets."""
        return {page_id.topic_id for page_id in self._pages}

    # ── Decide ──

    def forget(self, wanted: Iterable[TopicPartition]) -> Changes:
        """Changes that delete the offsets of *wanted*; partitions without an offset are skipped."""
        return {tp: None for tp in wanted if self.get(tp) is not None}

    def forget_topic(self, topic_id: UUID) -> Changes:
        """Changes that delete all offsets of a deleted topic."""
        return {tp: None for tp, _ in self.items() if tp.topic_id == topic_id}

    def expire(
        self,
        now_ms: int,
        retention_ms: int,
        since_ms: Callable[[Committed], int],
        is_subscribed: Callable[[UUID], bool],
    ) -> Changes:
        """Changes that delete expired offsets.

        Args:
            since_ms: the time at which the retention of an offset begins.
            is_subscribed: whether a member subscribes to that topic: its offsets stay.
        """
        kept = {topic_id: is_subscribed(topic_id) for topic_id in self.topic_ids}
        return {
            tp: None
            for tp, committed in self.items()
            if not kept[tp.topic_id] and _is_over(committed, now_ms, retention_ms, since_ms)
        }

    def growth_bytes(self, changes: Changes) -> int:
        """By how much *changes* increase `size_bytes`."""
        growth = 0
        for tp, committed in changes.items():
            before = self.get(tp)
            growth += 0 if committed is None else committed.size_bytes
            growth -= 0 if before is None else before.size_bytes
        return growth

    def new_pages(self, changes: Changes) -> int:
        """How many pages *changes* add."""
        pages = {page_of(tp) for tp, committed in changes.items() if committed is not None}
        return len(pages - self._pages.keys())

    # ── Persist ──

    def pages(self, changes: Changes) -> dict[PageId, Page]:
        """New values of the pages that *changes* touch; an empty page is to be deleted."""
        found: dict[PageId, dict[int, Committed]] = {}
        for tp, committed in changes.items():
            page_id = page_of(tp)
            page = found.get(page_id)
            if page is None:
                page = found[page_id] = dict(self._pages.get(page_id, {}))
            if committed is None:
                page.pop(tp.partition, None)
            else:
                page[tp.partition] = committed
        return {page_id: page for page_id, page in found.items() if page or page_id in self._pages}

    # ── Replay ──

    def replay(self, pages: Mapping[PageId, Page]) -> None:
        """Apply stored pages; an empty page is deleted."""
        for page_id, page in pages.items():
            self.size_bytes += _size_bytes(page) - _size_bytes(self._pages.get(page_id, {}))
            if page:
                self._pages[page_id] = dict(page)
            else:
                self._pages.pop(page_id, None)


def size_of(changes: Changes) -> int:
    """Memory of *changes* until they are stored."""
    return sum(OFFSET_BYTES if one is None else one.size_bytes for one in changes.values())


def _size_bytes(page: Page) -> int:
    return sum(committed.size_bytes for committed in page.values())


def _is_over(
    committed: Committed, now_ms: int, retention_ms: int, since_ms: Callable[[Committed], int]
) -> bool:
    if committed.expire_ms is not None:
        return now_ms >= committed.expire_ms
    return now_ms - since_ms(committed) >= retention_ms
