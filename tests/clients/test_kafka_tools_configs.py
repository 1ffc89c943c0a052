"""DescribeConfigs of Apache Kafka and of driftlog, config by config: what every tool shows.

What is not the same is listed here, with its reason; what is listed and is the same, fails.
Shell.
"""

import fnmatch
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pytest

from driftlog_agents.configs.definitions import ConfigSource, ResourceType
from driftlog_agents.configs.dynamic_configs import DYNAMIC
from driftlog_agents.configs.limits import DEFINITIONS
from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.messages import create_topics as ct
from driftlog_agents.protocol.messages import delete_topics as dt
from driftlog_agents.protocol.messages import describe_configs as dc
from driftlog_agents.protocol.messages import incremental_alter_configs as ia
from tests.clients.tool_comparison import Pair
from tests.support.kafka_peer import kafka_jars
from tests.support.wire import ask

pytestmark = [
    pytest.mark.skipif(kafka_jars() is None, reason="Java or Kafka's jars are missing"),
    pytest.mark.timeout(180),
    pytest.mark.xdist_group("kafka_tools"),
]

TOPIC: Final = "described"

Configs = Mapping[str, dc.DescribeConfigsResourceResult]
"""By name."""


@pytest.fixture
def ports(pair: Pair) -> tuple[int, int]:
    """Of Kafka and of driftlog, both on defaults but for what `PEER` says."""
    return pair.kafka.port, pair.driftlog.port


NOT_HERE: Final = {
    "add.partitions.to.txn.retry.*": "there are no transactions yet",
    "alter.log.dirs.replication.quota.*": "there is one directory, the bucket",
    "config.providers": "an agent's file of settings has no variables",
    "controller.quorum.*": "there is no quorum of controllers",
    "controller.socket.timeout.ms": "there is no controller",
    "cordoned.log.dirs": "there is one directory, the bucket",
    "delegation.token.*": "clients are not authenticated yet",
    "*.purgatory.purge.interval.requests": "what waits here needs no purging",
    "early.start.listeners": "there is no controller",
    "follower.fetch.last.tiered.offset.enable": "there are no followers",
    "group.coordinator.background.threads": "groups have no threads",
    "group.coordinator.cached.buffer.max.bytes": "groups have no log, and no buffers for it",
    "group.share.*": "there are no share groups",
    "group.streams.*": "there are no streams groups",
    "initial.broker.registration.timeout.ms": "there is no controller",
    "kafka.metrics.*": "metrics are on the agent's HTTP port",
    "metadata.*": "there is no log of metadata",
    "remote.*": "the bucket is the log; nothing is copied there",
    "replication.quota.*": "there are no followers",
    "sasl.*": "clients are not authenticated yet",
    "share.coordinator.*": "there are no share groups",
    "socket.*": "agents wait for their stores, and the queue of a listener is what it is",
    "ssl.*": "TLS is not there yet",
}
"""Configs of Kafka's brokers that agents do not have, by pattern."""

OURS: Final = {
    "driftlog.http.address": "where `driftlog segments` and people find the HTTP port",
    "driftlog.metrics.max.partitions": "Kafka has a metric for each partition",
    "driftlog.producer.state.max.bytes": "Kafka has no bound for what it remembers of producers",
    **{name: "docs/limits.md" for name in DEFINITIONS if name.startswith("driftlog.")},
    "driftlog.read.cache.bytes": "records from S3 are kept on the agent's disk",
    "driftlog.segment.merge.enable": "Kafka merges no segments",
    "driftlog.traces.enable": "an agent sends traces of Produce requests",
    "driftlog.verification.bytes.per.second": "Kafka reads nothing back",
    "driftlog.verification.interval.ms": "the same",
    "driftlog.release": "which release an agent runs",
    "driftlog.format.level": "which format level it knows",
    "driftlog.cluster.format.level": "that of the cluster",
    "inter.broker.protocol.version": "user interfaces take it for the version of the cluster",
    "log.message.format.version": "so do older ones",
}

OTHERWISE: Final = {
    "advertised.listeners": "each has its own",
    "broker.session.timeout.ms": "--session-timeout-ms",
    "controller.listener.names": "there is no controller",
    "controller.quorum.bootstrap.servers": "there is no controller",
    "group.consumer.max.size": "docs/limits.md",
    "group.coordinator.rebalance.protocols": "those that are served",
    "group.max.size": "docs/limits.md",
    "listener.security.protocol.map": "of the listeners there are",
    "listeners": "each has its own",
    "log.dir": "the bucket",
    "log.dirs": "the bucket",
    "log.roll.hours": "segments are of an hour",
    "log.segment.bytes": "and of 128 MiB",
    "max.connection.creation.rate": "docs/limits.md",
    "max.connections": "as many as the process may open files",
    "max.connections.per.ip": "docs/limits.md",
    "metric.reporters": "metrics are on the agent's HTTP port",
    "min.insync.replicas": "Kafka's feature eligible.leader.replicas sets it",
    "process.roles": "there is no controller",
    "queued.max.request.bytes": "docs/limits.md",
    "sasl.enabled.mechanisms": "none",
}
"""Configs whose value, source or synonyms are others."""

PEER: Final = {
    "offsets.topic.num.partitions",
    "offsets.topic.replication.factor",
    "transaction.state.log.min.isr",
    "transaction.state.log.num.partitions",
    "transaction.state.log.replication.factor",
}
"""What `KafkaPeer` sets, to be small."""


def described(port: int, kind: ResourceType, name: str) -> Configs:
    """All configs of a resource, with synonyms and documentation."""
    resource = dc.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    request = dc.DescribeConfigsRequest(
        resources=[resource], include_synonyms=True, include_documentation=True
    )
    (result,) = ask(port, ApiKey.DESCRIBE_CONFIGS, 4, request).results
    assert (0, name) == (result.error_code, result.resource_name), result.error_message
    return {config.name: config for config in result.configs}


def valued(config: dc.DescribeConfigsResourceResult) -> tuple[Any, ...]:
    """What it comes to, and whence."""
    synonyms = [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms]
    return config.value, config.config_source, synonyms


@contextmanager
def each_has_a_topic(ports: tuple[int, int]) -> Iterator[None]:
    """One with a config of its own, which is deleted at the end."""
    config = ct.CreatableTopicConfig(name="retention.ms", value="5000")
    topic = ct.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1, configs=[config])
    for port in ports:
        made = ct.CreateTopicsRequest(topics=[topic], timeout_ms=20_000)
        (answer,) = ask(port, ApiKey.CREATE_TOPICS, 7, made).topics
        assert answer.error_code == 0, answer.error_message
    yield
    gone = dt.DeleteTopicsRequest(topics=[dt.DeleteTopicState(name=TOPIC)], timeout_ms=20_000)
    for port in ports:
        ask(port, ApiKey.DELETE_TOPICS, 6, gone)


def alter_all_brokers(port: int, values: Mapping[str, str | None]) -> None:
    """Set or delete configs of all brokers; returns when the broker has them."""
    change = ia.AlterConfigsResource(
        resource_type=ResourceType.BROKER,
        configs=[
            ia.AlterableConfig(name=name, config_operation=1 if value is None else 0, value=value)
            for name, value in values.items()
        ],
    )
    request = ia.IncrementalAlterConfigsRequest(resources=[change])
    (answer,) = ask(port, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
    assert answer.error_code == 0, answer.error_message

    def is_done() -> bool:
        found = described(port, ResourceType.BROKER, "")
        now = {name: config.value for name, config in found.items() if name in values}
        return now == {name: value for name, value in values.items() if value is not None}

    deadline = time.monotonic() + 30
    while not is_done():
        assert time.monotonic() < deadline, values
        time.sleep(0.1)


def test_all_of_a_broker(ports: tuple[int, int]) -> None:
    """
    Names, types, secrets, values, sources and synonyms are Kafka's, but for what is listed; each
    config says what it does.  What can be changed while an agent runs can be changed in Kafka.
    """
    kafka, driftlog = (described(port, ResourceType.BROKER, "1") for port in ports)

    missing = kafka.keys() - driftlog.keys()
    assert set() == {n for n in missing if not any(fnmatch.fnmatch(n, p) for p in NOT_HERE)}
    assert [] == [pattern for pattern in NOT_HERE if not fnmatch.filter(missing, pattern)]
    assert OURS.keys() == driftlog.keys() - kafka.keys()
    common = kafka.keys() & driftlog.keys()
    kinds = [
        {name: (of[name].config_type, of[name].is_sensitive) for name in common}
        for of in (kafka, driftlog)
    ]
    assert kinds[0] == kinds[1]
    differ = {name for name in common if valued(kafka[name]) != valued(driftlog[name])}
    assert OTHERWISE.keys() == differ - PEER
    assert [] == [name for name in PEER if ConfigSource.DEFAULT != driftlog[name].config_source]
    assert [] == [name for name, config in driftlog.items() if not config.documentation]
    assert DYNAMIC == {name for name, config in driftlog.items() if not config.read_only}
    assert DYNAMIC <= {name for name, config in kafka.items() if not config.read_only}


def test_all_of_a_topic(ports: tuple[int, int]) -> None:
    """
    A topic has the configs that it has in Kafka, and each says what it does here.
    """
    with each_has_a_topic(ports):
        kafka, driftlog = (described(port, ResourceType.TOPIC, TOPIC) for port in ports)

    assert kafka.keys() == driftlog.keys()
    for of in (kafka, driftlog):
        assert ("5000", ConfigSource.DYNAMIC_TOPIC) == valued(of["retention.ms"])[:2]
    kinds = [
        {n: (c.config_type, c.is_sensitive, c.read_only) for n, c in of.items()}
        for of in (kafka, driftlog)
    ]
    assert kinds[0] == kinds[1]
    assert {"min.insync.replicas", "segment.bytes", "segment.ms"} == {
        name for name in kafka if valued(kafka[name]) != valued(driftlog[name])
    }
    assert [] == [name for name, config in driftlog.items() if not config.documentation]


ALTERED: Final = {
    "compression.gzip.level": "5",
    "log.cleaner.backoff.ms": "14000",
    "log.cleaner.dedupe.buffer.size": "67108864",
    "log.retention.ms": "7000000",
    "log.roll.ms": "6000000",
    "producer.id.expiration.ms": "80000000",
}


def test_what_is_set_on_all_brokers(ports: tuple[int, int]) -> None:
    """
    A broker and a topic have Kafka's values, sources and synonyms, but for the default hours of
    segments.
    """
    found = []
    for port in ports:
        alter_all_brokers(port, ALTERED)
    with each_has_a_topic(ports):
        for port in ports:
            broker = described(port, ResourceType.BROKER, "1")
            topic = described(port, ResourceType.TOPIC, TOPIC)
            names = "compression.gzip.level", "retention.ms", "segment.ms"
            found.append(
                {name: valued(broker[name]) for name in (*ALTERED, "log.retention.hours")}
                | {f"topic's {name}": valued(topic[name]) for name in names}
            )
    for port in ports:
        alter_all_brokers(port, dict.fromkeys(ALTERED))

    kafka, driftlog = found
    hours = [("log.roll.hours", default, ConfigSource.DEFAULT) for default in ("168", "1")]
    for name in ("log.roll.ms", "topic's segment.ms"):
        assert hours == [of[name][2].pop() for of in found]
        assert ("6000000", ConfigSource.DYNAMIC_DEFAULT_BROKER) == driftlog[name][:2]
    assert kafka == driftlog
