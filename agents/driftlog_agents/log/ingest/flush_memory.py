"""Which batches of flushes stay in memory: uncommitted ones, and the newest committed ones.

    not committed    counted; over the budget those in buffer files are freed
    committed        kept for readers while there is room; the oldest go first

Pure.
"""

from collections import deque

from driftlog_agents.log.ingest.flush_pipeline import FlushPipeline, Stage
from driftlog_agents.log.partition.tail import FlushBatches


class FlushMemory:
    """The batches in memory of one session.

    Args:
        budget_bytes: of all batches in memory.
    """

    def __init__(self, pipeline: FlushPipeline, budget_bytes: int) -> None:
        self._pipeline = pipeline
        self._budget_bytes = budget_bytes
        self.committed: deque[FlushBatches] = deque()
        """The flushes whose batches are kept for readers, oldest first."""
        self._committed_bytes = 0

    @property
    def uncommitted_bytes(self) -> int:
        """Bytes of uncommitted batches in memory."""
        return self._pipeline.open_bytes + sum(
            flush.size_bytes
            for flush in self._pipeline.flushes
            if flush.payload is not None and flush.payload.data.views is not None
        )

    @property
    def held_bytes(self) -> int:
        """Bytes of all batches in memory."""
        return self.uncommitted_bytes + self._committed_bytes

    def keep(self, data: FlushBatches) -> None:
        """Keep the batches of a committed flush in memory for readers, while there is room."""
        if data.views is not None:
            self.committed.append(data)
            self._committed_bytes += data.view_bytes

    def trim(self) -> None:
        """Free memory over the budget: committed batches first, then uncommitted ones that files
        hold."""
        while self.committed and self.held_bytes > self._budget_bytes:
            data = self.committed.popleft()
            self._committed_bytes -= data.view_bytes
            data.views = None
        over = self.uncommitted_bytes - self._budget_bytes
        if over <= 0:
            return
        for flush in reversed(list(self._pipeline.flushes)):
            if over <= 0 or flush.payload is None:
                return  # cut because the session was lost: no payload is laid out
            data = flush.payload.data
            waits = flush.stage is not Stage.UPLOADING
            if waits and data.views is not None and data.in_files:
                data.views = None
                over -= flush.size_bytes
