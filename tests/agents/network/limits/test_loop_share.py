"""One iteration of the event loop reads a bounded share of what sockets bring."""

import asyncio
from collections.abc import Callable

from driftlog_agents.foundation.fair_queue import Client
from driftlog_agents.network.limits.loop_share import LoopShare

REQUEST_S = 0.000_1


class Connection:
    """Takes its requests while there is time, as a connection does."""

    def __init__(self, share: LoopShare, work: Callable[[], None], address: str) -> None:
        self.client = Client(address)
        self.requests = 0
        self.taken = 0
        self._share = share
        self._work = work

    def bring(self, requests: int) -> None:
        """A socket has them."""
        self.requests += requests
        self.take_turn()

    def take_turn(self) -> None:
        while self.requests:
            if self._share.used_up:
                self._share.wait(self)
                return
            self.requests -= 1
            self.taken += 1
            self._work()


class World:
    """A loop whose time is the requests that were taken."""

    def __init__(self) -> None:
        self.now_s = 1.0
        self.share = LoopShare(asyncio.get_running_loop(), lambda: self.now_s)
        self.address = "crowd"

    def connection(self, address: str | None = None) -> Connection:
        """Of the crowd's address, or another."""
        return Connection(self.share, self._work, address or self.address)

    def _work(self) -> None:
        self.now_s += REQUEST_S


async def test_a_crowd_has_one_share_of_an_iteration_and_loses_nothing() -> None:
    """
    A thousand connections with fifty requests each: an iteration takes fifty, 5 ms of them.
    """
    world = World()
    crowd = [world.connection() for _ in range(1_000)]
    for connection in crowd:
        connection.bring(50)
    most, before = 0, sum(c.taken for c in crowd)
    first = before
    while any(c.requests for c in crowd):
        await asyncio.sleep(0)
        taken = sum(c.taken for c in crowd)
        most, before = max(most, taken - before), taken

    assert 50 * 1_000 == before
    assert first <= 51
    assert most <= 60


async def test_who_comes_behind_a_crowd_is_served_in_the_next_iteration() -> None:
    """
    From another address, and from the crowd's own.
    """
    world = World()
    crowd = [world.connection() for _ in range(1_000)]
    for connection in crowd:
        connection.bring(500)
    for _ in range(250):  # two rounds and a half
        await asyncio.sleep(0)
    served = []
    for address in ("good", world.address):
        good = world.connection(address)
        good.bring(1)
        waited = 0
        while good.requests:
            await asyncio.sleep(0)
            waited += 1
        served.append(waited)

    assert max(served) <= 2


async def test_who_leaves_has_no_turn() -> None:
    """
    It waits no longer, and the others go on.
    """
    world = World()
    first, second, third = (world.connection() for _ in range(3))
    first.bring(60)
    second.bring(10)
    third.bring(10)
    world.share.leave(second)
    for _ in range(10):
        await asyncio.sleep(0)

    assert 0 == second.taken
    assert 70 == first.taken + third.taken


async def test_beside_a_crowd_of_another_address_iterations_are_short() -> None:
    """
    A request and its acknowledgement need several: ten take 2 ms each, and 5 ms where all clients
    have one address.
    """
    world = World()
    for _ in range(1_000):
        world.connection().bring(500)
    for _ in range(60):  # the first address is another one than none
        await asyncio.sleep(0)
    spent_s = []
    for address in (world.address, "good"):
        good = world.connection(address)
        good.bring(1)
        for _ in range(3):
            await asyncio.sleep(0)
        begun_s = world.now_s
        for _ in range(10):
            await asyncio.sleep(0)
        spent_s.append(world.now_s - begun_s)

    alone_s, beside_s = spent_s
    assert 0.05 <= alone_s <= 0.06
    assert 0.02 <= beside_s <= 0.025


async def test_what_a_turn_begins_runs_before_the_next_turns() -> None:
    """
    The next step of a request, and the next after that, wait for one share of the crowd each.
    """
    world = World()
    crowd = [world.connection() for _ in range(1_000)]
    for connection in crowd:
        connection.bring(500)
    await asyncio.sleep(0)
    taken: list[int] = []
    loop = asyncio.get_running_loop()

    def note(steps: int) -> None:
        taken.append(sum(c.taken for c in crowd))
        if steps:
            loop.call_soon(note, steps - 1)

    good = Connection(world.share, lambda: note(2), "good")
    good.bring(1)
    for _ in range(6):
        await asyncio.sleep(0)

    first, second, third = taken
    assert second - first <= 51
    assert third - second <= 51
    assert third - first <= 75
