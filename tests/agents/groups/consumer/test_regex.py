"""A subscription by pattern has exactly the topics that match it, later ones too."""

import gc
import time
from uuid import UUID

import pytest

from driftlog_agents.groups.consumer.regex import PatternMatches, check
from driftlog_agents.groups.sizes import texts_bytes
from driftlog_agents.groups.topic_metadata import ClusterTopics
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from tests.agents.groups.consumer_group import resolve


def named(*names: str) -> ClusterTopics:
    return ClusterTopics(1, [(name, UUID(int=i), 1) for i, name in enumerate(names)])


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("orders-.*", {"orders-eu", "orders-"}),
        ("orders", set()),
        ("^orders-eu$", {"orders-eu"}),
        ("(?i)ORDERS-EU|clicks", {"orders-eu", "clicks"}),
        ("[[:alpha:]]+", {"clicks"}),
        ("", set()),
        (".*", {"orders-eu", "orders-", "clicks"}),
    ],
)
def test_a_pattern_means_the_topics_whose_whole_name_it_matches(
    pattern: str, expected: set[str]
) -> None:
    """
    As RE2/J's `matches`.
    """
    topics = named("orders-eu", "orders-", "clicks")

    assert {pattern: frozenset(expected)} == resolve([pattern], topics)


@pytest.mark.parametrize(
    "pattern", ["(", "[", "a**b)", r"(a)\1", "(?=a)", "a{2000}", "((a{99}){9}){9}"]
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    """
    Also what RE2 has not, or what is too large.
    """
    with pytest.raises(RefusedError, match="is not a valid regular expression") as refused:
        check(pattern)

    assert ErrorCode.INVALID_REGULAR_EXPRESSION is refused.value.code
    assert len(str(refused.value)) < 500
    assert {pattern: frozenset()} == resolve([pattern], named("a"))


@pytest.mark.parametrize(
    ("pattern", "advice"),
    [
        ("x" * 1_025, "it is longer than 1,024 characters; list topics by their names instead"),
        (r"\pL" * 51, r"it names more than 50 classes such as \pL; use fewer"),
        ("(?i)" + r"\p{Greek}" * 51, "use fewer"),
        ("a{0,1000}" * 48, "pattern too large - compile failed; repeat less, and use smaller"),
        ("[[:alpha:]]{500,1000}" * 48, "pattern too large - compile failed; repeat less"),
    ],
    ids=["long", "classes", "other classes", "optional", "repeated"],
)
def test_a_pattern_that_takes_long_to_compile_is_refused_at_once(pattern: str, advice: str) -> None:
    """
    Compiling holds the GIL: these took up to 5 s, and the event loop stood still.
    """
    began = time.process_time()

    with pytest.raises(RefusedError, match="is not a valid regular expression") as refused:
        check(pattern)
    assert {pattern: frozenset()} == resolve([pattern], named("a"))

    assert ErrorCode.INVALID_REGULAR_EXPRESSION is refused.value.code
    assert advice in str(refused.value)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    "pattern",
    [
        "|".join(f"orders-eu-{n:04d}" for n in range(68)),
        "(?i)orders-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        r".{1,249}",
        r"[\pL\pN]+\.(\pL+)",
        r"[^.]{1,100}\.[^.]{1,100}",
    ],
    ids=["list", "id", "any", "words", "parts"],
)
def test_what_people_write_is_a_pattern(pattern: str) -> None:
    """
    Of any kind, below the limits.
    """
    check(pattern)


class Clock:
    """Each look at it takes 5 ms."""

    def __init__(self) -> None:
        self._ms = 0.0

    def __call__(self) -> float:
        self._ms += 5.0
        return self._ms


def test_who_has_no_time_for_a_pattern_goes_without_it() -> None:
    """
    And without later ones; those that were matched are there.
    """
    found = resolve(["a", "b", "c"], named("a", "b"), most_ms=20.0, now_ms=Clock())

    assert {"a": frozenset({"a"})} == found


@pytest.mark.parametrize(("patterns", "topics"), [(10, 2), (1, 100)])
def test_patterns_that_take_long_are_matched_in_several_turns(patterns: int, topics: int) -> None:
    """
    Many, or one: so other groups are matched between them; the result is the same.
    """
    names = named(*(f"a{n}" for n in range(topics)))
    asked = [f"a[0-9]+{'x?' * n}" for n in range(patterns)]
    matches = PatternMatches(asked, names, most_bytes=1 << 20, most_ms=5_000, now_ms=Clock())
    turns = 1
    while matches.go_on():
        turns += 1

    assert resolve(asked, names) == matches.found
    assert 2 <= turns <= 11
    assert matches.in_time


def test_the_turns_of_a_group_have_one_limit_together() -> None:
    """
    Of time and of bytes; what is left matches nothing.
    """
    topics, now_ms = named("a", "b"), Clock()
    patterns = [f"[ab]{{1}}{'x?' * n}" for n in range(10)]
    slow = PatternMatches(patterns, topics, most_bytes=1 << 20, most_ms=120, now_ms=now_ms)
    while slow.go_on():
        pass
    one_bytes = texts_bytes(frozenset({"a", "b"}))
    large = PatternMatches(patterns, topics, most_bytes=3 * one_bytes, most_ms=5_000, now_ms=now_ms)
    while large.go_on():
        pass

    assert 0 < len(slow.found) < len(patterns)
    assert not slow.in_time
    assert 3 == len(large.found)
    assert large.in_time


@pytest.mark.parametrize("pattern", ["(a|aa)+$", "(a*)*b", "(x+x+)+y", "(a|b)*a(a|b){200}"])
def test_no_pattern_takes_long(pattern: str) -> None:
    """
    Those that a backtracking engine takes for ever for: 1,000 names of 249 characters.  Linear in
    the pattern, too: a millisecond a name.
    """
    topics = named(*("a" * 240 + f"{i}" for i in range(1_000)))
    began = time.process_time()

    check(pattern)
    resolve([pattern], topics)

    assert time.process_time() - began < 5


def test_no_pattern_stays_compiled() -> None:
    """
    128 of them came to 300 MB, which nothing counted.
    """
    before = compiled()
    for n in range(20):
        check(f"topic-{n}.*")
        resolve([f"other-{n}.*"], named("other-1"))

    assert before == compiled()


def compiled() -> int:
    """Patterns in memory."""
    return sum(type(each).__module__ == "re2" for each in gc.get_objects())
