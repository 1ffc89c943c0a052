"""The port for the tail of a log: records that are committed and not sealed.

    driver      ends(topic) ──▶ the manifests are read ──▶ plan(topic, partition, sealed end, end)
                    │ the cut                                   │ pieces, pickled
    executors       └─────────────────────────────────────────▼ reader().read(*pieces) ──▶ rows

A query reads sealed rows below `sealed end` from segments, and the tail's rows from there to `end`:
every record that was acknowledged with ``acks=all`` before `ends` was called, once.  A record that
was acknowledged with ``acks=1`` may be on the disk of its agent only, until the next flush; no
consumer sees it before that, and neither does the tail.

**Why `ends` comes first.**  Sealing moves a range out of the tail: it writes the manifest, then the
sealed end, and then deletes the flush records.  If the manifests were read first, a range that is
sealed between the two reads would be in neither: it is not in the old manifest, and its flush
records are gone.  With `ends` first it is in both, and the manifest's end decides: the query takes
the range from segments.  For the same reason no manifest may be older than the cut that is planned.

Port: `tests/spark/tail/test_tail.py` is its definition.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

import pyarrow as pa

from driftlog_metadata.schema.model import Topic
from driftlog_spark_reader.options.resolution import LogEnds

TAIL_TASKS: Final = 4
"""Tasks of Spark that read a tail, at most, unless the query asks for more.  More: a long tail is
read by more cores; each has connections of its own."""


@dataclass(frozen=True, slots=True)
class FlushSpan:
    """Whole batches, side by side in a flush object, that cover the offsets ``[base, end)``."""

    key: str
    position: int
    length: int
    base: int
    end: int


@dataclass(frozen=True, slots=True)
class TailRange:
    """A piece of the tail: the offsets ``[start, end)`` of a partition.  It is pickled.

    ``spans``: where its batches are; empty where agents serve them.
    """

    topic: str
    topic_id: UUID
    partition: int
    start: int
    end: int
    spans: tuple[FlushSpan, ...] = ()


class TailReader(Protocol):
    """Reads pieces, on executors: it is pickled, and connects only in `read`."""

    def read(self, *pieces: TailRange) -> Iterator[pa.RecordBatch]:
        """The records of *pieces*, in `driftlog_tiering.segments.columns.SCHEMA`.

        Those of a partition come by offset; partitions may alternate.  One call for all pieces of a
        task is faster than one for each: they share connections.  The memory that a read needs does
        not grow with the pieces.

        Raises:
            TailUnavailableError: agents or the bucket do not answer, or refuse.
            OffsetOutOfRangeError: records of the piece were deleted after it was planned.
            DataLossError: records of the piece cannot be decoded.
            DamagedTopicError: an object that has records of the piece is missing or damaged.
            DeletedTopicError: the topic was deleted after the piece was planned.
        """
        ...


class Tail(Protocol):
    """The tail of the topics of one cluster, on the driver.  For one thread at a time."""

    def ends(self, topic: Topic, partitions: Collection[int]) -> dict[int, LogEnds]:
        """The log start and the high watermark of each partition: the cut that `plan` and
        `offset_at` refer to.

        Call it before the manifests are read: see the module.

        Raises:
            TailUnavailableError: agents, etcd or the bucket do not answer, or refuse.
            DeletedTopicError: there is no topic with this id any more.
            DamagedTopicError: what is committed cannot be read completely.
        """
        ...

    def plan(self, topic: Topic, partition: int, start: int, end: int) -> list[TailRange]:
        """Pieces, by offset, that together have the records of ``[start, end)``.

        *start* is the end of a manifest that was read after `ends`.  Records below the log start of
        the cut are deleted, and in no piece.  Empty: there is no such record.

        Raises:
            SealedMeanwhileError: the range was sealed after its manifest was read: read the
                manifest again, and plan from its end.
            OffsetOutOfRangeError: *end* is above the high watermark.
            What `ends` raises.
        """
        ...

    def offset_at(self, topic: Topic, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, ms) of the first record below the cut with that timestamp or a later one.

        Records below the sealed end need not be found: ask for those that segments do not have.
        None: there is no such record.  Source: ListOffsets with a timestamp,
        org.apache.kafka.storage.internals.log.UnifiedLog#fetchOffsetByTimestamp.

        Raises:
            What `ends` raises.
        """
        ...

    def reader(self) -> TailReader:
        """What executors read the pieces with."""
        ...

    def close(self) -> None:
        """Release connections.  Readers do not need this object."""
        ...
