"""Transactions of one session that create, change or delete a topic, and the steps after them.

    create   topic key (create-only) ──▶ topic/1.json
    change   topic key (its revision) ──▶ topic/n+1.json
    delete   tombstone (topic's revision) ──▶ stop serving ──▶ deleted.json ──▶ remove the keys

1. Each method holds the lock of the name.  It may be interrupted anywhere and called again, by this
   session or the next: it recognises an earlier attempt whose answer was lost, and continues it.
2. Every put compares the value that it replaces, the tombstone and the session (`_put`).
3. A put waits until the budget admits it, by what it replaces.  A creation that is repeated in
   another session was admitted before: its key may be there.

Shell.
"""

import asyncio
from collections.abc import Callable

import structlog

from driftlog_agents.log.log_session import Engine
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.topics.bucket_files import TopicBucketFiles, topic_of
from driftlog_agents.topics.budget import Growth, TopicBudget, deletion_of, growth_of
from driftlog_agents.topics.catalog import TopicCatalog
from driftlog_agents.topics.change_queue import TopicChangeQueue
from driftlog_metadata.schema.codec import encode_tombstone, encode_topic
from driftlog_metadata.schema.keys import (
    deleted_key,
    leaders_prefix,
    partitions_prefix,
    session_key,
    topic_key,
)
from driftlog_metadata.schema.model import Topic
from driftlog_metadata.stores.errors import FencedError
from driftlog_metadata.stores.store import (
    CreateRevisionIs,
    Delete,
    DeletePrefix,
    Get,
    KeyValue,
    ModRevisionIs,
    Put,
)
from driftlog_metadata.transactions.session_transactions import Txn


class Change:
    """One requested change, which may span sessions.

    Args:
        timeout_s: how long the client waits; None: no limit.
    """

    __slots__ = ("_deadline_s", "done", "growth", "wanted")

    def __init__(self, timeout_s: float | None) -> None:
        now_s = asyncio.get_running_loop().time()
        self._deadline_s = None if timeout_s is None else now_s + timeout_s
        self.growth = Growth()
        """What the cluster has more after the change."""
        self.wanted: Topic | None = None
        """The topic that was put, or may have been put: the answer may be lost."""
        self.done: tuple[Topic, int] | None = None
        """The topic after the change, and the revision; None: the change is not final yet."""

    @property
    def left_s(self) -> float | None:
        """Seconds that the client still waits; None: no limit."""
        if self._deadline_s is None:
            return None
        return max(self._deadline_s - asyncio.get_running_loop().time(), 0.0)


class TopicTransactions:
    """See the module.  Each change returns the topic after it, and the revision.

    All raise RefusedError: the change is not possible; and FencedError: the session ended.
    """

    def __init__(
        self,
        turns: TopicChangeQueue,
        files: TopicBucketFiles,
        known: TopicCatalog,
        budget: TopicBudget,
    ) -> None:
        self._turns = turns
        self._files = files
        self._known = known
        self._budget = budget
        self._log = structlog.get_logger()

    async def create(self, engine: Engine, change: Change, topic: Topic) -> tuple[Topic, int]:
        """Put *topic*, unless its name exists or collides with an existing one."""
        async with self._turns.only(topic.name):
            if change.wanted is None:
                await self._budget.admit(engine.ports.quota, change.growth)
            known = self._known.by_name.get(topic.name)
            if change.wanted is None or known is None or known.topic_id != topic.topic_id:
                # Another agent may have created this name, or a colliding one, meanwhile.
                self._known.check_new_name(topic.name)
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
                revision = there.mod_revision  # An earlier attempt, whose answer was lost.
            await self._files.create(engine, topic)
        self._log.info(
            "topic_created",
            topic=topic.name,
            topic_id=str(topic.topic_id),
            partitions=topic.partitions,
        )
        return topic, revision

    async def update(
        self, engine: Engine, change: Change, topic: Topic, alter: Callable[[Topic], Topic]
    ) -> tuple[Topic, int]:
        """Put the result of *alter*, which is called again if another agent changed the topic.

        Where it changes nothing, no file is read: whoever put the key, or after a crash
        `topics/reconciler`, writes the topic's file.
        """
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
                    if change.wanted is None:
                        return now, revision
                    break  # An earlier attempt of this change put it, and its file may be missing.
                await self._budget.admit(engine.ports.quota, growth_of(now, wanted))
                change.wanted = wanted
                succeeded, revision, there, deleted = await self._put(
                    engine, topic, kv.mod_revision, Put(key, encode_topic(wanted))
                )
                if succeeded:
                    break
                kv = None if deleted else there
                if kv is not None and kv.value == encode_topic(wanted):
                    revision = kv.mod_revision  # An earlier attempt, whose answer was lost.
                    break
            await self._files.update(engine, wanted)
        self._log.info(
            "topic_changed",
            topic=wanted.name,
            partitions=wanted.partitions,
            configs=dict(wanted.configs),
        )
        return wanted, revision

    async def delete(self, engine: Engine, change: Change, topic: Topic) -> tuple[Topic, int]:
        """Put the tombstone of *topic*, then `finish_deletion`."""
        async with self._turns.only(topic.name):
            tombstone = deleted_key(topic.topic_id)
            key = topic_key(topic.name)
            kv = await engine.session.read(key)
            while True:
                now = None if kv is None else topic_of(kv)
                if kv is None or now is None or now.topic_id != topic.topic_id:
                    if change.wanted is not None:
                        return topic, 0  # An earlier attempt, which other agents completed.
                    raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID)
                await self._budget.admit(engine.ports.quota, deletion_of(now))
                change.wanted = now
                succeeded, _, there, deleted = await self._put(
                    engine, topic, kv.mod_revision, Put(tombstone, encode_tombstone(now))
                )
                if succeeded or deleted:
                    break
                kv = there
            revision = await self.finish_deletion(engine, now)
        self._log.info("topic_deleted", topic=topic.name, topic_id=str(topic.topic_id))
        return topic, revision

    async def finish_deletion(self, engine: Engine, topic: Topic) -> int:
        """Do the steps after the tombstone; safe to repeat at any time after it.

        Returns the revision at which the topic's keys were deleted.
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

    async def _put(
        self, engine: Engine, topic: Topic, revision: int, put: Put
    ) -> tuple[bool, int, KeyValue | None, bool]:
        """Apply *put* if the topic's key still has *revision* and the topic is not deleted.

        The transaction compares the session, too: a late copy fails after the session's end, so
        no key appears that the next session has not read.

        Returns whether it was put, and the revision; if not, the topic's current key, and whether
        there is a tombstone.

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
