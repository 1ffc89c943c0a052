"""If it broke, an object that is back would not be read again, a missing one would be requested all
the time, or a partition would move because one request got no answer."""

from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.log.objects.availability import (
    FIRST_WAIT_MS,
    LEAST_REQUESTS,
    LONGEST_WAIT_MS,
    READ_DEADLINE_MS,
    Availability,
    FailedRequests,
    ReadVerdict,
)


def missed() -> Availability[str]:
    return Availability[str](lambda: 1.0)


def test_waits_double_up_to_a_minute() -> None:
    """
    An object that is gone for good costs few requests, and one that is back is read soon.
    """
    missing, now_ms, waits = missed(), 0.0, []
    for _ in range(9):
        missing.failed("a", now_ms)
        waits.append(missing.due_ms("a") - now_ms)
        assert missing.waits("a", missing.due_ms("a") - 1)
        now_ms = missing.due_ms("a")
        assert not missing.waits("a", now_ms)

    assert [min(FIRST_WAIT_MS * 2**i, LONGEST_WAIT_MS) for i in range(9)] == waits


def test_an_object_that_is_found_or_not_needed_is_forgotten() -> None:
    """
    Its next failure begins with the first wait.
    """
    missing = missed()
    for what in ("a", "b"):
        missing.failed(what, 0)
        missing.failed(what, 1_000)

    assert missing.found("a")
    missing.keep_only(lambda what: what != "b")

    assert not len(missing)
    assert not missing.found("a")
    assert 0 == missing.lasted_ms("b", 5_000)
    missing.failed("b", 5_000)
    assert 5_000 + FIRST_WAIT_MS == missing.due_ms("b")


def test_an_unreadable_object_is_logged_at_first_and_once_a_minute() -> None:
    """
    An operator sees each of them, and the log does not fill.
    """
    missing = missed()

    said = [now_ms for now_ms in range(0, 180_000, 5_000) if missing.failed("a", now_ms)]

    assert [0, 60_000, 120_000] == said


def test_objects_that_fail_together_are_due_together() -> None:
    """
    One try serves all partitions that need the same object.
    """
    rolls = iter((0.1, 0.9))
    missing = Availability[str](lambda: next(rolls))

    assert ["a", "b"] == missing.failed_all(("a", "b"), 0)
    assert missing.due_ms("a") == missing.due_ms("b")


def test_an_entry_that_was_not_tried_for_long_begins_anew() -> None:
    """
    How long the object was missing before says nothing then.
    """
    missing = missed()
    missing.failed("a", 0)

    assert missing.failed("a", 10_000_000)
    assert 0 == missing.lasted_ms("a", 10_000_000)


@given(
    failures=st.lists(
        st.tuples(st.floats(0, 3_000), st.booleans(), st.booleans()), min_size=1, max_size=12
    )
)
def test_an_object_is_unavailable_only_after_the_deadline_and_if_the_bucket_answers(
    failures: list[tuple[float, bool, bool]],
) -> None:
    """
    Of each failure: ms since the last one, whether it was an answer, whether a probe succeeds.  The
    bucket has answered: that there is no such object, or a probe before.
    """
    read, now_ms, probed = FailedRequests(), 0.0, False
    first_ms = failures[0][0]
    for number, (after_ms, answered, probe_succeeds) in enumerate(failures, 1):
        now_ms += after_ms
        verdict = read.failed(now_ms, answered=answered)

        early = number < LEAST_REQUESTS or now_ms < first_ms + READ_DEADLINE_MS
        if early:
            assert ReadVerdict.REPEAT is verdict
        else:
            assert (ReadVerdict.UNAVAILABLE if answered or probed else ReadVerdict.PROBE) is verdict
        if verdict is ReadVerdict.UNAVAILABLE:
            return
        if verdict is ReadVerdict.PROBE:
            read.bucket_answers = probed = probe_succeeds
