"""The ranges of offsets that a query reads, each with the segments that hold it.

    selection ──▶ the tail's ends ──▶ newest manifests ──▶ bounds as offsets ──▶ ranges
        ──▶ segments, to the manifest's end ──▶ pieces of the tail, from there to the cut

One manifest version of each partition is read, and all that follows is of that version.  Without a
tail, a partition ends where its manifest does.

Shell.
"""

import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final
from uuid import UUID

from driftlog_metadata.schema.model import Topic, TopicPartition
from driftlog_spark_reader.bucket.catalog import newest_manifest, segments
from driftlog_spark_reader.bucket.files import Files
from driftlog_spark_reader.common.errors import (
    DataLossError,
    RawSegmentSkippedWarning,
    SealedMeanwhileError,
)
from driftlog_spark_reader.options.bounds import Bound, NamedPartition
from driftlog_spark_reader.options.resolution import (
    LogEnds,
    check_all_named,
    resolve_bound,
    resolve_range,
    times_of,
)
from driftlog_spark_reader.options.source_options import SourceOptions
from driftlog_spark_reader.options.time_range import ALL_TIMES, TimeRange
from driftlog_spark_reader.query.topics import select_partitions
from driftlog_spark_reader.query.wanted_files import PartitionRange, undecodable
from driftlog_spark_reader.tail.port import Tail
from driftlog_tiering.formats.manifest import Manifest

THREADS: Final = 32
"""Partitions whose objects are read at once.  More: many partitions are planned sooner."""

_NO_TAIL: Final = LogEnds(0, 0)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition as a query sees it.

    ``cut``: the log as its tail says; without a tail, the manifest says all.
    """

    topic: Topic
    manifest: Manifest
    cut: LogEnds = _NO_TAIL

    @property
    def log(self) -> LogEnds:
        """What of it can be read."""
        start = max(self.manifest.log_start, self.cut.start)  # the manifest's follows
        return LogEnds(start, max(start, self.manifest.end, self.cut.end))


def query_ranges(
    files: Files, options: SourceOptions, time: TimeRange = ALL_TIMES, tail: Tail | None = None
) -> list[PartitionRange]:
    """The ranges of a batch query, by topic and partition; some may be empty.

    Raises:
        ValueError: the options do not fit the topics.
        OffsetOutOfRangeError: requested offsets are deleted, or not sealed yet.
        UnknownTopicError, DeletedTopicError, AmbiguousTopicError: there is not one such topic.
        DamagedTopicError: an object is damaged or missing.
        StorageError: the location cannot be read.
        TailUnavailableError: the tail cannot be read.
    """
    with ThreadPoolExecutor(THREADS, thread_name_prefix="manifests") as pool:
        states = read_states(files, options, pool, tail)
        check_all_named("the start", options.starting, states)
        check_all_named("the end", options.ending, states)
        starts = bound_offsets(files, options.starting, states, pool, tail, is_start=True)
        stops = bound_offsets(files, options.ending, states, pool, tail, is_start=False)
        ranges = {
            named: resolve_range(
                named,
                starts[named],
                stops[named],
                state.log,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            for named, state in states.items()
        }
        return with_segments(files, states, ranges, pool, time, tail)


def check_decodable(
    files: Files, ranges: Iterable[PartitionRange], *, fail_on_data_loss: bool
) -> None:
    """Segments that hold batches as they came, because they could not be decoded, are a loss.

    With failOnDataLoss=false, a `RawSegmentSkippedWarning` names each of them.

    Raises:
        DataLossError: a range has such a segment.
    """
    for named, segment in undecodable(ranges):
        found = f"{named}: offsets {segment.base} to {segment.end - 1}"
        where = f"{files.path(segment.key)} keeps them as they came"
        if fail_on_data_loss:
            raise DataLossError(
                f"{found} have batches that cannot be decoded; {where}, and consumers get them.  "
                "Begin behind them, or leave them out with failOnDataLoss=false"
            )
        warnings.warn(
            f"{found} are left out: their batches cannot be decoded; {where}",
            RawSegmentSkippedWarning,
            stacklevel=3,
        )


def read_states(
    files: Files,
    options: SourceOptions,
    pool: ThreadPoolExecutor,
    tail: Tail | None = None,
    known: Mapping[NamedPartition, PartitionState] = MappingProxyType({}),
    *,
    strict: bool = True,
) -> dict[NamedPartition, PartitionState]:
    """The selected partitions with their newest manifests; those of *known* that still are the
    newest are not read again.

    *strict*: a topic that is named and not there is an error.

    Raises:
        ReadTopicError, ValueError: as `query_ranges` says.
    """
    topic_id = None if options.topic_id is None else UUID(options.topic_id)
    partitions = select_partitions(files, options.selection, pool, topic_id, strict=strict)
    cuts = {} if tail is None else _cuts(tail, partitions)  # before the manifests: `tail.port`

    def read(named: NamedPartition) -> PartitionState:
        topic = partitions[named]
        before = known.get(named)
        manifest = newest_manifest(
            files,
            topic.name,
            TopicPartition(topic.topic_id, named.partition),
            None if before is None else before.manifest,
        )
        return PartitionState(topic, manifest, cuts.get(named, _NO_TAIL))

    return dict(zip(partitions, pool.map(read, partitions), strict=True))


def _cuts(tail: Tail, partitions: Mapping[NamedPartition, Topic]) -> dict[NamedPartition, LogEnds]:
    topics = {named.topic: topic for named, topic in partitions.items()}
    found = {}
    for name, topic in topics.items():
        asked = [named.partition for named in partitions if named.topic == name]
        for partition, cut in tail.ends(topic, asked).items():
            found[NamedPartition(name, partition)] = cut
    return found


def with_segments(
    files: Files,
    states: Mapping[NamedPartition, PartitionState],
    ranges: Mapping[NamedPartition, tuple[int, int]],
    pool: ThreadPoolExecutor,
    time: TimeRange = ALL_TIMES,
    tail: Tail | None = None,
) -> list[PartitionRange]:
    """The ranges with their segments that may hold records of *time*, and their pieces of the tail.

    Raises:
        DamagedTopicError: a segment list is damaged or missing.
        SealedMeanwhileError: a piece of the tail was sealed, or deleted, since the manifests were
            read.
        StorageError: the location cannot be read.
        TailUnavailableError: the tail cannot be read.
    """

    def find(named: NamedPartition) -> PartitionRange:
        start, end = ranges[named]
        found = tuple(segments(files, states[named].manifest, start, end, time))
        return PartitionRange(named, start, end, found)

    # Without lists, nothing is read: a thread for each of 1,000 partitions costs more.
    names = sorted(ranges)
    with_lists = [named for named in names if states[named].manifest.lists]
    listed = dict(zip(with_lists, pool.map(find, with_lists), strict=True))
    found = [listed.get(named) or find(named) for named in names]
    return found if tail is None else [_with_tail(tail, states[r.named], r) for r in found]


def _with_tail(tail: Tail, state: PartitionState, wanted: PartitionRange) -> PartitionRange:
    start = max(wanted.start, state.manifest.end)
    if start >= wanted.end:
        return wanted
    pieces = tail.plan(state.topic, wanted.named.partition, start, wanted.end)
    if not pieces or pieces[0].start > start:
        raise SealedMeanwhileError(
            f"{wanted.named}: records from offset {start} on were deleted after its log start was "
            "read; read it again"
        )
    return replace(wanted, tail=tuple(pieces))


def bound_offsets(
    files: Files,
    bound: Bound,
    states: Mapping[NamedPartition, PartitionState],
    pool: ThreadPoolExecutor,
    tail: Tail | None = None,
    *,
    is_start: bool,
) -> dict[NamedPartition, int]:
    """The offsets of a bound; times are looked up in the segments, and then in the tail.

    Raises:
        ValueError: no record is late enough, and the strategy is "error".
        DamagedTopicError: a segment is damaged or missing.
        StorageError: the location cannot be read.
        TailUnavailableError: the tail cannot be read.
    """
    times = times_of(bound, states)

    def find(named: NamedPartition) -> int | None:
        # Imports pyarrow.parquet, which no other plan needs: see `source/data_source`.
        from driftlog_spark_reader.bucket.timestamps import offset_at  # noqa: PLC0415

        return offset_at(files, states[named].manifest, times[named])

    at_times = dict(zip(times, pool.map(find, times), strict=True))
    if tail is not None:
        for named in (named for named, offset in at_times.items() if offset is None):
            there = tail.offset_at(states[named].topic, named.partition, times[named])
            at_times[named] = None if there is None else there[0]
    ends = {named: state.log for named, state in states.items()}
    return resolve_bound(bound, ends, at_times, is_start=is_start)
