"""Topics: created, changed and deleted in the metadata store, copied to the bucket, and led.

    create   topic key (create-only) ──▶ topic/1.json   ──▶ done ──▶ seen by all, led ──▶ answered
    extend   topic key (its revision) ──▶ topic/n+1.json ──▶ done ──▶ seen by all, led ──▶ answered
    alter    topic key (its revision) ──▶ topic/n+1.json ──▶ done ──▶ seen by all ──▶ answered
    import   as create, but for the steps before the topic's key (`topics/imports`)
    delete   tombstone (topic's revision) ──▶ stop serving ──▶ deleted.json ──▶ remove the keys
             ──▶ done ──▶ seen by all ──▶ answered

    every agent: watch of the topics ──▶ the catalog ──▶ the engine ──▶ leads its share

1. The key in the metadata store decides; the steps after its put are repeated until they are done,
   by this session or, after a crash, by the next one and by the other agents (`reconcile`).
2. The tombstone decides a deletion: while it exists, no late copy of a create or change restores
   the topic.  The topic's objects are deleted later (`log/garbage/collector`).
3. The newest file of a topic has every answered change (`topics/bucket_files`).
4. After the answer, a change is visible at every live agent, unless an agent is silent until the
   client's timeout, or this agent leaves.  Each agent puts the revision of the topics that it has
   seen into its session's key.  A change that is done is never answered with an error.

Changes run in tasks of `run`, so a disconnect of the client does not interrupt them; changes of one
name run one after the other.  A change needs a live session, which may belong to an agent that
leaves; if the session ends, the next one continues the change.

Shell.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import structlog

from driftlog_agents.cluster.view import TopicEntry
from driftlog_agents.configs.definitions import InvalidConfigError
from driftlog_agents.configs.topic import validate
from driftlog_agents.log.log_session import Engine
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.topics.bucket_files import TopicBucketFiles
from driftlog_agents.topics.budget import Growth, TopicBudget, growth_of
from driftlog_agents.topics.catalog import TopicCatalog
from driftlog_agents.topics.change_queue import TopicChangeQueue
from driftlog_agents.topics.host import TopicHost
from driftlog_agents.topics.imports import TopicImports
from driftlog_agents.topics.reconciler import TopicReconciler
from driftlog_agents.topics.transactions import Change, TopicTransactions
from driftlog_agents.topics.validation import NewTopic, check_partitions, check_topic_name
from driftlog_metadata.schema.keys import TOPICS_PREFIX
from driftlog_metadata.schema.model import Topic, TopicPartition
from driftlog_metadata.schema.random_ids import random_uuid

_SESSION_S: Final = 10.0
"""How long a change waits for a session: longer than a paused agent needs to start one.  Kafka's
brokers ask the controller until the request has timed out."""

_MESSAGE_BYTES: Final = "driftlog.max.message.bytes"

_PARTING_S: Final = 2.0
"""How long a leaving agent holds an answer back: longer than a leave without faults takes."""

_SEEN_S: Final = 10.0
_LED_S: Final = 15.0
"""How long a change waits for other agents: to see it, longer than a lease without keep-alives; to
lead its partitions, as long as a takeover."""

_Work = Callable[[Engine, Change], Coroutine[Any, Any, tuple[Topic, int]]]
"""Makes a change; returns the topic after it, and the revision."""


class Topics:
    """See the module.  `run` while the agent runs; `reconcile` whenever a session is ready."""

    def __init__(self, host: TopicHost) -> None:
        self._host = host
        self._log = structlog.get_logger()
        self._files = TopicBucketFiles(host)
        settings = host.settings
        self._known = known = TopicCatalog(
            settings.topic_defaults, settings.log_retention_check_interval_ms
        )
        self.by_name = known.by_name
        """Every topic, by name; also between two sessions."""
        self.by_id = known.by_id
        self.check_new_name = known.check_new_name
        self.limits = known.limits
        """Limits of every topic, by name; for Produce."""
        self.sealing = known.sealing
        """Sealing policies, by name."""
        self.compaction = known.compaction
        """Policies of compaction, by name."""
        self.retention = known.retention
        """Retention, by name."""
        host.cluster.watch_topics(self._changed)
        self.budget = TopicBudget(host, known)
        self._turns = TopicChangeQueue()
        self._next_session = asyncio.Event()
        self._asked_for: dict[str, asyncio.Task[ErrorCode]] = {}
        """Tasks of topics that are created automatically, by name."""
        self._commits = TopicTransactions(self._turns, self._files, known, self.budget)
        self.imports = TopicImports(self._turns, self._files, known, self.budget.check_partitions)
        self._repair = TopicReconciler(
            host, known, self._turns, self._files, self._commits.finish_deletion
        )
        self.repaired = self._repair.repaired
        """Set when this session has checked its share of the topics' files."""

    @property
    def known(self) -> bool:
        """Whether the topics were read once, so that `by_name` is complete."""
        return TOPICS_PREFIX in self._host.view.loaded

    @property
    def agent_configs(self) -> dict[str, str]:
        """The agent's settings that topics inherit, as in `Inherited`."""
        return self._known.agent_configs

    def inherit(self) -> None:
        """The agent has other settings: topics take what they inherit, at once."""
        self._known.inherit(self._host.settings.topic_defaults)

    @property
    def pending(self) -> int:
        """The number of requested changes that are not done."""
        return self._turns.pending

    async def run(self) -> None:
        """Run changes, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._turns.tasks = tasks
            try:
                await self._repair.after_others()
            finally:
                self._turns.tasks = None

    async def reconcile(self) -> None:
        """Complete interrupted changes, after a session has become ready (`topics/reconciler`)."""
        self._next_session.set()
        await self._repair.reconcile()

    # ── Requests ──

    async def create(
        self,
        new: NewTopic,
        *,
        validate_only: bool = False,
        timeout_s: float | None = None,
        everywhere: bool = True,
    ) -> Topic:
        """Create a topic and lead it; return it, or with *validate_only* the topic that would be.

        Args:
            timeout_s: how long the client waits.
            everywhere: wait until all agents have seen it, and its partitions are led.

        Raises:
            RefusedError: INVALID_TOPIC_EXCEPTION, INVALID_REQUEST, TOPIC_ALREADY_EXISTS,
                INVALID_PARTITIONS, POLICY_VIOLATION, INVALID_CONFIG; NOT_CONTROLLER: no session in
                time, or the outcome is unknown.
            TimeoutError: the topic is not created yet; the work continues.
        """
        change = Change(timeout_s)
        topic = self._checked(await self._led(change), new)
        if validate_only:
            return topic
        change.growth = growth_of(None, topic)

        async def create(engine: Engine, change: Change) -> tuple[Topic, int]:
            return await self._commits.create(engine, change, topic)

        return await self._made(change, create, making=topic.name, everywhere=everywhere)

    def ask_for(self, name: str) -> asyncio.Task[ErrorCode] | None:
        """Create a topic in the background; requests for the same topic share the task.

        The task returns NONE or the error.  None: another request creates the topic, or this
        agent has no session now.
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
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # Else another agent created it.
                self._log.warning("topic_not_made", topic=name, error=str(error))
            return error.code
        finally:
            del self._asked_for[name]
            self._host.cluster.wake()
        return ErrorCode.NONE

    def is_making(self, name: str) -> bool:
        """Whether this topic is being created."""
        return name in self._turns.making

    async def begin_import(self, new: NewTopic, *, client: str, timeout_s: float) -> Topic:
        """Begin the bulk import of a topic, which does not exist until `publish_import`.
        *client*: who asks, for the log.

        Raises: as `create`; UNSUPPORTED_VERSION: the cluster's format level is too low.
        """
        change = Change(timeout_s)
        topic = self._checked(await self._led(change), new)

        async def begin(engine: Engine, _: Change) -> tuple[Topic, int]:
            return await self.imports.begin(engine, topic, client)

        return await self._made(change, begin, everywhere=False)

    async def publish_import(
        self, name: str, topic_id: UUID, ends: Sequence[int], *, client: str, timeout_s: float
    ) -> Topic:
        """Make a bulk import a topic, and lead it.

        Raises: as `create`; UNKNOWN_TOPIC_ID: the import has ended; INVALID_REQUEST: its manifests
        do not end at *ends*.
        """
        check_topic_name(name)
        change = Change(timeout_s)
        change.growth = Growth(partitions=len(ends))

        async def publish(engine: Engine, _: Change) -> tuple[Topic, int]:
            return await self.imports.publish(engine, name, topic_id, ends, client)

        return await self._made(change, publish, making=name)

    async def delete(self, topic: Topic, *, timeout_s: float | None = None) -> None:
        """Delete a topic; clients do not see it after this returns.

        Raises:
            RefusedError: UNKNOWN_TOPIC_ID: it is deleted already; NOT_CONTROLLER.
            TimeoutError: the topic is not deleted yet; the work continues.
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
        """Increase the partitions of a topic to *count*.

        Raises:
            RefusedError: INVALID_PARTITIONS, POLICY_VIOLATION, UNKNOWN_TOPIC_OR_PARTITION,
                NOT_CONTROLLER.
            TimeoutError: the partitions are not created yet; the work continues.
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
            return replace(now, partitions=count)

        return await self._change(topic, extended, validate_only=validate_only, timeout_s=timeout_s)

    async def alter_configs(
        self,
        topic: Topic,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        *,
        validate_only: bool = False,
    ) -> Topic:
        """Replace the topic's configs by the result of *change*, which may be called twice.

        Raises:
            RefusedError: from *change*; INVALID_CONFIG, POLICY_VIOLATION,
                UNKNOWN_TOPIC_OR_PARTITION, NOT_CONTROLLER.
        """

        def altered(now: Topic) -> Topic:
            configs = dict(change(now.configs))
            self.check_configs(configs, now.configs)
            return replace(now, configs=configs)

        return await self._change(topic, altered, validate_only=validate_only, led=False)

    async def _change(
        self,
        topic: Topic,
        alter: Callable[[Topic], Topic],
        *,
        validate_only: bool,
        timeout_s: float | None = None,
        led: bool = True,
    ) -> Topic:
        change = Change(timeout_s)
        quota = (await self._led(change)).ports.quota
        changed = alter(topic)
        change.growth = growth_of(topic, changed)
        self.budget.check(quota, change.growth)
        if validate_only:
            return changed

        async def update(engine: Engine, change: Change) -> tuple[Topic, int]:
            return await self._commits.update(engine, change, topic, alter)

        return await self._made(change, update, led=led)

    async def parting(self) -> None:
        """Return when a change may be answered: at once, unless this agent leaves.

        A leaving agent answers when it closes its connections.  A client that is answered earlier
        sends its next request here and gets no answer: librdkafka does not repeat it.
        """
        engine = self._host.engine
        if engine is not None and engine.leaving:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PARTING_S):
                    await engine.over.wait()

    # ── From session to session ──

    def _session(self) -> Engine | None:
        """The engine for changes now, or None; a leaving agent makes changes while it can."""
        engine = self._host.engine
        if engine is None or self._turns.tasks is None or not engine.session.alive:
            return None
        return engine if engine.ready.is_set() or engine.leaving else None

    async def _led(self, change: Change) -> Engine:
        """The engine to make *change* with; between two sessions, wait for the next one.

        An agent that has left answers nothing: it closes its connections at once, as a broker
        does, and some clients do not retry after NOT_CONTROLLER.

        Raises:
            RefusedError: NOT_CONTROLLER: there is no session in time, or there will be none.  It is
                the only error after which admin clients ask another agent by themselves.
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
        """Run *work* in this session or the next one, then wait until all agents have seen it.

        Raises:
            RefusedError: from *work*; NOT_CONTROLLER.
            TimeoutError: the work is not done within the client's timeout; it continues.
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
        """Run *work* independently of its waiters; a leaving agent waits a moment for it."""
        self.budget.reserve(change.growth)

        async def do() -> None:
            try:
                change.done = await work(engine, change)
            finally:
                over()

        is_over = False

        def over() -> None:
            nonlocal is_over
            engine.changing.discard(change)
            if not is_over:
                is_over = True
                revision = None if change.done is None else change.done[1]
                self.budget.release(change.growth, revision)
            if engine.leaving:
                self._host.cluster.wake()

        if making:
            self._turns.making.add(making)
        engine.changing.add(change)
        try:
            await self._turns.owned(do(), making)
        except RefusedError:
            over()  # The task may not have started.
            raise

    async def _everywhere(self, engine: Engine, revision: int, topic: Topic | None) -> None:
        """Wait until every live agent has seen the topics at *revision*, and *topic* is led.

        The wait for an agent that died ends with its lease.  A leaving agent does not wait, and
        the others do not wait for it.
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
                advice=(
                    "no action needed; clients of these agents see the change when the "
                    "agents continue, or when their leases end"
                ),
            )
        if topic is None:
            return
        waiting = [TopicPartition(topic.topic_id, number) for number in range(topic.partitions)]

        def led() -> bool:
            if ends() or topic.topic_id not in view.topics:  # The topic was deleted meanwhile.
                return True
            while waiting:
                leader, _ = view.leader_of(waiting[-1])
                if leader is None or (leader.session_id == mine and not engine.find(waiting[-1])):
                    return False
                waiting.pop()
            return True

        await cluster.until(led, _LED_S)

    # ── Checks ──

    def _checked(self, engine: Engine, new: NewTopic) -> Topic:
        self.check_new_name(new.name)
        self.check_configs(new.configs, {})
        partitions = new.partitions
        if partitions == -1:
            partitions = self._host.settings.num_partitions
        if partitions < 1:
            raise RefusedError(
                ErrorCode.INVALID_PARTITIONS,
                "Number of partitions was set to an invalid non-positive value.",
            )
        check_partitions(partitions)
        replication_factor = new.replication_factor
        if replication_factor == -1:
            replication_factor = self._host.settings.default_replication_factor
        topic = Topic(
            name=new.name,
            topic_id=random_uuid(engine.ports.rng),
            partitions=partitions,
            replication_factor=replication_factor,
            configs=dict(new.configs),
        )
        self.budget.check(engine.ports.quota, growth_of(None, topic))
        return topic

    def check_configs(self, configs: Mapping[str, str], before: Mapping[str, str]) -> None:
        """Check the configs that a topic, which has those of *before*, would have.

        Raises:
            RefusedError: INVALID_CONFIG.
        """
        try:
            validate(configs, self.agent_configs)
            self._check_cap(configs, before)
        except InvalidConfigError as error:
            raise RefusedError(ErrorCode.INVALID_CONFIG, str(error)) from error

    def _check_cap(self, configs: Mapping[str, str], before: Mapping[str, str]) -> None:
        """Check a new max.message.bytes against the agent's limit; an unchanged value is valid.

        Raises:
            InvalidConfigError: the value exceeds the limit.
        """
        name, most = "max.message.bytes", self._host.settings.limits.driftlog_max_message_bytes
        wanted = configs.get(name)
        if wanted is not None and wanted != before.get(name) and int(wanted) > most:
            self._host.refusals.count(_MESSAGE_BYTES)
            raise InvalidConfigError(
                f"Invalid value {wanted} for configuration {name}: Value must be no more than "
                f"{most}, which is {_MESSAGE_BYTES} of the agent"
            )

    # ── The watch ──

    def _changed(self, old: TopicEntry | None, new: TopicEntry | None) -> None:
        """Apply a change of the watch to the catalog and the engine."""
        engine = self._host.engine
        if new is not None:
            self._known.know(new.topic)  # Before the engine leads it: a batch needs its limits.
            if engine is not None:
                engine.know(new.topic)
        elif old is not None:
            self._known.forget(old.topic)
            if engine is not None:
                engine.remove_topic(old.topic.topic_id)
