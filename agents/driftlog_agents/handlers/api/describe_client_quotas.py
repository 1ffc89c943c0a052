"""DescribeClientQuotas: quotas cannot be set, so no filter matches one.

Filters are checked as Kafka checks them.
Source: org.apache.kafka.image.ClientQuotasImage#describe, DescribeClientQuotasRequest#filter.
Shell.
"""

from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

_EXACT = 0
_NO_MATCH_STRING = {1: "DEFAULT", 2: "SPECIFIED"}
_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"


async def handle(
    broker: Broker, request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    """Answer *request*."""
    try:
        _check(request.components)
    except RefusedError as error:
        return DescribeClientQuotasResponse(
            error_code=error.code, error_message=error.message, entries=None
        )
    return DescribeClientQuotasResponse()


def _check(components: list[ComponentData]) -> None:
    def invalid(why: str) -> RefusedError:
        return RefusedError(ErrorCode.INVALID_REQUEST, why)

    seen: set[str] = set()
    for component in components:
        kind, match = component.entity_type, component.match_type
        if match == _EXACT:
            if component.match is None:
                raise invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        elif match not in _NO_MATCH_STRING:
            raise invalid(f"Unknown match type {match}")
        elif component.match is not None:
            raise invalid(
                f"Request specified MATCH_TYPE_{_NO_MATCH_STRING[match]}, but also specified a "
                "match string."
            )
        if not kind:
            raise invalid("Invalid empty entity type.")
        if kind in seen:
            raise invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (_USER, _CLIENT_ID, _IP):
            raise RefusedError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        seen.add(kind)
    if _IP in seen and len(seen) > 1:
        raise invalid(
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component."
        )
