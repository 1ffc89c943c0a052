"""Deletion of records: log start moves durably before the client is answered.

    DeleteRecords ──▶ the partition's key: log start ──▶ the log ──▶ answered
                                                            │
                         the manifest follows (`sealer`) ◀─┘

Log start never goes back, and never passes the high watermark.  Reads below it stop at once.  The
segments below it are deleted once the manifest no longer names them.  Unsealed batches below it are
sealed before that, so that the log has no gap.

Shell.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.sealing.partition_keys import PartitionKeys
from driftlog_metadata.schema.model import PartitionState
from driftlog_metadata.stores.errors import CorruptError, FencedError, UnavailableError

_Failed = FencedError | UnavailableError | CorruptError | None


class RecordDeletion:
    """Moves the log starts of one session's partitions.

    Args:
        spawn: runs a write as long as the session lasts; a cancelled caller does not end it.
    """

    def __init__(
        self,
        keys: PartitionKeys,
        spawn: Callable[[Coroutine[Any, Any, _Failed]], asyncio.Task[_Failed]],
    ) -> None:
        self._keys = keys
        self._spawn = spawn
        self._writes: set[asyncio.Task[_Failed]] = set()

    async def delete_to(
        self, log: PartitionLog, offset: int, wanted: Callable[[], bool] = lambda: True
    ) -> int:
        """Delete the records below *offset*, if any; returns log start, which is stored.

        A cancelled caller does not know whether the records are deleted.

        Args:
            wanted: asked just before the key is written; False: log start stays.

        Raises:
            FencedError: another session leads the partition, or this session is over.
            UnavailableError: the partition is no longer led here.
            CorruptError: one of its keys is missing or cannot be read.
        """
        assert 0 <= offset <= log.high_watermark
        if offset <= log.log_start:
            return log.log_start
        write = self._spawn(self._write(log, offset, wanted))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)
        await asyncio.wait((write,))
        if write.cancelled():
            raise UnavailableError(f"{log.topic}-{log.partition}: its session is over")
        failed = write.result()
        if failed is not None:
            raise failed
        return log.log_start

    def close(self) -> None:
        """Cancel the writes that are running."""
        for write in self._writes:
            write.cancel()

    async def _write(self, log: PartitionLog, offset: int, wanted: Callable[[], bool]) -> _Failed:
        def deleted(state: PartitionState) -> PartitionState:
            # The key is locked, and nothing is awaited between this and the transaction.
            return replace(state, log_start=max(state.log_start, offset)) if wanted() else state

        try:
            await self._keys.write(log, deleted)
        except (FencedError, UnavailableError, CorruptError) as error:
            return error
        return None
