"""ApiVersions: the APIs and versions of this agent, for a client with a valid software name.

Source: org.apache.kafka.common.requests.ApiVersionsRequest#isValid.
Shell.
"""

import re
from typing import Final

from driftlog_agents.handlers.common.api_versions_table import (
    unsupported_version_response,
    versions_response,
)
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

__all__ = ["handle", "unsupported_version_response"]

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


async def handle(
    broker: Broker, request: ApiVersionsRequest, context: RequestContext
) -> ApiVersionsResponse:
    """Answer *request*; INVALID_REQUEST for an invalid software name or version."""
    if context.api_version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return versions_response(broker.format_level)
