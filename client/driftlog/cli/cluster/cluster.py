"""`driftlog cluster`: its brokers, and the APIs that they support; its format level and grace.

Shell.
"""

import argparse
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    ConfigResource,
    ResourceType,
)

from driftlog.cli.cluster.grace import add_grace_command
from driftlog.cli.cluster.upgrade import format_levels, upgrade
from driftlog.cli.common.errors import OK, CommandError
from driftlog.cli.common.output import Bad, complain, number, print_json, print_table
from driftlog.cli.common.parsers import Commands, Parser, add_command, add_group, natural
from driftlog.cli.connection.cluster_client import ClusterClient
from driftlog.cli.connection.connection import add_connection_options, address_of, result_of
from driftlog.cli.connection.wire import Wire

_HTTP_CONFIG: Final = "driftlog.http.address"
_BROKER_TIMEOUT_S: Final = 5.0

_API_NAMES: Final = dict(
    enumerate(
        (
            "Produce Fetch ListOffsets Metadata LeaderAndIsr StopReplica UpdateMetadata "
            "ControlledShutdown OffsetCommit OffsetFetch FindCoordinator JoinGroup Heartbeat "
            "LeaveGroup SyncGroup DescribeGroups ListGroups SaslHandshake ApiVersions "
            "CreateTopics DeleteTopics DeleteRecords InitProducerId OffsetForLeaderEpoch "
            "AddPartitionsToTxn AddOffsetsToTxn EndTxn WriteTxnMarkers TxnOffsetCommit "
            "DescribeAcls CreateAcls DeleteAcls DescribeConfigs AlterConfigs "
            "AlterReplicaLogDirs DescribeLogDirs SaslAuthenticate CreatePartitions "
            "CreateDelegationToken RenewDelegationToken ExpireDelegationToken "
            "DescribeDelegationToken DeleteGroups ElectLeaders IncrementalAlterConfigs "
            "AlterPartitionReassignments ListPartitionReassignments OffsetDelete "
            "DescribeClientQuotas AlterClientQuotas DescribeUserScramCredentials "
            "AlterUserScramCredentials Vote BeginQuorumEpoch EndQuorumEpoch DescribeQuorum "
            "AlterPartition UpdateFeatures Envelope FetchSnapshot DescribeCluster "
            "DescribeProducers BrokerRegistration BrokerHeartbeat UnregisterBroker "
            "DescribeTransactions ListTransactions AllocateProducerIds ConsumerGroupHeartbeat "
            "ConsumerGroupDescribe ControllerRegistration GetTelemetrySubscriptions "
            "PushTelemetry AssignReplicasToDirs ListConfigResources DescribeTopicPartitions "
            "ShareGroupHeartbeat ShareGroupDescribe ShareFetch ShareAcknowledge AddRaftVoter "
            "RemoveRaftVoter UpdateRaftVoter InitializeShareGroupState ReadShareGroupState "
            "WriteShareGroupState DeleteShareGroupState ReadShareGroupStateSummary "
            "StreamsGroupHeartbeat StreamsGroupDescribe DescribeShareGroupOffsets "
            "AlterShareGroupOffsets DeleteShareGroupOffsets"
        ).split()
    )
)


def add_commands(commands: Commands) -> None:
    """Add the commands of this file."""
    cluster = add_group(
        commands,
        "cluster",
        help="show the brokers of a cluster and their APIs; show or change its format level and "
        "grace",
    )
    info = add_command(
        cluster,
        "info",
        _info,
        help="show the id and controller, and count brokers, topics and partitions",
    )
    _reading(info)
    brokers = add_command(
        cluster, "brokers", _brokers, help="list the brokers, and how many partitions each leads"
    )
    _reading(brokers)
    raising = add_command(
        cluster,
        "upgrade",
        upgrade,
        help="show the release of each agent, and raise the format level of the cluster",
        description="Show which release each agent runs, the format level that it knows, and the "
        "cluster's.  With --finalize the cluster's level rises to the newest that all live agents "
        "know: agents then write newer formats.  The level never falls: an agent of an older "
        "release does not start any more.",
        examples="  driftlog cluster upgrade\n  driftlog cluster upgrade --finalize\n",
    )
    raising.add_argument("--finalize", action="store_true", help="raise the level")
    _reading(raising)
    add_grace_command(cluster)
    apis = add_command(cluster, "apis", _apis, help="list the APIs that a broker serves")
    apis.add_argument(
        "--broker", type=natural, metavar="ID", help="id of the broker (default: the lowest)"
    )
    _reading(apis)


def _reading(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection_options(parser)


def _info(options: argparse.Namespace) -> int:
    cluster = ClusterClient(options)
    metadata = cluster.metadata()
    described = result_of(cluster.admin.describe_cluster(request_timeout=cluster.timeout))
    partitions = [p for topic in metadata.topics.values() for p in topic.partitions.values()]
    found = {
        "cluster_id": described.cluster_id,
        "controller": described.controller.id if described.controller else None,
        "brokers": len(metadata.brokers),
        "topics": len(metadata.topics),
        "partitions": len(partitions),
        "partitions_without_leader": sum(p.leader < 0 for p in partitions),
    }
    levels = format_levels(cluster, found["controller"])
    if levels is not None:
        found["format_level"] = levels[0]
    if options.json:
        print_json(found)
        return OK
    for name, value in found.items():
        text = number(value) if isinstance(value, int) else (value or "-")
        print(f"{name.replace('_', ' '):26}{text}")
    if levels is not None and levels[1] > levels[0]:
        complain(f"the controller knows level {levels[1]}: driftlog cluster upgrade")
    return OK


def _brokers(options: argparse.Namespace) -> int:
    cluster = ClusterClient(options)
    metadata = cluster.metadata()
    described = result_of(cluster.admin.describe_cluster(request_timeout=cluster.timeout))
    led = [p.leader for topic in metadata.topics.values() for p in topic.partitions.values()]
    http = _http_addresses(cluster, [node.id for node in described.nodes])
    controller = described.controller.id if described.controller else None
    found: list[dict[str, Any]] = [
        {
            "id": node.id,
            "address": address_of(node),
            "rack": node.rack,
            "controller": node.id == controller,
            "partitions_led": led.count(node.id),
            "http": http[node.id],
        }
        for node in sorted(described.nodes, key=lambda node: int(node.id))
    ]
    if options.json:
        print_json([{**broker, "http": broker["http"] or None} for broker in found])
        return OK
    print_table(
        ("id", "address", "rack", "leads", "http", ""),
        [
            (
                broker["id"],
                broker["address"],
                broker["rack"],
                broker["partitions_led"],
                Bad("does not answer") if broker["http"] is False else broker["http"],
                "controller" if broker["controller"] else "",
            )
            for broker in found
        ],
    )
    return OK


def _http_addresses(cluster: ClusterClient, nodes: list[int]) -> dict[int, str | bool | None]:
    """The HTTP address of each agent; None: it has none; False: it does not answer."""
    asked = {
        node: cluster.admin.describe_configs(
            [ConfigResource(ResourceType.BROKER, str(node))],
            request_timeout=min(cluster.timeout, _BROKER_TIMEOUT_S),
        )
        for node in nodes
    }
    found: dict[int, str | bool | None] = {}
    for node, futures in asked.items():
        for future in futures.values():
            try:
                entry = future.result().get(_HTTP_CONFIG)
            except KafkaException:
                found[node] = False
            else:
                found[node] = None if entry is None else entry.value
    return found


def _apis(options: argparse.Namespace) -> int:
    cluster = ClusterClient(options)
    brokers = cluster.metadata().brokers
    broker = brokers.get(min(brokers) if options.broker is None else options.broker)
    if broker is None:
        there = ", ".join(map(str, sorted(brokers)))
        raise CommandError(f"broker {options.broker} does not exist: {there}")
    with Wire(options, address_of(broker)) as wire:
        found = sorted(wire.api_versions())
    if options.json:
        print_json(
            [
                {"key": key, "name": _API_NAMES.get(key), "min_version": least, "max_version": most}
                for key, least, most in found
            ]
        )
    else:
        print_table(
            ("key", "name", "least", "most"),
            [(key, _API_NAMES.get(key), least, most) for key, least, most in found],
        )
    return OK
