"""The collector deletes what nothing refers to, after its grace, and nothing else."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from driftlog_agents.log.garbage.collector import STATE_FILE, Collector
from driftlog_agents.log.garbage.common.garbage_objects import AllDuties, SessionObjects
from driftlog_agents.log.garbage.common.metadata_reads import CollectorReads
from driftlog_agents.log.garbage.common.request_retry import request_retry
from driftlog_agents.log.garbage.deletions import ConfirmedStores, believe
from driftlog_agents.log.garbage.named_flush_objects import read_names
from driftlog_agents.log.garbage.unreferenced_objects import (
    HOUR_MS,
    CollectorSettings,
    KeyRun,
    Pass,
    UnreferencedObjects,
    decode_sightings,
)
from driftlog_agents.log.local.posix_disk import PosixDisk
from driftlog_agents.log.objects.bucket_probe import probe_bucket
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import (
    encode_flush_record,
    encode_head,
    encode_live_session,
    encode_restore,
    encode_topic,
)
from driftlog_metadata.schema.keys import (
    RESTORE_KEY,
    deleted_key,
    flush_key,
    flushes_prefix,
    head_key,
    import_key,
    leader_key,
    session_key,
    topic_key,
)
from driftlog_metadata.schema.model import FlushRecord, LiveSession, Restore, Topic, TopicPartition
from driftlog_metadata.stores.errors import (
    CorruptError,
    FencedError,
    OutcomeUnknownError,
    UnavailableError,
)
from driftlog_metadata.stores.store import Delete, Put
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import DeletedTopic, encode_deleted, encode_import
from driftlog_tiering.stores.object_store import AlreadyExistsError, NotFoundError, ObjectInfo
from tests.support.memory_object_store import MemoryObjectStore
from tests.support.memory_store import MemoryMetadataStore

SESSION = "5e55"
GRACE_H = 12
FLUSHES = "/driftlog/v1/flushes/"


async def at_once(fn: Callable[..., Any], *args: Any) -> Any:
    """Off no event loop."""
    return fn(*args)


class World:
    """A bucket, a metadata store, and a clock in hours."""

    def __init__(self, path: Path) -> None:
        self.now_h = 1_000.0
        self.bucket = MemoryObjectStore(self._now_ms)
        self.metadata = MemoryMetadataStore(self._now_ms)
        self.disk = PosixDisk(path)
        self.settings = CollectorSettings(pause_ms=0, retry_wait_ms=0)
        self.collector = self.new_collector()

    def _now_ms(self) -> int:
        return int(self.now_h * HOUR_MS)

    def new_collector(
        self,
        offload: Callable[..., Awaitable[Any]] = at_once,
        confirm: Callable[[], Awaitable[None]] = believe,
    ) -> Collector:
        """As after a restart."""
        return Collector(
            stores=ConfirmedStores(self.metadata, self.bucket, confirm),
            disk=self.disk,
            offload=offload,
            settings=self.settings,
        )

    async def put(self, seq: int, nonce: str = "a") -> str:
        """A flush object."""
        key = layout.flush_key(SESSION, seq, nonce)
        await self.bucket.put(key, [b"x"])
        return key

    async def name(self, seq: int, key: str) -> None:
        """Commit it."""
        record = FlushRecord(object_key=key, size_bytes=1, footer_start=0)
        await self.metadata.txn((), [Put(flush_key(SESSION, seq), encode_flush_record(record))])

    async def forget(self, seq: int) -> None:
        """All of it is sealed."""
        await self.metadata.txn((), [Delete(flush_key(SESSION, seq))])

    async def live(self, hours: float, *, step_h: float = 1.0) -> None:
        """Time goes by, with a look at every step."""
        end_h = self.now_h + hours
        while self.now_h < end_h:
            self.now_h = min(self.now_h + step_h, end_h)
            await self.collector.collect()

    async def keys(self, prefix: str = "") -> list[str]:
        """What is in the bucket."""
        return [i.key async for page in self.bucket.list(prefix) for i in page.objects]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.disk.close()


# ── Flush objects ──


async def test_an_object_goes_a_grace_period_after_it_was_seen_unnamed(world: World) -> None:
    """
    Not before; and it does not matter how long it was named.
    """
    key = await world.put(1)
    await world.name(1, key)
    await world.live(100)
    await world.forget(1)
    await world.collector.collect()
    await world.live(GRACE_H - 0.1)
    before = await world.keys()
    await world.live(0.1)

    assert [key] == before
    assert [] == await world.keys()


async def test_what_is_named_stays_for_ever(world: World) -> None:
    """
    Also between neighbours that go, and under the same sequence number as one that goes.
    """
    keys = [await world.put(seq) for seq in range(5)]
    orphan = await world.put(2, "0rphan")
    await world.name(2, keys[2])
    await world.live(50)

    assert [keys[2]] == await world.keys()
    assert orphan not in await world.keys()


async def test_a_young_object_stays_though_its_neighbours_go(world: World) -> None:
    """
    An attempt that is on its way may be named yet: its own PUT must be older than the grace.
    """
    old = [await world.put(1), await world.put(3)]
    await world.live(GRACE_H - 1)
    young = await world.put(2)
    await world.live(2)

    assert [young] == await world.keys()
    assert old


async def test_grace_begins_again_where_an_object_was_named_in_between(world: World) -> None:
    """
    Seen unnamed, then named, then forgotten: what counts is the last.
    """
    key = await world.put(1)
    await world.live(3)
    await world.name(1, key)
    await world.live(8)
    await world.forget(1)
    await world.live(GRACE_H)
    kept = await world.keys()
    await world.live(1)

    assert [key] == kept
    assert [] == await world.keys()


async def test_a_restart_does_not_begin_the_grace_again(world: World) -> None:
    """
    It is in the agent's directory.
    """
    await world.put(1)
    await world.collector.collect()
    await world.live(GRACE_H - 1)
    world.collector = world.new_collector()
    await world.live(1)

    assert [] == await world.keys()


async def test_time_in_which_nobody_looked_does_not_count(world: World) -> None:
    """
    The object may have been named then: its readers get their whole grace.
    """
    key = await world.put(1)
    await world.collector.collect()
    world.now_h += 100
    world.collector = world.new_collector()
    await world.collector.collect()
    kept = await world.keys()
    await world.live(GRACE_H)

    assert [key] == kept
    assert [] == await world.keys()


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"v":2}', b"\xff", b'{"v":1,"seen_ms":"x"}'])
async def test_a_damaged_memory_costs_time_and_nothing_else(world: World, damage: bytes) -> None:
    """
    Every grace period begins again.
    """
    key = await world.put(1)
    await world.live(GRACE_H - 1)
    await world.disk.save(STATE_FILE, damage)
    world.collector = world.new_collector()
    await world.live(GRACE_H)
    kept = await world.keys()
    await world.live(1)

    assert [key] == kept
    assert [] == await world.keys()


async def test_nothing_of_a_session_goes_while_a_flush_record_of_it_cannot_be_read(
    world: World,
) -> None:
    """
    It may name any object of its session.  Objects of other sessions go; every look says so.
    """
    key = await world.put(1)
    other = layout.flush_key("07e5", 1, "a")
    await world.bucket.put(other, [b"x"])
    await world.live(GRACE_H - 1)
    await world.metadata.txn((), [Put(flush_key(SESSION, 9), b"garbage")])
    with capture_logs() as lines:
        await world.live(2)
        kept = await world.keys()
    await world.metadata.txn((), [Delete(flush_key(SESSION, 9))])
    await world.collector.collect()
    await world.live(GRACE_H)

    assert [key] == kept
    assert ["error"] * 2 == [
        line["log_level"] for line in lines if line["event"] == "flush_records_unreadable"
    ]
    assert [] == await world.keys()


# ── What a session may still commit ──


async def begin_session(world: World, head: int = 0) -> None:
    """The session's key and head, as `transactions.open_session` makes them."""
    live = encode_live_session(LiveSession(node_id=1))
    await world.metadata.txn(
        (), [Put(session_key(SESSION), live), Put(head_key(SESSION), encode_head(head))]
    )


async def test_what_a_live_session_may_still_commit_stays(world: World) -> None:
    """
    However old and unnamed, while its sequence is above the session's head; it goes a grace period
    after the session is over.
    """
    key = await world.put(4)
    await begin_session(world, head=3)
    await world.live(50)
    kept = await world.keys()
    await world.metadata.txn((), [Delete(session_key(SESSION))])
    await world.collector.collect()
    await world.live(GRACE_H - 1)
    still = await world.keys()
    await world.live(1)

    assert [key] == kept == still
    assert [] == await world.keys()


async def test_what_a_live_session_can_commit_no_more_goes(world: World) -> None:
    """
    Its sequence is committed with another attempt, or replaced.
    """
    keys = [await world.put(seq) for seq in (1, 3)]
    later = await world.put(4)
    await begin_session(world, head=3)
    await world.live(50)

    assert [later] == await world.keys()
    assert keys


async def test_a_commit_between_two_reads_of_a_look_counts(world: World) -> None:
    """
    The session's head is read before its records.  In the other order a commit in between would be
    seen in the head and not in the records, and its object would pass for one of before.
    """
    key = await world.put(1)
    await begin_session(world)
    works = world.metadata.get_prefix

    async def commit_then_read(prefix: str, **how: Any) -> Any:
        await commit()
        return await works(prefix, **how)

    async def read_then_commit(prefix: str, **how: Any) -> Any:
        found = await works(prefix, **how)
        await commit()
        return found

    async def commit() -> None:
        await world.name(1, key)
        await world.metadata.txn((), [Put(head_key(SESSION), encode_head(1))])

    kept: list[bool] = []
    for read in (read_then_commit, commit_then_read):
        world.metadata.get_prefix = read  # type: ignore[method-assign]
        reads = CollectorReads(world.metadata, request_retry(1_000))
        names = await read_names(reads, SESSION, UnknownKeys(), at_once)
        kept.append(names.keep(key))

    assert [True, True] == kept


async def test_probes_of_the_bucket_go(world: World) -> None:
    """
    No session has their name.
    """
    assert await probe_bucket(world.bucket, 1, f"{1:016x}") is None
    before = await world.keys()
    await world.live(GRACE_H + 1)

    assert 1 == len(before)
    assert [] == await world.keys()


# ── Page by page, off the event loop ──


async def test_records_are_read_one_session_after_the_other_and_decoded_off_the_event_loop(
    world: World,
) -> None:
    """
    Each session's once a look, though its objects fill several pages; never all at once.
    """
    sessions = [f"{n:032x}" for n in range(3)]
    for session_id in sessions:
        for seq in range(1, 1_501):
            await world.bucket.put(layout.flush_key(session_id, seq, "a"), [b"x"])
        record = FlushRecord(
            object_key=layout.flush_key(session_id, 7, "a"), size_bytes=1, footer_start=0
        )
        await world.metadata.txn((), [Put(flush_key(session_id, 7), encode_flush_record(record))])
    works = world.metadata.get_prefix
    asked: list[str] = []
    decoded: list[int] = []

    async def read(prefix: str, **how: Any) -> Any:
        asked.append(prefix)
        return await works(prefix, **how)

    async def offload(fn: Callable[..., Any], *args: Any) -> Any:
        decoded.append(sum(len(arg) for arg in args if isinstance(arg, list)))
        return fn(*args)

    world.metadata.get_prefix = read  # type: ignore[method-assign]
    world.collector = world.new_collector(offload)
    await world.collector.collect()

    assert [flushes_prefix(s) for s in sessions] == [p for p in asked if p.startswith(FLUSHES)]
    assert [1, 1, 1] == [count for count in decoded if count]


async def test_a_read_that_fails_is_repeated(world: World) -> None:
    """
    A look makes thousands: one that fails is not to cost it all.
    """
    await world.put(1)
    await world.collector.collect()
    await world.live(GRACE_H - 1)
    works, fates = world.metadata.get_prefix, [True, False]

    async def read(prefix: str, **how: Any) -> Any:
        if fates and fates.pop():
            raise UnavailableError("no leader")
        return await works(prefix, **how)

    world.metadata.get_prefix = read  # type: ignore[method-assign]
    await world.live(1)

    assert [] == await world.keys()


# ── Whose word counts, and what ends a look ──


async def test_nothing_is_deleted_that_is_not_confirmed(world: World) -> None:
    """
    Before each batch of deletes: a metadata store that is not the cluster's names nothing.
    """
    key = await world.put(1)
    asked = 0

    async def confirm() -> None:
        nonlocal asked
        asked += 1
        raise FencedError("the metadata store went back")

    world.collector = world.new_collector(confirm=confirm)
    await world.live(GRACE_H - 1)
    before, world.now_h = asked, world.now_h + 2
    with pytest.raises(FencedError):
        await world.collector.collect()

    assert (0, 1) == (before, asked)
    assert [key] == await world.keys()


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError("a proxy's 404 to a LIST"),
        AlreadyExistsError("x"),
        FencedError("x"),
        UnavailableError("x"),
        OutcomeUnknownError("x"),
        CorruptError("x"),
        MemoryError("x"),
    ],
)
async def test_no_error_of_a_store_ends_the_collector(world: World, error: Exception) -> None:
    """
    Its task is one of the agent's, which would end with it.  Each look that fails says one line.
    """
    world.settings = CollectorSettings(pause_ms=0, interval_ms=1)
    world.collector = world.new_collector()
    works = world.bucket.list
    failed = 0

    def fails(*_: Any, **__: Any) -> Any:
        nonlocal failed
        failed += 1
        raise error

    world.bucket.list = fails  # type: ignore[method-assign]
    with capture_logs() as lines:
        running = asyncio.create_task(world.collector.run())
        while failed < 3 and not running.done():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        said, looks = len(lines), failed
        world.bucket.list = works  # type: ignore[method-assign]
        while world.disk.load(STATE_FILE) is None and not running.done():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    ended = running.done()
    running.cancel()

    assert not ended
    assert looks - 1 <= said <= looks


async def test_unknown_keys_are_left_alone(world: World) -> None:
    """
    What no driftlog writes, no driftlog deletes; each is said once, and not at each look.
    """
    keys = ["flush/more.txt", "flush/notes.txt"]
    for key in keys:
        await world.bucket.put(key, [b"x"])
    with capture_logs() as lines:
        await world.live(50)

    assert keys == await world.keys()
    assert 2 == world.collector.strange_objects
    assert keys == [line["key"] for line in lines if line["event"] == "foreign_key_found"]


STRANGE = ("flushes/5e55/1", "deleted/everything", "heads/%zz", "heads/notes")
"""Keys that no driftlog writes."""


async def test_unknown_keys_hold_nothing_up_and_are_said_once(world: World) -> None:
    """
    They stay; what is named by one that can be read all the same stays, too.
    """
    named, garbage = await world.put(1), await world.put(2)
    record = FlushRecord(object_key=named, size_bytes=1, footer_start=0)
    keys = [f"/driftlog/v1/{name}" for name in STRANGE]
    others = f"/driftlog/v1/flushes/{SESSION}/backup-of-1"
    await world.metadata.txn(
        (), [*(Put(key, b"notes") for key in keys), Put(others, encode_flush_record(record))]
    )

    with capture_logs() as lines:
        await world.live(50)

    assert garbage not in await world.keys()
    assert named in await world.keys()
    assert sorted(keys) == sorted(
        line["key"] for line in lines if line["event"] == "foreign_key_found"
    )
    _, kvs = await world.metadata.get_prefix("/driftlog/v1/")
    assert sorted([*keys, others]) == [kv.key for kv in kvs]


async def test_a_refused_request_is_sent_again_in_the_same_pass(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A pass over thousands of pages that ended at one failure would never end otherwise.
    """
    world.collector = world.new_collector()
    await world.put(1)
    await world.collector.collect()
    await world.live(GRACE_H - 1)
    world.now_h += 1
    list_, delete = world.bucket.list, world.bucket.delete
    refused: list[str] = []

    def list_once(prefix: str, **options: Any) -> Any:
        if "list" not in refused:
            refused.append("list")
            raise UnavailableError("slow down")
        return list_(prefix, **options)

    async def delete_once(keys: Any) -> None:
        if "delete" not in refused:
            refused.append("delete")
            raise UnavailableError("slow down")
        await delete(keys)

    monkeypatch.setattr(world.bucket, "delete", delete_once)
    monkeypatch.setattr(world.bucket, "list", lambda *a, **o: _pages(list_once, *a, **o))
    await world.collector.collect()

    assert ["list", "delete"] == refused
    monkeypatch.undo()
    assert [] == await world.keys()


async def _pages(ask: Callable[..., Any], *args: Any, **options: Any) -> Any:
    async for page in ask(*args, **options):
        yield page


async def test_a_refused_request_ends_the_pass_and_loses_nothing(world: World) -> None:
    """
    The next pass does what this one did not; what was seen before is still known.
    """
    world.collector = world.new_collector()
    await world.put(1)
    await world.collector.collect()
    await world.live(GRACE_H - 1)
    works, world.bucket.delete = world.bucket.delete, refuse  # type: ignore[method-assign]
    world.now_h += 1
    with pytest.raises(UnavailableError):
        await world.collector.collect()
    world.bucket.delete = works  # type: ignore[method-assign]
    await world.collector.collect()

    assert [] == await world.keys()


async def refuse(keys: object) -> None:
    raise UnavailableError("slow down")


async def test_a_session_without_an_answer_stops_no_other_one(world: World) -> None:
    """
    Its flush records cannot be read, such as those of a session that has too many: its objects
    stay, and those of the others go.
    """
    held = layout.flush_key("5e54", 1, "a")
    await world.bucket.put(held, [b"x"])
    await world.put(1)
    works = world.metadata.get_prefix

    async def of_others(prefix: str, **options: Any) -> Any:
        if prefix == flushes_prefix("5e54"):
            raise UnavailableError("deadline exceeded")
        return await works(prefix, **options)

    world.metadata.get_prefix = of_others  # type: ignore[method-assign]
    world.collector = world.new_collector()
    with capture_logs() as lines:
        await world.live(GRACE_H + 2)

    assert [held] == await world.keys()
    said = [line for line in lines if line["event"] == "collection_abandoned"]
    assert {"5e54"} == {line["session"] for line in said}


async def test_a_session_without_an_answer_in_one_pass_keeps_its_grace(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Where one read in a thousand fails, a session with many passes to live would never be collected.
    """
    await world.put(1)
    world.collector = world.new_collector()
    await world.collector.collect()
    await world.live(GRACE_H - 2)
    with monkeypatch.context() as patch:
        patch.setattr(world.metadata, "get_prefix", _refused_for(flushes_prefix(SESSION), world))
        await world.live(1)
    await world.live(1)

    assert [] == await world.keys()


def _refused_for(refused: str, world: World) -> Callable[..., Awaitable[Any]]:
    works = world.metadata.get_prefix

    async def get_prefix(prefix: str, **options: Any) -> Any:
        if prefix == refused:
            raise UnavailableError("deadline exceeded")
        return await works(prefix, **options)

    return get_prefix


async def test_what_is_remembered_is_small(world: World) -> None:
    """
    Runs of neighbours: thousands of objects are a few numbers.
    """
    for seq in range(3_000):
        await world.put(seq)
    await world.name(1_500, layout.flush_key(SESSION, 1_500, "a"))
    await world.collector.collect()
    state = world.disk.load(STATE_FILE)

    assert state is not None
    assert 2 == len(json.loads(state)["runs"])


@pytest.mark.parametrize("seed", range(20))
async def test_any_history_keeps_what_is_named_and_drops_what_was_not(
    world: World, seed: int
) -> None:
    """
    Against a model that remembers every object by itself: nothing named or within grace goes,
    nothing else stays.
    """
    rng = Random(seed)
    since: dict[str, float] = {}
    puts: dict[str, float] = {}
    named: dict[int, str] = {}
    for seq in range(120):
        match rng.choice(("put", "put", "name", "forget", "look", "look", "restart")):
            case "put":
                puts[await world.put(seq, rng.choice("abc"))] = world.now_h
            case "name" if puts:
                key = rng.choice([k for k, at in puts.items()][-5:])
                if world.now_h - puts[key] < 6 and key in await world.keys():
                    number = layout.parse_flush_key(key).seq
                    await world.name(number, key)
                    named[number] = key
            case "forget" if named:
                number = rng.choice(list(named))
                await world.forget(number)
                del named[number]
            case "restart":
                world.collector = world.new_collector()
            case _:
                world.now_h += rng.choice((0.3, 1.0, 2.0))
                await world.collector.collect()
                for key in puts:
                    if key in named.values():
                        since.pop(key, None)
                    else:
                        since.setdefault(key, world.now_h)
                gone = {
                    key
                    for key, first_h in since.items()
                    if world.now_h - first_h >= GRACE_H and world.now_h - puts[key] >= GRACE_H
                }
                assert sorted(set(puts) - gone) == await world.keys()


def test_sightings_survive_being_stored() -> None:
    """
    What is loaded is what was saved.
    """
    known = UnreferencedObjects(
        5, [KeyRun("a", "c", 1), KeyRun("d", "d", 2)], {str(UUID(int=3)): 4}
    )

    assert known == decode_sightings(known.encode())
    assert [1, 1, 1, 2, None] == [known.since(key) for key in ("a", "b", "c", "d", "e")]


# ── Deleted topics ──

TOPIC = Topic(name="t", topic_id=UUID(int=7, version=4), partitions=1)
TP = TopicPartition(TOPIC.topic_id, 0)
SEGMENT = layout.segment_key("t", TP, 0, 5, "a")
LATE = layout.segment_key("t", TP, 5, 9, "b")
MARK = layout.deleted_key("t", TOPIC.topic_id)
TOMBSTONE = deleted_key(TOPIC.topic_id)


async def delete_topic(world: World) -> None:
    """A topic with a file and a segment, deleted now."""
    await world.bucket.put(layout.topic_key("t", TOPIC.topic_id, 1), [b"x"])
    await world.bucket.put(SEGMENT, [b"x"])
    await world.live(20)
    await world.metadata.txn((), [Put(TOMBSTONE, encode_topic(TOPIC))])
    mark = DeletedTopic("t", TOPIC.topic_id, 0)
    await world.bucket.create(MARK, [encode_deleted(mark)])


async def test_objects_of_a_deleted_topic_go_then_its_mark_then_its_tombstone(
    world: World,
) -> None:
    """
    Objects a grace period after the mark, the rest when nothing came for another one.
    """
    await delete_topic(world)
    await world.live(GRACE_H - 1)
    all_there = await world.keys()
    await world.live(1)
    only_mark = await world.keys()
    await world.live(GRACE_H)
    still = await world.metadata.get(TOMBSTONE)
    await world.live(1)

    assert 3 == len(all_there)
    assert [MARK] == only_mark
    assert still is not None
    assert [] == await world.keys()
    assert await world.metadata.get(TOMBSTONE) is None


async def test_what_comes_late_keeps_the_tombstone(world: World) -> None:
    """
    A segment that was on its way when the topic was deleted goes a grace period after its PUT,
    and the tombstone stays for another one.
    """
    await delete_topic(world)
    await world.live(GRACE_H + 5)
    await world.bucket.put(LATE, [b"x"])
    await world.live(GRACE_H - 1)
    kept = await world.keys()
    await world.live(1)
    gone = await world.keys()
    await world.live(GRACE_H)
    still = await world.metadata.get(TOMBSTONE)
    await world.live(1)

    assert [LATE, MARK] == kept
    assert [MARK] == gone
    assert still is not None
    assert await world.metadata.get(TOMBSTONE) is None


async def test_a_topic_whose_deletion_is_not_finished_is_left_alone(world: World) -> None:
    """
    While its key is there nothing of it goes.
    """
    await delete_topic(world)
    await world.metadata.txn((), [Put(topic_key("t"), encode_topic(TOPIC))])
    await world.bucket.delete([MARK])
    await world.live(50)

    assert 2 == len(await world.keys())
    assert await world.metadata.get(TOMBSTONE) is not None


async def test_the_mark_of_a_deleted_topic_that_is_lost_is_written_again(world: World) -> None:
    """
    Else its objects stay for ever.  Their grace begins with the mark.
    """
    await delete_topic(world)
    await world.bucket.delete([MARK])
    with capture_logs() as lines:
        await world.live(GRACE_H)
    there = await world.keys()
    await world.live(2 * GRACE_H + 2)

    assert 3 == len(there)
    assert MARK in there
    assert 1 == [line["event"] for line in lines].count("deleted_topic_marked")
    assert [] == await world.keys()
    assert await world.metadata.get(TOMBSTONE) is None


def imported() -> str:
    """The key of a segment that an import has written."""
    return layout.segment_key("t", TopicPartition(TOPIC.topic_id, 0), 0, 1, "a")


async def begin_import(world: World) -> None:
    """A bulk import has begun, and has written a segment."""
    await world.metadata.txn((), [Put(import_key(TOPIC.topic_id), encode_topic(TOPIC))])
    await world.bucket.put(layout.import_key("t", TOPIC.topic_id), [encode_import(TOPIC)])
    await world.bucket.put(imported(), [b"x"])


async def test_an_import_that_is_renewed_outlives_many_graces(world: World) -> None:
    """
    Terabytes take longer than a grace; nothing names what is written until the end.
    """
    await begin_import(world)
    for _ in range(10):
        await world.live(GRACE_H - 1)
        kv = await world.metadata.get(import_key(TOPIC.topic_id))
        assert kv is not None
        await world.metadata.txn((), [Put(kv.key, kv.value)])

    assert [imported(), layout.import_key("t", TOPIC.topic_id)] == await world.keys()
    assert await world.metadata.get(TOMBSTONE) is None


async def test_an_import_that_is_not_renewed_is_deleted_as_a_topic_is(world: World) -> None:
    """
    Its job is gone: its objects would stay for ever.  A renewal that comes late brings nothing
    back, as the key and the tombstone exclude each other.
    """
    await begin_import(world)
    leader = leader_key(TopicPartition(TOPIC.topic_id, 0))
    await world.metadata.txn((), [Put(leader, b"x")])
    await world.live(GRACE_H)
    before = await world.metadata.get(import_key(TOPIC.topic_id))
    await world.live(1)
    after = await world.metadata.get(import_key(TOPIC.topic_id))
    there = await world.keys()
    await world.live(3 * GRACE_H)

    assert before is not None
    assert after is None
    assert {imported(), layout.import_key("t", TOPIC.topic_id), MARK} == set(there)
    assert await world.metadata.get(leader) is None
    assert [] == await world.keys()
    assert await world.metadata.get(TOMBSTONE) is None


async def test_a_published_import_whose_key_came_back_with_a_backup_keeps_everything(
    world: World,
) -> None:
    """
    The metadata store was put back from before the publication: the topic's file says that there
    was one.  The log says what to do.
    """
    await begin_import(world)
    await world.bucket.put(layout.topic_key("t", TOPIC.topic_id, 1), [b"x"])
    before = await world.keys()
    with capture_logs() as lines:
        await world.live(4 * GRACE_H)

    assert before == await world.keys()
    assert await world.metadata.get(import_key(TOPIC.topic_id)) is not None
    assert await world.metadata.get(TOMBSTONE) is None
    found = [line for line in lines if line["event"] == "published_import_found"]
    assert {("error", "t")} == {(line["log_level"], line["topic"]) for line in found}


async def test_a_topic_without_an_answer_stops_no_other_one(world: World) -> None:
    """
    The bucket does not list one deleted topic: the other one goes, and no grace begins again.
    """
    await delete_topic(world)
    held = Topic(name="held", topic_id=UUID(int=1, version=4), partitions=1)
    await world.metadata.txn((), [Put(deleted_key(held.topic_id), encode_topic(held))])
    works = world.bucket.list

    def list_others(prefix: str, **options: Any) -> Any:
        if prefix.startswith("topics/held/"):
            raise UnavailableError("503")
        return works(prefix, **options)

    world.bucket.list = list_others  # type: ignore[method-assign]
    with capture_logs() as lines:
        await world.live(2 * GRACE_H + 1)
    world.bucket.list = works  # type: ignore[method-assign]

    assert [] == await world.keys()
    assert await world.metadata.get(TOMBSTONE) is None
    assert await world.metadata.get(deleted_key(held.topic_id)) is not None
    assert {"held"} == {line["topic"] for line in lines if line["event"] == "collection_abandoned"}


async def test_an_import_without_an_answer_stops_no_deleted_topic_and_no_other_import(
    world: World,
) -> None:
    """
    The bucket does not list it; when it does, the import ends at once.
    """
    await delete_topic(world)
    held = Topic(name="held", topic_id=UUID(int=1, version=4), partitions=1)
    await world.metadata.txn((), [Put(import_key(held.topic_id), encode_topic(held))])
    other = Topic(name="other", topic_id=UUID(int=2, version=4), partitions=1)
    await world.metadata.txn((), [Put(import_key(other.topic_id), encode_topic(other))])
    works = world.bucket.list

    def list_others(prefix: str, **options: Any) -> Any:
        if prefix.startswith("topics/held/"):
            raise UnavailableError("503")
        return works(prefix, **options)

    world.bucket.list = list_others  # type: ignore[method-assign]
    with capture_logs() as lines:
        await world.live(3 * GRACE_H)
    world.bucket.list = works  # type: ignore[method-assign]

    assert [] == await world.keys()
    assert await world.metadata.get(TOMBSTONE) is None
    assert await world.metadata.get(import_key(other.topic_id)) is None
    assert await world.metadata.get(import_key(held.topic_id)) is not None
    assert {"held"} == {line["topic"] for line in lines if line["event"] == "collection_abandoned"}
    await world.live(1)
    assert await world.metadata.get(import_key(held.topic_id)) is None


async def test_a_new_topic_of_the_same_name_keeps_its_objects(world: World) -> None:
    """
    Objects lie under the topic's id.
    """
    await delete_topic(world)
    again = Topic(name="t", topic_id=UUID(int=8, version=4), partitions=1)
    own = layout.segment_key("t", TopicPartition(again.topic_id, 0), 0, 5, "c")
    await world.metadata.txn((), [Put(topic_key("t"), encode_topic(again))])
    await world.bucket.put(own, [b"x"])
    await world.live(50)

    assert [own] == await world.keys()
    assert await world.metadata.get(TOMBSTONE) is None


async def test_a_topic_that_is_not_deleted_keeps_everything(world: World) -> None:
    """
    However old.
    """
    await world.metadata.txn((), [Put(topic_key("t"), encode_topic(TOPIC))])
    await world.bucket.put(SEGMENT, [b"x"])
    await world.live(100)

    assert [SEGMENT] == await world.keys()


class Sometimes(AllDuties):
    """An agent that collects when it is told so."""

    collects = False

    def collects_flush_objects(self) -> bool:
        return self.collects


async def test_one_agent_of_a_cluster_looks_and_the_others_leave_it_to_it(world: World) -> None:
    """
    Who is asked to look is asked again before each look: when the first one is gone, another does.
    """
    duties = Sometimes()
    settings = CollectorSettings(pause_ms=0, interval_ms=1)
    disk = world.disk
    collector = Collector(
        stores=ConfirmedStores(world.metadata, world.bucket),
        disk=disk,
        offload=at_once,
        settings=settings,
        duties=duties,
    )
    running = asyncio.create_task(collector.run())
    await asyncio.sleep(0.05)
    before = disk.load(STATE_FILE)
    duties.collects = True
    async with asyncio.timeout(10):
        while disk.load(STATE_FILE) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    running.cancel()

    assert before is None


async def test_a_tombstone_that_cannot_be_read_stops_its_topic_only(world: World) -> None:
    """
    Flush objects go, and so do other deleted topics.
    """
    await delete_topic(world)
    await world.put(1)
    await world.metadata.txn((), [Put(deleted_key(UUID(int=1, version=4)), b"garbage")])
    with capture_logs() as lines:
        await world.live(3 * GRACE_H)

    assert [] == await world.keys()
    assert await world.metadata.get(TOMBSTONE) is None
    assert "tombstone_unreadable" in [line["event"] for line in lines]


async def test_a_final_head_goes_after_the_sessions_last_flush_object(world: World) -> None:
    """
    Until then a restore needs it: an object may be there that was never committed.
    """
    key = await world.put(1)
    final = layout.final_head_key(SESSION, 1)
    await world.bucket.put(final, [b"x"])
    await world.name(1, key)
    await world.live(50)
    named = await world.keys()
    await world.forget(1)
    await world.live(GRACE_H + 1)
    alone = await world.keys()
    await world.live(1)

    assert [[key, final], [final], []] == [named, alone, await world.keys()]


async def test_what_a_restore_has_listed_stays_until_it_is_discarded(world: World) -> None:
    """
    A partition that was not restored is restored later, from the same objects.
    """
    old = [await world.put(1), layout.final_head_key(SESSION, 1)]
    await world.bucket.put(old[1], [b"x"])
    listed_ms = int(world.now_h * HOUR_MS)
    await world.live(1)
    young = layout.flush_key("60", 1, "a")
    await world.bucket.put(young, [b"x"])
    restore = encode_restore(Restore("from", "to", 1, "run", listed_ms))
    await world.metadata.txn((), [Put(RESTORE_KEY, restore)])
    await world.live(50)
    kept = await world.keys()
    await world.metadata.txn((), [Delete(RESTORE_KEY)])
    await world.live(2 * GRACE_H + 2)

    assert sorted(old) == sorted(kept)
    assert [] == await world.keys()


async def test_the_mark_of_a_deleted_topic_outlives_older_flush_objects(world: World) -> None:
    """
    One of them may have batches of the topic: without the mark, a restore would bring it back.
    """
    key = await world.put(1)
    await world.name(1, key)
    await delete_topic(world)
    await world.live(5 * GRACE_H)
    marked = await world.keys()
    await world.forget(1)
    await world.live(GRACE_H + 1)

    assert sorted([key, MARK]) == sorted(marked)
    assert [] == await world.keys()


def one(name: str, put_ms: int) -> ObjectInfo:
    """An object of some session."""
    return ObjectInfo(name, 1, put_ms)


def test_a_final_head_goes_after_all_other_objects_of_its_session() -> None:
    """
    It sorts last: a session with an object on this page or an earlier one keeps it, and so does one
    whose object stays for a restore.
    """
    head = one("head", 0)
    groups = [
        SessionObjects("a", [one("flush", 5)], []),
        SessionObjects("a", [], [head]),
        SessionObjects("b", [one("restored", 1)], [one("young", 95)]),
        SessionObjects("c", [], [head, one("young", 95)]),
    ]
    look = Pass(UnreferencedObjects(), 2, grace_ms=10, max_gap_ms=100)

    found = [look.final_heads(look.judged(group), 100) for group in groups]

    # The head of c was put before the restore listed: it stays, too.
    assert [[], [], [], []] == found

    look = Pass(UnreferencedObjects(), -1, grace_ms=10, max_gap_ms=100)
    found = [look.final_heads(look.judged(group), 100) for group in groups]
    assert [0, 0, 0, 1] == [len(some) for some in found]


def test_a_pass_may_take_long() -> None:
    """
    A bucket of millions of objects: the findings before count where the pass begins soon enough.
    """
    before = UnreferencedObjects(0, [KeyRun("a", "b", -5)])
    look = Pass(before, -1, grace_ms=100, max_gap_ms=100)

    gone = [
        look.garbage([one(key, -9)], lambda _: False, at) for key, at in (("a", 99), ("b", 150))
    ]

    assert [["a"], ["b"]] == [[found.key for found in some] for some in gone]


def test_what_stays_for_a_restore_is_not_judged() -> None:
    """
    It counts as named, and the marks of deleted topics wait for it.
    """
    look = Pass(UnreferencedObjects(), 50, grace_ms=10, max_gap_ms=100)

    others = look.judged(SessionObjects("a", [one("old", 50), one("new", 51)], []))
    look.end_page({"new"})

    assert ["new"] == [info.key for info in others.flushes]
    assert (1, 50) == (look.named_objects, look.oldest_flush_ms)


def test_the_oldest_flush_object_is_of_those_that_stay() -> None:
    """
    The mark of a deleted topic outlives it, on whichever page it is.
    """
    look = Pass(UnreferencedObjects(), -1, grace_ms=10, max_gap_ms=100)
    found = []
    for name, deleted in (("a", {"a5", "a7"}), ("b", {"b5"}), ("c", set())):
        flushes = [one(f"{name}5", 5), one(f"{name}{7 if name != 'c' else 9}", 7)]
        look.judged(SessionObjects(name, flushes, []))
        look.end_page(deleted)
        found.append(look.oldest_flush_ms)

    assert [None, 7, 5] == found
