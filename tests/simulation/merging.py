"""Small segments are merged while they are written, read, compacted, expired and collected.

Some seeds merge in all topics, as soon as two small segments have met.  At each manifest that
reaches the bucket:

1. A merged segment has the range, records, bytes as received and times of the segments of the
   version before that it replaces, and nothing else changes.
2. Its horizons are theirs, one after another.
3. It does not cross cleaned end, and spans the time that retention allows, at most.
4. No record is written by more than two merges.

What is read at an offset is always the same record (`oracle`), offsets stay dense (`final_log`),
and what readers are entitled to is there (`collecting`).
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.merging.merge_looks import MergeSettings
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import Manifest, SegmentListRef, SegmentRef
from driftlog_tiering.formats.manifest_codec import decode_manifest, decode_segment_list
from driftlog_tiering.merging.policy import MOST_MERGES
from tests.simulation.faults import now
from tests.simulation.seal_agents import has_seal_agent

if TYPE_CHECKING:
    from tests.simulation.world import World

_SEEDS: Final = (34, 36, 37, 40, 50, 53, 59, 60, 63, 79, 93)
"""Of every hundred: no planted bug is looked for in them that needs other schedules."""

_INTERVAL_MS: Final = 200.0
_FACTOR: Final = 2
_SEGMENT_MS: Final = 200
_COMPACTION_MS: Final = 3_000.0
"""Compaction leaves some small segments to merging."""


def has_merging(seed: int) -> bool:
    """Whether small segments are merged."""
    return seed % 100 in _SEEDS or (has_seal_agent(seed) and seed // 10 % 2 == 0)


def engine_settings(seed: int, usual: EngineSettings) -> EngineSettings:
    """Merging as soon as two small segments have met, and often sealed segments; or no merging."""
    settings = MergeSettings(enabled=has_merging(seed), interval_ms=_INTERVAL_MS, factor=_FACTOR)
    if not has_merging(seed):
        return replace(usual, merging=settings)
    return replace(
        usual,
        merging=settings,
        seal=replace(usual.seal, segment_ms=_SEGMENT_MS, small_ms=_SEGMENT_MS),
        compaction=replace(usual.compaction, backoff_ms=_COMPACTION_MS),
    )


class Merges:
    """Looks at each version of each manifest; see the module."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def put(self, key: str) -> None:
        """An object was created."""
        if not has_merging(self._world.seed):
            return
        try:
            parsed = layout.parse_key(key)
        except ValueError:
            return
        if not isinstance(parsed, layout.ManifestKey) or parsed.version < 2:
            return
        before_key = layout.manifest_key(parsed.topic, parsed.tp, parsed.version - 1)
        before, after = self._manifest(before_key), self._manifest(key)
        if before is not None and after is not None:
            self._check(before, after)

    def _check(self, before: Manifest, after: Manifest) -> None:
        there = self._segments(before)
        known = {each.key for each in there}
        for made in self._segments(after):
            if made.key in known or not made.merges:
                continue
            self._world.count("segments merged")
            replaced = [each for each in there if each.base < made.end and made.base < each.end]
            self._check_one(before, made, replaced)
            same = replace(
                before,
                version=after.version,
                nonce=after.nonce,
                segments=after.segments,
                lists=after.lists,
                format_version=after.format_version,
                cluster_id=after.cluster_id,
            )
            self._expect(same == after, f"{made.key} changes more than segments")

    def _check_one(self, before: Manifest, made: SegmentRef, replaced: list[SegmentRef]) -> None:
        ends = {before.log_start, *(each.end for each in replaced)}
        self._expect(
            made.end in ends and (replaced[0].base >= made.base),
            f"{made.key} replaces {[each.key for each in replaced]}",
        )
        self._expect(made.merges <= MOST_MERGES, f"{made.key}: merge {made.merges}")
        crosses = made.base < before.cleaned_end < made.end
        self._expect(not crosses, f"{made.key} crosses cleaned end {before.cleaned_end}")
        most_ms = self._most_ms(before.topic)
        span_ms = made.max_timestamp_ms - made.min_timestamp_ms
        self._expect(most_ms is None or span_ms <= most_ms, f"{made.key} spans {span_ms} ms")
        if made.base < before.log_start:
            return  # the first ones may be gone
        self._expect(_sums([made]) == _sums(replaced), f"{made.key} has other sums")
        horizons = tuple(horizon for each in replaced for horizon in each.horizons)
        self._expect(made.horizons == horizons, f"{made.key} has other horizons")

    def _most_ms(self, topic: str) -> int | None:
        """The longest span of a merge; None: there is no limit."""
        retention = self._world.retention
        if topic in self._world.compacted or retention is None or retention.limit_ms < 0:
            return None
        return max(self._world.segment_ms, retention.limit_ms // 10)

    def _manifest(self, key: str) -> Manifest | None:
        body, error = now(self._world.bucket.get(key))
        return None if error is not None else decode_manifest(body)

    def _segments(self, manifest: Manifest) -> list[SegmentRef]:
        found: list[SegmentRef] = []
        pending: list[SegmentRef | SegmentListRef] = [*manifest.lists, *manifest.segments]
        pending.reverse()
        while pending:
            entry = pending.pop()
            if isinstance(entry, SegmentRef):
                found.append(entry)
            else:
                content = decode_segment_list(now(self._world.bucket.get(entry.key))[0], entry)
                pending.extend(reversed((*content.lists, *content.segments)))
        return found

    def _expect(self, holds: bool, message: str) -> None:
        self._world.expect(holds, f"merged: {message}")


def _sums(segments: list[SegmentRef]) -> tuple[int, ...]:
    return (
        sum(each.records for each in segments),
        sum(each.received_bytes for each in segments),
        min(each.min_timestamp_ms for each in segments),
        max(each.max_timestamp_ms for each in segments),
    )
