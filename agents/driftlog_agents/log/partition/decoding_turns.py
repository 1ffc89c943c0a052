"""The turns of large batches to be decoded, within one budget of memory.

    take ──fits, and no other waits──▶ has its turn ──give──▶ the next ones that fit have theirs
      └── else ──▶ waits, in the order of arrival ──abandon──▶ the ones behind it may fit

Turns are given in the order of arrival: a larger one is not overtaken by smaller ones for ever.

Pure.
"""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class DecodingTurns(Generic[T]):
    """See the module; a turn is a value of the caller's, equal to itself only.

    Args:
        budget_bytes: of all turns that are held at a time; none may be larger.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self.held_bytes = 0
        self._waiting: deque[tuple[T, int]] = deque()

    def take(self, turn: T, size_bytes: int) -> bool:
        """Whether *turn* begins at once; otherwise it waits, and `give` or `abandon` returns it."""
        if not self._waiting and self._fits(size_bytes):
            self.held_bytes += size_bytes
            return True
        self._waiting.append((turn, size_bytes))
        return False

    def give(self, size_bytes: int) -> list[T]:
        """A turn has ended; returns those that begin."""
        self.held_bytes -= size_bytes
        return self._next()

    def abandon(self, turn: T, size_bytes: int) -> list[T]:
        """*turn* is not wanted any more, whether it has begun or not; returns those that begin."""
        if (turn, size_bytes) in self._waiting:
            self._waiting.remove((turn, size_bytes))
            return self._next()
        return self.give(size_bytes)

    def _next(self) -> list[T]:
        begun: list[T] = []
        while self._waiting and self._fits(self._waiting[0][1]):
            turn, size_bytes = self._waiting.popleft()
            self.held_bytes += size_bytes
            begun.append(turn)
        return begun

    def _fits(self, size_bytes: int) -> bool:
        return self.held_bytes + size_bytes <= self._budget_bytes
