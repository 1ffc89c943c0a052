"""Kafka's tools for those who run a cluster, as in `test_kafka_tools`: elections, reassignments,
the quorum, features, rules, tokens.

Shell.
"""

import json
from pathlib import Path
from typing import Final

import pytest

from tests.clients.tool_comparison import Difference, Pair, step, steps_of
from tests.support.kafka_peer import kafka_jars

pytestmark = [
    pytest.mark.skipif(kafka_jars() is None, reason="Java or Kafka's jars are missing"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("kafka_tools"),
]

QUORUM: Final = (
    Difference(
        "epoch",
        "nobody is elected here: one agent stands for the metadata store",
        r"LeaderEpoch: +[1-9]\d*",
        r"LeaderEpoch: +0",
    ),
    Difference(
        "high watermark",
        "how much was written to the metadata",
        r"HighWatermark: +[1-9]\d*",
        r"HighWatermark: +[1-9]\d*",
    ),
    Difference(
        "endpoint",
        "agents have no directory of metadata, and no listener for controllers",
        r'"directoryId": "\S{22}", "endpoints": \["CONTROLLER:',
        r'"endpoints": \["PLAINTEXT:',
    ),
)
REPLICATION: Final = (
    Difference(
        "state",
        "how much was written, in which directory, and when",
        r"^1 +\t\S+\t[1-9]\d* *\t0 +\t1\d{12} +\t1\d{12} +\tLeader",
        r"^1 +\t<uuid>\t[1-9]\d* *\t0 +\t1\d{12} +\t1\d{12} +\tLeader",
    ),
)
FEATURES: Final = (
    Difference(
        "more features",
        "what is not built is not published: transactions, share groups, Streams' groups",
        r"^Feature: (?!metadata\.version|group\.version)[^\n]*\n",
        "",
    ),
    Difference(
        "driftlog.version",
        "the format level of the cluster is a feature of driftlog's own",
        "",
        r"^Feature: driftlog\.version[^\n]*\n",
    ),
    Difference(
        "group.version",
        "groups of KIP-848 cannot be turned off",
        r"group\.version +SupportedMinVersion: 0",
        r"group\.version +SupportedMinVersion: 1",
    ),
    Difference("epoch", "it changes with the format level only", r"Epoch: [1-9]\d*", r"Epoch: 2"),
)
FOLLOWS: Final = Difference(
    "a downgrade",
    "Kafka would lose metadata with it, and here it is a matter of the agents' version",
    r"Unsupported metadata\.version downgrade.*information\.",
    r"Invalid update version 20.*run other agents instead\.",
)


def test_leaders_are_elected(pair: Pair, tmp_path: Path) -> None:
    """
    kafka-leader-election is told that no election is needed.
    """
    file = tmp_path / "partitions.json"
    file.write_text(json.dumps({"partitions": [{"topic": "elected", "partition": 0}]}))
    pair.compare(
        [
            step("kafka-topics --create --topic elected --partitions 2"),
            *steps_of(f"""
                kafka-leader-election --election-type PREFERRED --topic elected --partition 0
                kafka-leader-election --election-type UNCLEAN --topic elected --partition 1
                kafka-leader-election --election-type PREFERRED --topic elected --partition 7
                kafka-leader-election --election-type PREFERRED --topic nope --partition 0
                kafka-leader-election --election-type PREFERRED --all-topic-partitions
                kafka-leader-election --election-type UNCLEAN --path-to-json-file {file}
            """),
            step("kafka-topics --delete --topic elected"),
        ]
    )


def test_partitions_are_reassigned(pair: Pair, tmp_path: Path) -> None:
    """
    kafka-reassign-partitions generates, executes, verifies, lists and cancels.
    """
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "moved"}]}))

    def plan(name: str, topic: str, replicas: list[int]) -> str:
        file = tmp_path / f"{name}.json"
        partition = {"topic": topic, "partition": 0, "replicas": replicas}
        file.write_text(json.dumps({"version": 1, "partitions": [partition]}))
        return f"kafka-reassign-partitions --reassignment-json-file {file}"

    generate = f"kafka-reassign-partitions --generate --topics-to-move-json-file {topics}"
    same, strange = plan("same", "moved", [1]), plan("strange", "moved", [99])
    nowhere = plan("nowhere", "nope", [1])
    pair.compare(
        [
            step("kafka-topics --create --topic moved --partitions 1"),
            *steps_of(f"""
                {generate} --broker-list 1
                kafka-reassign-partitions --list
                {same} --execute
                {same} --verify
                {same} --cancel
                {strange} --execute
                {nowhere} --execute
                kafka-reassign-partitions --list
            """),
            step("kafka-topics --delete --topic moved"),
        ]
    )


def test_the_quorum_is_described(pair: Pair) -> None:
    """
    kafka-metadata-quorum finds a leader that is caught up; kafka-cluster finds the brokers.
    """
    pair.compare(
        [
            step("kafka-metadata-quorum --bootstrap-server @ describe --status", *QUORUM),
            step("kafka-metadata-quorum --bootstrap-server @ describe --replication", *REPLICATION),
            *steps_of("""
                kafka-cluster cluster-id
                kafka-cluster unregister --id 99
                kafka-cluster list-endpoints
            """),
        ]
    )


def test_features_are_what_the_agents_speak(pair: Pair) -> None:
    """
    kafka-features describes them, and is refused another level than there is.
    """
    pair.compare(
        [
            step("kafka-features --bootstrap-server @ describe", *FEATURES),
            *steps_of("""
                kafka-features --bootstrap-server @ upgrade --feature metadata.version=30
                kafka-features --bootstrap-server @ upgrade --feature metadata.version=99
                kafka-features --bootstrap-server @ upgrade --feature metadata.version=20
                kafka-features --bootstrap-server @ downgrade --feature metadata.version=1
                kafka-features --bootstrap-server @ upgrade --feature nope=1
            """),
            step(
                "kafka-features --bootstrap-server @ downgrade --feature metadata.version=20",
                FOLLOWS,
            ),
        ]
    )


def test_nobody_is_kept_out(pair: Pair) -> None:
    """
    kafka-acls and kafka-delegation-tokens are told what they are told without security.
    """
    pair.compare(
        steps_of("""
            kafka-acls --list
            kafka-acls --list --topic nope
            kafka-acls --add --allow-principal User:a --operation Read --topic t
            kafka-acls --remove --force --allow-principal User:a --operation Read --topic t
            kafka-delegation-tokens --describe --owner-principal User:a
            kafka-configs --describe --entity-type users
            kafka-configs --describe --entity-type users --entity-name a
            kafka-configs --describe --entity-type clients
            kafka-configs --describe --entity-type ips
            kafka-client-metrics --list
            kafka-client-metrics --describe
        """)
    )
