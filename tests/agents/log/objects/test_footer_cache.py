"""The footer cache: read once, bounded, and damage is only what is damage."""

import asyncio
from array import array
from collections.abc import Sequence
from uuid import UUID

import pytest

from driftlog_agents.health.write_health import WriteHealthSettings
from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.objects.footer_cache import FooterCache, RecordGoneError
from driftlog_agents.log.session.lease import SessionSettings
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.codec import encode_flush_record
from driftlog_metadata.schema.keys import flush_key
from driftlog_metadata.schema.model import Agent, FlushRecord
from driftlog_metadata.stores.errors import FencedError, OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.store import Delete, Put
from driftlog_tiering.formats.flush_object import Footer, encode_footer
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_store import NotFoundError
from tests.agents.log.lives import World, now_ms, on_virtual_time
from tests.support.clusters import in_cluster
from tests.support.memory_object_store import MemoryObjectStore


class Store(MemoryObjectStore):
    """A bucket that counts GETs, and whose next ones fail as they are told."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.gets = 0
        self.at_once = 0
        self.most_at_once = 0
        self.fates: list[Exception] = []
        self.deaf = 0
        """So many GETs are never answered."""
        self.withheld: set[str] = set()

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.gets += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0.01)
            if self.deaf:
                self.deaf -= 1
                await asyncio.Event().wait()
            if self.fates:
                raise self.fates.pop(0)
            if key in self.withheld:
                raise UnavailableError("no read quorum")
            return await super().get(key, start, end)
        finally:
            self.at_once -= 1


def footer_of(seq: int, batches: int = 1) -> bytes:
    """A footer of one partition with so many batches of 10 bytes."""
    n = range(batches)
    columns = (
        array("i", [0 for _ in n]),
        array("i", [0 for _ in n]),
        array("i", [3 for _ in n]),
        array("q", n),
        array("i", [0 for _ in n]),
        array("h", [0 for _ in n]),
        array("q", [-1 for _ in n]),
        array("h", [-1 for _ in n]),
        array("i", [-1 for _ in n]),
        array("q", [5 for _ in n]),
        array("i", [10 * i for i in n]),
        array("i", [10 for _ in n]),
        array("q", [7 for _ in n]),
    )
    return encode_footer(
        session_id="s", seq=seq, committed_seq=0, topic_ids=(UUID(int=1),), columns=columns
    )


class Records:
    """Flush objects and their records, in one world."""

    def __init__(self, session: Session, world: World) -> None:
        self.session = session
        self.world = world
        self.store = Store()

    async def put(self, seq: int, batches: int = 1) -> tuple[str, FlushRecord]:
        """A committed flush: its record's key, its record."""
        footer = footer_of(seq, batches)
        start = 10 * batches
        record = FlushRecord(
            object_key=f"flush/s/{seq}", size_bytes=start + len(footer), footer_start=start
        )
        await self.store.put(record.object_key, [bytes(start), footer])
        key = flush_key("s", seq)
        await self.world.metadata.txn((), [Put(key, encode_flush_record(record))])
        return key, record

    def footers(self, budget_bytes: int = 1_000_000) -> FooterCache:
        """A cache of them."""
        return FooterCache(
            session=self.session, objects=self.store, now_ms=now_ms, budget_bytes=budget_bytes
        )


async def begun() -> Records:
    """An empty bucket and a session."""
    world = World()
    agent = Agent(
        node_id=9,
        session_id=f"{7:032x}",
        listeners=(),
        http_address="",
        rack=None,
        started_at_ms=0,
    )
    session = Session(
        store=await in_cluster(world.metadata),
        agent=agent,
        settings=SessionSettings(ttl_ms=60_000),
        now_ms=now_ms,
    )
    await session.open()
    return Records(session, world)


@on_virtual_time
async def test_a_footer_is_read_once_however_many_ask_at_the_same_time() -> None:
    """
    Who asks while it is read waits for that, and later ones get it without a request.
    """
    records = await begun()
    named = await records.put(1, 3)
    footers = records.footers()

    found = await asyncio.gather(*[footers.get(*named) for _ in range(5)])
    again = await footers.get(*named)

    assert [3] * 6 == [len(footer) for footer in (*found, again)]
    assert 1 == records.store.gets


@on_virtual_time
async def test_what_is_in_memory_is_known_if_it_is_small_and_sound() -> None:
    """
    The others are for `get`: it decodes large ones elsewhere, and reads damaged ones again.
    """
    records = await begun()
    footers = records.footers()
    small, large = await records.put(1), await records.put(2, batches=40_000)
    before = footers.known(small[1])
    await footers.fetch([small, large])
    asked = records.store.gets
    footers.keep(large[1].object_key, bytes(20_000))
    footers.keep("flush/s/3", b"damaged")
    damaged = FlushRecord(object_key="flush/s/3", size_bytes=7, footer_start=0)

    found = footers.known(small[1])
    await footers.fetch([small])

    assert (None, 1) == (before, len(found or ()))
    assert [None, None] == [footers.known(large[1]), footers.known(damaged)]
    assert asked == records.store.gets


@on_virtual_time
async def test_the_next_session_of_a_process_reads_no_footer_again() -> None:
    """
    What it takes over is what it wrote and read itself a moment ago; within the budget, as ever.
    """
    records = await begun()
    named = [await records.put(seq, 1) for seq in range(3)]
    before, after = records.footers(), records.footers()
    found = [await before.get(*one) for one in named]
    gets = records.store.gets
    after.inherit(before)
    again = [await after.get(*one) for one in named]
    small = records.footers(budget_bytes=1)
    small.inherit(before)

    assert gets == records.store.gets == 3
    assert [len(footer) for footer in found] == [len(footer) for footer in again]
    assert (before.size_bytes, 0) == (after.size_bytes, small.size_bytes)


@on_virtual_time
async def test_a_footer_is_its_callers_alone() -> None:
    """
    Who changes what it got changes nothing for others: positions move when objects are rewritten.
    """
    records = await begun()
    named = await records.put(1, 2)
    footers = records.footers()

    first = await footers.get(*named)
    assert isinstance(first, Footer)
    first.columns[10][1] = 999
    second = await footers.get(*named)

    assert isinstance(second, Footer)
    assert 10 == second.columns[10][1]


@on_virtual_time
async def test_footers_are_kept_within_the_budget_and_the_least_used_go_first() -> None:
    """
    What was used last stays; one that is larger than the budget is read and not kept.
    """
    records = await begun()
    named = [await records.put(seq, 50) for seq in range(4)]
    size = max(record.size_bytes - record.footer_start for _, record in named)
    footers = records.footers(budget_bytes=3 * size + 10)
    for one in (0, 1, 2, 0, 3):  # 1 has to go
        await footers.get(*named[one])
    assert 4 == records.store.gets

    await footers.get(*named[0])
    assert 4 == records.store.gets
    await footers.get(*named[1])
    assert 5 == records.store.gets
    assert footers.size_bytes <= 3 * size + 10

    large = await records.put(9, 5_000)
    assert large[1].size_bytes - large[1].footer_start > 3 * size + 10
    for _ in range(2):
        assert 5_000 == len(await footers.get(*large))
    assert 7 == records.store.gets
    assert footers.size_bytes <= 3 * size + 10


@pytest.mark.parametrize(
    "fates",
    [
        [UnavailableError("slow down")] * 5,
        [OutcomeUnknownError("reset"), UnavailableError("slow down")],
        [TimeoutError()],
        [NotFoundError("flush/s/1")] * 5,
    ],
)
@on_virtual_time
async def test_a_store_that_fails_is_asked_again(fates: list[Exception]) -> None:
    """
    What it says for a moment is not believed, "there is no such object" neither.
    """
    records = await begun()
    named = await records.put(1)
    records.store.fates = list(fates)

    assert isinstance(await records.footers().get(*named), Footer)
    assert len(fates) + 1 == records.store.gets


@pytest.mark.parametrize(("deaf", "seconds"), [(1, 1), (2, 6), (4, 12)])
@on_virtual_time
async def test_a_request_without_an_answer_is_hedged_given_up_and_repeated(
    deaf: int, seconds: float
) -> None:
    """
    Each two have a deadline.
    """
    records = await begun()
    named = await records.put(1)
    records.store.deaf = deaf
    began = asyncio.get_running_loop().time()

    assert isinstance(await records.footers().get(*named), Footer)
    assert seconds < asyncio.get_running_loop().time() - began < seconds + 1


@on_virtual_time
async def test_many_are_fetched_beside_one_that_is_late_and_only_as_many_as_there_is_room_for() -> (
    None
):
    """
    Who gets them afterwards asks the store for no more than what did not fit.
    """
    records = await begun()
    named = [await records.put(seq) for seq in range(40)]
    size = max(record.size_bytes - record.footer_start for _, record in named)
    footers = records.footers(budget_bytes=61 * size)
    records.store.deaf = 1
    began = asyncio.get_running_loop().time()

    await footers.fetch(named)

    assert 1 < asyncio.get_running_loop().time() - began < 1.1
    assert 30 + 1 == records.store.gets
    for one in named:
        assert isinstance(await footers.get(*one), Footer)
    assert 40 + 1 == records.store.gets


@on_virtual_time
async def test_an_object_that_is_not_given_is_unavailable_while_the_bucket_gives_others() -> None:
    """
    Told after a few seconds, each time that it is asked for; while the bucket gives nothing at all
    it is waited for.
    """
    records = await begun()
    named = await records.put(1)
    footers = records.footers()
    loop = asyncio.get_running_loop()
    records.store.withheld = {named[1].object_key}

    for _ in range(2):
        began = loop.time()
        with pytest.raises(ObjectUnavailableError, match="no read quorum") as told:
            await footers.get(*named)
        assert named[1].object_key == told.value.key
        assert 5 <= loop.time() - began < 10
        assert footers.outage.since_ms is None
    records.store.withheld = set()
    assert isinstance(await footers.get(*named), Footer)

    other = await records.put(2)
    records.store.fates = [UnavailableError("503")] * 1_000
    waiting = asyncio.ensure_future(footers.get(*other))
    await asyncio.sleep(60)
    assert footers.outage.since_ms is not None
    assert not waiting.done()
    records.store.fates = []
    assert isinstance(await waiting, Footer)


@on_virtual_time
async def test_an_object_that_never_answers_is_unavailable_before_the_agent_is_unfit() -> None:
    """
    Also where the first probe fails: whoever waits for it must not step down meanwhile.
    """
    records = await begun()
    named = await records.put(1)
    footers = records.footers()
    loop = asyncio.get_running_loop()
    get, put = records.store.get, records.store.put
    probes: list[str] = []

    async def silent(key: str, start: int = 0, end: int | None = None) -> bytes:
        if key == named[1].object_key:
            await asyncio.sleep(3_600)
        return await get(key, start, end)

    async def at_second(key: str, body: Sequence[Buffer]) -> None:
        probes.append(key)
        if len(probes) == 1:
            raise UnavailableError("503")
        await put(key, body)

    records.store.get, records.store.put = silent, at_second  # type: ignore[method-assign]
    began = loop.time()

    with pytest.raises(ObjectUnavailableError):
        await footers.get(*named)

    assert loop.time() - began < WriteHealthSettings().patience_ms / 1000 - 2
    assert 2 == len(probes)


@on_virtual_time
async def test_many_objects_that_are_not_given_are_found_out_together() -> None:
    """
    A hundred take hardly longer than one: a probe that succeeds is everybody's.
    """
    records = await begun()
    named = [await records.put(seq) for seq in range(100)]
    footers = records.footers()
    records.store.withheld = {record.object_key for _, record in named}
    loop = asyncio.get_running_loop()
    began = loop.time()

    unavailable = await footers.fetch(named)

    assert records.store.withheld == unavailable.keys()
    assert 5 <= loop.time() - began < 10


@on_virtual_time
async def test_few_are_read_at_once() -> None:
    """
    However many are asked for.
    """
    records = await begun()
    named = [await records.put(seq) for seq in range(100)]
    footers = records.footers()

    await asyncio.gather(*[footers.get(*one) for one in named])

    assert 32 == records.store.most_at_once


@on_virtual_time
async def test_an_object_that_is_missing_or_no_flush_object_is_asked_for_again() -> None:
    """
    While the record is there: it is told why, after a few seconds, and it is not remembered.
    """
    records = await begun()
    gone, broken = await records.put(1), await records.put(2)
    body = await records.store.get(gone[1].object_key)
    await records.store.delete([gone[1].object_key, broken[1].object_key])
    await records.store.put(broken[1].object_key, [bytes(broken[1].size_bytes)])
    footers = records.footers()
    records.store.gets = 0

    with pytest.raises(ObjectUnavailableError, match="flush/s/1 cannot be read: not found"):
        await footers.get(*gone)
    assert 3 <= records.store.gets <= 10
    with pytest.raises(ObjectUnavailableError, match="flush/s/2 cannot be read: not a flush obj"):
        await footers.get(*broken)
    assert footers.outage.since_ms is None

    await records.store.put(gone[1].object_key, [body])
    assert isinstance(await footers.get(*gone), Footer)


@on_virtual_time
async def test_a_record_that_went_while_its_object_was_read_is_no_damage() -> None:
    """
    It was sealed or consolidated: who asks reads the records again.
    """
    records = await begun()
    key, record = await records.put(1)
    await records.store.delete([record.object_key])
    await records.world.metadata.txn((), [Delete(key)])

    with pytest.raises(RecordGoneError):
        await records.footers().get(key, record)


@on_virtual_time
async def test_a_record_that_names_another_object_by_now_is_read_there() -> None:
    """
    The key was used again for what replaced it.
    """
    records = await begun()
    key, old = await records.put(1)
    _, new = await records.put(2, 7)
    await records.store.delete([old.object_key])
    await records.world.metadata.txn((), [Put(key, encode_flush_record(new))])

    assert 7 == len(await records.footers().get(key, old))


@on_virtual_time
async def test_a_record_that_cannot_be_read_by_now_is_named() -> None:
    """
    Its key is named, for somebody to put it back.
    """
    records = await begun()
    key, record = await records.put(1)
    await records.store.delete([record.object_key])
    await records.world.metadata.txn((), [Put(key, b"garbage")])

    with pytest.raises(ObjectUnavailableError, match=key):
        await records.footers().get(key, record)


@on_virtual_time
async def test_one_who_is_cancelled_leaves_the_read_to_the_next() -> None:
    """
    The others who wait for the same footer get it all the same.
    """
    records = await begun()
    named = await records.put(1)
    footers = records.footers()
    first = asyncio.ensure_future(footers.get(*named))
    second = asyncio.ensure_future(footers.get(*named))
    await asyncio.sleep(0.005)
    first.cancel()

    assert isinstance(await second, Footer)


@on_virtual_time
async def test_a_session_that_is_over_is_told_so() -> None:
    """
    Where only the metadata store could say whether it is damage.
    """
    records = await begun()
    key, record = await records.put(1)
    await records.store.delete([record.object_key])
    await asyncio.sleep(61)  # nobody keeps it alive

    async def refuse(_: str) -> None:
        raise UnavailableError("no quorum")

    records.world.metadata.get = refuse  # type: ignore[assignment,method-assign]
    with pytest.raises(FencedError):
        await records.footers().get(key, record)
