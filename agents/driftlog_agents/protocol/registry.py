"""Every API that we speak, and the header that says which one a request is for.

Pure.
"""

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from driftlog_agents.protocol.api import Api, ApiKey, RequestHeader
from driftlog_agents.protocol.errors import CorruptFrameError
from driftlog_agents.protocol.messages import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_topic_partitions,
    fetch,
    incremental_alter_configs,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from driftlog_agents.protocol.types import Buffer, skip_tagged_fields

API: Final[Mapping[int, Api[Any, Any]]] = MappingProxyType(
    {
        api.key: api
        for api in (
            alter_configs.API,
            api_versions.API,
            create_partitions.API,
            create_topics.API,
            delete_topics.API,
            describe_cluster.API,
            describe_configs.API,
            describe_log_dirs.API,
            describe_topic_partitions.API,
            fetch.API,
            incremental_alter_configs.API,
            init_producer_id.API,
            list_offsets.API,
            metadata.API,
            offset_for_leader_epoch.API,
            produce.API,
        )
    }
)
"""By `ApiKey`, or the int it is on the wire."""

_FIXED: Final = struct.Struct(">hhih")

_SERVED: Final = {
    (api.key.value, version): (api.key, api.is_flexible(version))
    for api in API.values()
    for version in api.served
}


def decode_request_header(frame: Buffer) -> RequestHeader:
    """Read what follows a request's size, up to its body.

    An ApiVersions request of a version that we do not serve is let through: it is the one
    that is answered (in version 0, UNSUPPORTED_VERSION), and its body must not be decoded.

    Raises:
        CorruptFrameError: cut off, or an API or version that we do not serve: Kafka hangs up
            on these as well (RequestContext#parseRequest, SocketServer).
    """
    view = frame if type(frame) is memoryview else memoryview(frame)
    end = len(view)
    try:
        key, version, correlation_id, size = _FIXED.unpack_from(view)
        api_key, flexible = _SERVED.get((key, version)) or _not_served(key, version)
        at = 10 + size if size > 0 else 10
        if at > end:
            raise CorruptFrameError("the client id is too long")
        client_id = None if size < 0 else str(view[10:at], "utf-8", "replace")
        if flexible:
            tags = view[at]
            at = skip_tagged_fields(view, at + 1, end, tags) if tags else at + 1
    except (IndexError, struct.error) as error:
        raise CorruptFrameError("a request header that is cut off") from error
    return RequestHeader(api_key, version, correlation_id, client_id, at)


def _not_served(key: int, version: int) -> tuple[ApiKey, bool]:
    if key != ApiKey.API_VERSIONS:
        raise CorruptFrameError(f"API key {key} version {version} is not served")
    return ApiKey.API_VERSIONS, API[key].is_flexible(version)
