"""A batch that is appended out of order, twice, or refused for ever fails here.

Pure.
"""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from driftlog_agents.log.ingest.admission_verdict import (
    SETTLED_MS,
    check_follows,
    is_new,
    judge,
    parks,
    refused,
)
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.protocol.errors import ErrorCode, RefusedError

PRODUCER = 7


def log_of(state: State = State.ONLINE) -> PartitionLog:
    """A led partition without records."""
    log = PartitionLog(topic="t", topic_id=UUID(int=1), partition=0, leader_epoch=1)
    log.state = state
    return log


def batch(sequence: int, *, records: int = 1, producer: int = PRODUCER) -> Any:
    """The header fields of a batch."""
    epoch = 0 if producer >= 0 else -1
    return records, 0, producer, epoch, sequence, 0, 0


def code_of(log: PartitionLog, checked: Any, now_ms: float = 0.0) -> ErrorCode | None:
    """The error of a batch, under a session that is valid until 10^9."""
    try:
        judge(log, checked, now_ms, 1e9)
    except RefusedError as error:
        return error.code
    return None


class AdmissionMachine(RuleBasedStateMachine):
    """One idempotent producer that sends its batches in order, some of which are refused for a
    moment, and sends each again later: two are in flight at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.log = log_of()
        self.now_ms = 0.0
        self.log_sequences: list[int] = []
        self.sent = 0
        """Sequence of the oldest batch without an answer."""

    def _admit(self, sequence: int, *, refuses: bool) -> None:
        log, checked = self.log, batch(sequence)
        try:
            if judge(log, checked, self.now_ms, 1e9) is not None:
                return
            if refuses:
                raise refused(log, PRODUCER, self.now_ms, ErrorCode.NOT_ENOUGH_REPLICAS, "quota")
            check_follows(log, PRODUCER, sequence, self.now_ms)
        except RefusedError:
            return
        log.append(1, PRODUCER, 0, sequence, self.now_ms)
        self.log_sequences.append(sequence)

    @rule(refuses=st.lists(st.booleans(), min_size=2, max_size=2))
    def send_two(self, refuses: list[bool]) -> None:
        for n, one in enumerate(refuses):
            self._admit(self.sent + n, refuses=one)
        self.sent = len(self.log_sequences)

    @rule()
    def send_an_old_one_again(self) -> None:
        self._admit(max(self.sent - 1, 0), refuses=False)
        self.sent = max(self.sent, len(self.log_sequences))

    @rule(ms=st.integers(1, int(SETTLED_MS) - 1))
    def wait(self, ms: int) -> None:
        self.now_ms += min(ms, 100)  # a client retries within moments

    @invariant()
    def every_batch_is_in_the_log_once_and_in_order(self) -> None:
        assert list(range(len(self.log_sequences))) == self.log_sequences


TestAdmission = AdmissionMachine.TestCase


@pytest.mark.parametrize(
    ("state", "paused", "now_ms", "expected"),
    [
        (State.ONLINE, False, 0.0, None),
        (State.ONLINE, False, 1e9, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (State.ONLINE, True, 0.0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (State.CLOSED, False, 0.0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (State.OFFLINE, False, 0.0, ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_what_is_not_served_takes_no_batch(
    state: State, paused: bool, now_ms: float, expected: ErrorCode | None
) -> None:
    """Another session may lead the partition when the lease of this one has ended."""
    log = log_of(state)
    log.paused = paused

    assert expected == code_of(log, batch(0), now_ms)


def test_a_batch_waits_until_the_snapshot_can_tell() -> None:
    """Its producer may be in the snapshot alone, or its original may be sealed."""
    log = log_of(State.LOADING)
    log.append(1, PRODUCER, 0, 5, 0.0)

    waits = [
        parks(log, 8, 0, 0, 1),  # unknown
        parks(log, PRODUCER, 0, 9, 1),  # out of order by the footers
        parks(log, PRODUCER, 0, 6, 1),
        parks(log, -1, -1, -1, 1),
    ]
    log.parked.append(lambda: None)

    assert [True, True, False, False] == waits
    assert parks(log, PRODUCER, 0, 6, 1)


@pytest.mark.parametrize(("state", "damage"), [(State.ONLINE, ""), (State.LOADING, "missing")])
def test_a_batch_waits_behind_parked_ones(state: State, damage: str) -> None:
    """The load is over, and they are admitted one after the other."""
    log = log_of(state)
    log.damage = damage
    log.parked.append(lambda: None)
    behind = parks(log, -1, -1, -1, 1)
    log.parked.clear()

    assert (True, False) == (behind, parks(log, -1, -1, -1, 1))


def test_batches_do_not_wait_for_damaged_producers() -> None:
    """They are refused: the object may never come back."""
    log = log_of(State.LOADING)
    log.damage = "missing"

    assert not parks(log, 8, 0, 0, 1)
    assert ErrorCode.KAFKA_STORAGE_ERROR == code_of(log, batch(0))
    assert not log.producers.last_offset(PRODUCER) >= 0
    assert log.refused_ms == SETTLED_MS


def gaps(log: PartitionLog) -> Iterator[ErrorCode | None]:
    """Of batches behind a gap: of an unknown producer, and of a known one."""
    yield code_of(log, batch(3, producer=8))
    yield code_of(log, batch(9))


def test_a_gap_after_a_takeover_is_no_gap_of_the_producer() -> None:
    """The former leader refused what is before it: the client sends all again, in order."""
    log = log_of()
    log.append(1, PRODUCER, 0, 5, 0.0)
    log.start_epoch(2, log.log_end)
    log.settled_ms = 1.0
    early = list(gaps(log))
    log.settled_ms = 0.0

    assert [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2 == early
    assert ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER == code_of(log, batch(9))


def test_a_duplicate_has_its_original() -> None:
    """The answer has the offset of the first."""
    log = log_of()
    log.append(2, PRODUCER, 0, 0, 0.0)

    original = judge(log, batch(0, records=2), 0.0, 1e9)

    assert original is not None
    assert 0 == original.base_offset


def test_a_producer_without_id_follows_nothing() -> None:
    """A refusal holds no batch that has no sequence."""
    log = log_of()
    refused(log, -1, 0.0, ErrorCode.NOT_ENOUGH_REPLICAS, "")

    assert not is_new(log, -1)
    assert 0.0 == log.refused_ms
