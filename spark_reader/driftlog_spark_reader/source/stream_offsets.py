"""The offsets of a stream's micro-batches: where a batch ends, and what it reads.

    start ──▶ latest ends ──▶ minOffsetsPerTrigger: wait? ──▶ maxOffsetsPerTrigger ──▶ end
    start, end ──▶ new and deleted partitions, expired records ──▶ ranges

Source: org.apache.spark.sql.kafka010.KafkaMicroBatchStream#rateLimit, #delayBatch;
KafkaOffsetReaderAdmin#getOffsetRangesFromResolvedOffsets.

Pure.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from driftlog_spark_reader.common.errors import DataLossError, OffsetOutOfRangeError
from driftlog_spark_reader.options.bounds import NamedPartition
from driftlog_spark_reader.options.resolution import LogEnds

ByPartition = Mapping[NamedPartition, int]

_ADVICE: Final = (
    "set failOnDataLoss=false if the query is to go on with what is left, or start it with a new "
    "checkpoint"
)


def made_again(
    partitions: Iterable[NamedPartition], before: Mapping[str, str], now: Mapping[str, str]
) -> set[NamedPartition]:
    """Those whose topic has another id *now*; a checkpoint of Spark's Kafka source has no ids."""
    others = {topic for topic in before.keys() & now.keys() if before[topic] != now[topic]}
    return {named for named in partitions if named.topic in others}


def shorter_logs(
    least_ends: ByPartition, logs: Mapping[NamedPartition, LogEnds], *, fail_on_data_loss: bool
) -> dict[NamedPartition, int]:
    """The ends of the logs that are shorter than they were.

    Source: org.apache.spark.sql.kafka010.KafkaOffsetReaderAdmin, "Partition …'s offset was changed
    from … to …, some data may have been missed".

    Raises:
        DataLossError: there are such logs.
    """
    found = {
        named: logs[named].end
        for named in sorted(least_ends.keys() & logs.keys())
        if logs[named].end < least_ends[named]
    }
    if found and fail_on_data_loss:
        lost = [
            f"{named}: ends at {found[named]}, and was at {least_ends[named]}" for named in found
        ]
        raise DataLossError(
            f"the log is shorter than it was when the query read it: {'; '.join(lost)}: an older "
            f"copy of it was put back, or records were lost.  {_ADVICE}"
        )
    return found


def new_offsets(start: ByPartition, ends: Mapping[NamedPartition, LogEnds]) -> int:
    """How many offsets are behind *start*; a new partition's count from its log start."""
    return sum(max(0, log.end - start.get(named, log.start)) for named, log in ends.items())


def limited_ends(
    start: ByPartition,
    ends: Mapping[NamedPartition, LogEnds],
    max_offsets: int,
    segment_ends: Callable[[NamedPartition, int, int], Sequence[int]],
) -> dict[NamedPartition, int]:
    """The end of a batch of about *max_offsets* offsets: each partition gives its share of them.

    A partition's batch ends with a segment if one ends in its share, so that later batches read
    whole row groups.

    Args:
        segment_ends: of a partition's segments that end in ``(start, end]``, ascending.
    """
    begins = {named: start.get(named, log.start) for named, log in ends.items()}
    sizes = {named: max(0, log.end - begins[named]) for named, log in ends.items()}
    total = sum(sizes.values())
    found = {}
    for named, log in ends.items():
        begin = begins[named]
        if total <= max_offsets or not sizes[named]:
            found[named] = log.end
            continue
        share = max_offsets * sizes[named] / total
        # A small partition is not starved.
        quota = math.ceil(share) if share < 1 else math.floor(share)
        most = min(log.end, begin + quota)
        whole = segment_ends(named, begin, most)
        found[named] = whole[bisect_right(whole, most) - 1] if whole else most
    return found


def batch_ranges(
    start: ByPartition,
    end: ByPartition,
    logs: Mapping[NamedPartition, LogEnds],
    remade: Collection[NamedPartition] = (),
    *,
    fail_on_data_loss: bool,
) -> dict[NamedPartition, tuple[int, int]]:
    """What a batch reads of each partition of *end*.

    Args:
        logs: of the partitions that are there now.
        remade: those whose topic is another one than at *start*: they start at its first record.

    Raises:
        DataLossError: records of the batch, or of a partition that is gone, were deleted before
            they were read.
        OffsetOutOfRangeError: records of the batch cannot be read yet.
    """
    lost: list[str] = []
    if deleted := sorted((start.keys() - end.keys()) | (end.keys() - logs.keys())):
        lost.append(f"{_names(deleted)}: deleted, with the records that were not read yet")
    if again := sorted(set(remade)):
        lost.append(f"{_names(again)}: the topic was deleted and made again")
    ranges = {}
    for named in sorted(end.keys() & logs.keys()):
        first, last, log = start.get(named, 0), end[named], logs[named]
        if named in remade:
            first = log.start
        if first < last and last > log.end:
            raise OffsetOutOfRangeError(
                f"{named}: the batch ends at {last}, and the log can be read to {log.end}: seal "
                "the rest with `driftlog segments seal TOPIC`, or read it with includeTail"
            )
        if last < first and named not in remade:
            lost.append(
                f"{named}: the log ends at {last}, and the query has read to {first}: an older "
                "copy of the log was put back, or the topic was deleted and made again"
            )
        elif first < min(log.start, last):
            gone = min(log.start, last)
            lost.append(
                f"{named}: offsets {first} to {gone - 1} are gone: retention or DeleteRecords "
                "removed them before they were read"
            )
        first = min(max(first, log.start), last)
        ranges[named] = (first, last)
    if lost and fail_on_data_loss:
        raise DataLossError(f"records are lost to this query: {'; '.join(lost)}.  {_ADVICE}")
    return ranges


def _names(partitions: Iterable[NamedPartition]) -> str:
    return ", ".join(map(str, partitions))
