"""Bars of a histogram fit the terminal and show every record.

If it failed: a chart would break its lines, or hide a partition's few records.
"""

from driftlog_spark_reader.jobs.chart import (
    Histogram,
    bar,
    bucket_width,
    columns_for_bars,
    lines,
    moment,
)


def test_all_lines_are_as_wide_as_asked_for() -> None:
    """
    All partitions have one scale.
    """
    columns = columns_for_bars(40, [0, 10], 1_234)
    counts = {0: [1] * columns, 10: [0] * (columns - 1) + [1_234]}
    drawn = list(lines(Histogram(0, 1000, columns, counts)))

    assert columns == 40 - 2 - 5 - 4
    assert 40 == len(drawn[1])
    assert drawn[0].startswith(" 0  ▁▁")
    assert drawn[1] == f"10  {' ' * (columns - 1)}█  1,234"


def test_one_record_is_visible_beside_a_million() -> None:
    """
    None is not.
    """
    assert ("▁", " ", "█") == (bar(1, 10**6), bar(0, 10**6), bar(10**6, 10**6))


def test_buckets_hold_the_last_record() -> None:
    """
    At most as many as asked for.
    """
    for start, last, buckets in [(0, 0, 10), (0, 99, 10), (0, 100, 10), (5, 7, 1)]:
        width = bucket_width(start, last, buckets)
        assert (last - start) // width < buckets
    assert 1 == bucket_width(0, 0, 10)


def test_times_that_no_calendar_has_are_numbers() -> None:
    """
    Producers choose timestamps.
    """
    assert ("1970-01-01 00:00:01", f"{2**62} ms") == (moment(1_000), moment(2**62))
