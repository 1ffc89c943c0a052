"""DescribeConfigs: every config of a topic, a group or this agent, with its source.

Source: kafka.server.ConfigHelper#describeConfigs; the errors are Kafka's.
Shell.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from driftlog_agents.configs.broker import BROKER_CONFIGS, resolve_broker
from driftlog_agents.configs.definitions import (
    ConfigDef,
    ConfigSource,
    ConfigType,
    ConfigValue,
    Inherited,
    InvalidConfigError,
    ResourceType,
    resolve,
)
from driftlog_agents.configs.dynamic_configs import DYNAMIC, check_group
from driftlog_agents.configs.group import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS
from driftlog_agents.configs.topic import TOPIC_CONFIGS
from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.handlers.common.api_versions_table import ADVERTISED
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.config_changes import broker_id
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from driftlog_agents.topics.validation import check_topic_name
from driftlog_metadata.schema.model import COMPACTION_LEVEL, ConfigsOwner

ROOT_LOGGER: Final = "root"

_CONFIG_BYTES: Final = 500
"""Memory of one config while an answer is made: its object, and those of its synonyms."""

_Describe = Callable[[ConfigValue], DescribeConfigsResourceResult]


async def handle(
    broker: Broker, request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse:
    """Answer *request*."""

    def describe(found: ConfigValue, *, read_only: bool) -> DescribeConfigsResourceResult:
        secret = found.definition.type is ConfigType.PASSWORD
        documented = request.include_documentation and context.api_version >= 3
        return DescribeConfigsResourceResult(
            name=found.definition.name,
            value=None if secret else found.value,
            read_only=read_only,
            config_source=found.source,
            is_sensitive=secret,
            synonyms=[
                DescribeConfigsSynonym(name=name, value=None if secret else value, source=source)
                for name, value, source in (found.synonyms if request.include_synonyms else ())
            ],
            config_type=found.definition.type,
            documentation=_documentation(broker, found) if documented else None,
        )

    results: list[DescribeConfigsResult] = []
    known: dict[tuple[int, str, tuple[str, ...]], DescribeConfigsResult] = {}
    async for resource in sliced(request.resources):
        keys = tuple(resource.configuration_keys or ())
        asked = resource.resource_type, resource.resource_name, keys
        if asked not in known:  # A repeated resource is answered again, as in Kafka.
            known[asked] = _result(
                broker,
                resource,
                lambda found: describe(found, read_only=False),
                lambda found: describe(found, read_only=found.definition.name not in DYNAMIC),
            )
            await context.room(_CONFIG_BYTES * len(known[asked].configs))
        results.append(known[asked])
        context.answer.add(sum(map(_bytes, results[-1].configs)))
    return DescribeConfigsResponse(results=results)


def _documentation(broker: Broker, found: ConfigValue) -> str:
    """The definition's, and what holds only in this cluster now."""
    text = found.definition.documentation
    if found.definition.name == "cleanup.policy" and "compact" in (found.value or ""):
        level = broker.format_level
        if level < COMPACTION_LEVEL:
            text += (
                f" compact does nothing until the format level of the cluster, which is {level}, "
                f"is {COMPACTION_LEVEL}: driftlog cluster upgrade --finalize raises it."
            )
    return text


def _bytes(config: DescribeConfigsResourceResult) -> int:
    texts = [config.name, config.value or "", config.documentation or ""]
    for synonym in config.synonyms:
        texts += synonym.name, synonym.value or ""
    return 16 + sum(map(len, texts))


def _result(
    broker: Broker, resource: DescribeConfigsResource, of_topic: _Describe, of_agent: _Describe
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    # KAFKA-9675: an empty list asks for nothing by the schema, and every broker answers with all.
    wanted = set(resource.configuration_keys or ())
    try:
        match resource.resource_type:
            case ResourceType.TOPIC:
                found = _topic(broker, resource.resource_name)
                result.configs = [of_topic(c) for c in found if _asked(c.definition.name, wanted)]
            case ResourceType.BROKER:
                found = _broker(broker, resource.resource_name)
                result.configs = [of_agent(c) for c in found if _asked(c.definition.name, wanted)]
            case ResourceType.BROKER_LOGGER:
                _check_logger_id(broker, resource.resource_name)
                if _asked(ROOT_LOGGER, wanted):
                    result.configs = [_root_logger(broker)]
            case ResourceType.CLIENT_METRICS:
                _check_named(resource, "Client metrics subscription")
                found = resolve(CLIENT_METRICS_CONFIGS, {}, Inherited())
                result.configs = [of_topic(c) for c in found if _asked(c.definition.name, wanted)]
            case ResourceType.GROUP:
                _check_named(resource, "Group")
                found = _group(broker, resource.resource_name)
                result.configs = [of_topic(c) for c in found if _asked(c.definition.name, wanted)]
            case _:
                raise RefusedError(
                    ErrorCode.INVALID_REQUEST,
                    f"Configs of resource type {resource.resource_type} are not kept here",
                )
    except RefusedError as error:
        result.error_code, result.error_message = error.code, error.message or ""
    return result


def _asked(name: str, wanted: set[str]) -> bool:
    return not wanted or name in wanted


def _topic(broker: Broker, name: str) -> list[ConfigValue]:
    check_topic_name(name)
    topic = broker.topics.by_name.get(name)
    if topic is None:
        if not broker.topics.known:
            raise RefusedError(ErrorCode.LEADER_NOT_AVAILABLE, "topics are not known yet")
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return _formatted(resolve(TOPIC_CONFIGS, topic.configs, broker.inherited))


def _formatted(found: list[ConfigValue]) -> list[ConfigValue]:
    """*found* as Kafka shows it: values are formatted, and what the topic or group has of its own;
    synonyms of brokers are as they were typed."""
    own = (ConfigSource.DYNAMIC_TOPIC, ConfigSource.DYNAMIC_GROUP)
    return [
        one
        if one.source is ConfigSource.DEFAULT
        else replace(
            one,
            value=one.definition.formatted(one.value),
            synonyms=tuple(
                (name, one.definition.formatted(text) if source in own else text, source)
                for name, text, source in one.synonyms
            ),
        )
        for one in found
    ]


def _check_named(resource: DescribeConfigsResource, what: str) -> None:
    if not resource.resource_name:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"{what} name must not be empty")


def _group(broker: Broker, name: str) -> list[ConfigValue]:
    configs = broker.settings.groups.configs
    of_agent = {n: value for n, value in configs.items() if value != BROKER_CONFIGS[n].default}
    own = broker.view.configs.get(ConfigsOwner(group_id=name), {})
    try:
        check_group(own, broker.settings.groups)
    except InvalidConfigError:
        own = {}  # `group_settings` ignores them, too
    return _formatted(resolve(GROUP_CONFIGS, own, Inherited(of_agent), ConfigSource.DYNAMIC_GROUP))


def _broker(broker: Broker, name: str) -> list[ConfigValue]:
    if not name:
        stored = broker.view.configs.get(ConfigsOwner(), {})
        return [_of_all_brokers(n, text) for n, text in sorted(stored.items())]
    if broker_id(name, "Broker") != broker.node_id:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {broker.node_id} or empty string, but received {name}",
        )
    return _formatted(
        resolve_broker(broker_settings(broker), broker.at_start.given, broker.dynamic.layers)
    )


def _of_all_brokers(name: str, value: str) -> ConfigValue:
    """A config that is set on all brokers, though it may be invalid: it is seen here and deleted.
    What brokers have of their own is not shown with it."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER
    definition = BROKER_CONFIGS.get(name) or ConfigDef(
        name=name,
        type=ConfigType.UNKNOWN,
        default=None,
        documentation="No config of this release: agents ignore it.",
    )
    return ConfigValue(definition, value, source, ((name, value, source),))


def _check_logger_id(broker: Broker, name: str) -> None:
    if not name:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    if broker_id(name, "Broker") != broker.node_id:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {broker.node_id} but received {name}",
        )


def _root_logger(broker: Broker) -> DescribeConfigsResourceResult:
    level = broker.settings.log_level.upper()
    return DescribeConfigsResourceResult(
        name=ROOT_LOGGER,
        value="WARN" if level == "WARNING" else level,
        read_only=True,
        config_source=ConfigSource.DYNAMIC_BROKER_LOGGER,
    )


def broker_settings(broker: Broker) -> Mapping[str, str | None]:
    """The settings of this agent's start, by the names of Kafka's broker configs."""
    settings, engine = broker.at_start, broker.engine
    session = None if engine is None else engine.settings.session
    session_ms = None if session is None else session.ttl_ms
    protocols = ["classic"]
    if ApiKey.CONSUMER_GROUP_HEARTBEAT in ADVERTISED:
        protocols.append("consumer")
    listeners = ",".join(f"{at.name}://{at.host}:{at.port}" for at in broker.agent.listeners)
    return {
        "advertised.listeners": listeners,
        "broker.id": str(broker.node_id),
        "broker.rack": broker.agent.rack,
        "broker.heartbeat.interval.ms": _text(session_ms / 3 if session_ms else None),
        "broker.session.timeout.ms": _text(session_ms),
        "group.coordinator.rebalance.protocols": ",".join(protocols),
        "listener.security.protocol.map": ",".join(
            f"{at.name}:PLAINTEXT" for at in broker.agent.listeners
        ),
        "listeners": listeners,
        "log.dir": settings.location or None,
        "driftlog.cluster.format.level": str(broker.format_level),
        "driftlog.format.level": _text(session.knows.format_level if session else None),
        "driftlog.release": session.knows.release if session else None,
        "driftlog.http.address": broker.agent.http_address or None,
        "log.dirs": settings.location or None,
        "node.id": str(broker.node_id),
        "process.roles": "broker",
        **settings.configs,
    }


def _text(number: float | None) -> str | None:
    return None if number is None else str(int(number))
