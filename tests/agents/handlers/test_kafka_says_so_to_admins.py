"""The handlers answer admin requests as Apache Kafka does: deletion of records, elections,
reassignments, features, the quorum, and what is not built here (quotas, users, rules, tokens).

Skipped where there is no Java or no jars of Kafka.

Shell.
"""

import asyncio
import time
from pathlib import Path
from typing import Any, Final

import pytest

from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.messages import alter_partition_reassignments as apr
from driftlog_agents.protocol.messages import create_acls as ca
from driftlog_agents.protocol.messages import delete_acls as da
from driftlog_agents.protocol.messages import delete_records as dr
from driftlog_agents.protocol.messages import describe_acls as dac
from driftlog_agents.protocol.messages import describe_client_quotas as dcq
from driftlog_agents.protocol.messages import describe_delegation_token as ddt
from driftlog_agents.protocol.messages import describe_producers as dp
from driftlog_agents.protocol.messages import describe_quorum as dq
from driftlog_agents.protocol.messages import describe_user_scram_credentials as dus
from driftlog_agents.protocol.messages import elect_leaders as el
from driftlog_agents.protocol.messages import list_config_resources as lcr
from driftlog_agents.protocol.messages import list_partition_reassignments as lpr
from driftlog_agents.protocol.messages import produce as pr
from driftlog_agents.protocol.messages import sasl_handshake as sh
from driftlog_agents.protocol.messages import unregister_broker as ub
from driftlog_agents.protocol.messages import update_features as uf
from tests.agents.handlers.asking import new
from tests.agents.handlers.test_kafka_says_so import (
    QUORUM,
    Case,
    _compare,
    ask_us,
    epochs,
    offsets,
    said,
    topics,
)
from tests.agents.handlers.test_offsets_api import batch
from tests.support.engine import NODE_ID, RunningAgent
from tests.support.kafka_peer import KafkaPeer, kafka_jars
from tests.support.wire import ask as ask_kafka

pytestmark = [
    pytest.mark.skipif(kafka_jars() is None, reason="Java or Kafka's jars are missing"),
    pytest.mark.timeout(300),
]


def deletion(*asked: tuple[str, int, int]) -> dr.DeleteRecordsRequest:
    """(topic, partition, offset)."""
    return dr.DeleteRecordsRequest(
        topics=[
            dr.DeleteRecordsTopic(
                name=name,
                partitions=[dr.DeleteRecordsPartition(partition_index=partition, offset=offset)],
            )
            for name, partition, offset in asked
        ],
        timeout_ms=20_000,
    )


def election(kind: int, *asked: tuple[str, list[int]], every: bool = False) -> Any:
    return el.ElectLeadersRequest(
        election_type=kind,
        topic_partitions=None
        if every
        else [el.TopicPartitions(topic=name, partitions=numbers) for name, numbers in asked],
        timeout_ms=20_000,
    )


def reassignment(
    *asked: tuple[str, int, list[int] | None], factor: bool = True
) -> apr.AlterPartitionReassignmentsRequest:
    return apr.AlterPartitionReassignmentsRequest(
        timeout_ms=20_000,
        allow_replication_factor_change=factor,
        topics=[
            apr.ReassignableTopic(
                name=name,
                partitions=[apr.ReassignablePartition(partition_index=number, replicas=replicas)],
            )
            for name, number, replicas in asked
        ],
    )


def reassigning(*asked: tuple[str, list[int]]) -> lpr.ListPartitionReassignmentsRequest:
    return lpr.ListPartitionReassignmentsRequest(
        timeout_ms=20_000,
        topics=[
            lpr.ListPartitionReassignmentsTopics(name=name, partition_indexes=numbers)
            for name, numbers in asked
        ]
        or None,
    )


def quorum(*asked: tuple[str, list[int]]) -> dq.DescribeQuorumRequest:
    partition = dq.DescribeQuorumRequest.PartitionData
    return dq.DescribeQuorumRequest(
        topics=[
            dq.DescribeQuorumRequest.TopicData(
                topic_name=name, partitions=[partition(partition_index=n) for n in numbers]
            )
            for name, numbers in asked
        ]
    )


def features(
    *asked: tuple[str, int, int], validate_only: bool = False, downgrade: bool = False
) -> uf.UpdateFeaturesRequest:
    """(feature, level, upgrade type)."""
    return uf.UpdateFeaturesRequest(
        timeout_ms=20_000,
        feature_updates=[
            uf.FeatureUpdateKey(
                feature=name, max_version_level=level, upgrade_type=kind, allow_downgrade=downgrade
            )
            for name, level, kind in asked
        ],
        validate_only=validate_only,
    )


def producers(*asked: tuple[str, list[int]]) -> dp.DescribeProducersRequest:
    return dp.DescribeProducersRequest(
        topics=[dp.TopicRequest(name=name, partition_indexes=numbers) for name, numbers in asked]
    )


def quotas(*asked: tuple[str, int, str | None], strict: bool = False) -> Any:
    return dcq.DescribeClientQuotasRequest(
        components=[
            dcq.ComponentData(entity_type=kind, match_type=match_type, match=match)
            for kind, match_type, match in asked
        ],
        strict=strict,
    )


def users(*names: str) -> dus.DescribeUserScramCredentialsRequest:
    return dus.DescribeUserScramCredentialsRequest(
        users=[dus.UserName(name=name) for name in names] or None
    )


CASES: Final[tuple[Case, ...]] = (
    ("none deleted", ApiKey.DELETE_RECORDS, 2, deletion(("a.b", 0, 0))),
    ("deleted", ApiKey.DELETE_RECORDS, 2, deletion(("a.b", 0, 4))),
    ("earliest", ApiKey.LIST_OFFSETS, 10, offsets(-2)),
    ("earliest here", ApiKey.LIST_OFFSETS, 10, offsets(-4)),
    ("latest", ApiKey.LIST_OFFSETS, 10, offsets(-1)),
    ("of a time that is gone", ApiKey.LIST_OFFSETS, 10, offsets(1)),
    ("of the largest time", ApiKey.LIST_OFFSETS, 10, offsets(-3)),
    ("deleted back", ApiKey.DELETE_RECORDS, 1, deletion(("a.b", 0, 2))),
    ("too far", ApiKey.DELETE_RECORDS, 0, deletion(("a.b", 0, 100))),
    ("negative", ApiKey.DELETE_RECORDS, 2, deletion(("a.b", 0, -2))),
    ("strange", ApiKey.DELETE_RECORDS, 2, deletion(("a.b", 9, 0), ("nope", 0, 0), ("", 0, 0))),
    ("twice", ApiKey.DELETE_RECORDS, 2, deletion(("a.b", 1, 1), ("a.b", 1, 2))),
    ("nothing deleted", ApiKey.DELETE_RECORDS, 2, deletion()),
    ("compacted", ApiKey.DELETE_RECORDS, 2, deletion(("k", 0, 0))),
    ("compacted, to the end", ApiKey.DELETE_RECORDS, 2, deletion(("k", 0, -1))),
    ("compacted, too far", ApiKey.DELETE_RECORDS, 2, deletion(("k", 0, 7))),
    ("compacted and deleted", ApiKey.DELETE_RECORDS, 2, deletion(("kd", 0, -1))),
    ("kept for ever", ApiKey.DELETE_RECORDS, 2, deletion(("kept", 0, -1))),
    ("internal", ApiKey.DELETE_RECORDS, 2, deletion(("__consumer_offsets", 0, -1))),
    ("all deleted", ApiKey.DELETE_RECORDS, 2, deletion(("a.b", 0, -1))),
    ("all deleted again", ApiKey.DELETE_RECORDS, 2, deletion(("a.b", 0, -1))),
    ("earliest of nothing", ApiKey.LIST_OFFSETS, 10, offsets(-2)),
    ("end of the epoch", ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, epochs(0)),
    *(
        (f"election {kind} {what}", ApiKey.ELECT_LEADERS, 2, request)
        for kind in (0, 1, 5)
        for what, request in (
            ("of one", election(kind, ("c", [0]))),
            ("of unknown_keys", election(kind, ("a.b", [0, 9, -1]), ("nope", [0]), ("", [0]))),
            ("twice", election(kind, ("c", [0, 0]), ("c", [0]))),
            ("of none", election(kind)),
            ("of no partitions", election(kind, ("c", []))),
            ("of all", election(kind, every=True)),
        )
    ),
    ("election 0", ApiKey.ELECT_LEADERS, 0, election(0, ("c", [0]))),
    ("election 1", ApiKey.ELECT_LEADERS, 1, election(1, ("c", [0]), ("nope", [0]))),
    *(
        (f"reassignment {replicas} {factor}", ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, request)
        for replicas in (None, [NODE_ID], [], [99], [NODE_ID, NODE_ID], [-1], [NODE_ID, 99])
        for factor in (True, False)
        for request in (reassignment(("c", 0, replicas), factor=factor),)
    ),
    (
        "reassignment of unknown_keys",
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        0,
        reassignment(("nope", 0, [NODE_ID]), ("a.b", 9, [NODE_ID]), ("a.b", 9, None), ("", 0, [])),
    ),
    (
        "reassignment twice",
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        0,
        reassignment(("c", 0, [NODE_ID]), ("c", 0, None)),
    ),
    ("no reassignment", ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, reassignment()),
    ("reassigning", ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, reassigning()),
    (
        "reassigning some",
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        0,
        reassigning(("c", [0]), ("a.b", [9]), ("nope", [0])),
    ),
    ("resources, old", ApiKey.LIST_CONFIG_RESOURCES, 0, lcr.ListConfigResourcesRequest()),
    *(
        (
            f"resources {kinds}",
            ApiKey.LIST_CONFIG_RESOURCES,
            1,
            lcr.ListConfigResourcesRequest(resource_types=kinds),
        )
        for kinds in ([], [2], [4], [8], [16], [32], [2, 4], [2, 2], [77], [0], [2, 77])
    ),
    ("quorum of unknown_keys", ApiKey.DESCRIBE_QUORUM, 2, quorum(("nope", [0]))),
    ("quorum of a partition", ApiKey.DESCRIBE_QUORUM, 2, quorum((QUORUM, [1]))),
    ("quorum of two", ApiKey.DESCRIBE_QUORUM, 2, quorum((QUORUM, [0, 1]))),
    ("quorum of a topic", ApiKey.DESCRIBE_QUORUM, 2, quorum(("c", [0]))),
    ("quorum of both", ApiKey.DESCRIBE_QUORUM, 2, quorum((QUORUM, [0]), ("c", [0]))),
    ("quorum of none", ApiKey.DESCRIBE_QUORUM, 2, quorum()),
    ("quorum of no partition", ApiKey.DESCRIBE_QUORUM, 1, quorum((QUORUM, []))),
    *(
        (
            f"feature {name} {level} {kind} in {version}",
            ApiKey.UPDATE_FEATURES,
            version,
            features((name, level, kind), validate_only=version > 0, downgrade=kind > 1),
        )
        for version in (0, 1, 2)
        for name, level, kind in (
            ("nope", 1, 1),
            ("", 1, 1),
            ("metadata.version", 30, 1),
            ("metadata.version", 31, 1),
            ("metadata.version", 500, 1),
            ("metadata.version", 6, 2),
            ("metadata.version", 0, 1),
            ("metadata.version", 0, 2),
            ("metadata.version", -1, 1),
            ("group.version", 1, 1),
        )
    ),
    *(
        (
            f"feature, type {kind}",
            ApiKey.UPDATE_FEATURES,
            2,
            features(("metadata.version", 30, kind), validate_only=True),
        )
        for kind in (0, 2, 3, 4)
    ),
    ("no features", ApiKey.UPDATE_FEATURES, 2, features()),
    ("no features, old", ApiKey.UPDATE_FEATURES, 0, features()),
    (
        "features of both kinds",
        ApiKey.UPDATE_FEATURES,
        1,
        features(("nope", 1, 1), ("metadata.version", 30, 1)),
    ),
    (
        "features of both kinds, new",
        ApiKey.UPDATE_FEATURES,
        2,
        features(("metadata.version", 30, 1), ("no", 0, 2)),
    ),
    (
        "features twice",
        ApiKey.UPDATE_FEATURES,
        2,
        features(("metadata.version", 30, 1), ("metadata.version", 31, 1)),
    ),
    ("producers", ApiKey.DESCRIBE_PRODUCERS, 0, producers(("idempotent", [0]))),
    (
        "producers of unknown_keys",
        ApiKey.DESCRIBE_PRODUCERS,
        0,
        producers(("a.b", [0, 9]), ("nope", [0]), ("b b", [0])),
    ),
    ("no producers", ApiKey.DESCRIBE_PRODUCERS, 0, producers()),
    ("stranger gone", ApiKey.UNREGISTER_BROKER, 0, ub.UnregisterBrokerRequest(broker_id=99)),
    ("nobody gone", ApiKey.UNREGISTER_BROKER, 0, ub.UnregisterBrokerRequest(broker_id=-1)),
    *(
        (f"rules {version}", key, version, request)
        for version in (1, 3)
        for key, request in (
            (
                ApiKey.DESCRIBE_ACLS,
                dac.DescribeAclsRequest(
                    resource_type_filter=1, operation=1, permission_type=1, pattern_type_filter=1
                ),
            ),
            (
                ApiKey.CREATE_ACLS,
                ca.CreateAclsRequest(
                    creations=[
                        ca.AclCreation(
                            resource_type=2,
                            resource_name=name,
                            resource_pattern_type=3,
                            principal="User:a",
                            host="*",
                            operation=3,
                            permission_type=3,
                        )
                        for name in "ab"
                    ]
                ),
            ),
            (ApiKey.CREATE_ACLS, ca.CreateAclsRequest()),
            (
                ApiKey.DELETE_ACLS,
                da.DeleteAclsRequest(
                    filters=[
                        da.DeleteAclsFilter(
                            resource_type_filter=1,
                            operation=1,
                            permission_type=1,
                            pattern_type_filter=1,
                        )
                    ]
                    * 2
                ),
            ),
            (ApiKey.DELETE_ACLS, da.DeleteAclsRequest()),
        )
    ),
    *(
        (
            f"quotas {asked} {strict}",
            ApiKey.DESCRIBE_CLIENT_QUOTAS,
            1,
            quotas(*asked, strict=strict),
        )
        for strict in (False, True)
        for asked in (
            (),
            (("user", 0, "a"),),
            (("user", 1, None), ("client-id", 2, None)),
            (("ip", 0, "127.0.0.1"),),
            (("ip", 1, None), ("user", 1, None)),
            (("ip", 2, None), ("client-id", 2, None)),
            (("user", 0, None),),
            (("user", 1, "a"),),
            (("user", 2, "a"),),
            (("user", 3, None),),
            (("user", 0, "a"), ("user", 0, "b")),
            (("nope", 0, "a"),),
            (("", 0, "a"),),
        )
    ),
    ("quotas, old", ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, quotas()),
    *(
        (f"users {names}", ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users(*names))
        for names in ((), ("a",), ("a", "b"), ("a", "a"), ("",))
    ),
    (
        "no users",
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        dus.DescribeUserScramCredentialsRequest(users=[]),
    ),
    *(
        (
            f"wants to authenticate {version}",
            ApiKey.SASL_HANDSHAKE,
            version,
            sh.SaslHandshakeRequest(mechanism="PLAIN"),
        )
        for version in (0, 1)
    ),
    *(
        (f"tokens {version}", ApiKey.DESCRIBE_DELEGATION_TOKEN, version, request)
        for version in (1, 3)
        for request in (
            ddt.DescribeDelegationTokenRequest(owners=None),
            ddt.DescribeDelegationTokenRequest(owners=[]),
        )
    ),
)


MADE: Final = topics(
    new("a.b", 2, 1),
    new("c", 1, 1),
    new("k", 1, 1, cleanup_policy="compact"),
    new("kd", 1, 1, cleanup_policy="compact,delete"),
    new("kept", 1, 1, cleanup_policy=""),
    new("idempotent", 1, 1),
)

PRODUCED: Final = (
    ("a.b", 0, batch(1, 2, 3)),
    ("a.b", 0, batch(4, 5, 6)),
    ("a.b", 1, batch(1, 2, 3)),
    ("kd", 0, batch(1)),
    ("kept", 0, batch(1, 2)),
    ("idempotent", 0, batch(1, 2, producer_id=4711, producer_epoch=3, base_sequence=0)),
    ("idempotent", 0, batch(1, 2, producer_id=4711, producer_epoch=3, base_sequence=2)),
    ("idempotent", 0, batch(1, producer_id=4712, producer_epoch=0, base_sequence=7)),
)


def produce(port: int, name: str, partition: int, data: bytearray) -> int:
    """Its base offset in Kafka, which leads a new topic a moment after it was made."""
    part = pr.PartitionProduceData(index=partition, records=memoryview(data))
    topic = pr.TopicProduceData(name=name, partition_data=[part])
    request = pr.ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[topic])
    for _ in range(100):
        answer = ask_kafka(port, ApiKey.PRODUCE, 9, request)
        (told,) = answer.responses[0].partition_responses
        if not told.error_code:
            return int(told.base_offset)
        time.sleep(0.1)
    raise AssertionError(f"{name}-{partition}: {told}")


def without_times(response: Any) -> Any:
    """When a producer wrote last is not kept here."""
    if isinstance(response, dp.DescribeProducersResponse):
        for topic in response.topics:
            for partition in topic.partitions:
                for producer in partition.active_producers:
                    producer.last_timestamp = -1
    return response


async def test_admins_are_told_what_kafka_tells_them(tmp_path: Path) -> None:
    """
    Each of a hundred requests, in the same order, is answered alike: codes, messages, offsets.
    """
    differences = []
    with KafkaPeer(tmp_path, {"node.id": str(NODE_ID)}) as kafka:
        async with RunningAgent(tmp_path / "ours") as agent:
            await asyncio.to_thread(ask_kafka, kafka.port, ApiKey.CREATE_TOPICS, 7, MADE)
            await ask_us(agent, ApiKey.CREATE_TOPICS, 7, MADE)
            for name, partition, data in PRODUCED:
                theirs = await asyncio.to_thread(produce, kafka.port, name, partition, data)
                assert theirs == await agent.append(name, partition, data)
            for name, key, version, request in CASES:
                theirs = await asyncio.to_thread(ask_kafka, kafka.port, key, version, request)
                ours = await ask_us(agent, key, version, request)
                differences += [
                    f"{name}: {difference}"
                    for difference in _compare(
                        said(key, without_times(theirs)), said(key, without_times(ours))
                    )
                ]

    assert not differences, "\n".join(differences)


async def test_a_quorum_is_described_as_kafkas_is(tmp_path: Path) -> None:
    """
    One voter, which leads and is where the high watermark is, and its address.
    """
    asked = quorum((QUORUM, [0]))
    with KafkaPeer(tmp_path, {"node.id": str(NODE_ID)}) as kafka:
        theirs = await asyncio.to_thread(ask_kafka, kafka.port, ApiKey.DESCRIBE_QUORUM, 2, asked)
    async with RunningAgent(tmp_path / "ours") as agent:
        ours = await ask_us(agent, ApiKey.DESCRIBE_QUORUM, 2, asked)

    for response in (theirs, ours):
        (partition,) = response.topics[0].partitions
        (voter,) = partition.current_voters
        assert (NODE_ID, NODE_ID, 0) == (
            partition.leader_id,
            voter.replica_id,
            partition.error_code,
        )
        assert partition.high_watermark > 0
        assert voter.log_end_offset >= partition.high_watermark
        assert voter.last_caught_up_timestamp > 1_700_000_000_000
        assert [NODE_ID] == [node.node_id for node in response.nodes]
        assert response.nodes[0].listeners[0].port
