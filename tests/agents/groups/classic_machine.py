"""The machine of classic groups as a world that transcripts are played to.

Time passes from one deadline to the next.  Everything is stored as soon as it is to be, unless a
line says something else:

    store > holds 0       from here on the store does not answer
    store > stores 0      it does again: what waited is stored
    store > fails 0       it does again: what waited is not stored
    store > restores 0    another coordinator reads what is stored; nobody is answered any more
    store > drops 0       the group is another coordinator's, and who waits is told so

Pure.
"""

import itertools
from collections.abc import Sequence

from driftlog_agents.configs.group_settings import ClassicSettings
from driftlog_agents.groups.classic.description import GroupDescription
from driftlog_agents.groups.classic.machine import ClassicGroup
from driftlog_agents.groups.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    LeavingMember,
    Protocol,
    Request,
    SyncRequest,
    SyncResponse,
    creates_group,
    refuse_group_id,
    refuse_join,
    refuse_sync,
    unknown_group,
)
from driftlog_agents.groups.classic.stored_value import claimed_value
from driftlog_agents.groups.effects import Answer, Effect, Persist
from driftlog_agents.protocol.errors import ErrorCode
from tests.agents.groups.classic_scripts import (
    REBALANCE_MS,
    SESSION_MS,
    Said,
    Told,
    described_fact,
    facts,
    member_fact,
)


class MachineWorld:
    """One group that is not there yet."""

    def __init__(self, settings: ClassicSettings, group_id: str = "g") -> None:
        self._settings = settings
        self._group_id = group_id
        self._group: ClassicGroup | None = None
        self._now_ms = 1_000
        self._ids = itertools.count(1)
        self._asked: dict[int, Said] = {}
        self._told: list[Told] = []
        self._holds = False
        self._held: tuple[int, bytes] | None = None
        self.stored: bytes | None = None

    # ── World ──

    def say(self, said: Said) -> None:
        if said.connection == "store":
            self._store(said.api)
            return
        request_id = next(self._ids)
        self._asked[request_id] = said
        match said.api:
            case "describe":
                self._told.append(self._described(said))
            case "delete":
                self._told.append(Told(said.connection, "delete", self._delete(), {}))
            case "commit":
                self._told.append(Told(said.connection, "commit", self._commit(said), {}))
            case _:
                self._ask(request_id, _request(said))
        self._pass_time(self._now_ms)

    def told(self, expected: int) -> Sequence[Told]:
        told, self._told = self._told, []
        return told

    def wait(self, ms: int) -> None:
        self._pass_time(self._now_ms + ms)

    # ── The shell around the machine ──

    def _ask(self, request_id: int, request: Request) -> None:
        refused = self._refuse(request)
        if refused is not None:
            self._perform([Answer(request_id, refused)])
            return
        if self._group is None:
            if not creates_group(request):
                self._perform([Answer(request_id, unknown_group(request))])
                return
            self._group = self._new_group()
        group = self._group
        match request:
            case JoinRequest():
                self._perform(group.join(request_id, request, self._now_ms))
            case SyncRequest():
                self._perform(group.sync(request_id, request, self._now_ms))
            case HeartbeatRequest():
                self._perform(group.heartbeat(request_id, request, self._now_ms))
            case LeaveRequest():
                self._perform(group.leave(request_id, request, self._now_ms))

    def _refuse(self, request: Request) -> object:
        match request:
            case JoinRequest():
                error = refuse_join(self._group_id, request, self._settings)
                return JoinResponse(error=error, member_id=request.member_id) if error else None
            case SyncRequest():
                error = refuse_sync(self._group_id, request)
                return SyncResponse(error=error) if error else None
            case HeartbeatRequest():
                error = refuse_group_id(self._group_id)
                return HeartbeatResponse(error=error) if error else None
            case LeaveRequest():
                error = refuse_group_id(self._group_id)
                return LeaveResponse(error=error) if error else None

    def _new_group(self) -> ClassicGroup:
        group = ClassicGroup(self._group_id, self._settings, self._new_id, self._now_ms)
        self.stored = group.value
        return group

    def _new_id(self, prefix: str) -> str:
        return f"{prefix}-{next(self._ids)}"

    def _delete(self) -> ErrorCode:
        if self._group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        error = self._group.begin_delete()
        if not error:
            self._group = None
        return error

    def _commit(self, said: Said) -> ErrorCode:
        generation = said.number("gen", -1)
        if self._group is None:
            if generation >= 0:
                late = said.version >= 9
                return ErrorCode.GROUP_ID_NOT_FOUND if late else ErrorCode.ILLEGAL_GENERATION
            self._group = self._new_group()
        member_id, instance_id = said.fields.get("member", ""), said.fields.get("instance")
        return self._group.validate_commit(member_id, instance_id, generation, self._now_ms)

    def _described(self, said: Said) -> Told:
        if self._group is None:
            late = said.version >= 6
            error = ErrorCode.GROUP_ID_NOT_FOUND if late else ErrorCode.NONE
            return Told(said.connection, "describe", error, {"state": "Dead"})
        found = self._group.describe()
        return Told(said.connection, "describe", ErrorCode.NONE, _description(found))

    def _pass_time(self, until_ms: int) -> None:
        """*until_ms* is reached; timers that are due by then go off on the way, or at it."""
        while self._group is not None:
            deadline_ms = self._group.deadline_ms
            if deadline_ms is None or deadline_ms > until_ms:
                break
            self._now_ms = max(self._now_ms, deadline_ms)
            self._perform(self._group.tick(self._now_ms))
        self._now_ms = until_ms

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Answer(request_id, response):
                    self._told.append(_told(self._asked.pop(request_id), response))
                case Persist(token, puts):
                    value = puts[""]
                    assert value is not None
                    assert self._held is None, "one at a time"
                    self._held = token, value
                    if not self._holds:
                        self._release(ErrorCode.NONE)

    def _store(self, word: str) -> None:
        self._holds = word == "holds"
        match word:
            case "holds":
                pass
            case "stores":
                self._release(ErrorCode.NONE)
            case "fails":
                self._release(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            case "restores":
                assert self.stored is not None
                self.stored, self._held = claimed_value(self.stored), None
                self._asked.clear()
                self._group = ClassicGroup.restore(
                    self._group_id, self.stored, self._settings, self._new_id, self._now_ms
                )
            case _:
                assert word == "drops"
                assert self._group is not None
                self._held = None
                self._perform(self._group.drop(ErrorCode.NOT_COORDINATOR))

    def _release(self, error: ErrorCode) -> None:
        if self._held is None:
            return
        assert self._group is not None
        (token, value), self._held = self._held, None
        if error:
            self._perform(self._group.not_persisted(token, error, self._now_ms))
        else:
            self.stored = value
            self._perform(self._group.persisted(token, self._now_ms))


def _request(said: Said) -> Request:
    member_id, instance_id = said.fields.get("member", ""), said.fields.get("instance")
    first = {"join": 5}.get(said.api, 3)
    assert instance_id is None or said.version >= first, "the version has no instance id"
    match said.api:
        case "join":
            known = ("member", "instance", "session", "rebalance", "type")
            return JoinRequest(
                version=said.version,
                client_id=said.connection,
                client_host="/127.0.0.1",
                session_timeout_ms=said.number("session", SESSION_MS),
                rebalance_timeout_ms=said.number("rebalance", REBALANCE_MS) if said.version else -1,
                member_id=member_id,
                instance_id=instance_id,
                protocol_type=said.fields.get("type", "consumer"),
                protocols=tuple(Protocol(name, data) for name, data in said.others(*known)),
            )
        case "sync":
            known = ("gen", "member", "instance", "type", "protocol")
            return SyncRequest(
                version=said.version,
                generation=said.number("gen", 0),
                member_id=member_id,
                instance_id=instance_id,
                protocol_type=said.fields.get("type") if said.version >= 5 else None,
                protocol=said.fields.get("protocol") if said.version >= 5 else None,
                assignments=tuple(said.others(*known)),
            )
        case "heartbeat":
            return HeartbeatRequest(
                generation=said.number("gen", 0), member_id=member_id, instance_id=instance_id
            )
        case "leave":
            leaving = [word.partition("/") for word in said.words]
            return LeaveRequest(
                members=tuple(
                    LeavingMember(member_id=member, instance_id=instance or None)
                    for member, _, instance in leaving
                )
            )
        case _:
            raise AssertionError(said)


def _told(said: Said, response: object) -> Told:
    match response:
        case JoinResponse():
            late = said.version >= 7
            found = facts(
                gen="" if response.generation == -1 else str(response.generation),
                type=response.protocol_type if late else None,
                protocol=("null" if late else "")
                if response.protocol is None
                else response.protocol,
                leader=response.leader,
                skip=response.skip_assignment if said.version >= 9 else False,
                member=response.member_id,
                members=",".join(
                    member_fact(
                        member.member_id,
                        member.instance_id if said.version >= 5 else None,
                        member.metadata.decode(),
                    )
                    for member in response.members
                ),
            )
            error = response.error
        case SyncResponse():
            late = said.version >= 5
            found = facts(
                type=response.protocol_type if late else None,
                protocol=response.protocol if late else None,
                assignment=response.assignment,
            )
            error = response.error
        case LeaveResponse(error=error, members=members):
            if said.version < 3:
                error, found = error or members[0].error, {}
            else:
                left = (
                    member_fact(one.member_id, one.instance_id, one.error.name) for one in members
                )
                found = facts(members=",".join(left))
        case HeartbeatResponse(error=error):
            found = {}
        case _:
            raise AssertionError(response)
    return Told(said.connection, said.api, error, found)


def _description(described: GroupDescription) -> dict[str, str]:
    members = (
        described_fact(
            member.member_id,
            member.instance_id,
            (member.client_id, member.client_host),
            (member.metadata, member.assignment),
        )
        for member in described.members
    )
    return facts(
        state=described.state,
        type=described.protocol_type,
        protocol=described.protocol,
        members=",".join(members),
    )
