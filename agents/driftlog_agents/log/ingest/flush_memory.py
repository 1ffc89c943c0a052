"""Which batches of flushes stay in memory, and when producers must wait for commits.

    not committed    counted; over the budget those in buffer files are freed; over the limits
                     producers' connections are paused
    committed        kept for readers while there is room; the oldest go first

Pure.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from driftlog_agents.log.ingest.flush_effects import FlushStage
from driftlog_agents.log.ingest.flush_pipeline import FlushPipeline
from driftlog_agents.log.partition.tail import FlushBatches
from driftlog_tiering.foundation.types import MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """What the log may keep in memory."""

    memory_bytes: int = 96 * MiB
    """Batches in memory, in flight and as cache.  More: fewer reads of the recent log touch the
    disk."""

    pending_bytes: int = 3072 * MiB
    """Uncommitted bytes, in memory and on disk, above which producers' connections are paused.
    More: longer outages and bursts without a pause."""


_MOST_PENDING_BATCHES: Final = 100_000
"""Uncommitted batches above which producers' connections are paused: one or two seconds of work,
and some 600 bytes each beside the batch itself, which may have 84.  Where a batch was sent again,
another request waits for it, of some 300 bytes."""


class FlushMemory:
    """The uncommitted batches of one session, and those in memory."""

    def __init__(self, pipeline: FlushPipeline, settings: MemorySettings) -> None:
        self.pipeline = pipeline
        self._settings = settings
        self.pending_bytes = 0
        """Admitted bytes that are not committed."""
        self.pending_batches = 0
        self.committed: deque[FlushBatches] = deque()
        """The flushes whose batches are kept for readers, oldest first."""
        self._committed_bytes = 0

    @property
    def uncommitted_bytes(self) -> int:
        """Memory of uncommitted batches."""
        return self.pipeline.open_held_bytes + sum(
            flush.held_bytes
            for flush in self.pipeline.flushes
            if flush.payload is not None and flush.payload.data.views is not None
        )

    @property
    def held_bytes(self) -> int:
        """Memory of all batches."""
        return self.uncommitted_bytes + self._committed_bytes

    @property
    def is_overloaded(self) -> bool:
        """Whether more is uncommitted than the limits allow: read no more from producers."""
        if self.pending_batches > _MOST_PENDING_BATCHES:
            return True
        limit = self._settings.pending_bytes
        if self.pending_bytes > limit:
            return True
        held = self._in_memory_only
        much = max(self.pending_bytes, held) > limit // 8
        return much and held > self._settings.memory_bytes

    @property
    def _in_memory_only(self) -> int:
        """Memory of pending flushes that no buffer file holds: the disk fails."""
        return sum(
            flush.held_bytes
            for flush in self.pipeline.flushes
            if flush.payload is not None and not flush.payload.data.in_files
        )

    def commits(self, data: FlushBatches, size_bytes: int) -> None:
        """A flush is committed: its batches stay in memory for readers, while there is room."""
        self.pending_bytes -= size_bytes
        self.pending_batches -= len(data)
        if data.views is not None:
            self.committed.append(data)
            self._committed_bytes += data.view_bytes

    def trim(self) -> None:
        """Free memory over the budget: committed batches first, then uncommitted ones that files
        hold."""
        while self.committed and self.held_bytes > self._settings.memory_bytes:
            data = self.committed.popleft()
            self._committed_bytes -= data.view_bytes
            data.views = None
        over = self.uncommitted_bytes - self._settings.memory_bytes
        if over <= 0:
            return
        for flush in reversed(list(self.pipeline.flushes)):
            if over <= 0 or flush.payload is None:
                return  # cut because the session was lost: no payload is laid out
            data = flush.payload.data
            waits = flush.stage is not FlushStage.UPLOADING
            if waits and data.views is not None and data.in_files:
                data.views = None
                over -= flush.held_bytes
