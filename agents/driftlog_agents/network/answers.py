"""Counts the memory of one connection's answers, from when they are made until they are taken.

    room? ──▶ claimed ──▶ made ──▶ written ──▶ taken
      │                            known only by what the transport still holds
      └── none: called back when there is, in order

A large answer is made when the budget of all connections has room for it
(`driftlog.max.response.queue.bytes`); a small one is always made.  A connection that holds answers
and takes none, while others wait for room, is closed.  When a connection closes while its answer is
made, the bytes claimed for it are counted until that ends.

Pure.
"""

from collections.abc import Callable
from typing import Final

from driftlog_agents.foundation.fair_queue import NOBODY, Client
from driftlog_agents.network.limits.memory_budget import MemoryBudget

SMALL_BYTES: Final = 64 * 1024
"""The largest answer that is made without room in the budget."""

_UNCOUNTED_BYTES: Final = 4 * 1024
"""The largest answer that is not counted."""

_TAKES_BYTES: Final = 16 * 1024 * 1024
"""A client that has taken so many bytes is trusted: kernels buffer less."""

_CROWDED_SHARE: Final = 4
"""While others hold more than one part in so many of the budget, an untrusted client's answers are
small."""

_LITTLE_BYTES: Final = 1024 * 1024
_MOST_BYTES: Final = 2**31 - 1

_SLOWEST_BYTES: Final = 256 * 1024
"""A client that takes less in `stalled_ms` is stalled."""


class Answers:
    """The answers of one connection; the `Holder` of their memory.

    Args:
        budget: shared by all connections.
        soon: schedules a call for later.
        client: whose answers they are.
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
        "client",
        "held_bytes",
        "trusted",
        "unwritten_bytes",
    )

    def __init__(
        self,
        budget: MemoryBudget,
        soon: Callable[[Callable[[], None]], None],
        client: Client = NOBODY,
    ) -> None:
        self.client = client
        self._budget = budget
        self._soon = soon
        self._claimed_bytes = 0
        """Bytes claimed for the next answer."""
        self._waited_bytes = 0
        """Bytes to claim when there is room."""
        self._then: Callable[[], None] | None = None
        self._sent_bytes = 0
        self._seen: tuple[float, int] | None = None
        """The last time that the client took some: the time, and the bytes taken until then."""
        self.unwritten_bytes = 0
        """Bytes of answers that wait for their turn."""
        self.held_bytes = 0
        """Bytes that the budget counts."""
        self.trusted = False
        self._closed = False
        self._reads = False
        """A read or a handler fills the claimed bytes; it continues when the connection closes."""

    @property
    def most_bytes(self) -> int:
        """Limit of the next answer: small while others hold much, unless this client is trusted.
        So the budget serves many clients."""
        budget = self._budget
        crowded = budget.held_bytes - self.held_bytes > budget.limit_bytes // _CROWDED_SHARE
        return _LITTLE_BYTES if crowded and not self.trusted else _MOST_BYTES

    def room(self, size_bytes: int, then: Callable[[], None]) -> bool:
        """Claim room for the next answer; False: none is free, *then* is called when it is.

        Of a closed connection nothing is counted, and it need not wait: whoever works for it looks
        whether it is closed, and ends.
        """
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
        """Called by the budget, which now counts the bytes that this waited for."""
        if self._closed:
            self._budget.release(self, self._waited_bytes)
            return
        then, self._then = self._then, None
        assert then is not None
        self._claim(self._waited_bytes)
        self._soon(then)

    def read_begins(self) -> None:
        """Called when a read, or a handler, begins to fill the claimed bytes."""
        self._reads = True

    def read_ended(self) -> None:
        """Called when it ends: its bytes are in the answer, or are dropped."""
        self._reads = False
        if self._closed:
            self.close()

    def made(self, size_bytes: int, *, claimed: bool) -> None:
        """Count an answer of *size_bytes*; *claimed*: `room` claimed its bytes before."""
        if claimed:
            self._claimed_bytes = 0
        if size_bytes > _UNCOUNTED_BYTES:
            self.unwritten_bytes += size_bytes
        if self.unwritten_bytes or self.held_bytes:
            self._count(self.unwritten_bytes)

    def written(self, size_bytes: int) -> None:
        """Uncount an answer whose turn has come: the transport has it."""
        if size_bytes > _UNCOUNTED_BYTES:
            self.unwritten_bytes -= size_bytes
            self._sent_bytes += size_bytes

    def settle(self, buffered_bytes: int) -> None:
        """Count *buffered_bytes*, which the transport still holds, beside the answers that wait."""
        if not buffered_bytes and self._sent_bytes >= _TAKES_BYTES:
            self.trusted = True
        self._count(self.unwritten_bytes + buffered_bytes)

    def stalled(
        self, now_ms: float, stalled_ms: float, buffered_bytes: int, hurry: int = 1
    ) -> bool:
        """Whether the client took hardly any answers for *stalled_ms*, as repeated calls saw; or
        for one part of *hurry* of it."""
        self.settle(buffered_bytes)
        if not buffered_bytes:
            self._seen = None
            return False
        taken = self._sent_bytes - buffered_bytes
        seen_ms, seen = self._seen or (now_ms, taken)
        if taken - seen >= _SLOWEST_BYTES // hurry:
            seen_ms, seen = now_ms, taken
        self._seen = seen_ms, seen
        return now_ms - seen_ms >= stalled_ms / hurry

    def forget(self) -> None:
        """No connection waits for room any more: the next call of `stalled` is the first."""
        self._seen = None

    def close(self) -> None:
        """The connection is closed: release its bytes, except those that are still filled."""
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
