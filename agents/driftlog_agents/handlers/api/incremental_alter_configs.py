"""IncrementalAlterConfigs: sets, deletes, appends to and subtracts from configs (KIP-339).

Shell.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from driftlog_agents.configs.broker import BROKER_CONFIGS
from driftlog_agents.configs.definitions import (
    ConfigChange,
    ConfigDef,
    ConfigOperation,
    ConfigType,
    InvalidConfigError,
    ResourceType,
    changed,
)
from driftlog_agents.configs.group import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS
from driftlog_agents.configs.topic import TOPIC_CONFIGS
from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.config_changes import ConfigChangeRequest, apply
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

_DEFINITIONS: Final[Mapping[int, Mapping[str, ConfigDef]]] = {
    ResourceType.TOPIC: TOPIC_CONFIGS,
    ResourceType.BROKER: BROKER_CONFIGS,
    ResourceType.CLIENT_METRICS: CLIENT_METRICS_CONFIGS,
    ResourceType.GROUP: GROUP_CONFIGS,
}


async def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    """Answer *request*."""
    resources = [
        ConfigChangeRequest(
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            names=[config.name for config in resource.configs],
            no_value=[
                config.name
                for config in resource.configs
                if config.value is None and config.config_operation != ConfigOperation.DELETE
            ],
            change=_change(broker, resource),
        )
        async for resource in sliced(request.resources)
    ]
    answers = await apply(broker, resources, validate_only=request.validate_only, legacy=False)
    return IncrementalAlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
            )
            async for asked, (code, message) in sliced(zip(resources, answers, strict=True))
        ]
    )


def _change(
    broker: Broker, resource: AlterConfigsResource
) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
    def change(configs: Mapping[str, str]) -> Mapping[str, str]:
        changes = []
        for config in resource.configs:
            try:
                operation = ConfigOperation(config.config_operation)
            except ValueError as error:
                raise RefusedError(
                    ErrorCode.INVALID_REQUEST,
                    f"Unknown operation {config.config_operation} for config {config.name}",
                ) from error
            changes.append(ConfigChange(config.name, operation, config.value))
        definitions = _DEFINITIONS.get(resource.resource_type, {})
        if resource.resource_type == ResourceType.BROKER:
            _check_lists(changes)
        return changed(definitions, configs, changes, broker.topics.agent_configs)

    return change


def _check_lists(changes: Sequence[ConfigChange]) -> None:
    """Check that list operations are on lists (ConfigAdminManager#prepareIncrementalConfigs).

    Raises:
        InvalidConfigError: one is not.
    """
    for change in changes:
        if change.operation not in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            continue
        definition = BROKER_CONFIGS.get(change.name)
        if definition is None:
            raise InvalidConfigError(f"Unknown config name: {change.name}")
        if definition.type is not ConfigType.LIST:
            raise InvalidConfigError(
                f"Config value {change.operation.name.lower()} is not allowed for config key: "
                f"{change.name}"
            )
