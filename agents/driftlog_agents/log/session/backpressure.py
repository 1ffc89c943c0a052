"""Backpressure: the reasons for which producers wait.

    flusher, sealing, consolidation ──▶ Backpressure ──▶ the request server reads no producers

1. Producers wait while there is at least one reason.
2. A session's reasons end with the session; a reason that it sets later holds no producer.

Pure.
"""

from collections.abc import Callable


class Backpressure:
    """The reasons of one session.

    Args:
        hold_producers: called with True at the first reason, and with False after the last one.
    """

    __slots__ = ("_closed", "_hold_producers", "reasons")

    def __init__(self, hold_producers: Callable[[bool], None] = lambda _: None) -> None:
        self._hold_producers = hold_producers
        self._closed = False
        self.reasons: frozenset[str] = frozenset()

    @property
    def held(self) -> bool:
        """Whether producers wait."""
        return bool(self.reasons)

    def set(self, reason: str, held: bool) -> None:
        """Add or remove *reason*; a repeat is harmless."""
        if held is (reason in self.reasons) or self._closed:
            return
        was = self.held
        self.reasons ^= {reason}
        if was is not self.held:
            self._hold_producers(self.held)

    def close(self) -> None:
        """The session is over."""
        for reason in self.reasons:
            self.set(reason, held=False)
        self._closed = True
