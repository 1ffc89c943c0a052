"""A round that seals the wrong partitions, or a manifest adopted with other records, fails here.

Pure.
"""

from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.sealing.attempts import SealAttempts, SealStep, is_behind
from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats.manifest import AddSegments, Manifest, ProducerSnapshotRef, SegmentRef
from driftlog_tiering.formats.manifest_codec import CorruptManifestError

TOPIC = UUID(int=1)


def log_of(*, recovered_end: int = 0) -> PartitionLog:
    """A led partition."""
    log = PartitionLog(
        topic="t", topic_id=TOPIC, partition=0, leader_epoch=1, sealed_end=recovered_end
    )
    log.manifest_version = 1
    return log


def segment(base: int, end: int, name: str) -> SegmentRef:
    """One by that name."""
    return SegmentRef(
        key=name,
        base=base,
        end=end,
        size_bytes=1,
        records=end - base,
        raw_bytes=1,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
        max_timestamp_offset=base,
    )


def edit_of(base: int, end: int, name: str) -> AddSegments:
    """An edit that adds one segment."""
    return AddSegments(
        base=base, end=end, segments=(segment(base, end, name),), leader_epochs=(), producers=None
    )


def manifest_of(end: int, *segments: SegmentRef, log_start: int = 0, version: int = 1) -> Manifest:
    """A version of the partition's manifest."""
    return Manifest(
        topic="t",
        tp=TopicPartition(TOPIC, 0),
        version=version,
        nonce="n",
        log_start=log_start,
        end=end,
        segments=segments,
    )


@dataclass
class Bucket:
    """The segments that the newest manifest has, ours and others'."""

    segments: list[tuple[SegmentRef, bool]] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Of the manifest."""
        return self.segments[-1][0].end if self.segments else 0

    @property
    def manifest(self) -> Manifest:
        """The newest."""
        return manifest_of(self.end, *(one for one, _ in self.segments))


class AdoptionMachine(RuleBasedStateMachine):
    """One partition: edits whose answers are lost, another leader's edits, keys written."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts = SealAttempts(SealSettings(), lambda: 0.5)
        self.log = log_of()
        self.bucket = Bucket()
        self.sent: list[AddSegments] = []
        self.key_end = 0
        self.count = 0

    def _name(self) -> str:
        self.count += 1
        return f"s{self.count}"

    @precondition(lambda self: self.bucket.end == self.key_end)
    @rule(records=st.integers(1, 3), made=st.booleans(), void=st.booleans())
    def seal(self, records: int, made: bool, void: bool) -> None:
        edit = edit_of(self.key_end, self.key_end + records, self._name())
        self.attempts.sent(self.log, edit)
        if made:
            self.bucket.segments.append((edit.segments[0], True))
        elif void:
            self.attempts.not_made(self.log, edit)

    @precondition(lambda self: self.bucket.end == self.key_end)
    @rule(records=st.integers(1, 3))
    def another_leader_seals(self, records: int) -> None:
        end = self.key_end + records
        self.bucket.segments.append((segment(self.key_end, end, self._name()), False))

    @precondition(lambda self: self.bucket.end > self.key_end and not self.bucket.segments[-1][1])
    @rule()
    def claim_again(self) -> None:
        self.key_end = self.bucket.end
        self.attempts = SealAttempts(SealSettings(), lambda: 0.5)
        self.log = log_of(recovered_end=self.key_end)

    @precondition(lambda self: self.bucket.end > self.key_end and self.bucket.segments[-1][1])
    @rule()
    def adopt(self) -> None:
        self.key_end = self.bucket.end
        self.attempts.key_written(self.log)

    @invariant()
    def only_our_own_edit_is_adopted(self) -> None:
        if self.bucket.end > self.key_end:
            ours = self.bucket.segments[-1][1]
            assert ours == self.attempts.adopts(self.log, self.bucket.manifest)


TestAdoption = AdoptionMachine.TestCase


def test_a_manifest_within_the_log_of_the_takeover_is_adopted_whatever_wrote_it() -> None:
    """Its records are in the log."""
    attempts = SealAttempts(SealSettings(), lambda: 0.5)
    log = log_of(recovered_end=10)

    adopted = [attempts.adopts(log, manifest_of(end)) for end in (10, 11)]

    assert [True, False] == adopted


def test_segments_that_a_job_put_in_the_place_of_ours_are_known_by_the_producer_snapshot() -> None:
    """
    The versions in between may be collected; another leader's snapshot has another key.
    """
    attempts = SealAttempts(SealSettings(), lambda: 0)
    log = log_of()
    ours, theirs = ProducerSnapshotRef(5, "ours"), ProducerSnapshotRef(5, "theirs")
    attempts.sent(log, replace(edit_of(0, 5, "ours"), producers=ours))
    merged = manifest_of(5, segment(0, 5, "merged"))
    assert attempts.adopts(log, replace(merged, producers=ours))
    assert not attempts.adopts(log, replace(merged, producers=theirs))
    assert not attempts.adopts(log, merged)


def test_one_attempt_adopts_then_adds_then_moves_log_start() -> None:
    """Each step makes the next one possible; with nothing to do it ends."""
    attempts = SealAttempts(SealSettings(), lambda: 0.5)
    log = log_of(recovered_end=5)
    log.sealed_end, log.log_start = 3, 4
    steps = [attempts.next_step(log, manifest_of(5), 8)]
    log.sealed_end = 5
    steps.append(attempts.next_step(log, manifest_of(5), 8))
    log.sealed_end = 8
    steps.append(attempts.next_step(log, manifest_of(8), 8))
    steps.append(attempts.next_step(log, manifest_of(8, log_start=4), 8))

    assert [
        SealStep.WRITE_KEY,
        SealStep.ADD_SEGMENTS,
        SealStep.MOVE_LOG_START,
        SealStep.NOTHING,
    ] == steps


def test_records_of_another_leader_end_the_attempt() -> None:
    """And so does a manifest that lacks sealed records."""
    attempts = SealAttempts(SealSettings(), lambda: 0.5)
    log = log_of(recovered_end=5)

    assert SealStep.CHECK_LEADER is attempts.next_step(log, manifest_of(6), 8)
    with pytest.raises(CorruptManifestError, match="ends at 4"):
        attempts.next_step(log, manifest_of(4), 8)


def test_a_blocked_partition_is_tried_again_when_it_is_due_and_reported_once_a_minute() -> None:
    """Not at once, or a bucket that lacks an object is asked for it all the time."""
    attempts = SealAttempts(SealSettings(), lambda: 1.0)
    log = log_of()
    reported = [attempts.blocked(log, "missing", ms) for ms in (0.0, 1_000.0, 61_000.0)]
    early = list(attempts.repeated_ends(log, None, None, 61_001.0))
    due = list(attempts.repeated_ends(log, None, None, 130_000.0))

    assert [True, False, True] == reported
    assert ([], [0]) == (early, due)
    assert "missing" == log.damage


def test_a_blocked_partition_whose_log_start_moved_is_attempted_for_both() -> None:
    """What is deleted is deleted in the bucket too, while its records cannot be sealed."""
    attempts = SealAttempts(SealSettings(), lambda: 1.0)
    log = log_of(recovered_end=4)
    log.high_watermark, log.log_start = 8, 2
    attempts.blocked(log, "missing", 0.0)

    assert [8, 0] == list(attempts.repeated_ends(log, None, manifest_of(4), 130_000.0))


def test_a_success_ends_the_damage() -> None:
    """The partition takes records again, and is due by its size and age."""
    attempts = SealAttempts(SealSettings(), lambda: 1.0)
    log = log_of()
    attempts.blocked(log, "missing", 0.0)
    log.full = True

    assert [True, False] == [attempts.succeeded(log), attempts.succeeded(log)]
    assert ("", False, False) == (log.damage, log.full, attempts.is_blocked(log))


def test_a_closed_partition_is_not_blocked() -> None:
    """Its topic was deleted: its objects go."""
    attempts = SealAttempts(SealSettings(), lambda: 1.0)
    log = log_of()
    log.close()

    assert not attempts.blocked(log, "missing", 0.0)
    assert not attempts.is_blocked(log)


def test_damaged_partitions_take_no_more_above_their_bounds() -> None:
    """Each is reported once."""
    settings = SealSettings(unsealed_bytes=100, unsealed_bytes_per_partition=0)
    attempts = SealAttempts(settings, lambda: 1.0)
    log, other = log_of(), log_of()
    log.damage = "missing"
    log.unsealed_bytes, other.unsealed_bytes = 101, 1_000

    first, again = attempts.newly_full([log, other]), attempts.newly_full([log, other])
    full = log.full, other.full
    log.unsealed_bytes = 99
    attempts.newly_full([log, other])

    assert ([log], []) == (first, again)
    assert (True, False) == full
    assert not log.full


def test_a_manifest_below_log_start_is_worth_an_attempt() -> None:
    """Only where log start is above that of the manifest, and there is a manifest."""
    log = log_of()
    log.log_start = 5
    states = [is_behind(log, manifest_of(10, log_start=n)) for n in (4, 5)]
    not_read = is_behind(log, None)
    log.state = State.OFFLINE

    assert ([True, False], True, False) == (states, not_read, is_behind(log, None))
