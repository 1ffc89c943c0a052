"""Subscriptions by regular expression: which topics a pattern means.

    a new pattern ──check──▶ INVALID_REGULAR_EXPRESSION, or
    ResolveRegexes ──resolve, in a worker thread──▶ names of topics by pattern

Patterns are RE2's, as Apache Kafka's are (there RE2/J): matching takes time linear in a name's
length, whatever the pattern, and google-re2 lets go of the interpreter's lock while it matches.
A pattern must match the whole name.  What a pattern may cost is bounded twice: by its length, and
by the memory of its program; beyond either it is refused, where RE2/J would have tried.

Source: org.apache.kafka.coordinator.group.modern.consumer.TopicRegexResolver,
org.apache.kafka.coordinator.group.Utils#throwIfRegularExpressionIsInvalid.
Pure.
"""

from collections.abc import Iterable
from typing import Any, Final

import re2

from driftlog_agents.groups.consumer.state import names_bytes
from driftlog_agents.groups.topic_metadata import ClusterTopics
from driftlog_agents.protocol.errors import ErrorCode, RefusedError

_MAX_LENGTH: Final = 16 * 1024
"""Characters of a pattern: one that lists 300 topics has about as many."""

_MAX_MEMORY_BYTES: Final = 4 * 1024 * 1024
"""What a compiled pattern may take, and what matching may keep of it."""


def check(pattern: str) -> None:
    """Refuse what is no pattern.

    Raises:
        RefusedError: INVALID_REGULAR_EXPRESSION, and why.
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
    """Names of topics by pattern; none for a pattern that cannot be compiled.

    Patterns are left out from where on the names come to more than *most_bytes*.
    """
    found: dict[str, frozenset[str]] = {}
    size_bytes = 0
    for pattern in sorted(patterns):
        names = _matches(pattern, topics)
        size_bytes += names_bytes(names)
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
    return re2.compile(pattern, options)


def _text(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)


def _refused(pattern: str, why: str) -> RefusedError:
    return RefusedError(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {why}.",
    )
