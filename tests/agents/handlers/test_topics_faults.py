"""Topics stay whole while stores lose answers, refuse requests, or act on them long afterwards."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from driftlog_agents.cluster.view import SessionEntry
from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.handlers.api import create_partitions, delete_topics, incremental_alter_configs
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import incremental_alter_configs as iac
from driftlog_agents.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from driftlog_agents.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from driftlog_agents.topics.validation import MAX_PARTITIONS_PER_REQUEST
from driftlog_metadata.schema.codec import decode_topic
from driftlog_metadata.schema.keys import (
    DELETED_PREFIX,
    LEADERS_PREFIX,
    PARTITIONS_PREFIX,
    TOPICS_PREFIX,
    deleted_key,
)
from driftlog_metadata.schema.model import LiveSession, SessionStage, TopicPartition
from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.store import Compare, Delete, MetadataStore, Operation, Put, TxnResult
from driftlog_tiering.formats import bucket_files, layout
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_store import Listing, ObjectStore
from tests.agents.handlers.asking import create, describe, new
from tests.agents.network.serving import eventually
from tests.simulation.batches import make_batch
from tests.support.engine import NODE_ID, RunningAgent


class Metadata:
    """A store that remembers what was asked of topics, and loses answers when told to."""

    def __init__(self, store: MetadataStore) -> None:
        self.behind = store
        self.losing = False
        self.asked: list[tuple[Sequence[Compare], Sequence[Operation], Sequence[Operation]]] = []
        self.gate = asyncio.Event()
        """Changes of topics wait for it."""
        self.gate.set()
        self.leases = asyncio.Event()
        """New sessions wait for it."""
        self.leases.set()
        self._lost: set[bytes] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        topics = any(
            isinstance(op, Put) and op.key.startswith((TOPICS_PREFIX, DELETED_PREFIX))
            for op in then
        )
        if topics:
            self.asked.append((compares, then, otherwise))
            await self.gate.wait()
        result = await self.behind.txn(compares, then, otherwise)
        name = repr((compares, then)).encode()
        if self.losing and topics and name not in self._lost:
            self._lost.add(name)
            raise OutcomeUnknownError("the answer was lost")
        return result

    async def grant_lease(self, lease_id: int, ttl_ms: int) -> None:
        await self.leases.wait()
        await self.behind.grant_lease(lease_id, ttl_ms)

    async def everything(self) -> list[Any]:
        """All that is kept of topics and partitions."""
        prefixes = (TOPICS_PREFIX, DELETED_PREFIX, LEADERS_PREFIX, PARTITIONS_PREFIX)
        return [kv for prefix in prefixes for kv in (await self.behind.get_prefix(prefix))[1]]


class Objects:
    """A bucket that takes no topic files while it is told not to."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.refuses = False
        self.refused = asyncio.Event()
        self.names: set[str] = set()
        """What was refused."""
        self.requests: list[str] = []
        """Keys of PUTs, and prefixes of LISTs."""
        self.gate = asyncio.Event()
        """Manifests wait for it."""
        self.gate.set()
        self.waiting = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def list(self, prefix: str, **which: Any) -> AsyncIterator[Listing]:
        self.requests.append(prefix)
        return self._store.list(prefix, **which)

    async def create(self, key: str, body: Sequence[Buffer]) -> None:
        self.requests.append(key)
        if self.refuses:
            self.refused.set()
            self.names.add(key)
            raise UnavailableError("slow down")
        if "/manifest/" in key:
            self.waiting.set()
            await self.gate.wait()
        await self._store.create(key, body)


async def alter(agent: RunningAgent, name: str, value: str) -> int:
    (code,) = await alter_all(agent, name, value=value)
    return code


async def alter_all(agent: RunningAgent, *names: str, value: str) -> list[int]:
    config = iac.AlterableConfig(name="retention.ms", config_operation=0, value=value)
    request = iac.IncrementalAlterConfigsRequest(
        resources=[
            iac.AlterConfigsResource(resource_type=2, resource_name=name, configs=[config])
            for name in names
        ]
    )
    response = await incremental_alter_configs.handle(agent.broker, request, agent.context(1))
    assert list(names) == [each.resource_name for each in response.responses]
    return [each.error_code for each in response.responses]


async def extend(agent: RunningAgent, name: str, count: int, timeout_ms: int = 30_000) -> int:
    topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=timeout_ms)
    response = await create_partitions.handle(agent.broker, request, agent.context(3))
    return response.results[0].error_code


async def delete(agent: RunningAgent, name: str, timeout_ms: int = 30_000) -> int:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=timeout_ms)
    response = await delete_topics.handle(agent.broker, request, agent.context(6))
    return response.responses[0].error_code


async def test_a_lost_answer_is_not_a_failure(tmp_path: Path) -> None:
    """
    Every change happens, its first answer is lost, and the client is told that it happened.
    """
    stores: list[Metadata] = []
    async with RunningAgent(tmp_path, metadata=lambda s: _kept(stores, Metadata(s))) as agent:
        stores[0].losing = True
        made = await create(agent, new("t", 2), new("u"))
        codes = [
            *(result.error_code for result in made.values()),
            await alter(agent, "t", "5"),
            await extend(agent, "t", 3),
            await delete(agent, "u"),
        ]
        topic = agent.broker.topics.by_name["t"]
        known = set(agent.broker.topics.by_name)

    assert [0] * 5 == codes
    assert ({"t"}, 3, {"retention.ms": "5"}) == (known, topic.partitions, dict(topic.configs))


async def test_a_late_copy_of_any_change_does_nothing(tmp_path: Path) -> None:
    """
    Each transaction is delivered again after all of them, in its session and in the next one;
    deleted topics stay deleted, changed ones changed.
    """
    stores: list[Metadata] = []
    async with RunningAgent(tmp_path, metadata=lambda s: _kept(stores, Metadata(s))) as agent:
        store = stores[0]
        await create(agent, new("t"), new("u"))
        await alter(agent, "t", "5")
        await alter(agent, "t", "6")
        await alter(agent, "u", "5")
        await extend(agent, "t", 2)
        await delete(agent, "u")
        for _ in range(2):
            before = await store.everything()
            for copy in list(store.asked):
                await store.behind.txn(*copy)
            after = await store.everything()
            assert before == after
            await agent.lose_session()

    assert 7 == len(store.asked)


async def test_a_copy_that_comes_first_in_a_later_session_makes_nothing(tmp_path: Path) -> None:
    """
    A create that its session did not live to see: the next session has not read the topic, so
    it must not appear behind it.
    """
    stores: list[Metadata] = []
    async with RunningAgent(tmp_path, metadata=lambda s: _kept(stores, Metadata(s))) as agent:
        store = stores[0]
        await create(agent, new("t"))
        late = store.asked[-1]
        await delete(agent, "t")
        await store.behind.txn((), [_forget_tombstone(late)])
        await agent.lose_session()
        before = await store.everything()
        await store.behind.txn(*late)
        after = await store.everything()

    assert before == after


async def test_a_bucket_that_is_away_delays_a_topic_and_fails_nothing(tmp_path: Path) -> None:
    """
    Who does not want to wait is told so; the topic is made when the bucket is back.
    """
    stores: list[Objects] = []
    async with RunningAgent(tmp_path, objects=lambda s: _kept(stores, Objects(s))) as agent:
        bucket = stores[0]
        bucket.refuses = True
        late = await create(agent, new("t"), timeout_ms=200)
        waiting = asyncio.create_task(create(agent, new("u")))
        await bucket.refused.wait()
        bucket.refuses = False
        made = await waiting
        again = await create(agent, new("t"))
        await alter(agent, "t", "5")  # Takes its turn behind what still makes it.
        (seen,) = await describe(agent, "t")

    assert ErrorCode.REQUEST_TIMED_OUT == late["t"].error_code
    assert 0 == made["u"].error_code
    assert ErrorCode.TOPIC_ALREADY_EXISTS == again["t"].error_code
    assert [NODE_ID] == [p.leader_id for p in seen.partitions]


async def test_topics_of_one_request_are_altered_at_once(tmp_path: Path) -> None:
    """
    MirrorMaker alters all of its topics in one request: one after the other, 200 of them would take
    longer than its request.timeout.ms.  Answers are in the order of the request.
    """
    stores: list[Objects] = []
    async with RunningAgent(tmp_path, objects=lambda s: _kept(stores, Objects(s))) as agent:
        bucket = stores[0]
        await create(agent, new("a"), new("b"), new("c"))
        bucket.refuses = True
        altering = asyncio.create_task(alter_all(agent, "a", "nope", "b", "c", value="5"))
        await eventually(lambda: 3 == len({key.split("/")[1] for key in bucket.names}))
        bucket.refuses = False
        codes = await altering
        configs = [dict(agent.broker.topics.by_name[name].configs) for name in "abc"]

    assert [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0, 0] == codes
    assert [{"retention.ms": "5"}] * 3 == configs


async def test_an_alter_that_changes_nothing_asks_the_bucket_nothing(tmp_path: Path) -> None:
    """
    MirrorMaker repeats its configs at each sync.  A file that a crash left behind is written by a
    session, and needs no repeat.
    """
    stores: list[Objects] = []
    async with RunningAgent(tmp_path, objects=lambda s: _kept(stores, Objects(s))) as agent:
        topic_id = (await create(agent, new("t")))["t"].topic_id
        prefix = layout.topic_file_prefix("t", topic_id)
        counts = []
        for _ in range(2):
            stores[0].requests.clear()
            assert 0 == await alter(agent, "t", "5")
            counts.append(sum(key.startswith(prefix) for key in stores[0].requests))

    changed, repeated = counts
    assert changed > 0 == repeated


async def test_an_alter_waits_for_no_leader(tmp_path: Path) -> None:
    """
    Partitions are without one while an agent restarts: kafka-configs would hang for 15 s, and the
    change is made whoever leads.
    """
    async with RunningAgent(tmp_path) as agent:
        topic_id = (await create(agent, new("t")))["t"].topic_id
        agent.broker.view.leaders.pop(TopicPartition(topic_id, 0))
        async with asyncio.timeout(4):
            code = await alter(agent, "t", "5")
        configs = dict(agent.broker.topics.by_name["t"].configs)

    assert (0, {"retention.ms": "5"}) == (code, configs)


async def test_clients_that_keep_asking_for_a_topic_do_not_pile_up(tmp_path: Path) -> None:
    """
    While the bucket is away one change waits, however many clients want the topic, which they are
    shown as soon as its key is there.
    """
    stores: list[Objects] = []
    async with RunningAgent(tmp_path, objects=lambda s: _kept(stores, Objects(s))) as agent:
        bucket, topics = stores[0], agent.broker.topics
        bucket.refuses = True
        first = asyncio.create_task(describe(agent, "t", auto=True))
        await bucket.refused.wait()
        others = [await describe(agent, "t", auto=True) for _ in range(20)]
        pending = topics.pending
        bucket.refuses = False
        (made,) = await first

    assert 1 == pending
    assert {ErrorCode.LEADER_NOT_AVAILABLE, 0} >= {t.error_code for (t,) in others}
    assert (0, [NODE_ID]) == (made.error_code, [p.leader_id for p in made.partitions])
    assert (0, False) == (topics.pending, topics.is_making("t"))


async def test_a_session_that_ends_meanwhile_leaves_the_topic_to_the_next_one(
    tmp_path: Path,
) -> None:
    """
    The client waits on, and is told that the topic is there: served, with its file in the bucket.
    """
    stores: list[Objects] = []
    async with RunningAgent(tmp_path, objects=lambda s: _kept(stores, Objects(s))) as agent:
        bucket = stores[0]
        bucket.refuses = True
        making = asyncio.create_task(create(agent, new("t")))
        await bucket.refused.wait()
        await agent.lose_session()
        bucket.refuses = False
        first = await making
        await agent.broker.topics.repaired.wait()
        again = await create(agent, new("t"))
        await agent.append("t", 0, make_batch([b"x"], timestamp_ms=1))
        topic = agent.broker.topics.by_name["t"]
        body = await agent.broker.objects.get(layout.topic_key("t", topic.topic_id, 1))

    assert (0, topic.topic_id) == (first["t"].error_code, first["t"].topic_id)
    assert ErrorCode.TOPIC_ALREADY_EXISTS == again["t"].error_code
    assert topic == bucket_files.decode_topic(body).topic


async def test_changes_that_lose_their_session_are_made_once_by_the_next_one(
    tmp_path: Path,
) -> None:
    """
    Each is in the store already when the session ends, and none is taken for somebody else's.
    """
    stores: list[Objects] = []
    async with RunningAgent(tmp_path, objects=lambda s: _kept(stores, Objects(s))) as agent:
        bucket = stores[0]
        await create(agent, new("changed"), new("extended"), new("gone"))
        bucket.refuses = True
        async with asyncio.TaskGroup() as tasks:
            changes = [
                tasks.create_task(alter(agent, "changed", "5")),
                tasks.create_task(extend(agent, "extended", 3)),
                tasks.create_task(delete(agent, "gone")),
            ]
            await eventually(lambda: len(bucket.names) == len(changes))
            with capture_logs() as lines:
                losing = tasks.create_task(agent.lose_session())
                await eventually(
                    lambda: (
                        ["topic_change_interrupted"] * len(changes)
                        == [line["event"] for line in lines if "interrupted" in line["event"]]
                    )
                )
            bucket.refuses = False
            await losing
        topics = agent.broker.topics.by_name

    assert [0, 0, 0] == [change.result() for change in changes]
    assert {"changed", "extended"} == set(topics)
    assert ({"retention.ms": "5"}, 3) == (
        dict(topics["changed"].configs),
        topics["extended"].partitions,
    )


async def test_what_is_asked_between_two_sessions_is_done_by_the_next_one(tmp_path: Path) -> None:
    """
    Clients do not hear of it: some of them take NOT_CONTROLLER for the end of their request.
    """
    stores: list[Metadata] = []
    async with RunningAgent(tmp_path, metadata=lambda s: _kept(stores, Metadata(s))) as agent:
        await create(agent, new("old"))
        engine = agent.engine
        stores[0].leases.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(agent.lose_session())
            await eventually(lambda: agent.broker.engine is not engine)
            making = tasks.create_task(create(agent, new("t")))
            deleting = tasks.create_task(delete(agent, "old"))
            altering = tasks.create_task(alter(agent, "old", "5"))
            await asyncio.sleep(0.1)
            early = [task.done() for task in (making, deleting, altering)]
            stores[0].leases.set()

    assert [False] * 3 == early
    assert [0, 0] == [making.result()["t"].error_code, deleting.result()]
    assert {0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} >= {altering.result()}


async def test_a_change_waits_for_a_session_as_long_as_its_client_does(tmp_path: Path) -> None:
    """
    Then it is told to ask another agent.
    """
    async with RunningAgent(tmp_path) as agent:
        engine, agent.broker.engine = agent.engine, None
        async with asyncio.timeout(5):
            late = await create(agent, new("t"), timeout_ms=200)
        agent.broker.engine = engine
        again = await create(agent, new("t"))

    assert [ErrorCode.NOT_CONTROLLER, 0] == [late["t"].error_code, again["t"].error_code]


def freeze_another(agent: RunningAgent) -> None:
    """Another agent is there, and silent: its lease lasts, and it sees nothing any more."""
    said = LiveSession(node_id=NODE_ID + 1, stage=SessionStage.SERVING, topics_revision=0)
    agent.broker.view.sessions["frozen"] = SessionEntry("frozen", said, 1)


async def test_what_is_done_is_said_although_another_agent_is_silent(tmp_path: Path) -> None:
    """
    Its client's patience ends while only that agent is waited for: no change has timed out.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("small"), new("old"))
        freeze_another(agent)
        made, *codes = await asyncio.gather(
            create(agent, new("t"), timeout_ms=5_000),
            extend(agent, "small", 2, timeout_ms=5_000),
            delete(agent, "old", timeout_ms=5_000),
        )

    assert [0, 0, 0] == [made["t"].error_code, *codes]


async def test_a_topic_that_is_asked_for_is_shown_although_another_agent_is_silent(
    tmp_path: Path,
) -> None:
    """
    The answer waits for its leaders, and not for all agents: others on its connection wait too.
    """
    async with RunningAgent(tmp_path) as agent:
        freeze_another(agent)
        async with asyncio.timeout(4):
            (made,) = await describe(agent, "t", auto=True)
            while not made.partitions or made.partitions[0].leader_id != NODE_ID:
                (made,) = await describe(agent, "t", auto=True)

    assert 0 == made.error_code


async def test_a_topic_that_takes_long_to_make_is_made_behind_the_answer(tmp_path: Path) -> None:
    """
    Many who ask for it are told soon that it has no leader yet, and share one attempt.
    """
    stores: list[Metadata] = []
    async with RunningAgent(tmp_path, metadata=lambda s: _kept(stores, Metadata(s))) as agent:
        stores[0].gate.clear()
        async with asyncio.timeout(4), asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(describe(agent, "t", auto=True)) for _ in range(5)]
        attempts = len(stores[0].asked)
        stores[0].gate.set()
        await eventually(lambda: "t" in agent.broker.topics.by_name)
        (made,) = await describe(agent, "t", auto=True)

    codes = [topic.error_code for task in asked for topic in task.result()]
    assert [ErrorCode.LEADER_NOT_AVAILABLE] * 5 == codes
    assert (1, 0) == (attempts, made.error_code)


async def test_why_a_topic_was_not_made_behind_the_answer_is_in_the_log(tmp_path: Path) -> None:
    """
    Its client was told to ask again; so nobody else would know.
    """
    settings = BrokerSettings(num_partitions=MAX_PARTITIONS_PER_REQUEST + 1)
    with capture_logs() as lines:
        async with RunningAgent(tmp_path, settings=settings) as agent:
            (refused,) = await describe(agent, "t", auto=True)

    assert ErrorCode.POLICY_VIOLATION == refused.error_code
    assert ["t"] == [line["topic"] for line in lines if line["event"] == "topic_not_made"]


async def test_a_topic_that_is_deleted_while_it_is_sealed_costs_no_session(
    tmp_path: Path,
) -> None:
    """
    Its keys are gone when the sealer wants to write them: it gives up, other topics go on.
    """
    stores: list[Objects] = []
    async with RunningAgent(tmp_path, objects=lambda s: _kept(stores, Objects(s))) as agent:
        bucket = stores[0]
        await create(agent, new("t"), new("kept"))
        await agent.append("t", 0, make_batch([b"x"], timestamp_ms=1))
        bucket.gate.clear()
        sealing = asyncio.create_task(agent.seal("t", 0))
        await bucket.waiting.wait()
        deleted = await delete(agent, "t")
        bucket.gate.set()
        with pytest.raises(UnavailableError):
            await sealing
        await agent.append("kept", 0, make_batch([b"y"], timestamp_ms=1))

        assert (0, 1) == (deleted, agent.sessions)


def _kept(stores: list[Any], store: Any) -> Any:
    stores.append(store)
    return store


def _forget_tombstone(
    copy: tuple[Sequence[Compare], Sequence[Operation], Sequence[Operation]],
) -> Operation:
    """As the collector does, a day later."""
    (put,) = copy[1]
    assert isinstance(put, Put)
    return Delete(deleted_key(decode_topic(put.value).topic_id))
