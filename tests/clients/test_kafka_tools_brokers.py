"""Kafka's own tools that ask about brokers, groups' and other configs, against Apache Kafka and
against driftlog: see test_kafka_tools.py.

Shell.
"""

import re
from typing import Final

import pytest

from tests.clients.kafka_tools import Said
from tests.clients.tool_comparison import Difference, Pair, step
from tests.support.kafka_peer import kafka_jars

pytestmark = [
    pytest.mark.skipif(kafka_jars() is None, reason="Java or Kafka's jars are missing"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("kafka_tools"),
]

NOT_SERVED: Final = {
    **dict.fromkeys(("Produce", "Fetch"), "the newest versions are Kafka's own, or transactions'"),
    **dict.fromkeys(
        (
            *("AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "WriteTxnMarkers"),
            *("TxnOffsetCommit", "DescribeTransactions", "ListTransactions"),
        ),
        "there are no transactions yet",
    ),
    **dict.fromkeys(
        (
            *("SaslAuthenticate", "AlterUserScramCredentials"),
            *("CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken"),
        ),
        "clients are not authenticated yet",
    ),
    "AlterClientQuotas": "there are no quotas yet",
    "AlterReplicaLogDirs": "there is one directory, the bucket",
    **dict.fromkeys(("AddRaftVoter", "RemoveRaftVoter"), "there is no quorum of controllers"),
    **dict.fromkeys(
        (
            *("ShareGroupHeartbeat", "ShareGroupDescribe", "ShareFetch", "ShareAcknowledge"),
            *("InitializeShareGroupState", "ReadShareGroupState", "WriteShareGroupState"),
            *("DeleteShareGroupState", "ReadShareGroupStateSummary", "DescribeShareGroupOffsets"),
            *("AlterShareGroupOffsets", "DeleteShareGroupOffsets"),
        ),
        "there are no share groups",
    ),
    **dict.fromkeys(
        ("StreamsGroupHeartbeat", "StreamsGroupDescribe"), "there are no streams groups"
    ),
}
"""APIs that Kafka serves and driftlog does not, or not in all versions."""


def test_api_versions(pair: Pair) -> None:
    """
    kafka-broker-api-versions names the same APIs with the same versions, but for `NOT_SERVED`.
    """

    def served(said: Said) -> dict[str, str]:
        assert (0, "") == (said.status, said.err)
        return dict(re.findall(r"\t(\w+)\(\d+\): (\w.*?),?\n", said.out))

    kafka, driftlog = (served(said) for said in pair.run("kafka-broker-api-versions"))

    assert len(kafka) > 70
    assert kafka.keys() == driftlog.keys()
    assert NOT_SERVED.keys() == {name for name, said in kafka.items() if driftlog[name] != said}


DYNAMIC: Final = Difference(
    "a dynamic config of a broker that agents take at their start",
    "it changes nothing while an agent runs: it refuses, where Kafka keeps it",
    r"exit 0\nCompleted updating (?:default )?config for brokers?[^\n]*\n--\n",
    r"exit 1\n+--\n.*\nCaused by: [^\n]*InvalidRequestException: Cannot update these configs "
    r"dynamically: [^\n]*\n",
)
KEPT: Final = Difference(
    "min.insync.replicas of all brokers",
    "Kafka's feature eligible.leader.replicas sets it",
    r"^  min\.insync\.replicas=[^\n]*\n",
    "",
)
SEGMENT: Final = Difference(
    "the default of log.segment.bytes",
    "it is 128 MiB, and 1 GiB in Kafka",
    r"log\.segment\.bytes=1073741824",
    "log.segment.bytes=134217728",
)
BOUND: Final = Difference(
    "the bound of a config",
    "Kafka checks some configs only together with all others; here each has its bound",
    r"requirement failed: [^\n]*",
    r"Invalid value \d+ for configuration [^\n]*: Value must be at least \d+",
)
LOGGERS: Final = Difference(
    "loggers",
    "there is one",
    r"  org\.apache[^\n]*\n  root=\w+",
    r"  root=INFO",
)
LEVEL: Final = Difference(
    "a level of a logger",
    "--log-level is said when the agent is started",
    r"exit 0\nCompleted updating config for broker-logger 1\.\n--\n",
    r"exit 1\n+--\n.*\nCaused by: [^\n]*: Log levels are set when the agent is started\n",
)


def test_broker_configs(pair: Pair) -> None:
    """
    kafka-configs sets, shows and deletes what is set on a broker and on all of them; what cannot
    be set is refused.
    """
    broker = "kafka-configs --entity-type brokers --entity-name 1"
    brokers = "kafka-configs --entity-type brokers --entity-default"
    logger = "kafka-configs --entity-type broker-loggers --entity-name 1"
    pair.compare(
        [
            step(f"{broker} --describe"),
            step(f"{brokers} --describe", KEPT),
            step(f"{broker} --alter --add-config broker.id=2"),
            step(f"{brokers} --alter --add-config broker.id=2"),
            step(f"{broker} --alter --delete-config num.io.threads"),
            step(f"{broker} --alter --add-config num.io.threads=4", DYNAMIC),
            step(f"{broker} --alter --delete-config num.io.threads"),
            step(f"{brokers} --alter --add-config log.retention.bytes=soon"),
            step(f"{brokers} --alter --add-config log.roll.ms=0", BOUND),
            step(f"{brokers} --alter --add-config log.cleaner.dedupe.buffer.size=1", BOUND),
            step(f"{brokers} --alter --add-config log.retention.bytes=5000"),
            step(
                f"{broker} --alter --add-config log.retention.bytes=6000,log.segment.bytes=2000000"
            ),
            step(f"{brokers} --describe", KEPT),
            step(f"{broker} --describe", SEGMENT),
            step("kafka-configs --entity-type brokers --describe", KEPT, SEGMENT),
            step(f"{broker} --alter --delete-config log.retention.bytes,log.segment.bytes"),
            step(f"{broker} --describe"),
            step(f"{brokers} --alter --delete-config log.retention.bytes"),
            step(f"{brokers} --describe", KEPT),
            step("kafka-configs --entity-type brokers --entity-name 9 --describe", reads=False),
            step("kafka-configs --entity-type brokers --entity-name x --describe"),
            step(f"{logger} --describe", LOGGERS),
            step(f"{logger} --alter --add-config root=DEBUG", LEVEL),
            step(f"{logger} --alter --add-config root=ERROR", LEVEL),
        ]
    )


METRICS_KEPT: Final = Difference(
    "a subscription to clients' metrics",
    "clients are not asked for their metrics: it refuses, where Kafka keeps it",
    r"exit 0\nCompleted updating config for client-metric m-set\.\n--\n",
    r"exit 1\n+--\n.*\nCaused by: [^\n]*InvalidRequestException: Cannot update these configs "
    r"dynamically: \[interval\.ms\]\n",
)
OTHER_GROUPS: Final = Difference(
    "configs of other kinds of groups",
    "there are no share groups and no streams groups",
    r"(?:^  (?:share|streams)\.[^\n]*\n)",
    "",
)


def test_group_and_client_metrics_configs(pair: Pair) -> None:
    """
    Both are described with their defaults, and refused where they are wrong as Kafka refuses
    them; those of groups are kept, and those of client metrics are refused.
    """
    group = "kafka-configs --entity-type groups --entity-name"
    metrics = "kafka-configs --entity-type client-metrics --entity-name"
    pair.compare(
        [
            step(f"{group} g-none --describe"),
            step(f"{group} g-none --describe --all", OTHER_GROUPS),
            step(f"{group} g-set --alter --add-config nope=5"),
            step(f"{group} g-set --alter --add-config consumer.session.timeout.ms=soon"),
            step(f"{group} g-set --alter --add-config consumer.session.timeout.ms=5"),
            step(f"{group} g-set --alter --add-config consumer.session.timeout.ms=50000"),
            step(f"{group} g-set --describe"),
            step(f"{group} g-set --describe --all", OTHER_GROUPS),
            step("kafka-configs --entity-type groups --describe"),
            step(f"{group} g-set --alter --delete-config consumer.session.timeout.ms"),
            step(f"{group} g-set --describe"),
            step(f"{metrics} m-none --describe"),
            step(f"{metrics} m-none --describe --all"),
            step(f"{metrics} m-set --alter --add-config nope=5"),
            step(f"{metrics} m-set --alter --add-config interval.ms=soon"),
            step(f"{metrics} m-set --alter --add-config interval.ms=1000", METRICS_KEPT),
            step(f"{metrics} m-set --alter --delete-config interval.ms"),
        ]
    )
