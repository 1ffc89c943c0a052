"""The ranges of offsets that a query reads, each with the segments that hold it.

    selection ──▶ newest manifests ──▶ bounds as offsets ──▶ ranges ──▶ segments, by manifest

One manifest version of each partition is read, and all that follows is of that version.

Shell.
"""

import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Final
from uuid import UUID

from driftlog_metadata.schema.model import Topic, TopicPartition
from driftlog_spark_reader.bucket.catalog import newest_manifest, segments
from driftlog_spark_reader.bucket.files import Files
from driftlog_spark_reader.bucket.timestamps import offset_at
from driftlog_spark_reader.common.errors import RawSegmentSkippedWarning
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
from driftlog_tiering.formats.manifest import Manifest

THREADS: Final = 32
"""Partitions whose objects are read at once.  More: many partitions are planned sooner."""


def query_ranges(
    files: Files, options: SourceOptions, time: TimeRange = ALL_TIMES
) -> list[PartitionRange]:
    """The ranges of a batch query, by topic and partition; some may be empty.

    Raises:
        ValueError: the options do not fit the topics.
        OffsetOutOfRangeError: requested offsets are deleted, or not sealed yet.
        UnknownTopicError, DeletedTopicError, AmbiguousTopicError: there is not one such topic.
        DamagedTopicError: an object is damaged or missing.
        StorageError: the location cannot be read.
    """
    topic_id = None if options.topic_id is None else UUID(options.topic_id)
    partitions = select_partitions(files, options.selection, topic_id)
    check_all_named("the start", options.starting, partitions)
    check_all_named("the end", options.ending, partitions)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="manifests") as pool:
        manifests = read_manifests(files, partitions, pool)
        ends = log_ends(manifests)
        starts = bound_offsets(files, options.starting, manifests, ends, pool, is_start=True)
        stops = bound_offsets(files, options.ending, manifests, ends, pool, is_start=False)
        ranges = {
            named: resolve_range(
                named, starts[named], stops[named], log, fail_on_data_loss=options.fail_on_data_loss
            )
            for named, log in ends.items()
        }
        return with_segments(files, manifests, ranges, pool, time)


def warn_of_undecodable(files: Files, ranges: Iterable[PartitionRange]) -> None:
    """Warn of each segment that holds batches as they came, because they could not be decoded."""
    for named, segment in undecodable(ranges):
        warnings.warn(
            f"{named}: offsets {segment.base} to {segment.end - 1} are left out: their batches "
            f"could not be decoded; they are kept as they came in {files.path(segment.key)}",
            RawSegmentSkippedWarning,
            stacklevel=3,
        )


def read_manifests(
    files: Files,
    partitions: Mapping[NamedPartition, Topic],
    pool: ThreadPoolExecutor,
    known: Mapping[NamedPartition, Manifest] = MappingProxyType({}),
) -> dict[NamedPartition, Manifest]:
    """The newest manifest of each partition; those of *known* that are it are not read again.

    Raises:
        DamagedTopicError: one is damaged.
        StorageError: the location cannot be read.
    """

    def read(named: NamedPartition) -> Manifest:
        tp = TopicPartition(partitions[named].topic_id, named.partition)
        return newest_manifest(files, named.topic, tp, known.get(named))

    return dict(zip(partitions, pool.map(read, partitions), strict=True))


def log_ends(manifests: Mapping[NamedPartition, Manifest]) -> dict[NamedPartition, LogEnds]:
    """What of each partition is sealed, and not deleted."""
    return {
        named: LogEnds(manifest.log_start, max(manifest.log_start, manifest.end))
        for named, manifest in manifests.items()
    }


def with_segments(
    files: Files,
    manifests: Mapping[NamedPartition, Manifest],
    ranges: Mapping[NamedPartition, tuple[int, int]],
    pool: ThreadPoolExecutor,
    time: TimeRange = ALL_TIMES,
) -> list[PartitionRange]:
    """The ranges with their segments that may hold records of *time*.

    Raises:
        DamagedTopicError: a segment list is damaged or missing.
        StorageError: the location cannot be read.
    """

    def find(named: NamedPartition) -> PartitionRange:
        start, end = ranges[named]
        found = tuple(segments(files, manifests[named], start, end, time))
        return PartitionRange(named, start, end, found)

    # Without lists, nothing is read: a thread for each of 1,000 partitions costs more.
    names = sorted(ranges)
    with_lists = [named for named in names if manifests[named].lists]
    found = dict(zip(with_lists, pool.map(find, with_lists), strict=True))
    return [found.get(named) or find(named) for named in names]


def bound_offsets(
    files: Files,
    bound: Bound,
    manifests: Mapping[NamedPartition, Manifest],
    ends: Mapping[NamedPartition, LogEnds],
    pool: ThreadPoolExecutor,
    *,
    is_start: bool,
) -> dict[NamedPartition, int]:
    """The offsets of a bound; times are looked up in the segments.

    Raises:
        ValueError: no record is late enough, and the strategy is "error".
        DamagedTopicError: a segment is damaged or missing.
        StorageError: the location cannot be read.
    """
    times = times_of(bound, manifests)

    def find(named: NamedPartition) -> int | None:
        return offset_at(files, manifests[named], times[named])

    at_times = dict(zip(times, pool.map(find, times), strict=True))
    return resolve_bound(bound, ends, at_times, is_start=is_start)
