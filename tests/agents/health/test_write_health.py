"""An agent that cannot commit steps down by this rule, and no healthy agent does."""

import pytest

from driftlog_agents.health.write_health import HealthStep, WriteHealth, WriteHealthSettings

SETTINGS = WriteHealthSettings()
SECOND = 1_000.0


def seconds_until_it_steps_down(
    *, heads: dict[float, dict[str, int] | None], ends: tuple[float, ...] = (), until: float = 300
) -> float | None:
    """Of failing from second 0 on.  *heads*: what a look finds from each second on; *ends*: when
    something was committed in between."""
    fitness = WriteHealth(SETTINGS)
    now, since = 0.0, 0.0
    while now < until:
        now += 1
        if now in ends:
            assert fitness.tick(None, now * SECOND) is HealthStep.NOTHING
            since = now
            continue
        step = fitness.tick(since * SECOND, now * SECOND)
        if step is HealthStep.LOOK:
            found = heads[max(at for at in heads if at <= now)]
            fitness.looked(found, now * SECOND)
        elif step is HealthStep.STEP_DOWN:
            assert fitness.unfit
            return now
        assert not fitness.unfit
    return None


def moving(begin: int, end: int, every: int = 1) -> dict[float, dict[str, int] | None]:
    """One other session that commits from second *begin* to *end*."""
    return {float(at): {"b": at // every} for at in range(begin, end)}


def test_it_steps_down_after_half_a_minute_in_which_others_could() -> None:
    """
    Not sooner, and not much later.
    """
    took = seconds_until_it_steps_down(heads=moving(0, 300))

    assert took is not None
    assert 30 <= took <= 31


@pytest.mark.parametrize(
    "heads",
    [
        pytest.param({0.0: {}}, id="nobody else lives"),
        pytest.param({0.0: {"b": 7, "c": 0}}, id="nobody else commits"),
        pytest.param({0.0: None}, id="the metadata store does not say"),
        pytest.param({0.0: {}, 27.0: {"b": 7}}, id="somebody has come since, and commits nothing"),
        pytest.param({0.0: {"b": 7}, 27.0: {"b": -1}}, id="another's head was closed"),
    ],
)
def test_it_goes_on_while_it_is_not_known_that_others_can(
    heads: dict[float, dict[str, int] | None],
) -> None:
    """
    Stepping down helps nobody then.
    """
    assert seconds_until_it_steps_down(heads=heads) is None


def test_others_that_could_a_while_ago_do_not_count() -> None:
    """
    They committed when this one failed already; then the store went down for all.
    """
    heads: dict[float, dict[str, int] | None] = {**moving(0, 14)}

    assert seconds_until_it_steps_down(heads=heads) is None


def test_others_that_can_again_count_from_then_on() -> None:
    """
    The store was down for all for two minutes; for this one it stays so.
    """
    took = seconds_until_it_steps_down(heads={0.0: {"b": 5}, **moving(120, 300)})

    assert took is not None
    assert 120 <= took <= 131


def test_whoever_commits_now_and_then_stays() -> None:
    """
    A commit begins the half minute anew, and what was seen of others with it.
    """
    ends = tuple(float(at) for at in range(25, 300, 25))

    assert seconds_until_it_steps_down(heads=moving(0, 300), ends=ends) is None


def test_probes_come_later_and_later_until_it_has_been_fit_for_long() -> None:
    """
    What is well for a moment only must not take partitions every moment.
    """
    fitness, now = WriteHealth(SETTINGS), 1_000 * SECOND
    waits = []
    for _ in range(8):
        fitness.step_down(now)
        waits.append(fitness.wait_ms / SECOND)
        fitness.probed(now, succeeded=True)
        assert not fitness.unfit
        now += 60 * SECOND
    fitness.step_down(now + SETTINGS.proven_ms)

    assert [1, 2, 4, 8, 16, 32, 60, 60] == waits
    assert SETTINGS.probe_ms == fitness.wait_ms
    fitness.probed(now, succeeded=False)
    assert fitness.unfit
