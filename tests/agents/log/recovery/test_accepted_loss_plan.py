"""The plan of an accepted loss is exact, against a model that has a record for each offset.

The model is held to bugs that are planted: ranges that are one offset too short or too long, and
too few offsets skipped.
"""

from collections.abc import Callable

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from driftlog_agents.log.recovery import accepted_loss_plan as loss_plan
from driftlog_agents.log.recovery.accepted_loss_plan import (
    UNKNOWN_RECORDS,
    FoundSlice,
    LogPiece,
    LossPlan,
    plan_loss,
)


def plan(
    slices: list[tuple[int, int]],
    *,
    key_end: int = 0,
    manifest_end: int = 0,
    lost: list[str] | None = None,
    unnamed_end: int = 0,
) -> LossPlan:
    return plan_loss(
        key_end=key_end,
        manifest_end=manifest_end,
        slices=[FoundSlice(*bounds) for bounds in slices],
        lost=lost or [],
        unnamed_end=unnamed_end,
        missing_keys=[],
    )


def test_a_log_that_joins_has_lost_nothing() -> None:
    """
    Also where the manifest is ahead of the key, and of a slice that is sealed in part.
    """
    found = plan([(0, 4), (4, 9)], key_end=1, manifest_end=6)

    assert ((), (), 9, False) == (found.reasons, found.lost, found.goes_on_at, found.seals)


def test_an_object_that_is_gone_may_have_held_anything() -> None:
    """
    Objects are rewritten and sessions take turns: neither its name nor a gap says where its records
    stood, so none of the offsets that it can have held is given out again.
    """
    found = plan([(0, 4), (4, 9)], lost=["one", "two"])
    assert ((9, 9 + 2 * UNKNOWN_RECORDS),) == found.lost
    assert ("one", "two") == found.objects
    found = plan([(0, 4), (6, 9)], lost=["one"])

    assert ((4, 6), (9, 9 + UNKNOWN_RECORDS)) == found.lost
    assert "one is missing or damaged: its records are lost, at unknown offsets" in found.reasons


def test_what_the_bucket_shows_of_a_newer_store_is_given_to_nobody() -> None:
    """
    The manifest is kept, and offsets begin behind what no record names.
    """
    found = plan([(0, 4)], manifest_end=8, unnamed_end=11)

    assert (((8, 11),), 11, 8) == (found.lost, found.goes_on_at, found.start)


def test_slices_that_join_are_one_piece() -> None:
    """
    They are sealed together, in as few segments as their bytes need.
    """
    found = plan([(0, 4), (4, 9), (9, 10), (12, 13), (13, 14)], key_end=2)

    assert [(2, 10, False), (10, 12, True), (12, 14, False)] == list(found.pieces)


@pytest.mark.parametrize("slices", [[(0, 4), (3, 9)], [(0, 9), (4, 9)]])
def test_slices_that_overlap_are_refused(slices: list[tuple[int, int]]) -> None:
    """
    Nobody can say which of two records is the log's.
    """
    with pytest.raises(ValueError, match="overlaps"):
        plan(slices)


LOGS = (
    st.lists(st.integers(1, 5), max_size=12),
    st.sets(st.integers(0, 11)),
    st.integers(0, 60),
    st.integers(0, 20),
    st.integers(0, 2),
)
"""Sizes of slices, those that are gone, the sealed end, what is shown beside, objects gone."""


@given(*LOGS)
def test_what_is_kept_and_what_is_lost_is_the_log(
    sizes: list[int], gone: set[int], sealed: int, unnamed: int, objects: int
) -> None:
    """
    Each offset from the start to where the log goes on is in one piece: kept exactly if a slice
    has it; and nothing that was ever given out is given out again, an object that is gone may have
    had a batch of the largest size behind all that is known.
    """
    check_plan(sizes, gone, sealed, unnamed, objects)


def check_plan(sizes: list[int], gone: set[int], sealed: int, unnamed: int, objects: int) -> None:
    bounds, end = [], 0
    for size in sizes:
        bounds.append((end, end + size))
        end += size
    sealed = min(sealed, end)
    there = [one for number, one in enumerate(bounds) if number not in gone]
    shown = max((last for _, last in there), default=0)

    lost = ["one", "two"][:objects]
    found = plan(there, key_end=sealed, manifest_end=sealed, unnamed_end=unnamed, lost=lost)

    known = max(sealed, shown, unnamed)
    kept = {at for base, last in there for at in range(base, last) if at >= sealed}
    pieces = [(p.base, min(p.end, known), p.lost) for p in found.pieces]
    covered = [(at, is_lost) for base, last, is_lost in pieces for at in range(base, last)]
    assert [at for at, _ in covered] == list(range(sealed, known))
    assert kept == {at for at, is_lost in covered if not is_lost}
    assert found.goes_on_at == known + 2**31 * objects


def shifted(lost: bool, base: int, end: int) -> Callable[[int, int, bool], LogPiece]:
    """Ranges that are *lost*, or kept, begin and end so many offsets too late."""

    wanted = lost

    def piece(first: int, last: int, lost: bool) -> LogPiece:
        return LogPiece(first + base * (lost is wanted), last + end * (lost is wanted), lost)

    return piece


def assert_noticed() -> None:
    """The property does not hold."""
    quick = settings(database=None, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises(AssertionError):
        quick(given(*LOGS)(check_plan))()


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize(("base", "end"), [(0, -1), (0, 1), (-1, 0), (1, 0)])
def test_ranges_that_are_one_too_short_or_too_long_are_noticed(
    lost: bool, base: int, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A record that is there would be given up, or an offset given out again.
    """
    monkeypatch.setattr(loss_plan, "LogPiece", shifted(lost, base, end))

    assert_noticed()


@pytest.mark.parametrize("skipped", [2**31 - 1, 0])
def test_too_few_skipped_offsets_are_noticed(skipped: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    An object that is gone can have held more.
    """
    monkeypatch.setattr(loss_plan, "UNKNOWN_RECORDS", skipped)

    assert_noticed()


def test_what_the_bucket_shows_and_is_not_skipped_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Its offsets were given out under a store that was lost.
    """
    original = plan_loss
    monkeypatch.setitem(globals(), "plan_loss", lambda **of: original(**of | {"unnamed_end": 0}))

    assert_noticed()
