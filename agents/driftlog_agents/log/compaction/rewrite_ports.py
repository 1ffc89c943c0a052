"""What rewrites of sealed segments use of the process.

Shell.
"""

from asyncio import Lock
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from driftlog_agents.foundation.offload import SerialOffload
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_tiering.segments.file_likes import Spool
from driftlog_tiering.stores.object_store import ObjectStore

_LARGE_BYTES: Final = 32 * 1024 * 1024
"""A larger row group is decoded in its turn; most are half as large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewritePorts:
    """What compaction and merging use of the process."""

    objects: ObjectStore
    offload: SerialOffload
    """Runs work that must delay neither requests nor sealing."""
    spool: Callable[[], AbstractContextManager[Spool]]
    rng: Random
    now_ms: Callable[[], float]
    """A monotonic clock that counts suspended time."""
    wall_ms: Callable[[], int]
    """Unix time in ms; record timestamps are compared with it, as in Kafka."""
    decoding: BatchDecoder = field(default_factory=BatchDecoder)
    compacting: Lock = field(default_factory=Lock)
    """Of the compaction that runs: a map of keys is large."""

    def nonce(self) -> str:
        """A new name."""
        return f"{self.rng.getrandbits(64):016x}"

    async def decode(self, size_bytes: int, work: Callable[..., Any], *args: Any) -> Any:
        """As `Bucket.decode`: a large row group waits for its turn, as all decoding in the process
        does, and takes it when the thread of upkeep is free."""
        if size_bytes <= _LARGE_BYTES:
            return await self.offload(work, *args)
        turn = self.decoding.large(size_bytes)
        return await self.offload.within(turn, work, *args)
