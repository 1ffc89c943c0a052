"""Members of groups and their offsets, as requests: for the state of an agent and its attackers.

Shell.
"""

from collections.abc import Sequence
from typing import Final

from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from driftlog_agents.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from driftlog_agents.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tests.attack.wire import Connection

SUBSCRIPTION: Final = b"\0\0\0\0\0\1\0\6victim\xff\xff\xff\xff"
"""ConsumerProtocolSubscription 0 of one topic."""

MEMBER_ID_REQUIRED: Final = 79


def join_request(
    group_id: str,
    metadata: bytes = SUBSCRIPTION,
    *,
    member_id: str = "",
    session_ms: int = 60_000,
) -> JoinGroupRequest:
    """Of a consumer that knows one assignor."""
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=session_ms,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )


def joined(
    connection: Connection, group_id: str, metadata: bytes = SUBSCRIPTION
) -> tuple[str, int]:
    """Join and sync as the only member: its id and the generation; no id: it was refused."""
    answer = connection.ask(ApiKey.JOIN_GROUP, 3, join_request(group_id, metadata))
    if answer.error_code == MEMBER_ID_REQUIRED:
        again = join_request(group_id, metadata, member_id=answer.member_id)
        answer = connection.ask(ApiKey.JOIN_GROUP, 3, again)
    if answer.error_code:
        return "", 0
    sync = SyncGroupRequest(
        group_id=group_id,
        generation_id=answer.generation_id,
        member_id=answer.member_id,
        assignments=[SyncGroupRequestAssignment(member_id=answer.member_id, assignment=b"\0" * 6)],
    )
    synced = connection.ask(ApiKey.SYNC_GROUP, 2, sync)
    return ("", 0) if synced.error_code else (answer.member_id, answer.generation_id)


def commit_request(
    group_id: str,
    topic: str,
    partitions: Sequence[int],
    *,
    offset: int = 0,
    metadata: str = "",
    retention_ms: int = -1,
) -> OffsetCommitRequest:
    """Of a client without a membership."""
    of = [
        OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata
        )
        for partition in partitions
    ]
    return OffsetCommitRequest(
        group_id=group_id,
        retention_time_ms=retention_ms,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=of)],
    )
