"""Apache Kafka's own command-line tools, unmodified, against Apache Kafka and against driftlog.

Each command is given to both in one run, and says the same, but for what `tool_comparison.MASKS`
has of any two clusters and for the `Difference`s here, each with its reason.
Shell.
"""

from typing import Final

import pytest

from tests.clients.tool_comparison import Difference, Pair, step, steps_of
from tests.support.kafka_peer import kafka_jars

pytestmark = [
    pytest.mark.skipif(kafka_jars() is None, reason="Java or Kafka's jars are missing"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("kafka_tools"),
]


MIN_ISR: Final = Difference(
    "min.insync.replicas",
    "Kafka's feature eligible.leader.replicas sets it for its whole cluster; here all replicas "
    "there are, the bucket, have what is acknowledged, and nobody sets it",
    r"Configs: min\.insync\.replicas=1,?",
    r"Configs: ?",
)
OVERRIDDEN: Final = Difference(
    "topics of which only min.insync.replicas is set",
    "see min.insync.replicas",
    r"^Topic: \S+\tTopicId: <topic id>\tPartitionCount: \d\tReplicationFactor: 1\t"
    r"<min\.insync\.replicas>$",
    "",
)
ANY_REPLICATION_FACTOR: Final = Difference(
    "replication factor 3 on one broker",
    "the bucket replicates: a factor is taken as it is, and shown as far as there are agents",
    r"exit 1\nError while executing topic command : Unable to replicate the partition 3 "
    r"time\(s\).*InvalidReplicationFactorException: .*cordoned\.\n",
    r"exit 0\nCreated topic three\.\n--\n",
)


def test_topics(pair: Pair) -> None:
    """
    kafka-topics creates, lists, describes, extends and deletes topics, and refuses what it must.
    """
    pair.compare(
        [
            *steps_of("""
                kafka-topics --list --exclude-internal
                kafka-topics --create --topic flights --partitions 2 --config cleanup.policy=compact
                kafka-topics --create --topic flights
                kafka-topics --create --topic flights --if-not-exists
                kafka-topics --create --topic flights --replica-assignment 9
                kafka-topics --create --topic 'a b'
                kafka-topics --create --topic ..
                kafka-topics --create --topic t --partitions 0
                kafka-topics --create --topic t --replication-factor 0
                kafka-topics --create --topic t --config retention.ms=x
                kafka-topics --create --topic t --config nope=x
                kafka-topics --create --topic t --replica-assignment 9
                kafka-topics --create --topic placed --replica-assignment 1,1
                kafka-topics --create --topic under_score
                kafka-topics --create --topic under.score
                kafka-topics --list --exclude-internal
                kafka-topics --list --exclude-internal --topic '.*l.*'
                kafka-topics --list --topic none
            """),
            step("kafka-topics --describe --exclude-internal", MIN_ISR),
            step("kafka-topics --describe --topic flights", MIN_ISR),
            step("kafka-topics --describe --topic '[fp].*' --exclude-internal", MIN_ISR),
            step(
                "kafka-topics --describe --exclude-internal --partition-size-limit-per-response 1",
                MIN_ISR,
            ),
            *steps_of("""
                kafka-topics --describe --topic none
                kafka-topics --describe --topic-id AAAAAAAAAAAAAAAAAAAABQ
                kafka-topics --describe --exclude-internal --under-replicated-partitions
                kafka-topics --describe --exclude-internal --unavailable-partitions
                kafka-topics --describe --exclude-internal --under-min-isr-partitions
                kafka-topics --describe --exclude-internal --at-min-isr-partitions
            """),
            step(
                "kafka-topics --describe --exclude-internal --topics-with-overrides",
                MIN_ISR,
                OVERRIDDEN,
            ),
            *steps_of("""
                kafka-topics --alter --topic flights --partitions 1
                kafka-topics --alter --topic flights --partitions 2
                kafka-topics --alter --topic flights --partitions 3
                kafka-topics --alter --topic flights --partitions 4 --replica-assignment 1:1
                kafka-topics --alter --topic placed --partitions 3 --replica-assignment 1,1,1
                kafka-topics --alter --topic none --partitions 3
                kafka-topics --alter --topic none --partitions 3 --if-exists
            """),
            step("kafka-topics --describe --exclude-internal", MIN_ISR),
            step(
                "kafka-topics --create --topic three --replication-factor 3",
                ANY_REPLICATION_FACTOR,
            ),
            *steps_of("""
                kafka-topics --delete --topic none
                kafka-topics --delete --topic none --if-exists
                kafka-topics --delete --topic 'placed|under.*'
                kafka-topics --delete --topic three --if-exists
                kafka-topics --list --exclude-internal
                kafka-topics --delete --topic flights
            """),
        ]
    )


SEGMENTS: Final = (
    Difference(
        "segment.bytes",
        "segments here are Parquet files of 128 MiB as received",
        "1073741824",
        "134217728",
    ),
    Difference(
        "segment.ms",
        "and are sealed after an hour, so that Spark sees what is new",
        r"segment\.ms=604800000",
        r"segment\.ms=3600000",
    ),
    Difference(
        "min.insync.replicas",
        "Kafka's feature eligible.leader.replicas sets it; here nobody does",
        r"DYNAMIC_DEFAULT_BROKER_CONFIG:min\.insync\.replicas=1, DEFAULT_CONFIG:min\.insync",
        r"(?<=synonyms={)DEFAULT_CONFIG:min\.insync",
    ),
)


def test_topic_configs(pair: Pair) -> None:
    """
    kafka-configs sets, appends to, subtracts from, deletes and shows configs of topics.
    """
    of_topic = "kafka-configs --entity-type topics --entity-name configured"
    pair.compare(
        [
            step("kafka-topics --create --topic configured --config cleanup.policy=compact"),
            step(f"{of_topic} --describe"),
            step(f"{of_topic} --describe --all", *SEGMENTS),
            *steps_of(f"""
                {of_topic} --alter --add-config retention.ms=1000,max.message.bytes=2000
                {of_topic} --describe
                {of_topic} --alter --add-config cleanup.policy=[compact,delete]
                {of_topic} --alter --delete-config retention.ms
                {of_topic} --alter --delete-config retention.ms
                {of_topic} --alter --delete-config nope
                {of_topic} --describe
                {of_topic} --alter --add-config retention.ms=1,delete.retention.ms=2 \
                    --delete-config max.message.bytes
                {of_topic} --alter --add-config nope=1
                {of_topic} --alter --add-config retention.ms=-2
                {of_topic} --alter --add-config retention.ms=soon
                {of_topic} --alter --add-config segment.bytes=1
                {of_topic} --alter --add-config min.compaction.lag.ms=5,max.compaction.lag.ms=4
                {of_topic} --alter --add-config compression.type=best
                {of_topic} --alter --add-config remote.storage.enable=true
                {of_topic} --alter --add-config unclean.leader.election.enable=perhaps
                {of_topic} --alter --add-config leader.replication.throttled.replicas=[0:1,1:1]
                {of_topic} --alter --add-config leader.replication.throttled.replicas=all
                {of_topic} --alter --add-config message.timestamp.type=LogAppendTime
                {of_topic} --describe
                kafka-configs --topic configured --describe
                kafka-configs --entity-type topics --entity-name none --describe
                kafka-configs --topic none --alter --add-config flush.ms=1
                kafka-configs --topic "b d" --alter --add-config flush.ms=1
                kafka-configs --entity-type topics --entity-default --describe
                kafka-topics --delete --topic configured
            """),
        ]
    )
