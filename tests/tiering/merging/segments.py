"""References of segments for the tests of merging."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats.manifest import SegmentRef
from driftlog_tiering.merging.policy import joined_horizons

TP: Final = TopicPartition(UUID(int=7), 0)


def segment(
    base: int, end: int, *, size: int = 100, oldest_ms: int = 1, newest_ms: int = 1, merges: int = 0
) -> SegmentRef:
    """A segment; its records have times between *oldest_ms* and *newest_ms*."""
    return SegmentRef(
        key=f"{base}-{end}-{merges}",
        base=base,
        end=end,
        size_bytes=size,
        records=end - base,
        raw_bytes=size,
        min_timestamp_ms=oldest_ms,
        max_timestamp_ms=newest_ms,
        merges=merges,
    )


def joined(segments: Sequence[SegmentRef]) -> SegmentRef:
    """What a merge of *segments* must be."""
    made = segment(
        segments[0].base,
        segments[-1].end,
        size=sum(each.received_bytes for each in segments),
        oldest_ms=min(each.min_timestamp_ms for each in segments),
        newest_ms=max(each.max_timestamp_ms for each in segments),
        merges=max(each.merges for each in segments) + 1,
    )
    return replace(made, horizons=joined_horizons(segments))
