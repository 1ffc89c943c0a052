"""Whoever waits for memory is looked after until it has some, and the right client is closed."""

from dataclasses import dataclass, field

from driftlog_agents.configs.limits import Refusals
from driftlog_agents.foundation.fair_queue import NOBODY, Client
from driftlog_agents.network.limits.memory_budget import MemoryBudget, SharedMemory
from driftlog_agents.network.limits.stalled_connections import StalledConnections

MiB = 1 << 20


@dataclass(eq=False)
class Holder:
    """A connection's part of a budget, which may wait for more."""

    trusted: bool = True
    held_bytes: int = 0
    went_on: bool = False
    client: Client = NOBODY

    def go_on(self) -> None:
        self.went_on = True

    def forget(self) -> None:
        """Nothing is remembered."""


@dataclass(eq=False)
class Connection:
    """One that takes no answers if it holds some."""

    request_bytes: int = 0
    answers: Holder = field(default_factory=Holder)
    closed: str = ""
    address: str = ""
    since_ms: float = 0.0

    def look_for_progress(self, now_ms: float, *, untrusted_progress: bool) -> None:
        """It has no incomplete frame."""

    def forget_progress(self) -> None:
        """Nothing is remembered."""

    def takes_nothing(self, now_ms: float, hurry: int) -> bool:
        return self.answers.held_bytes > 0 and now_ms - self.since_ms >= 5_000 / hurry

    def hang_up(self, event: str, reason: str, /) -> None:
        self.closed = event


class Server:
    """The budgets of some connections."""

    stalled_ms = 5_000.0

    def __init__(self, *connections: Connection) -> None:
        self.connections = [*connections]
        self.refusals = Refusals()
        self.presses = 0
        self.frame_budget, self.request_budget, self.answers = (
            MemoryBudget(256 * MiB, self._pressed) for _ in range(3)
        )
        SharedMemory(384 * MiB, (self.frame_budget, self.request_budget, self.answers))

    def _pressed(self) -> None:
        self.presses += 1


def test_who_waits_for_answers_is_looked_after_although_another_is_beyond_the_limit() -> None:
    """
    The budget is pressed once: by the one that went beyond it.  When others gave back what they
    held, nobody waited, and a look that ended then was the last one.
    """
    server = Server()
    first, beyond, late = Holder(), Holder(), Holder()
    answers = server.answers
    assert answers.take(first, 250 * MiB)
    assert answers.take(beyond, 50 * MiB)
    answers.release(first, 250 * MiB)
    assert answers.take(first, 200 * MiB)
    looks = StalledConnections(server)

    goes_on = looks.look(0.0)
    waits = not answers.take(late, 40 * MiB)

    assert waits
    assert goes_on or server.presses > 1


def test_answers_that_nobody_takes_are_closed_before_the_largest_request() -> None:
    """
    Requests wait for memory that those answers hold.
    """
    stalled = Connection(answers=Holder(held_bytes=250 * MiB))
    healthy = Connection(request_bytes=40 * MiB)
    server = Server(stalled, healthy)
    waiting = Holder()
    assert server.answers.take(stalled.answers, 250 * MiB)
    assert server.frame_budget.take(Holder(), 80 * MiB)
    assert server.request_budget.take(Holder(), 40 * MiB)
    assert server.request_budget.take(Holder(), 20 * MiB)
    assert not server.request_budget.take(waiting, 30 * MiB)
    looks = StalledConnections(server)

    for now_ms in (0.0, 5_000.0):
        assert looks.look(now_ms)

    assert ("answers_not_taken", "") == (stalled.closed, healthy.closed)
    server.answers.release(stalled.answers, 250 * MiB)
    assert waiting.went_on


def test_an_address_that_left_answers_has_little_time_while_others_wait() -> None:
    """
    One of its connections is closed after 5 s.  The next, which has its room since then, has a
    second; one of another address has 5 s as before, and so has the first when nobody waits.
    """
    first, next_, other = (
        Connection(answers=Holder(held_bytes=100 * MiB), address=address, since_ms=since_ms)
        for address, since_ms in (("10.0.0.1", 0), ("10.0.0.1", 5_000), ("10.0.0.2", 5_000))
    )
    server = Server(first)
    answers, waiting = server.answers, Holder()
    assert answers.take(first.answers, 200 * MiB)
    assert answers.take(next_.answers, 100 * MiB)
    assert not answers.take(waiting, 200 * MiB)
    looks = StalledConnections(server)

    looks.look(5_000.0)
    server.connections = [next_, other]
    looks.look(5_500.0)
    early = next_.closed
    looks.look(6_000.0)
    closed = [one.closed for one in (first, next_, other)]
    answers.release(waiting, 0)
    answers.release(first.answers, 200 * MiB)
    looks.look(6_500.0)
    assert answers.take(first.answers, 150 * MiB)
    assert not answers.take(waiting, 200 * MiB)
    again = Connection(answers=Holder(held_bytes=MiB), address="10.0.0.1", since_ms=6_500)
    server.connections = [again]
    looks.look(8_000.0)

    assert "" == early
    assert ["answers_not_taken", "answers_not_taken", ""] == closed
    assert "" == again.closed
