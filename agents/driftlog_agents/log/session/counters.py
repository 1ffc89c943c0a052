"""Counters of the log, over all sessions of a process.

Each part adds to its own fields; `metrics` reads them.

Pure.
"""

from dataclasses import dataclass, field

from driftlog_agents.foundation.histogram import Histogram


@dataclass(slots=True, kw_only=True)
class LogCounters:
    """Each field only grows."""

    partitions_taken_over: int = 0
    partitions_handed_over: int = 0
    flush_puts: int = 0
    """Hedges among them."""
    flush_hedges: int = 0
    flushes_early: int = 0
    """Cut before their age, for requests that waited."""
    committed_bytes: int = 0
    buffer_bytes: int = 0
    buffer_syncs: int = 0
    buffer_unreadable: int = 0
    """Attempts to read buffer files of old sessions that failed."""
    buffer_damaged_files: int = 0
    """Of old sessions: read, and not whole; a file that is read again counts again."""
    buffer_damaged_entries: int = 0
    """Skipped in them, at least."""
    buffer_damaged_bytes: int = 0
    buffer_set_aside_records: int = 0
    """Answered to acks=1, without a place in the log, and moved to DIR/kept."""
    buffer_set_aside_bytes: int = 0
    producers_refused: int = 0
    """Batches of new producers, for the budget."""
    segments_sealed: int = 0
    sealed_bytes: int = 0
    """Uncompressed."""
    undecodable_batches: int = 0
    """Kept as they came."""
    commits: Histogram = field(default_factory=Histogram)
    """Transactions that committed a flush."""
