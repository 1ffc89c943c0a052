"""AlterConfigs: the configs of the request replace all configs of a resource.

Shell.
"""

from collections.abc import Callable, Mapping

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.config_changes import ConfigChangeRequest, apply
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(
    broker: Broker, request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    """Answer *request*."""
    resources = [
        ConfigChangeRequest(
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            names=[config.name for config in resource.configs],
            no_value=[config.name for config in resource.configs if config.value is None],
            change=_replacement(resource),
        )
        async for resource in sliced(request.resources)
    ]
    answers = await apply(broker, resources, validate_only=request.validate_only, legacy=True)
    return AlterConfigsResponse(
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


def _replacement(
    resource: AlterConfigsResource,
) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
    configs = {c.name: c.value for c in resource.configs if c.value is not None}
    return lambda _: configs
