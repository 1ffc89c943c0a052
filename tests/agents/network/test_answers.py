"""What answers of a connection hold: counted until they are taken, large ones only with room."""

from collections.abc import Callable

from driftlog_agents.network.answers import Answers
from driftlog_agents.network.limits.memory_budget import MemoryBudget

MiB = 1024 * 1024


class Client:
    """The answers of one connection, and what was called back."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.called: list[Callable[[], None]] = []
        self.answers = Answers(budget, self.called.append)
        self.told = 0

    def room(self, size_bytes: int) -> bool:
        """Ask for room."""
        return self.answers.room(size_bytes, self.tell)

    def tell(self) -> None:
        """There is room."""
        self.told += 1

    def answer(self, size_bytes: int, taken_bytes: int) -> None:
        """Make it, write it, and have the client take some."""
        self.answers.made(size_bytes, claimed=True)
        self.answers.written(size_bytes)
        self.answers.settle(size_bytes - taken_bytes)


def test_a_large_answer_waits_for_room_and_a_small_one_does_not() -> None:
    """
    Half is for those that have not shown that they take answers, one goes beyond it; when it is
    taken, the next is told.
    """
    budget = MemoryBudget(64 * MiB)
    clients = [Client(budget) for _ in range(6)]
    begun = [client.room(20 * MiB) for client in clients]
    small = Client(budget).room(64 * 1024)
    clients[1].answer(20 * MiB, 20 * MiB)
    woken = [bool(client.called) for client in clients]

    assert [True, True, False, False, False, False] == begun
    assert small
    assert [False, False, True, False, False, False] == woken


def test_a_claim_is_what_the_answer_comes_to() -> None:
    """
    What was claimed for a cold read and not used is free at once; what is not taken stays counted.
    """
    budget = MemoryBudget(64 * MiB)
    client = Client(budget)
    assert client.room(30 * MiB)
    claimed = budget.held_bytes
    client.answers.made(2 * MiB, claimed=True)
    made = budget.held_bytes
    client.answers.written(2 * MiB)
    client.answers.settle(MiB)
    untaken = budget.held_bytes
    client.answers.settle(0)

    assert (30 * MiB, 2 * MiB, MiB, 0) == (claimed, made, untaken, budget.held_bytes)


def test_a_client_that_takes_much_is_trusted_and_one_that_takes_none_is_stalled() -> None:
    """
    After 16 MiB that were taken all of the budget is its; who takes 256 KiB in the time is not
    stalled, who takes less is.
    """
    budget = MemoryBudget(64 * MiB)
    client = Client(budget)
    client.answer(16 * MiB, 16 * MiB)
    client.answer(8 * MiB, 0)
    looks = [
        client.answers.stalled(now_ms, 5_000, left)
        for now_ms, left in (
            (0, 8 * MiB),
            (4_000, 7 * MiB),
            (8_000, 7 * MiB),
            (8_999, 7 * MiB - 1000),
            (9_000, 7 * MiB - 1000),
        )
    ]

    assert client.answers.trusted
    assert [False, False, False, False, True] == looks


def test_a_connection_that_is_gone_holds_nothing_and_waits_for_nothing() -> None:
    """
    Whether it held answers, had claimed room or waited for some.
    """
    budget = MemoryBudget(8 * MiB)
    holder, beyond, waiting = (Client(budget) for _ in range(3))
    holder.room(3 * MiB)
    beyond.room(3 * MiB)
    assert not waiting.room(3 * MiB)
    waiting.answers.close()
    holder.answers.close()
    beyond.answers.close()

    assert (0, 0, False) == (budget.held_bytes, budget.waiting, budget.pressed)
    assert [] == waiting.called


def test_nothing_is_counted_for_a_connection_that_is_gone() -> None:
    """
    Work for it may go on: it finds room for whatever it makes, also where it had waited, and the
    next one is told as if nobody were there.
    """
    budget = MemoryBudget(8 * MiB)
    reading, told, next_ = (Client(budget) for _ in range(3))
    assert reading.room(4 * MiB)
    assert told.room(3 * MiB)  # beyond the half
    assert not next_.room(3 * MiB)
    reading.answers.close()
    told.answers.close()
    rooms = [client.room(5 * MiB) for client in (reading, told)]
    reading.answers.made(5 * MiB, claimed=True)
    reading.answers.settle(0)

    assert [True, True] == rooms
    assert (3 * MiB, 0) == (budget.held_bytes, budget.waiting)
    assert 1 == len(next_.called)
