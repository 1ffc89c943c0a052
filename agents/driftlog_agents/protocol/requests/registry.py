"""Every API that the codec reads and writes, and the request header, which names the API.

Pure.
"""

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from driftlog_agents.protocol.api import MAX_TAGGED_FIELDS, Api, ApiKey, RequestHeader
from driftlog_agents.protocol.errors import CorruptFrameError
from driftlog_agents.protocol.messages import (
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_delegation_token,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_user_scram_credentials,
    elect_leaders,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sasl_handshake,
    sync_group,
    unregister_broker,
    update_features,
)
from driftlog_agents.protocol.types import LONG_STRING_BYTES, long_string, skip_tagged_fields
from driftlog_tiering.foundation.types import Buffer

API: Final[Mapping[int, Api[Any, Any]]] = MappingProxyType(
    {
        api.key: api
        for api in (
            alter_configs.API,
            alter_partition_reassignments.API,
            alter_replica_log_dirs.API,
            api_versions.API,
            consumer_group_describe.API,
            consumer_group_heartbeat.API,
            create_acls.API,
            create_partitions.API,
            create_topics.API,
            delete_acls.API,
            delete_groups.API,
            delete_records.API,
            delete_topics.API,
            describe_acls.API,
            describe_client_quotas.API,
            describe_cluster.API,
            describe_configs.API,
            describe_delegation_token.API,
            describe_groups.API,
            describe_log_dirs.API,
            describe_producers.API,
            describe_quorum.API,
            describe_topic_partitions.API,
            describe_user_scram_credentials.API,
            elect_leaders.API,
            fetch.API,
            find_coordinator.API,
            heartbeat.API,
            incremental_alter_configs.API,
            init_producer_id.API,
            join_group.API,
            leave_group.API,
            list_config_resources.API,
            list_groups.API,
            list_offsets.API,
            list_partition_reassignments.API,
            metadata.API,
            offset_commit.API,
            offset_delete.API,
            offset_fetch.API,
            offset_for_leader_epoch.API,
            produce.API,
            sasl_handshake.API,
            sync_group.API,
            unregister_broker.API,
            update_features.API,
        )
    }
)
"""APIs by `ApiKey`, or its int on the wire.  Agents do not answer all of them: `Api.served`."""

_FIXED: Final = struct.Struct(">hhih")

_SERVED: Final = {
    (api.key.value, version): (api.key, api.is_flexible(version))
    for api in API.values()
    for version in api.served
}


def decode_request_header(
    frame: Buffer, max_tagged_fields: int = MAX_TAGGED_FIELDS
) -> RequestHeader:
    """Read a request from after its size up to its body.

    An ApiVersions request of a version that agents do not serve is accepted: it is answered (in
    version 0, UNSUPPORTED_VERSION), and its body must not be decoded.

    Raises:
        CorruptFrameError: the header is cut off, or agents do not serve the API or version: Kafka
            closes the connection as well (RequestContext#parseRequest, SocketServer).
        OverLimitError: the header has more than *max_tagged_fields*.
    """
    view = frame if type(frame) is memoryview else memoryview(frame)
    end = len(view)
    try:
        key, version, correlation_id, size = _FIXED.unpack_from(view)
        api_key, flexible = _SERVED.get((key, version)) or _not_served(key, version)
        at = 10 + size if size > 0 else 10
        if at > end:
            raise CorruptFrameError("the client id is too long")
        client_id: str | None = None
        if size > LONG_STRING_BYTES:
            client_id = long_string(view[10:at])
        elif size >= 0:
            client_id = str(view[10:at], "utf-8", "replace")
        if flexible:
            tags = view[at]
            at += 1
            if tags:
                at, _ = skip_tagged_fields(view, at, end, tags, max_tagged_fields)
    except (IndexError, struct.error) as error:
        raise CorruptFrameError("a request header that is cut off") from error
    return RequestHeader(api_key, version, correlation_id, client_id, at)


def _not_served(key: int, version: int) -> tuple[ApiKey, bool]:
    if key != ApiKey.API_VERSIONS:
        raise CorruptFrameError(f"API key {key} version {version} is not served")
    return ApiKey.API_VERSIONS, API[key].is_flexible(version)
