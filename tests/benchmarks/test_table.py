"""The benchmark table shows what was measured and nothing that was not."""

from benchmarks.table import Row, Sample, at_least, both, cpu_at_most, medians, ratio, render


def test_an_outlier_does_not_move_the_result() -> None:
    """
    Medians, field by field; a field that nobody measured stays unknown.
    """
    samples = [Sample(value=v, cpu_seconds_per_gib=c) for v, c in ((1, 9.0), (100, 2.0), (2, 3.0))]

    assert Sample(value=2, cpu_seconds_per_gib=3.0) == medians(samples)


def test_a_goal_without_a_comparison_is_not_reached() -> None:
    """
    A missing peer makes the answer unknown, never yes.
    """
    assert at_least(Sample(value=5), 1.0, None) is None
    assert cpu_at_most(Sample(value=5), 1.0, Sample(value=1)) is None
    assert both(True, None) is None
    assert both(None, False) is False
    assert ratio(None, Sample(value=1)) is None


def test_an_unknown_goal_prints_as_a_question() -> None:
    """
    Neither yes nor no.
    """
    row = Row(measure="m", unit="u", ours=None, kafka=None, goal="≥ 1", reached=None)

    assert "?" == render([row]).splitlines()[-1].split("|")[-3].strip()
