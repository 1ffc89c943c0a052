"""What AlterConfigs and IncrementalAlterConfigs share: each resource succeeds or fails alone.

Source: kafka.server.ConfigAdminManager#preprocess, org.apache.kafka.server.ControllerApis.
Shell.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from driftlog_agents.configs.agent_settings import STARTUP_CONFIGS
from driftlog_agents.configs.definitions import ConfigDef, InvalidConfigError, ResourceType
from driftlog_agents.configs.dynamic_configs import (
    DynamicConfigs,
    check_broker,
    check_group,
    check_memory,
    combined,
    loaded,
    refused_names,
)
from driftlog_agents.configs.group import CLIENT_METRICS_CONFIGS
from driftlog_agents.foundation.loop_slices import each
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.stored_configs import change_configs
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.topics.validation import CHANGED_AT_ONCE, check_topic_name
from driftlog_metadata.schema.model import ConfigsOwner, Topic


@dataclass(frozen=True, slots=True)
class ConfigChangeRequest:
    """A resource and the change of its configs; *no_value*: names whose value is missing.

    *change* maps the present configs of the resource to the new ones.
    """

    resource_type: int
    resource_name: str
    names: Sequence[str]
    no_value: Sequence[str]
    change: Callable[[Mapping[str, str]], Mapping[str, str]]


async def apply(
    broker: Broker, resources: Sequence[ConfigChangeRequest], *, validate_only: bool, legacy: bool
) -> list[tuple[ErrorCode, str | None]]:
    """Change each of *resources*; returns an error and a message for each, in their order.

    Topics are changed at once.  Configs of brokers and groups are checked together with those that
    the resource before them has got: they are changed one after the other.
    """
    counts = Counter((r.resource_type, r.resource_name) for r in resources)

    async def answer(asked: ConfigChangeRequest) -> tuple[ErrorCode, str | None]:
        try:
            if counts[asked.resource_type, asked.resource_name] > 1:
                raise _invalid("Each resource must appear at most once.")
            await _apply(broker, asked, validate_only=validate_only, legacy=legacy)
        except RefusedError as error:
            return error.code, error.message
        return ErrorCode.NONE, None

    only_topics = all(r.resource_type == ResourceType.TOPIC for r in resources)
    at_once = CHANGED_AT_ONCE if only_topics and not validate_only else 1
    return await each(resources, answer, at_once)


async def _apply(
    broker: Broker, asked: ConfigChangeRequest, *, validate_only: bool, legacy: bool
) -> None:
    if len(set(asked.names)) < len(asked.names):
        raise _invalid("Error due to duplicate config keys")
    if asked.no_value:
        raise _invalid(f"Null value not supported for : {', '.join(asked.no_value)}")
    match asked.resource_type:
        case ResourceType.TOPIC:
            topic = _topic(broker, asked)
            await broker.topics.alter_configs(
                topic, lambda configs: _result(asked, configs), validate_only=validate_only
            )
        case ResourceType.BROKER:
            await _change_broker(broker, asked, validate_only=validate_only)
        case ResourceType.BROKER_LOGGER if not legacy:
            _refuse_logger(broker, asked)
        case ResourceType.CLIENT_METRICS:
            _refuse_client_metrics(asked)
        case ResourceType.GROUP:
            await _change_group(broker, asked, validate_only=validate_only)
        case _:
            raise _invalid(f"Unknown resource type {asked.resource_type}")


def _topic(broker: Broker, asked: ConfigChangeRequest) -> Topic:
    name = asked.resource_name
    if not name:
        raise _invalid("Default topic resources are not allowed.")
    check_topic_name(name)
    topic = broker.topics.by_name.get(name)
    if topic is None:
        if not broker.topics.known:
            raise RefusedError(ErrorCode.NOT_CONTROLLER)
        broker.topics.check_configs(_changed(asked), {})  # Kafka reports this error first.
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
        )
    return topic


async def _change_broker(
    broker: Broker, asked: ConfigChangeRequest, *, validate_only: bool
) -> None:
    """Source: DynamicBrokerConfig#validate.  Its errors are INVALID_REQUEST (KAFKA-13609)."""
    name = asked.resource_name
    if name and broker_id(name, "Node") != broker.node_id:
        raise _invalid(f"Unexpected broker id, expected {broker.node_id}, but received {name}")
    wanted = _changed(asked)
    _refuse_set({n: wanted[n] for n in refused_names(wanted)})
    owner = ConfigsOwner(node_id=int(name) if name else None)

    def change(configs: Mapping[str, str]) -> Mapping[str, str]:
        after = dict(_result(asked, configs))
        of_all = broker.view.configs.get(ConfigsOwner(), {})
        of_broker = broker.view.configs.get(ConfigsOwner(node_id=broker.node_id), {})
        # What is ignored of the other layer is repaired by another change.
        held = loaded(broker.at_start, DynamicConfigs(of_broker, of_all)).dynamic
        changed = replace(held, of_broker=after) if name else replace(held, of_all=after)
        try:
            given = {n: text for n, text in after.items() if n in wanted}
            check_broker(given)
            check_memory(broker.at_start, given)
            combined(broker.at_start, changed)
        except InvalidConfigError as error:
            raise _invalid(str(error)) from error
        return after

    await change_configs(broker, owner, change, validate_only=validate_only)


async def _change_group(broker: Broker, asked: ConfigChangeRequest, *, validate_only: bool) -> None:
    """Source: GroupConfigManager#validate."""
    if not asked.resource_name:
        raise _invalid("Default group resources are not allowed.")

    def change(configs: Mapping[str, str]) -> Mapping[str, str]:
        after = _result(asked, configs)
        try:
            check_group(after, broker.settings.groups)
        except InvalidConfigError as error:
            raise RefusedError(ErrorCode.INVALID_CONFIG, str(error)) from error
        return after

    owner = ConfigsOwner(group_id=asked.resource_name)
    await change_configs(broker, owner, change, validate_only=validate_only)


def _refuse_client_metrics(asked: ConfigChangeRequest) -> None:
    if not asked.resource_name:
        raise _invalid("Subscription name can't be empty")
    for name, value in _changed(asked).items():
        if name not in CLIENT_METRICS_CONFIGS:
            raise _invalid(f"Unknown client metrics configuration: {name}")
        _check(CLIENT_METRICS_CONFIGS[name], value)
    _refuse_set(_changed(asked))


def _refuse_set(configs: Mapping[str, str]) -> None:
    """Refuse *configs*, if there are any: they cannot be set at run time."""
    if configs:
        names = ", ".join(configs)
        raise _invalid(f"Cannot update these configs dynamically: [{names}]{_repair(configs)}")


def _repair(configs: Mapping[str, str]) -> str:
    """How the configs that an agent takes at its start can be set all the same."""
    options = [f"--config {n}={value}" for n, value in configs.items() if n in STARTUP_CONFIGS]
    return f". Agents take them at their start: {' '.join(options)}" if options else ""


def _changed(asked: ConfigChangeRequest) -> Mapping[str, str]:
    """The configs that the change sets, as if none were set before."""
    return _result(asked, {})


def _result(asked: ConfigChangeRequest, configs: Mapping[str, str]) -> Mapping[str, str]:
    try:
        return asked.change(configs)
    except InvalidConfigError as error:
        raise RefusedError(ErrorCode.INVALID_CONFIG, str(error)) from error


def _check(definition: ConfigDef, value: str) -> None:
    try:
        definition.checked(value)
    except InvalidConfigError as error:
        raise RefusedError(ErrorCode.INVALID_CONFIG, str(error)) from error


def _refuse_logger(broker: Broker, asked: ConfigChangeRequest) -> None:
    if broker_id(asked.resource_name, "Node") != broker.node_id:
        raise _invalid(
            f"Unexpected node id. Expected {broker.node_id}, but received {asked.resource_name}"
        )
    if asked.names:
        raise _invalid("Log levels are set when the agent is started")


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REQUEST, message)


def broker_id(name: str, what: str) -> int:
    """The node id in a resource's name.

    Raises:
        RefusedError: INVALID_REQUEST: the name is no 32-bit integer.
    """
    digits = name[1:] if name[:1] in ("-", "+") else name
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= 10
    if not is_number or not -(1 << 31) <= int(name) < 1 << 31:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"{what} id must be an integer, but it is: {name}"
        )
    return int(name)
