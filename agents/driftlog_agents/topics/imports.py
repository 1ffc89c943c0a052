"""Bulk imports: topics whose records a job has written to the bucket before the topic exists.

    begin    import key (create-only) ──▶ import.json ──▶ answered
             the job writes segments, then manifests
    renew    import key, again and again
    publish  the manifests ──▶ leader and partition keys ──▶ topic/1.json
             ──▶ the topic's key in, the import key out ──▶ seen by all, led ──▶ answered
    abandon  import key out, tombstone in ──▶ deleted.json; the collector deletes the objects

1. The topic's key decides, in one transaction, as for every topic (`topics/service`).  The keys of
   its partitions and its file precede it: clients find the topic with all of its records.
2. The file precedes the topic's key, unlike that of a created topic: a restore takes a folder with
   ``import.json`` and without a file for an import that did not end, and deletes it, unless an
   agent has written to it since.
3. The partitions' keys are written from manifests that were read back, not from what the job says.
4. Each step may be repeated, by any agent.  An import that is not renewed is abandoned by the
   collector (`log/garbage/deleted_topic_gc`); after that it cannot be published.
5. A publication that finds another topic of its name abandons the import before it answers:
   readers of the bucket take an import with a file for a topic.
6. An import's partitions are within the cluster's limit when it begins, beside those of all open
   imports, and again when it is published.
7. No collector looks at the sealed objects before the topic's key is there, and then the manifests
   name them: an import may take longer than grace.

Source: docs/departures.md, "Bulk import".

Shell.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

import structlog

from driftlog_agents.log.log_session import Engine
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.topics.bucket_files import TopicBucketFiles, topic_of
from driftlog_agents.topics.catalog import TopicCatalog
from driftlog_agents.topics.change_queue import TopicChangeQueue
from driftlog_metadata.schema.keys import IMPORTS_PREFIX, import_key, session_key, topic_key
from driftlog_metadata.schema.model import IMPORT_LEVEL, PartitionState, Topic, TopicPartition
from driftlog_metadata.stores.errors import CorruptError, FencedError
from driftlog_metadata.stores.store import CreateRevisionIs, KeyValue
from driftlog_metadata.transactions.import_transactions import (
    abandon_import,
    begin_import,
    publish_import,
    put_partitions,
    renew_import,
)
from driftlog_metadata.transactions.session_transactions import Txn

MOST_IMPORTS: Final = 1_000
"""That are open at once.  Each has a key, which stays for a grace where its importer is gone."""


class TopicImports:
    """See the module.

    Args:
        check_total: raises RefusedError if the cluster may not have so many more partitions, beside
            as many that are reserved; a publication's own are reserved already.

    *client*: the importer's address, for the log.  All raise RefusedError; with UNKNOWN_TOPIC_ID:
    the import has ended.  And FencedError: the session ended.
    """

    def __init__(
        self,
        turns: TopicChangeQueue,
        files: TopicBucketFiles,
        known: TopicCatalog,
        check_total: Callable[[int, int], None],
    ) -> None:
        self._check_total = check_total
        self._turns = turns
        self._files = files
        self._known = known
        self._log = structlog.get_logger()

    async def begin(self, engine: Engine, topic: Topic, client: str) -> tuple[Topic, int]:
        """Reserve the id of *topic*; its name is not reserved."""
        level = engine.session.author.format_version
        if level < IMPORT_LEVEL:
            raise RefusedError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the cluster's format level is {level}, and imports need {IMPORT_LEVEL}: upgrade "
                "all agents, then run driftlog cluster upgrade",
            )
        await self._check_others(engine, topic)
        result = await engine.session.transact(begin_import(topic, _lives(engine)))
        if not result.succeeded and not result.reads[0]:
            raise FencedError("the session ended before the import began")
        await self._files.mark_import(engine, topic)
        self._log.info(
            "import_begun", client=client, topic=topic.name, topic_id=str(topic.topic_id)
        )
        return topic, result.revision

    async def renew(self, engine: Engine, topic_id: UUID) -> None:
        """Say that the importer lives."""
        while True:
            kv = await self._import_of(engine, topic_id)
            if (await engine.session.transact(renew_import(kv))).succeeded:
                return

    async def publish(
        self, engine: Engine, name: str, topic_id: UUID, ends: Sequence[int], client: str
    ) -> tuple[Topic, int]:
        """Make the import a topic.  *ends*: where each partition's records end."""
        async with self._turns.only(name):
            try:
                return await self._publish(engine, name, topic_id, ends, client)
            except RefusedError as error:
                kv = await engine.session.read(topic_key(name))
                topic = None if kv is None else topic_of(kv)
                if kv is not None and topic is not None and topic.topic_id == topic_id:
                    return topic, kv.mod_revision  # By an earlier attempt, or at another agent.
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
                if topic is None:
                    raise RefusedError(
                        ErrorCode.NOT_CONTROLLER,
                        f"topic {name} was deleted a moment ago: try again",
                    ) from error
                with suppress(RefusedError):  # it has ended
                    await self.abandon(engine, topic_id, client)
                raise

    async def _publish(
        self, engine: Engine, name: str, topic_id: UUID, ends: Sequence[int], client: str
    ) -> tuple[Topic, int]:
        kv = await self._import_of(engine, topic_id)
        topic = topic_of(kv)
        if (topic.name, topic.partitions) != (name, len(ends)):
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                f"the import is of {topic.name} with {topic.partitions} partitions",
            )
        self._known.check_new_name(name)
        self._check_total(topic.partitions, -topic.partitions)
        states = await self._states(engine, topic, ends)
        for txn in put_partitions(kv, states, _lives(engine)):
            await self._transact(engine, txn, topic_id)
        await self._files.create(engine, topic)
        result = await engine.session.transact(publish_import(kv, topic, _lives(engine)))
        if not result.succeeded:
            if result.reads[0]:
                raise RefusedError(
                    ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists."
                )
            await self._import_of(engine, topic_id)
            raise FencedError("the session ended before the topic was published")
        self._log.info(
            "import_published",
            client=client,
            topic=name,
            topic_id=str(topic_id),
            partitions=topic.partitions,
            records=sum(ends),
        )
        return topic, result.revision

    async def abandon(self, engine: Engine, topic_id: UUID, client: str) -> None:
        """End an import that will not be published; its objects are garbage."""
        while True:
            kv = await self._import_of(engine, topic_id)
            topic = topic_of(kv)
            if (await engine.session.transact(abandon_import(kv, topic))).succeeded:
                break
        await self._files.mark_deleted(engine, topic)
        self._log.info("import_abandoned", client=client, topic=topic.name, topic_id=str(topic_id))

    # ── Steps ──

    async def _check_others(self, engine: Engine, topic: Topic) -> None:
        """Check that *topic* may begin beside the imports that are open."""
        own = import_key(topic.topic_id)  # there where an attempt's answer was lost
        others = [kv for kv in await engine.session.read_prefix(IMPORTS_PREFIX) if kv.key != own]
        if len(others) >= MOST_IMPORTS:
            raise RefusedError(
                ErrorCode.POLICY_VIOLATION,
                f"{len(others)} imports are open, and there may be {MOST_IMPORTS}: wait until some "
                "are published.  One whose job is gone ends after the cluster's grace",
            )
        reserved = 0
        for kv in others:
            with suppress(CorruptError):  # the collector says so
                reserved += topic_of(kv).partitions
        self._check_total(topic.partitions, reserved)

    async def _import_of(self, engine: Engine, topic_id: UUID) -> KeyValue:
        kv = await engine.session.read(import_key(topic_id))
        if kv is None:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_ID,
                f"there is no import with the id {topic_id}: it was abandoned, or not renewed for "
                "the cluster's grace.  Import again",
            )
        return kv

    async def _transact(self, engine: Engine, txn: Txn, topic_id: UUID) -> None:
        if not (await engine.session.transact(txn)).succeeded:
            await self._import_of(engine, topic_id)
            raise FencedError("the session ended before the topic was published")

    async def _states(
        self, engine: Engine, topic: Topic, ends: Sequence[int]
    ) -> dict[TopicPartition, PartitionState]:
        """The keys of the partitions that have records, by their manifests."""
        states: dict[TopicPartition, PartitionState] = {}
        manifests = await self._files.manifests(engine, topic)
        author = engine.session.author
        for manifest, end in zip(manifests, ends, strict=True):
            found = 0 if manifest is None else manifest.end
            if found != end:
                raise RefusedError(
                    ErrorCode.INVALID_REQUEST,
                    f"a partition of {topic.name} ends at {end}, and its newest manifest at "
                    f"{found}: the importer did not write to the bucket of this cluster",
                )
            if manifest is None:
                continue
            if manifest.cluster_id != author.cluster_id:
                raise RefusedError(
                    ErrorCode.INVALID_REQUEST,
                    f"{manifest.key} is of cluster {manifest.cluster_id}, and this is "
                    f"{author.cluster_id}",
                )
            states[manifest.tp] = PartitionState(
                sealed_end=manifest.end,
                manifest_version=manifest.version,
                log_start=manifest.log_start,
            )
        return states


def _lives(engine: Engine) -> CreateRevisionIs:
    session = engine.session
    return CreateRevisionIs(session_key(session.session_id), session.revision)
