"""What a restored partition consists of, and where its new leader begins.

    │ manifest │ joined batches │ nothing: an empty range │ new records
    log start  end              joined end                goes on at

1. The partition goes on at the largest of the joined end, the end of every slice in any footer, of
   every sealed object, and every restored group offset: an offset that was told to a client is not
   given to another record.
2. An object that is skipped had offsets that are not known: 2^31 are left out for each.
3. A group may have committed any number.  An offset far above all others is not believed.
4. The leader epoch is 2^20 above the largest in manifest, footers, audit records and the metadata
   store: leaders that committed nothing had epochs, too.

Pure.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from driftlog_agents.log.recovery.accepted_loss_plan import UNKNOWN_RECORDS
from driftlog_agents.log.recovery.lost_partition import EPOCHS_SKIPPED
from driftlog_agents.restore.evidence import PartitionFacts
from driftlog_agents.restore.join import JoinedRun
from driftlog_metadata.schema.keys import INT32_MAX
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats.manifest import Manifest

_OFFSETS_BELIEVED: Final = 2**40
"""How far above everything in the bucket a group's offset may be.  Larger: a client that commits
2^63 − 1 leaves no offsets to the partition; smaller: consumers might skip new records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """See the module."""

    manifest: Manifest
    """The newest."""
    runs: tuple[JoinedRun, ...]
    joined_end: int
    goes_on_at: int
    log_start: int
    leader_epoch: int
    not_believed: tuple[int, ...] = ()
    """Group offsets that are not believed."""

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return self.manifest.tp

    @property
    def empty(self) -> tuple[int, int] | None:
        """The range without records before the new ones; None: there is none."""
        has_gap = self.joined_end < self.goes_on_at
        return (self.joined_end, self.goes_on_at) if has_gap else None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be written into the bucket."""
        return not self.runs and self.empty is None and self.log_start <= self.manifest.log_start

    def cut(self, count: int, manifest: Manifest) -> "PartitionPlan":
        """The plan with the first *count* runs alone, as far as they are above *manifest*."""
        runs = tuple(run for run in self.runs[:count] if run.end > manifest.end)
        end = runs[-1].end if runs else manifest.end
        return replace(self, manifest=manifest, runs=runs, joined_end=end)


def plan_partition(
    manifest: Manifest,
    facts: PartitionFacts,
    runs: Iterable[JoinedRun],
    group_offsets: Collection[int] = (),
    told_epoch: int = -1,
    skipped: int = 0,
) -> PartitionPlan:
    """The plan of the partition with the newest *manifest*.

    *told_epoch*: the largest of audit records and of the metadata store; *skipped*: objects of
    unknown content that the restore leaves out.
    """
    joined = tuple(runs)
    joined_end = joined[-1].end if joined else manifest.end
    seen = max(joined_end, facts.end) + UNKNOWN_RECORDS * skipped
    believed = [offset for offset in group_offsets if offset <= seen + _OFFSETS_BELIEVED]
    goes_on_at = max(seen, *believed, 0)
    epochs = [facts.leader_epoch, told_epoch, *(e.epoch for e in manifest.leader_epochs)]
    return PartitionPlan(
        manifest=manifest,
        runs=joined,
        joined_end=joined_end,
        goes_on_at=goes_on_at,
        log_start=min(max(manifest.log_start, facts.log_start), goes_on_at),
        # Claims count up from it.
        leader_epoch=min(max(epochs) + EPOCHS_SKIPPED, INT32_MAX - EPOCHS_SKIPPED),
        not_believed=tuple(sorted(set(group_offsets) - set(believed))),
    )
