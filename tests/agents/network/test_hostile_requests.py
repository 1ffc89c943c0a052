"""Requests that ask for more than they deserve: each costs its own connection at most."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from benchmarks.batches import encode_batch
from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.limits import Limits
from driftlog_agents.handlers.produce import waiters as produce_waiters
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.protocol.api import MAX_REQUEST_ELEMENTS
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import (
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_configs,
    describe_groups,
    describe_producers,
    describe_topic_partitions,
    describe_user_scram_credentials,
    fetch,
    find_coordinator,
    init_producer_id,
    join_group,
    metadata,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
)
from driftlog_agents.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from driftlog_agents.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from driftlog_agents.protocol.messages.delete_groups import DeleteGroupsRequest
from driftlog_agents.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from driftlog_agents.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from driftlog_agents.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from driftlog_agents.protocol.messages.describe_groups import DescribeGroupsRequest
from driftlog_agents.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    TopicRequest,
)
from driftlog_agents.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
)
from driftlog_agents.protocol.messages.describe_topic_partitions import (
    TopicRequest as DescribedTopic,
)
from driftlog_agents.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from driftlog_agents.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from driftlog_agents.protocol.messages.find_coordinator import FindCoordinatorRequest
from driftlog_agents.protocol.messages.init_producer_id import InitProducerIdRequest
from driftlog_agents.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from driftlog_agents.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from driftlog_agents.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from driftlog_agents.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from driftlog_agents.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from driftlog_agents.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.agents.network.serving import Client, Serving, eventually

TOPIC = 2
"""Resource type of DescribeConfigs."""


def batch() -> bytearray:
    """One record."""
    return encode_batch([b"x"], timestamp_ms=1).data


def limited(**limits: Any) -> BrokerSettings:
    """An agent's settings with these limits."""
    return replace(BrokerSettings(), limits=Limits(**limits))


async def goes_on(agent: Serving, topic: str) -> bool:
    """Whether the agent takes records, in its first session."""
    async with agent.client() as client:
        answer = await client.produce(topic, {0: batch()})
    return (answer[0].error_code, agent.process.sessions) == (0, 1)


# ── What cannot be said ──


@pytest.mark.parametrize("acks", [1, -1])
async def test_a_name_that_cannot_be_said_again_costs_its_connection(
    tmp_path: Path, acks: int
) -> None:
    """
    Bytes that are not UTF-8 become three each: an answer could not repeat 30,000 of them.  The
    good partition beside them does not take the agent along when it is committed.
    """
    name = "n" * 30_000
    request = ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(
                name=topic,
                partition_data=[PartitionProduceData(index=0, records=memoryview(batch()))],
            )
            for topic in ("t", name)
        ],
    )
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("t")
        with capture_logs() as lines:
            _, frame = client.encode(produce.API, 9, request)
            client.writer.write(frame.replace(name.encode(), b"\xff" * len(name)))
            closed = await client.closed()
        served = await goes_on(agent, "t")

    assert (closed, served) == (True, True)
    assert ["frame_refused"] == [line["event"] for line in lines]
    assert "not UTF-8" in lines[0]["reason"]


@pytest.mark.parametrize("partitions", [1, 2])
async def test_an_answer_that_cannot_be_made_costs_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """
    The log tells many waiters in one go: those behind the one that fails are told as well.
    """

    def bug(*_: Any) -> Any:
        raise AssertionError("a broken invariant")

    async with Serving(tmp_path) as agent, agent.client() as client, agent.client() as other:
        await client.create("t", 2)
        agent.objects.writes.close()
        client.send_produce("t", {n: batch() for n in range(partitions)})
        await eventually(lambda: agent.objects.writes.waiting > 0)
        with monkeypatch.context() as patch, capture_logs() as lines:
            patch.setattr(produce_waiters, "encode_success", bug)
            patch.setattr(produce_waiters, "add_to_produce", bug)
            agent.objects.writes.open()
            closed = await client.closed()
        answer = await other.produce("t", {0: batch()})
        sessions = agent.process.sessions

    assert closed
    assert (0, 1) == (answer[0].error_code, sessions)
    assert ["connection_bug"] == [line["event"] for line in lines if "bug" in line["event"]]


async def test_a_member_id_has_room_for_a_long_client_id(tmp_path: Path) -> None:
    """
    A client id may have 32,767 bytes, and a member id is made of it.
    """
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    async with Serving(tmp_path) as agent, agent.client() as client:
        frame = join_group.API.encode_request(5, 1, "c" * 32_767, request)
        client.asked[1] = join_group.API, 5
        client.writer.write(frame)
        _, joined = await client.receive()

    assert ErrorCode.MEMBER_ID_REQUIRED == joined.error_code
    assert joined.member_id.startswith("cccc")


# ── Elements and bytes ──


async def test_a_request_of_too_many_elements_is_refused_and_counted(tmp_path: Path) -> None:
    """
    Before they are made; one fewer is answered.
    """

    def groups(count: int) -> DeleteGroupsRequest:
        return DeleteGroupsRequest(groups_names=[f"g{n}" for n in range(count)])

    settings = limited(driftlog_max_request_elements=100)
    async with Serving(tmp_path, broker=settings) as agent, agent.client() as client:
        answered = await client.call(delete_groups.API, 1, groups(100))
        with capture_logs() as lines:
            client.send(delete_groups.API, 1, groups(101))
            closed = await client.closed()
        refused = agent.process.broker.refusals.counts["driftlog.max.request.elements"]

    assert (100, True, 1) == (len(answered.results), closed, refused)
    assert "driftlog.max.request.elements" in lines[0]["reason"]


@pytest.mark.parametrize(
    ("topics", "name", "reason"),
    [
        (30_001, "t{n}", "driftlog.max.request.elements"),
        (400, "t" * 13_000, "name is null or too long"),
        (300, "\U0001f600" + "t" * 32_000, "name is null or too long"),
    ],
)
async def test_a_produce_of_very_many_topics_is_refused(
    tmp_path: Path, topics: int, name: str, reason: str
) -> None:
    """
    Each is named in the answer, and names that no topic has are not kept by the megabyte.
    """
    data = [PartitionProduceData(index=0, records=memoryview(b""))]
    request = ProduceRequest(
        acks=-1,
        timeout_ms=1_000,
        topic_data=[
            TopicProduceData(name=name.format(n=n), partition_data=data) for n in range(topics)
        ],
    )
    async with Serving(tmp_path) as agent, agent.client() as client:
        with capture_logs() as lines:
            client.send(produce.API, 9, request)
            closed = await client.closed()

    assert closed
    assert reason in "".join(str(line.get("reason")) for line in lines)


COUNT = 12_000
MANY = [f"t{n}" for n in range(COUNT)]


@pytest.mark.parametrize(
    ("api", "version", "request_", "answered"),
    [
        (
            metadata.API,
            9,
            MetadataRequest(
                topics=[MetadataRequestTopic(name=f"t{n}") for n in range(20_001)],
                allow_auto_topic_creation=False,
            ),
            20_001,
        ),
        (
            offset_fetch.API,
            5,
            OffsetFetchRequest(
                group_id="g",
                topics=[OffsetFetchRequestTopic(name=t, partition_indexes=[0]) for t in MANY],
            ),
            COUNT,
        ),
        (
            offset_commit.API,
            7,
            OffsetCommitRequest(
                group_id="g",
                topics=[
                    OffsetCommitRequestTopic(
                        name=t,
                        partitions=[
                            OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
                        ],
                    )
                    for t in MANY
                ],
            ),
            COUNT,
        ),
        (
            delete_records.API,
            1,
            DeleteRecordsRequest(
                timeout_ms=1000,
                topics=[
                    DeleteRecordsTopic(
                        name=t, partitions=[DeleteRecordsPartition(partition_index=0, offset=0)]
                    )
                    for t in MANY
                ],
            ),
            COUNT,
        ),
        (
            offset_for_leader_epoch.API,
            3,
            OffsetForLeaderEpochRequest(
                replica_id=-1,
                topics=[
                    OffsetForLeaderTopic(
                        topic=t, partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)]
                    )
                    for t in MANY
                ],
            ),
            COUNT,
        ),
        (
            describe_topic_partitions.API,
            0,
            DescribeTopicPartitionsRequest(
                topics=[DescribedTopic(name=f"t{n}") for n in range(20_001)]
            ),
            20_001,
        ),
    ],
    ids=lambda value: getattr(getattr(value, "key", None), "name", None),
)
async def test_a_request_may_name_all_topics_and_partitions_of_a_cluster(
    tmp_path: Path, api: Any, version: int, request_: Any, answered: int
) -> None:
    """
    Topics of one partition are two elements each: the limit of what is made is not theirs.
    """
    async with Serving(tmp_path) as agent, agent.client() as client:
        response = await client.call(api, version, request_)

    assert answered == len(response.topics)


async def test_what_a_client_causes_in_the_log_names_the_client(tmp_path: Path) -> None:
    """
    Else its lines are neither cut nor counted as its own: 6,000 refusals wrote 4 MiB.
    """
    settings = limited(driftlog_max_group_member_bytes=10)
    joining = JoinGroupRequest(
        group_id="g" * 30_000,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"x" * 11)],
    )
    transactional = InitProducerIdRequest(transactional_id="t" * 30_000, transaction_timeout_ms=1)
    coordinator = FindCoordinatorRequest(key="t" * 30_000, key_type=1)
    async with Serving(tmp_path, broker=settings) as agent, agent.client() as client:
        with capture_logs() as lines:
            await client.call(init_producer_id.API, 3, transactional)
            await client.call(find_coordinator.API, 3, coordinator)
            await client.call(join_group.API, 3, joining)

    events = [(line["event"], str(line["client"]).rpartition(":")[0]) for line in lines]
    expected = ["transactional_id_refused", "transactional_id_refused", "group_limit_reached"]
    assert [(event, "127.0.0.1") for event in expected] == events


async def test_a_request_that_is_larger_than_any_needs_to_be_is_refused_and_counted(
    tmp_path: Path,
) -> None:
    """
    Strings take up to four times their bytes, in the request and in the answer.  A Produce may be
    as large as `socket.request.max.bytes` says.
    """

    def topics(size: int) -> MetadataRequest:
        names = [MetadataRequestTopic(name="t" * 1_000) for _ in range(size // 1_000)]
        return MetadataRequest(topics=names, allow_auto_topic_creation=False)

    settings = limited(driftlog_max_request_bytes=20_000)
    async with Serving(tmp_path, broker=settings) as agent:
        async with agent.client() as client:
            await client.create("t")
            await client.call(metadata.API, 9, topics(19_000))
            produced = await client.produce(
                "t", {0: encode_batch([b"x" * 30_000], timestamp_ms=1).data}
            )
            with capture_logs() as lines:
                client.send(metadata.API, 9, topics(21_000))
                closed = await client.closed()
        wanted = FetchTopic(topic="u" * 21_000, partitions=[FetchPartition()])
        async with agent.client() as client:
            client.send(fetch.API, 11, FetchRequest(topics=[wanted]))
            fetch_closed = await client.closed()
        refused = agent.process.broker.refusals.counts["driftlog.max.request.bytes"]

    assert (0, True, True, 2) == (produced[0].error_code, closed, fetch_closed, refused)
    assert ["frame_refused"] == [line["event"] for line in lines]
    assert "a Metadata request of" in lines[0]["reason"]
    assert lines[0]["reason"].endswith("20000 are allowed (driftlog.max.request.bytes)")


async def test_tagged_fields_are_counted(tmp_path: Path) -> None:
    """
    Of the header, too.
    """
    settings = limited(driftlog_max_tagged_fields=2)
    async with Serving(tmp_path, broker=settings) as agent:
        for count in (2, 3):
            async with agent.client() as client:
                _, frame = client.encode(api_versions.API, 3, api_versions.ApiVersionsRequest())
                tags = bytes([count]) + b"".join(bytes([n, 0]) for n in range(count))
                body = frame[4:-1] + tags
                client.writer.write(len(body).to_bytes(4, "big") + body)
                if count == 2:
                    await client.receive()
                else:
                    assert await client.closed()
        refused = agent.process.broker.refusals.counts["driftlog.max.tagged.fields"]

    assert 1 == refused


@pytest.mark.parametrize("where", ["a header", "Produce", "Fetch", "a large Fetch"])
async def test_tagged_fields_are_counted_wherever_they_are(tmp_path: Path, where: str) -> None:
    """
    Two are allowed, of what is decoded on the hot path, in turn, or by a thread.
    """
    partitions = [FetchPartition(partition=n, fetch_offset=0) for n in range(3_000)]
    asked: dict[str, tuple[Any, int, Any]] = {
        "a header": (metadata.API, 9, MetadataRequest(topics=None)),
        "Produce": (produce.API, 9, ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[])),
        "Fetch": (fetch.API, 12, FetchRequest(topics=[])),
        "a large Fetch": (
            fetch.API,
            12,
            FetchRequest(topics=[FetchTopic(topic="t", partitions=partitions)]),
        ),
    }
    async with Serving(tmp_path, broker=limited(driftlog_max_tagged_fields=2)) as agent:
        for count in (2, 3):
            async with agent.client() as client:
                _, frame = client.encode(*asked[where])
                tags = bytes([count]) + b"".join(bytes([50 + n, 0]) for n in range(count))
                at = 4 + 10 + len("test") if where == "a header" else len(frame) - 1
                assert 0 == frame[at]
                body = frame[4:at] + tags + frame[at + 1 :]
                client.writer.write(len(body).to_bytes(4, "big") + body)
                if count == 2:
                    await client.receive()
                else:
                    assert await client.closed()
        refused = agent.process.broker.refusals.counts["driftlog.max.tagged.fields"]

    assert 1 == refused


async def test_what_is_named_again_is_said_again_up_to_a_limit(tmp_path: Path) -> None:
    """
    As Kafka does; but a kilobyte of request makes no megabytes of answer.
    """
    settings = limited(driftlog_max_response_bytes=20_000)
    resource = DescribeConfigsResource(
        resource_type=TOPIC, resource_name="t", configuration_keys=["retention.ms"]
    )
    group = OffsetFetchRequestGroup(group_id="g", topics=None)

    def asked(count: int) -> list[tuple[Any, int, Any]]:
        producers = [TopicRequest(name="t", partition_indexes=[0] * count)]
        return [
            (describe_configs.API, 4, DescribeConfigsRequest(resources=[resource] * count)),
            (describe_groups.API, 5, DescribeGroupsRequest(groups=["g"] * count)),
            (offset_fetch.API, 8, OffsetFetchRequest(groups=[group] * count)),
            (describe_producers.API, 0, DescribeProducersRequest(topics=producers)),
        ]

    async with Serving(tmp_path, broker=settings) as agent, agent.client() as client:
        await client.create("t")
        answers = [await client.call(*request) for request in asked(3)]
        closed = []
        for api, version, request in asked(5_000):
            async with agent.client() as other:
                other.send(api, version, request)
                closed.append(await other.closed())
        refused = agent.process.broker.refusals.counts["driftlog.max.response.bytes"]

    configs, groups, offsets, producers = answers
    assert ["t"] * 3 == [result.resource_name for result in configs.results]
    assert ["g"] * 3 == [group.group_id for group in groups.groups]
    assert ["g"] * 3 == [group.group_id for group in offsets.groups]
    assert [0] * 3 == [p.partition_index for p in producers.topics[0].partitions]
    assert ([True] * 4, 4) == (closed, refused)


@pytest.mark.parametrize("api", ["describe configs", "metadata"])
async def test_an_answer_over_its_limit_is_not_made(tmp_path: Path, api: str) -> None:
    """
    Neither one that is counted while it is made, nor one that turns out to be too large.
    """
    settings = limited(driftlog_max_response_bytes=2_000)
    async with Serving(tmp_path, broker=settings) as agent, agent.client() as client:
        await client.create("t", 100)
        with capture_logs() as lines:
            if api == "metadata":
                client.send(metadata.API, 9, MetadataRequest(topics=None))
            else:
                asked = DescribeConfigsResource(
                    resource_type=TOPIC, resource_name="t", configuration_keys=None
                )
                described = DescribeConfigsRequest(resources=[asked], include_documentation=True)
                client.send(describe_configs.API, 4, described)
            closed = await client.closed()
        refused = agent.process.broker.refusals.counts["driftlog.max.response.bytes"]
        served = await goes_on(agent, "t")

    assert (True, 1, True) == (closed, refused, served)
    assert ["request_failed"] == [line["event"] for line in lines]
    assert "driftlog.max.response.bytes" in lines[0]["reason"]


# ── Time ──


async def test_deletions_that_are_refused_take_time_by_their_number(tmp_path: Path) -> None:
    """
    Not by its square: 12,000 entries with both a name and an id kept the event loop for half a
    minute.  CPU time of this thread, which has the agent and the client: it is the same beside
    others.
    """
    states = [DeleteTopicState(name=f"t{n}", topic_id=UUID(int=n + 1)) for n in range(12_000)]
    async with Serving(tmp_path) as agent, agent.client() as client:
        begun_s = time.thread_time()
        client.send(delete_topics.API, 6, DeleteTopicsRequest(topics=states, timeout_ms=1_000))
        _, response = await client.receive()
        took_s = time.thread_time() - begun_s

    assert {ErrorCode.INVALID_REQUEST} == {answer.error_code for answer in response.responses}
    assert 12_000 == len(response.responses)
    assert took_s < 5


# ── Topics ──


async def test_a_negative_count_makes_no_room_for_large_ones(tmp_path: Path) -> None:
    """
    CreateTopics bounds the sum of what is asked for.
    """
    topics = [
        CreatableTopic(name=f"t{n}", num_partitions=count, replication_factor=-1)
        for n, count in enumerate((-2_000_000_000, 6_000, 6_000))
    ]
    async with Serving(tmp_path) as agent, agent.client() as client:
        response = await client.call(
            create_topics.API, 5, CreateTopicsRequest(topics=topics, timeout_ms=1_000)
        )
        made = list(agent.process.broker.topics.by_name)

    assert {ErrorCode.POLICY_VIOLATION} == {topic.error_code for topic in response.topics}
    assert [] == made


async def test_partitions_that_one_request_adds_are_bounded_together(tmp_path: Path) -> None:
    """
    As those of CreateTopics are.
    """
    topics = [CreatePartitionsTopic(name=f"t{n}", count=6_000) for n in range(2)]
    async with Serving(tmp_path) as agent, agent.client() as client:
        for n in range(2):
            await client.create(f"t{n}")
        response = await client.call(
            create_partitions.API,
            2,
            CreatePartitionsRequest(topics=topics, timeout_ms=1_000, validate_only=True),
        )

    assert [ErrorCode.POLICY_VIOLATION] * 2 == [result.error_code for result in response.results]


async def test_topics_and_partitions_have_limits(tmp_path: Path) -> None:
    """
    Of one request, and of the cluster: the message says which config, and the refusal is counted.
    """
    settings = limited(driftlog_max_topics_per_request=2, driftlog_max_partitions=4)

    def asking(*counts: int) -> CreateTopicsRequest:
        topics = [
            CreatableTopic(name=f"n{n}", num_partitions=count, replication_factor=-1)
            for n, count in enumerate(counts)
        ]
        return CreateTopicsRequest(topics=topics, timeout_ms=30_000)

    async with Serving(tmp_path, broker=settings) as agent, agent.client() as client:
        large = await client.call(create_topics.API, 5, asking(5))
        await client.create("t", 4)
        full = await client.call(create_topics.API, 5, asking(1))
        counted = agent.process.broker.refusals.counts["driftlog.max.partitions"]

    for response, config in (
        (large, "driftlog.max.partitions"),
        (full, "driftlog.max.partitions"),
    ):
        assert {ErrorCode.POLICY_VIOLATION} == {topic.error_code for topic in response.topics}
        assert config in (response.topics[0].error_message or "")
    assert 2 == counted


async def test_a_request_for_too_many_topics_makes_some_and_who_asks_again_gets_more(
    tmp_path: Path,
) -> None:
    """
    A tool that makes what it needs in one request would otherwise send the same one for ever.
    Topics that are there are answered as Kafka does, however many they are.
    """
    names = [f"n{n}" for n in range(5)]
    there, refused = ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.POLICY_VIOLATION

    async def made(
        client: Client, names: Sequence[str] = names, *, validate_only: bool = False
    ) -> list[ErrorCode]:
        topics = [CreatableTopic(name=n, num_partitions=1, replication_factor=-1) for n in names]
        request = CreateTopicsRequest(topics=topics, timeout_ms=30_000, validate_only=validate_only)
        response = await client.call(create_topics.API, 5, request)
        if said := [t.error_message or "" for t in response.topics if t.error_code == refused]:
            assert all("driftlog.max.topics.per.request" in message for message in said)
        codes = {topic.name: ErrorCode(topic.error_code) for topic in response.topics}
        return [codes[name] for name in names]

    async def extended(client: Client) -> list[ErrorCode]:
        topics = [CreatePartitionsTopic(name=n, count=2, assignments=None) for n in names]
        request = CreatePartitionsRequest(topics=topics, timeout_ms=30_000)
        response = await client.call(create_partitions.API, 1, request)
        codes = {result.name: ErrorCode(result.error_code) for result in response.results}
        return [codes[name] for name in names]

    settings = limited(driftlog_max_topics_per_request=2)
    async with Serving(tmp_path, broker=settings) as agent, agent.client() as client:
        checked = await made(client, validate_only=True)
        creations = [await made(client) for _ in range(4)]
        behind_bad = await made(client, ["a b", "c d", "new"])
        extensions = [await extended(client) for _ in range(4)]
        counted = agent.process.broker.refusals.counts["driftlog.max.topics.per.request"]

    none, same = ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS
    assert [none] * 5 == checked
    assert [ErrorCode.INVALID_TOPIC_EXCEPTION] * 2 + [none] == behind_bad
    assert creations == [
        [none] * 2 + [refused] * 3,
        [there] * 2 + [none] * 2 + [refused],
        [there] * 4 + [none],
        [there] * 5,
    ]
    assert extensions == [
        [none] * 2 + [refused] * 3,
        [same] * 2 + [none] * 2 + [refused],
        [same] * 4 + [none],
        [same] * 5,
    ]
    assert 4 == counted


async def test_topics_that_are_made_at_the_same_time_count_as_well(tmp_path: Path) -> None:
    """
    Each connection may see that there is room, before any of their topics is there: 20 of them made
    four times as many partitions as the cluster may have.  What is refused, seen or deleted does
    not count any more.
    """

    async def code(client: Client, name: str, count: int) -> ErrorCode:
        topic = CreatableTopic(name=name, num_partitions=count, replication_factor=-1)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
        response = await client.call(create_topics.API, 5, request)
        return ErrorCode(response.topics[0].error_code)

    async def extended(client: Client, name: str) -> ErrorCode:
        topic = CreatePartitionsTopic(name=name, count=4, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=30_000)
        response = await client.call(create_partitions.API, 1, request)
        return ErrorCode(response.results[0].error_code)

    async with (
        Serving(tmp_path, broker=limited(driftlog_max_partitions=7)) as agent,
        AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(agent.client()) for _ in range(5)]
        made = await asyncio.gather(*(code(c, f"t{n}", 3) for n, c in enumerate(clients)))
        there = [f"t{n}" for n in range(5) if made[n] is ErrorCode.NONE]
        again = await asyncio.gather(*(code(c, there[0], 1) for c in clients))
        more = await asyncio.gather(*map(extended, clients, there))
        await agent.process.broker.topics.delete(agent.process.broker.topics.by_name[there[0]])
        after = await code(clients[0], "t9", 3)

    refused = ErrorCode.POLICY_VIOLATION
    assert [ErrorCode.NONE] * 2 + [refused] * 3 == sorted(made)
    assert [ErrorCode.TOPIC_ALREADY_EXISTS] * 5 == again
    assert [ErrorCode.NONE, refused] == sorted(more)
    assert ErrorCode.NONE is after


async def test_asking_for_topics_makes_a_limited_number(tmp_path: Path) -> None:
    """
    Of one request; who asks again gets more.
    """
    settings = limited(driftlog_max_topics_per_request=3)
    names = [MetadataRequestTopic(name=f"t{n}") for n in range(5)]
    request = MetadataRequest(topics=names, allow_auto_topic_creation=True)
    async with Serving(tmp_path, broker=settings) as agent, agent.client() as client:
        topics = agent.process.broker.topics.by_name
        await client.call(metadata.API, 9, request)
        await eventually(lambda: len(topics) >= 3)
        first = len(topics)
        await client.call(metadata.API, 9, request)
        await eventually(lambda: len(topics) == 5)

    assert 3 == first


# ── Fetches of very many partitions ──


def fetching_many(
    numbers: list[int], *, min_bytes: int = 1, wait_ms: int = 300_000
) -> FetchRequest:
    """Partitions of topic ``t``, from their beginning."""
    partitions = [
        FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1 << 20) for n in numbers
    ]
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic="t", partitions=partitions)],
    )


@pytest.mark.parametrize("partitions", [200, 2_000])
async def test_a_commit_looks_at_the_partition_that_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """
    Not at all that the fetch waits for; it is answered when there is enough in all.
    """
    looked: list[int] = []
    original = PartitionLog.bytes_from

    def bytes_from(log: PartitionLog, offset: int) -> int:
        looked.append(log.partition)
        return original(log, offset)

    async with Serving(tmp_path) as agent, agent.client() as client, agent.client() as other:
        await other.create("t", partitions)
        size = len(batch())
        client.send(fetch.API, 11, fetching_many(list(range(partitions)), min_bytes=2 * size - 1))
        waiting: Any = agent.log("t", partitions - 1).waiting_fetches
        await eventually(lambda: len(waiting) == 1)
        await eventually(lambda: any(c.on_close for c in agent.server.connections))  # it waits
        monkeypatch.setattr(PartitionLog, "bytes_from", bytes_from)
        await other.produce("t", {7: batch()})
        first = list(looked)
        await other.produce("t", {8: batch()})
        _, response = await client.receive()

    (topic,) = response.responses
    found = {data.partition_index: bytes(data.records or b"") for data in topic.partitions}
    assert [7] == first
    assert partitions == len(found)
    assert {7, 8} == {number for number, records in found.items() if records}


async def test_a_partition_that_is_named_again_counts_once(tmp_path: Path) -> None:
    """
    As it is named last; in another element of the same topic, too.
    """
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("t", 2)
        await client.produce("t", {0: batch()})
        request = fetching_many([0, 1, 0])
        request.topics += fetching_many([0]).topics
        response = await client.call(fetch.API, 11, request)

    (topic,) = response.responses
    assert [0, 1] == [data.partition_index for data in topic.partitions]
    assert len(batch()) == len(topic.partitions[0].records or b"")


async def test_a_fetch_of_very_many_partitions_keeps_nobody_waiting(tmp_path: Path) -> None:
    """
    As many as a request may name, of which hardly any exist: others are served between its
    slices, and it is answered whole.
    """
    count = MAX_REQUEST_ELEMENTS - 1
    async with Serving(tmp_path) as agent, agent.client() as client, agent.client() as other:
        await other.create("t")
        client.send(fetch.API, 11, fetching_many(list(range(count)), wait_ms=0))
        answer = asyncio.create_task(client.receive())
        served = 0
        while not answer.done():
            await other.call(api_versions.API, 0, api_versions.ApiVersionsRequest())
            served += 1
        _, response = await answer

    assert count == len(response.responses[0].partitions)
    assert served > 3


async def test_the_message_of_an_error_is_cut_where_it_quotes_a_long_name(tmp_path: Path) -> None:
    """
    A name may have 32,767 bytes, and the message that quotes it is a string, too.
    """
    name = "\u20ac" * 10_922
    request = DescribeUserScramCredentialsRequest(users=[UserName(name=name)])
    async with Serving(tmp_path) as agent, agent.client() as client:
        response = await client.call(describe_user_scram_credentials.API, 0, request)

    assert name == response.results[0].user
    assert "does not exist" in (response.results[0].error_message or "")
