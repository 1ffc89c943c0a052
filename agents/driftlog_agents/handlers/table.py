"""The handler of each API.  Produce and Fetch, the hot path, are not in the table.

Shell.
"""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from driftlog_agents.handlers.api import (
    alter_configs,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_user_scram_credentials,
    elect_leaders,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    reassignments,
    security_disabled,
    sync_group,
    unregister_broker,
    update_features,
)
from driftlog_agents.handlers.common.api_versions_table import (
    ADVERTISED,
    unsupported_version_response,
)
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.api import ApiKey

__all__ = ["ADVERTISED", "HANDLERS", "OF_MANY", "Handler", "unsupported_version_response"]

Handler = Callable[[Broker, Any, RequestContext], Awaitable[Any]]
"""Answers the request class of one `Api` with its response class."""


def _changing(handle: Handler) -> Handler:
    """*handle* of an API that changes topics; a stopping agent answers last (`Topics.parting`)."""

    async def answer(broker: Broker, request: Any, context: RequestContext) -> Any:
        response = await handle(broker, request, context)
        await broker.topics.parting()
        return response

    return answer


OF_MANY: Final = frozenset(
    {
        ApiKey.DELETE_RECORDS,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
    }
)
"""APIs whose requests may name every topic and partition of the cluster: the only limit of their
elements is that of Fetch, and their handlers work in slices."""

HANDLERS: Final[Mapping[ApiKey, Handler]] = MappingProxyType(
    {
        ApiKey.ALTER_CONFIGS: _changing(alter_configs.handle),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: reassignments.alter,
        ApiKey.API_VERSIONS: api_versions.handle,
        ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_group_describe.handle,
        ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat.handle,
        ApiKey.CREATE_ACLS: security_disabled.create_acls,
        ApiKey.CREATE_PARTITIONS: _changing(create_partitions.handle),
        ApiKey.CREATE_TOPICS: _changing(create_topics.handle),
        ApiKey.DELETE_ACLS: security_disabled.delete_acls,
        ApiKey.DELETE_GROUPS: delete_groups.handle,
        ApiKey.DELETE_RECORDS: delete_records.handle,
        ApiKey.DELETE_TOPICS: _changing(delete_topics.handle),
        ApiKey.DESCRIBE_ACLS: security_disabled.describe_acls,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas.handle,
        ApiKey.DESCRIBE_CLUSTER: describe_cluster.handle,
        ApiKey.DESCRIBE_CONFIGS: describe_configs.handle,
        ApiKey.DESCRIBE_DELEGATION_TOKEN: security_disabled.describe_delegation_token,
        ApiKey.DESCRIBE_GROUPS: describe_groups.handle,
        ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs.handle,
        ApiKey.DESCRIBE_PRODUCERS: describe_producers.handle,
        ApiKey.DESCRIBE_QUORUM: describe_quorum.handle,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions.handle,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_user_scram_credentials.handle,
        ApiKey.ELECT_LEADERS: elect_leaders.handle,
        ApiKey.FIND_COORDINATOR: find_coordinator.handle,
        ApiKey.HEARTBEAT: heartbeat.handle,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: _changing(incremental_alter_configs.handle),
        ApiKey.INIT_PRODUCER_ID: init_producer_id.handle,
        ApiKey.JOIN_GROUP: join_group.handle,
        ApiKey.LEAVE_GROUP: leave_group.handle,
        ApiKey.LIST_CONFIG_RESOURCES: list_config_resources.handle,
        ApiKey.LIST_GROUPS: list_groups.handle,
        ApiKey.LIST_OFFSETS: list_offsets.handle,
        ApiKey.LIST_PARTITION_REASSIGNMENTS: reassignments.listing,
        ApiKey.METADATA: metadata.handle,
        ApiKey.OFFSET_COMMIT: offset_commit.handle,
        ApiKey.OFFSET_DELETE: offset_delete.handle,
        ApiKey.OFFSET_FETCH: offset_fetch.handle,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch.handle,
        ApiKey.SASL_HANDSHAKE: security_disabled.sasl_handshake,
        ApiKey.SYNC_GROUP: sync_group.handle,
        ApiKey.UNREGISTER_BROKER: unregister_broker.handle,
        ApiKey.UPDATE_FEATURES: update_features.handle,
    }
)
