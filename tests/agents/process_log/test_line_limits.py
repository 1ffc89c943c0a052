"""Log lines are limited by event and address, and a flood hides no line of the process."""

import tracemalloc

from driftlog_agents.process_log.line_limits import Kind, LineLimits


def test_lines_of_one_event_and_address_are_ten_a_second() -> None:
    """
    What is more is left out and said with its count, by event; other addresses are not touched.
    """
    limits = LineLimits()

    first = sum(limits.admit(Kind.CLIENT, "refused", "10.0.0.1", 5_000) for _ in range(50))
    other = limits.admit(Kind.CLIENT, "refused", "10.0.0.2", 5_000)
    later = sum(limits.admit(Kind.CLIENT, "refused", "10.0.0.1", 6_000) for _ in range(50))

    assert (10, True, 10) == (first, other, later)
    assert {"refused": 80} == limits.summary(6_000)
    assert {} == limits.summary(9_000)
    assert 80 == limits.left_out


def test_a_flood_of_clients_leaves_out_no_line_of_the_process() -> None:
    """
    All clients together have a budget; the process and its errors have others.
    """
    limits = LineLimits()

    flood = sum(limits.admit(Kind.CLIENT, "refused", f"10.0.{n}", 0) for n in range(20_000))
    process = limits.admit(Kind.PROCESS, "segment_sealed", "", 0)
    events = sum(limits.admit(Kind.PROCESS, "topic_created", "", 0) for _ in range(5_000))
    other = limits.admit(Kind.PROCESS, "session_lost", "", 0)
    error = limits.admit(Kind.ERROR, "leftovers_unreadable", "", 0)

    assert 200 == flood
    assert 1_000 == events
    assert process
    assert other
    assert error


def test_what_is_remembered_is_bounded() -> None:
    """
    A million addresses share what there is until some have been silent.
    """
    limits, sizes = LineLimits(), []
    tracemalloc.start()

    for flood in range(4):
        for n in range(flood * 10_000, (flood + 1) * 10_000):
            limits.admit(Kind.CLIENT, f"event {n}", f"address {n}", 0)
        sizes.append(tracemalloc.get_traced_memory()[0])
    told = limits.summary(60_000)
    limits.admit(Kind.CLIENT, "refused", "10.0.0.1", 60_000)
    silent = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert sizes[0] > sizes[3] - 100_000
    assert silent < sizes[0] * 2 / 3
    assert 20 > len(told)


def test_a_clock_that_stands_still_gives_no_lines() -> None:
    """
    Time before the last call counts as none.
    """
    limits = LineLimits(lines_per_second=1)

    given = [limits.admit(Kind.CLIENT, "e", "a", at) for at in (5_000, 5_000, 4_000, 5_999, 6_000)]

    assert [True, False, False, False, True] == given
