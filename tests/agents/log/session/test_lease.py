"""A session that serves after its lease has ended, or that revives, fails here.

Pure.
"""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from driftlog_agents.log.session.lease import SessionLease, SessionSettings
from driftlog_metadata.stores.errors import FencedError
from driftlog_metadata.witness.witness import StoreWitness

TTL_MS = 3_000
SETTINGS = SessionSettings(ttl_ms=TTL_MS, request_deadline_ms=1_000)


def lease() -> SessionLease:
    """An open one, granted at 0."""
    made = SessionLease(SETTINGS, StoreWitness(lambda: 0.0))
    made.renewed(0.0)
    return made


class LeaseMachine(RuleBasedStateMachine):
    """A store counts the lease from when a request arrives; the session from when it was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0.0
        self.witness = StoreWitness(lambda: self.now_ms)
        self.lease = SessionLease(SETTINGS, self.witness)
        self.lease.renewed(0.0)
        self.store_until_ms = float(TTL_MS)
        self.sent_ms: float | None = None
        self.over = False

    @rule(ms=st.integers(1, TTL_MS))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @precondition(lambda self: self.sent_ms is None)
    @rule()
    def send(self) -> None:
        self.sent_ms = self.now_ms

    @precondition(lambda self: self.sent_ms is not None and self.now_ms < self.store_until_ms)
    @rule(answered=st.booleans())
    def arrive(self, answered: bool) -> None:
        assert self.sent_ms is not None
        self.store_until_ms = self.now_ms + TTL_MS
        if answered:
            self.lease.renewed(self.sent_ms)
        self.sent_ms = None

    @rule()
    def end(self) -> None:
        self.lease.end("a test")
        self.over = True

    @rule()
    def store_goes_back(self) -> None:
        self.witness.went_back(2, 1)
        self.over = True

    @invariant()
    def valid_only_while_the_store_keeps_the_lease(self) -> None:
        assert self.lease.valid_until_ms <= self.store_until_ms
        if self.over:
            assert self.lease.valid_until_ms == 0.0

    @invariant()
    def the_check_agrees(self) -> None:
        try:
            self.lease.check(self.now_ms)
        except FencedError:
            lives = False
        else:
            lives = True
        assert lives == (self.now_ms < self.lease.valid_until_ms)


TestLease = LeaseMachine.TestCase


def test_the_first_reason_of_the_end_stays() -> None:
    """Later ends, which follow from the first, do not hide it."""
    made = lease()
    made.end("first")
    made.end("second")

    with pytest.raises(FencedError, match="first"):
        made.check(0.0)


def test_a_keep_alive_is_due_a_third_of_the_ttl_after_the_last_was_sent() -> None:
    """Two more fit into the lease if one is lost."""
    made = lease()

    assert TTL_MS / 3 == made.renewal_in_ms(0.0)
    assert 0.0 == made.renewal_in_ms(2_500.0)


def test_a_grant_that_took_long_is_repeated() -> None:
    """Its first attempt may have begun the lease long ago."""
    made = lease()

    assert [False, True] == [made.must_repeat(0.0, ms) for ms in (1_500.0, 1_501.0)]


def test_a_loop_stands_still_after_a_whole_ttl_without_a_tick() -> None:
    """A loop on which the keep-alives run themselves is never said to stand still."""
    made = lease()
    on_the_loop = made.stood_still_ms(1e9)
    made.ticked(1_000.0)

    assert 0.0 == on_the_loop
    assert [0.0, TTL_MS] == [made.stood_still_ms(ms) for ms in (3_999.0, 4_000.0)]


def test_deadlines_grow_while_the_store_is_slow() -> None:
    """Two timeouts may be lost answers; then up to four times, until an answer comes in time."""
    made = lease()
    deadlines: list[float] = []
    for _ in range(6):
        deadlines.append(made.deadline_ms)
        made.timed_out()
    made.answered(1_500.0)
    deadlines.append(made.deadline_ms)
    made.answered(999.0)

    assert [1_000, 1_000, 1_000, 2_000, 4_000, 4_000, 4_000] == deadlines
    assert 1_000 == made.deadline_ms


@pytest.mark.parametrize(
    ("in_thread", "sent_ms", "expected"),
    [(True, 0, 3_000), (True, 2_900, 1_000), (False, 0, 1_000)],
)
def test_a_thread_gives_a_keep_alive_the_rest_of_the_lease(
    in_thread: bool, sent_ms: float, expected: float
) -> None:
    """Its store tries every endpoint by itself."""
    assert expected == lease().keep_alive_deadline_ms(sent_ms, in_thread=in_thread)
