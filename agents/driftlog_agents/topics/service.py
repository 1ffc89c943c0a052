"""Topics: created, changed and deleted in the metadata store, repeated in the bucket, and led.

    create   topic key (create-only) ──▶ topic/1.json   ──▶ done ──▶ seen by all, led ──▶ answered
    change   topic key (its revision) ──▶ topic/n+1.json ──▶ done ──▶ seen by all, led ──▶ answered
    delete   tombstone (topic's revision) ──▶ stop serving ──▶ deleted.json ──▶ remove the keys
             ──▶ done ──▶ seen by all ──▶ answered

    every agent: watch of the topics ──▶ what is known here ──▶ the engine ──▶ leads its share

1. A key that was put is the truth; what follows it is repeated until it is done, by this session
   or, after a crash, by the next one and by the agents that are left (`reconcile`).
2. The tombstone decides a deletion: while it is there nothing brings the topic back, no late copy
   of a create or change either.  The topic's objects go later (`collector`).
3. The newest file of a topic says what its key says (`topics/bucket_files`).
4. A client that is told that a change is done finds it at every live agent, unless one is silent
   for longer than the client is patient, or this one leaves: each says in its session's key which
   revision of the topics it has seen.  What is done is never answered as if it were not.

What changes topics runs in tasks of `run`, so that a client that hangs up cuts nothing in half;
per name one after the other.  It needs a session that lives, also of an agent that leaves; where
one ends meanwhile, the next one goes on with it.

Shell.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import structlog

from driftlog_agents.cluster.view import TopicEntry
from driftlog_agents.configs.definitions import InvalidConfigError
from driftlog_agents.configs.topic import TOPIC_CONFIGS, validate
from driftlog_agents.log.log_session import Engine
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.topics.bucket_files import TopicBucketFiles
from driftlog_agents.topics.catalog import TopicCatalog
from driftlog_agents.topics.change_queue import TopicChangeQueue
from driftlog_agents.topics.host import TopicHost
from driftlog_agents.topics.reconciler import TopicReconciler
from driftlog_agents.topics.transactions import Change, TopicTransactions
from driftlog_agents.topics.validation import (
    MAX_PARTITIONS,
    NewTopic,
    check_partitions,
    check_total,
)
from driftlog_metadata.schema.keys import TOPICS_PREFIX
from driftlog_metadata.schema.model import Topic, TopicPartition

_SESSION_S: Final = 10.0
"""How long a change waits for a session: longer than an agent that was paused takes to begin one.
Kafka's brokers ask the controller until the request has timed out."""

_MESSAGE_BYTES: Final = "driftlog.max.message.bytes"

_PARTING_S: Final = 2.0
"""How long an agent that leaves keeps an answer back.  Longer than leaving takes in health."""

_SEEN_S: Final = 10.0
_LED_S: Final = 15.0
"""How long a change waits for other agents: longer than a lease lasts without a keep-alive, and as
long as a takeover takes."""

_Work = Callable[[Engine, Change], Coroutine[Any, Any, tuple[Topic, int]]]
"""Makes a change; returns what it came to, and at which revision."""


class Topics:
    """See the module.  `run` while the agent runs; `reconcile` whenever a session is ready."""

    def __init__(self, host: TopicHost) -> None:
        self._host = host
        self._log = structlog.get_logger()
        self._files = TopicBucketFiles(host)
        self._known = known = TopicCatalog(self.agent_configs, host.settings.seal_ms)
        self.by_name = known.by_name
        """Every topic, also between two sessions."""
        self.by_id = known.by_id
        self.check_new_name = known.check_new_name
        self.limits = known.limits
        """Of every topic, by name; produce looks here."""
        self.sealing = known.sealing
        """What topics say of their segments, by name."""
        host.cluster.on_topic = self._changed
        self._turns = TopicChangeQueue()
        self._next_session = asyncio.Event()
        self._asked_for: dict[str, asyncio.Task[ErrorCode]] = {}
        """Topics that are created automatically, for a client that named them."""
        self._commits = TopicTransactions(self._turns, self._files, known)
        self._repair = TopicReconciler(
            host, known, self._turns, self._files, self._commits.finish_deletion
        )
        self.repaired = self._repair.repaired
        """The files of all topics were looked through in this session."""

    @property
    def known(self) -> bool:
        """Whether `by_name` is all there is: not before the topics were read once."""
        return TOPICS_PREFIX in self._host.view.loaded

    @property
    def agent_configs(self) -> dict[str, str]:
        """The agent's settings that topics inherit and that are not Kafka's defaults, by broker
        config."""
        largest = str(self._host.settings.message_max_bytes)
        if largest == TOPIC_CONFIGS["max.message.bytes"].default:
            return {}
        return {"message.max.bytes": largest}

    @property
    def pending(self) -> int:
        """Changes that were asked for and are not done."""
        return self._turns.pending

    async def run(self) -> None:
        """Carry out what is asked for, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._turns.tasks = tasks
            try:
                await self._repair.after_others()
            finally:
                self._turns.tasks = None

    async def reconcile(self) -> None:
        """Finish what was begun before a session that is ready now (`topics/reconciler`)."""
        self._next_session.set()
        await self._repair.reconcile()

    # ── What clients ask for ──

    async def create(
        self,
        new: NewTopic,
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
        everywhere: bool = True,
    ) -> Topic:
        """Make a topic and lead it; returns it as it is, or would be.

        Args:
            timeout_s: how long the client waits.
            everywhere: wait until all agents know it, and it is led.

        Raises:
            RefusedError: INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS,
                INVALID_CONFIG; NOT_CONTROLLER: no session in time, nothing to be relied on.
            TimeoutError: it is not made yet; it will be.
        """
        change = Change(timeout_s)
        topic = self._checked(await self._led(change), new)
        if validate_only:
            return topic

        async def create(engine: Engine, change: Change) -> tuple[Topic, int]:
            return await self._commits.create(engine, change, topic)

        return await self._made(change, create, making=topic.name, everywhere=everywhere)

    def ask_for(self, name: str) -> asyncio.Task[ErrorCode] | None:
        """Begin to create a topic, in the background; requests for the same topic share it.

        Returns what says why it was not made, or NONE; None: it is being created, or
        no agent could now.
        """
        asked = self._asked_for.get(name)
        if asked is None and not self.is_making(name):
            tasks = self._turns.tasks
            if tasks is None or self._session() is None:
                return None
            asked = self._asked_for[name] = tasks.create_task(self._make(name))
        return asked

    async def _make(self, name: str) -> ErrorCode:
        try:
            await self.create(NewTopic(name=name), everywhere=False)
        except RefusedError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # Another agent was faster.
                self._log.warning("topic_not_made", topic=name, error=str(error))
            return error.code
        finally:
            del self._asked_for[name]
            self._host.cluster.wake()
        return ErrorCode.NONE

    def is_making(self, name: str) -> bool:
        """Whether this topic was requested and is not there yet."""
        return name in self._turns.making

    async def delete(self, topic: Topic, *, timeout_s: float | None = None) -> None:
        """Delete a topic: it is gone for clients when this returns.

        Raises:
            RefusedError: UNKNOWN_TOPIC_ID: it is gone already; NOT_CONTROLLER.
            TimeoutError: it is not deleted yet; it will be.
        """

        async def delete(engine: Engine, change: Change) -> tuple[Topic, int]:
            return await self._commits.delete(engine, change, topic)

        await self._made(Change(timeout_s), delete, led=False)

    async def create_partitions(
        self,
        topic: Topic,
        count: int,
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
    ) -> Topic:
        """Let a topic have *count* partitions, more than before.

        Raises:
            RefusedError: INVALID_PARTITIONS, UNKNOWN_TOPIC_OR_PARTITION, NOT_CONTROLLER.
            TimeoutError: they are not made yet; they will be.
        """

        def extended(now: Topic) -> Topic:
            if count == now.partitions:
                raise RefusedError(
                    ErrorCode.INVALID_PARTITIONS, f"Topic already has {count} partition(s)."
                )
            if count < now.partitions:
                raise RefusedError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"The topic {now.name} currently has {now.partitions} partition(s); "
                    f"{count} would not be an increase.",
                )
            check_partitions(count)
            self._check_total(count - now.partitions)
            return replace(now, partitions=count)

        return await self._change(topic, extended, validate_only=validate_only, timeout_s=timeout_s)

    async def alter_configs(
        self,
        topic: Topic,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        *,
        validate_only: bool = False,
    ) -> Topic:
        """Set the topic's configs to what *change* makes of them; it may be asked twice.

        Raises:
            RefusedError: INVALID_CONFIG, UNKNOWN_TOPIC_OR_PARTITION, NOT_CONTROLLER.
        """

        def altered(now: Topic) -> Topic:
            try:
                configs = dict(change(now.configs))
                validate(configs)
                self._check_cap(configs, now.configs)
            except InvalidConfigError as error:
                raise RefusedError(ErrorCode.INVALID_CONFIG, str(error)) from error
            return replace(now, configs=configs)

        return await self._change(topic, altered, validate_only=validate_only)

    async def _change(
        self,
        topic: Topic,
        alter: Callable[[Topic], Topic],
        *,
        validate_only: bool,
        timeout_s: float | None = None,
    ) -> Topic:
        change = Change(timeout_s)
        await self._led(change)
        changed = alter(topic)
        if validate_only:
            return changed

        async def update(engine: Engine, change: Change) -> tuple[Topic, int]:
            return await self._commits.update(engine, change, topic, alter)

        return await self._made(change, update)

    async def parting(self) -> None:
        """Return when what was changed may be answered: at once, unless this agent leaves.

        Then with the end of its connections.  Whoever was answered before would ask the next
        thing here, and have no answer: librdkafka does not ask it again.
        """
        engine = self._host.engine
        if engine is not None and engine.leaving:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PARTING_S):
                    await engine.over.wait()

    # ── From session to session ──

    def _session(self) -> Engine | None:
        """What changes can be made with now: also of an agent that leaves, as long as it can."""
        engine = self._host.engine
        if engine is None or self._turns.tasks is None or not engine.session.alive:
            return None
        return engine if engine.ready.is_set() or engine.leaving else None

    async def _led(self, change: Change) -> Engine:
        """The engine to make *change* with; between two sessions that of the next one.

        An agent that has left says nothing: its connections are closed at once, as a broker's,
        and some clients take NOT_CONTROLLER for the end of it.

        Raises:
            RefusedError: NOT_CONTROLLER: there is none in time, or none will be.  The one error
                that makes admin clients ask another agent by themselves.
        """
        patience_s = _SESSION_S if change.left_s is None else min(change.left_s, _SESSION_S)
        engine = self._session()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while engine is None and self._turns.tasks is not None:
                    self._next_session.clear()
                    await self._next_session.wait()
                    engine = self._session()
        if engine is None:
            raise RefusedError(
                ErrorCode.NOT_CONTROLLER, "the agent has no session; try again, or another agent"
            )
        return engine

    async def _made(
        self,
        change: Change,
        work: _Work,
        *,
        making: str = "",
        everywhere: bool = True,
        led: bool = True,
    ) -> Topic:
        """Have *work* done, by this session or the next one, and then seen by all.

        Raises:
            RefusedError: what *work* raises; NOT_CONTROLLER.
            TimeoutError: it is not done yet, and the client waits no longer.
        """
        engine = await self._led(change)
        while change.done is None:
            try:
                async with asyncio.timeout(change.left_s):
                    await self._owned(engine, change, work, making)
            except RefusedError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER or self._session() is engine:
                    raise
                engine = await self._led(change)
            except TimeoutError:
                if change.done is None:
                    raise
        topic, revision = change.done
        if everywhere:
            with suppress(TimeoutError):
                async with asyncio.timeout(change.left_s):
                    await self._everywhere(engine, revision, topic if led else None)
        return topic

    async def _owned(self, engine: Engine, change: Change, work: _Work, making: str) -> None:
        """Do *work* independent of its waiters; an agent that leaves finishes it, for a moment."""

        async def do() -> None:
            try:
                change.done = await work(engine, change)
            finally:
                over()

        def over() -> None:
            engine.changing.discard(change)
            if engine.leaving:
                self._host.cluster.wake()

        if making:
            self._turns.making.add(making)
        engine.changing.add(change)
        try:
            await self._turns.owned(do(), making)
        except RefusedError:
            over()  # It may not even have begun.
            raise

    async def _everywhere(self, engine: Engine, revision: int, topic: Topic | None) -> None:
        """Wait until every live agent knows the topics as of *revision*, and *topic* is led.

        Not for ever: an agent that is gone is waited for until its lease has ended.  And not by
        one that leaves, which the others do not wait for either.
        """
        view, cluster = self._host.view, self._host.cluster
        mine = engine.session.session_id

        def ends() -> bool:
            return engine.leaving or not engine.session.alive

        def seen() -> bool:
            if ends():
                return True
            return view.topics_revision >= revision and view.seen_by_all(revision, but=mine)

        if not await cluster.until(seen, _SEEN_S):
            late = [
                entry.said.node_id
                for entry in view.sessions.values()
                if entry.said.topics_revision < revision
            ]
            self._log.warning(
                "topic_change_not_seen_by_all",
                agents=late,
                advice="their clients learn of it when they go on, or when their leases end",
            )
        if topic is None:
            return
        waiting = [TopicPartition(topic.topic_id, number) for number in range(topic.partitions)]

        def led() -> bool:
            if ends() or topic.topic_id not in view.topics:  # Deleted meanwhile.
                return True
            while waiting:
                leader, _ = view.leader_of(waiting[-1])
                if leader is None or (leader.session_id == mine and not engine.find(waiting[-1])):
                    return False
                waiting.pop()
            return True

        await cluster.until(led, _LED_S)

    # ── Checks ──

    def _check_total(self, added: int) -> None:
        agents = len(self._host.view.agents)
        most = self._host.settings.limits.driftlog_max_partitions
        try:
            check_total(self._known.partitions, added, agents, most)
        except RefusedError:
            self._host.refusals.count(MAX_PARTITIONS)
            raise

    def _checked(self, engine: Engine, new: NewTopic) -> Topic:
        self.check_new_name(new.name)
        partitions = new.partitions
        if partitions == -1:
            partitions = self._host.settings.num_partitions
        if partitions < 1:
            raise RefusedError(
                ErrorCode.INVALID_PARTITIONS,
                "Number of partitions was set to an invalid non-positive value.",
            )
        check_partitions(partitions)
        self._check_total(partitions)
        replication_factor = new.replication_factor
        if replication_factor == -1:
            replication_factor = self._host.settings.default_replication_factor
        try:
            validate(new.configs)
            self._check_cap(new.configs, {})
        except InvalidConfigError as error:
            raise RefusedError(ErrorCode.INVALID_CONFIG, str(error)) from error
        return Topic(
            name=new.name,
            topic_id=UUID(int=engine.ports.rng.getrandbits(128), version=4),  # Never zero.
            partitions=partitions,
            replication_factor=replication_factor,
            configs=dict(new.configs),
        )

    def _check_cap(self, configs: Mapping[str, str], before: Mapping[str, str]) -> None:
        """Whether batches may be so large; what is there stays.

        Raises:
            InvalidConfigError: they may not.
        """
        name, most = "max.message.bytes", self._host.settings.limits.driftlog_max_message_bytes
        wanted = configs.get(name)
        if wanted is not None and wanted != before.get(name) and int(wanted) > most:
            self._host.refusals.count(_MESSAGE_BYTES)
            raise InvalidConfigError(
                f"Invalid value {wanted} for configuration {name}: Value must be no more than "
                f"{most}, which is {_MESSAGE_BYTES} of the agent"
            )

    # ── What is known ──

    def _changed(self, old: TopicEntry | None, new: TopicEntry | None) -> None:
        """What the watch tells."""
        engine = self._host.engine
        if new is not None:
            self._known.know(new.topic)  # Before it is led: a batch asks for its limits.
            if engine is not None:
                engine.know(new.topic)
        elif old is not None:
            self._known.forget(old.topic)
            if engine is not None:
                engine.remove_topic(old.topic.topic_id)
