"""Which local copies of sealed batches are forgotten, in topics that a job may compact.

    sealed up to S, seen at t ──▶ memory and buffer files serve fetches below S
                          └─ t + `KEPT_MS` ──▶ fetches read segments, by the newest manifest

A job compacts a partition without its leader.  A fetch of local copies asks for no manifest: it
would give out older values for as long as they are local, and by then the tombstones of their keys
may be gone from the segments.  A tombstone goes `CleanerSettings.reader_ms` and
``delete.retention.ms`` after its horizon, which is not before the seal: local copies that are
forgotten within `reader_ms` of the seal are in time.

So the leader needs no request, and an idle partition costs none.  `PartitionLog.compacted` says
that the cached manifest ages, too (`partition/known_manifests`).

Pure.
"""

from collections import deque
from collections.abc import Container, Iterable, Iterator
from typing import Final

from driftlog_agents.log.partition.partition import PartitionLog

LOOK_MS: Final = 10_000.0
"""Between two looks."""

KEPT_MS: Final = 240_000.0
"""Below `CleanerSettings.reader_ms` by more than two looks and the write of the partition's key.
Longer: consumers further behind read no segment."""


class LocalCopies:
    """See the module; for one session."""

    def __init__(self) -> None:
        self._next_ms = 0.0
        self._seen: dict[PartitionLog, deque[tuple[float, int]]] = {}
        """When a sealed end was first seen, ascending."""

    def look(
        self, logs: Iterable[PartitionLog], topics: Container[str], now_ms: float
    ) -> Iterator[tuple[PartitionLog, int]]:
        """Each of *logs*, with the offset below which its local copies are too old; 0: none are.
        Yields nothing until the next look is due.  The caller may take slices of the event loop.

        *topics*: the names of those that are compacted now; the partitions learn it.
        """
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + LOOK_MS
        seen = self._seen
        self._seen = {}
        for log in logs:
            log.compacted = log.topic in topics
            old = 0
            if log.compacted and log.sealed_slices:
                ends = self._seen[log] = seen.get(log) or deque()
                if not ends or ends[-1][1] < log.sealed_end:
                    ends.append((now_ms, log.sealed_end))
                while ends and ends[0][0] <= now_ms - KEPT_MS:
                    old = ends.popleft()[1]
            yield log, old
