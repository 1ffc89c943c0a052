"""Decides which flush records are consolidated, and when.

    level 0  flushes ──a minute old, or 100──▶ level 1  sorted by partition
                       level 1 ──60 of them──▶ level 2  cut at partition borders
       level 2 and up, less than a quarter of each unsealed, 8 of them ──▶ next level

A batch is rewritten at most twice, unless most batches around it are sealed.  `object_layout` lays
out the new objects.

So an agent with U unsealed bytes has at most about 4 × U / 64 MiB records of full objects, 8 of
nearly empty ones, and fewer than 100 + 60 of the lower levels: some hundreds, however much it has
written.

Flushes of a MiB and more are large: 60 of them fill an object of level 2.  Through level 1 each
byte would move twice, when the agent is busiest, and under full load nearly all batches are sealed
within a minute anyway.  So large flushes wait until there are 400, and become level 2 directly.

An agent that cannot rewrite as fast as it flushes holds its producers back (`ConsolidationLag`):
its records in the metadata store are bounded, whatever its cores, disk and network.

A dead session gets no more flushes: its records below level 2 become as few as possible.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from driftlog_agents.log.consolidation.flush_record_index import FlushRecordEntry
from driftlog_agents.log.partition.deleted_topics import LIMIT
from driftlog_tiering.foundation.types import MiB

LAST_LEVEL: Final = 2
"""Objects of this level are rewritten again only when most of their batches are sealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationSettings:
    """When flush records are rewritten, and how large the objects become."""

    age_ms: float = 60_000
    """Age of the oldest small flush at which level 0 is rewritten.  Longer: fewer and larger
    rewrites, more records, and slower takeovers."""

    dead_age_ms: float = 10_000
    """The same for a dead session, from when this agent has read its records.  Shorter: rewrites
    run beside the takeover; longer: the next takeover reads more."""

    records: int = 100
    """Records of level 0 that become level 1 even if younger.  A transaction takes no more."""

    large_bytes: int = MiB
    """A flush of this size is large.  Smaller: fewer bytes are rewritten, into smaller objects."""

    large_records: int = 400
    """Large flushes that may wait.  Fewer: more bytes are rewritten under full load."""

    level_one_records: int = 60
    """Records of level 1 that become level 2.  More: fewer partitions per object, more records."""

    object_bytes: int = 64 * MiB
    """Largest new object.  Larger: fewer records; more sealed bytes stay beside unsealed ones."""

    sparse_share: float = 0.25
    """An object of level 2 or higher with a smaller unsealed share may be rewritten."""

    sparse_records: int = 8
    """Such objects per rewrite.  Fewer: more rewrites that leave as many records."""

    batches: int = 150_000
    """Batches of one rewrite: each takes 100 bytes of memory meanwhile, and 300 if it is alone in
    its partition."""

    waiting_records: int = 1_500
    """Records below level 2 in the metadata store at which producers wait until there are fewer.
    More: an agent with too few cores accepts more before it slows down, and a takeover from it
    reads more."""

    ended_ms: float = 3_000
    """Time between the end of a session and the read of its records: takeovers read them first."""

    check_interval_ms: float = 1_000

    sealed_interval_ms: float = 30_000
    """Time between two reads of other agents' sealed ends and of the sessions that are over."""

    deleted_topics: int = LIMIT
    """Deleted topics that the session remembers: batches of another one are found to be of a
    deleted topic by a read of its partition's key."""

    named_within_ms: float = 3_600_000
    """Longest time from the first PUT of a rewrite to its transaction; half of the cluster's grace
    is the bound."""


class ConsolidationLag:
    """Whether producers wait for consolidation.

    They wait at a bound, and continue when a rewrite has reduced the number: so they produce at the
    rate of the rewrites.
    """

    __slots__ = ("_bound", "behind", "held")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self.held = False
        """Producers wait."""
        self.behind = False
        """Producers have waited, and more than half of the bound still waits."""

    def update(self, waiting: int) -> None:
        """Updates both flags: *waiting* records below level 2 wait."""
        self.held = waiting >= self._bound
        self.behind = self.held or (self.behind and waiting > self._bound // 2)


def choose(
    records: Sequence[FlushRecordEntry],
    settings: ConsolidationSettings,
    now_ms: float,
    *,
    dead: bool,
) -> list[FlushRecordEntry]:
    """The records of one session (in key order) to rewrite now; empty: none."""
    flushes = [known for known in records if known.level == 0 and not _is_large(known, settings)]
    age_ms = settings.dead_age_ms if dead else settings.age_ms
    ripe = bool(flushes) and now_ms - flushes[0].known_ms >= age_ms
    if len(flushes) > 1 and (ripe or len(flushes) >= settings.records):
        return flushes[: settings.records]
    once = [known for known in records if known.level == 1]
    if len(once) >= settings.level_one_records:
        return once[: settings.level_one_records]
    large = [known for known in records if known.level == 0 and _is_large(known, settings)]
    if len(large) > settings.large_records:
        return large[: settings.level_one_records]
    if dead:
        low = [known for known in records if known.level < LAST_LEVEL]
        if len(low) > 1 and all(now_ms - known.known_ms >= settings.age_ms for known in low):
            return low[: settings.level_one_records]
    sparse = [known for known in records if _is_sparse(known, settings)]
    if len(sparse) >= settings.sparse_records:
        return sparse[: settings.level_one_records]
    return []


def _is_sparse(known: FlushRecordEntry, settings: ConsolidationSettings) -> bool:
    return (
        known.level >= LAST_LEVEL
        and known.unsealed_bytes < settings.sparse_share * known.record.footer_start
    )


def _is_large(known: FlushRecordEntry, settings: ConsolidationSettings) -> bool:
    return known.record.footer_start >= settings.large_bytes


def level_after(replaced: Sequence[FlushRecordEntry], settings: ConsolidationSettings) -> int:
    """The level of the records that replace *replaced*."""
    if all(_is_large(known, settings) for known in replaced):
        return max(LAST_LEVEL, *(known.level + 1 for known in replaced))
    return max(known.level for known in replaced) + 1
