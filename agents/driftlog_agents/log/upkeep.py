"""Composes the upkeep of the sealed logs that one session leads.

    compaction, merging    fewer records, fewer segments     one of them at a time for a partition;
                                                             here, or by another agent: `delegated`
    retention              a later log start
    verification           only reads

Each works beside the others and gives way to requests and to sealing: its long work runs in the one
thread of upkeep.

Shell.
"""

from collections.abc import Coroutine, Iterator
from random import Random
from typing import Any

from driftlog_agents.foundation.offload import SerialOffload
from driftlog_agents.log.compaction.log_cleaner import LogCleaner
from driftlog_agents.log.compaction.partition_rewrites import PartitionRewrites
from driftlog_agents.log.compaction.rewrite_ports import RewritePorts
from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.merging.segment_merger import SegmentMerger
from driftlog_agents.log.merging.topic_policies import TopicPolicies
from driftlog_agents.log.objects.manifest_cache import ManifestCache
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.partition.sealed_cache import SealedCache
from driftlog_agents.log.retention.segment_expiry import SegmentExpiry
from driftlog_agents.log.sealing.record_deletion import RecordDeletion
from driftlog_agents.log.session.session import Session
from driftlog_agents.log.session_ports import Ports
from driftlog_agents.log.upkeep_partitions import UpkeepPartitions
from driftlog_agents.log.verification.partition_verification import PartitionVerification


class Upkeep:
    """See the module.

    Args:
        topics: the topics' policies, as they are now.
        partitions: which the session leads, and which of them it compacts and merges.
    """

    def __init__(
        self,
        *,
        ports: Ports,
        session: Session,
        manifests: ManifestCache,
        sealed_cache: SealedCache,
        deletion: RecordDeletion,
        settings: EngineSettings,
        topics: TopicPolicies,
        partitions: UpkeepPartitions,
    ) -> None:
        self._topics = topics
        offload = SerialOffload(ports.offload_upkeep or ports.offload)
        self.rewrite_ports = RewritePorts(
            objects=ports.objects,
            offload=offload,
            spool=ports.spool,
            rng=ports.rng,
            now_ms=ports.now_ms,
            wall_ms=ports.wall_ms,
            decoding=ports.decoding,
        )
        rewrites = PartitionRewrites(
            session=session,
            manifests=manifests,
            grace=settings.seal.grace,
            ports=self.rewrite_ports,
        )
        self._log_cleaner = LogCleaner[PartitionLog](
            rewrites=rewrites,
            compacts=sealed_cache.forget,
            settings=settings.compaction,
            counters=ports.counters,
            logs=partitions.compacted,
        )
        self._merger = SegmentMerger[PartitionLog](
            rewrites=rewrites,
            settings=settings.merging,
            counters=ports.counters,
            logs=partitions.merged,
        )
        self.retention = SegmentExpiry(
            objects=ports.objects,
            manifests=manifests,
            deletion=deletion,
            settings=settings.retention,
            counters=ports.counters,
            rng=Random(f"retention {session.session_id}"),
            logs=partitions.led,
            wall_ms=ports.wall_ms,
        )
        self.verification = PartitionVerification(
            objects=ports.objects,
            offload=offload,
            settings=settings.verification,
            backpressure=ports.backpressure,
            counters=ports.counters,
            logs=partitions.led,
            wall_ms=ports.wall_ms,
        )

    def works(self) -> Iterator[Coroutine[Any, Any, None]]:
        """What runs until it is cancelled."""
        yield self._log_cleaner.run(self._topics.compaction)
        yield self._merger.run(self._topics)
        yield self.retention.run(self._topics.retention)
        yield self.verification.run()
