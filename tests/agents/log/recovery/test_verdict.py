"""What becomes of a buffered batch, as a table; and that the rules never contradict each other."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.log.recovery.verdict import (
    BufferedBatch,
    CommittedLog,
    Verdict,
    has,
    judge,
    why_not_appended,
)

ONE, ALL = True, False
ALONE, OTHERS_LED = True, False
"""Whether sessions of this disk alone have led since."""

U, I, A, S, D = Verdict.UNKNOWN, Verdict.IN_LOG, Verdict.APPEND, Verdict.SET_ASIDE, Verdict.DROP  # noqa: E741
X = Verdict.DELETED

LOG = CommittedLog([(0, 0), (3, 10)], 0, 20)
"""Leader epoch 0 wrote offsets 0 to 9, epoch 3 those from 10 on; the log ends at 20."""
TAIL = CommittedLog([(3, 10)], 0, 20)
"""The same, where the manifest, which has what is below 10, was not asked."""
EMPTY = CommittedLog([], 0, 0)
FORGOTTEN = CommittedLog([], 0, 20)
"""Nothing says who wrote what is there."""
TRIMMED = CommittedLog([(7, 1000), (9, 1500)], 1000, 2000)
"""Records below 1000 are deleted, and the epochs below that are forgotten."""
TO_BE_TRIMMED = CommittedLog([(5, 0), (7, 400), (9, 1500)], 1000, 2000)
"""The same, before the manifest forgets."""

TABLE = [
    # what is committed, (leader epoch, offset, acks=1), who led since, verdict
    (None, (3, 15, ONE), ALONE, U),
    (None, (3, 15, ALL), OTHERS_LED, U),
    (LOG, (3, 15, ONE), ALONE, I),
    (LOG, (3, 15, ALL), OTHERS_LED, I),
    (LOG, (0, 9, ONE), OTHERS_LED, I),
    # at the end, in the newest epoch or a newer one: it follows
    (LOG, (3, 20, ONE), ALONE, A),
    (LOG, (3, 20, ALL), ALONE, A),
    (LOG, (5, 20, ONE), ALONE, A),
    (EMPTY, (0, 0, ALL), ALONE, A),
    # at the end, and another agent has led: its own are promised these offsets
    (LOG, (3, 20, ONE), OTHERS_LED, S),
    (LOG, (3, 20, ALL), OTHERS_LED, D),
    # its epoch is over: what stands at its offset is of a later one
    (LOG, (0, 10, ONE), ALONE, S),
    (LOG, (0, 19, ONE), OTHERS_LED, S),
    (LOG, (0, 20, ONE), ALONE, S),
    (LOG, (0, 10, ALL), OTHERS_LED, D),
    (LOG, (1, 12, ONE), OTHERS_LED, S),
    # what stands at its offset is of an earlier one: a start could not note that it has no place
    (LOG, (4, 15, ONE), ALONE, S),
    (LOG, (1, 9, ONE), ALONE, S),
    # behind a gap
    (LOG, (3, 21, ONE), ALONE, S),
    (LOG, (3, 21, ALL), ALONE, D),
    (EMPTY, (0, 1, ONE), ALONE, S),
    # below the first epoch that is known: of that one, or of an older one, of which nothing tells
    (TAIL, (0, 9, ONE), OTHERS_LED, S),
    (TAIL, (0, 9, ALL), OTHERS_LED, D),
    (TAIL, (0, 9, ONE), ALONE, S),
    (TAIL, (3, 9, ONE), OTHERS_LED, I),
    (TAIL, (4, 9, ONE), OTHERS_LED, S),
    (FORGOTTEN, (7, 19, ONE), OTHERS_LED, I),
    (FORGOTTEN, (7, 20, ONE), ALONE, A),
    # below log start: of an older epoch than the first one that is known, nothing tells
    (TRIMMED, (5, 500, ONE), OTHERS_LED, X),
    (TRIMMED, (5, 500, ONE), ALONE, X),
    (TRIMMED, (5, 999, ALL), OTHERS_LED, X),
    (TRIMMED, (7, 500, ONE), OTHERS_LED, I),
    (TRIMMED, (8, 500, ONE), OTHERS_LED, S),
    (TRIMMED, (5, 1000, ONE), OTHERS_LED, S),
    (TRIMMED, (7, 1000, ONE), OTHERS_LED, I),
    # below log start, and the epochs tell it still
    (TO_BE_TRIMMED, (5, 399, ONE), OTHERS_LED, I),
    (TO_BE_TRIMMED, (5, 500, ONE), OTHERS_LED, S),
    (TO_BE_TRIMMED, (7, 500, ONE), OTHERS_LED, I),
]


@pytest.mark.parametrize(("log", "batch", "continues", "expected"), TABLE)
def test_a_buffered_batch_is_judged_by_what_is_committed(
    log: CommittedLog | None, batch: tuple[int, int, bool], continues: bool, expected: Verdict
) -> None:
    """
    A batch is in the log, appended, set aside, dropped or waits: one of them, and this one.
    """
    assert expected == judge(BufferedBatch(*batch), log, continues=continues)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ((0, 19, ONE), "a later leader took their offsets"),
        ((3, 22, ONE), "earlier records are not on this disk"),
        ((4, 15, ONE), "other records have their offsets"),
    ],
)
def test_a_batch_that_is_not_appended_has_a_reason(
    batch: tuple[int, int, bool], expected: str
) -> None:
    """
    The log line tells a damaged disk from a later leader.
    """
    assert why_not_appended(BufferedBatch(*batch), LOG).startswith(expected)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[BufferedBatch]]:
    """Terms of leaders, each of which assigns offsets from the committed end on and commits some
    of them: (epoch, offset) of what is committed, and all that was ever buffered."""
    committed: list[tuple[int, int]] = []
    buffered: list[BufferedBatch] = []
    for epoch in range(draw(st.integers(1, 5))):
        base = len(committed)
        admitted = draw(st.integers(0, 4))
        buffered += [BufferedBatch(epoch, base + n, draw(st.booleans())) for n in range(admitted)]
        committed += [(epoch, base + n) for n in range(draw(st.integers(0, admitted)))]
    return committed, buffered


def epochs_of(committed: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The log's epochs, with the offsets at which they start."""
    starts: dict[int, int] = {}
    for epoch, offset in committed:
        starts.setdefault(epoch, offset)
    return list(starts.items())


@given(histories())
def test_a_batch_is_set_aside_exactly_if_it_was_promised_and_is_not_committed(
    history: tuple[list[tuple[int, int]], list[BufferedBatch]],
) -> None:
    """
    Whatever leaders came and went: no promise is forgotten, and nothing that is in the log would
    be produced a second time.
    """
    committed, buffered = history
    log = CommittedLog(epochs_of(committed), 0, len(committed))

    aside = [b for b in buffered if judge(b, log, continues=False) is Verdict.SET_ASIDE]

    there = set(committed)
    lost = [b for b in buffered if (b.leader_epoch, b.base_offset) not in there]
    assert [b for b in lost if b.acks_one] == aside
    assert [b for b in buffered if b not in lost] == [b for b in buffered if has(log, b)]


@given(histories(), st.integers(0, 20))
def test_no_deletion_makes_a_promise_go_silently(
    history: tuple[list[tuple[int, int]], list[BufferedBatch]], log_start: int
) -> None:
    """
    Wherever log start is, and whatever epochs it made the log forget: what is not in the log is
    set aside or counted as deleted, and nothing that is, or was, in the log is set aside.
    """
    committed, buffered = history
    log_start = min(log_start, len(committed))
    epochs = epochs_of(committed)
    before = [(epoch, log_start) for epoch, start in epochs if start <= log_start]
    known = [*before[-1:], *(entry for entry in epochs if entry[1] > log_start)]
    log = CommittedLog(known, log_start, len(committed))

    for batch in buffered:
        verdict = judge(batch, log, continues=False)

        if (batch.leader_epoch, batch.base_offset) in committed:
            assert verdict in (I, X)
        else:
            assert verdict in ((S, X) if batch.acks_one else (D, X))
        assert verdict is not X or batch.base_offset < log_start
