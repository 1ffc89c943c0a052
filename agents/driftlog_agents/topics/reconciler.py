"""Completes changes of topics that a crash interrupted: deletions, and missing topic files.

    a session is ready, or another's is over ──▶ tombstones ──▶ delete the remaining keys
                                             ──▶ check this agent's share of the topics' files

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from driftlog_agents.cluster.placement import ranked
from driftlog_agents.log.log_session import Engine
from driftlog_agents.protocol.errors import RefusedError
from driftlog_agents.topics.bucket_files import TopicBucketFiles, topic_of
from driftlog_agents.topics.catalog import TopicCatalog
from driftlog_agents.topics.change_queue import AT_ONCE, TopicChangeQueue
from driftlog_agents.topics.host import TopicHost
from driftlog_metadata.schema.keys import DELETED_PREFIX
from driftlog_metadata.schema.model import Role, Topic, TopicPartition
from driftlog_metadata.stores.errors import (
    CorruptError,
    FencedError,
    OutcomeUnknownError,
    UnavailableError,
)

_RETRY_S: Final = 1.0


class TopicReconciler:
    """See the module.

    Args:
        finish_deletion: does the steps of a deletion after its tombstone.
    """

    def __init__(
        self,
        host: TopicHost,
        known: TopicCatalog,
        turns: TopicChangeQueue,
        files: TopicBucketFiles,
        finish_deletion: Callable[[Engine, Topic], Awaitable[int]],
    ) -> None:
        self._host = host
        self._known = known
        self._turns = turns
        self._files = files
        self._finish_deletion = finish_deletion
        self._log = structlog.get_logger()
        self.repaired = asyncio.Event()
        """Set when this session has checked its share of the topics' files."""

    async def reconcile(self) -> None:
        """Complete interrupted changes, after a session has become ready.

        Deletions are complete when this returns; a task in the background checks the topics' files.
        """
        engine = self._host.engine
        if engine is None:
            return
        self.repaired.clear()
        try:
            for kv in await engine.session.read_prefix(DELETED_PREFIX):
                try:
                    topic = topic_of(kv)
                except CorruptError as error:
                    self._log.error(
                        "stored_data_damaged",
                        error=str(error),
                        advice=(
                            "restore the key that the error names; until then this topic is "
                            "not deleted"
                        ),
                    )
                    continue
                if topic.topic_id in engine.topics_by_id:
                    self._log.info("topic_deletion_resumed", topic=topic.name)
                    await self._turns.owned(self._resume_deletion(engine, topic))
        except (FencedError, RefusedError) as error:
            self._log.info("reconcile_abandoned", reason=str(error))
            return
        if self._turns.tasks is not None:
            self._turns.tasks.create_task(self._repair_files(engine, self._share()))

    async def after_others(self) -> None:
        """Complete interrupted changes of agents whose sessions ended, until cancelled."""
        view, known = self._host.view, set[str]()
        with self._host.cluster.changes() as changed:
            while True:
                changed.clear()
                gone, known = known - view.sessions.keys(), set(view.sessions)
                engine = self._host.engine
                mine = "" if engine is None else engine.session.session_id
                if gone - {mine} and engine is not None and engine.ready.is_set():
                    try:
                        await self.reconcile()
                    except (UnavailableError, OutcomeUnknownError, TimeoutError) as error:
                        self._log.warning("reconcile_repeated", error=str(error) or repr(error))
                        known |= gone  # the next round handles them again
                        await asyncio.sleep(_RETRY_S)
                        continue
                await changed.wait()

    def _share(self) -> list[Topic]:
        """The topics whose files this agent checks; every topic belongs to one agent."""
        host = self._host
        nodes = {*host.view.placed(), *([host.node_id] if Role.SERVE in host.agent.roles else ())}
        return [
            topic
            for topic in self._known.by_name.values()
            if ranked(TopicPartition(topic.topic_id, 0), nodes, 1) == [host.node_id]
        ]

    async def _resume_deletion(self, engine: Engine, topic: Topic) -> None:
        async with self._turns.only(topic.name):
            await self._finish_deletion(engine, topic)

    async def _repair_files(self, engine: Engine, topics: list[Topic]) -> None:
        """Write topic files that are missing after a crash."""

        async def repair(topic: Topic) -> None:
            async with self._turns.only(topic.name):
                if self._host.engine is not engine:
                    return
                try:
                    await self._files.repair(engine, topic)
                except CorruptError as error:
                    self._log.error(
                        "topic_file_not_checked",
                        topic=topic.name,
                        error=str(error),
                        advice="restore the key, or upgrade the agent; until then the topic's "
                        "file in the bucket may be older than its key",
                    )

        try:
            for i in range(0, len(topics), AT_ONCE):
                async with asyncio.TaskGroup() as tasks:
                    for topic in topics[i : i + AT_ONCE]:
                        tasks.create_task(repair(topic))
        except* FencedError as group:
            self._log.info("reconcile_abandoned", reason=str(group.exceptions[0]))
        else:
            self.repaired.set()
