"""The configs of a broker that tools look for, and what this agent has in their place.

None can be changed while the agent runs: what an agent does is said when it is started.

Pure.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from driftlog_agents.configs import (
    ConfigDef,
    ConfigSource,
    ConfigType,
    ConfigValue,
)
from driftlog_agents.topic_configs import TOPIC_CONFIGS

BOOLEAN, DOUBLE, INT = ConfigType.BOOLEAN, ConfigType.DOUBLE, ConfigType.INT
LIST, LONG, PASSWORD = ConfigType.LIST, ConfigType.LONG, ConfigType.PASSWORD
SHORT, STRING = ConfigType.SHORT, ConfigType.STRING

_OF_AGENT: Final[tuple[tuple[str, ConfigType, str | None, str], ...]] = (
    ("advertised.listeners", LIST, None, "Where clients reach this agent."),
    ("authorizer.class.name", STRING, "", "Who decides what clients may do; nobody does yet."),
    ("auto.create.topics.enable", BOOLEAN, "true", "Whether asking for a topic makes it."),
    ("auto.leader.rebalance.enable", BOOLEAN, "true", "Partitions move to where they belong."),
    ("background.threads", INT, "10", "The agent has one event loop and a few worker threads."),
    ("broker.id", INT, "-1", "This agent's node id."),
    ("broker.rack", STRING, None, "Where this agent stands."),
    ("connections.max.idle.ms", LONG, "600000", "Connections this idle are closed."),
    ("controlled.shutdown.enable", BOOLEAN, "true", "An agent flushes and releases as it leaves."),
    ("default.replication.factor", INT, "1", "What -1 replicas mean; the bucket replicates."),
    ("delete.topic.enable", BOOLEAN, "true", "Topics may be deleted."),
    ("driftlog.http.address", STRING, None, "Where this agent's HTTP port is: /metrics, seal."),
    ("fetch.max.bytes", INT, "57671680", "Most bytes of one answer to a fetch."),
    ("group.initial.rebalance.delay.ms", INT, "3000", "Groups are not served yet."),
    ("group.max.session.timeout.ms", INT, "1800000", "Groups are not served yet."),
    ("group.max.size", INT, "2147483647", "Groups are not served yet."),
    ("group.min.session.timeout.ms", INT, "6000", "Groups are not served yet."),
    ("inter.broker.listener.name", STRING, None, "Agents meet in the metadata store."),
    ("inter.broker.protocol.version", STRING, "4.3-IV0", "The Kafka that agents speak like."),
    ("listener.security.protocol.map", STRING, "PLAINTEXT:PLAINTEXT", "Protocol by listener."),
    ("listeners", LIST, None, "Where this agent listens."),
    ("log.cleaner.enable", BOOLEAN, "true", "Whether logs are compacted."),
    ("log.cleaner.threads", INT, "1", "Compaction is not there yet."),
    ("log.dir", LIST, None, "Where the objects are."),
    ("log.dirs", LIST, None, "Where the objects are."),
    ("log.flush.interval.ms", LONG, None, "What is acknowledged is durable."),
    ("log.message.format.version", STRING, "3.0-IV1", "Record batches are version 2."),
    ("log.retention.check.interval.ms", LONG, "300000", "How often retention looks."),
    ("log.retention.hours", INT, "168", "The default of retention.ms, in hours."),
    ("log.retention.minutes", INT, None, "The default of retention.ms, in minutes."),
    ("log.retention.ms", LONG, None, "The default of retention.ms."),
    ("log.roll.hours", INT, "1", "The default of segment.ms, in hours."),
    ("log.roll.ms", LONG, None, "The default of segment.ms."),
    ("max.connections", INT, "2147483647", "More connections than this are refused."),
    ("max.connections.per.ip", INT, "2147483647", "Not limited by address."),
    ("max.incremental.fetch.session.cache.slots", INT, "1000", "Fetch sessions that are kept."),
    ("max.request.partition.size.limit", INT, "2000", "Partitions of a page of descriptions."),
    ("metric.reporters", LIST, "", "Metrics are on the agent's HTTP port."),
    ("node.id", INT, "-1", "This agent's node id."),
    ("num.io.threads", INT, "8", "The agent has one event loop and a few worker threads."),
    ("num.network.threads", INT, "3", "The agent has one event loop and a few worker threads."),
    ("num.partitions", INT, "1", "What -1 partitions mean, and of topics that make themselves."),
    ("num.recovery.threads.per.data.dir", INT, "2", "Recovery reads footers, 16 at once."),
    ("num.replica.fetchers", INT, "1", "There are no followers."),
    ("offset.metadata.max.bytes", INT, "4096", "Groups are not served yet."),
    ("offsets.retention.minutes", INT, "10080", "Groups are not served yet."),
    ("offsets.topic.num.partitions", INT, "50", "Offsets are kept in the metadata store."),
    ("offsets.topic.replication.factor", SHORT, "3", "Offsets are kept in the metadata store."),
    ("process.roles", LIST, "broker", "Every agent is a broker; there is no controller."),
    ("producer.id.expiration.ms", INT, "86400000", "How long an idle producer is remembered."),
    ("queued.max.requests", INT, "500", "Connections are read as fast as they are served."),
    ("remote.log.storage.system.enable", BOOLEAN, "false", "Every log is in the bucket."),
    ("replica.fetch.max.bytes", INT, "1048576", "There are no followers."),
    ("replica.lag.time.max.ms", LONG, "30000", "There are no followers."),
    ("request.timeout.ms", INT, "30000", "How long agents wait for each other."),
    ("sasl.enabled.mechanisms", LIST, "", "Clients are not authenticated yet."),
    ("sasl.jaas.config", PASSWORD, None, "Clients are not authenticated yet."),
    ("security.inter.broker.protocol", STRING, "PLAINTEXT", "Agents meet in the store."),
    ("socket.receive.buffer.bytes", INT, "102400", "The system's own buffers are used."),
    ("socket.request.max.bytes", INT, "104857600", "A larger request closes its connection."),
    ("socket.send.buffer.bytes", INT, "102400", "The system's own buffers are used."),
    ("ssl.client.auth", STRING, "none", "TLS is not there yet."),
    ("ssl.key.password", PASSWORD, None, "TLS is not there yet."),
    ("ssl.keystore.location", STRING, None, "TLS is not there yet."),
    ("ssl.keystore.password", PASSWORD, None, "TLS is not there yet."),
    ("ssl.truststore.location", STRING, None, "TLS is not there yet."),
    ("ssl.truststore.password", PASSWORD, None, "TLS is not there yet."),
    ("transaction.max.timeout.ms", INT, "900000", "There are no transactions yet."),
    ("transaction.state.log.num.partitions", INT, "50", "There are no transactions yet."),
    ("transaction.state.log.replication.factor", SHORT, "3", "There are no transactions yet."),
    ("transactional.id.expiration.ms", INT, "604800000", "There are no transactions yet."),
)


def _definitions() -> dict[str, ConfigDef]:
    found = {
        name: ConfigDef(name=name, type=type_, default=default, documentation=documentation)
        for name, type_, default, documentation in _OF_AGENT
    }
    for config in TOPIC_CONFIGS.values():
        if config.broker_name:
            found[config.broker_name] = ConfigDef(
                name=config.broker_name,
                type=config.type,
                default=config.default,
                documentation=f"The default of the topic config {config.name}. "
                f"{config.documentation}",
            )
    return dict(sorted(found.items()))


BROKER_CONFIGS: Final[Mapping[str, ConfigDef]] = MappingProxyType(_definitions())
"""By name, in the order of names."""


def resolve_broker(settings: Mapping[str, str | None]) -> list[ConfigValue]:
    """Every config of an agent; *settings* are those that it has, by Kafka's names."""
    found = []
    for name, definition in BROKER_CONFIGS.items():
        value, source = settings.get(name, definition.default), ConfigSource.DEFAULT
        synonyms: list[tuple[str, str | None, ConfigSource]] = []
        if value != definition.default:
            source = ConfigSource.STATIC_BROKER
            synonyms.append((name, value, source))
        if definition.default is not None:
            synonyms.append((name, definition.default, ConfigSource.DEFAULT))
        found.append(ConfigValue(definition, value, source, tuple(synonyms)))
    return found
