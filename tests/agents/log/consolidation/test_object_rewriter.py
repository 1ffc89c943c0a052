"""A consolidated object has every batch at its place, and is made with few requests of bounded
size.
"""

import asyncio
import contextlib
import io
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_agents.log.consolidation.object_layout import PieceSettings, encode, lay_out
from driftlog_agents.log.consolidation.object_rewriter import ObjectRewriter
from driftlog_agents.log.objects.availability import DamagedObjectError, ObjectUnavailableError
from driftlog_metadata.schema.model import FlushRecord
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.batches.batch import build_batch
from driftlog_tiering.batches.kernel_py import Record, encode_record
from driftlog_tiering.formats.flush_object import Footer, decode_footer, encode_footer
from tests.agents.log.lives import on_virtual_time
from tests.support.memory_object_store import MemoryObjectStore

TOPIC = UUID(int=5)
PIECE_BYTES = 1_000
GAP_BYTES = 120

Place = tuple[int, int]
"""Partition, base offset; each batch here has one record."""


class Store(MemoryObjectStore):
    """A bucket that remembers what was asked for."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.gets: list[int] = []
        self.at_once = 0
        self.most_at_once = 0

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        assert end is not None
        self.gets.append(end - start)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return await super().get(key, start, end)


@dataclass(slots=True)
class Spool:
    """In memory, and full of what was there before."""

    file: io.BytesIO = field(default_factory=lambda: io.BytesIO(b"\xee" * 100_000))

    def body(self) -> list[bytes]:
        """Up to where it was written."""
        return [self.file.getvalue()[: self.file.tell()]]


@contextlib.contextmanager
def spool() -> Iterator[Spool]:
    """A spool."""
    made = Spool()
    made.file.seek(0)
    yield made


async def offload(fn: Callable[..., Any], *args: Any) -> Any:
    """At once."""
    return fn(*args)


def batch(place: Place, size: int) -> bytes:
    """One that says where it belongs."""
    value = b"%d/%d" % place + bytes(size)
    return bytes(
        build_batch(
            encode_record(Record(0, 0, None, value, ())),
            base_offset=place[1],
            last_offset_delta=0,
            record_count=1,
            attributes=0,
            base_timestamp=1,
            max_timestamp=1,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
        )
    )


async def put(store: Store, key: str, batches: Sequence[tuple[Place, bytes]]) -> Any:
    """A flush object; returns its record and footer."""
    lengths = [len(data) for _, data in batches]
    n = range(len(batches))
    columns = (
        array("i", [0 for _ in n]),
        array("i", [partition for (partition, _), _ in batches]),
        array("i", [3 for _ in n]),
        array("q", [base for (_, base), _ in batches]),
        array("i", [0 for _ in n]),
        array("h", [0 for _ in n]),
        array("q", [-1 for _ in n]),
        array("h", [-1 for _ in n]),
        array("i", [-1 for _ in n]),
        array("q", [1 for _ in n]),
        array("i", list(accumulate(lengths[:-1], initial=0))),
        array("i", lengths),
        array("q", [7 for _ in n]),
    )
    encoded = encode_footer(
        session_id="s", seq=1, committed_seq=0, topic_ids=(TOPIC,), columns=columns
    )
    await store.put(key, [*(data for _, data in batches), encoded])
    start = sum(lengths)
    record = FlushRecord(object_key=key, size_bytes=start + len(encoded), footer_start=start)
    return record, decode_footer(encoded)


def rewriting_to(store: Store) -> ObjectRewriter:
    """What is tested."""
    return ObjectRewriter(
        objects=store,
        offload=offload,
        spool=spool,
        rng=Random(1),
        now_ms=lambda: 0.0,
        pieces=PieceSettings(piece_bytes=PIECE_BYTES, gap_bytes=GAP_BYTES),
    )


async def batches_in(store: Store, record: FlushRecord) -> dict[Place, bytes]:
    """By where its footer says that they belong."""
    body = await MemoryObjectStore.get(store, record.object_key)
    footer = decode_footer(body[record.footer_start :])
    assert record.size_bytes == len(body)
    assert record.footer_start == sum(footer.columns[11])
    found: dict[Place, bytes] = {}
    for i in range(len(footer)):
        b = footer.batch(i)
        found[b.partition, b.base_offset] = bytes(body[b.position : b.position + b.length])
    return found


FLUSHES = st.lists(
    st.dictionaries(
        st.integers(0, 3), st.lists(st.integers(0, 500), min_size=1, max_size=4), min_size=1
    ),
    min_size=1,
    max_size=5,
)


@given(FLUSHES, st.dictionaries(st.integers(0, 3), st.integers(0, 12)), st.integers(200, 4_000))
def test_every_batch_comes_to_its_place(
    flushes: list[dict[int, list[int]]], sealed: dict[int, int], object_bytes: int
) -> None:
    """
    Whatever the flushes look like, what of them is sealed and where objects are cut; no request
    is larger than a piece, but where a batch is, and neighbours come with one.
    """

    async def check() -> None:
        store = Store()
        expected: dict[Place, bytes] = {}
        ends: dict[int, int] = {}
        writing = rewriting_to(store)
        old: list[tuple[FlushRecord, Footer]] = []
        for n, flush in enumerate(flushes):
            batches = []
            for partition, sizes in sorted(flush.items()):
                for size in sizes:
                    place = (partition, ends.get(partition, 0))
                    ends[partition] = place[1] + 1
                    batches.append((place, batch(place, size)))
            expected |= dict(batches)
            old.append(await put(store, f"flush/old-{n}", batches))
        footers = [footer for _, footer in old]
        objects = lay_out(
            footers,
            lambda tp: min(sealed.get(tp.partition, 0), ends.get(tp.partition, 0)),
            object_bytes,
        )
        found: dict[Place, bytes] = {}
        for new in objects:
            encoded, _ = encode(new, footers, "s", 7)
            store.gets.clear()
            record = await writing.write(new, old, encoded, "s", 7)
            found |= await batches_in(store, record)
            largest = max(map(len, expected.values()))
            assert max(store.gets) <= max(PIECE_BYTES, largest)
            assert store.most_at_once <= 2
            wasted = sum(store.gets) - record.footer_start
            assert 0 <= wasted <= GAP_BYTES * len(new.runs)
            assert len(store.gets) <= len(new.runs) + record.footer_start // (PIECE_BYTES // 2)

        assert {p: b for p, b in expected.items() if p[1] >= sealed.get(p[0], 0)} == found

    on_virtual_time(check)()


async def two(store: Store) -> list[tuple[FlushRecord, Footer]]:
    """Flush objects of two batches each."""
    return [
        await put(
            store,
            f"flush/old-{n}",
            [((p, n), batch((p, n), 10)) for p in (0, 1)],
        )
        for n in (0, 1)
    ]


def test_neighbours_come_with_one_request() -> None:
    """
    All of an object that is needed side by side, and what is between, if that is little.
    """

    async def check() -> None:
        store = Store()
        three = [((p, 0), batch((p, 0), 10)) for p in (0, 1, 2)]
        old = [await put(store, "flush/old", three)]
        footers = [old[0][1]]
        (new,) = lay_out(footers, lambda tp: int(tp.partition == 1), 10_000)
        encoded, _ = encode(new, footers, "s", 7)

        record = await rewriting_to(store).write(new, old, encoded, "s", 7)

        assert [sum(len(data) for _, data in three)] == store.gets
        assert {(0, 0), (2, 0)} == set(await batches_in(store, record))

        store.gets.clear()
        far = [((p, 1), batch((p, 1), 10 if p != 1 else 300)) for p in (0, 1, 2)]
        old = [await put(store, "flush/far", far)]
        footers = [old[0][1]]
        (new,) = lay_out(footers, lambda tp: 2 * int(tp.partition == 1), 10_000)
        encoded, _ = encode(new, footers, "s", 8)
        await rewriting_to(store).write(new, old, encoded, "s", 8)

        assert [len(far[0][1]), len(far[2][1])] == store.gets

    on_virtual_time(check)()


@pytest.mark.parametrize("damage", ["missing", "short", "flipped", "moved"])
def test_an_old_object_that_is_damaged_is_named_and_nothing_is_put(damage: str) -> None:
    """
    What would be copied would pass for sound: the new footer is.
    """

    async def check() -> None:
        store = Store()
        old = await two(store)
        key = old[1][0].object_key
        body = bytearray(await MemoryObjectStore.get(store, key))
        await store.delete([key])
        match damage:
            case "short":
                await store.put(key, [body[:100]])
            case "flipped":
                body[70] ^= 1
                await store.put(key, [body])
            case "moved":
                body[7] += 1
                await store.put(key, [body])
            case _:
                pass
        footers = [footer for _, footer in old]
        (new,) = lay_out(footers, lambda _: 0, 10_000)
        encoded, _ = encode(new, footers, "s", 7)
        before = len(store.gets)

        with pytest.raises((ObjectUnavailableError, DamagedObjectError)) as raised:
            await rewriting_to(store).write(new, old, encoded, "s", 7)

        assert isinstance(raised.value, ObjectUnavailableError | DamagedObjectError)
        assert key == raised.value.key
        assert (damage == "missing") == isinstance(raised.value, ObjectUnavailableError)
        assert len(store.gets) > before
        assert not [k async for page in store.list("flush/s/") for k in page.objects]

    on_virtual_time(check)()


def test_a_full_disk_costs_an_attempt() -> None:
    """
    Not the agent.
    """

    class Full(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(28, "No space left on device")

    @contextlib.contextmanager
    def full() -> Iterator[Spool]:
        yield Spool(Full())

    async def check() -> None:
        store = Store()
        old = await two(store)
        footers = [footer for _, footer in old]
        (new,) = lay_out(footers, lambda _: 0, 10_000)
        encoded, _ = encode(new, footers, "s", 7)
        writing = ObjectRewriter(
            objects=store, offload=offload, spool=full, rng=Random(1), now_ms=lambda: 0.0
        )

        with pytest.raises(UnavailableError, match="No space left"):
            await writing.write(new, old, encoded, "s", 7)

    on_virtual_time(check)()


def test_a_store_that_refuses_is_asked_three_times() -> None:
    """
    And then it is somebody else's turn.
    """

    class Refusing(Store):
        refused = 0

        async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
            if self.refused < 2:
                self.refused += 1
                raise UnavailableError("slow down")
            return await super().get(key, start, end)

    async def check() -> None:
        store = Refusing()
        old = await two(store)
        footers = [footer for _, footer in old]
        (new,) = lay_out(footers, lambda _: 0, 10_000)
        encoded, _ = encode(new, footers, "s", 7)
        writing = rewriting_to(store)
        record = await writing.write(new, old, encoded, "s", 7)
        assert 4 == len(await batches_in(store, record))

        store.refused = -10
        with pytest.raises(UnavailableError, match="slow down"):
            await writing.write(new, old, encoded, "s", 7)

    on_virtual_time(check)()


def test_who_is_told_to_end_does_while_a_store_fails() -> None:
    """
    One read has failed and another is slow to be given up: that it failed is not what is told,
    or the keeper would go on, and an agent that leaves would wait for it for ever.
    """

    class Failing(Store):
        async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
            self.gets.append(0)
            if len(self.gets) > 1:
                raise UnavailableError("slow down")
            try:
                return await asyncio.Event().wait()  # type: ignore[return-value]
            except asyncio.CancelledError:
                await asyncio.sleep(0.05)
                raise

    async def check() -> None:
        store = Failing()
        old = await two(store)
        footers = [footer for _, footer in old]
        (new,) = lay_out(footers, lambda _: 0, 10_000)
        encoded, _ = encode(new, footers, "s", 7)
        task = asyncio.create_task(rewriting_to(store).write(new, old, encoded, "s", 7))
        await asyncio.sleep(5)
        assert len(store.gets) >= 4  # the slow one, and three attempts of the other
        assert task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    on_virtual_time(check)()
