"""A classic group keeps its promises under every schedule that Hypothesis finds.

1. Every request is answered once, and within a bounded time even if nobody says anything more.
2. A stored generation never goes back; a generation has one leader and one protocol for all whom
   it is told to, and names one assignment for each member, also when a coordinator crashes.
3. Nobody is told of an assignment that is not stored.
4. No member is lost that gives signs of life in time, joins rebalances and asks for its assignment.
5. A machine that was ticked asks for a later time.

`classic_clients` holds them.
Pure.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from driftlog_agents.groups.classic.description import ClassicGroupState
from driftlog_agents.groups.classic.machine import ClassicGroup
from driftlog_agents.groups.classic.messages import (
    HeartbeatRequest,
    LeaveRequest,
    LeavingMember,
    Protocol,
    SyncRequest,
)
from tests.agents.groups.classic_clients import LONGEST_MS, SETTINGS, Client, Clients

CLIENTS = 4
PROTOCOLS = (
    (Protocol("range", b"1"),),
    (Protocol("range", b"2"), Protocol("roundrobin", b"2")),
    (Protocol("roundrobin", b"3"), Protocol("range", b"3")),
)
clients = st.integers(0, CLIENTS - 1)
seldom = st.sampled_from((False, False, False, True))


class Schedules(RuleBasedStateMachine):
    """Clients that mostly do what they should, a store that sometimes fails, and unknown_keys."""

    def __init__(self) -> None:
        super().__init__()
        self.world = Clients()
        self.clients: list[Client] = []
        self.store_is_slow = False

    @initialize(data=st.data())
    def begin(self, data: Any) -> None:
        for at in range(CLIENTS):
            static = data.draw(st.booleans())
            self.clients.append(
                Client(
                    name=f"dynamic{at}",
                    instance_id=f"static{at}" if static else None,
                    version=data.draw(st.sampled_from((3, 5, 9) if not static else (5, 9))),
                    protocols=data.draw(st.sampled_from(PROTOCOLS)),
                )
            )

    @rule(
        order=st.lists(clients, min_size=4, max_size=12),
        ms=st.sampled_from((10, 200, 600)),
        fails=seldom,
    )
    def they_go_on(self, order: list[int], ms: int, fails: bool) -> None:
        """As most of the time: each does what is due, and the store does what it is to do."""
        for at in order:
            self.does_what_is_due(at, thorough=True)
            if self.world.storing is not None and not self.store_is_slow:
                self.world.write_ends(stored=not fails)
            self.world.tick(self.world.now_ms + ms)

    @rule(slow=st.booleans())
    def the_store_slows_down(self, slow: bool) -> None:
        self.store_is_slow = slow

    @rule(at=clients, thorough=st.booleans())
    def does_what_is_due(self, at: int, thorough: bool) -> None:
        """*thorough*: a leader assigns to all; else it forgets one."""
        client, world = self.clients[at], self.world
        if client.request_id is not None:
            return
        if client.must_join:
            world.join(client)
        elif client.must_sync:
            world.sync(client, client.members if thorough else client.members[1:])
        else:
            world.heartbeat(client)

    @rule(at=clients)
    def heartbeats_meanwhile(self, at: int) -> None:
        """As clients do from another thread, while they wait for their assignment."""
        client = self.clients[at]
        if client.must_sync:
            self.world.ask(
                None,
                HeartbeatRequest(
                    generation=client.generation,
                    member_id=client.member_id,
                    instance_id=client.instance_id,
                ),
            )

    @rule(at=clients)
    def asks_again(self, at: int) -> None:
        """The connection broke: the first request is nobody's now, and still owed an answer."""
        client = self.clients[at]
        if client.request_id is not None:
            self.world.asked[client.request_id].client = None
            client.request_id = None
            self.does_what_is_due(at, thorough=True)

    @rule(at=clients, seldom=seldom)
    def starts_again(self, at: int, seldom: bool) -> None:
        """Its process was killed."""
        if not seldom:
            self.does_what_is_due(at, thorough=True)
            return
        client = self.clients[at]
        if client.request_id is not None:
            self.world.asked[client.request_id].client = None
        client.forget()

    @rule(at=clients)
    def comes_back(self, at: int) -> None:
        """Killed and started in one breath: what static membership is for."""
        self.starts_again(at, seldom=True)
        self.does_what_is_due(at, thorough=True)

    @rule(at=clients, seldom=seldom)
    def leaves(self, at: int, seldom: bool) -> None:
        if not seldom:
            self.does_what_is_due(at, thorough=True)
            return
        client = self.clients[at]
        if client.request_id is not None:
            self.world.asked[client.request_id].client = None
        self.world.leave(client)

    @rule(at=clients, protocols=st.sampled_from(PROTOCOLS))
    def has_something_else_to_say(self, at: int, protocols: tuple[Protocol, ...]) -> None:
        client = self.clients[at]
        client.protocols = protocols
        client.must_join = True

    @rule(at=clients, behind=st.integers(-1, 2), share=st.binary(max_size=2))
    def a_stranger_speaks(self, at: int, behind: int, share: bytes) -> None:
        """With a member's id, and another generation or other assignments."""
        client, world = self.clients[at], self.world
        generation = client.generation - behind
        world.ask(None, HeartbeatRequest(generation=generation, member_id=client.member_id))
        shares = tuple((member_id, share) for member_id in client.members)
        request = SyncRequest(
            version=3, generation=generation, member_id=client.member_id, assignments=shares
        )
        world.ask(None, request)

    @rule(at=clients, seldom=seldom)
    def an_administrator_removes(self, at: int, seldom: bool) -> None:
        if not seldom:
            self.does_what_is_due(at, thorough=True)
            return
        instance_id = f"static{at}"
        leaving = LeavingMember(member_id="", instance_id=instance_id)
        self.world.ask(None, LeaveRequest(members=(leaving,)))

    @rule(ms=st.sampled_from((1, 400, 3_000, 3_000, 9_000, 16_000, 310_000)))
    def time_passes(self, ms: int) -> None:
        if ms > LONGEST_MS / 10 and self.world.storing is not None:
            # Who waits for a write waits for nothing else: no write takes minutes, for the session
            # would be over.
            self.world.write_ends(stored=True)
        self.world.tick(self.world.now_ms + ms)

    @precondition(lambda self: self.world.storing is not None)
    @rule(stored=st.booleans() | st.just(True))
    def the_write_ends(self, stored: bool) -> None:
        self.world.write_ends(stored=stored)

    @rule(stored=st.booleans(), graceful=st.booleans(), seldom=seldom)
    def the_coordinator_changes(self, stored: bool, graceful: bool, seldom: bool) -> None:
        if not seldom:
            return
        self.world.crash(stored=stored, graceful=graceful)

    @rule()
    def it_is_deleted(self) -> None:
        """When it is empty; it is a new group then, which begins at generation 0."""
        group = self.world.group
        if self.world.storing is not None or group.begin_delete():
            return
        asked = self.world.asked
        for client in self.clients:
            client.forget()
        now_ms = self.world.now_ms
        self.world = Clients(now_ms=now_ms)
        assert not asked

    @invariant()
    def what_is_stable_can_be_restored(self) -> None:
        world, group = self.world, self.world.group
        if group.state is not ClassicGroupState.STABLE:
            return
        again = ClassicGroup.restore("g", group.value, SETTINGS, str, world.now_ms)
        assert group.describe() == again.describe()
        assert group.members.leader == again.members.leader
        assert group.generation == again.generation

    def teardown(self) -> None:
        """Nobody says anything more, and the store works: all are answered in the end."""
        world = self.world
        until_ms = world.now_ms + LONGEST_MS
        while world.now_ms < until_ms and world.asked:
            if world.storing is not None:
                world.write_ends(stored=True)
            else:
                deadline_ms = world.group.deadline_ms
                assert deadline_ms is not None, world.asked
                world.tick(max(deadline_ms, world.now_ms))
        assert not world.asked


Schedules.TestCase.settings = settings(max_examples=150, stateful_step_count=60)
TestSchedules = Schedules.TestCase
