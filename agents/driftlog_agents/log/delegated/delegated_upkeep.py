"""Composes the upkeep of partitions whose leaders lack the role `seal`, on an agent that has it.

    an agent lacks the role ──▶ watch of /partitions ──▶ compaction, merging
             └── all have it ──▶ nothing: no watch, no look, no request

Compaction and merging are those of led partitions, with the same counters, log events, backoff and
thread; retention stays with the leaders, which write the partitions' keys.

Shell.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any

from driftlog_agents.cluster.prefix_watch import follow_prefix
from driftlog_agents.cluster.watch import ClusterWatch
from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.log.compaction.compaction_looks import CompactionSettings
from driftlog_agents.log.compaction.log_cleaner import LogCleaner
from driftlog_agents.log.compaction.rewrite_ports import RewritePorts
from driftlog_agents.log.delegated.delegated_partitions import (
    DelegatedPartition,
    DelegatedPartitions,
)
from driftlog_agents.log.delegated.delegated_rewrites import DelegatedRewrites
from driftlog_agents.log.merging.merge_looks import MergeSettings
from driftlog_agents.log.merging.segment_merger import SegmentMerger
from driftlog_agents.log.merging.topic_policies import TopicPolicies
from driftlog_agents.log.session.counters import LogCounters
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.keys import PARTITIONS_PREFIX
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.store import KeyValue, MetadataStore, WatchEvent


class DelegatedUpkeep:
    """See the module; for one session.

    Args:
        topics: the topics' policies, as they are now.
    """

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        ports: RewritePorts,
        session: Session,
        cluster: ClusterWatch,
        compaction: CompactionSettings,
        merging: MergeSettings,
        counters: LogCounters,
        topics: TopicPolicies,
    ) -> None:
        self._metadata = metadata
        self._cluster = cluster
        self._topics = topics
        self._partitions = DelegatedPartitions(cluster.view, session.node_id)
        rewrites = DelegatedRewrites(
            session=session,
            partitions=self._partitions,
            grace=topics.seal.grace,
            ports=ports,
        )
        self._log_cleaner = LogCleaner[DelegatedPartition](
            rewrites=rewrites,
            compacts=_no_copies,
            settings=compaction,
            counters=counters,
            logs=self._partitions.all,
        )
        self._merger = SegmentMerger[DelegatedPartition](
            rewrites=rewrites,
            settings=merging,
            counters=counters,
            logs=self._partitions.all,
        )

    async def run(self) -> None:
        """Do it while an agent lacks the role, until cancelled."""
        partitions, cluster = self._partitions, self._cluster
        while True:
            await cluster.until(partitions.are_needed)
            async with asyncio.TaskGroup() as tasks:
                works = [tasks.create_task(work) for work in self._works()]
                await cluster.until(lambda: not partitions.are_needed())
                for work in works:
                    work.cancel()
            partitions.clear()

    def _works(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield follow_prefix(self._metadata, PARTITIONS_PREFIX, self._reset, self._apply)
        yield self._log_cleaner.run(self._topics.compaction)
        yield self._merger.run(self._topics)

    def take_edited(self) -> list[tuple[str, TopicPartition]]:
        """The delegated partitions, with their topics' names, whose manifests got a newer version
        since the last call: their leaders leave what was replaced to this agent's collector."""
        return [(each.topic, each.tp) for each in self._partitions.take_edited()]

    async def _reset(self, revision: int, kvs: Iterable[KeyValue]) -> None:
        async for _ in sliced(self._partitions.resetting(kvs)):
            pass

    def _apply(self, events: Sequence[WatchEvent]) -> None:
        self._partitions.apply(events)


def _no_copies(log: DelegatedPartition, end: int) -> None:
    """This agent has no local copies of what other agents lead."""
