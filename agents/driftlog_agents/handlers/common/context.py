"""What a handler receives with a request, besides its body.

Pure.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from driftlog_agents.protocol.api import NO_LIMIT
from driftlog_agents.protocol.errors import answer_too_large


class AnswerBytes:
    """Counts an answer's bytes while it is made, so that a too large one is not finished."""

    __slots__ = ("_left_bytes", "_most_bytes")

    def __init__(self, most_bytes: int = NO_LIMIT) -> None:
        self._most_bytes = self._left_bytes = most_bytes

    def add(self, size_bytes: int) -> None:
        """Count *size_bytes* more.

        Raises:
            OverLimitError: the sum is over the limit of an answer.
        """
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise answer_too_large(self._most_bytes)

    @property
    def counted_bytes(self) -> int:
        """What was counted so far."""
        return self._most_bytes - self._left_bytes


async def _has_room(_: int) -> None:
    """There is always room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """A request's version, client and connection."""

    api_version: int
    client_id: str | None
    client_host: str
    listener: str
    answer: AnswerBytes = field(default_factory=AnswerBytes)
    """A handler whose answer may be much larger than its request counts the answer here."""
    room: Callable[[int], Awaitable[None]] = _has_room
    """Waits until there is room for so many bytes more.  A handler whose answer may take much more
    memory than its request calls this before it makes the answer, or a part of it."""
    on_close: set[Callable[[], None]] = field(default_factory=set)
    """Called when the connection closes: a handler that waits long adds what ends its wait."""
