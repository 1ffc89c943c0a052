"""Frames give the same requests however they are cut, and take memory for what was sent only."""

import ctypes
import struct
from itertools import pairwise
from mmap import mmap
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.network.frames import LARGE_BYTES, FrameReader
from driftlog_agents.network.limits.memory_budget import MemoryBudget
from driftlog_agents.protocol.errors import CorruptFrameError
from driftlog_tiering.stores.buffer_pool import BufferPool

MiB = 1024 * 1024
LIMIT = 100 * MiB
TRUSTED = 2 * MiB


def make_reader(
    limit: int = LIMIT, *, shared_bytes: int = 64 * 1024, budget: MemoryBudget | None = None
) -> FrameReader:
    """Of one connection."""
    shared = memoryview(bytearray(shared_bytes))
    return FrameReader(limit, shared, BufferPool(64 * MiB), budget or MemoryBudget(256 * MiB))


def framed(*bodies: bytes) -> bytes:
    """The stream of these requests."""
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def feed(reader: FrameReader, data: bytes | memoryview) -> list[memoryview]:
    """Give *data* as a socket does: as much as there is room for at a time."""
    view = memoryview(data)
    frames: list[memoryview] = []
    while view:
        buffer = reader.buffer()
        size = min(len(buffer), len(view))
        assert size > 0, "no room, and the connection would wait for ever"
        buffer[:size] = view[:size]
        view = view[size:]
        frames += reader.received(size)
        reader.taken()
    return frames


def body(size: int, seed: int = 0) -> bytes:
    """A request of *size* bytes."""
    return Random(seed).randbytes(size)


# ── Fragmentation ──

SIZES = st.one_of(
    st.integers(8, 300),
    st.sampled_from([LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, LARGE_BYTES + 5, 100_000]),
)


@given(st.lists(SIZES, max_size=8), st.data())
def test_requests_survive_any_fragmentation(sizes: list[int], data: st.DataObject) -> None:
    """
    Cutting the stream anywhere neither loses, adds, alters nor reorders requests.
    """
    sent = [body(size, n) for n, size in enumerate(sizes)]
    stream = framed(*sent)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=12)) | {0, len(stream)})
    reader = make_reader()

    received = [frame for i, j in pairwise(cuts) for frame in feed(reader, stream[i:j])]

    assert sent == [bytes(frame) for frame in received]
    assert reader.buffered_bytes == 0


def test_requests_survive_arriving_byte_by_byte() -> None:
    """
    Sizes are cut too; nothing is held that is complete.
    """
    sent = [body(8), body(LARGE_BYTES + 1, 1), body(9, 2), body(8, 3)]
    reader, received = make_reader(), []

    for n in range(len(stream := framed(*sent))):
        received += [bytes(frame) for frame in feed(reader, stream[n : n + 1])]

    assert sent == received


@pytest.mark.parametrize("size", [TRUSTED - 1, TRUSTED, TRUSTED + 1, 3 * MiB, 8 * MiB, 9 * MiB + 7])
def test_huge_requests_arrive_whole(size: int) -> None:
    """
    Also where their memory had to grow, and what stands behind them is the next request.
    """
    sent = [body(size), body(20, 1), body(size, 2)]
    reader = make_reader()

    assert sent == [bytes(frame) for frame in feed(reader, framed(*sent))]


def test_a_huge_request_is_moved_only_while_little_of_it_has_come() -> None:
    """
    To copy 32 MiB into fresh memory takes the event loop 50 ms: beyond 2 MiB, what arrives stays
    where it is, and the frame counts no more than before.
    """
    budget = MemoryBudget(256 * MiB)
    reader, chunk = make_reader(budget=budget), bytes(MiB)
    feed(reader, struct.pack(">i", 90 * MiB) + bytes(3 * MiB))
    places, counted = set(), set()
    for _ in range(86):
        feed(reader, chunk)
        byte = ctypes.c_char.from_buffer(reader.buffer())
        places.add(ctypes.addressof(byte) - reader.arrived_bytes)
        counted.add(budget.held_bytes)
        del byte
    [frame] = feed(reader, chunk)

    assert 1 == len(places)
    assert {8 * MiB, 32 * MiB, 90 * MiB} == counted
    assert 90 * MiB == len(frame)


def test_connections_may_share_where_small_reads_land() -> None:
    """
    It is emptied at once: halves of requests that come in turns are not mixed up.
    """
    shared, pool = memoryview(bytearray(64 * 1024)), BufferPool(MiB)
    readers = [FrameReader(LIMIT, shared, pool, MemoryBudget(256 * MiB)) for _ in range(3)]
    sent = [framed(body(1_000 * (n + 1), n), body(40_000, n)) for n in range(3)]
    received: list[list[memoryview]] = [[], [], []]
    for at in range(0, 45_000, 700):
        for reader, stream, frames in zip(readers, sent, received, strict=True):
            frames += feed(reader, stream[at : at + 700])

    assert sent == [framed(*map(bytes, frames)) for frames in received]


# ── Whose memory it is ──


def test_frames_are_writable_and_do_not_overlap() -> None:
    """
    Offsets are patched into them where they lie: that changes no other, and no later read does.
    """
    sent = [body(50, n) for n in range(4)] + [body(40_000, 9)]
    reader = make_reader()
    frames = feed(reader, framed(*sent))
    frames[1][:] = bytes(50)
    later = feed(reader, framed(*[bytes(50)] * 5, bytes(40_000)))

    expected = [sent[0], bytes(50), *sent[2:]]
    assert expected == [bytes(frame) for frame in frames]
    assert not any(any(frame) for frame in later)


def test_a_large_request_is_read_into_its_own_memory() -> None:
    """
    The socket's next bytes go straight behind those that are there, up to its end and no further:
    what the kernel filled is what is handed out.
    """
    sent = body(200_000)
    reader = make_reader()
    assert [] == feed(reader, framed(sent)[:1_004])

    buffer = reader.buffer()
    assert 199_000 == len(buffer)
    buffer[:] = sent[1_000:]
    (frame,) = reader.received(199_000)

    assert sent == bytes(frame)
    assert frame.obj is buffer.obj


# ── Sizes ──


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 7, 1_001, 2**31 - 1])
@pytest.mark.parametrize("before", [0, 1])
def test_a_size_that_no_request_has_is_refused_before_it_is_buffered(
    size: int, before: int
) -> None:
    """
    Negative, too short for a header, over the limit: as soon as its four bytes are there, behind
    a good request or not.
    """
    reader = make_reader(1_000)
    feed(reader, framed(*[body(10)] * before) + struct.pack(">i", size)[:3])

    with pytest.raises(CorruptFrameError, match=str(size)):
        feed(reader, struct.pack(">i", size)[3:])

    assert reader.buffered_bytes <= 4


@pytest.mark.parametrize("size", [8, 1_000])
def test_the_limits_themselves_are_requests(size: int) -> None:
    """
    The shortest header, and exactly socket.request.max.bytes.
    """
    (frame,) = feed(make_reader(1_000), framed(body(size)))

    assert body(size) == bytes(frame)


def test_who_announces_much_gets_little() -> None:
    """
    100 MiB announced and two bytes sent hold 2 MiB; more comes as it is earned, a fourfold at a
    time.
    """
    reader = make_reader()
    feed(reader, struct.pack(">i", 100 * MiB) + b"xy")
    assert TRUSTED == reader.buffered_bytes

    received = 1
    for size in (TRUSTED - 1, 6 * MiB, 20 * MiB):
        feed(reader, bytes(size))
        received += size
        assert reader.buffered_bytes <= max(TRUSTED, 4 * received)
    (frame,) = feed(reader, bytes(100 * MiB - received))
    assert 100 * MiB == len(frame)


# ── The pool ──


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3 * MiB), st.booleans()), max_size=60))
def test_the_pool_never_hands_out_memory_that_somebody_looks_at(
    steps: list[tuple[int, int, bool]],
) -> None:
    """
    Views, views of views and the buffer itself all count: of everything that is held nothing is
    ever given to another.
    """
    pool = BufferPool(8 * MiB)
    held: dict[int, memoryview | bytearray | mmap] = {}
    for slot, length, as_view in steps:
        held.pop(slot, None)
        buffer = pool.take(length)
        assert len(buffer) >= length
        for other in held.values():
            assert buffer is not (other.obj if isinstance(other, memoryview) else other)
        held[slot] = memoryview(buffer)[:length][length // 2 :] if as_view else buffer
        del buffer


def test_memory_that_nobody_looks_at_is_used_again() -> None:
    """
    Fresh pages cost more than all else on the way in: one connection that sends one request after
    the other needs one buffer.
    """
    pool = BufferPool(8 * MiB)
    first = pool.take(MiB)
    address = id(first)
    view = memoryview(first)[10:20]
    del first
    assert id(pool.take(MiB)) != address

    del view
    assert address in {id(pool.take(MiB)) for _ in range(2)}


def test_large_buffers_are_used_again_too() -> None:
    """
    Those of 9 MiB are pages of the system's: a view of one keeps it.
    """
    pool = BufferPool(32 * MiB)
    view = memoryview(pool.take(9 * MiB))[5 : 8 * MiB]
    view[:3] = b"abc"
    assert pool.take(9 * MiB) is not view.obj
    assert b"abc" == bytes(view[:3])

    kept = id(view.obj)
    del view
    assert kept in {id(pool.take(9 * MiB)) for _ in range(2)}


def test_the_pool_keeps_no_more_than_its_limit() -> None:
    """
    What is over it is the allocator's: freed when its last view goes.
    """
    pool = BufferPool(4 * MiB)
    held = [memoryview(pool.take(MiB)) for _ in range(10)]
    assert 10 == len({id(view.obj) for view in held})
    kept = {id(view.obj) for view in held[:4]}
    del held

    assert kept == {id(pool.take(MiB)) for _ in range(40)}


def test_a_pool_full_of_other_sizes_makes_room() -> None:
    """
    Clients that change their batch size do not leave the pool full of what nobody asks for.
    """
    pool = BufferPool(4 * MiB)
    for _ in range(3):
        views = [memoryview(pool.take(64 * 1024)) for _ in range(64)]
        del views
        first = id(pool.take(MiB))
        assert first == id(pool.take(MiB)), "it was not kept"


def test_frames_of_many_connections_keep_their_contents() -> None:
    """
    Through one small pool, held for a while and dropped in any order: nothing is overwritten
    while somebody holds it.
    """
    rng, pool = Random(5), BufferPool(MiB)
    shared = memoryview(bytearray(64 * 1024))
    readers = [FrameReader(LIMIT, shared, pool, MemoryBudget(256 * MiB)) for _ in range(4)]
    held: list[tuple[bytes, memoryview]] = []
    for n in range(400):
        sent = body(rng.choice((40_000, 70_000, 200_000)), n)
        cut = rng.randrange(len(sent))
        reader = rng.choice(readers)
        feed(reader, framed(sent)[:cut])
        (frame,) = feed(reader, framed(sent)[cut:])
        held.append((sent, frame[1_000:]))
        del frame
        while len(held) > 12:
            del held[rng.randrange(len(held))]
        assert all(sent[1_000:] == view for sent, view in held)
