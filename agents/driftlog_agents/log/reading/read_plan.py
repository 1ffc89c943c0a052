"""Plans one read: which tier holds its offset, how far it may go, and what to read ahead.

    offset      log_start ........ sealed_end ................ high_watermark ──▶ log_end
    find_tier   SEALED           │ the slice of the tail     │ END (nothing yet)

No read begins below log start or above the log's end: a range that is deleted while the read waits
for the manifest is out of range, too, and is no gap.

Pure.
"""

from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple
from uuid import UUID

from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.partition.partition import PartitionLog, State, TailSlice
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_tiering.batches.batch import Codec
from driftlog_tiering.formats.manifest import Manifest
from driftlog_tiering.foundation.types import Buffer

_READERS: Final = 4_096
"""Sequential consumers that are remembered; each takes ~200 bytes."""

_ATTRIBUTES_LOW_BYTE: Final = 22

Place = tuple[UUID, int, int]
"""Topic id, partition, offset."""


class Batches(NamedTuple):
    """The result of a read: buffers of batches, the offset where they end, and the one where their
    unit ends (row group, piece of a flush object), which a sequential reader wants next."""

    buffers: list[Buffer]
    end: int
    unit_end: int


class Tier(Enum):
    """What holds an offset that is not in the tail."""

    SEALED = "sealed"
    """Segments; the manifest names them."""
    END = "end"
    """Nothing yet: it is at or above the high watermark."""


class OffsetOutOfRangeError(RefusedError):
    """The offset is below log start or above the log's end."""

    def __init__(self, log: PartitionLog, offset: int) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} of {log.topic}-{log.partition} is not within "
            f"[{log.log_start}, {log.log_end}]",
        )


def check_led(log: PartitionLog) -> None:
    """
    Raises:
        RefusedError: NOT_LEADER_OR_FOLLOWER, or KAFKA_STORAGE_ERROR: *log* is offline.
    """
    match log.state:
        case State.CLOSED:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        case State.OFFLINE:
            raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, log.offline_reason)
        case State.LOADING | State.ONLINE:
            return


def find_tier(log: PartitionLog, offset: int) -> TailSlice | Tier:
    """What holds *offset*.

    Raises:
        OffsetOutOfRangeError: below log start, or above the log's end.
        RefusedError: as `check_led`.
    """
    check_led(log)
    if not log.log_start <= offset <= log.log_end:
        raise OffsetOutOfRangeError(log, offset)
    if offset >= log.high_watermark:
        return Tier.END
    return log.find(offset) or Tier.SEALED


def check_sealed(log: PartitionLog, manifest: Manifest, offset: int) -> None:
    """
    Raises:
        OffsetOutOfRangeError: *offset* was deleted meanwhile.
        ObjectUnavailableError: *manifest* does not hold the sealed *offset*.
    """
    if offset < max(log.log_start, manifest.log_start):
        raise OffsetOutOfRangeError(log, offset)
    if offset >= manifest.end:
        raise ObjectUnavailableError(f"the segment of offset {offset} of {manifest.key}", "missing")


def holds_zstd(batches: Sequence[Buffer]) -> bool:
    """Whether a client that sends Fetch < 10 cannot read *batches* (KIP-110: error 76)."""
    return any(batch[_ATTRIBUTES_LOW_BYTE] & 7 == Codec.ZSTD for batch in batches)


class SequentialReaders:
    """Recognises sequential readers: a read that begins where another one ended."""

    def __init__(self) -> None:
        self._expected: OrderedDict[Place, None] = OrderedDict()
        """Where reads ended, oldest first."""
        self._ahead: set[Place] = set()
        """Places that are being read ahead now."""

    def follow(self, log: PartitionLog, offset: int, found: Batches) -> Place | None:
        """Notes the read of *found* from *offset* on; returns the place to read ahead, until
        `finished`; None: none."""
        topic_id, partition = log.topic_id, log.partition
        reads_on = self._expected.pop((topic_id, partition, offset), self) is None
        ended = topic_id, partition, found.end
        self._expected[ended] = None
        self._expected.move_to_end(ended)
        if len(self._expected) > _READERS:
            self._expected.popitem(last=False)
        following = topic_id, partition, found.unit_end
        if not reads_on or following in self._ahead:
            return None
        self._ahead.add(following)
        return following

    def finished(self, place: Place) -> None:
        """The read-ahead of *place* ended, or was not begun."""
        self._ahead.discard(place)
