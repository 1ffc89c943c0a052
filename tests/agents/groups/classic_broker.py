"""A broker as a world that transcripts are played to: Apache Kafka, or an agent.

Each connection of a transcript is a socket.  Shell.
"""

import select
import socket
import struct
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from driftlog_agents.protocol.messages.delete_groups import DeleteGroupsRequest
from driftlog_agents.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from driftlog_agents.protocol.messages.find_coordinator import FindCoordinatorRequest
from driftlog_agents.protocol.messages.heartbeat import HeartbeatRequest
from driftlog_agents.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from driftlog_agents.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from driftlog_agents.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from driftlog_agents.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from driftlog_agents.protocol.requests.registry import API
from tests.agents.groups.classic_scripts import (
    REBALANCE_MS,
    SESSION_MS,
    Said,
    Told,
    described_fact,
    facts,
    member_fact,
)

COMMIT_TOPIC: Final = "committed"
"""What `commit` commits partition 0 of; the broker must have it."""

_PATIENCE_S: Final = 20.0
_QUIET_S: Final = 0.05
"""How long it is listened after the answers that are expected, for those that are not."""

_FIND: Final = FindCoordinatorRequest(key="g", key_type=0)


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    received: bytearray
    asked: dict[int, Said]
    sent: int = 0


class BrokerWorld:
    """One group of a name of its own."""

    def __init__(self, port: int, *, recording: bool = False) -> None:
        self._port = port
        self._group_id = f"transcript-{uuid.uuid4()}"
        self._connections: dict[str, _Connection] = {}
        self._quiet_s = 0.5 if recording else _QUIET_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.socket.close()

    # ── World ──

    def say(self, said: Said) -> None:
        connection = self._connections.get(said.connection) or self._connect(said.connection)
        connection.sent += 1
        connection.asked[connection.sent] = said
        api, request = self._message(said)
        frame = api.encode_request(said.version, connection.sent, said.connection, request)
        connection.socket.sendall(frame)

    def told(self, expected: int) -> Sequence[Told]:
        told: list[Told] = []
        if not expected:
            self._until_read()
        deadline = time.monotonic() + _PATIENCE_S
        while len(told) < expected and time.monotonic() < deadline:
            told += self._receive(0.2)
        quiet = time.monotonic() + self._quiet_s
        while (left := quiet - time.monotonic()) > 0:
            told += self._receive(left)
        return told

    def wait(self, ms: int) -> None:
        time.sleep(ms / 1000)

    # ── Sockets ──

    def _until_read(self) -> None:
        """Return when the broker has read what was said last, though it does not answer yet.

        A later connection is answered: one thread reads them all, here as there, and what lay
        ready before is read by then.
        """
        _ask(self._port, ApiKey.FIND_COORDINATOR, 3, _FIND)

    def _connect(self, name: str) -> _Connection:
        connected = socket.create_connection(("127.0.0.1", self._port), _PATIENCE_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._connections.setdefault(name, _Connection(connected, bytearray(), {}))

    def _receive(self, timeout_s: float) -> list[Told]:
        told: list[Told] = []
        by_socket = {c.socket: c for c in self._connections.values()}
        readable, _, _ = select.select(list(by_socket), [], [], timeout_s)
        for ready in readable:
            connection = by_socket[ready]
            data = ready.recv(1 << 16)
            if not data:
                raise ConnectionError(f"the broker hung up on {connection.asked}")
            connection.received += data
            while len(connection.received) >= 4:
                (size,) = struct.unpack_from(">i", connection.received)
                if len(connection.received) < 4 + size:
                    break
                frame = bytes(connection.received[4 : 4 + size])
                del connection.received[: 4 + size]
                (correlation_id,) = struct.unpack_from(">i", frame)
                said = connection.asked.pop(correlation_id)
                _, response = API[_KEYS[said.api]].decode_response(said.version, frame)
                told.append(_told(said, response))
        return told

    # ── Messages ──

    def _message(self, said: Said) -> tuple[Api[Any, Any], Any]:
        api = API[_KEYS[said.api]]
        match said.api:
            case "describe":
                return api, DescribeGroupsRequest(groups=[self._group_id])
            case "delete":
                return api, DeleteGroupsRequest(groups_names=[self._group_id])
            case "leave" if said.version < 3:
                return api, LeaveGroupRequest(group_id=self._group_id, member_id=said.words[0])
            case "leave":
                leaving = [word.partition("/") for word in said.words]
                members = [
                    MemberIdentity(member_id=member, group_instance_id=instance or None)
                    for member, _, instance in leaving
                ]
                return api, LeaveGroupRequest(group_id=self._group_id, members=members)
            case "join":
                return api, self._join(said)
            case "sync":
                return api, self._sync(said)
            case "heartbeat":
                return api, HeartbeatRequest(
                    group_id=self._group_id,
                    generation_id=said.number("gen", 0),
                    member_id=said.fields.get("member", ""),
                    group_instance_id=said.fields.get("instance"),
                )
            case _:
                return api, self._commit(said)

    def _join(self, said: Said) -> JoinGroupRequest:
        known = ("member", "instance", "session", "rebalance", "type")
        return JoinGroupRequest(
            group_id=self._group_id,
            session_timeout_ms=said.number("session", SESSION_MS),
            rebalance_timeout_ms=said.number("rebalance", REBALANCE_MS),
            member_id=said.fields.get("member", ""),
            group_instance_id=said.fields.get("instance"),
            protocol_type=said.fields.get("type", "consumer"),
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=data)
                for name, data in said.others(*known)
            ],
        )

    def _sync(self, said: Said) -> SyncGroupRequest:
        known = ("gen", "member", "instance", "type", "protocol")
        return SyncGroupRequest(
            group_id=self._group_id,
            generation_id=said.number("gen", 0),
            member_id=said.fields.get("member", ""),
            group_instance_id=said.fields.get("instance"),
            protocol_type=said.fields.get("type"),
            protocol_name=said.fields.get("protocol"),
            assignments=[
                SyncGroupRequestAssignment(member_id=name, assignment=data)
                for name, data in said.others(*known)
            ],
        )

    def _commit(self, said: Said) -> OffsetCommitRequest:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        return OffsetCommitRequest(
            group_id=self._group_id,
            generation_id_or_member_epoch=said.number("gen", -1),
            member_id=said.fields.get("member", ""),
            group_instance_id=said.fields.get("instance"),
            topics=[OffsetCommitRequestTopic(name=COMMIT_TOPIC, partitions=[partition])],
        )


_KEYS: Final = {
    "join": ApiKey.JOIN_GROUP,
    "sync": ApiKey.SYNC_GROUP,
    "heartbeat": ApiKey.HEARTBEAT,
    "leave": ApiKey.LEAVE_GROUP,
    "commit": ApiKey.OFFSET_COMMIT,
    "describe": ApiKey.DESCRIBE_GROUPS,
    "delete": ApiKey.DELETE_GROUPS,
}


def _told(said: Said, response: Any) -> Told:
    match said.api:
        case "join":
            found = _join_facts(response)
            error = response.error_code
        case "sync":
            found = facts(
                type=response.protocol_type,
                protocol=response.protocol_name,
                assignment=response.assignment,
            )
            error = response.error_code
        case "leave":
            left = (
                member_fact(
                    member.member_id, member.group_instance_id, ErrorCode(member.error_code).name
                )
                for member in response.members
            )
            found = facts(members=",".join(left))
            error = response.error_code
        case "describe":
            (group,) = response.groups
            found, error = _described(group), group.error_code
        case "delete":
            (result,) = response.results
            found, error = {}, result.error_code
        case "commit":
            ((partition,),) = (topic.partitions for topic in response.topics)
            found, error = {}, partition.error_code
        case _:
            found, error = {}, response.error_code
    return Told(said.connection, said.api, ErrorCode(error), found)


def _join_facts(response: JoinGroupResponse) -> dict[str, str]:
    members = (
        member_fact(member.member_id, member.group_instance_id, member.metadata.decode())
        for member in response.members
    )
    return facts(
        gen="" if response.generation_id == -1 else str(response.generation_id),
        type=response.protocol_type,
        protocol="null" if response.protocol_name is None else response.protocol_name,
        leader=response.leader,
        skip=response.skip_assignment,
        member=response.member_id,
        members=",".join(members),
    )


def _described(group: DescribedGroup) -> dict[str, str]:
    members = (
        described_fact(
            member.member_id,
            member.group_instance_id,
            (member.client_id, member.client_host),
            (member.member_metadata, member.member_assignment),
        )
        for member in group.members
    )
    return facts(
        state=group.group_state,
        type=group.protocol_type,
        protocol=group.protocol_data,
        members=",".join(members),
    )


def prepare(port: int) -> None:
    """Create `COMMIT_TOPIC`, and return when groups are served: Kafka makes their topic first.

    Raises:
        TimeoutError: they are not after a minute.
    """
    topic = CreatableTopic(name=COMMIT_TOPIC, num_partitions=1, replication_factor=1)
    _ask(port, ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=[topic], timeout_ms=20_000))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = _ask(port, ApiKey.FIND_COORDINATOR, 3, _FIND)
        if not found.error_code:
            join = JoinGroupRequest(group_id="g", session_timeout_ms=SESSION_MS, member_id="nobody")
            if _ask(port, ApiKey.JOIN_GROUP, 0, join).error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                return
        time.sleep(0.3)
    raise TimeoutError(f"groups are not served on port {port}")


def _ask(port: int, key: ApiKey, version: int, request: Any) -> Any:
    """One request on a connection of its own."""
    with socket.create_connection(("127.0.0.1", port), _PATIENCE_S) as asked:
        asked.sendall(API[key].encode_request(version, 1, "prepare", request))
        with asked.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            _, response = API[key].decode_response(version, answers.read(size))
    return response
