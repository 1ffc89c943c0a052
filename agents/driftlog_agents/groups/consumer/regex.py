"""Subscriptions by regular expression: which topics a pattern matches.

    a new pattern ──check──▶ INVALID_REGULAR_EXPRESSION, or
    ResolveRegexes ──`PatternMatches`, in turns of a worker thread──▶ names of topics by pattern

Patterns have RE2 syntax, as in Apache Kafka (RE2/J): for every pattern, matching takes time linear
in the length of the name.  google-re2 releases the GIL while it matches.  A pattern must match the
whole name.  Compiling holds the GIL: three limits bound it to some 30 ms, its length, the classes
of Unicode that it names, and the memory of its program.  A pattern above one is refused; RE2/J has
no such limits.

Source: org.apache.kafka.coordinator.group.modern.consumer.TopicRegexResolver,
org.apache.kafka.coordinator.group.Utils#throwIfRegularExpressionIsInvalid.
Pure.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import re2

from driftlog_agents.groups.sizes import texts_bytes
from driftlog_agents.groups.topic_metadata import ClusterTopics
from driftlog_agents.protocol.errors import ErrorCode, RefusedError

_MAX_LENGTH: Final = 1024
"""Most characters of a pattern."""

_MAX_CLASSES: Final = 50
"""Most classes of Unicode in a pattern, such as ``\\pL``: each takes 0.1 ms."""

_MAX_MEMORY_BYTES: Final = 64 * 1024
"""Most memory of a compiled pattern, with the caches of its matching.  The time to compile counted
repetitions grows with its square: 5 s in 2 MB."""

_TURN_MS: Final = 50.0
"""After so long the next name of a topic waits for another turn.  Shorter: patterns of other groups
wait less.  Longer: one group needs fewer turns."""

_TOO_LARGE: Final = "pattern too large"
"""How RE2 begins to say that the memory does not suffice."""


def check(pattern: str) -> None:
    """Check that *pattern* is valid.

    Raises:
        RefusedError: INVALID_REGULAR_EXPRESSION with the reason.
    """
    compiled = _compiled(pattern)
    if isinstance(compiled, str):
        shown = pattern if len(pattern) <= _MAX_LENGTH else pattern[:100] + "…"
        raise RefusedError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{shown}` is not a valid regular expression: {compiled}.",
        )


class PatternMatches:
    """Matches the patterns of a group in turns, each of some milliseconds.

    In sorted order.  The first pattern whose names exceed *most_bytes* in total, or for which there
    is no time, and all later ones, are not `found`.

    Args:
        most_ms: for all turns together.
        goes_on: whether the result is still wanted.
    """

    def __init__(
        self,
        patterns: Iterable[str],
        topics: ClusterTopics,
        *,
        most_bytes: int,
        most_ms: float,
        now_ms: Callable[[], float],
        goes_on: Callable[[], bool] = lambda: True,
    ) -> None:
        self.found: dict[str, frozenset[str]] = {}
        """Names of topics by pattern; an empty set for a pattern that does not compile."""
        self._left_ms = most_ms
        self._now_ms = now_ms
        self._goes_on = goes_on
        self._steps = self._match(sorted(patterns), topics, most_bytes)

    @property
    def in_time(self) -> bool:
        """Whether time was left for all patterns."""
        return self._left_ms > 0

    def go_on(self) -> bool:
        """Match for one turn; whether something is left for another one."""
        began_ms = self._now_ms()
        for _ in self._steps:
            took_ms = self._now_ms() - began_ms
            if took_ms >= min(_TURN_MS, self._left_ms) or not self._goes_on():
                self._left_ms -= took_ms
                return self.in_time and self._goes_on()
        return False

    def _match(
        self, patterns: Iterable[str], topics: ClusterTopics, most_bytes: int
    ) -> Iterator[None]:
        for pattern in patterns:
            compiled = _compiled(pattern)
            names: list[str] = []
            for name in () if isinstance(compiled, str) else topics.by_name:
                if compiled.fullmatch(name) is not None:
                    names.append(name)
                yield
            most_bytes -= texts_bytes(names)
            if most_bytes < 0:
                return
            self.found[pattern] = frozenset(names)
            yield


def _compiled(pattern: str) -> Any:
    """The compiled pattern; a text: why it cannot be compiled.

    The text comes without the error: that would keep what RE2 has made of the pattern.
    """
    if len(pattern) > _MAX_LENGTH:
        return f"it is longer than {_MAX_LENGTH:,} characters; list topics by their names instead"
    if pattern.lower().count("\\p") > _MAX_CLASSES:
        return f"it names more than {_MAX_CLASSES} classes such as \\pL; use fewer"
    options = re2.Options()
    options.max_mem = _MAX_MEMORY_BYTES
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        text = _text(error)
        hint = "; repeat less, and use smaller classes" if text.startswith(_TOO_LARGE) else ""
        return text + hint
    finally:
        re2.purge()  # the module would keep 128 of them, with what matching has cached


def _text(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
