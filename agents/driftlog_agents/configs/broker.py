"""The configs of a Kafka broker that tools read, and their meaning for an agent.

The agent takes its settings at its start; `dynamic_configs` names those that change while it runs.

Pure.
"""

from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from driftlog_agents.configs.agent_settings import STARTUP_CONFIGS
from driftlog_agents.configs.definitions import (
    ConfigDef,
    ConfigSource,
    ConfigType,
    ConfigValue,
    Inherited,
)
from driftlog_agents.configs.topic import TOPIC_CONFIGS, broker_default

BOOLEAN, CLASS, DOUBLE = ConfigType.BOOLEAN, ConfigType.CLASS, ConfigType.DOUBLE
INT = ConfigType.INT
LIST, LONG, PASSWORD = ConfigType.LIST, ConfigType.LONG, ConfigType.PASSWORD
SHORT, STRING = ConfigType.SHORT, ConfigType.STRING

_FOLLOWERS: Final = "There are no followers: the bucket is the replica."
_LOG_FILES: Final = "There are no log files: acknowledged records are durable."
_KEY_MAP: Final = "Share of log.cleaner.dedupe.buffer.size that holds keys."
_NO_LIMIT: Final = "Compaction has no limit of bytes per second."
_LOOP: Final = "The agent has one event loop and a few worker threads."
_METRICS: Final = "Metrics are on the agent's HTTP port."
_OFFSETS: Final = "Groups and their offsets are in the metadata store, not in a topic."
_QUORUM: Final = "There is no quorum of controllers: agents meet in the metadata store."
_QUOTAS: Final = "There are no quotas yet."
_SASL: Final = "Clients are not authenticated yet."
_TLS: Final = "TLS is not there yet."
_TRANSACTIONS: Final = "There are no transactions yet."

_OF_AGENT: Final[tuple[tuple[str, ConfigType, str | None, str], ...]] = (
    ("advertised.listeners", LIST, None, "Addresses that clients connect to."),
    (
        "alter.config.policy.class.name",
        CLASS,
        None,
        "Class of the policy that checks changes of configs; there is none.",
    ),
    ("authorizer.class.name", STRING, "", "Class of the authorizer; there is none yet."),
    ("auto.leader.rebalance.enable", BOOLEAN, "true", "Agents rebalance partitions by themselves."),
    ("background.threads", INT, "10", _LOOP),
    (
        "broker.heartbeat.interval.ms",
        INT,
        "2000",
        "Interval of the agent's heartbeats: a third of its session timeout.",
    ),
    ("broker.id", INT, "-1", "This agent's node id."),
    ("broker.rack", STRING, None, "Zone of this agent."),
    (
        "broker.session.timeout.ms",
        INT,
        "9000",
        "Session timeout of an agent; when it ends, other agents take over its partitions.",
    ),
    ("client.quota.callback.class", CLASS, None, _QUOTAS),
    ("connection.failed.authentication.delay.ms", INT, "100", _SASL),
    ("connections.max.reauth.ms", LONG, "0", _SASL),
    (
        "controlled.shutdown.enable",
        BOOLEAN,
        "true",
        "A stopping agent flushes, and releases its partitions.",
    ),
    ("controller.listener.names", LIST, None, _QUORUM),
    ("controller.quorum.bootstrap.servers", LIST, "", _QUORUM),
    ("controller.quorum.voters", LIST, "", _QUORUM),
    ("controller.quota.window.num", INT, "11", _QUOTAS),
    ("controller.quota.window.size.seconds", INT, "1", _QUOTAS),
    (
        "create.topic.policy.class.name",
        CLASS,
        None,
        "Class of the policy that checks new topics; there is none.",
    ),
    ("delete.topic.enable", BOOLEAN, "true", "Topics may be deleted."),
    (
        "driftlog.format.level",
        INT,
        None,
        "Newest format level that this agent knows.",
    ),
    (
        "driftlog.cluster.format.level",
        INT,
        None,
        "Format level of the cluster, also that of the feature driftlog.version.",
    ),
    ("driftlog.release", STRING, None, "The release that this agent runs."),
    ("driftlog.http.address", STRING, None, "Address of this agent's HTTP port."),
    (
        "group.consumer.max.assignment.interval.ms",
        INT,
        "15000",
        "Largest consumer.assignment.interval.ms of a group.",
    ),
    (
        "group.consumer.max.heartbeat.interval.ms",
        INT,
        "15000",
        "Largest consumer.heartbeat.interval.ms of a group.",
    ),
    (
        "group.consumer.max.session.timeout.ms",
        INT,
        "60000",
        "Largest consumer.session.timeout.ms of a group.",
    ),
    (
        "group.consumer.min.assignment.interval.ms",
        INT,
        "0",
        "Smallest consumer.assignment.interval.ms of a group.",
    ),
    (
        "group.consumer.min.heartbeat.interval.ms",
        INT,
        "5000",
        "Smallest consumer.heartbeat.interval.ms of a group.",
    ),
    (
        "group.consumer.min.session.timeout.ms",
        INT,
        "45000",
        "Smallest consumer.session.timeout.ms of a group.",
    ),
    ("group.coordinator.append.linger.ms", INT, "-1", _OFFSETS),
    (
        "group.coordinator.rebalance.protocols",
        LIST,
        "classic,consumer,streams",
        "Group protocols of the agent; it does not serve streams groups.",
    ),
    ("group.coordinator.threads", INT, "4", _LOOP),
    ("inter.broker.listener.name", STRING, None, "Agents meet in the metadata store."),
    (
        "inter.broker.protocol.version",
        STRING,
        "4.3-IV0",
        "Kafka release whose protocol the agents speak.",
    ),
    (
        "leader.imbalance.check.interval.seconds",
        LONG,
        "300",
        "Agents rebalance partitions when an agent joins or leaves.",
    ),
    ("listener.security.protocol.map", STRING, None, "Protocol by listener."),
    ("listeners", LIST, None, "Addresses that this agent listens on."),
    ("log.cleaner.io.buffer.load.factor", DOUBLE, "0.9", _KEY_MAP),
    ("log.cleaner.io.buffer.size", INT, "524288", "Row groups are read whole."),
    ("log.cleaner.io.max.bytes.per.second", DOUBLE, "1.7976931348623157E308", _NO_LIMIT),
    ("log.cleaner.threads", INT, "1", "An agent compacts one partition at a time."),
    ("log.dir", LIST, None, "Location of the objects."),
    (
        "log.dir.failure.timeout.ms",
        LONG,
        "30000",
        "An agent that cannot commit for this long releases its partitions.",
    ),
    ("log.dirs", LIST, None, "Location of the objects."),
    ("log.flush.interval.ms", LONG, None, _LOG_FILES),
    ("log.flush.offset.checkpoint.interval.ms", INT, "60000", _LOG_FILES),
    ("log.flush.scheduler.interval.ms", LONG, "9223372036854775807", _LOG_FILES),
    ("log.flush.start.offset.checkpoint.interval.ms", INT, "60000", _LOG_FILES),
    ("log.message.format.version", STRING, "3.0-IV1", "Record batches are version 2."),
    (
        "log.roll.jitter.hours",
        INT,
        "0",
        "The default of segment.jitter.ms, in hours; it changes nothing here.",
    ),
    (
        "log.roll.jitter.ms",
        LONG,
        None,
        "The default of segment.jitter.ms; it changes nothing here.",
    ),
    (
        "max.request.partition.size.limit",
        INT,
        "2000",
        "Most partitions in one answer to DescribeTopicPartitions.",
    ),
    ("metadata.log.dir", STRING, None, "Directory of this agent's files."),
    ("metric.reporters", LIST, "", _METRICS),
    ("metrics.num.samples", INT, "2", _METRICS),
    ("metrics.recording.level", STRING, "INFO", _METRICS),
    ("metrics.sample.window.ms", LONG, "30000", _METRICS),
    ("node.id", INT, None, "This agent's node id."),
    ("num.io.threads", INT, "8", _LOOP),
    ("num.network.threads", INT, "3", _LOOP),
    ("num.recovery.threads.per.data.dir", INT, "2", "Recovery reads footers, 16 at once."),
    ("num.replica.alter.log.dirs.threads", INT, None, "There is one directory, the bucket."),
    ("num.replica.fetchers", INT, "1", _FOLLOWERS),
    ("offsets.commit.timeout.ms", INT, "5000", _OFFSETS),
    ("offsets.load.buffer.size", INT, "5242880", _OFFSETS),
    ("offsets.topic.compression.codec", INT, "0", _OFFSETS),
    ("offsets.topic.num.partitions", INT, "50", _OFFSETS),
    ("offsets.topic.replication.factor", SHORT, "3", _OFFSETS),
    ("offsets.topic.segment.bytes", INT, "104857600", _OFFSETS),
    (
        "principal.builder.class",
        CLASS,
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        _SASL,
    ),
    ("process.roles", LIST, None, "Every agent is a broker; there is no controller."),
    ("quota.window.num", INT, "11", _QUOTAS),
    ("quota.window.size.seconds", INT, "1", _QUOTAS),
    ("remote.log.storage.system.enable", BOOLEAN, "false", "Every log is in the bucket."),
    ("replica.fetch.backoff.ms", INT, "1000", _FOLLOWERS),
    ("replica.fetch.max.bytes", INT, "1048576", _FOLLOWERS),
    ("replica.fetch.min.bytes", INT, "1", _FOLLOWERS),
    ("replica.fetch.response.max.bytes", INT, "10485760", _FOLLOWERS),
    ("replica.fetch.wait.max.ms", INT, "500", _FOLLOWERS),
    ("replica.high.watermark.checkpoint.interval.ms", LONG, "5000", _FOLLOWERS),
    ("replica.lag.time.max.ms", LONG, "30000", _FOLLOWERS),
    (
        "replica.selector.class",
        STRING,
        None,
        "Reads go to the leader, whatever rack a client is in.",
    ),
    ("replica.socket.receive.buffer.bytes", INT, "65536", _FOLLOWERS),
    ("replica.socket.timeout.ms", INT, "30000", _FOLLOWERS),
    ("request.timeout.ms", INT, "30000", "Timeout of requests between agents."),
    ("sasl.client.callback.handler.class", CLASS, None, _SASL),
    ("sasl.enabled.mechanisms", LIST, "", _SASL),
    ("sasl.jaas.config", PASSWORD, None, _SASL),
    ("sasl.login.callback.handler.class", CLASS, None, _SASL),
    ("sasl.login.class", CLASS, None, _SASL),
    ("sasl.mechanism.inter.broker.protocol", STRING, "GSSAPI", _SASL),
    ("sasl.server.callback.handler.class", CLASS, None, _SASL),
    ("sasl.server.max.receive.size", INT, "524288", _SASL),
    ("security.inter.broker.protocol", STRING, "PLAINTEXT", "Agents meet in the store."),
    ("security.providers", STRING, None, _SASL),
    ("socket.receive.buffer.bytes", INT, "102400", "The operating system sets the buffer sizes."),
    ("socket.send.buffer.bytes", INT, "102400", "The operating system sets the buffer sizes."),
    ("ssl.cipher.suites", LIST, "", _TLS),
    ("ssl.client.auth", STRING, "none", _TLS),
    ("ssl.enabled.protocols", LIST, "TLSv1.2,TLSv1.3", _TLS),
    ("ssl.endpoint.identification.algorithm", STRING, "https", _TLS),
    ("ssl.key.password", PASSWORD, None, _TLS),
    ("ssl.keystore.certificate.chain", PASSWORD, None, _TLS),
    ("ssl.keystore.key", PASSWORD, None, _TLS),
    ("ssl.keystore.location", STRING, None, _TLS),
    ("ssl.keystore.password", PASSWORD, None, _TLS),
    ("ssl.keystore.type", STRING, "JKS", _TLS),
    ("ssl.principal.mapping.rules", STRING, "DEFAULT", _TLS),
    ("ssl.protocol", STRING, "TLSv1.3", _TLS),
    ("ssl.provider", STRING, None, _TLS),
    ("ssl.truststore.certificates", PASSWORD, None, _TLS),
    ("ssl.truststore.location", STRING, None, _TLS),
    ("ssl.truststore.password", PASSWORD, None, _TLS),
    ("ssl.truststore.type", STRING, "JKS", _TLS),
    ("telemetry.max.bytes", INT, "1048576", "Agents collect no client metrics."),
    ("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, "10000", _TRANSACTIONS),
    ("transaction.max.timeout.ms", INT, "900000", _TRANSACTIONS),
    ("transaction.partition.verification.enable", BOOLEAN, "true", _TRANSACTIONS),
    ("transaction.remove.expired.transaction.cleanup.interval.ms", INT, "3600000", _TRANSACTIONS),
    ("transaction.state.log.load.buffer.size", INT, "5242880", _TRANSACTIONS),
    ("transaction.state.log.min.isr", INT, "2", _TRANSACTIONS),
    ("transaction.state.log.num.partitions", INT, "50", _TRANSACTIONS),
    ("transaction.state.log.replication.factor", SHORT, "3", _TRANSACTIONS),
    ("transaction.state.log.segment.bytes", INT, "104857600", _TRANSACTIONS),
    ("transaction.two.phase.commit.enable", BOOLEAN, "false", _TRANSACTIONS),
    ("transactional.id.expiration.ms", INT, "604800000", _TRANSACTIONS),
)


def _definitions() -> dict[str, ConfigDef]:
    found = {
        name: ConfigDef(name=name, type=type_, default=default, documentation=documentation)
        for name, type_, default, documentation in _OF_AGENT
    }
    topics = map(broker_default, filter(lambda c: c.broker_name, TOPIC_CONFIGS.values()))
    found |= {config.name: config for config in topics}
    found |= STARTUP_CONFIGS
    return dict(sorted(found.items()))


BROKER_CONFIGS: Final[Mapping[str, ConfigDef]] = MappingProxyType(_definitions())
"""Broker configs by name, sorted."""


def resolve_broker(
    settings: Mapping[str, str | None],
    given: Container[str] = (),
    dynamic: Sequence[tuple[ConfigSource, Mapping[str, str]]] = (),
) -> list[ConfigValue]:
    """Every config of an agent with its value and source.

    Args:
        settings: the agent's values as of its start, by Kafka's names.
        given: names of configs that were set at its start, even to their defaults.
        dynamic: as in `Inherited`.
    """
    defaults = {name: c.default for name, c in BROKER_CONFIGS.items() if c.default is not None}
    at_start = {
        name: value
        for name, value in settings.items()
        if value is not None and (value != defaults.get(name) or name in given)
    }
    inherited = Inherited(at_start, dynamic)
    found = []
    for name, definition in BROKER_CONFIGS.items():
        synonyms = inherited.synonyms(name, defaults)
        _, value, source = synonyms[0] if synonyms else (name, None, ConfigSource.DEFAULT)
        found.append(ConfigValue(definition, value, source, tuple(synonyms)))
    return found
