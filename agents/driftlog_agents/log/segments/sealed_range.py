"""What a sealed range adds to its partition's manifest and key.

    headers of its batches ──▶ leader epochs
    previous snapshot, headers, times of flushes ──▶ producer snapshot at exactly its end
    a written file ──▶ segment reference
    manifest ──▶ sealed end, log start and sessions of the partition's key

Every leader computes the same, with one exception: after a takeover one slice may stand for several
flushes, and then some producers are remembered longer.

Pure.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from driftlog_agents.log.partition.partition import NO_PRODUCER_ID, PartitionLog
from driftlog_agents.log.partition.tail import session_of
from driftlog_metadata.schema.model import PartitionState
from driftlog_tiering.batches.batch import NO_TIMESTAMP, BatchHeader, check_batch
from driftlog_tiering.batches.producers import ProducerStates
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import LeaderEpoch, Manifest, SegmentRef
from driftlog_tiering.foundation.types import Buffer


class FlushTime(NamedTuple):
    """When, and by which session, the batches from *base* on were flushed."""

    base: int
    flushed_ms: int
    """Since 1970."""
    session_id: str


def flush_times(log: PartitionLog, end: int) -> list[FlushTime]:
    """The flushes of the batches of *log* below *end*."""
    return [
        FlushTime(tail.base, tail.flushed_until_ms, session_of(tail))
        for tail in log.slices
        if tail.base < end
    ]


def producer_snapshot(
    states: ProducerStates,
    headers: Sequence[BatchHeader],
    times: Sequence[FlushTime],
    end: int,
    expiration_ms: float,
) -> bytes | None:
    """The snapshot at *end*, of *states* and the batches since; None: it has no producers."""
    at = -1
    for header in headers:
        while at + 1 < len(times) and times[at + 1].base <= header.base_offset:
            at += 1
            states.flushed(times[at].session_id, float(times[at].flushed_ms))
        if header.producer_id != NO_PRODUCER_ID:
            states.append(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.last_offset_delta + 1,
                header.base_offset,
                float(times[at].flushed_ms),
            )
    if times:  # otherwise the range is empty: its records are lost
        states.settle(expiration_ms)
    return states.encode(end) if len(states) else None


def leader_epochs(headers: Sequence[BatchHeader]) -> tuple[LeaderEpoch, ...]:
    """The leader epochs of a range, with the offset at which each begins."""
    epochs: list[LeaderEpoch] = []
    for header in headers:
        if not epochs or epochs[-1].epoch < header.partition_leader_epoch:
            epochs.append(LeaderEpoch(header.partition_leader_epoch, header.base_offset))
    return tuple(epochs)


def batch_headers(batches: list[Buffer]) -> list[BatchHeader]:
    """The header of each batch, which is checked."""
    return [check_batch(batch, from_client=False) for batch in batches]


def raw_ref(key: str, headers: Sequence[BatchHeader], size_bytes: int) -> SegmentRef:
    """The reference of an object of undecodable batches with these *headers*."""
    return SegmentRef(
        key=key,
        kind=SegmentKind.RAW,
        base=headers[0].base_offset,
        end=headers[-1].end_offset,
        size_bytes=size_bytes,
        records=sum(header.record_count for header in headers),
        raw_bytes=size_bytes,
        min_timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=max(header.max_timestamp for header in headers),
        max_timestamp_offset=-1,
    )


def end_of(segments: Sequence[SegmentRef], end: int) -> int:
    """Where *segments* of a range up to *end* end: before it, where there was too much to decode
    for one attempt.  Without segments all of it is deleted."""
    return segments[-1].end if segments else end


def sealed_state(
    state: PartitionState, manifest: Manifest, needed: Collection[str]
) -> PartitionState:
    """The partition's key after *manifest* is adopted.  Of its sessions those stay that are
    *needed*."""
    return PartitionState(
        sealed_end=manifest.end,
        manifest_version=manifest.version,
        log_start=max(state.log_start, manifest.log_start),
        sessions=tuple(session for session in state.sessions if session in needed),
    )


def neighbours(segments: Sequence[SegmentRef]) -> list[tuple[SegmentRef, ...]]:
    """*segments*, in ascending order, as runs without a hole."""
    runs: list[tuple[SegmentRef, ...]] = []
    for segment in segments:
        if runs and runs[-1][-1].end == segment.base:
            runs[-1] += (segment,)
        else:
            runs.append((segment,))
    return runs
