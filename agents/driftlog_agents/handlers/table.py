"""Which handler answers which API.  Produce and Fetch, the hot path, are not among them.

Shell.
"""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from driftlog_agents.broker import Broker, RequestContext
from driftlog_agents.handlers import (
    api_versions,
    create_topics,
    init_producer_id,
    metadata,
)
from driftlog_agents.handlers.advertised import ADVERTISED, unsupported_version_response
from driftlog_agents.protocol.api import ApiKey

__all__ = ["ADVERTISED", "HANDLERS", "Handler", "unsupported_version_response"]

Handler = Callable[[Broker, Any, RequestContext], Awaitable[Any]]
"""Of the request and response classes of one `Api`."""

HANDLERS: Final[Mapping[ApiKey, Handler]] = MappingProxyType(
    {
        ApiKey.API_VERSIONS: api_versions.handle,
        ApiKey.CREATE_TOPICS: create_topics.handle,
        ApiKey.INIT_PRODUCER_ID: init_producer_id.handle,
        ApiKey.METADATA: metadata.handle,
    }
)
