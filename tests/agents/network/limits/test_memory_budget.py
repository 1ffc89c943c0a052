"""Incomplete frames hold bounded memory, whatever clients send, and no frame waits for ever."""

import struct
from random import Random

import pytest

from driftlog_agents.foundation.fair_queue import Client
from driftlog_agents.network.frames import FrameReader
from driftlog_agents.network.limits.memory_budget import MemoryBudget, SharedMemory
from driftlog_agents.protocol.errors import CorruptFrameError
from driftlog_tiering.stores.buffer_pool import BufferPool

KiB, MiB = 1024, 1024 * 1024
LARGEST = 8 * MiB
LITTLE = 4 * KiB


class Peer:
    """A client and the reader of its connection: it sends frames, as far as it is read."""

    def __init__(
        self, budget: MemoryBudget, shared: memoryview, frames: list[bytes], address: str = ""
    ) -> None:
        client = Client(address)
        self.reader = FrameReader(LARGEST, shared, BufferPool(0), budget, client=client)
        self.sent = list(frames)
        self.stream = memoryview(b"".join(struct.pack(">i", len(f)) + f for f in frames))
        self.received: list[bytes] = []

    def bring(self, size: int) -> bool:
        """Send so much at most; False: it is not read, or has sent everything."""
        if self.reader.waiting or not self.stream:
            return False
        buffer = self.reader.buffer()
        size = min(size, len(buffer), len(self.stream))
        buffer[:size] = self.stream[:size]
        self.stream = self.stream[size:]
        self.received += [bytes(frame) for frame in self.reader.received(size)]
        self.reader.taken()
        return True


@pytest.mark.parametrize("seed", range(30))
def test_frames_of_many_are_bounded_and_all_arrive(seed: int) -> None:
    """
    Whatever the sizes and the order in which bytes come: what is held is within the limit, one
    frame, and what came before there was a limit to heed; and as long as clients go on, every
    frame arrives, unchanged.
    """
    rng = Random(seed)
    limit = rng.choice((256 * KiB, MiB, 4 * MiB))
    budget = MemoryBudget(limit)
    shared = memoryview(bytearray(64 * KiB))
    sizes = (8, 5_000, 30_000, 33_000, 100_000, MiB, 3 * MiB, LARGEST)
    peers = [
        Peer(budget, shared, [rng.randbytes(rng.choice(sizes)) for _ in range(rng.randint(1, 4))])
        for _ in range(rng.choice((3, 12)))
    ]
    small = len(peers) * 32 * KiB
    left = list(peers)
    while left:
        peer = rng.choice(left)
        for _ in range(rng.randint(1, 20)):
            peer.bring(rng.choice((1, 500, 64 * KiB, 64 * KiB, MiB)))
            assert budget.held_bytes == sum(p.reader.buffered_bytes for p in peers)
            assert budget.held_bytes <= limit + LARGEST + small + 64 * KiB
        left = [p for p in left if p.stream]
        assert not left or any(not p.reader.waiting for p in left), "everybody waits"

    assert [p.sent for p in peers] == [p.received for p in peers]
    assert (0, 0, False) == (budget.held_bytes, budget.waiting, budget.pressed)


def begun(budget: MemoryBudget, size: int, *, trusted: bool = False, address: str = "") -> Peer:
    """A client that has sent all but the last byte of a frame, as far as it was read."""
    peer = Peer(budget, memoryview(bytearray(64 * KiB)), [bytes(size)], address)
    peer.reader.trusted = trusted
    while len(peer.stream) > 1 and peer.bring(len(peer.stream) - 1):
        pass
    return peer


def test_strangers_leave_half_of_it_to_those_who_have_brought_frames() -> None:
    """
    A hundred begin frames and end none: beside one of them, which goes ahead, they hold half;
    who has brought a large frame before does not wait for them.
    """
    budget = MemoryBudget(8 * MiB)
    strangers = [begun(budget, MiB) for _ in range(100)]
    held = budget.held_bytes
    good = begun(budget, MiB, trusted=True)

    assert held <= 5 * MiB + 100 * LITTLE
    assert sum(peer.reader.waiting for peer in strangers) > 90
    assert not good.reader.waiting


def test_who_waited_longest_goes_ahead_and_the_next_when_it_is_done() -> None:
    """
    Frames larger than the whole budget come one after the other, in the order in which they
    asked.
    """
    budget = MemoryBudget(MiB)
    peers = [begun(budget, 2 * MiB, trusted=True) for _ in range(4)]
    order = []
    for _ in peers:
        (ahead,) = [peer for peer in peers if not peer.reader.waiting and peer.stream]
        order.append(peers.index(ahead))
        while ahead.bring(MiB):
            pass

    assert [0, 1, 2, 3] == order
    assert 0 == budget.held_bytes


def test_strangers_and_others_go_ahead_in_turn() -> None:
    """
    Neither a crowd of strangers nor those who always have frames keep the others from going
    ahead.
    """
    budget = MemoryBudget(MiB)
    peers = [begun(budget, 2 * MiB, trusted=n >= 6) for n in range(9)]
    order = []
    for _ in range(6):
        (ahead,) = [peer for peer in peers if not peer.reader.waiting and peer.stream]
        order.append(ahead.reader.trusted)
        ahead.reader.release()
        ahead.stream = memoryview(b"")

    assert [False, True, False, True, False, True] == order


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("victim", [0, 1, 3])
def test_those_who_go_make_room(victim: int, trusted: bool) -> None:
    """
    Whether it was ahead, held its share or waited: what it held is given on, once.
    """
    budget = MemoryBudget(MiB)
    peers = [begun(budget, 600 * KiB, trusted=trusted) for _ in range(4)]
    waited = budget.waiting
    peers.pop(victim).reader.release()
    for _ in range(len(peers)):
        for peer in peers:
            while peer.bring(MiB):
                pass

    assert (2 if trusted else 3) == waited
    assert [[bytes(600 * KiB)]] * 3 == [peer.received for peer in peers]
    assert (0, 0, False) == (budget.held_bytes, budget.waiting, budget.pressed)


def test_the_head_of_a_frame_that_waits_makes_no_room_for_itself() -> None:
    """
    A client that waits for the memory of its frame leaves: its head is what was missing.
    """
    budget = MemoryBudget(82 * KiB)
    first, ahead, waiting = (begun(budget, size * KiB, trusted=True) for size in (80, 40, 40))
    first.reader.release()
    waited = budget.waiting
    waiting.reader.release()
    ahead.reader.release()

    assert 1 == waited
    assert (0, 0, False) == (budget.held_bytes, budget.waiting, budget.pressed)


def test_a_crowd_whose_frames_are_nearly_there_goes_on_one_after_the_other() -> None:
    """
    Each that gets its memory gives back a head that is nearly as large, and so lets the next go
    on: however many they are, none is forgotten on the way.
    """
    budget = MemoryBudget(40 * MiB)
    shared = memoryview(bytearray(64 * KiB))
    first = [begun(budget, LARGEST, trusted=True) for _ in range(5)]
    crowd = [Peer(budget, shared, [bytes(34 * KiB)]) for _ in range(1_000)]
    for peer in crowd:
        peer.reader.trusted = True
        peer.bring(34 * KiB)
    waited = budget.waiting
    for large in first:
        large.reader.release()
    for peer in crowd:
        peer.bring(34 * KiB)

    assert 900 < waited
    assert {1} == {len(peer.received) for peer in crowd}
    assert (0, 0, False) == (budget.held_bytes, budget.waiting, budget.pressed)


def test_a_frame_that_is_refused_is_counted_no_longer() -> None:
    """
    Its first bytes were held until the size showed what it is.
    """
    budget = MemoryBudget(MiB)
    reader = FrameReader(LARGEST, memoryview(bytearray(64 * KiB)), BufferPool(0), budget)
    reader.buffer()[:3] = b"\xff\xff\xff"
    list(reader.received(3))
    held = budget.held_bytes
    reader.buffer()[:1] = b"\xff"
    with pytest.raises(CorruptFrameError):
        list(reader.received(1))
    reader.release()

    assert (3, 0) == (held, budget.held_bytes)


def test_pressure_is_told_once_and_ends() -> None:
    """
    Whoever watches it is told when it begins, not at every byte.
    """
    told: list[bool] = []
    budget = MemoryBudget(MiB, lambda: told.append(True))
    peers = [begun(budget, MiB) for _ in range(10)]
    during = budget.pressed
    for peer in peers:
        peer.reader.release()

    assert during
    assert [True] == told
    assert (0, False) == (budget.held_bytes, budget.pressed)


def test_a_crowd_of_strangers_earns_its_memory() -> None:
    """
    Where an eighth is held, who announces 8 MiB and sends a little gets a little.
    """
    budget = MemoryBudget(64 * MiB)
    shared = memoryview(bytearray(64 * KiB))
    peers = [Peer(budget, shared, [bytes(LARGEST)]) for _ in range(30)]
    for peer in peers:
        peer.bring(LITTLE)

    assert not budget.pressed
    assert budget.held_bytes <= 64 * MiB // 8 + 2 * MiB + 30 * 64 * KiB


@pytest.mark.parametrize("seed", range(30))
def test_frames_of_several_budgets_are_bounded_together_and_all_arrive(seed: int) -> None:
    """
    Each budget alone may have as much as all together: what they hold is within the common limit
    and one frame of each; nobody waits for ever, and every frame arrives.
    """
    rng = Random(seed)
    limit = rng.choice((256 * KiB, MiB, 4 * MiB))
    budgets = [MemoryBudget(rng.choice((limit // 16, limit, 2 * limit))) for _ in range(3)]
    SharedMemory(limit, budgets)
    limits = [budget.limit_bytes for budget in budgets]
    shared = memoryview(bytearray(64 * KiB))
    sizes = (8, 5_000, 30_000, 33_000, 100_000, MiB, 3 * MiB, LARGEST)
    peers = [
        Peer(
            rng.choice(budgets),
            shared,
            [rng.randbytes(rng.choice(sizes)) for _ in range(rng.randint(1, 4))],
        )
        for _ in range(rng.choice((3, 15)))
    ]
    small = len(peers) * 32 * KiB
    for peer in peers:
        peer.reader.trusted = rng.random() < 0.5
    left = list(peers)
    while left:
        peer = rng.choice(left)
        for _ in range(rng.randint(1, 20)):
            peer.bring(rng.choice((1, 500, 64 * KiB, 64 * KiB, MiB)))
            held = sum(budget.held_bytes for budget in budgets)
            assert held == sum(p.reader.buffered_bytes for p in peers)
            assert held <= limit + 3 * LARGEST + small + 64 * KiB
        if rng.random() < 0.02:
            peer.reader.release()
            peer.stream, peer.sent, peer.received = memoryview(b""), [], []
        left = [p for p in left if p.stream]
        assert not left or any(not p.reader.waiting for p in left), "everybody waits"

    assert [p.sent for p in peers] == [p.received for p in peers]
    assert [(0, 0, False)] * 3 == [(b.held_bytes, b.waiting, b.pressed) for b in budgets]
    assert limits == [budget.limit_bytes for budget in budgets]


def test_a_budget_has_its_eighth_whatever_others_hold() -> None:
    """
    Beyond it, it has what the others leave; and they are told that it is wanted.
    """
    greedy, modest = MemoryBudget(56 * MiB), MemoryBudget(56 * MiB)
    SharedMemory(64 * MiB, (greedy, modest))
    others = [begun(greedy, LARGEST, trusted=True) for _ in range(9)]
    held = greedy.held_bytes
    mine = [begun(modest, 2 * MiB, trusted=True) for _ in range(6)]

    assert 56 * MiB <= held <= 65 * MiB
    assert [False] * 5 + [True] == [peer.reader.waiting for peer in mine]
    assert greedy.wanted
    assert "driftlog.max.network.bytes" == modest.limited_by("its.own")
    for peer in others:
        peer.reader.release()
    assert not any(peer.reader.waiting for peer in mine)
    assert not greedy.wanted
    assert "its.own" == modest.limited_by("its.own")


def test_who_goes_beyond_the_limit_takes_nothing_from_other_budgets() -> None:
    """
    Before, one frame of 30 MiB pressed all budgets while it arrived, however slowly.
    """
    budgets = [MemoryBudget(48 * MiB) for _ in range(3)]
    SharedMemory(64 * MiB, budgets)
    peers = [begun(budget, LARGEST, trusted=True) for budget in budgets for _ in range(2)]
    calm = [budget.pressed for budget in budgets]
    beyond = Peer(budgets[0], memoryview(bytearray(64 * KiB)), [bytes(30 * MiB)])
    beyond.reader = FrameReader(
        30 * MiB, memoryview(bytearray(64 * KiB)), BufferPool(0), budgets[0]
    )
    beyond.reader.trusted = True
    while len(beyond.stream) > 1 and beyond.bring(len(beyond.stream) - 1):
        pass

    assert [False] * 3 == calm
    assert not beyond.reader.waiting
    assert [True, False, False] == [budget.pressed for budget in budgets]
    for peer in (*peers, beyond):
        peer.reader.release()
    assert [(0, False)] * 3 == [(budget.held_bytes, budget.pressed) for budget in budgets]


def test_memory_that_would_help_nobody_is_not_wanted() -> None:
    """
    Holders that wait for the limit of their own budget are no reason to close others' clients.
    """
    waited, held = MemoryBudget(8 * MiB), MemoryBudget(40 * MiB)
    SharedMemory(64 * MiB, (waited, held))
    peers = [begun(held, LARGEST, trusted=True) for _ in range(3)]
    peers += [begun(waited, 2 * MiB, trusted=True) for _ in range(6)]

    assert waited.waiting
    assert not held.wanted
    for peer in peers:
        peer.reader.release()


def test_addresses_that_wait_have_memory_in_turns() -> None:
    """
    Twenty connections of one address wait for memory before one of another: at most two of them go
    before it, and one when it asks again.
    """
    budget = MemoryBudget(MiB)
    crowd = [begun(budget, 2 * MiB, address="10.0.0.1") for _ in range(20)]
    ends = []
    for _ in range(2):
        one = begun(budget, 2 * MiB, address="10.0.0.2")
        order = 0
        while one.reader.waiting:
            (ahead,) = [peer for peer in crowd if not peer.reader.waiting and peer.stream]
            ahead.reader.release()
            ahead.stream = memoryview(b"")
            order += 1
        ends.append(order)
        one.reader.release()

    assert [2, 1] == ends


class Waits:
    """A stranger that asks for memory at once."""

    trusted = False

    def __init__(self, address: str) -> None:
        self.client = Client(address)
        self.went_on = False

    def go_on(self) -> None:
        self.went_on = True


def test_an_address_that_had_less_passes_a_crowd_where_there_is_room() -> None:
    """
    The next of a crowd does not fit in what one of them left.  As they were given memory, another
    address does not wait behind them for the little that it asks for; of them, nobody passes the
    others.
    """
    budget = MemoryBudget(32 * MiB)
    crowd = [Waits("10.0.0.1") for _ in range(6)]
    begun = [budget.take(one, 6 * MiB) for one in crowd]
    budget.done(crowd[2], 6 * MiB)
    budget.done(crowd[0], 6 * MiB)
    passes = [budget.take(Waits(address), MiB) for address in ("10.0.0.1", "10.0.0.2")]

    assert [True] * 3 + [False] * 3 == begun
    assert [False, False, False, True, False, False] == [one.went_on for one in crowd]
    assert [False, True] == passes
    assert 13 * MiB == budget.held_bytes
