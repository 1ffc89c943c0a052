"""A process notices that its metadata store was restored, and takes nothing else for it."""

from driftlog_metadata.witness.witness import WENT_BACK, StoreWitness

HOUR_MS = 3_600_000.0
BUMP = 1_000_000_000
"""What etcd's manual advises for ``--bump-revision``."""


class _Process:
    """A witness, and the clock that it is given."""

    def __init__(self) -> None:
        self.now_ms = 5_000.0
        self.witness = StoreWitness(lambda: self.now_ms)

    @property
    def told(self) -> str | None:
        """The event of its evidence."""
        evidence = self.witness.evidence
        return None if evidence is None else evidence.event

    def answer(self, revision: int, takes_ms: float = 1.0) -> None:
        """A request is sent, and answered at *revision*."""
        asked = self.witness.asked()
        self.now_ms += takes_ms
        self.witness.answered(asked, revision)


def test_a_leap_of_revisions_is_a_restore() -> None:
    """
    By an answer, or by the event of a watch; at once, or after an outage of a day.
    """
    answers, watches, late = _Process(), _Process(), _Process()
    for process in (answers, watches, late):
        process.answer(1_000)
        process.now_ms += 10_000
    late.now_ms += 24 * HOUR_MS

    answers.answer(1_000 + BUMP)
    watches.witness.saw(1_001 + BUMP)
    late.answer(1_000 + BUMP)

    assert [WENT_BACK] * 3 == [answers.told, watches.told, late.told]


def test_the_first_answer_is_never_a_leap() -> None:
    """
    A process that has seen nothing yet accepts the store as it is.
    """
    process = _Process()

    process.answer(7 * BUMP)
    process.answer(7 * BUMP + 1)

    assert process.told is None


def test_a_process_that_was_away_for_hours_from_a_busy_store_goes_on() -> None:
    """
    Suspended, or cut off; its request may have been sent before that, and its watch begins with
    what was written long ago.
    """
    a_day = int(24 * HOUR_MS) * 5
    suspended, meanwhile, behind = _Process(), _Process(), _Process()
    for process in (suspended, meanwhile, behind):
        process.answer(1_000)

    suspended.now_ms += 24 * HOUR_MS
    suspended.answer(1_000 + a_day)
    meanwhile.answer(1_000 + a_day, takes_ms=24 * HOUR_MS)
    behind.now_ms += 24 * HOUR_MS
    behind.witness.saw(1_001)
    behind.answer(1_000 + a_day)

    assert [None] * 3 == [suspended.told, meanwhile.told, behind.told]


def test_an_answer_that_comes_last_and_was_told_first_counts_for_nothing() -> None:
    """
    What was told further on, and later, stays what the next answer is held against.
    """
    process = _Process()
    process.answer(1_000)
    old = process.witness.asked()
    process.now_ms += HOUR_MS
    process.answer(20_000_000)

    process.witness.answered(old, 1_001)
    process.answer(20_000_001 + BUMP // 5)

    assert WENT_BACK == process.told
