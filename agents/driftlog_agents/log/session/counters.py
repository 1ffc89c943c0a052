"""Counters of the log, over all sessions of a process.

Each component adds to its own fields; `metrics` reads them.

Pure.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from driftlog_agents.foundation.histogram import (
    BOUNDS_S,
    FAILED,
    OK,
    REFUSED,
    UNANSWERED,
    VOID,
    Histogram,
    OperationTimes,
)

FENCED: Final = "fenced"

_EDIT: Final = (OK, VOID, FAILED)
"""Outcomes of work that ends with an edit of a manifest; VOID: another edit was faster."""


@dataclass(slots=True, kw_only=True)
class LogCounters:
    """Each field only grows."""

    partitions_taken_over: int = 0
    partitions_handed_over: int = 0
    flush_puts: int = 0
    """Hedges included."""
    flush_hedges: int = 0
    flushes_early: int = 0
    """Cut before `flush_interval_ms`, for requests that waited."""
    committed_bytes: int = 0
    committed_records: int = 0
    buffer_bytes: int = 0
    buffer_syncs: int = 0
    buffer_unreadable: int = 0
    """Attempts to read buffer files of old sessions that failed."""
    buffer_damaged_files: int = 0
    """Damaged buffer files of old sessions; a file that is read again counts again."""
    buffer_damaged_entries: int = 0
    """Entries skipped in such files, at least."""
    buffer_damaged_bytes: int = 0
    buffer_set_aside_records: int = 0
    """Records acknowledged with acks=1 that have no place in the log; moved to DIR/kept."""
    buffer_set_aside_bytes: int = 0
    buffer_deleted_records: int = 0
    """Records acknowledged with acks=1 and dropped: below log start, perhaps never in the log."""
    producers_refused: int = 0
    """Batches of new producers refused because the budget was used up."""
    segments_sealed: int = 0
    sealed_bytes: int = 0
    """Uncompressed."""
    undecodable_batches: int = 0
    """Sealed as they came, not as Parquet."""
    compactions: int = 0
    compaction_read_bytes: int = 0
    """Row groups of segments; those of the dirty part twice."""
    compaction_written_bytes: int = 0
    compaction_removed_records: int = 0
    merges: int = 0
    merged_segments: int = 0
    """Segments that merges replaced."""
    merge_read_bytes: int = 0
    """Row groups of segments."""
    merge_written_bytes: int = 0
    expired_records: Counter[str] = field(default_factory=Counter)
    """By the reason: time or size."""
    expired_bytes: Counter[str] = field(default_factory=Counter)
    """As they were received."""
    verified_partitions: int = 0
    verified_bytes: int = 0
    """Bytes of the segments that were right."""
    commits: Histogram = field(default_factory=Histogram)
    """Transactions that committed a flush."""
    uploads: OperationTimes = field(
        default_factory=partial(OperationTimes, (OK, REFUSED, UNANSWERED), BOUNDS_S)
    )
    """PUTs of flush objects.  Those given up because another attempt was faster do not count."""
    commit_attempts: OperationTimes = field(
        default_factory=partial(OperationTimes, (OK, UNANSWERED, FENCED), BOUNDS_S)
    )
    seals: OperationTimes = field(default_factory=partial(OperationTimes, _EDIT))
    """Segments, from the first read to the edit of the manifest."""
    segment_requests: OperationTimes = field(
        default_factory=partial(OperationTimes, (OK, FAILED, REFUSED))
    )
    """Requests to agents with the role `seal`; refused: they had enough to do."""
    compaction_runs: OperationTimes = field(default_factory=partial(OperationTimes, _EDIT))
    merge_runs: OperationTimes = field(default_factory=partial(OperationTimes, _EDIT))
