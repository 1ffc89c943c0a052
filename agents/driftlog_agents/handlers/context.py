"""What a handler is told of a request, beside its body.

Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from driftlog_agents.protocol.errors import RESPONSE_BYTES, OverLimitError


class AnswerBytes:
    """What an answer will be, counted while it is made, so that it is not made in vain."""

    __slots__ = ("_left_bytes", "_most_bytes")

    def __init__(self, most_bytes: int = 1 << 62) -> None:
        self._most_bytes = self._left_bytes = most_bytes

    def add(self, size_bytes: int) -> None:
        """Count so much more.

        Raises:
            OverLimitError: it is more than an answer may have.
        """
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise OverLimitError(
                RESPONSE_BYTES, f"an answer of more than {self._most_bytes} bytes: ask for less"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Of one request, beside its body."""

    api_version: int
    client_id: str | None
    client_host: str
    listener: str
    answer: AnswerBytes = field(default_factory=AnswerBytes)
    """A handler that makes an answer from much more data than it returns counts that data here."""
    on_close: set[Callable[[], None]] = field(default_factory=set)
    """Called when the connection is gone: a handler that waits for long says here what ends it."""
