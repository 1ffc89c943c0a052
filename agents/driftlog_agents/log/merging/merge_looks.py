"""Which partitions are looked at for merges, and which of their segments are merged next.

    the cached manifest changed, or a segment became old enough? ──no──▶ nothing
                 └─yes─▶ the segments of the manifest ──▶ `tiering/merging/policy`
                         lists of older ones, each once, if something was sealed in this session

Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from driftlog_agents.log.compaction.sealed_log import SealedLog
from driftlog_tiering.formats.manifest import Manifest, SegmentListRef, SegmentRef
from driftlog_tiering.merging.policy import MergePolicy, may_have_small, next_merge, young_from


@dataclass(slots=True, kw_only=True)
class MergeSettings:
    """How an agent merges.  The interval may change during a session."""

    enabled: bool = True
    """``driftlog.segment.merge.enable``."""

    interval_ms: float = 15_000
    """``log.cleaner.backoff.ms``, between two looks at all partitions.  Longer: later merges."""

    factor: int = 16
    """See `MergePolicy`."""


@dataclass(slots=True)
class MergedPartition:
    """What is known of a partition between two looks."""

    log: SealedLog
    policy: MergePolicy
    first_sealed_end: int
    looked: tuple[int, int, int] = (-1, -1, -1)
    """Manifest version, sealed end and log start of the last look that found nothing to merge."""
    due_ms: int | None = None
    """When ``min.compaction.lag.ms`` of the next segment is over."""
    settled: int = 0
    """Lists below this offset have nothing to merge."""

    @property
    def opens_lists(self) -> bool:
        """Whether lists of older segments are opened: something was sealed in this session."""
        return self.log.sealed_end != self.first_sealed_end

    def may_be_due(self, version: int, now_ms: int) -> bool:
        """Whether something may be merged that the last look did not find.  *version*: of the
        manifest that this look would take."""
        is_due = self.due_ms is not None and self.due_ms <= now_ms
        return is_due or self.looked != self._now(version)

    def found_nothing(self, version: int) -> None:
        """Nothing is to be merged now, by a look at the manifest of *version*."""
        self.looked = self._now(version)

    def _now(self, version: int) -> tuple[int, int, int]:
        return version, self.log.sealed_end, self.log.log_start

    def choose(
        self,
        manifest: Manifest,
        segments: Sequence[SegmentRef],
        now_ms: int,
        *,
        follows: bool = False,
    ) -> tuple[SegmentRef, ...]:
        """The next of *segments*, neighbours in *manifest*, to merge; empty: there are none.
        *follows*: segments follow them in the manifest."""
        end = self.log.sealed_end
        young = young_from(segments, self.policy, now_ms)
        if young is not None:
            end, self.due_ms = min(end, young[0]), young[1]
        return next_merge(
            segments,
            self.policy,
            log_start=max(self.log.log_start, manifest.log_start),
            cleaned_end=manifest.cleaned_end,
            end=end,
            follows=follows and young is None,
        )

    def may_have_more(self, manifest: Manifest, ref: SegmentListRef) -> bool:
        """Whether the list may have something to merge."""
        is_open = ref.end > max(self.settled, manifest.log_start)
        return is_open and may_have_small(ref, self.policy)


class MergeLooks:
    """See the module; for one session."""

    def __init__(self) -> None:
        self._partitions: dict[SealedLog, MergedPartition] = {}

    def keep(self, logs: Iterable[SealedLog]) -> None:
        """Forgets all partitions but *logs*."""
        self._partitions = {log: self._partitions[log] for log in logs if log in self._partitions}

    def of(self, log: SealedLog, policy: MergePolicy) -> MergedPartition:
        """What is known of *log*; another policy than before: all is looked at again."""
        found = self._partitions.get(log)
        if found is None or found.policy != policy:
            first = log.sealed_end if found is None else found.first_sealed_end
            found = self._partitions[log] = MergedPartition(log, policy, first)
        return found
