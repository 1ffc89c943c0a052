"""Which handler answers which API.  Produce and Fetch, the hot path, are not among them.

Shell.
"""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from driftlog_agents.broker import Broker, RequestContext
from driftlog_agents.handlers import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_topic_partitions,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    sync_group,
)
from driftlog_agents.handlers.advertised import ADVERTISED, unsupported_version_response
from driftlog_agents.protocol.api import ApiKey

__all__ = ["ADVERTISED", "HANDLERS", "Handler", "unsupported_version_response"]

Handler = Callable[[Broker, Any, RequestContext], Awaitable[Any]]
"""Of the request and response classes of one `Api`."""

HANDLERS: Final[Mapping[ApiKey, Handler]] = MappingProxyType(
    {
        ApiKey.ALTER_CONFIGS: alter_configs.handle,
        ApiKey.API_VERSIONS: api_versions.handle,
        ApiKey.CREATE_PARTITIONS: create_partitions.handle,
        ApiKey.CREATE_TOPICS: create_topics.handle,
        ApiKey.DELETE_GROUPS: delete_groups.handle,
        ApiKey.DELETE_TOPICS: delete_topics.handle,
        ApiKey.DESCRIBE_CLUSTER: describe_cluster.handle,
        ApiKey.DESCRIBE_CONFIGS: describe_configs.handle,
        ApiKey.DESCRIBE_GROUPS: describe_groups.handle,
        ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs.handle,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions.handle,
        ApiKey.FIND_COORDINATOR: find_coordinator.handle,
        ApiKey.HEARTBEAT: heartbeat.handle,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs.handle,
        ApiKey.INIT_PRODUCER_ID: init_producer_id.handle,
        ApiKey.JOIN_GROUP: join_group.handle,
        ApiKey.LEAVE_GROUP: leave_group.handle,
        ApiKey.LIST_GROUPS: list_groups.handle,
        ApiKey.LIST_OFFSETS: list_offsets.handle,
        ApiKey.METADATA: metadata.handle,
        ApiKey.OFFSET_COMMIT: offset_commit.handle,
        ApiKey.OFFSET_DELETE: offset_delete.handle,
        ApiKey.OFFSET_FETCH: offset_fetch.handle,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch.handle,
        ApiKey.SYNC_GROUP: sync_group.handle,
    }
)
