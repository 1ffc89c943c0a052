"""DescribeConfigs and IncrementalAlterConfigs of one resource, asked of an agent's handlers."""

from collections.abc import Sequence

from driftlog_agents.handlers.api import describe_configs, incremental_alter_configs
from driftlog_agents.protocol.messages import incremental_alter_configs as iac
from driftlog_agents.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
)
from tests.support.engine import RunningAgent

TOPIC, BROKER, LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
Operation = tuple[str, int, str | None]


async def ask(
    agent: RunningAgent,
    resource_type: int,
    name: str,
    keys: Sequence[str] | None = None,
    *,
    version: int = 4,
) -> DescribeConfigsResult:
    """DescribeConfigs of one resource, with everything."""
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=resource_type,
                resource_name=name,
                configuration_keys=None if keys is None else list(keys),
            )
        ],
        include_synonyms=True,
        include_documentation=True,
    )
    response = await describe_configs.handle(agent.broker, request, agent.context(version))
    return response.results[0]


async def configs_of(
    agent: RunningAgent, resource_type: int, name: str
) -> dict[str, DescribeConfigsResourceResult]:
    """By name."""
    result = await ask(agent, resource_type, name)
    assert result.error_code == 0
    return {config.name: config for config in result.configs}


async def alter(
    agent: RunningAgent,
    *operations: Operation,
    resource_type: int = TOPIC,
    name: str = "t",
    validate_only: bool = False,
) -> tuple[int, str | None]:
    """IncrementalAlterConfigs of one resource."""
    request = iac.IncrementalAlterConfigsRequest(
        resources=[
            iac.AlterConfigsResource(
                resource_type=resource_type,
                resource_name=name,
                configs=[
                    iac.AlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in operations
                ],
            )
        ],
        validate_only=validate_only,
    )
    response = await incremental_alter_configs.handle(agent.broker, request, agent.context(1))
    (answer,) = response.responses
    return answer.error_code, answer.error_message
