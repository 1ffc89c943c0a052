"""A subscription by pattern has exactly the topics that match it, later ones too."""

import gc
import time
from uuid import UUID

import pytest

from driftlog_agents.groups.consumer.regex import check, resolve
from driftlog_agents.groups.topic_metadata import ClusterTopics
from driftlog_agents.protocol.errors import ErrorCode, RefusedError


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
    "pattern", ["(", "[", "a**b)", r"(a)\1", "(?=a)", "a{2000}", "x" * 20_000, "((a{99}){9}){9}"]
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    """
    Also what RE2 has not, or what is too large.
    """
    with pytest.raises(RefusedError, match="is not a valid regular expression") as refused:
        check(pattern)

    assert ErrorCode.INVALID_REGULAR_EXPRESSION is refused.value.code
    assert len(str(refused.value)) < 500
    assert {pattern: frozenset()} == resolve([pattern], named("a")) or len(pattern) > 16_384


@pytest.mark.parametrize("pattern", ["(a|aa)+$", "(a*)*b", "(x+x+)+y", "(a|b)*a(a|b){200}"])
def test_no_pattern_takes_long(pattern: str) -> None:
    """
    Those that a backtracking engine takes for ever for: 1,000 names of 249 characters.
    """
    topics = named(*("a" * 240 + f"{i}" for i in range(1_000)))
    began = time.process_time()

    check(pattern)
    resolve([pattern], topics)

    assert time.process_time() - began < 1


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
