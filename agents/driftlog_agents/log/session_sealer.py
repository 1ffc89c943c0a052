"""Composes the sealing of one session: of its own partitions, and for leaders of other agents.

    sealer ──▶ edits ──▶ range writer ──▶ segments here, or on an agent with the role ``seal``
    segment service ──▶ the same segments, for the batches that other leaders send

Shell.
"""

from driftlog_agents.foundation.clocks import Clocks
from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.objects.bucket_probe import BucketProbes
from driftlog_agents.log.objects.manifest_cache import ManifestCache
from driftlog_agents.log.sealing.attempts import SealAttempts
from driftlog_agents.log.sealing.manifest_edits import ManifestEdits
from driftlog_agents.log.sealing.partition_keys import PartitionKeys
from driftlog_agents.log.sealing.sealer import SealedPartitions, Sealer
from driftlog_agents.log.sealing.segment_writer import SealedRangeWriter
from driftlog_agents.log.segments.batch_faults import RangeBounds
from driftlog_agents.log.segments.range_reader import LookAgain, RangeReader
from driftlog_agents.log.segments.range_segments import RangeSegments
from driftlog_agents.log.segments.remote_segments import RemoteSegments
from driftlog_agents.log.segments.segment_service import SegmentService
from driftlog_agents.log.session.session import Session
from driftlog_agents.log.session.session_health import SessionSignals
from driftlog_agents.log.session_ports import Ports
from driftlog_tiering.batches.batch_limits import LIGHT_BYTES


class SessionSealer:
    """See the module.

    Args:
        look_again: as `RangeReader`'s.
    """

    def __init__(
        self,
        *,
        ports: Ports,
        session: Session,
        keys: PartitionKeys,
        manifests: ManifestCache,
        probes: BucketProbes,
        partitions: SealedPartitions,
        settings: EngineSettings,
        look_again: LookAgain,
    ) -> None:
        work_bytes = settings.seal.segment_work_bytes
        segments = RangeSegments(
            objects=ports.objects,
            offload=ports.offload,
            spool=ports.spool,
            rng=ports.rng,
            counters=ports.counters,
            decoding=ports.decoding,
            bounds=RangeBounds(
                work_bytes=work_bytes, raw_batches=max(1, work_bytes // LIGHT_BYTES)
            ),
        )
        self.service = SegmentService(segments, session, ports.write_turns)
        remote = None
        if ports.seal_agents is not None:
            remote = RemoteSegments(
                agents=ports.seal_agents,
                session=session,
                offload=ports.offload,
                now_ms=ports.now_ms,
                is_behind=lambda: self.sealer.lag.full,
                requests=ports.counters.segment_requests,
            )
        writer = SealedRangeWriter(
            offload=ports.offload,
            rng=ports.rng,
            reader=RangeReader(ports.objects, look_again),
            segments=segments,
            remote=remote,
            producers=settings.producers,
        )
        self.sealer = Sealer(
            session=session,
            keys=keys,
            edits=ManifestEdits(
                session=session,
                objects=ports.objects,
                manifests=manifests,
                writer=writer,
                attempts=SealAttempts(settings.seal, ports.rng.random),
                rng=ports.rng,
                now_ms=ports.now_ms,
                grace=settings.seal.grace,
            ),
            probes=probes,
            partitions=partitions,
            settings=settings.seal,
            clocks=Clocks(ports.now_ms, ports.wall_ms),
            signals=SessionSignals(ports.counters, ports.health, ports.backpressure),
        )
