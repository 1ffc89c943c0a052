"""The handlers answer these requests as Apache Kafka does, field by field.

Skipped where there is no Java or no jars of Kafka.  What differs on purpose is named in `OURS`.

Shell.
"""

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from driftlog_agents.handlers.table import HANDLERS
from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.messages import alter_configs as ac
from driftlog_agents.protocol.messages import api_versions as av
from driftlog_agents.protocol.messages import create_partitions as cp
from driftlog_agents.protocol.messages import create_topics as ct
from driftlog_agents.protocol.messages import delete_topics as dt
from driftlog_agents.protocol.messages import describe_cluster as dcl
from driftlog_agents.protocol.messages import describe_configs as dc
from driftlog_agents.protocol.messages import describe_log_dirs as dl
from driftlog_agents.protocol.messages import describe_topic_partitions as dtp
from driftlog_agents.protocol.messages import incremental_alter_configs as ia
from driftlog_agents.protocol.messages import init_producer_id as ip
from driftlog_agents.protocol.messages import list_offsets as lo
from driftlog_agents.protocol.messages import metadata as md
from driftlog_agents.protocol.messages import offset_for_leader_epoch as ole
from driftlog_agents.protocol.requests.registry import API
from driftlog_agents.protocol.types import NULL_UUID
from tests.agents.handlers.asking import new
from tests.support.engine import NODE_ID, RunningAgent
from tests.support.kafka_peer import KafkaPeer, kafka_jars
from tests.support.wire import ask

Case = tuple[str, ApiKey, int, Any]
"""What it is, and the request."""

pytestmark = [
    pytest.mark.skipif(kafka_jars() is None, reason="Java or Kafka's jars are missing"),
    pytest.mark.timeout(300),
]

OURS: Final = {
    "segment.bytes": "segments here are of 128 MiB",
    "segment.ms": "and of an hour",
    "min.insync.replicas": "Kafka's own features set it for the cluster; here nobody does",
    "documentation": "is in our own words, and says what a config does here",
}

ZERO: Final = UUID(int=0)
STRANGE: Final = UUID(int=5)


def topics(*asked: ct.CreatableTopic, validate_only: bool = False) -> ct.CreateTopicsRequest:
    return ct.CreateTopicsRequest(
        topics=list(asked), timeout_ms=20_000, validate_only=validate_only
    )


def assigned(
    *replicas: tuple[int, list[int]], partitions: int = -1, factor: int = -1
) -> ct.CreateTopicsRequest:
    return topics(
        ct.CreatableTopic(
            name="assigned",
            num_partitions=partitions,
            replication_factor=factor,
            assignments=[
                ct.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
                for index, brokers in replicas
            ],
        )
    )


def extended(
    *asked: tuple[str, int, list[list[int]] | None], validate_only: bool = False
) -> cp.CreatePartitionsRequest:
    return cp.CreatePartitionsRequest(
        topics=[
            cp.CreatePartitionsTopic(
                name=name,
                count=count,
                assignments=None
                if brokers is None
                else [cp.CreatePartitionsAssignment(broker_ids=ids) for ids in brokers],
            )
            for name, count, brokers in asked
        ],
        timeout_ms=20_000,
        validate_only=validate_only,
    )


def altered(
    resource_type: int, name: str, *operations: tuple[str, int, str | None]
) -> ia.IncrementalAlterConfigsRequest:
    resource = ia.AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            ia.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in operations
        ],
    )
    return ia.IncrementalAlterConfigsRequest(resources=[resource])


def replaced(
    resource_type: int, name: str, *configs: tuple[str, str | None]
) -> ac.AlterConfigsRequest:
    resource = ac.AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[ac.AlterableConfig(name=key, value=value) for key, value in configs],
    )
    return ac.AlterConfigsRequest(resources=[resource])


def configs(
    resource_type: int, name: str, keys: list[str] | None = None
) -> dc.DescribeConfigsRequest:
    resource = dc.DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=keys
    )
    return dc.DescribeConfigsRequest(resources=[resource], include_synonyms=True)


def metadata(
    *names: str, auto: bool = False, ids: Sequence[UUID] = (), operations: bool = False
) -> md.MetadataRequest:
    return md.MetadataRequest(
        topics=[md.MetadataRequestTopic(name=name) for name in names]
        + [md.MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in ids],
        allow_auto_topic_creation=auto,
        include_topic_authorized_operations=operations,
        include_cluster_authorized_operations=operations,
    )


def pages(
    *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> dtp.DescribeTopicPartitionsRequest:
    return dtp.DescribeTopicPartitionsRequest(
        topics=[dtp.TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None
        if cursor is None
        else dtp.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )


def offsets(
    timestamp: int, *, topic: str = "a.b", partition: int = 0, epoch: int = -1, isolation: int = 0
) -> lo.ListOffsetsRequest:
    asked = lo.ListOffsetsPartition(
        partition_index=partition, current_leader_epoch=epoch, timestamp=timestamp
    )
    return lo.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        timeout_ms=5_000,
        topics=[lo.ListOffsetsTopic(name=topic, partitions=[asked])],
    )


def epochs(
    epoch: int, *, current: int = -1, partition: int = 0, topic: str = "a.b"
) -> ole.OffsetForLeaderEpochRequest:
    asked = ole.OffsetForLeaderPartition(
        partition=partition, current_leader_epoch=current, leader_epoch=epoch
    )
    return ole.OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[ole.OffsetForLeaderTopic(topic=topic, partitions=[asked])]
    )


def deleted(*states: tuple[str | None, UUID]) -> dt.DeleteTopicsRequest:
    return dt.DeleteTopicsRequest(
        topics=[dt.DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in states],
        timeout_ms=20_000,
    )


VALUES: Final[tuple[tuple[str, str | None], ...]] = (
    ("cleanup.policy", "x"),
    ("cleanup.policy", ""),
    ("cleanup.policy", "compact,delete"),
    ("cleanup.policy", "delete,"),
    ("retention.ms", "-2"),
    ("retention.ms", "abc"),
    ("retention.ms", "5\u00a0"),
    ("retention.ms", ""),
    ("retention.ms", "9223372036854775808"),
    ("retention.ms", None),
    ("nope", "1"),
    ("preallocate", "maybe"),
    ("min.cleanable.dirty.ratio", "2"),
    ("min.cleanable.dirty.ratio", "-0.5"),
    ("min.cleanable.dirty.ratio", "x"),
    ("min.cleanable.dirty.ratio", "٠.٥"),
    ("compression.type", "foo"),
    ("segment.bytes", "14"),
    ("segment.bytes", "9999999999"),
    ("max.message.bytes", "-1"),
    ("message.timestamp.type", "x"),
    ("compression.gzip.level", "99"),
    ("compression.gzip.level", "0"),
    ("compression.lz4.level", "99"),
    ("compression.zstd.level", "99"),
    ("message.timestamp.before.max.ms", "-1"),
    ("min.insync.replicas", "0"),
    ("local.retention.ms", "-3"),
    ("leader.replication.throttled.replicas", "x"),
    ("leader.replication.throttled.replicas", "1:1,2:2"),
    ("leader.replication.throttled.replicas", "1:1,"),
    ("leader.replication.throttled.replicas", "٣:1"),
    ("follower.replication.throttled.replicas", "*"),
    ("segment.ms", "0"),
    ("message.format.version", "2.8"),
    ("unclean.leader.election.enable", "TRUE"),
    ("retention.bytes", "-5"),
    ("flush.ms", "-1"),
    ("file.delete.delay.ms", " 7 "),
    ("index.interval.bytes", "1.5"),
    ("max.compaction.lag.ms", "0"),
    ("remote.storage.enable", "true"),
    ("remote.storage.enable", "false"),
    ("remote.log.copy.disable", "true"),
    ("local.retention.bytes", "99999"),
)

TYPED: Final = {
    "cleanup.policy": " compact , delete,delete ",
    "compression.type": " zstd ",
    "file.delete.delay.ms": " 7 ",
    "index.interval.bytes": "0010",
    "leader.replication.throttled.replicas": "1:1, 2:2,1:1",
    "min.cleanable.dirty.ratio": "1e-4",
    "preallocate": "False",
    "retention.ms": "+5",
    "unclean.leader.election.enable": "TRUE",
}
"""Values that are shown otherwise than they were typed."""

QUORUM: Final = "__cluster_metadata"

CASES: Final[tuple[Case, ...]] = (
    ("made", ApiKey.CREATE_TOPICS, 7, topics(new("a.b", 2, 1), new("c", -1, -1))),
    ("exists", ApiKey.CREATE_TOPICS, 7, topics(new("a.b", 1, 1))),
    ("collides", ApiKey.CREATE_TOPICS, 7, topics(new("a_b", 1, 1))),
    ("twice", ApiKey.CREATE_TOPICS, 7, topics(new("x"), new("x"), new("y"))),
    (
        "bad names",
        ApiKey.CREATE_TOPICS,
        7,
        topics(*(new(n) for n in ("", ".", "..", "é", "a b", "a" * 250))),
    ),
    ("the quorum's topic", ApiKey.CREATE_TOPICS, 7, topics(new(QUORUM, 1, 1))),
    ("the quorum's topic by Metadata", ApiKey.METADATA, 9, metadata(QUORUM, auto=True)),
    ("the quorum's topic extended", ApiKey.CREATE_PARTITIONS, 3, extended((QUORUM, 3, None))),
    ("the quorum's topic deleted", ApiKey.DELETE_TOPICS, 6, deleted((QUORUM, NULL_UUID))),
    (
        "the quorum's topic configured",
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        altered(2, QUORUM, ("retention.ms", 0, "1")),
    ),
    *(
        (
            f"a bad config and {what}",
            ApiKey.CREATE_TOPICS,
            7,
            topics(new(name, partitions, factor, nope="1")),
        )
        for what, name, partitions, factor in (
            ("no partitions", "p", 0, 1),
            ("no replicas", "p", 1, 0),
            ("a name that is there", "a.b", 0, 0),
            ("a bad name", "b b", 0, 0),
        )
    ),
    *(
        (
            f"made within {timeout_ms} ms",
            ApiKey.CREATE_TOPICS,
            7,
            ct.CreateTopicsRequest(
                topics=[new("late", 1, 1), new("b b"), new("x", nope="1")],
                timeout_ms=timeout_ms,
                validate_only=validate_only,
            ),
        )
        for timeout_ms in (0, -1)
        for validate_only in (False, True)
    ),
    (
        "extended within no time",
        ApiKey.CREATE_PARTITIONS,
        3,
        cp.CreatePartitionsRequest(
            topics=[cp.CreatePartitionsTopic(name="a.b", count=5, assignments=None)], timeout_ms=0
        ),
    ),
    (
        "deleted within no time",
        ApiKey.DELETE_TOPICS,
        5,
        dt.DeleteTopicsRequest(topic_names=["a.b", "zz"], timeout_ms=0),
    ),
    ("after no time", ApiKey.METADATA, 9, metadata("late", "a.b")),
    (
        "typed",
        ApiKey.CREATE_TOPICS,
        7,
        topics(
            ct.CreatableTopic(
                name="typed",
                num_partitions=1,
                replication_factor=1,
                configs=[ct.CreatableTopicConfig(name=n, value=v) for n, v in TYPED.items()],
            )
        ),
    ),
    ("typed, described", ApiKey.DESCRIBE_CONFIGS, 4, configs(2, "typed", list(TYPED))),
    (
        "typed for a group",
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        altered(32, "typed", ("consumer.session.timeout.ms", 0, " +50000 ")),
    ),
    (
        "typed for a group, described",
        ApiKey.DESCRIBE_CONFIGS,
        4,
        configs(32, "typed", ["consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"]),
    ),
    *(
        case
        for operation, value in (
            (2, "0:1,"),
            (2, ",,"),
            (3, "1:1,"),
            (2, ",3:3"),
            (2, ""),
        )
        for name in ("leader.replication.throttled.replicas",)
        for case in (
            (
                f"throttled {operation} {value!r}",
                ApiKey.INCREMENTAL_ALTER_CONFIGS,
                1,
                altered(2, "typed", (name, operation, value)),
            ),
            (
                f"throttled after {operation} {value!r}",
                ApiKey.DESCRIBE_CONFIGS,
                4,
                configs(2, "typed", [name]),
            ),
        )
    ),
    *(
        (
            f"no topic for {name} {operation} {value}",
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            1,
            altered(2, "zz", (name, operation, value)),
        )
        for name, operation, value in (
            ("nope", 0, "1"),
            ("retention.ms", 0, "-9"),
            ("retention.ms", 2, "1"),
        )
    ),
    (
        "no topic for a replaced config",
        ApiKey.ALTER_CONFIGS,
        2,
        replaced(2, "zz", ("nope", "1")),
    ),
    *(
        (
            f"policy of brokers {operation} {value!r}",
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            1,
            dataclasses.replace(
                altered(4, who, ("log.cleanup.policy", operation, value)), validate_only=True
            ),
        )
        for who in ("", str(NODE_ID))
        for operation, value in ((0, ""), (3, "delete"))
    ),
    ("no partitions", ApiKey.CREATE_TOPICS, 7, topics(new("p", 0, 1))),
    ("no replicas", ApiKey.CREATE_TOPICS, 7, topics(new("p", 1, 0))),
    ("too many", ApiKey.CREATE_TOPICS, 7, topics(new("p", 20_000, 1))),
    ("assigned and counted", ApiKey.CREATE_TOPICS, 7, assigned((0, [NODE_ID]), partitions=1)),
    ("assigned and factored", ApiKey.CREATE_TOPICS, 7, assigned((0, [NODE_ID]), factor=1)),
    ("assigned with a hole", ApiKey.CREATE_TOPICS, 7, assigned((1, [NODE_ID]))),
    ("assigned twice", ApiKey.CREATE_TOPICS, 7, assigned((0, [NODE_ID]), (0, [NODE_ID]))),
    ("assigned to nobody", ApiKey.CREATE_TOPICS, 7, assigned((0, []))),
    ("assigned to a stranger", ApiKey.CREATE_TOPICS, 7, assigned((0, [NODE_ID + 1]))),
    ("assigned", ApiKey.CREATE_TOPICS, 7, assigned((0, [NODE_ID]), (1, [NODE_ID]))),
    ("validated", ApiKey.CREATE_TOPICS, 7, topics(new("v", -1, -1), validate_only=True)),
    *(
        (
            f"{name}={value}",
            ApiKey.CREATE_TOPICS,
            7,
            topics(
                ct.CreatableTopic(
                    name="valued",
                    num_partitions=1,
                    replication_factor=1,
                    configs=[ct.CreatableTopicConfig(name=name, value=value)],
                ),
                validate_only=True,
            ),
        )
        for name, value in VALUES
    ),
    (
        "lags",
        ApiKey.CREATE_TOPICS,
        7,
        topics(new("l", 1, 1, min_compaction_lag_ms="10", max_compaction_lag_ms="5")),
    ),
    ("set", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered(2, "a.b", ("retention.ms", 0, "100"))),
    (
        "append",
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        altered(2, "a.b", ("cleanup.policy", 2, "compact")),
    ),
    ("appended", ApiKey.DESCRIBE_CONFIGS, 4, configs(2, "a.b", ["cleanup.policy"])),
    (
        "subtract",
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        altered(2, "a.b", ("cleanup.policy", 3, "delete")),
    ),
    ("subtracted", ApiKey.DESCRIBE_CONFIGS, 4, configs(2, "a.b", ["cleanup.policy"])),
    (
        "append to a number",
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        altered(2, "a.b", ("retention.ms", 2, "5")),
    ),
    (
        "set to nothing",
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        altered(2, "a.b", ("retention.ms", 0, None)),
    ),
    (
        "one name twice",
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        altered(2, "a.b", ("retention.ms", 0, "1"), ("retention.ms", 0, "2")),
    ),
    ("unknown", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered(2, "a.b", ("nope", 0, "1"))),
    ("delete unknown", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered(2, "a.b", ("nope", 1, None))),
    ("nothing", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered(2, "a.b")),
    ("invalid", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered(2, "a.b", ("retention.ms", 0, "-7"))),
    ("no topic", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered(2, "zz", ("retention.ms", 0, "1"))),
    ("bad topic", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered(2, "z z", ("retention.ms", 0, "1"))),
    ("no type", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered(77, "a.b", ("retention.ms", 0, "1"))),
    ("no broker", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered(4, "99", ("x", 0, "2"))),
    ("no number", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered(4, "xx", ("x", 0, "2"))),
    ("no id", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered(4, "-1", ("x", 0, "2"))),
    ("no id described", ApiKey.DESCRIBE_CONFIGS, 4, configs(4, "-1", ["broker.id"])),
    ("long id", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered(4, "2147483648", ("x", 0, "2"))),
    (
        "values missing",
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        altered(4, "", ("max.connections", 0, None), ("log.retention.ms", 0, None)),
    ),
    *(
        (f"{what} {name}", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered(4, "", (name, code, "5")))
        for what, code in (("append to", 2), ("subtract from", 3))
        for name in ("nope", "max.connections")
    ),
    (
        "not while it runs",
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        altered(4, str(NODE_ID), ("broker.id", 0, "2")),
    ),
    ("no logger's broker", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, altered(8, "9", ("x", 0, "INFO"))),
    *(
        (
            f"of {kind} {name}: {operations}",
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            1,
            altered(kind, name, *operations),
        )
        for kind, name, *operations in (
            (4, "", ("broker.id", 0, "2")),
            (4, str(NODE_ID), ("leader.replication.throttled.rate", 1, None)),
            (4, str(NODE_ID), ("broker.id", 1, None)),
            (4, str(NODE_ID)),
            (16, "", ("interval.ms", 0, "1000")),
            (16, "x", ("nope", 0, "5")),
            (16, "x", ("nope", 1, None)),
            (16, "x", ("interval.ms", 0, "x")),
            (16, "x", ("interval.ms", 2, "5")),
            (32, "", ("consumer.session.timeout.ms", 0, "50000")),
            (32, "g", ("nope", 0, "5")),
            (32, "g", ("consumer.session.timeout.ms", 0, "x")),
            (32, "g", ("consumer.session.timeout.ms", 1, None)),
            (32, "g"),
        )
    ),
    ("replace", ApiKey.ALTER_CONFIGS, 2, replaced(2, "a.b", ("segment.ms", "5"))),
    ("replace null", ApiKey.ALTER_CONFIGS, 2, replaced(2, "a.b", ("segment.ms", None))),
    ("replace unknown", ApiKey.ALTER_CONFIGS, 2, replaced(2, "a.b", ("nope", "1"))),
    ("replace nowhere", ApiKey.ALTER_CONFIGS, 2, replaced(2, "qq", ("segment.ms", "5"))),
    ("replace logger", ApiKey.ALTER_CONFIGS, 2, replaced(8, "1", ("root", "INFO"))),
    ("replace all topics", ApiKey.ALTER_CONFIGS, 2, replaced(2, "", ("segment.ms", "5"))),
    ("all configs", ApiKey.DESCRIBE_CONFIGS, 4, configs(2, "a.b")),
    ("some configs", ApiKey.DESCRIBE_CONFIGS, 4, configs(2, "a.b", ["flush.ms", "nope"])),
    ("configs, old", ApiKey.DESCRIBE_CONFIGS, 1, configs(2, "c", ["retention.ms", "segment.ms"])),
    *(
        (f"configs of {kind} {name}", ApiKey.DESCRIBE_CONFIGS, 4, configs(kind, name))
        for kind, name in (
            (2, "nope"),
            (2, "b b"),
            (4, "99"),
            (4, "xx"),
            (4, ""),
            (8, "99"),
            (8, ""),
            (8, "x"),
            (16, "x"),
            (16, ""),
            (32, ""),
        )
    ),
    (
        "configs of a group",
        ApiKey.DESCRIBE_CONFIGS,
        4,
        configs(
            32,
            "g",
            [
                "consumer.assignment.interval.ms",
                "consumer.heartbeat.interval.ms",
                "consumer.session.timeout.ms",
            ],
        ),
    ),
    ("as many", ApiKey.CREATE_PARTITIONS, 3, extended(("a.b", 2, None))),
    ("fewer", ApiKey.CREATE_PARTITIONS, 3, extended(("a.b", 1, None))),
    ("of nothing", ApiKey.CREATE_PARTITIONS, 3, extended(("zz", 1, None), ("", 4, None))),
    ("negative", ApiKey.CREATE_PARTITIONS, 3, extended(("a.b", -1, None))),
    ("more twice", ApiKey.CREATE_PARTITIONS, 3, extended(("a.b", 3, None), ("a.b", 4, None))),
    (
        "more validated",
        ApiKey.CREATE_PARTITIONS,
        3,
        extended(("a.b", 3, None), validate_only=True),
    ),
    ("more", ApiKey.CREATE_PARTITIONS, 3, extended(("a.b", 3, None))),
    ("more, assigned badly", ApiKey.CREATE_PARTITIONS, 3, extended(("a.b", 5, [[NODE_ID]]))),
    ("more, to a stranger", ApiKey.CREATE_PARTITIONS, 3, extended(("a.b", 4, [[9]]))),
    ("more, assigned", ApiKey.CREATE_PARTITIONS, 3, extended(("a.b", 4, [[NODE_ID]]))),
    ("metadata 0", ApiKey.METADATA, 0, metadata()),
    ("metadata 1", ApiKey.METADATA, 1, metadata()),
    ("metadata of all", ApiKey.METADATA, 12, md.MetadataRequest(topics=None)),
    ("metadata, unknown", ApiKey.METADATA, 12, metadata("u1", "b b")),
    ("metadata by id", ApiKey.METADATA, 12, metadata(ids=[STRANGE])),
    ("metadata twice", ApiKey.METADATA, 12, metadata("a.b", "a.b")),
    ("metadata, operations", ApiKey.METADATA, 9, metadata("a.b", operations=True)),
    *(
        (
            f"metadata {version}, operations of unknown topics",
            ApiKey.METADATA,
            version,
            metadata("a.b", "u1", "b b", "", operations=True),
        )
        for version in (8, 12)
    ),
    (
        "metadata by id, operations",
        ApiKey.METADATA,
        12,
        metadata(ids=[STRANGE], operations=True),
    ),
    ("metadata 13", ApiKey.METADATA, 13, metadata("assigned")),
    ("pages", ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, pages(limit=3)),
    ("pages, some", ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, pages("c", "a.b", "zz", "b b", "c")),
    (
        "pages, on",
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        pages("c", "a.b", "zz", limit=2, cursor=("a.b", 1)),
    ),
    (
        "pages, strange cursor",
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        pages("c", cursor=("ab", 1)),
    ),
    (
        "pages, far cursor",
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        pages("c", "a.b", cursor=("a.b", 99)),
    ),
    ("pages, no limit", ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, pages("c", "a.b", limit=0)),
    ("pages, full", ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, pages("a.b", "c", limit=4)),
    ("cluster", ApiKey.DESCRIBE_CLUSTER, 2, dcl.DescribeClusterRequest()),
    (
        "cluster, operations",
        ApiKey.DESCRIBE_CLUSTER,
        0,
        dcl.DescribeClusterRequest(include_cluster_authorized_operations=True),
    ),
    ("controllers", ApiKey.DESCRIBE_CLUSTER, 2, dcl.DescribeClusterRequest(endpoint_type=2)),
    ("strange endpoint", ApiKey.DESCRIBE_CLUSTER, 2, dcl.DescribeClusterRequest(endpoint_type=3)),
    ("sizes", ApiKey.DESCRIBE_LOG_DIRS, 5, dl.DescribeLogDirsRequest(topics=None)),
    (
        "sizes, some",
        ApiKey.DESCRIBE_LOG_DIRS,
        5,
        dl.DescribeLogDirsRequest(
            topics=[
                dl.DescribableLogDirTopic(topic="a.b", partitions=[0, 9]),
                dl.DescribableLogDirTopic(topic="zz", partitions=[0]),
            ]
        ),
    ),
    ("sizes, none", ApiKey.DESCRIBE_LOG_DIRS, 1, dl.DescribeLogDirsRequest(topics=[])),
    *(
        (f"offset of {t}", ApiKey.LIST_OFFSETS, 10, offsets(t))
        for t in (-1, -2, -3, -4, -5, -7, 0, 5, -100)
    ),
    ("offset of -6, before its time", ApiKey.LIST_OFFSETS, 10, offsets(-6)),
    *((f"offset of {t}, 11", ApiKey.LIST_OFFSETS, 11, offsets(t)) for t in (-1, -5, -6, -7)),
    ("offset, epoch", ApiKey.LIST_OFFSETS, 10, offsets(-1, epoch=0)),
    ("offset, later epoch", ApiKey.LIST_OFFSETS, 10, offsets(-1, epoch=5)),
    ("offset, earlier epoch", ApiKey.LIST_OFFSETS, 10, offsets(-2, epoch=-2)),
    ("offset, no partition", ApiKey.LIST_OFFSETS, 10, offsets(-1, partition=9)),
    ("offset, no topic", ApiKey.LIST_OFFSETS, 10, offsets(-1, topic="nope")),
    ("offset, committed", ApiKey.LIST_OFFSETS, 10, offsets(-1, isolation=1)),
    ("offset, 1", ApiKey.LIST_OFFSETS, 1, offsets(-1)),
    ("offset, 6", ApiKey.LIST_OFFSETS, 6, offsets(-3)),
    ("offset, 8", ApiKey.LIST_OFFSETS, 8, offsets(-5)),
    *(
        (f"end of epoch {epoch}", ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, epochs(epoch))
        for epoch in (0, 1, -1, -2)
    ),
    ("end, later", ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, epochs(0, current=5)),
    ("end, present", ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, epochs(0, current=0)),
    ("end, nowhere", ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, epochs(0, partition=9)),
    ("end, no topic", ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, epochs(0, topic="nope")),
    (
        "half a producer",
        ApiKey.INIT_PRODUCER_ID,
        4,
        ip.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1, producer_id=3),
    ),
    (
        "an empty id",
        ApiKey.INIT_PRODUCER_ID,
        4,
        ip.InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1),
    ),
    *(
        (
            f"software {name} {software}",
            ApiKey.API_VERSIONS,
            3,
            av.ApiVersionsRequest(client_software_name=name, client_software_version=software),
        )
        for name, software in (("x", "1.0"), ("", "1"), ("a b", "1"), ("-a", "1"), ("a", "1.-"))
    ),
    ("delete unknown", ApiKey.DELETE_TOPICS, 6, deleted(("zz", ZERO), (None, STRANGE))),
    ("delete both ways", ApiKey.DELETE_TOPICS, 6, deleted(("a.b", STRANGE))),
    ("delete nothing", ApiKey.DELETE_TOPICS, 6, deleted((None, ZERO))),
    ("delete twice", ApiKey.DELETE_TOPICS, 6, deleted(("c", ZERO), ("c", ZERO))),
    (
        "delete, old",
        ApiKey.DELETE_TOPICS,
        1,
        dt.DeleteTopicsRequest(topic_names=["zz", "c"], timeout_ms=20_000),
    ),
    ("delete", ApiKey.DELETE_TOPICS, 6, deleted(("a.b", ZERO))),
)


async def ask_us(agent: RunningAgent, key: ApiKey, version: int, request: Any) -> Any:
    """Through the wire's bytes as well, so that what a version lacks is lacking."""
    decoded = API[key].decode_request(
        version, *_body(API[key].encode_request(version, 7, "test", request), key, version)
    )
    response = await HANDLERS[key](agent.broker, decoded, agent.context(version))
    frame = API[key].encode_response(version, 7, response)
    return API[key].decode_response(version, frame[4:])[1]


def _body(frame: bytes, key: ApiKey, version: int) -> tuple[bytes, int]:
    """The frame without its size, and where its body starts: behind a client id of 4 bytes."""
    return frame[4:], 14 + API[key].is_flexible(version)


def said(key: ApiKey, response: Any) -> Any:
    """A response without what must differ: ids, addresses, what `OURS` names."""
    fields = dataclasses.asdict(response)
    if key is ApiKey.API_VERSIONS:
        return fields["error_code"]
    return _neutral(fields)


_DIFFER: Final = {
    "topic_id", "cluster_id", "host", "port", "rack", "log_dir",
    "total_bytes", "usable_bytes",
}  # fmt: skip


def _neutral(value: Any) -> Any:
    match value:
        case dict():
            return {k: _neutral(v) for k, v in value.items() if k not in _DIFFER and k not in OURS}
        case list():
            kept = [v for v in value if not (isinstance(v, dict) and v.get("name") in OURS)]
            return sorted((_neutral(v) for v in kept), key=repr)
        case _:
            return value


def _compare(theirs: Any, ours: Any, at: str = "") -> list[str]:
    """What differs, and where."""
    if isinstance(theirs, dict) and isinstance(ours, dict) and theirs.keys() == ours.keys():
        return [d for k in theirs for d in _compare(theirs[k], ours[k], f"{at}.{k}")]
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        pairs = enumerate(zip(theirs, ours, strict=True))
        return [d for i, (a, b) in pairs for d in _compare(a, b, f"{at}[{i}]")]
    return [] if theirs == ours else [f"{at} is {theirs!r} in Kafka, {ours!r} here"]


async def test_we_say_what_kafka_says(tmp_path: Path) -> None:
    """
    Each of a hundred requests, in the same order, is answered alike: codes, messages, values,
    sources, leaders, pages.
    """
    differences = []
    with KafkaPeer(tmp_path, {"node.id": str(NODE_ID)}) as kafka:
        async with RunningAgent(tmp_path / "ours") as agent:
            for name, key, version, request in CASES:
                theirs = await asyncio.to_thread(ask, kafka.port, key, version, request)
                ours = await ask_us(agent, key, version, request)
                differences += [
                    f"{name}: {difference}"
                    for difference in _compare(said(key, theirs), said(key, ours))
                ]

    assert not differences, "\n".join(differences)
