"""Bugs to be planted in merging: `merging` notices each, or a reader does.

Horizons that a merge joins are not planted: compaction of the few bytes of a simulation leaves one
segment, and merges meet no two horizons.  `tests/tiering/merging` has them.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final

import pytest

from driftlog_agents.log.compaction.partition_rewrites import PartitionRewrites
from driftlog_agents.log.merging import merge_looks, topic_policies
from driftlog_tiering.formats import manifest_edits
from driftlog_tiering.formats.manifest import (
    Manifest,
    ReplaceSegments,
    SegmentList,
    SegmentRef,
)
from driftlog_tiering.merging import policy
from tests.simulation.compaction import has_compaction
from tests.simulation.merging import has_merging
from tests.simulation.planted import Plant
from tests.simulation.retention_planted import by_time


def merge_crosses_cleaned_end(patch: pytest.MonkeyPatch) -> None:
    """What compaction has looked at is merged with what it has not."""
    original = policy.next_merge

    def next_merge(segments: Sequence[SegmentRef], *args: Any, **cuts: Any) -> Any:
        return original(segments, *args, **{**cuts, "cleaned_end": 0})

    patch.setattr(merge_looks, "next_merge", next_merge)


def merge_spans_too_long_a_time(patch: pytest.MonkeyPatch) -> None:
    """Retention does not limit what is merged."""
    patch.setattr(topic_policies, "span_ms", lambda *_: None)


def replacement_by_range_and_not_identity(patch: pytest.MonkeyPatch) -> None:
    """A merge replaces what is in its range, whatever compaction has made of it meanwhile."""
    original = manifest_edits._replace

    def by_range(
        manifest: Manifest, edit: ReplaceSegments, lists: Mapping[str, SegmentList]
    ) -> Any:
        if not edit.added or not edit.added[0].merges:
            return original(manifest, edit, lists)
        base, end = edit.replaced[0].base, edit.replaced[-1].end
        there = [each for each in manifest.segments if each.base < end and base < each.end]
        return original(manifest, replace(edit, replaced=tuple(there)), lists)

    patch.setattr(manifest_edits, "_replace", by_range)
    patch.setattr(PartitionRewrites, "turn", lambda *_: nullcontext())


MERGING_BUGS: Final[tuple[Plant, ...]] = (
    merge_crosses_cleaned_end,
    merge_spans_too_long_a_time,
    replacement_by_range_and_not_identity,
)


def compacted(seed: int) -> bool:
    """Whether a topic is merged and compacted."""
    return has_merging(seed) and has_compaction(seed)


def expires(seed: int) -> bool:
    """Whether segments are merged and expire by time."""
    return has_merging(seed) and by_time(seed)
