"""Collects the sealed garbage that falls to this agent: by edits and by listing.

    edited here ──▶ schedule ──due──▶ walk (`superseded_versions`)
                       ▲                        every other grace, a day of the default one:
                       └── overdue versions ◀────── listing (`unnamed_objects`)

An idle partition costs no request between two listings.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final
from uuid import UUID

import structlog

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.foundation.retry import NO_ANSWER
from driftlog_agents.log.garbage.common.garbage_objects import Deleter
from driftlog_agents.log.garbage.common.metadata_reads import MOST_FAILURES, CollectorReads
from driftlog_agents.log.garbage.common.object_pages import ObjectPages
from driftlog_agents.log.garbage.common.version_pairs import NamedPartition, Walk, WalkSchedule
from driftlog_agents.log.garbage.sealed.partition_reads import PartitionReads
from driftlog_agents.log.garbage.sealed.superseded_versions import SupersededVersions
from driftlog_agents.log.garbage.sealed.unnamed_objects import UnnamedObjects
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.codec import decode_topic
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.keys import TOPICS_PREFIX, parse_topic_key
from driftlog_metadata.schema.model import Topic
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.formats import layout
from driftlog_tiering.foundation.types import Offload
from driftlog_tiering.stores.object_store import Listing

_GRACES: Final = 2
"""Between two listings: a day.  Fewer: more LIST requests; more: what failed attempts left stays
for longer."""


class SealedCollection:
    """See the module.

    Args:
        share: this agent's number among the agents that list, and their count; None: it lists
            nothing now.
    """

    def __init__(
        self,
        *,
        metadata: CollectorReads,
        pages: ObjectPages,
        deleter: Deleter,
        grace: Grace,
        unknown_keys: UnknownKeys,
        offload: Offload,
        share: Callable[[], tuple[int, int] | None],
    ) -> None:
        self._metadata = metadata
        self._pages = pages
        self._grace = grace
        self._unknown_keys = unknown_keys
        self._share = share
        self._schedule = WalkSchedule(grace)
        reads = PartitionReads(metadata, pages, unknown_keys, offload)
        self._superseded = SupersededVersions(reads, deleter, grace, pause_ms=pages.pause_ms)
        self._unnamed = UnnamedObjects(
            reads, deleter, grace, superseded=self._hand_over, damaged=self._say_damaged
        )
        self._list_at_ms: float | None = None
        self.listed_ms = 0
        """Time of the last complete listing, by the bucket's clock; 0: none yet."""
        self._log = structlog.get_logger()

    async def collect(self, edited: Iterable[NamedPartition]) -> None:
        """Walk the partitions that are due, and list sealed objects if that is due.

        Args:
            edited: partitions whose manifests this agent has edited since the last call.

        Raises:
            StoreError, TimeoutError: a store; try again later.
            FencedError: a store is not the cluster's; nothing was deleted after that.
        """
        for partition in edited:
            self._schedule.edited(partition, _now_ms())
        await self._walk_due(_now_ms())
        if self._list_at_ms is None:
            self._list_at_ms = _now_ms() + self._grace.short_ms
        if _now_ms() >= self._list_at_ms and await self.list_topics():
            self._list_at_ms = _now_ms() + _GRACES * self._grace.ms

    async def _walk_due(self, began_ms: float) -> None:
        """Walk what is due at *began_ms*, for no longer than the listing may wait."""
        failures = 0
        while _now_ms() - began_ms <= self._grace.short_ms:
            due = self._schedule.take_due(began_ms)
            if due is None:
                return
            try:
                await self._walk(due)
                failures = 0
            except NO_ANSWER as error:
                # The objects of one partition may be withheld: the others do not wait for them.
                failures += 1
                if failures >= MOST_FAILURES:
                    raise
                self._log.warning(
                    "collection_abandoned",
                    partition=due.partition.name,
                    error=repr(error),
                    advice="retrying; the other partitions are collected",
                )

    async def _walk(self, walk: Walk) -> None:
        try:
            walked = await self._superseded.walk(walk.partition)
        except CorruptError as error:
            self._say_damaged(walk.partition, error)
            self._schedule.again(walk, _now_ms(), self._grace.ms)
            return
        except BaseException:
            self._schedule.again(walk, _now_ms())
            raise
        if walked.lists_missing:
            self._unnamed.unjudged.judge_again(walk.partition.tp.topic_id)
        self._schedule.walked(walk, walked, _now_ms())

    async def list_topics(self) -> bool:
        """Judge the sealed objects of this agent's share of the topics, and delete the garbage;
        False: it has no share now, and nothing was listed.

        The topics of a share are neighbours in the bucket, so that small ones share a page.

        Raises: as `collect`.
        """
        share = self._share()
        if share is None:
            return False
        kvs = await self._metadata.prefix(TOPICS_PREFIX)
        decoded = self._unknown_keys.decoded(kvs, decode_topic, parse_topic_key)
        known = sorted([topic async for topic in sliced(decoded)], key=_prefix)
        at, of = share
        topics = known[len(known) * at // of : len(known) * (at + 1) // of]
        began_ms = 0
        async for page in self._pages.of(layout.CLUSTER_KEY):
            began_ms = page.store_now_ms  # also where there are no topics
        live = {topic.topic_id: topic for topic in topics}
        left: set[UUID] = set()
        async for page in self._pages_of(topics):
            left |= await self._unnamed.look(live, page)
        self._unnamed.unjudged.looked(live.keys(), left, began_ms)
        self.listed_ms = began_ms
        self._log.info("sealed_objects_listed", topics=len(topics), walks=len(self._schedule))
        return True

    async def _pages_of(self, topics: Sequence[Topic]) -> AsyncIterator[Listing]:
        """The pages from the first of *topics*, which ascend, to the last one."""
        if not topics:
            return
        after, end = _prefix(topics[0])[:-1], f"{_prefix(topics[-1])[:-1]}0"  # "0" is "/" + 1
        pages = self._pages.of(layout.TOPICS_PREFIX, start_after=after)
        async for page in pages:
            yield page
            if page.objects and page.objects[-1].key >= end:
                return

    def _say_damaged(self, partition: NamedPartition, error: CorruptError) -> None:
        self._log.error(
            "partition_not_collected",
            partition=partition.name,
            error=str(error),
            advice="restore the object; until then no sealed object of this partition is deleted",
        )

    def _hand_over(self, partition: NamedPartition, is_overdue: bool) -> None:
        if is_overdue:
            self._schedule.superseded(partition, _now_ms())


def _prefix(topic: Topic) -> str:
    return layout.topic_prefix(topic.name, topic.topic_id)


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
