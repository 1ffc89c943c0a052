"""ListConfigResources: the resources that have configs.

Configs of client metrics cannot be set: none is listed.  Groups are listed if they have configs of
their own.
Source: kafka.server.KafkaApis#handleListConfigResources.
Shell.
"""

from typing import Final

from driftlog_agents.foundation.loop_slices import sliced, time_to_work
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import live_agents
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32
"""ConfigResource.Type."""

_RESOURCE_BYTES: Final = 200
"""Memory of one resource while an answer is made: its object, and its bytes without its name."""

_KINDS: Final = frozenset({TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP})


async def handle(
    broker: Broker, request: ListConfigResourcesRequest, context: RequestContext
) -> ListConfigResourcesResponse:
    """Answer *request*; version 0 asks for client metrics."""
    kinds = set(request.resource_types) or set(_KINDS)
    if context.api_version == 0:
        kinds = {CLIENT_METRICS}
    if not kinds <= _KINDS:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    await context.room((len(broker.topics.by_name) + len(broker.view.configs)) * _RESOURCE_BYTES)
    names: dict[int, list[str]] = {}
    if TOPIC in kinds:
        names[TOPIC] = sorted(broker.topics.by_name)
    for kind in kinds & {BROKER, BROKER_LOGGER}:
        names[kind] = [str(node_id) for node_id in sorted(live_agents(broker))]
    if GROUP in kinds:
        await time_to_work()
        groups = (owner.group_id for owner in broker.view.configs)
        names[GROUP] = sorted(group for group in groups if group is not None)
        await time_to_work()
    context.answer.add(sum(len(name) for found in names.values() for name in found))
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in sorted(names)
            async for name in sliced(names[kind])
        ]
    )
