"""The head of a session is deleted at its time, on every metadata store, and never before."""

from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from driftlog_agents.log.garbage.collector import Collector
from driftlog_agents.log.garbage.dead_heads import HOUR_MS
from driftlog_agents.log.garbage.deletions import ConfirmedStores
from driftlog_agents.log.garbage.unreferenced_objects import CollectorSettings
from driftlog_agents.log.local.posix_disk import PosixDisk
from driftlog_agents.log.session.commit_outcome import CommitOutcome
from driftlog_agents.log.session.lease import SessionSettings
from driftlog_agents.log.session.session import Session, close_head
from driftlog_metadata.schema.codec import (
    decode_ended_head,
    decode_head,
    encode_cluster,
    encode_partition_state,
)
from driftlog_metadata.schema.keys import (
    CLUSTER_KEY,
    FLUSHES_PREFIX,
    HEADS_PREFIX,
    PARTITIONS_PREFIX,
    SESSIONS_PREFIX,
    flush_key,
    flushes_prefix,
    head_key,
    parse_head_key,
    partition_key,
)
from driftlog_metadata.schema.model import (
    CLOSED,
    FINAL_HEADS_LEVEL,
    Agent,
    Cluster,
    FlushRecord,
    PartitionState,
    TopicPartition,
)
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_metadata.stores.sqlite_store import SqliteMetadataStore
from driftlog_metadata.stores.store import Delete, MetadataStore, Put
from driftlog_metadata.transactions import session_transactions as transactions
from driftlog_tiering.formats import layout
from tests.support.clusters import in_cluster
from tests.support.memory_object_store import MemoryObjectStore
from tests.support.memory_store import MemoryMetadataStore

DAY_H = 24
WEEK_H = 7 * DAY_H
TP = TopicPartition(UUID(int=3, version=4), 0)
RECORD = FlushRecord(object_key="flush/x", size_bytes=1, footer_start=0)


async def _at_once(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args)


class World:
    """A metadata store with sessions on it, and who looks after their heads."""

    def __init__(self, store: MetadataStore, path: Path) -> None:
        self.now_h = 1_000.0
        self.store = store
        self.path = path
        self.disk = PosixDisk(path / "agent-0")
        self.objects = MemoryObjectStore(lambda: int(self.now_h * HOUR_MS))
        self.collector = self._collector()

    def _collector(self) -> Collector:
        return Collector(
            stores=ConfirmedStores(self.store, self.objects),
            disk=self.disk,
            offload=_at_once,
            settings=CollectorSettings(pause_ms=0),
        )

    def move(self) -> None:
        """The collector is on another machine from now on, which knows nothing."""
        self.disk.close()
        self.disk = PosixDisk(self.path / f"agent-{self.now_h}")
        self.collector = self._collector()

    async def begin(self, number: int) -> Session:
        """A session."""
        session = Session(
            store=await in_cluster(self.store),
            agent=Agent(
                node_id=number,
                session_id=f"{number:08x}{0:024x}",
                listeners=(),
                http_address="",
                rack=None,
                started_at_ms=0,
            ),
            settings=SessionSettings(ttl_ms=6_000),
            now_ms=lambda: 0.0,
        )
        await session.open()
        return session

    async def live(self, hours: float) -> None:
        """Time goes by, with a look now and then."""
        end_h = self.now_h + hours
        while self.now_h < end_h:
            self.now_h = min(self.now_h + 2, end_h)
            await self.collector.collect()

    async def heads(self) -> list[str]:
        """Whose head is there."""
        _, kvs = await self.store.get_prefix(HEADS_PREFIX)
        return [parse_head_key(kv.key) for kv in kvs]

    async def name(self, *sessions: Session) -> None:
        """A partition was led by them."""
        state = PartitionState(sessions=tuple(s.session_id for s in sessions))
        await self.store.txn((), (Put(partition_key(TP), encode_partition_state(state)),))


@pytest.fixture(params=["memory", "sqlite"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    (tmp_path / "agents").mkdir()
    store: MetadataStore
    if request.param == "memory":
        store = cast(MetadataStore, MemoryMetadataStore(lambda: 0))
    else:
        store = await SqliteMetadataStore.open(tmp_path / "metadata.db", lambda: 0)
    made = World(store, tmp_path / "agents")
    yield made
    made.disk.close()
    await store.close()


async def test_a_head_is_marked_when_its_final_head_is_in_the_bucket(world: World) -> None:
    """
    From the mark on no keeper puts it: without it a restore serves flushes that no producer was
    told of.
    """
    value = encode_cluster(Cluster("id", FINAL_HEADS_LEVEL))
    await world.store.txn((), (Put(CLUSTER_KEY, value),))
    one = await world.begin(1)
    await one.commit(1, RECORD)
    works = world.objects.create

    async def refused(key: str, body: object) -> None:
        raise UnavailableError("503")

    await one.close()
    world.objects.create = refused  # type: ignore[method-assign]
    await world.live(8)
    kv = await world.store.get(head_key(one.session_id))
    world.objects.create = works  # type: ignore[method-assign]
    await world.live(8)
    marked = await world.store.get(head_key(one.session_id))

    assert kv is not None
    assert decode_ended_head(kv.value) is None
    assert marked is not None
    assert decode_ended_head(marked.value) is not None
    there = [i.key async for page in world.objects.list("flush/") for i in page.objects]
    assert [layout.final_head_key(one.session_id, 1)] == there


async def test_a_final_head_is_the_last_flush_however_late_it_was_committed(world: World) -> None:
    """
    A flush is committed, and the session ends, between the collector's reads of heads and of
    sessions: a final head below that flush would lose its records in a restore.
    """
    value = encode_cluster(Cluster("id", FINAL_HEADS_LEVEL))
    await world.store.txn((), (Put(CLUSTER_KEY, value),))
    one = await world.begin(1)
    await one.commit(1, RECORD)
    works = world.store.get_prefix

    async def late(prefix: str, **how: Any) -> Any:
        if prefix == SESSIONS_PREFIX and one.alive:
            await one.commit(2, RECORD)
            await one.close()
        return await works(prefix, **how)

    world.store.get_prefix = late  # type: ignore[method-assign]
    await world.live(2)
    early = await world.store.get(head_key(one.session_id))
    await world.live(8)

    assert early is not None
    assert decode_ended_head(early.value) is None
    there = [i.key async for page in world.objects.list("flush/") for i in page.objects]
    assert [layout.final_head_key(one.session_id, 2)] == there


async def test_a_head_goes_a_week_after_its_session_and_not_before(world: World) -> None:
    """
    However it ended: closed, or with an open head.
    """
    one, two, three = [await world.begin(n) for n in (1, 2, 3)]
    await one.commit(1, RECORD)
    await world.store.txn((), (Delete(flush_key(one.session_id, 1)),))
    await one.close()
    await close_head(three, two.session_id)
    await two.close()
    await world.live(6)
    await world.live(WEEK_H - 6)
    before = await world.heads()
    await world.live(12)

    assert 3 == len(before)
    assert [three.session_id] == await world.heads()
    assert 2 == world.collector.heads.deleted


async def test_the_head_of_a_session_that_lives_stays_for_ever(world: World) -> None:
    """
    However old, and unmarked: its commits compare it byte for byte.
    """
    session = await world.begin(1)
    await world.live(5 * WEEK_H)

    assert CommitOutcome.COMMITTED is await session.commit(1, RECORD)
    assert [session.session_id] == await world.heads()


async def test_the_week_does_not_depend_on_one_agents_disk(world: World) -> None:
    """
    Agents come and go more often than that; when the session ended is in the head.
    """
    session = await world.begin(1)
    await session.close()
    for _ in range(7):
        await world.live(DAY_H)
        world.move()
    await world.live(12)

    assert [] == await world.heads()


async def test_a_marked_head_still_resolves_a_commit_without_an_answer(world: World) -> None:
    """
    What was committed is committed, whether or not the session lives; what was not never is.
    """
    session = await world.begin(1)
    assert CommitOutcome.COMMITTED is await session.commit(1, RECORD)
    await session.close()
    await world.live(12)
    kv = await world.store.get(head_key(session.session_id))

    assert kv is not None
    assert decode_ended_head(kv.value) is not None
    assert CommitOutcome.COMMITTED is await session.commit(1, RECORD)
    assert CommitOutcome.DEAD is await session.commit(2, RECORD)


async def test_a_head_stays_while_a_partitions_list_names_its_session(world: World) -> None:
    """
    Or while a flush record of it is left.
    """
    named, recorded, other = [await world.begin(n) for n in (1, 2, 3)]
    await world.name(named, other)
    await recorded.commit(1, RECORD)
    for session in (named, recorded):
        await session.close()
    await world.live(3 * WEEK_H)
    both = await world.heads()
    await world.name(other)
    await world.live(12)
    one = await world.heads()
    await world.store.txn((), (Delete(flush_key(recorded.session_id, 1)),))
    await world.live(12)

    assert [s.session_id for s in (named, recorded, other)] == both
    assert [recorded.session_id, other.session_id] == one
    assert [other.session_id] == await world.heads()


async def test_a_head_stays_while_its_sessions_directory_is_on_this_disk(world: World) -> None:
    """
    The next start puts old directories in order by their heads.
    """
    session = await world.begin(1)
    await world.disk.create_session(session.session_id)
    await session.close()
    await world.live(2 * WEEK_H)
    kept = await world.heads()
    await world.disk.remove_session(session.session_id)
    await world.live(12)

    assert [session.session_id] == kept
    assert [] == await world.heads()


async def test_closing_a_marked_head_closes_it(world: World) -> None:
    """
    Its disk came back: nothing of it is committed any more, and the week begins again.
    """
    old = await world.begin(1)
    await old.close()
    await world.live(12)
    session = await world.begin(2)
    await close_head(session, old.session_id)
    kv = await world.store.get(head_key(old.session_id))
    await world.live(WEEK_H - 12)
    kept = await world.heads()
    await world.live(DAY_H)

    assert kv is not None
    assert CLOSED == decode_head(kv.value)
    assert [old.session_id, session.session_id] == kept
    assert [session.session_id] == await world.heads()


async def test_a_damaged_partition_keeps_all_heads(world: World) -> None:
    """
    It may name anybody.
    """
    session = await world.begin(1)
    await session.close()
    await world.live(12)
    await world.store.txn((), (Put(partition_key(TP), b"garbage"),))
    world.now_h += WEEK_H

    with pytest.raises(CorruptError):
        await world.collector.collect()
    assert [session.session_id] == await world.heads()


async def test_unknown_keys_and_a_damaged_head_keep_no_other_head(world: World) -> None:
    """
    They stay, and are said once: what is nobody's, and whose values cannot be read.
    """
    session = await world.begin(1)
    await session.close()
    strange = ("heads/%zz", "heads/backup", "sessions/a/b", f"partitions/{TP.topic_id}")
    keys = [*(f"/driftlog/v1/{name}" for name in strange), head_key("5e55")]
    await world.store.txn((), [Put(key, b"notes") for key in keys])

    with capture_logs() as lines:
        await world.live(2 * WEEK_H)

    said = [line for line in lines if line["event"] in ("foreign_key_found", "head_unreadable")]
    assert sorted(keys) == sorted(
        str(line.get("key") or line["error"]).partition(": ")[0] for line in said
    )
    _, kvs = await world.store.get_prefix("/driftlog/v1/")
    assert sorted([*keys, CLUSTER_KEY]) == [kv.key for kv in kvs]


async def test_hundreds_of_heads_take_a_few_transactions(world: World) -> None:
    """
    64 in each.
    """
    sessions = [await world.begin(n) for n in range(1, 201)]
    for session in sessions:
        await session.close()
    revisions = [await _revision(world)]
    await world.collector.collect()
    revisions.append(await _revision(world))
    world.now_h += WEEK_H
    await world.collector.collect()
    revisions.append(await _revision(world))

    assert [] == await world.heads()
    assert [4, 4] == _steps(revisions)


async def test_heads_of_the_living_and_changed_heads_are_not_deleted(world: World) -> None:
    """
    Whoever asks: of several all go or none.
    """
    living, dead = await world.begin(1), await world.begin(2)
    await dead.close()
    found = []
    for session in (living, dead):
        kv = await world.store.get(head_key(session.session_id))
        assert kv is not None
        found.append(
            transactions.DeadHead(session_id=session.session_id, revision=kv.mod_revision, head=0)
        )
    await close_head(living, dead.session_id)

    for head in ([found[0]], [found[1]], found):
        for txn in (transactions.delete_heads(head), transactions.mark_ended(head, 1)):
            result = await world.store.txn(txn.compares, txn.then, txn.otherwise)
            assert not result.succeeded
    assert 2 == len(await world.heads())


async def _revision(world: World) -> int:
    revision, _ = await world.store.get_prefix(HEADS_PREFIX)
    return revision


def _steps(numbers: Sequence[int]) -> list[int]:
    return [b - a for a, b in pairwise(numbers)]


async def test_states_and_records_are_read_in_pages_and_only_for_heads_that_are_due(
    world: World,
) -> None:
    """
    Never all flush records, nor all partitions, at once.
    """
    session, other = await world.begin(1), await world.begin(2)
    await other.commit(1, RECORD)
    await session.close()
    works = world.store.get_prefix
    asked: list[str] = []

    async def read(prefix: str, **how: Any) -> Any:
        asked.append(prefix)
        return await works(prefix, **how)

    world.store.get_prefix = read  # type: ignore[method-assign]
    await world.live(12)
    early = [prefix for prefix in asked if prefix.startswith((PARTITIONS_PREFIX, FLUSHES_PREFIX))]
    world.now_h += WEEK_H
    await world.collector.collect()
    due = set(asked) - set(early)

    assert [] == early
    assert 16 == len([prefix for prefix in due if prefix.startswith(PARTITIONS_PREFIX)])
    assert {flushes_prefix(session.session_id)} == {p for p in due if p.startswith(FLUSHES_PREFIX)}
    assert [other.session_id] == await world.heads()
