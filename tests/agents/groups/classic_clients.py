"""Clients of a classic group and its store, for random schedules: who is owed what, and by when.

`Clients` says what a client says and believes what it is told; it fails as soon as it is told
something that cannot be true.  See `test_machine_schedules` for the promises.
Pure.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from driftlog_agents.configs.group_settings import ClassicSettings
from driftlog_agents.groups.classic.description import ClassicGroupState
from driftlog_agents.groups.classic.machine import ClassicGroup
from driftlog_agents.groups.classic.members import ClassicGroupMember
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
)
from driftlog_agents.groups.classic.stored_value import claimed_value, decode_value
from driftlog_agents.groups.effects import Answer, Effect, Persist
from driftlog_agents.protocol.errors import ErrorCode

SETTINGS = ClassicSettings(initial_rebalance_delay_ms=500, max_size=4, max_pending_members=6)
SESSION_MS = 10_000
REBALANCE_MS = 15_000
LONGEST_MS = SETTINGS.new_member_join_timeout_ms + 2 * (SESSION_MS + REBALANCE_MS)
"""No request waits longer, even if nobody says anything more."""


@dataclass(slots=True)
class Client:
    """One client as it sees itself."""

    name: str
    instance_id: str | None
    version: int
    """Of JoinGroup."""
    protocols: tuple[Protocol, ...]
    member_id: str = ""
    generation: int = -1
    is_leader: bool = False
    members: tuple[str, ...] = ()
    """Whom it is to assign to."""
    must_join: bool = True
    must_sync: bool = False
    request_id: int | None = None

    def forget(self) -> None:
        """It begins anew: as a process that was started, or because it was told to."""
        self.member_id, self.generation, self.request_id = "", -1, None
        self.must_join, self.must_sync = True, False


@dataclass(slots=True)
class Asked:
    client: Client | None
    """None: nobody's, a stranger's."""
    request: Request
    at_ms: int


@dataclass(slots=True)
class Watched:
    """What is known of a member from outside."""

    heard_ms: int
    """The group had a sign of life of it, or freed it to give one."""
    synced: int = -1
    """The generation that it asked for its assignment of."""


@dataclass
class Clients:
    """One group, those who are in it, and what is stored of it."""

    now_ms: int = 0
    ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    asked: dict[int, Asked] = field(default_factory=dict)
    storing: tuple[int, bytes] | None = None
    owner: dict[str, str] = field(default_factory=dict)
    """Who a member id is: itself, or a static member's instance id."""
    told: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    """Of each generation: who leads, and the protocol."""
    assigned: dict[tuple[int, str], bytes] = field(default_factory=dict)
    watched: dict[str, Watched] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    phase_since_ms: int = 0
    generation_since: tuple[int, int] = (0, 0)
    """The generation that is told, and since when: so long its members may take to sync, Stable or
    not by then."""

    def __post_init__(self) -> None:
        self.group = ClassicGroup("g", SETTINGS, self._new_member_id, self.now_ms)
        self.stored = self.group.value
        self.state = self.group.state

    def _new_member_id(self, prefix: str) -> str:
        member_id = f"{prefix}-{next(self.ids)}"
        self.owner[member_id] = prefix if prefix.startswith("static") else member_id
        return member_id

    # ── Requests ──

    def ask(self, client: Client | None, request: Request) -> None:
        request_id = next(self.ids)
        self.asked[request_id] = Asked(client, request, self.now_ms)
        if client is not None:
            client.request_id = request_id
        group, now_ms = self.group, self.now_ms
        match request:
            case JoinRequest():
                self.event(lambda: group.join(request_id, request, now_ms))
            case SyncRequest():
                if request.generation == group.generation and request.member_id in self.watched:
                    self.watched[request.member_id].synced = request.generation
                self.event(lambda: group.sync(request_id, request, now_ms))
            case HeartbeatRequest():
                self.event(lambda: group.heartbeat(request_id, request, now_ms))
            case LeaveRequest(members=members):
                for one in members:
                    self.left.add(one.member_id or group.members.id_of(one.instance_id or "") or "")
                self.event(lambda: group.leave(request_id, request, now_ms))

    def join(self, client: Client) -> None:
        request = JoinRequest(
            version=client.version,
            client_id=client.name,
            client_host="/127.0.0.1",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=client.member_id,
            instance_id=client.instance_id,
            protocol_type="consumer",
            protocols=client.protocols,
        )
        self.ask(client, request)

    def sync(self, client: Client, members: tuple[str, ...]) -> None:
        """*members*: who gets something; something else each time."""
        shares = tuple((member_id, f"{next(self.ids)}".encode()) for member_id in members)
        request = SyncRequest(
            version=5,
            generation=client.generation,
            member_id=client.member_id,
            instance_id=client.instance_id,
            protocol_type="consumer",
            protocol=self.told[client.generation][1],
            assignments=shares,
        )
        self.ask(client, request)

    def heartbeat(self, client: Client) -> None:
        request = HeartbeatRequest(
            generation=client.generation,
            member_id=client.member_id,
            instance_id=client.instance_id,
        )
        self.ask(client, request)

    def leave(self, client: Client) -> None:
        leaving = LeavingMember(member_id=client.member_id, instance_id=client.instance_id)
        client.forget()
        self.ask(None, LeaveRequest(members=(leaving,)))

    # ── Everything that happens ──

    def event(self, event: Callable[[], list[Effect]]) -> None:
        before = {member.member_id: member for member in self.group.members}
        joined = {i for i, member in before.items() if member.join_id is not None}
        waited = {i for i, member in before.items() if _waits(member)}
        effects = event()
        self._check_lost(before, joined)
        for member in self.group.members:
            watched = self.watched.setdefault(member.member_id, Watched(self.now_ms))
            if member.member_id in waited and not _waits(member):
                watched.heard_ms = self.now_ms
            assert member.expires_ms is not None or member.waits or self.is_dead
        if self.group.state is not self.state:
            self.state, self.phase_since_ms = self.group.state, self.now_ms
        if self.group.generation != self.generation_since[0]:
            self.generation_since = self.group.generation, self.now_ms
        for effect in effects:
            match effect:
                case Answer(request_id, response):
                    self._told(request_id, response)
                case Persist(token, puts):
                    assert self.storing is None
                    value = puts[""]
                    assert value is not None
                    self.storing = token, value

    @property
    def is_dead(self) -> bool:
        return self.group.state is ClassicGroupState.DEAD

    def tick(self, to_ms: int) -> None:
        """Time passes; the machine is ticked when it asks for it."""
        while (deadline_ms := self.group.deadline_ms) is not None and deadline_ms <= to_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            now_ms = self.now_ms
            self.event(lambda: self.group.tick(now_ms))  # noqa: B023
            again_ms = self.group.deadline_ms
            assert again_ms is None or again_ms > self.now_ms
        self.now_ms = to_ms

    def write_ends(self, *, stored: bool) -> None:
        assert self.storing is not None
        (token, value), self.storing = self.storing, None
        for asked in self.asked.values():  # how long the store takes, nobody promises here
            asked.at_ms = self.now_ms
        if stored:
            self._put(value)
            self.event(lambda: self.group.persisted(token, self.now_ms))
        else:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            self.event(lambda: self.group.not_persisted(token, error, self.now_ms))

    def crash(self, *, stored: bool, graceful: bool) -> None:
        """Another coordinator has the group; what was being stored is, or is not."""
        if graceful:
            self.event(lambda: self.group.drop(ErrorCode.NOT_COORDINATOR))
            assert not self.asked
        for asked in self.asked.values():
            if asked.client is not None:
                asked.client.request_id = None
        self.asked.clear()
        if self.storing is not None and stored:
            self._put(self.storing[1])
        self.storing = None
        self.stored = claimed_value(self.stored)
        self.group = ClassicGroup.restore(
            "g", self.stored, SETTINGS, self._new_member_id, self.now_ms
        )
        self.watched = {m.member_id: Watched(self.now_ms) for m in self.group.members}
        for watched in self.watched.values():
            watched.synced = self.group.generation
        self.state, self.phase_since_ms = self.group.state, self.now_ms

    def _put(self, value: bytes) -> None:
        stored = decode_value(value)
        assert stored.generation >= decode_value(self.stored).generation
        self.stored = value
        for member in stored.members:
            key = stored.generation, self.owner[member.member_id]
            assert self.assigned.setdefault(key, member.assignment) == member.assignment

    # ── What they are told ──

    def _told(self, request_id: int, response: object) -> None:
        asked = self.asked.pop(request_id)  # KeyError: answered twice
        assert self.now_ms - asked.at_ms <= LONGEST_MS
        match asked.request, response:
            case JoinRequest(), JoinResponse():
                self._told_join(asked, response)
            case SyncRequest() as request, SyncResponse():
                self._told_sync(asked, request, response)
            case HeartbeatRequest() as request, HeartbeatResponse(error=error):
                if error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
                    self.watched[request.member_id].heard_ms = self.now_ms
                self._believe(asked, error)
            case LeaveRequest(), LeaveResponse():
                pass
            case _:
                raise AssertionError((asked.request, response))

    def _told_join(self, asked: Asked, response: JoinResponse) -> None:
        client = asked.client
        if client is not None and client.request_id is not None:
            client.member_id = response.member_id or client.member_id
        if response.error:
            self._believe(asked, response.error)
            return
        leader = self.owner.get(response.leader, "?")
        said = self.told.setdefault(response.generation, (leader, response.protocol))
        assert said == (leader, response.protocol)
        if client is None:
            return
        client.request_id = None
        client.generation = response.generation
        client.is_leader = response.leader == response.member_id
        client.members = tuple(member.member_id for member in response.members)
        assert client.is_leader == bool(client.members)
        client.must_join, client.must_sync = False, True
        if response.skip_assignment:
            client.members = ()

    def _told_sync(self, asked: Asked, request: SyncRequest, response: SyncResponse) -> None:
        self._believe(asked, response.error)
        if response.error:
            return
        stored = decode_value(self.stored)
        assert stored.generation == request.generation
        shares = {member.member_id: member.assignment for member in stored.members}
        assert shares[request.member_id] == response.assignment
        key = request.generation, self.owner[request.member_id]
        assert self.assigned[key] == response.assignment
        if asked.client is not None:
            asked.client.must_sync = False

    def _believe(self, asked: Asked, error: ErrorCode) -> None:
        """What a client makes of an error, as the Java client does."""
        client = asked.client
        if client is None:
            return
        client.request_id = None
        match error:
            case ErrorCode.NONE | ErrorCode.MEMBER_ID_REQUIRED:
                pass
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.FENCED_INSTANCE_ID:
                client.forget()
            case ErrorCode.REBALANCE_IN_PROGRESS | ErrorCode.ILLEGAL_GENERATION:
                client.must_join, client.must_sync = True, False
            case (
                ErrorCode.COORDINATOR_NOT_AVAILABLE
                | ErrorCode.NOT_COORDINATOR
                | ErrorCode.GROUP_MAX_SIZE_REACHED
                | ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            ):
                client.must_join, client.must_sync = True, False
            case _:
                raise AssertionError((asked, error))

    # ── Who is not there any more ──

    def _check_lost(self, before: dict[str, ClassicGroupMember], joined: set[str]) -> None:
        """Nobody is lost who did what was due of it."""
        for member_id, member in before.items():
            if member_id in self.group.members:
                continue
            watched = self.watched.pop(member_id)
            if member_id in self.left or self.is_dead:
                continue
            instance_id = member.instance_id
            if instance_id is not None and self.group.members.id_of(instance_id) is not None:
                continue  # it goes on under another id
            silent = self.now_ms - watched.heard_ms >= SESSION_MS and member_id not in joined
            phase_ms = self.now_ms - self.phase_since_ms
            late = phase_ms >= REBALANCE_MS
            preparing = self.state is ClassicGroupState.PREPARING_REBALANCE
            did_not_join = preparing and late and member_id not in joined
            no_sync_yet = watched.synced < self.group.generation
            too_late = self.now_ms - self.generation_since[1] >= REBALANCE_MS
            did_not_sync = not preparing and too_late and no_sync_yet
            waited_too_long = member.is_new and self.now_ms >= (member.expires_ms or 0)
            full = preparing and len(joined) >= SETTINGS.max_size
            assert silent or did_not_join or did_not_sync or waited_too_long or full, member


def _waits(member: ClassicGroupMember) -> bool:
    return member.join_id is not None or member.sync_id is not None
