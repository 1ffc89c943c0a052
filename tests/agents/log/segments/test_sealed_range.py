"""A manifest or key that says something else than the sealed batches fails here.

Pure.
"""

from driftlog_agents.log.segments.sealed_range import (
    FlushTime,
    leader_epochs,
    neighbours,
    producer_snapshot,
    raw_ref,
    sealed_state,
)
from driftlog_metadata.schema.model import PartitionState
from driftlog_tiering.batches import kernel
from driftlog_tiering.batches.batch import BatchHeader, check_batch
from driftlog_tiering.batches.producers import ProducerStates
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import LeaderEpoch
from tests.agents.log.lives import make_batch
from tests.agents.log.sealing.test_attempts import manifest_of, segment


def header(offset: int, epoch: int, *, producer: int = -1, sequence: int = -1) -> BatchHeader:
    """Of a batch of two records."""
    batch = memoryview(
        make_batch([b"a", b"b"], producer=producer, epoch=min(producer, 0), sequence=sequence)
    )
    kernel.patch(batch, 0, offset, epoch)
    return check_batch(batch, from_client=False)


def test_each_leader_epoch_begins_at_its_first_batch() -> None:
    """Recovery compares buffered batches with these starts."""
    headers = [header(0, 1), header(2, 1), header(4, 3), header(6, 3)]

    assert (LeaderEpoch(1, 0), LeaderEpoch(3, 4)) == leader_epochs(headers)


def test_a_snapshot_has_the_producers_of_the_batches_and_of_the_last_snapshot() -> None:
    """A retry after a takeover is found in it."""
    states = ProducerStates()
    states.append(5, 0, 0, 1, 0, 1_000.0)
    times = [FlushTime(10, 2_000, "a"), FlushTime(12, 3_000, "b")]
    headers = [header(10, 1, producer=7, sequence=0), header(12, 1, producer=8, sequence=0)]

    encoded = producer_snapshot(states, headers, times, 14, 1e9)

    assert encoded is not None
    assert [5, 7, 8] == sorted(states.ids())
    assert [10, 12] == [states.last_offset(n) - 1 for n in (7, 8)]


def test_a_range_without_producers_has_no_snapshot() -> None:
    """No object is written for nothing."""
    times = [FlushTime(0, 1_000, "a")]

    assert None is producer_snapshot(ProducerStates(), [header(0, 1)], times, 2, 1e9)


def test_an_undecodable_range_has_no_times_below_its_largest() -> None:
    """Lookups by time must not leave it out."""
    headers = [header(0, 1), header(2, 1)]
    ref = raw_ref("k", headers, 90)

    assert (SegmentKind.RAW, 0, 4, 4, 90) == (
        ref.kind,
        ref.base,
        ref.end,
        ref.records,
        ref.raw_bytes,
    )
    assert (-1, 1) == (ref.min_timestamp_ms, ref.max_timestamp_ms)


def test_the_key_keeps_needed_sessions_and_the_larger_log_start() -> None:
    """Of the others all batches are sealed; a deletion of records is not undone."""
    state = PartitionState(sealed_end=0, manifest_version=1, log_start=7, sessions=("a", "b", "c"))
    manifest = manifest_of(20, log_start=3, version=9)

    sealed = sealed_state(state, manifest, {"a", "c", "x"})

    expected = PartitionState(sealed_end=20, manifest_version=9, log_start=7, sessions=("a", "c"))
    assert expected == sealed


def test_runs_end_where_a_segment_is_missing() -> None:
    """Each run is replaced by one edit."""
    a, b, c = segment(0, 2, "a"), segment(2, 5, "b"), segment(6, 7, "c")

    assert [(a, b), (c,)] == neighbours([a, b, c])
    assert [] == neighbours([])
