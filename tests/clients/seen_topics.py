"""When a coordinator has seen that a topic has changed: it assigns its partitions.

A broker answers before its coordinator has heard of it.
Shell.
"""

import time
import uuid
from typing import Final

from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
)
from tests.support.wire import ask

_PATIENCE_S: Final = 60.0


def until_seen(port: int, name: str, topic_id: uuid.UUID, partitions: int) -> None:
    """Return when members of new groups are given so many partitions; 0: the topic is gone."""
    deadline = time.monotonic() + _PATIENCE_S
    while (given := _given(port, name, topic_id)) != partitions:
        assert time.monotonic() < deadline, f"{given}, not {partitions} partitions"
        time.sleep(0.05)


def _given(port: int, name: str, topic_id: uuid.UUID) -> int | str:
    """To the only member of a new group, which leaves; or why it may not join yet."""
    request = ConsumerGroupHeartbeatRequest(
        group_id=f"probe-{uuid.uuid4().hex}",
        member_id="probe",
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[name],
        topic_partitions=[],
    )
    answer = ask(port, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
    if answer.error_code:
        return ErrorCode(answer.error_code).name
    request.member_epoch = -1
    ask(port, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
    given = (t.partitions for t in answer.assignment.topic_partitions if t.topic_id == topic_id)
    return sum(map(len, given))
