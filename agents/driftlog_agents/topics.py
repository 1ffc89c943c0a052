"""Topics: created, changed and deleted in the metadata store, repeated in the bucket, and led.

    create   topic key (create-only) ──▶ topic/1.json   ──▶ seen by all, led ──▶ answered
    change   topic key (its revision) ──▶ topic/n+1.json ──▶ seen by all, led ──▶ answered
    delete   tombstone (topic's revision) ──▶ stop serving ──▶ deleted.json ──▶ remove the keys
             ──▶ seen by all ──▶ answered

    every agent: watch of the topics ──▶ what is known here ──▶ the engine ──▶ leads its share

1. A key that was put is the truth; what follows it is repeated until it is done, by this session
   or, after a crash, by the next one and by the agents that are left (`reconcile`).
2. The tombstone decides a deletion: while it is there nothing brings the topic back, no late copy
   of a create or change either.  The topic's objects go later (`collector`).
3. The newest file of a topic says what its key says (`topic_files`).
4. Who is told that a change is done finds it at every live agent: each says in its session's key
   which revision of the topics it has seen.

What changes topics runs in tasks of `run`, so that a client that hangs up cuts nothing in half;
per name one after the other.

Shell.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final
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
        await self._repair.reconcile()

    # ── What clients ask for ──

    async def create(self, new: NewTopic, *, validate_only: bool = False) -> Topic:
        """Make a topic and lead it; returns it as it is, or would be.

        Raises:
            RefusedError: INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS,
                INVALID_CONFIG; NOT_CONTROLLER: no session now, nothing to be relied on.
        """
        engine = self._led()
        topic = self._checked(engine, new)
        if validate_only:
            return topic
        self._turns.making.add(topic.name)
        return await self._turns.owned(self._create(engine, topic), topic.name)

    def is_making(self, name: str) -> bool:
        """Whether somebody asked for this topic and it is not there yet."""
        return name in self._turns.making

    async def delete(self, topic: Topic) -> None:
        """Delete a topic: it is gone for clients when this returns.

        Raises:
            RefusedError: UNKNOWN_TOPIC_ID: it is gone already; NOT_CONTROLLER.
        """
        await self._turns.owned(self._delete(self._led(), topic))

    async def create_partitions(
        self, topic: Topic, count: int, *, validate_only: bool = False
    ) -> Topic:
        """Let a topic have *count* partitions, more than before.

        Raises:
            RefusedError: INVALID_PARTITIONS, UNKNOWN_TOPIC_OR_PARTITION, NOT_CONTROLLER.
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

        return await self._change(topic, extended, validate_only=validate_only)

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
        self, topic: Topic, change: Callable[[Topic], Topic], *, validate_only: bool
    ) -> Topic:
        engine = self._led()
        changed = change(topic)
        if validate_only:
            return changed
        return await self._turns.owned(self._update(engine, topic, change))

    # ── Checks ──

    def _led(self) -> Engine:
        try:
            return self._broker.led()
        except RefusedError as error:
            # The one error that makes admin clients ask again by themselves.
            raise RefusedError(ErrorCode.NOT_CONTROLLER, error.message) from error

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

    async def _create(self, engine: Engine, topic: Topic) -> Topic:
        async with self._turns.only(topic.name):
            # Somebody may have made it, or one like it, while this waited.
            self._checked(engine, NewTopic(name=topic.name, partitions=topic.partitions))
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
            await self._everywhere(engine, revision, topic)
        self._log.info(
            "topic_created",
            topic=topic.name,
            topic_id=str(topic.topic_id),
            partitions=topic.partitions,
        )
        return topic

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
        self, engine: Engine, topic: Topic, change: Callable[[Topic], Topic]
    ) -> Topic:
        async with self._turns.only(topic.name):
            key = topic_key(topic.name)
            kv = await engine.session.read(key)
            while True:
                now = None if kv is None else topic_of(kv)
                if kv is None or now is None or now.topic_id != topic.topic_id:
                    raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                wanted = change(now)
                if wanted == now:
                    revision = kv.mod_revision
                    break
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
            await self._everywhere(engine, revision, wanted)
        self._log.info(
            "topic_changed",
            topic=wanted.name,
            partitions=wanted.partitions,
            configs=dict(wanted.configs),
        )
        return wanted

    async def _delete(self, engine: Engine, topic: Topic) -> None:
        async with self._turns.only(topic.name):
            tombstone = deleted_key(topic.topic_id)
            key = topic_key(topic.name)
            kv = await engine.session.read(key)
            while True:
                now = None if kv is None else topic_of(kv)
                if kv is None or now is None or now.topic_id != topic.topic_id:
                    raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID)
                succeeded, _, there, deleted = await self._put(
                    engine, topic, kv.mod_revision, Put(tombstone, encode_topic(now))
                )
                if succeeded or deleted:
                    break
                kv = there
            revision = await self._finish_deletion(engine, now)
            await self._everywhere(engine, revision, None)
        self._log.info("topic_deleted", topic=topic.name, topic_id=str(topic.topic_id))

    async def _everywhere(self, engine: Engine, revision: int, topic: Topic | None) -> None:
        """Wait until every live agent knows the topics as of *revision*, and *topic* is led.

        Not for ever: an agent that is gone is waited for until its lease has ended.
        """
        view, cluster = self._broker.view, self._broker.cluster
        mine = engine.session.session_id

        def seen() -> bool:
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
