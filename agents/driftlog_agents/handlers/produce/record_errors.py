"""Finds the records of a batch that a topic refuses: the index and the error of each.

* The topic is compacted, and the record has no key.
* The topic keeps the producers' timestamps, and this one is out of range.

One such record causes its whole batch to be refused.  A client fails the named records with their
own messages, and the other records as part of a refused batch; if none is named, it fails all of
them alike.
Source: LogValidator#validateRecord, LogValidator#processRecordErrors, the producer's
Sender#failBatch.

Pure.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from driftlog_agents.configs.topic import TopicLimits
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_tiering.batches.batch import NO_TIMESTAMP
from driftlog_tiering.batches.batch_limits import BatchLimits
from driftlog_tiering.segments.columns import ColumnBuilder

MOST_NAMED: Final = 1_000
"""Records that one answer names, at most.  More: a small request can get a larger answer."""

NAMED_BYTES: Final = MOST_NAMED * 160
"""Bytes that named records add to an answer, at most."""

_INT64_MIN: Final = -(2**63)


class RefusedRecordsError(RefusedError):
    """A batch is refused because of some of its records.

    Args:
        records: (index in the batch, error text) of the first `MOST_NAMED` at most.
    """

    def __init__(self, code: ErrorCode, message: str, records: Sequence[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.records = records


def check_records(
    limits: TopicLimits, batch: memoryview, batch_limits: BatchLimits, now_ms: int
) -> None:
    """Check the key and the timestamp of every record of a whole batch.

    Raises:
        RefusedRecordsError: INVALID_TIMESTAMP if a timestamp is out of range, else INVALID_RECORD.
        CorruptRecordsError: the batch cannot be decoded.
        OverBatchLimitError: it is over a limit of decoding.
    """
    builder = ColumnBuilder("", 0, batch_limits)
    builder.add(batch)
    table = builder.take()
    none = pa.chunked_array([pa.repeat(pa.scalar(False), len(table))])
    keyless = table.column("key").is_null() if limits.compacted else none
    low_ms, high_ms = (
        now_ms - limits.timestamp_before_max_ms,
        now_ms + limits.timestamp_after_max_ms,
    )
    mistimed = none if limits.log_append_time else _outside(table, low_ms, high_ms)
    bad = pc.indices_nonzero(pc.or_(keyless, mistimed))
    if not len(bad):
        return
    named: list[tuple[int, str]] = []
    times_ms = table.column("timestamp").cast(pa.int64())
    for index in bad[:MOST_NAMED].to_pylist():
        if keyless[index].as_py():
            text = "it has no key, and the topic's cleanup.policy is compact"
        else:
            text = f"its timestamp {times_ms[index].as_py() // 1000} is not in {low_ms}..{high_ms}"
        named.append((index, text))
    timestamps, count = pc.any(mistimed).as_py(), f"{len(bad)} of {len(table)} records"
    if timestamps:
        raise RefusedRecordsError(
            ErrorCode.INVALID_TIMESTAMP,
            f"{count} are refused, some for timestamps outside of what "
            "message.timestamp.before.max.ms and message.timestamp.after.max.ms allow",
            named,
        )
    raise RefusedRecordsError(
        ErrorCode.INVALID_RECORD,
        f"{count} have no key, and the topic's cleanup.policy is compact: produce records with "
        "keys, or take compact out of the topic's cleanup.policy",
        named,
    )


def _outside(table: pa.Table, low_ms: int, high_ms: int) -> pa.ChunkedArray:
    times_us = table.column("timestamp").cast(pa.int64())
    low_us = max(low_ms * 1000, _INT64_MIN)
    high_us = min(high_ms * 1000, -_INT64_MIN - 1)
    outside = pc.or_(pc.less(times_us, low_us), pc.greater(times_us, high_us))
    return pc.and_(outside, pc.not_equal(times_us, NO_TIMESTAMP * 1000))
