"""Elections, reassignments, the quorum and features are answered as Kafka's admin clients expect.

What one agent says is held against Apache Kafka in `test_kafka_says_so_to_admins`.
"""

import asyncio
from pathlib import Path

import pytest

from driftlog_agents.handlers.api import (
    create_partitions,
    describe_quorum,
    elect_leaders,
    list_config_resources,
    reassignments,
    unregister_broker,
    update_features,
)
from driftlog_agents.handlers.api.update_features import UpgradeType
from driftlog_agents.handlers.common.api_versions_table import FORMAT_FEATURE, versions_response
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from driftlog_agents.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from driftlog_agents.protocol.messages.describe_quorum import DescribeQuorumRequest
from driftlog_agents.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from driftlog_agents.protocol.messages.list_config_resources import ListConfigResourcesRequest
from driftlog_agents.protocol.messages.unregister_broker import UnregisterBrokerRequest
from driftlog_agents.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
)
from driftlog_agents.topics.validation import METADATA_TOPIC
from driftlog_metadata.schema.codec import encode_agent, encode_live_session
from driftlog_metadata.schema.keys import agent_key, session_key
from driftlog_metadata.schema.model import FORMAT_VERSION, Agent, Cluster, Listener, LiveSession
from driftlog_metadata.stores.store import Put
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import encode_cluster as encode_cluster_file
from driftlog_tiering.stores.object_store import AccessDeniedError
from tests.agents.handlers.asking import create, new
from tests.support.engine import NODE_ID, RunningAgent

OTHER = NODE_ID + 1
SEEN = 2
"""The revision of the topics that the other agent says it has seen."""


async def join(agent: RunningAgent) -> None:
    """Another agent is there: it starts, and is given no partitions yet."""
    other = Agent(
        node_id=OTHER,
        session_id="0" * 31 + "8",
        listeners=(Listener("PLAINTEXT", "other", 9092),),
        http_address="other:9644",
        rack=None,
        started_at_ms=0,
    )
    said = LiveSession(node_id=OTHER, topics_revision=SEEN)
    await agent.broker.metadata.txn(
        (),
        [
            Put(session_key(other.session_id), encode_live_session(said)),
            Put(agent_key(OTHER), encode_agent(other)),
        ],
    )
    view = agent.broker.view
    async with asyncio.timeout(30):
        while True:
            if OTHER in view.agents and other.session_id in view.sessions:
                return
            await asyncio.sleep(0.01)


async def reassign(
    agent: RunningAgent, topic: str, replicas: list[int] | None, *, factor: bool = True
) -> tuple[ErrorCode, str | None]:
    """AlterPartitionReassignments of partition 0."""
    asked = ReassignablePartition(partition_index=0, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=factor,
        topics=[ReassignableTopic(name=topic, partitions=[asked])],
    )
    response = await reassignments.alter(agent.broker, request, agent.context(1))
    ((answer,),) = [t.partitions for t in response.responses]
    return ErrorCode(answer.error_code), answer.error_message


async def test_replicas_cannot_be_chosen(tmp_path: Path) -> None:
    """
    Those that are shown are taken, as a reassignment that is done; all others are refused, with
    what moves partitions here.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("one", replicas=1), new("two", replicas=2))
        await join(agent)

        assert (ErrorCode.NONE, None) == await reassign(agent, "one", [NODE_ID])
        assert (ErrorCode.NONE, None) == await reassign(agent, "two", [NODE_ID, OTHER])
        for topic, replicas in (("one", [OTHER]), ("one", [NODE_ID, OTHER]), ("two", [OTHER])):
            code, why = await reassign(agent, topic, replicas)
            assert code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
            assert why is not None
            assert "Start or stop agents" in why
        code, why = await reassign(agent, "two", [OTHER, NODE_ID])
        assert code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert (
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "The replication factor is changed from 2 to 1",
        ) == await reassign(agent, "two", [NODE_ID], factor=False)
        code, _ = await reassign(agent, "two", None)
        assert code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (elect_leaders.PREFERRED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (elect_leaders.UNCLEAN, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    ],
)
async def test_a_partition_on_its_way_has_nobody_to_elect(
    tmp_path: Path, kind: int, expected: ErrorCode
) -> None:
    """
    Who asks for all partitions is told of it alone, of all the others that there is no need.
    """
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t", 2))
        logs = agent.engine.topics["t"].logs
        log, logs[1] = logs[1], None  # claimed, and not read yet

        async def elect(asked: list[TopicPartitions] | None) -> list[tuple[int, int]]:
            request = ElectLeadersRequest(election_type=kind, topic_partitions=asked)
            response = await elect_leaders.handle(agent.broker, request, agent.context(2))
            assert 0 == response.error_code
            (topic,) = response.replica_election_results
            return [(p.partition_id, p.error_code) for p in topic.partition_result]

        assert [(0, ErrorCode.ELECTION_NOT_NEEDED), (1, expected)] == await elect(
            [TopicPartitions(topic="t", partitions=[0, 1])]
        )
        assert [(1, expected)] == await elect(None)
        logs[1] = log


async def test_other_agents_are_observers_that_are_where_they_say(tmp_path: Path) -> None:
    """
    The voter is who is called the controller, and is at the newest revision of the topics; an
    observer is at the one that its session says.
    """
    wanted = DescribeQuorumRequest(
        topics=[
            DescribeQuorumRequest.TopicData(
                topic_name=METADATA_TOPIC,
                partitions=[DescribeQuorumRequest.PartitionData(partition_index=0)],
            )
        ]
    )
    async with RunningAgent(tmp_path) as agent:
        await join(agent)
        await create(agent, new("t"))
        response = await describe_quorum.handle(agent.broker, wanted, agent.context(2))
        newest = agent.broker.view.topics_revision

    (partition,) = response.topics[0].partitions
    assert newest > SEEN
    assert (NODE_ID, newest) == (partition.leader_id, partition.high_watermark)
    (voter,) = partition.current_voters
    (observer,) = partition.observers
    assert (NODE_ID, newest) == (voter.replica_id, voter.log_end_offset)
    assert (OTHER, SEEN) == (observer.replica_id, observer.log_end_offset)


async def test_added_partitions_have_as_many_replicas_as_their_topic(tmp_path: Path) -> None:
    """
    As in Kafka: an assignment of one replica to a topic of two would be accepted, and not be what
    clients see.
    """
    assignments = ([[NODE_ID]], [[NODE_ID, OTHER]])
    async with RunningAgent(tmp_path) as agent:
        await join(agent)
        await create(agent, new("t", 1, 2))
        results = []
        for brokers in assignments:
            topic = CreatePartitionsTopic(
                name="t",
                count=2,
                assignments=[CreatePartitionsAssignment(broker_ids=ids) for ids in brokers],
            )
            request = CreatePartitionsRequest(topics=[topic], timeout_ms=20_000)
            answer = await create_partitions.handle(agent.broker, request, agent.context(3))
            results += [(r.error_code, r.error_message) for r in answer.results]

    message = (
        "The manual partition assignment includes a partition with 1 replica(s), but this is not "
        "consistent with previous partitions, which have 2 replica(s)."
    )
    assert [(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message), (ErrorCode.NONE, None)] == results


async def test_an_agent_that_runs_is_not_unregistered(tmp_path: Path) -> None:
    """
    It would be back at once: who asks is told to stop it.
    """
    async with RunningAgent(tmp_path) as agent:
        await join(agent)
        answers = [
            await unregister_broker.handle(
                agent.broker, UnregisterBrokerRequest(broker_id=node_id), agent.context(0)
            )
            for node_id in (OTHER, OTHER + 1)
        ]

    assert [ErrorCode.INVALID_REQUEST, ErrorCode.BROKER_ID_NOT_REGISTERED] == [
        answer.error_code for answer in answers
    ]
    assert f"Agent {OTHER} is running" in (answers[0].error_message or "")


async def test_all_agents_have_configs(tmp_path: Path) -> None:
    """
    Brokers and their loggers are listed, each live one.
    """
    async with RunningAgent(tmp_path) as agent:
        await join(agent)
        kinds = [list_config_resources.BROKER, list_config_resources.BROKER_LOGGER]
        request = ListConfigResourcesRequest(resource_types=kinds)
        response = await list_config_resources.handle(agent.broker, request, agent.context(1))

    assert [(kind, str(node)) for kind in kinds for node in (NODE_ID, OTHER)] == [
        (found.resource_type, found.resource_name) for found in response.config_resources
    ]


@pytest.mark.parametrize(
    ("feature", "level", "kind", "why"),
    [
        ("metadata.version", 20, UpgradeType.UPGRADE, "Can't downgrade"),
        ("metadata.version", 20, UpgradeType.SAFE_DOWNGRADE, "run other agents"),
        ("metadata.version", 20, UpgradeType.UNSAFE_DOWNGRADE, "run other agents"),
        (FORMAT_FEATURE, FORMAT_VERSION + 1, UpgradeType.UPGRADE, "only supports versions 1-2"),
        (FORMAT_FEATURE, 1, UpgradeType.UPGRADE, "Can't downgrade"),
        (FORMAT_FEATURE, 1, UpgradeType.UNSAFE_DOWNGRADE, "never falls"),
    ],
)
async def test_features_keep_their_level(
    tmp_path: Path, feature: str, level: int, kind: int, why: str
) -> None:
    """
    A level below is supported by all agents, and yet nobody can set it.
    """
    update = FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=kind)
    async with RunningAgent(tmp_path) as agent:
        request = UpdateFeaturesRequest(feature_updates=[update])
        response = await update_features.handle(agent.broker, request, agent.context(2))

    assert ErrorCode.INVALID_UPDATE_VERSION == response.error_code
    assert why in (response.error_message or "")


async def test_the_format_level_that_there_is_can_be_set_again(tmp_path: Path) -> None:
    """
    A repeated `driftlog cluster upgrade --finalize` succeeds; ApiVersions says the level.
    """
    update = FeatureUpdateKey(feature=FORMAT_FEATURE, max_version_level=FORMAT_VERSION)
    async with RunningAgent(tmp_path) as agent:
        request = UpdateFeaturesRequest(feature_updates=[update])
        response = await update_features.handle(agent.broker, request, agent.context(2))
        said = versions_response(agent.broker.format_level)

    assert ErrorCode.NONE == response.error_code
    assert FORMAT_VERSION in [
        found.max_version_level for found in said.finalized_features if found.name == FORMAT_FEATURE
    ]


async def test_a_level_that_the_bucket_does_not_take_is_refused_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    At once: an operator has to repair the credentials, and would read of a timeout instead.
    """
    update = FeatureUpdateKey(feature=FORMAT_FEATURE, max_version_level=FORMAT_VERSION)

    async def refused(*_: object) -> None:
        raise AccessDeniedError("PutObject: 403")

    async with RunningAgent(tmp_path) as agent:
        await agent.broker.objects.put(
            layout.CLUSTER_KEY, [encode_cluster_file(Cluster(agent.broker.cluster_id, 1))]
        )
        monkeypatch.setattr(agent.broker.objects, "create", refused)
        request = UpdateFeaturesRequest(feature_updates=[update])
        async with asyncio.timeout(10):
            response = await update_features.handle(agent.broker, request, agent.context(2))

    assert ErrorCode.UNKNOWN_SERVER_ERROR == response.error_code
    assert "PutObject: 403" in (response.error_message or "")
