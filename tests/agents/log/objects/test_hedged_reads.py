"""A late read is asked once more, and the first answer of the two is taken."""

import asyncio
from collections.abc import Sequence

import pytest

from driftlog_agents.log.objects.hedged_reads import HedgedReads, hedged
from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_tiering.stores.object_store import NotFoundError
from tests.agents.log.lives import now_ms, on_virtual_time

LATE_S = 1.0


class Asked:
    """Each call takes so many seconds (None: it is not answered), and returns or raises."""

    def __init__(self, *fates: tuple[float | None, str | Exception]) -> None:
        self._fates: Sequence[tuple[float | None, str | Exception]] = fates
        self.calls = 0
        self.given_up = 0

    async def ask(self) -> str:
        seconds, answer = self._fates[self.calls]
        self.calls += 1
        try:
            await (asyncio.Event().wait() if seconds is None else asyncio.sleep(seconds))
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("fates", "answer", "seconds", "calls", "given_up"),
    [
        ([(0.9, "a")], "a", 0.9, 1, 0),
        ([(None, ""), (0.1, "b")], "b", 1.1, 2, 1),
        ([(1.5, "a"), (None, "")], "a", 1.5, 2, 1),
        ([(1.5, "a"), (0.1, UnavailableError("503"))], "a", 1.5, 2, 0),
        ([(1.5, OutcomeUnknownError("reset")), (3.0, "b")], "b", 4.0, 2, 0),
    ],
)
@on_virtual_time
async def test_the_first_answer_counts(
    fates: list[tuple[float | None, str | Exception]],
    answer: str,
    seconds: float,
    calls: int,
    given_up: int,
) -> None:
    """
    In time, late, lost, and where one of the two is refused.
    """
    asked, began = Asked(*fates), now_ms()

    assert answer == await hedged(asked.ask, LATE_S)

    assert seconds * 1000 == pytest.approx(now_ms() - began)
    assert (calls, given_up) == (asked.calls, asked.given_up)


@on_virtual_time
async def test_a_refusal_in_time_is_the_callers_to_repeat() -> None:
    """
    And two are told as one of them; that an object is not there is an answer.
    """
    asked = Asked((0.1, UnavailableError("503")))
    with pytest.raises(UnavailableError):
        await hedged(asked.ask, LATE_S)
    assert 1 == asked.calls

    asked = Asked((2.0, UnavailableError("first")), (0.5, UnavailableError("second")))
    with pytest.raises(UnavailableError):
        await hedged(asked.ask, LATE_S)

    asked = Asked((None, ""), (0.1, NotFoundError("k")))
    with pytest.raises(NotFoundError):
        await hedged(asked.ask, LATE_S)


@on_virtual_time
async def test_who_gives_up_leaves_nothing_behind() -> None:
    """
    A deadline around it ends both.
    """
    asked = Asked((None, ""), (None, ""))

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await hedged(asked.ask, LATE_S)

    assert (2, 2) == (asked.calls, asked.given_up)


@on_virtual_time
async def test_where_all_are_slow_few_are_asked_for_twice() -> None:
    """
    One in twenty at most, whatever the store takes: twice the requests would make it slower.  One
    that takes four times as long is taken for lost, and asked for at once where all else is quick.
    """
    reads = HedgedReads(now_ms, late_s=LATE_S)
    calls = 0

    async def slow(seconds: float) -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(seconds)

    for _ in range(100):
        await reads.read(lambda: slow(3.0))
    assert calls <= 20 + 100 * 1.1

    for _ in range(300):
        await reads.read(lambda: slow(0.05))
    lost = Asked((None, ""), (0.1, "b"))
    began = now_ms()
    assert "b" == await reads.read(lost.ask)
    assert 1_100 == pytest.approx(now_ms() - began)
