"""Closes connections that hold memory without progress, while others wait for it.

    frames     connections whose incomplete frame receives no bytes
    requests   the connection whose requests hold most, when no waiting request could continue
    answers    the connections that hold most answers which their clients do not take

While connections wait, there is a check every half second; a connection is closed when it makes no
progress for `Budgets.stalled_ms`.  When one was closed for its answers, others of its address have
a fifth of that time, until no answer waits any more: else each of a crowd, which asks and does not
read, keeps the room for the whole time, one after the other.

Shell.
"""

from collections.abc import Collection
from typing import Final, Protocol

from driftlog_agents.configs.limits import Refusals
from driftlog_agents.network.limits.memory_budget import MemoryBudget

_ANSWERS: Final = "driftlog.max.response.queue.bytes"

_SHARE: Final = 8
"""Each check closes connections until they free one part in so many of the answers' budget."""

_HURRY: Final = 5
"""Connections of an accused address are judged by one part in so many of the time, and of the
bytes: two looks."""


class HeldAnswers(Protocol):
    """The answers of one connection."""

    held_bytes: int

    def forget(self) -> None:
        """No connection waits for room."""
        ...


class HoldingConnection(Protocol):
    """A connection that may hold memory."""

    @property
    def request_bytes(self) -> int:
        """Bytes that its requests hold."""
        ...

    @property
    def address(self) -> str:
        """The client's address."""
        ...

    @property
    def answers(self) -> HeldAnswers:
        """The memory of its answers."""
        ...

    def look_for_progress(self, now_ms: float, *, untrusted_progress: bool) -> None:
        """Others wait for memory: close this connection if it holds some without progress."""
        ...

    def forget_progress(self) -> None:
        """No connection waits any more."""
        ...

    def takes_nothing(self, now_ms: float, hurry: int) -> bool:
        """Whether the connection holds answers that its client does not take, as far as one part
        of *hurry* of the time shows it."""
        ...

    def hang_up(self, event: str, reason: str, /) -> None:
        """Close, and log *event* with *reason* once."""
        ...


class Budgets(Protocol):
    """The memory budgets of all connections."""

    @property
    def connections(self) -> Collection[HoldingConnection]:
        """All connections."""
        ...

    @property
    def frame_budget(self) -> MemoryBudget:
        """The budget of incomplete Produce frames."""
        ...

    @property
    def request_budget(self) -> MemoryBudget:
        """The budget of other requests."""
        ...

    @property
    def answers(self) -> MemoryBudget:
        """The budget of answers."""
        ...

    @property
    def refusals(self) -> Refusals:
        """Counts the closed connections."""
        ...

    @property
    def stalled_ms(self) -> float:
        """How long a connection may hold memory without progress while others wait for it."""
        ...


class StalledConnections:
    """Checks connections when `look` is called."""

    def __init__(self, server: Budgets) -> None:
        self._server = server
        self._welcomed = 0
        self._granted: tuple[float, int] | None = None
        """Since when requests wait for memory, and how many had received some by then."""
        self._accused: set[str] = set()
        """Addresses of connections that were closed for their answers, while answers wait."""

    def look(self, now_ms: float) -> bool:
        """Close connections without progress; returns whether any connection still waits."""
        server = self._server
        if not self._answers(now_ms):  # else the others may have what was freed
            self._frames(now_ms)
            self._requests(now_ms)
        budgets = (server.frame_budget, server.request_budget, server.answers)
        return any(budget.pressed for budget in budgets) or _crowded(server)

    def _frames(self, now_ms: float) -> None:
        server = self._server
        budgets = (server.frame_budget, server.request_budget)
        welcomed = sum(budget.welcomed for budget in budgets)
        untrusted_progress, self._welcomed = welcomed != self._welcomed, welcomed
        pressed = any(budget.pressed or budget.wanted for budget in budgets)
        for connection in list(server.connections):
            if pressed:
                connection.look_for_progress(now_ms, untrusted_progress=untrusted_progress)
            else:
                connection.forget_progress()

    def _requests(self, now_ms: float) -> None:
        server, budget = self._server, self._server.request_budget
        if not budget.waiting:
            self._granted = None
            return
        since_ms, granted = self._granted or (now_ms, budget.granted)
        if granted != budget.granted:
            since_ms, granted = now_ms, budget.granted
        self._granted = since_ms, granted
        if now_ms - since_ms < server.stalled_ms:
            return
        self._granted = None
        largest = max(server.connections, key=_request_bytes, default=None)
        if largest is not None and largest.request_bytes:
            server.refusals.count(budget.limited_by("queued.max.request.bytes"))
            largest.hang_up(
                "requests_given_up",
                f"its requests hold {largest.request_bytes} bytes, more than any other's, and "
                f"others have waited {server.stalled_ms / 1000:g} s for memory",
            )

    def _answers(self, now_ms: float) -> bool:
        """Returns whether a connection was closed."""
        server = self._server
        if not _crowded(server):
            for connection in server.connections:
                connection.answers.forget()
            self._accused.clear()
            return False
        hurry = {c: _HURRY if c.address in self._accused else 1 for c in server.connections}
        stalled = [c for c in server.connections if c.takes_nothing(now_ms, hurry[c])]
        stalled.sort(key=_answer_bytes, reverse=True)
        freed = 0
        for connection in stalled:
            if freed * _SHARE >= server.answers.limit_bytes:
                break
            freed += connection.answers.held_bytes
            self._accused.add(connection.address)
            server.refusals.count(server.answers.limited_by(_ANSWERS))
            connection.hang_up(
                "answers_not_taken",
                f"{connection.answers.held_bytes} bytes of answers wait for this client, which "
                f"took hardly any in {server.stalled_ms / hurry[connection] / 1000:g} s, while "
                f"others wait for the memory",
            )
        return freed > 0


def _crowded(server: Budgets) -> bool:
    """Whether answers wait for room, take more than there is, or take what others wait for."""
    answers = server.answers
    return answers.waiting > 0 or answers.held_bytes > answers.limit_bytes or answers.wanted


def _request_bytes(connection: HoldingConnection) -> int:
    return connection.request_bytes


def _answer_bytes(connection: HoldingConnection) -> int:
    return connection.answers.held_bytes
