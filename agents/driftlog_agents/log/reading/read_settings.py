"""Limits of reads from the bucket: they slow neither producers nor consumers of the recent log.

Pure.
"""

from dataclasses import dataclass

from driftlog_tiering.foundation.types import MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """Limits of reads from the bucket; producers and tail consumers use the rest."""

    requests_at_once: int = 16
    """GETs of cold reads in flight.  More: more throughput on a distant store, for more of its
    request rate and of the agent's connections."""

    requests_of_partition: int = 4
    """Those of one partition.  More: a partition alone is faster on a distant store; fewer: more
    partitions whose objects do not answer leave the others their requests."""

    request_deadline_ms: float = 6_000
    """After this a GET counts as lost and is repeated.  Longer: a dead connection costs more.
    Three deadlines must fit into a client's request.timeout.ms (30 s); shorter: 16 MiB over a slow
    link do not arrive in one."""

    attempts: int = 3
    """How often a GET is tried before the reader gets a retriable error."""

    retry_backoff_ms: float = 50
    """Wait before the first repeat; twice as long before each further one."""

    row_group_cache_bytes: int = 64 * MiB
    """Memory for decoded row groups, of 16 MiB and more each.  More: more consumers of the sealed
    log at full speed; the others take turns."""

    flush_cache_bytes: int = 16 * MiB
    """Memory for pieces of flush objects.  More: more consumers behind the local disk."""

    index_cache_bytes: int = 16 * MiB
    """Memory for footers of segments and lists of manifests.  More: fewer GETs per random read."""

    read_ahead_bytes: int = 2 * MiB
    """Bytes of a flush object that one GET reads.  More: fewer GETs for sequential consumers, more
    wasted bytes for others."""

    prefetch_row_groups: int = 2
    """Row groups that are loaded ahead of a sequential consumer, if there is room.  0: none, and
    nothing of flush objects."""

    prefetch_flush_bytes: int = 4 * MiB
    """Bytes of flush objects that are loaded ahead of a sequential consumer, at least one piece, if
    there is room; side by side.  More: a consumer alone is faster on a distant store; fewer: more
    consumers share the memory."""

    hold_ms: float = 1_000
    """How long a row group waits for its reader's next fetch before it may be evicted."""

    patience_ms: float = 2_000
    """How long a fetch waits for room before it evicts what another fetch reads."""

    batch_bytes: int = MiB
    """Uncompressed size of a re-encoded batch.  Larger: better compression, more client memory."""
