"""What an agent holds before it is attacked, and how it is read when it has started again.

Shell.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from benchmarks.batches import encode_batch, set_producer
from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from driftlog_agents.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
)
from driftlog_agents.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from driftlog_agents.protocol.messages.describe_groups import DescribeGroupsRequest
from driftlog_agents.protocol.messages.list_groups import ListGroupsRequest
from driftlog_agents.protocol.messages.metadata import MetadataRequest
from driftlog_agents.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from tests.attack.healthy import Acknowledged
from tests.attack.members import commit_request, joined
from tests.attack.produce import fetched, sent
from tests.attack.wire import GONE, HEALTHY_ADDRESS, Connection

VICTIM: Final = "victim"
"""A topic with data that attackers know."""
CLASSIC: Final = "classic-victims"
CONSUMER: Final = "consumer-victims"
COMMITTED: Final = "committed-only"
GROUPS: Final = (CLASSIC, CONSUMER, COMMITTED)

_VICTIM_PARTITIONS: Final = 4
_READABLE_S: Final = 120.0
"""How long an agent that started may take until all that it held can be read."""
_AT_ONCE: Final = 500
_GROUP_ID_NOT_FOUND: Final = (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)


def make_topic(connection: Connection, name: str, partitions: int = 1, **configs: str) -> None:
    """A topic that is there and led; `_` in the names of *configs* stands for a dot."""
    pairs = [
        CreatableTopicConfig(name=key.replace("_", "."), value=value)
        for key, value in configs.items()
    ]
    topic = CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, configs=pairs
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
    result = connection.ask(ApiKey.CREATE_TOPICS, 5, request).topics[0]
    assert result.error_code == 0, f"{name}: {result.error_code} {result.error_message}"


def fill(connection: Connection, healthy_topic: str) -> None:
    """Make what attackers find: topics, data, producers, groups of both kinds, offsets."""
    make_topic(connection, healthy_topic)
    make_topic(connection, VICTIM, _VICTIM_PARTITIONS)
    for partition in range(_VICTIM_PARTITIONS):
        for producer in range(3):
            batch = encode_batch([b"victim" * 20] * 10, timestamp_ms=1).data
            set_producer(batch, 1_000 + producer, 0, 0)
            code, _ = sent(connection, VICTIM, batch, partition=partition)
            assert code == 0, f"the victim's data: error {code}"
    member, _ = joined(connection, CLASSIC)
    assert member, "the victims' group"
    heartbeat = ConsumerGroupHeartbeatRequest(
        group_id=CONSUMER,
        member_id="member-1",
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[VICTIM],
        topic_partitions=[],
    )
    assert connection.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, heartbeat).error_code == 0
    commit = commit_request(COMMITTED, VICTIM, range(_VICTIM_PARTITIONS), offset=3)
    answer = connection.ask(ApiKey.OFFSET_COMMIT, 7, commit)
    assert {each.error_code for each in answer.topics[0].partitions} == {0}


# ── After a restart ──


def unreadable(
    port: int, healthy_topic: str, acknowledged: Sequence[Acknowledged], groups: Iterable[str]
) -> str | None:
    """Why what the agent held cannot be read; None: all of it can."""
    for check in (
        lambda c: _topics(c),
        lambda c: _groups(c, sorted({*groups, *GROUPS})),
        lambda c: _records(c, healthy_topic, acknowledged),
    ):
        why = _patiently(port, check)
        if why is not None:
            return why
    return None


def _patiently(port: int, check: Callable[[Connection], str | None]) -> str | None:
    deadline = time.monotonic() + _READABLE_S
    while True:
        try:
            with Connection(port, address=HEALTHY_ADDRESS) as connection:
                why = check(connection)
        except GONE as error:
            why = f"{type(error).__name__}: {error}"
        if why is None or time.monotonic() > deadline:
            return why
        time.sleep(0.3)


def _topics(connection: Connection) -> str | None:
    for topic in all_topics(connection):
        if topic.error_code:
            return f"topic {str(topic.name)[:40]!r} has error {topic.error_code}"
        for partition in topic.partitions:
            if partition.error_code or partition.leader_id < 0:
                return f"{str(topic.name)[:40]}-{partition.partition_index} has no leader"
    return None


def all_topics(connection: Connection) -> list[Any]:
    """As Metadata says."""
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    return list(connection.ask(ApiKey.METADATA, 12, request).topics)


def _groups(connection: Connection, wanted: Sequence[str]) -> str | None:
    listed = connection.ask(ApiKey.LIST_GROUPS, 5, ListGroupsRequest())
    if listed.error_code:
        return f"ListGroups: error {listed.error_code}"
    kinds = {group.group_id: group.group_type.lower() for group in listed.groups}
    names = [*wanted, *(name for name in kinds if name not in set(wanted))]
    for chunk in _chunks(names):
        for name, code in _offsets(connection, chunk):
            if code not in _GROUP_ID_NOT_FOUND:
                return f"OffsetFetch of group {name[:40]!r}: error {code}"
    for chunk in _chunks([name for name in names if kinds.get(name) != "consumer"]):
        described = connection.ask(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=chunk))
        for group in described.groups:
            if group.error_code not in _GROUP_ID_NOT_FOUND:
                return f"DescribeGroups of {group.group_id[:40]!r}: error {group.error_code}"
    for chunk in _chunks([name for name in names if kinds.get(name) == "consumer"]):
        request = ConsumerGroupDescribeRequest(group_ids=chunk)
        for group in connection.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, request).groups:
            if group.error_code not in _GROUP_ID_NOT_FOUND:
                return f"ConsumerGroupDescribe of {group.group_id[:40]!r}: {group.error_code}"
    return None


def _offsets(connection: Connection, names: list[str]) -> Iterator[tuple[str, int]]:
    asked = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    answer = connection.ask(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=asked))
    for group in answer.groups:
        yield group.group_id, group.error_code


def _chunks(names: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), _AT_ONCE):
        yield list(names[start : start + _AT_ONCE])


def _records(
    connection: Connection, topic: str, acknowledged: Sequence[Acknowledged]
) -> str | None:
    """The healthy client's: none lost, none doubled."""
    found: dict[int, bytes] = {}
    offset = 0
    while True:
        code, more = fetched(connection, topic, offset)
        if code:
            return f"Fetch of {topic} at {offset}: error {code}"
        if not more:
            break
        found |= more
        offset = max(more) + 1
    return record_faults(found, acknowledged)


def record_faults(found: dict[int, bytes], acknowledged: Sequence[Acknowledged]) -> str | None:
    """What is wrong with the *found* values by offset, after these were acknowledged."""
    lost = [each for each in acknowledged if found.get(each.offset) != each.value]
    if lost:
        return f"{len(lost)} of {len(acknowledged)} acknowledged records lost, first {lost[0]}"
    doubled = [value for value, count in Counter(found.values()).items() if count > 1]
    if doubled:
        return f"{len(doubled)} records doubled, first {doubled[0]!r}"
    return None
