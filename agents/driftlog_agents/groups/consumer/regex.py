"""Subscriptions by regular expression: which topics a pattern matches.

    a new pattern ──check──▶ INVALID_REGULAR_EXPRESSION, or
    ResolveRegexes ──resolve, in a worker thread──▶ names of topics by pattern

Patterns have RE2 syntax, as in Apache Kafka (RE2/J): for every pattern, matching takes time linear
in the length of the name.  google-re2 releases the GIL while it matches.  A pattern must match the
whole name.  Two limits bound the cost of a pattern: its length, and the memory of its program.  A
pattern above either is refused; RE2/J has no such limits.

Source: org.apache.kafka.coordinator.group.modern.consumer.TopicRegexResolver,
org.apache.kafka.coordinator.group.Utils#throwIfRegularExpressionIsInvalid.
Pure.
"""

from collections.abc import Iterable
from typing import Any, Final

import re2

from driftlog_agents.groups.sizes import texts_bytes
from driftlog_agents.groups.topic_metadata import ClusterTopics
from driftlog_agents.protocol.errors import ErrorCode, RefusedError

_MAX_LENGTH: Final = 16 * 1024
"""Most characters of a pattern; one that lists 300 topics has about as many."""

_MAX_MEMORY_BYTES: Final = 4 * 1024 * 1024
"""Most memory of a compiled pattern, with the caches of its matching."""


def check(pattern: str) -> None:
    """Check that *pattern* is valid.

    Raises:
        RefusedError: INVALID_REGULAR_EXPRESSION with the reason.
    """
    if len(pattern) > _MAX_LENGTH:
        raise _refused(pattern[:100] + "…", f"it is longer than {_MAX_LENGTH:,} characters")
    try:
        _compiled(pattern)
    except re2.error as error:
        raise _refused(pattern, _text(error)) from None


def resolve(
    patterns: Iterable[str], topics: ClusterTopics, most_bytes: int | None = None
) -> dict[str, frozenset[str]]:
    """Names of topics by pattern; an empty set for a pattern that does not compile.

    Patterns are matched in sorted order.  The first one whose names exceed *most_bytes* in total,
    and all later ones, are absent.
    """
    found: dict[str, frozenset[str]] = {}
    size_bytes = 0
    for pattern in sorted(patterns):
        names = _matches(pattern, topics)
        size_bytes += texts_bytes(names)
        if most_bytes is not None and size_bytes > most_bytes:
            break
        found[pattern] = names
    return found


def _matches(pattern: str, topics: ClusterTopics) -> frozenset[str]:
    try:
        compiled = _compiled(pattern)
    except re2.error:
        return frozenset()
    return frozenset(name for name in topics.by_name if compiled.fullmatch(name) is not None)


def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.max_mem = _MAX_MEMORY_BYTES
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    finally:
        re2.purge()  # the module would keep 128 of them, with what matching has cached


def _text(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)


def _refused(pattern: str, why: str) -> RefusedError:
    return RefusedError(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {why}.",
    )
