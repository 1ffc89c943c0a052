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
3. The newest file of a topic says what its key says (`topic_files`).
4. Who is told that a change is done finds it at every live agent, unless one of them is silent for
   longer than the client is patient, or this one leaves: each says in its session's key which
   revision of the topics it has seen.  What is done is never answered as if it were not.

What changes topics runs in tasks of `run`, so that a client that hangs up cuts nothing in half;
per name one after the other.  It needs a session that lives, also of an agent that leaves; where
one ends meanwhile, the next one goes on with it.

Shell.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

import structlog

from driftlog_agents.broker import Broker
from driftlog_agents.cluster.view import TopicEntry
from driftlog_agents.configs import InvalidConfigError
from driftlog_agents.known_topics import KnownTopics
from driftlog_agents.log.engine import Engine
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.topic_configs import (
    TOPIC_CONFIGS,
    validate,
)
from driftlog_agents.topic_files import TopicFiles, topic_of
from driftlog_agents.topic_repair import TopicRepair
from driftlog_agents.topic_turns import TopicTurns
from driftlog_metadata.codec import encode_topic
from driftlog_metadata.errors import (
    FencedError,
)
from driftlog_metadata.keys import (
    TOPICS_PREFIX,
    deleted_key,
    leaders_prefix,
    partitions_prefix,
    session_key,
    topic_key,
)
from driftlog_metadata.model import Topic, TopicPartition
from driftlog_metadata.store import (
    CreateRevisionIs,
    Delete,
    DeletePrefix,
    Get,
    KeyValue,
    ModRevisionIs,
    Put,
)
from driftlog_metadata.transactions import Txn
from driftlog_tiering import layout

MAX_PARTITIONS_PER_REQUEST: Final = 10_000
"""Kafka's bound of one request (ReplicationControlManager: records of one operation)."""

_SESSION_S: Final = 10.0
"""How long a change waits for a session: longer than an agent that was paused takes to begin one.
Kafka's brokers ask the controller until the request has timed out."""

_PARTING_S: Final = 2.0
"""How long an agent that leaves keeps an answer back.  Longer than leaving takes in health."""

_SEEN_S: Final = 10.0
_LED_S: Final = 15.0
"""How long a change waits for other agents: longer than a lease lasts that nobody renews, and as
long as a takeover takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """What a topic is to be; −1: what the agent's settings say."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


class _Change:
    """One change that was asked for, from session to session.

    Args:
        timeout_s: how long the client waits; None: as long as it takes.
    """

    __slots__ = ("_deadline_s", "done", "wanted")

    def __init__(self, timeout_s: float | None) -> None:
        now_s = asyncio.get_running_loop().time()
        self._deadline_s = None if timeout_s is None else now_s + timeout_s
        self.wanted: Topic | None = None
        """What was put, or may have been: an answer may be lost, and its session with it."""
        self.done: tuple[Topic, int] | None = None
        """What it came to, and at which revision, once nothing can undo it."""

    @property
    def left_s(self) -> float | None:
        """How long the client waits yet."""
        if self._deadline_s is None:
            return None
        return max(self._deadline_s - asyncio.get_running_loop().time(), 0.0)


_Work = Callable[[Engine, _Change], Coroutine[Any, Any, tuple[Topic, int]]]
"""Makes a change; returns what it came to, and at which revision."""


class Topics:
    """See the module.  `run` while the agent runs; `reconcile` whenever a session is ready."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._log = structlog.get_logger()
        self._files = TopicFiles(broker)
        self._known = known = KnownTopics(self.agent_configs, broker.settings.seal_ms)
        self.by_name = known.by_name
        """Every topic, also between two sessions."""
        self.by_id = known.by_id
        self.limits = known.limits
        """Of every topic, by name; produce looks here."""
        self.sealing = known.sealing
        """What topics say of their segments, by name."""
        broker.cluster.on_topic = self._changed
        self._turns = TopicTurns()
        self._next_session = asyncio.Event()
        self._asked_for: dict[str, asyncio.Task[ErrorCode]] = {}
        """Topics that are made because somebody asked for them."""
        self._repair = TopicRepair(broker, self._turns, self._files, self._finish_deletion)
        self.repaired = self._repair.repaired
        """The files of all topics were looked through in this session."""

    @property
    def known(self) -> bool:
        """Whether `by_name` is all there is: not before the topics were read once."""
        return TOPICS_PREFIX in self._broker.view.loaded

    @property
    def agent_configs(self) -> dict[str, str]:
        """The agent's settings that topics inherit and that are not Kafka's defaults, by broker
        config."""
        largest = str(self._broker.settings.message_max_bytes)
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
        """Finish what was begun before a session that is ready now (`topic_repair`)."""
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
        change = _Change(timeout_s)
        topic = self._checked(await self._led(change), new)
        if validate_only:
            return topic

        async def create(engine: Engine, change: _Change) -> tuple[Topic, int]:
            return await self._create(engine, change, topic)

        return await self._made(change, create, making=topic.name, everywhere=everywhere)

    def ask_for(self, name: str) -> asyncio.Task[ErrorCode] | None:
        """Begin to make a topic, in the background; who asks for the same shares it.

        Returns what says why it was not made, or NONE; None: somebody makes it already, or
        nobody could now.
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
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # Somebody was faster.
                self._log.warning("topic_not_made", topic=name, error=str(error))
            return error.code
        finally:
            del self._asked_for[name]
            self._broker.cluster.wake()
        return ErrorCode.NONE

    def is_making(self, name: str) -> bool:
        """Whether somebody asked for this topic and it is not there yet."""
        return name in self._turns.making

    async def delete(self, topic: Topic, *, timeout_s: float | None = None) -> None:
        """Delete a topic: it is gone for clients when this returns.

        Raises:
            RefusedError: UNKNOWN_TOPIC_ID: it is gone already; NOT_CONTROLLER.
            TimeoutError: it is not deleted yet; it will be.
        """

        async def delete(engine: Engine, change: _Change) -> tuple[Topic, int]:
            return await self._delete(engine, change, topic)

        await self._made(_Change(timeout_s), delete, led=False)

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
            _check_partitions(count)
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
        change = _Change(timeout_s)
        await self._led(change)
        changed = alter(topic)
        if validate_only:
            return changed

        async def update(engine: Engine, change: _Change) -> tuple[Topic, int]:
            return await self._update(engine, change, topic, alter)

        return await self._made(change, update)

    async def parting(self) -> None:
        """Return when what was changed may be answered: at once, unless this agent leaves.

        Then with the end of its connections.  Whoever was answered before would ask the next
        thing here, and have no answer: librdkafka does not ask it again.
        """
        engine = self._broker.engine
        if engine is not None and engine.leaving:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PARTING_S):
                    await engine.over.wait()

    # ── From session to session ──

    def _session(self) -> Engine | None:
        """What changes can be made with now: also of an agent that leaves, as long as it can."""
        engine = self._broker.engine
        if engine is None or self._turns.tasks is None or not engine.session.alive:
            return None
        return engine if engine.ready.is_set() or engine.leaving else None

    async def _led(self, change: _Change) -> Engine:
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
        change: _Change,
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

    async def _owned(self, engine: Engine, change: _Change, work: _Work, making: str) -> None:
        """Do *work* whoever waits for it; an agent that leaves does, for a moment."""

        async def do() -> None:
            try:
                change.done = await work(engine, change)
            finally:
                over()

        def over() -> None:
            engine.changing.discard(change)
            if engine.leaving:
                self._broker.cluster.wake()

        if making:
            self._turns.making.add(making)
        engine.changing.add(change)
        try:
            await self._turns.owned(do(), making)
        except RefusedError:
            over()  # It may not even have begun.
            raise

    # ── Checks ──

    def check_new_name(self, name: str) -> None:
        """Whether a topic may be made that is called *name*.

        Raises:
            RefusedError: INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS.
        """
        check_topic_name(name)
        if name in self.by_name:
            raise RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        alike = self._known.alike(name)
        if alike:
            raise RefusedError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{name}' collides with existing topic: {min(alike)}",
            )

    def _checked(self, engine: Engine, new: NewTopic) -> Topic:
        self.check_new_name(new.name)
        partitions = new.partitions
        if partitions == -1:
            partitions = self._broker.settings.num_partitions
        if partitions < 1:
            raise RefusedError(
                ErrorCode.INVALID_PARTITIONS,
                "Number of partitions was set to an invalid non-positive value.",
            )
        _check_partitions(partitions)
        replication_factor = new.replication_factor
        if replication_factor == -1:
            replication_factor = self._broker.settings.default_replication_factor
        try:
            validate(new.configs)
        except InvalidConfigError as error:
            raise RefusedError(ErrorCode.INVALID_CONFIG, str(error)) from error
        return Topic(
            name=new.name,
            topic_id=UUID(int=engine.ports.rng.getrandbits(128), version=4),  # Never zero.
            partitions=partitions,
            replication_factor=replication_factor,
            configs=dict(new.configs),
        )

    # ── In the metadata store ──

    async def _create(self, engine: Engine, change: _Change, topic: Topic) -> tuple[Topic, int]:
        async with self._turns.only(topic.name):
            known = self.by_name.get(topic.name)
            if change.wanted is None or known is None or known.topic_id != topic.topic_id:
                # Somebody may have made it, or one like it, while this waited.
                self._checked(engine, NewTopic(name=topic.name, partitions=topic.partitions))
            change.wanted = topic
            key = topic_key(topic.name)
            succeeded, revision, there, _ = await self._put(
                engine, topic, 0, Put(key, encode_topic(topic))
            )
            if not succeeded:
                if there is None or topic_of(there).topic_id != topic.topic_id:
                    raise RefusedError(
                        ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists."
                    )
                revision = there.mod_revision  # Our own attempt, its answer lost.
            await self._files.create(engine, topic)
        self._log.info(
            "topic_created",
            topic=topic.name,
            topic_id=str(topic.topic_id),
            partitions=topic.partitions,
        )
        return topic, revision

    async def _put(
        self, engine: Engine, topic: Topic, revision: int, put: Put
    ) -> tuple[bool, int, KeyValue | None, bool]:
        """*put*, if the topic's key still has *revision* and the topic is not deleted.

        The session is compared as well: a copy that is late finds it gone and does nothing, so
        nothing appears that the next session has not read.

        Returns whether it was put, at which revision; if not: the topic's key as it is, and
        whether there is a tombstone.

        Raises:
            FencedError: the session ended.
        """
        key, tombstone = topic_key(topic.name), deleted_key(topic.topic_id)
        session = session_key(engine.session.session_id)
        result = await engine.session.transact(
            Txn(
                compares=(
                    ModRevisionIs(key, revision),
                    CreateRevisionIs(tombstone, 0),
                    CreateRevisionIs(session, engine.session.revision),
                ),
                then=(put,),
                otherwise=(Get(key), Get(tombstone), Get(session)),
            )
        )
        if result.succeeded:
            return True, result.revision, None, False
        topics, tombstones, sessions = result.reads
        if not sessions or sessions[0].create_revision != engine.session.revision:
            raise FencedError("the session ended before the topic was changed")
        return False, 0, topics[0] if topics else None, bool(tombstones)

    async def _update(
        self, engine: Engine, change: _Change, topic: Topic, alter: Callable[[Topic], Topic]
    ) -> tuple[Topic, int]:
        async with self._turns.only(topic.name):
            key = topic_key(topic.name)
            kv = await engine.session.read(key)
            while True:
                now = None if kv is None else topic_of(kv)
                if kv is None or now is None or now.topic_id != topic.topic_id:
                    raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                wanted = now if now == change.wanted else alter(now)
                if wanted == now:
                    revision = kv.mod_revision
                    break
                change.wanted = wanted
                succeeded, revision, there, deleted = await self._put(
                    engine, topic, kv.mod_revision, Put(key, encode_topic(wanted))
                )
                if succeeded:
                    break
                kv = None if deleted else there
                if kv is not None and kv.value == encode_topic(wanted):
                    revision = kv.mod_revision  # Our own attempt, its answer lost.
                    break
            await self._files.update(engine, wanted)
        self._log.info(
            "topic_changed",
            topic=wanted.name,
            partitions=wanted.partitions,
            configs=dict(wanted.configs),
        )
        return wanted, revision

    async def _delete(self, engine: Engine, change: _Change, topic: Topic) -> tuple[Topic, int]:
        async with self._turns.only(topic.name):
            tombstone = deleted_key(topic.topic_id)
            key = topic_key(topic.name)
            kv = await engine.session.read(key)
            while True:
                now = None if kv is None else topic_of(kv)
                if kv is None or now is None or now.topic_id != topic.topic_id:
                    if change.wanted is not None:
                        return topic, 0  # Our own attempt, and others have finished it.
                    raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID)
                change.wanted = now
                succeeded, _, there, deleted = await self._put(
                    engine, topic, kv.mod_revision, Put(tombstone, encode_topic(now))
                )
                if succeeded or deleted:
                    break
                kv = there
            revision = await self._finish_deletion(engine, now)
        self._log.info("topic_deleted", topic=topic.name, topic_id=str(topic.topic_id))
        return topic, revision

    async def _everywhere(self, engine: Engine, revision: int, topic: Topic | None) -> None:
        """Wait until every live agent knows the topics as of *revision*, and *topic* is led.

        Not for ever: an agent that is gone is waited for until its lease has ended.  And not by
        one that leaves, which the others do not wait for either.
        """
        view, cluster = self._broker.view, self._broker.cluster
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

    async def _finish_deletion(self, engine: Engine, topic: Topic) -> int:
        """All that follows a tombstone; harmless at any time after it.

        Returns the revision at which its keys were gone.
        """
        engine.remove_topic(topic.topic_id)
        self._known.forget(topic)
        await self._files.mark_deleted(engine, topic)
        key = topic_key(topic.name)
        gone = (
            DeletePrefix(leaders_prefix(topic.topic_id)),
            DeletePrefix(partitions_prefix(topic.topic_id)),
        )
        while True:
            kv = await engine.session.read(key)
            revision = 0 if kv is None else kv.mod_revision
            mine = kv is not None and topic_of(kv).topic_id == topic.topic_id
            result = await engine.session.transact(
                Txn(
                    compares=(ModRevisionIs(key, revision),),
                    then=(Delete(key), *gone) if mine else gone,
                )
            )
            if result.succeeded:
                return result.revision

    # ── What is known ──

    def _changed(self, old: TopicEntry | None, new: TopicEntry | None) -> None:
        """What the watch tells."""
        engine = self._broker.engine
        if new is not None:
            self._known.know(new.topic)  # Before it is led: a batch asks for its limits.
            if engine is not None:
                engine.know(new.topic)
        elif old is not None:
            self._known.forget(old.topic)
            if engine is not None:
                engine.remove_topic(old.topic.topic_id)


def check_topic_name(name: str) -> None:
    """Whether Kafka allows the name (Topic#validate), in its words.

    Raises:
        RefusedError: INVALID_TOPIC_EXCEPTION.
    """
    if layout.is_topic_name(name):
        return
    if not name:
        why = "the empty string is not allowed"
    elif name in (".", ".."):
        why = f"'{name}' is not allowed"
    elif len(name) > layout.MAX_TOPIC_CHARS:
        why = f"the length of '{name}' is longer than the max allowed length 249"
    else:
        why = (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, "
            f"'.', '_' and '-'"
        )
    raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {why}")


def _check_partitions(count: int) -> None:
    if count > MAX_PARTITIONS_PER_REQUEST:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request."
        )
