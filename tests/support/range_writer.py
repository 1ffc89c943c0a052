"""A writer of sealed ranges whose segments are written here."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random

from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_agents.log.sealing.segment_writer import SealedRangeWriter
from driftlog_agents.log.segments.batch_faults import RangeBounds
from driftlog_agents.log.segments.range_reader import RangeReader
from driftlog_agents.log.segments.range_segments import RangeSegments
from driftlog_agents.log.session.counters import LogCounters
from driftlog_tiering.foundation.types import Offload
from driftlog_tiering.segments.file_likes import Spool
from driftlog_tiering.stores.object_store import ObjectStore


def range_writer(
    *,
    objects: ObjectStore,
    offload: Offload,
    spool: Callable[[], AbstractContextManager[Spool]],
    reader: RangeReader,
    rng: Random | None = None,
    counters: LogCounters | None = None,
    decoding: BatchDecoder | None = None,
    bounds: RangeBounds | None = None,
) -> SealedRangeWriter:
    """As a session without other agents has it."""
    rng = rng or Random(1)
    segments = RangeSegments(
        objects=objects,
        offload=offload,
        spool=spool,
        rng=rng,
        counters=counters or LogCounters(),
        decoding=decoding,
        bounds=bounds,
    )
    return SealedRangeWriter(offload=offload, rng=rng, reader=reader, segments=segments)
