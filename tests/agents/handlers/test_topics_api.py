"""Topics are created, described, extended and deleted, on a real log with real stores."""

import asyncio
import json
from pathlib import Path
from uuid import UUID

import pytest

from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.handlers.api import (
    create_partitions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_topic_partitions,
    metadata,
)
from driftlog_agents.log.partition.partition import State
from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from driftlog_agents.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from driftlog_agents.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from driftlog_agents.protocol.messages.describe_cluster import DescribeClusterRequest
from driftlog_agents.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from driftlog_agents.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from driftlog_agents.protocol.requests.registry import API
from driftlog_agents.protocol.types import NULL_UUID
from driftlog_metadata.schema.codec import decode_topic
from driftlog_metadata.schema.keys import deleted_key, leaders_prefix, partitions_prefix, topic_key
from driftlog_metadata.schema.model import Topic
from driftlog_metadata.stores.store import Put
from driftlog_tiering.formats import bucket_files, layout
from driftlog_tiering.formats.stored_json import encode_json
from tests.agents.handlers.asking import create, describe, new
from tests.agents.network.serving import Serving
from tests.simulation.batches import make_batch
from tests.support.engine import NODE_ID, RunningAgent

# ── Making them ──


async def test_a_created_topic_is_led_when_that_is_said(tmp_path: Path) -> None:
    """
    Metadata, asked at once, names this agent as leader of each partition; any replication factor
    is taken.
    """
    async with RunningAgent(tmp_path) as agent:
        made = await create(agent, new("flights", 3, 3))
        (seen,) = await describe(agent, "flights")

    assert made["flights"].error_code == 0
    assert made["flights"].topic_id == seen.topic_id
    assert seen.topic_id.version == 4
    assert [NODE_ID] * 3 == [p.leader_id for p in seen.partitions]
    assert [[NODE_ID]] * 3 == [p.isr_nodes for p in seen.partitions]


@pytest.mark.verify
async def test_ten_thousand_partitions_in_one_request(tmp_path: Path) -> None:
    """
    They are all led soon: where nothing else runs, in three seconds.  The answer comes when they
    are, or after fifteen seconds, which a busy machine may need.
    """
    led = 0
    async with RunningAgent(tmp_path) as agent, asyncio.timeout(100):
        made = await create(agent, new("wide", 10_000), timeout_ms=60_000)
        while led < 10_000:
            (seen,) = await describe(agent, "wide")
            led = sum(p.leader_id == NODE_ID for p in seen.partitions)
            await asyncio.sleep(0.05)

    assert made["wide"].error_code == 0


@pytest.mark.parametrize(
    "asked, code, message",
    [
        (new(""), 17, "Topic name is invalid: the empty string is not allowed"),
        (new("."), 17, "Topic name is invalid: '.' is not allowed"),
        (
            new("a b"),
            17,
            "Topic name is invalid: 'a b' contains one or more characters other than ASCII "
            "alphanumerics, '.', '_' and '-'",
        ),
        (new("taken.1"), 36, "Topic 'taken.1' already exists."),
        (new("taken_1"), 17, "Topic 'taken_1' collides with existing topic: taken.1"),
        (new("p", 0), 37, "Number of partitions was set to an invalid non-positive value."),
        (new("p", -2), 37, "Number of partitions was set to an invalid non-positive value."),
        (new("p", 20_000), 44, "Excessively large number of partitions per request."),
        (
            new("p", 1, 0),
            38,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            new("p", retention_ms=None),
            40,
            "Null value not supported for topic configs: retention.ms",
        ),
        (new("p", nope="1"), 40, "Unknown topic config name: nope"),
        (new("p", 0, nope="1"), 40, "Unknown topic config name: nope"),
        (new("p", 1, 0, nope="1"), 40, "Unknown topic config name: nope"),
        (
            new("p", 0, 0, retention_ms=None),
            40,
            "Null value not supported for topic configs: retention.ms",
        ),
        (new("taken.1", nope="1"), 36, "Topic 'taken.1' already exists."),
    ],
)
async def test_what_kafka_refuses_is_refused_in_its_words(
    tmp_path: Path, asked: CreatableTopic, code: int, message: str
) -> None:
    """
    Codes and messages are those of Apache Kafka 4.3.1; nothing is made, and others succeed.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("taken.1"))
        made = await create(agent, asked)
        known = set(agent.broker.topics.by_name)

    assert (code, message) == (made[asked.name].error_code, made[asked.name].error_message)
    assert {"taken.1"} == known


@pytest.mark.parametrize(
    "partitions, factor, assignments, code",
    [
        (-1, -1, [(0, [NODE_ID]), (1, [NODE_ID])], 0),
        (1, -1, [(0, [NODE_ID])], 42),
        (-1, 1, [(0, [NODE_ID])], 42),
        (-1, -1, [(1, [NODE_ID])], 39),
        (-1, -1, [(0, [NODE_ID]), (0, [NODE_ID])], 39),
        (-1, -1, [(0, [])], 39),
        (-1, -1, [(0, [NODE_ID + 1])], 39),
        (-1, -1, [(0, [NODE_ID, NODE_ID])], 39),
    ],
)
async def test_a_manual_assignment_must_be_one(
    tmp_path: Path,
    partitions: int,
    factor: int,
    assignments: list[tuple[int, list[int]]],
    code: int,
) -> None:
    """
    Partitions follow from it; brokers that are not there are refused, as Kafka does.
    """
    asked = CreatableTopic(
        name="t",
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in assignments
        ],
    )
    async with RunningAgent(tmp_path) as agent:
        made = await create(agent, asked)

    assert code == made["t"].error_code
    assert code or made["t"].num_partitions == len(assignments)


@pytest.mark.parametrize(
    "asked, kept",
    [
        (new("t", 1, 3), 3),
        (new("t", 1, 32_767), 32_767),
        (new("t", 1, -1), 2),
        (new("t", 1, 1), 1),
        (
            CreatableTopic(
                name="t",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[NODE_ID])],
            ),
            1,
        ),
    ],
)
async def test_a_replication_factor_is_kept_and_shown_as_far_as_there_are_agents(
    tmp_path: Path, asked: CreatableTopic, kept: int
) -> None:
    """
    −1 is the agent's default.  Store and bucket say what was asked for, also when the topic
    changes and the session is another; clients are shown the one agent that there is.
    """
    settings = BrokerSettings(default_replication_factor=2)
    async with RunningAgent(tmp_path, settings=settings) as agent:
        made = (await create(agent, asked))["t"]
        await extend(agent, CreatePartitionsTopic(name="t", count=3, assignments=None))
        kv = await agent.broker.metadata.get(topic_key("t"))
        files = [
            bucket_files.decode_topic(
                await agent.broker.objects.get(layout.topic_key("t", made.topic_id, version))
            )
            for version in (1, 2)
        ]
        await agent.lose_session()
        (seen,) = await describe(agent, "t")
        known = agent.broker.topics.by_name["t"]

    assert kv is not None
    assert kept == decode_topic(kv.value).replication_factor
    assert [kept, kept] == [file.topic.replication_factor for file in files]
    assert kept == known.replication_factor
    assert (0, 1) == (made.error_code, made.replication_factor)
    assert [[NODE_ID]] * 3 == [p.replica_nodes for p in seen.partitions]


def test_a_topic_file_without_a_replication_factor_has_one_replica() -> None:
    """
    Files that were written before there was one are still read; what is no factor is damage.
    """
    fields = {"version": 1, "name": "t", "topic_id": str(UUID(int=5)), "partitions": 2}
    old = encode_json("driftlog.topic", 1, {**fields, "configs": {}})
    wrong = encode_json("driftlog.topic", 1, {**fields, "replication_factor": 0, "configs": {}})

    assert 1 == bucket_files.decode_topic(old).topic.replication_factor
    with pytest.raises(bucket_files.CorruptFileError, match="replication_factor is 0"):
        bucket_files.decode_topic(wrong)


async def test_a_name_twice_in_one_request_is_refused_and_the_others_are_made(
    tmp_path: Path,
) -> None:
    """
    It is answered once.
    """
    request = CreateTopicsRequest(topics=[new("x"), new("x"), new("y")], timeout_ms=30_000)
    async with RunningAgent(tmp_path) as agent:
        response = await create_topics.handle(agent.broker, request, agent.context(7))

    assert [("x", 42), ("y", 0)] == [(t.name, t.error_code) for t in response.topics]


async def test_validate_only_makes_nothing(tmp_path: Path) -> None:
    """
    The answer says what would be: the agent's number of partitions, and every config.
    """
    async with RunningAgent(tmp_path, settings=BrokerSettings(num_partitions=4)) as agent:
        made = await create(agent, new("t", -1, retention_ms="5"), validate_only=True)
        kv = await agent.broker.metadata.get(topic_key("t"))

    assert kv is None
    assert (0, 4) == (made["t"].error_code, made["t"].num_partitions)
    configs = {c.name: (c.value, c.config_source) for c in made["t"].configs or ()}
    assert ("5", 1) == configs["retention.ms"]
    assert ("delete", 5) == configs["cleanup.policy"]


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_a_request_without_time_changes_nothing(tmp_path: Path, timeout_ms: int) -> None:
    """
    Kafka's controller answers that its time is over before it begins, whatever else is wrong: a
    client that hears so may believe that a topic is not deleted.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        codes = []
        for validate_only in (False, True):
            made = await create_topics.handle(
                agent.broker,
                CreateTopicsRequest(
                    topics=[new("u"), new("b b"), new("u")],
                    timeout_ms=timeout_ms,
                    validate_only=validate_only,
                ),
                agent.context(7),
            )
            codes += [(t.error_code, t.error_message) for t in made.topics]
        more = CreatePartitionsTopic(name="t", count=2, assignments=None)
        extended = await create_partitions.handle(
            agent.broker,
            CreatePartitionsRequest(topics=[more], timeout_ms=timeout_ms),
            agent.context(3),
        )
        codes += [(t.error_code, t.error_message) for t in extended.results]
        for version in (5, 6):
            deleted = await delete_topics.handle(
                agent.broker,
                DeleteTopicsRequest(
                    topics=[DeleteTopicState(name="t")] if version == 6 else [],
                    topic_names=["t"] if version == 5 else [],
                    timeout_ms=timeout_ms,
                ),
                agent.context(version),
            )
            codes += [(t.error_code, t.error_message) for t in deleted.responses]
        pending = agent.broker.topics.pending
        known = {name: topic.partitions for name, topic in agent.broker.topics.by_name.items()}

    assert [(ErrorCode.REQUEST_TIMED_OUT, None)] * 9 == codes
    assert (0, {"t": 1}) == (pending, known)


async def test_of_many_who_make_one_name_one_wins(tmp_path: Path) -> None:
    """
    The others learn that it exists; so does who makes one that collides.
    """
    async with RunningAgent(tmp_path) as agent:
        async with asyncio.TaskGroup() as tasks:
            made = [
                tasks.create_task(create(agent, new(name)))
                for name in ("a.b", "a.b", "a_b", "a.b", "a_b")
            ]
        codes = sorted(r.error_code for task in made for r in task.result().values())
        known = set(agent.broker.topics.by_name)

    assert 1 == codes.count(0)
    assert {0, 17, 36} >= set(codes)
    assert 1 == len(known)


async def test_a_client_that_hangs_up_cuts_nothing_in_half(tmp_path: Path) -> None:
    """
    The topic is made all the same, in the store, in the bucket and in the engine.
    """
    async with RunningAgent(tmp_path) as agent:
        task = asyncio.create_task(create(agent, new("t")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        other = await create(agent, new("t"))
        (seen,) = await describe(agent, "t")
        async with asyncio.timeout(10):
            while seen.partitions[0].leader_id < 0:  # it may be there, and not led yet
                await asyncio.sleep(0.01)
                (seen,) = await describe(agent, "t")

    assert other["t"].error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS)
    assert [NODE_ID] == [p.leader_id for p in seen.partitions]


async def test_the_bucket_says_what_the_store_says(tmp_path: Path) -> None:
    """
    Version 1 is what was made; each change is a version more.
    """
    async with RunningAgent(tmp_path) as agent:
        made = await create(agent, new("t", 2, retention_ms="5"))
        topic_id = made["t"].topic_id
        await extend(agent, CreatePartitionsTopic(name="t", count=3, assignments=None))
        files = [
            bucket_files.decode_topic(
                await agent.broker.objects.get(layout.topic_key("t", topic_id, version))
            )
            for version in (1, 2)
        ]

    assert [2, 3] == [f.topic.partitions for f in files]
    assert all(f.topic.configs == {"retention.ms": "5"} for f in files)
    assert all(f.topic.topic_id == topic_id for f in files)


async def test_a_file_that_a_crash_left_out_is_written_by_the_next_session(tmp_path: Path) -> None:
    """
    The key was put, the bucket's file was not: the topic is served, and the file is there.
    """
    async with RunningAgent(tmp_path) as agent:
        made = await create(agent, new("t"))
        where = layout.topic_key("t", made["t"].topic_id, 1)
        await agent.broker.objects.delete([where])
        await agent.lose_session()
        await agent.broker.topics.repaired.wait()
        body = await agent.broker.objects.get(where)
        (seen,) = await describe(agent, "t")

    assert made["t"].topic_id == bucket_files.decode_topic(body).topic.topic_id
    assert [NODE_ID] == [p.leader_id for p in seen.partitions]


async def test_a_damaged_topic_file_is_followed_by_a_sound_one(tmp_path: Path) -> None:
    """
    The next session sees it, and says the same again under the next version.
    """
    async with RunningAgent(tmp_path) as agent:
        topic_id = (await create(agent, new("t", 2)))["t"].topic_id
        where = layout.topic_key("t", topic_id, 1)
        await agent.broker.objects.delete([where])
        await agent.broker.objects.put(where, [b"{}"])
        await agent.lose_session()
        await agent.broker.topics.repaired.wait()
        body = await agent.broker.objects.get(layout.topic_key("t", topic_id, 2))

    assert (2, 2) == (
        bucket_files.decode_topic(body).version,
        bucket_files.decode_topic(body).topic.partitions,
    )


async def test_what_a_stranger_puts_among_topic_files_is_left_alone(tmp_path: Path) -> None:
    """
    Whatever is in it, and also where it would sort as the newest.
    """
    async with RunningAgent(tmp_path) as agent:
        topic_id = (await create(agent, new("t", 2)))["t"].topic_id
        stranger = f"{layout.topic_file_prefix('t', topic_id)}README"
        assert stranger > layout.topic_key("t", topic_id, 1)
        await agent.broker.objects.put(stranger, [b"hello"])
        await agent.lose_session()
        await agent.broker.topics.repaired.wait()
        (seen,) = await describe(agent, "t")
        body = await agent.broker.objects.get(stranger)

    assert [NODE_ID] * 2 == [p.leader_id for p in seen.partitions]
    assert b"hello" == body


# ── Metadata ──


async def test_asking_for_a_topic_makes_it_unless_the_client_or_the_agent_says_no(
    tmp_path: Path,
) -> None:
    """
    The new topic is in the answer, led.  Bad names are refused, unknown ones unknown.
    """
    async with RunningAgent(tmp_path / "a", settings=BrokerSettings(num_partitions=2)) as agent:
        made, bad = await describe(agent, "made", "b d", auto=True)
        (unasked,) = await describe(agent, "unasked", auto=False)
        (old,) = await describe(agent, "old", version=3)
    never = BrokerSettings(auto_create_topics_enable=False)
    async with RunningAgent(tmp_path / "b", settings=never) as agent:
        (refused,) = await describe(agent, "made", auto=True)

    assert (0, 2) == (made.error_code, len(made.partitions))
    assert {NODE_ID} == {p.leader_id for p in made.partitions}
    assert ErrorCode.INVALID_TOPIC_EXCEPTION == bad.error_code
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == unasked.error_code
    assert 0 == old.error_code
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == refused.error_code


@pytest.mark.parametrize(
    "name",
    ["__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"],
)
async def test_kafkas_own_topics_can_be_neither_made_nor_written(tmp_path: Path, name: str) -> None:
    """
    Nothing reads them here: a client that writes them, or asks for one, is not led to believe that.
    What Kafka says of the last one it always says; of the others, where a client would make them.
    """
    async with Serving(tmp_path) as agent, agent.client() as client:
        request = CreateTopicsRequest(topics=[new(name)])
        (made,) = (await client.call(API[ApiKey.CREATE_TOPICS], 7, request)).topics
        asking = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        (asked,) = (await client.call(API[ApiKey.METADATA], 9, asking)).topics
        written = await client.produce(name, {0: make_batch([b"x"])})
        known = agent.process.broker.topics.by_name

    assert ErrorCode.INVALID_REQUEST == made.error_code
    assert f"Creation of internal topic {name} is prohibited." == made.error_message
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == asked.error_code
    internal = name != "__cluster_metadata"
    assert internal == asked.is_internal
    code = ErrorCode.INVALID_TOPIC_EXCEPTION if internal else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code == written[0].error_code
    assert {} == known


@pytest.mark.parametrize(
    "version, topics, expected",
    [
        (0, [], ["a", "b"]),
        (1, [], []),
        (1, None, ["a", "b"]),
        (12, None, ["a", "b"]),
        (12, ["b", "a", "b"], ["b", "a"]),
    ],
)
async def test_which_topics_metadata_names(
    tmp_path: Path, version: int, topics: list[str] | None, expected: list[str]
) -> None:
    """
    Version 0 means all of them by none; later ones by null.  Twice is once.
    """
    request = MetadataRequest(
        topics=None if topics is None else [MetadataRequestTopic(name=n) for n in topics]
    )
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("b"), new("a"))
        answer = await metadata.handle(agent.broker, request, agent.context(version))

    assert expected == [topic.name for topic in answer.topics]
    assert ("a-cluster", NODE_ID) == (answer.cluster_id, answer.controller_id)


async def test_topics_are_found_by_id_from_version_12_on(tmp_path: Path) -> None:
    """
    An unknown id is UNKNOWN_TOPIC_ID without a name; versions 10 and 11 refuse ids.
    """
    strange = UUID(int=5)
    async with RunningAgent(tmp_path) as agent:
        topic_id = (await create(agent, new("t")))["t"].topic_id
        answers = {}
        for version in (10, 12):
            request = MetadataRequest(
                topics=[
                    MetadataRequestTopic(topic_id=topic_id, name=None),
                    MetadataRequestTopic(topic_id=strange, name=None),
                ]
            )
            answers[version] = await metadata.handle(agent.broker, request, agent.context(version))

    assert [(0, "t"), (100, None)] == [(t.error_code, t.name) for t in answers[12].topics]
    assert [42, 42] == [t.error_code for t in answers[10].topics]


async def test_between_two_sessions_topics_are_there_without_a_leader(tmp_path: Path) -> None:
    """
    A consumer of a pattern does not lose its topics because an agent starts a session.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        engine, agent.broker.engine = agent.broker.engine, None
        everything = MetadataRequest(topics=None)
        answer = await metadata.handle(agent.broker, everything, agent.context(12))
        refused = await create(agent, new("u"), timeout_ms=100)
        agent.broker.engine = engine

    assert ["t"] == [t.name for t in answer.topics]
    assert [(5, -1)] == [(p.error_code, p.leader_id) for p in answer.topics[0].partitions]
    assert ErrorCode.NOT_CONTROLLER == refused["u"].error_code


async def test_clients_are_sent_where_they_came_in(tmp_path: Path) -> None:
    """
    Who came through a listener is told that listener's address.
    """
    async with RunningAgent(tmp_path) as agent:
        context = agent.context(12, listener="EXTERNAL")
        (seen,) = (await metadata.handle(agent.broker, MetadataRequest(), context)).brokers
        (also,) = (
            await describe_cluster.handle(agent.broker, DescribeClusterRequest(), context)
        ).brokers

    assert ("broker.example.com", 19092) == (seen.host, seen.port) == (also.host, also.port)


async def test_operations_are_said_when_asked_for(tmp_path: Path) -> None:
    """
    Without an authorizer all are allowed: the bits that Kafka 4.3 answers.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        request = MetadataRequest(
            topics=None,
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=True,
        )
        answer = await metadata.handle(agent.broker, request, agent.context(9))

    assert 8096 == answer.cluster_authorized_operations
    assert [3576] == [t.topic_authorized_operations for t in answer.topics]


@pytest.mark.parametrize("endpoint, code", [(1, 0), (2, 114), (3, 115)])
async def test_describe_cluster_speaks_of_brokers_only(
    tmp_path: Path, endpoint: int, code: int
) -> None:
    """
    Controllers are refused as a broker refuses them.
    """
    request = DescribeClusterRequest(endpoint_type=endpoint)
    async with RunningAgent(tmp_path) as agent:
        answer = await describe_cluster.handle(agent.broker, request, agent.context(2))

    assert code == answer.error_code


# ── Pages of partitions ──


async def test_pages_name_every_partition_once(tmp_path: Path) -> None:
    """
    Following the cursor to its end names each partition of each topic once, in order.
    """
    seen: list[tuple[str | None, int]] = []
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("a", 3), new("b", 2), new("c", 4))
        cursor: Cursor | None = None
        for _ in range(20):
            request = DescribeTopicPartitionsRequest(response_partition_limit=2, cursor=cursor)
            page = await describe_topic_partitions.handle(agent.broker, request, agent.context(0))
            seen += [(t.name, p.partition_index) for t in page.topics for p in t.partitions]
            assert 2 >= sum(len(t.partitions) for t in page.topics)
            cursor = page.next_cursor
            if cursor is None:
                break

    assert [(n, i) for n, count in (("a", 3), ("b", 2), ("c", 4)) for i in range(count)] == seen


async def test_a_cursor_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    """
    Of a topic that is not asked for, or before the first partition: INVALID_REQUEST.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("a"))
        codes = []
        for cursor in (
            Cursor(topic_name="z", partition_index=0),
            Cursor(topic_name="a", partition_index=-1),
        ):
            request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="a")], cursor=cursor)
            page = await describe_topic_partitions.handle(agent.broker, request, agent.context(0))
            codes += [t.error_code for t in page.topics]

    assert [42, 42] == codes


# ── More partitions ──


async def extend(
    agent: RunningAgent, *topics: CreatePartitionsTopic, validate_only: bool = False
) -> list[CreatePartitionsTopicResult]:
    request = CreatePartitionsRequest(
        topics=list(topics), timeout_ms=30_000, validate_only=validate_only
    )
    return (await create_partitions.handle(agent.broker, request, agent.context(3))).results


async def test_partitions_are_added_and_led(tmp_path: Path) -> None:
    """
    Those that were there go on in their epoch; after a restart all are there.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t", 2))
        await agent.append("t", 1, make_batch([b"x"], timestamp_ms=1))
        validated = await extend(
            agent, CreatePartitionsTopic(name="t", count=4, assignments=None), validate_only=True
        )
        (before,) = await describe(agent, "t")
        done = await extend(agent, CreatePartitionsTopic(name="t", count=4, assignments=None))
        (after,) = await describe(agent, "t")
        assert 1 == agent.log("t", 1).high_watermark
    async with RunningAgent(tmp_path) as agent:
        (again,) = await describe(agent, "t")

    assert [0, 0] == [r.error_code for r in validated + done]
    assert 2 == len(before.partitions)
    assert [(NODE_ID, 0)] * 4 == [(p.leader_id, p.leader_epoch) for p in after.partitions]
    assert [NODE_ID] * 4 == [p.leader_id for p in again.partitions]


@pytest.mark.parametrize(
    "asked, code, message",
    [
        (("t", 2, None), 37, "Topic already has 2 partition(s)."),
        (
            ("t", 1, None),
            37,
            "The topic t currently has 2 partition(s); 1 would not be an increase.",
        ),
        (("u", 3, None), 3, None),
        (
            ("t", 4, [[NODE_ID]]),
            39,
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (
            ("t", 3, [[9]]),
            39,
            "The manual partition assignment includes broker 9, but no such broker is registered.",
        ),
    ],
)
async def test_partitions_that_make_no_sense_are_refused(
    tmp_path: Path, asked: tuple[str, int, list[list[int]] | None], code: int, message: str | None
) -> None:
    """
    Codes and messages are those of Apache Kafka 4.3.1.
    """
    name, count, brokers = asked
    assignments = None
    if brokers is not None:
        assignments = [CreatePartitionsAssignment(broker_ids=ids) for ids in brokers]
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t", 2))
        (result,) = await extend(
            agent, CreatePartitionsTopic(name=name, count=count, assignments=assignments)
        )

    assert (code, message) == (result.error_code, result.error_message)


# ── Deleting them ──


async def delete(agent: RunningAgent, *states: DeleteTopicState) -> list[DeletableTopicResult]:
    request = DeleteTopicsRequest(topics=list(states), timeout_ms=30_000)
    return (await delete_topics.handle(agent.broker, request, agent.context(6))).responses


@pytest.mark.parametrize("by_id", [False, True])
async def test_a_deleted_topic_is_gone_and_its_name_is_free(tmp_path: Path, by_id: bool) -> None:
    """
    Its tombstone and the bucket's mark are there, its keys are not; a new one of its name has
    another id and none of its records, after a restart too.  The tombstone stays for hours and has
    no configs, which may be long.
    """
    async with RunningAgent(tmp_path) as agent:
        first = (await create(agent, new("t", 2, retention_ms="1000000")))["t"].topic_id
        await agent.append("t", 0, make_batch([b"old"], timestamp_ms=1))
        state = DeleteTopicState(topic_id=first) if by_id else DeleteTopicState(name="t")
        (result,) = await delete(agent, state)
        (gone,) = await describe(agent, "t")
        store = agent.broker.metadata
        keys = [
            kv.key
            for prefix in (leaders_prefix(first), partitions_prefix(first))
            for kv in (await store.get_prefix(prefix))[1]
        ]
        tombstone = await store.get(deleted_key(first))
        mark = json.loads(bytes(await agent.broker.objects.get(layout.deleted_key("t", first))))
        second = (await create(agent, new("t", 1)))["t"].topic_id
        assert 0 == agent.log("t", 0).high_watermark
        await agent.append("t", 0, make_batch([b"new"], timestamp_ms=1))
    async with RunningAgent(tmp_path) as agent:
        (again,) = await describe(agent, "t")
        assert 1 == agent.log("t", 0).high_watermark

    assert (0, "t", first) == (result.error_code, result.name, result.topic_id)
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == gone.error_code
    assert [] == keys
    assert tombstone is not None
    assert Topic(name="t", topic_id=first, partitions=2) == decode_topic(tombstone.value)
    assert ("t", str(first)) == (mark["name"], mark["topic_id"])
    assert first != second == again.topic_id


async def test_nothing_is_taken_for_a_deleted_topic(tmp_path: Path) -> None:
    """
    Its partitions are closed, whoever still holds one.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        log = agent.log("t", 0)
        await delete(agent, DeleteTopicState(name="t"))

        assert agent.engine.log("t", 0) is None
        assert State.CLOSED is log.state


async def test_deleting_what_is_not_there_or_is_said_badly(tmp_path: Path) -> None:
    """
    Codes and messages are those of Apache Kafka 4.3.1, each state answered by itself.
    """
    strange = UUID(int=9)
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"), new("u"))
        answers = [
            await delete(agent, *states)
            for states in (
                (DeleteTopicState(name="nope"), DeleteTopicState(topic_id=strange)),
                (DeleteTopicState(name="t", topic_id=strange), DeleteTopicState()),
                (DeleteTopicState(name="t"), DeleteTopicState(name="t")),
                (DeleteTopicState(name="nope"), DeleteTopicState(), DeleteTopicState()),
            )
        ]
        known = set(agent.broker.topics.by_name)

    assert [
        [("nope", NULL_UUID, 3), (None, strange, 100)],
        [("t", strange, 42), (None, NULL_UUID, 42)],
        [("t", NULL_UUID, 42)],
        [(None, NULL_UUID, 42), ("nope", NULL_UUID, 3)],
    ] == [[(r.name, r.topic_id, r.error_code) for r in answer] for answer in answers]
    assert {"t", "u"} == known


async def test_a_topic_that_is_named_in_two_ways_is_not_deleted(tmp_path: Path) -> None:
    """
    As in Kafka, with one answer: it cannot be known whether the client means one topic or two.
    """
    async with RunningAgent(tmp_path) as agent:
        made = await create(agent, new("t"), new("u"))
        t, u = made["t"].topic_id, made["u"].topic_id
        once = await delete(agent, DeleteTopicState(name="t"), DeleteTopicState(topic_id=t))
        twice = await delete(
            agent,
            DeleteTopicState(topic_id=t),
            DeleteTopicState(topic_id=t),
            DeleteTopicState(name="t"),
        )
        known = set(agent.broker.topics.by_name)
        other = await delete(
            agent,
            DeleteTopicState(name="u"),
            DeleteTopicState(name="u"),
            DeleteTopicState(topic_id=u),
        )

    supplied = ("t", t, 42, "The provided topic name maps to an ID that was already supplied.")
    assert [supplied] == [(r.name, r.topic_id, r.error_code, r.error_message) for r in once]
    assert {supplied, (None, t, 42, "Duplicate topic id.")} == {
        (r.name, r.topic_id, r.error_code, r.error_message) for r in twice
    }
    assert {"t", "u"} == known
    assert {("u", NULL_UUID, 42), ("u", u, 0)} == {
        (r.name, r.topic_id, r.error_code) for r in other
    }


async def test_a_deletion_that_a_crash_interrupted_is_finished(tmp_path: Path) -> None:
    """
    The tombstone was put and nothing else: the next session does not serve the topic, and
    everything that follows the tombstone is done.
    """
    async with RunningAgent(tmp_path) as agent:
        topic_id = (await create(agent, new("t")))["t"].topic_id
        store = agent.broker.metadata
        kv = await store.get(topic_key("t"))
        assert kv is not None
        await store.txn((), [Put(deleted_key(topic_id), kv.value)])
        await agent.lose_session()
        (gone,) = await describe(agent, "t")
        key = await store.get(topic_key("t"))
        leaders = (await store.get_prefix(leaders_prefix(topic_id)))[1]
        await agent.broker.objects.stat(layout.deleted_key("t", topic_id))
        made = await create(agent, new("t"))

    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == gone.error_code
    assert (None, []) == (key, leaders)
    assert 0 == made["t"].error_code
