"""What the answers of one connection hold, from when they are made until the client takes them.

    room? ──▶ claimed ──▶ made ──▶ written ──▶ taken
      │                            a transport tells only that more than a little is left
      └── none: called back when there is, in order

A large answer is made when there is room for it in the budget of all connections
(`driftlog.max.response.queue.bytes`); a small one always: its bytes count only while it waits for
its turn.  A connection that holds some and takes none, while others wait for room, is closed.
Of work for a connection that is gone, what was claimed for a read is counted until that has ended.

Pure.
"""

from collections.abc import Callable
from typing import Final

from driftlog_agents.network.limits.memory_budget import MemoryBudget

SMALL_BYTES: Final = 64 * 1024
"""Answers up to here are made whatever there is room for."""

_UNCOUNTED_BYTES: Final = 4 * 1024
"""Smaller ones are not counted."""

_TAKES_BYTES: Final = 16 * 1024 * 1024
"""A client that has taken so much takes answers, it seems: what kernels buffer is less."""

_CROWDED_SHARE: Final = 4
"""From this part of the room on, answers to strangers are kept little."""

_LITTLE_BYTES: Final = 1024 * 1024
_MOST_BYTES: Final = 2**31 - 1

_SLOWEST_BYTES: Final = 256 * 1024
"""A client that takes less in `stalled_ms` takes none."""


class Answers:
    """Of one connection; the `Holder` of what they hold.

    Args:
        budget: of all connections.
        soon: has something called, not now.
    """

    __slots__ = (
        "_budget",
        "_claimed_bytes",
        "_closed",
        "_reads",
        "_seen",
        "_sent_bytes",
        "_soon",
        "_then",
        "_waited_bytes",
        "held_bytes",
        "trusted",
        "unwritten_bytes",
    )

    def __init__(self, budget: MemoryBudget, soon: Callable[[Callable[[], None]], None]) -> None:
        self._budget = budget
        self._soon = soon
        self._claimed_bytes = 0
        """For the answer that is made next."""
        self._waited_bytes = 0
        """To claim, when there is room."""
        self._then: Callable[[], None] | None = None
        self._sent_bytes = 0
        self._seen: tuple[float, int] | None = None
        """When it was last seen to take some: time, bytes that it had taken."""
        self.unwritten_bytes = 0
        """Of answers that wait for their turn."""
        self.held_bytes = 0
        """What is counted."""
        self.trusted = False
        self._closed = False
        self._reads = False
        """What is claimed is being read, whoever leaves."""

    @property
    def most_bytes(self) -> int:
        """What the next answer should come to at most: little where much is held by all, unless
        the client is known to take what it asks for.  So many can be answered."""
        budget = self._budget
        crowded = budget.held_bytes - self.held_bytes > budget.limit_bytes // _CROWDED_SHARE
        return _LITTLE_BYTES if crowded and not self.trusted else _MOST_BYTES

    def room(self, size_bytes: int, then: Callable[[], None]) -> bool:
        """Claim room for the next answer; False: *then* is called when there is."""
        assert self._then is None, "waits already"
        more = size_bytes - self._claimed_bytes
        if self._closed or more <= 0 or size_bytes <= SMALL_BYTES:
            return True
        if not self._budget.take(self, more):
            self._waited_bytes, self._then = more, then
            return False
        self._claim(more)
        return True

    def go_on(self) -> None:
        """The budget has counted what it waited for."""
        if self._closed:
            self._budget.release(self, self._waited_bytes)
            return
        then, self._then = self._then, None
        assert then is not None
        self._claim(self._waited_bytes)
        self._soon(then)

    def read_begins(self) -> None:
        """What is claimed is filled from now on."""
        self._reads = True

    def read_ended(self) -> None:
        """It is in the answer, or nobody's."""
        self._reads = False
        if self._closed:
            self.close()

    def made(self, size_bytes: int, *, claimed: bool) -> None:
        """An answer is there; *claimed*: it is the one that there was to be room for."""
        if claimed:
            self._claimed_bytes = 0
        if size_bytes > _UNCOUNTED_BYTES:
            self.unwritten_bytes += size_bytes
        self._count(self.unwritten_bytes)

    def written(self, size_bytes: int) -> None:
        """It was its turn."""
        if size_bytes > _UNCOUNTED_BYTES:
            self.unwritten_bytes -= size_bytes
            self._sent_bytes += size_bytes

    def settle(self, buffered_bytes: int) -> None:
        """So much of what is written the client has not taken, as far as it is told."""
        if not buffered_bytes and self._sent_bytes >= _TAKES_BYTES:
            self.trusted = True
        self._count(self.unwritten_bytes + buffered_bytes)

    def stalled(self, now_ms: float, stalled_ms: float, buffered_bytes: int) -> bool:
        """Whether it holds some and has hardly taken any for so long; asked again and again."""
        self.settle(buffered_bytes)
        if not buffered_bytes:
            self._seen = None
            return False
        taken = self._sent_bytes - buffered_bytes
        seen_ms, seen = self._seen or (now_ms, taken)
        if taken - seen >= _SLOWEST_BYTES:
            seen_ms, seen = now_ms, taken
        self._seen = seen_ms, seen
        return now_ms - seen_ms >= stalled_ms

    def forget(self) -> None:
        """Nobody waits for room any more: the next look is the first."""
        self._seen = None

    def close(self) -> None:
        """The connection is gone."""
        self._closed = True
        self._then = None
        self.unwritten_bytes = 0
        kept = self._claimed_bytes if self._reads else 0
        less, self.held_bytes = self.held_bytes - kept, kept
        if kept:
            self._budget.note(-less)
        else:
            self._claimed_bytes = 0
            self._budget.release(self, less)

    def _claim(self, more_bytes: int) -> None:
        self._claimed_bytes += more_bytes
        self.held_bytes += more_bytes

    def _count(self, answers_bytes: int) -> None:
        held = self._claimed_bytes + answers_bytes
        if held != self.held_bytes and not self._closed:
            less, self.held_bytes = self.held_bytes - held, held
            if held:
                self._budget.note(-less)
            else:
                self._budget.done(self, less)
