"""Whether a connection that holds memory for a frame receives more of it, while others wait.

Pure.
"""

from typing import Final

_SLOWEST_BYTES: Final = 256 * 1024
"""A client that sends less of a frame in `stalled_ms` is stalled."""


class FrameProgress:
    """The progress of one connection."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: tuple[float, int, int] | None = None
        """The last progress: its time, complete frames, received bytes of the incomplete one."""

    def forget(self) -> None:
        """No connection waits, or this one holds nothing: the next check is the first."""
        self._seen = None

    def stalled_since_ms(self, now_ms: float, completed: int, arrived_bytes: int) -> float:
        """Since when the connection receives hardly anything, as far as checks have seen.

        *completed*: frames so far; *arrived_bytes*: received bytes of the incomplete one.
        """
        since_ms, frames, before_bytes = self._seen or (now_ms, -1, 0)
        if frames != completed or arrived_bytes - before_bytes >= _SLOWEST_BYTES:
            self._seen = now_ms, completed, arrived_bytes
            return now_ms
        return since_ms
