"""The groups that this agent coordinates, while one session lives.

    request ──▶ in memory? ───────────────────────────────▶ `ServedGroup`
                  │ no; does the view place it on this agent?
                  └──▶ read its key ──▶ claim: put this session in it ──▶ read members and offsets
                         └─ no key: the first join or commit creates the group

    view places it elsewhere ──▶ drop it: NOT_COORDINATOR to all waiting requests
    the agents have changed  ──▶ list all groups, claim those that are now this agent's
    a topic is deleted       ──▶ delete its offsets            offsets expire ──▶ delete them

A claim compares the group's key with the value that was read, and this session's key.  It needs no
consent of another agent.  Every write of the previous coordinator compares the group's key too, so
it fails after the claim: a read after the claim is complete.  An answer comes from memory alone
only where no later coordinator can have changed it, or after `confirm`.

A loaded group keeps its generation, and its members get a full session timeout from the load:
only waiting requests notice a change of coordinator.

Shell.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

import structlog

from driftlog_agents.cluster.watch import ClusterWatch
from driftlog_agents.configs.group_settings import GroupSettings
from driftlog_agents.foundation.fair_queue import NOBODY, Client
from driftlog_agents.foundation.histogram import Histogram
from driftlog_agents.foundation.loop_slices import served_client, sliced, time_to_work
from driftlog_agents.foundation.offload import FairOffload
from driftlog_agents.foundation.tasks import spawn
from driftlog_agents.groups.classic.machine import ClassicGroup
from driftlog_agents.groups.classic.stored_value import ClassicValue
from driftlog_agents.groups.consumer.messages import ResolveRegexes
from driftlog_agents.groups.consumer.regex import PatternMatches, check
from driftlog_agents.groups.coordinator.budget import GroupBudget
from driftlog_agents.groups.coordinator.group_loader import GroupLoader
from driftlog_agents.groups.coordinator.group_runtime import ServedGroup
from driftlog_agents.groups.coordinator.group_timers import GroupTimers
from driftlog_agents.groups.coordinator.group_topics import GroupTopics
from driftlog_agents.groups.coordinator.offset_expiry import ForgottenOffsets
from driftlog_agents.groups.coordinator.placement import Coordinators
from driftlog_agents.groups.coordinator.write_batcher import Confirmations, GroupWrites
from driftlog_agents.groups.group_configs import GroupConfigs
from driftlog_agents.groups.offsets import page_of
from driftlog_agents.groups.storage_format import CONSUMER, decode_group
from driftlog_agents.groups.stored.repair import (
    UnreadableGroupError,
    remove_group,
    remove_pages,
)
from driftlog_agents.groups.stored.stored_groups import LISTED_BYTES, Listed, in_parts
from driftlog_agents.log.log_session import Engine
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.codec import decode_at
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError, FencedError
from driftlog_tiering.foundation.types import Offload

_T = TypeVar("_T")

_LOADS_AT_ONCE: Final = 16
"""Claims and reads of groups in flight.  More: a takeover of thousands of groups ends sooner, and
commits of loaded groups wait longer behind them."""

_LOOK_AGAIN_S: Final = 5.0
"""Delay of the second listing of groups after a change of the agents: it finds groups that were
created by an agent whose view was behind."""

MATCH_S: Final = 5.0
"""Longest time to match the patterns of a group; 100 patterns and 10,000 topics take 3 s."""

_NOT_ALIVE_S: Final = 0.1
"""Interval between two checks whether the session is alive again."""

_PAGE_TEXT_BYTES: Final = 64 * 1024
"""Bytes of the metadata texts of a page of offsets, at most: a commit of one of its 256 partitions
writes them all.  Kafka Streams has some 30 bytes a partition."""

_PAGE_TEXTS: Final = 16
"""So many texts of the largest size that is allowed always fit a page."""

_MEMBER_PREFIX_CHARS: Final = 8_000
"""Longest prefix from a client id in a member id; Kafka limits a string to 32,767 bytes."""


class GroupCoordinator:
    """See the module.  `run` while the engine's session lives.

    Args:
        budget: memory that all groups hold, and its limits.
        counters, loads: the agent's, over all sessions.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        cluster: ClusterWatch,
        coordinators: Coordinators,
        settings: GroupSettings,
        budget: GroupBudget,
        counters: Counter[str] | None = None,
        loads: Histogram | None = None,
    ) -> None:
        self._engine = engine
        self._session = engine.session
        self.session_id = engine.session.session_id
        self._cluster = cluster
        self._node_id = engine.agent.node_id
        self.settings = settings
        self._configs = GroupConfigs(settings, cluster.view)
        self._log = structlog.get_logger()
        self._rng = engine.ports.rng
        self._clock = engine.ports.now_ms
        self._since_1970_ms = engine.ports.wall_ms() - engine.ports.now_ms()
        threads = engine.ports.offload_groups or engine.ports.offload
        self.turns = FairOffload(threads, engine.ports.now_ms)
        """See `GroupHost`."""
        self.offload: Offload = partial(FairOffload(threads, engine.ports.now_ms).run, NOBODY, 0)
        """See `GroupHost`: all writes of groups wait for what it encodes, and for no decision."""
        self._checks = FairOffload(threads, engine.ports.now_ms)
        """Compiles patterns."""
        self._matches = FairOffload(threads, engine.ports.now_ms)
        """Matches patterns: other work waits for no more than the thread of a match."""
        self._coordinators = coordinators
        self.counted: Counter[str] = Counter() if counters is None else counters
        """Counts by metric name."""
        self.budget = budget
        self.page_text_bytes = max(
            _PAGE_TEXT_BYTES, _PAGE_TEXTS * settings.offset_metadata_max_bytes
        )
        self.writes = GroupWrites(engine.session, self.counted, engine.ports.quota)
        self._confirmations = Confirmations(engine.session)
        self.groups: dict[str, ServedGroup] = {}
        """Loaded groups, by id."""
        self._dropped: set[ServedGroup] = set()
        """Dropped groups with a write in flight."""
        self.complete = False
        """Whether `groups` holds every group of this agent that the last listing found."""
        self.loads = Histogram() if loads is None else loads
        """Seconds to claim and read a group."""
        self._loading: dict[str, asyncio.Future[ServedGroup | None]] = {}
        self._limit = asyncio.Semaphore(_LOADS_AT_ONCE)
        self._look = asyncio.Event()
        """Set: this agent lists all groups."""
        self._timers = GroupTimers[ServedGroup]()
        self._sooner = asyncio.Event()
        """Set: a new timer is due before all others."""
        self._forgetting = ForgottenOffsets(
            session=engine.session,
            view=cluster.view,
            groups=self.groups,
            settings=settings,
            counted=self.counted,
            clock_ms=engine.ports.now_ms,
        )
        self.topics = GroupTopics(cluster, self.groups, self._forgetting, self.offload)
        self._tasks: asyncio.TaskGroup | None = None
        self._loader = GroupLoader(
            session=engine.session,
            host=self,
            configs=self._configs,
            new_member_id=self._new_member_id,
            topics=lambda: self.topics.current,
        )

    def reconfigure(self, group_id: str) -> None:
        """The configs of a group have changed: its members get them with their next heartbeats."""
        served = self.groups.get(group_id)
        if served is not None and served.consumer is not None:
            served.consumer.reconfigure(self._configs.consumer(group_id))

    def now_ms(self) -> int:
        """See `GroupHost`."""
        return int(self._clock() + self._since_1970_ms)

    def nonce(self) -> str:
        """See `GroupHost`."""
        return f"{self._rng.getrandbits(64):016x}"

    def downgraded(self, group_id: str, value: ClassicValue) -> ClassicGroup:
        """See `GroupHost`."""
        return self._loader.downgraded(group_id, value)

    async def run(self) -> None:
        """Coordinate once the engine is ready, until cancelled.

        Raises:
            FencedError: the session ended; perhaps in an exception group.
        """
        await self._engine.ready.wait()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self.writes.run())
                tasks.create_task(self._confirmations.run())
                tasks.create_task(self._keep_time())
                tasks.create_task(self._load_all())
                tasks.create_task(self._forgetting.run())
                tasks.create_task(self.topics.run())
                try:
                    await self._follow()
                finally:
                    self._tasks = None  # a task group that is exiting takes no new task
        finally:
            self._end()

    def _end(self) -> None:
        for group in (*self.groups.values(), *self._dropped):
            group.drop(ErrorCode.NOT_COORDINATOR, session_over=True)
        self.groups.clear()
        self._dropped.clear()
        for future in self._loading.values():
            if not future.done():
                future.set_exception(RefusedError(ErrorCode.NOT_COORDINATOR))
                future.exception()
        self._loading.clear()

    # ── Which groups ──

    async def group(self, group_id: str) -> ServedGroup | None:
        """Return the group, loaded if needed; None: it does not exist.

        Raises:
            RefusedError: COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR; UNKNOWN_SERVER_ERROR: its
                stored values cannot be read.
        """
        self._check()
        group = self.groups.get(group_id)
        if group is not None:
            return group
        self._check_mine(group_id)
        return await self._load(group_id)

    async def made(self, group_id: str, kind: str) -> ServedGroup:
        """As `group`, but create a missing group; its first write stores it.

        An empty group of another *kind* is converted.  A classic group with members becomes one
        of KIP-848 where possible.  The result may still have another kind.
        """
        group = await self.group(group_id) or self.groups.get(group_id)
        if group is None:
            self._check()
            self._check_mine(group_id)
            self.budget.refuse_group(group_id, len(self.groups))
            group = self.groups[group_id] = self._loader.new(group_id, kind)
            group.account()
        elif group.kind != kind and group.machine.is_empty:
            group.become(self._loader.machine(group_id, kind))
        elif kind == CONSUMER and group.classic is not None:
            group.become(self._loader.upgraded(group.classic))
        return group

    async def delete(self, group_id: str) -> ErrorCode:
        """Delete the group and its offsets, if it is empty or unreadable; return when the store has
        deleted it.

        Raises:
            RefusedError: the deletion failed or its outcome is unknown.
        """
        try:
            group = await self.group(group_id)
        except UnreadableGroupError:
            return await self._repair(remove_group(self._session, group_id))
        return ErrorCode.GROUP_ID_NOT_FOUND if group is None else await group.delete()

    async def forget(self, group_id: str, wanted: Collection[TopicPartition]) -> None:
        """Delete the unreadable pages of an unreadable group that hold *wanted*.

        Raises:
            RefusedError: none of these pages is unreadable: the damage is elsewhere.
        """
        pages = {page_of(tp) for tp in wanted}
        if not await self._repair(remove_pages(self._session, group_id, pages)):
            raise RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR)

    async def _repair(self, repair: Awaitable[_T]) -> _T:
        try:
            return await repair
        except FencedError:
            raise RefusedError(ErrorCode.NOT_COORDINATOR) from None

    async def confirm(self, group: ServedGroup) -> None:
        """Return when the store says that this agent coordinated *group* after this call began.

        Raises:
            RefusedError: NOT_COORDINATOR.
        """
        if await self._confirmations.confirm(group.key, group.revision):
            return
        # This agent may have written the key meanwhile: the session in its value decides.
        kv = None
        with contextlib.suppress(FencedError):  # Unknown: treated as another agent's group.
            kv = await self._session.read(group.key) if self._session.alive else None
        mine = False
        with contextlib.suppress(CorruptError):  # No agent wrote this value.
            mine = kv is not None and (
                decode_at(kv.key, kv.value, decode_group).session_id == self._session.session_id
            )
        if mine and group.dropped is None:
            return
        self.lost(group)
        raise RefusedError(ErrorCode.NOT_COORDINATOR)

    def _check(self) -> None:
        if self._tasks is None:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not self._session.alive:
            raise RefusedError(ErrorCode.NOT_COORDINATOR)

    def _check_mine(self, group_id: str) -> None:
        if self._coordinators.of(group_id) != self._node_id:
            raise RefusedError(ErrorCode.NOT_COORDINATOR)

    def _new_member_id(self, prefix: str) -> str:
        number = UUID(int=self._rng.getrandbits(128), version=4)
        return f"{prefix[:_MEMBER_PREFIX_CHARS]}-{number}"

    def lost(self, group: ServedGroup) -> None:
        """See `GroupHost`; whatever the view says."""
        if self.groups.get(group.group_id) is group:
            self._log.info("group_lost", group=group.group_id)
            self.counted["driftlog_groups_lost"] += 1
        self._drop(group)

    def failed(self, group: ServedGroup) -> None:
        """Drop a group whose code failed; the next request loads it as it is stored."""
        self._log.exception(
            "group_bug",
            group=group.group_id,
            advice="report this line: the group is dropped, and loaded again by the next request",
        )
        self._drop(group)

    def _drop(self, group: ServedGroup) -> None:
        if self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
        group.drop(ErrorCode.NOT_COORDINATOR)
        self._dropped = {one for one in self._dropped if one.is_writing}
        if group.is_writing:
            self._dropped.add(group)

    def removed(self, group: ServedGroup) -> None:
        """See `GroupHost`."""
        if self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
            group.release()
        self._dropped.discard(group)

    # ── Changes of the cluster ──

    async def _follow(self) -> None:
        """Drop groups that the view places on another agent, until cancelled."""
        nodes: tuple[int, ...] | None = None
        with self._cluster.changes() as changed:
            while True:
                changed.clear()
                if nodes != self._coordinators.nodes:
                    nodes = self._coordinators.nodes
                    await self._reassign()
                await changed.wait()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """See `GroupHost`."""
        if self._tasks is None:
            work.close()
            return
        with contextlib.suppress(FencedError):
            spawn(self._tasks, work)

    async def check_pattern(self, pattern: str) -> None:
        """Check that *pattern* is valid, in the turn of the calling task's client: that may take
        30 ms, with the GIL.

        Raises:
            RefusedError: INVALID_REGULAR_EXPRESSION with the reason.
        """
        await self._checks.run(served_client(), 0, check, pattern)

    def resolve(
        self, group: ServedGroup, wanted: ResolveRegexes, clients: Collection[Client]
    ) -> None:
        """See `GroupHost`."""
        self.spawn(self._resolved(group, wanted, clients))

    async def _resolved(
        self, group: ServedGroup, wanted: ResolveRegexes, clients: Collection[Client]
    ) -> None:
        matches = PatternMatches(
            wanted.patterns,
            wanted.topics,
            most_bytes=self.budget.limits.driftlog_max_group_bytes,
            most_ms=MATCH_S * 1000,
            now_ms=self._clock,
            goes_on=lambda: self._tasks is not None,
        )
        while not group.is_dropped and await self._matches.run_for(clients, 0, matches.go_on):
            pass
        found = matches.found
        if len(found) < len(wanted.patterns) and not group.is_dropped:
            if matches.in_time:
                self.budget.refusals.count("driftlog.max.group.bytes")
            self._log.warning(
                "group_patterns_match_too_much",
                group=group.group_id,
                patterns=len(wanted.patterns) - len(found),
                advice="members that subscribe to these patterns are assigned nothing: subscribe "
                + (
                    "to fewer, or raise driftlog.max.group.bytes"
                    if matches.in_time
                    else f"by simpler ones, they took longer than {MATCH_S:g} s"
                ),
            )
        group.resolved(dict.fromkeys(wanted.patterns, frozenset[str]()) | found)

    async def _reassign(self) -> None:
        self.complete = False
        self._look.set()
        async for group in sliced(list(self.groups.values())):
            if self._coordinators.of(group.group_id) != self._node_id:
                self._drop(group)

    # ── Loading ──

    async def _load(self, group_id: str) -> ServedGroup | None:
        """Load a group once for all concurrent requests."""
        future = self._loading.get(group_id)
        if future is not None:
            group = await _result(future) or self.groups.get(group_id)
            if group is not None:
                return group
            # Another agent may have created it between that read and this request.
            self._check()
            self._check_mine(group_id)
            future = self._loading.get(group_id)
        if future is None:
            if self._tasks is None:
                raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            future = asyncio.get_running_loop().create_future()
            try:
                spawn(self._tasks, self._loaded(group_id, future))
            except FencedError:
                raise RefusedError(ErrorCode.NOT_COORDINATOR) from None
            self._loading[group_id] = future
        try:
            return await _result(future)
        finally:
            del future  # Its error's traceback holds this frame: avoid a reference cycle.

    async def _loaded(self, group_id: str, future: asyncio.Future[ServedGroup | None]) -> None:
        def wanted() -> bool:
            return group_id not in self.groups and self._coordinators.of(group_id) == self._node_id

        began_ms = self._clock()
        error: RefusedError | None = RefusedError(ErrorCode.NOT_COORDINATOR)
        group: ServedGroup | None = None
        try:
            async with self._limit:
                group = await self._loader.load(group_id, wanted)
            if group is None or wanted():
                error = None
        except RefusedError as refused:
            error = refused
        finally:  # Whatever happens, every waiting request is answered.
            del self._loading[group_id]
            if group_id in self.groups:  # Created by a request that found no such group.
                group, error = self.groups[group_id], None
            elif group is not None and error is None:
                self._serve(group)
                self.loads.add((self._clock() - began_ms) / 1000)
            if future.done():
                pass  # The session is over, and `_end` has answered the requests.
            elif error is None:
                future.set_result(group)
            else:
                future.set_exception(error)
                future.exception()
            del future, error  # The error's traceback holds this frame.

    def _serve(self, group: ServedGroup) -> None:
        self.groups[group.group_id] = group
        if group.consumer is not None:  # They may have changed while it was restored in a thread.
            group.consumer.topics = self.topics.current
            group.consumer.reconfigure(self._configs.consumer(group.group_id))
        group.account()
        self.schedule(group)
        if not group.offsets.topic_ids <= self._cluster.view.topics.keys():
            self._forgetting.look()

    async def _load_all(self) -> None:
        """Load all groups of this agent after each change of the agents, until cancelled."""
        while True:
            await self._look.wait()
            self._look.clear()
            for again in (False, True):
                await self._load_mine()
                if again or self._look.is_set():
                    break
                try:
                    async with asyncio.timeout(_LOOK_AGAIN_S):
                        await self._look.wait()
                except TimeoutError:
                    pass

    async def _load_mine(self) -> None:
        began_ms, loaded = self._clock(), 0
        listed = await self._loader.listed()
        left = [one async for one in sliced(listed) if self._is_missing(one.group_id)]
        for part in in_parts(left, LISTED_BYTES, lambda one: one.key_bytes):
            if self._look.is_set():
                return  # The agents have changed again.
            some = [one for one in part if self._is_missing(one.group_id)]
            loaded += await self._load_some(some) if some else 0
        self.complete = not self._look.is_set()
        if loaded:
            self._log.info(
                "groups_loaded", groups=loaded, seconds=round((self._clock() - began_ms) / 1000, 3)
            )

    def _is_missing(self, group_id: str) -> bool:
        return (
            group_id not in self.groups
            and group_id not in self._loading
            and self._coordinators.of(group_id) == self._node_id
        )

    async def _load_some(self, some: Sequence[Listed]) -> int:
        """Load groups in one transaction, and the failed ones one by one; return how many the
        transaction loaded."""
        loop, began_ms = asyncio.get_running_loop(), self._clock()
        futures: dict[str, asyncio.Future[ServedGroup | None]] = {
            one.group_id: loop.create_future() for one in some
        }
        self._loading.update(futures)  # Requests for one of them wait for it meanwhile.
        async with self._limit:
            found = await self._loader.load_many(some)
        assert self._tasks is not None
        for group_id, future in futures.items():
            group = found.get(group_id)
            if group is not None and self._coordinators.of(group_id) == self._node_id:
                del self._loading[group_id]
                self._serve(group)
                self.loads.add((self._clock() - began_ms) / 1000)
                future.set_result(group)
            else:
                spawn(self._tasks, self._loaded(group_id, future))
        await asyncio.wait(futures.values())
        return len(found)

    # ── Time ──

    def schedule(self, group: ServedGroup) -> None:
        """Schedule the group's next tick; a deadline after the scheduled one changes nothing."""
        deadline_ms = group.deadline_ms
        if deadline_ms is None or group.is_dropped:
            if group.is_of_no_use:
                self.removed(group)
        elif self._timers.schedule(group, deadline_ms, len(self.groups)):
            self._sooner.set()

    async def _keep_time(self) -> None:
        while True:
            self._sooner.clear()
            wait_ms = self._timers.wait_ms(self.now_ms())
            if wait_ms is None or wait_ms > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if wait_ms is None else wait_ms / 1000):
                        await self._sooner.wait()
                continue
            if not self._session.alive:
                # Ended by the agent's clock; the store has not confirmed that.
                await asyncio.sleep(_NOT_ALIVE_S)
                continue
            while self._tick():
                await time_to_work()  # A rebalance of a large group takes milliseconds.
            await asyncio.sleep(0)

    def _tick(self) -> bool:
        """Tick the group of the first timer; False: the timer is not due."""
        wait_ms = self._timers.wait_ms(self.now_ms())
        if wait_ms is None or wait_ms > 0:
            return False
        group = self._timers.take()
        if group is not None:
            deadline_ms = group.deadline_ms
            if deadline_ms is not None and deadline_ms <= self.now_ms():
                group.tick()
            self.schedule(group)
        return True


async def _result(future: asyncio.Future[_T]) -> _T:
    try:
        return await asyncio.shield(future)
    finally:
        del future  # As in `_load`.
