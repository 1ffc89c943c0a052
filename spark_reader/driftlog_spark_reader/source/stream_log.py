"""The topics of a stream as its driver reads them, trigger by trigger.

Manifests that have not changed are not read again: a trigger without news costs two listings for
each topic, and one for each partition.

Shell.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from driftlog_metadata.schema.model import Topic
from driftlog_spark_reader.bucket.catalog import segments
from driftlog_spark_reader.bucket.locations import open_files
from driftlog_spark_reader.options.bounds import NamedPartition
from driftlog_spark_reader.options.resolution import LogEnds, check_all_named
from driftlog_spark_reader.options.source_options import SourceOptions
from driftlog_spark_reader.query.ranges import (
    THREADS,
    bound_offsets,
    log_ends,
    read_manifests,
    warn_of_undecodable,
    with_segments,
)
from driftlog_spark_reader.query.topics import select_partitions
from driftlog_spark_reader.query.wanted_files import PartitionRange
from driftlog_tiering.formats.manifest import Manifest


class StreamLog:
    """The selected partitions, as of the last `refresh`."""

    def __init__(self, location: str, options: SourceOptions) -> None:
        self._files = open_files(location)
        self._options = options
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="manifests")
        self._manifests: dict[NamedPartition, Manifest] = {}

    def refresh(self) -> dict[NamedPartition, LogEnds]:
        """Look at topics and manifests; returns what of each partition can be read.

        Raises:
            ReadTopicError: the topics cannot be read, as `query_ranges` says.
        """
        topic_id = None if self._options.topic_id is None else UUID(self._options.topic_id)
        partitions: Mapping[NamedPartition, Topic] = select_partitions(
            self._files, self._options.selection, topic_id
        )
        self._manifests = read_manifests(self._files, partitions, self._pool, self._manifests)
        return log_ends(self._manifests)

    def initial_offsets(self) -> dict[NamedPartition, int]:
        """Where the stream starts without a checkpoint.

        Raises:
            ValueError: the options do not fit the topics.
            ReadTopicError: the topics cannot be read.
        """
        ends = self.refresh()
        check_all_named("the start", self._options.starting, ends)
        return bound_offsets(
            self._files, self._options.starting, self._manifests, ends, self._pool, is_start=True
        )

    def log_starts(self, end: Mapping[NamedPartition, int]) -> dict[NamedPartition, int]:
        """The log starts of all partitions, once their manifests reach *end* or are the newest."""
        if any(
            named not in self._manifests or self._manifests[named].end < offset
            for named, offset in end.items()
        ):
            self.refresh()
        return {named: manifest.log_start for named, manifest in self._manifests.items()}

    def with_segments(
        self, ranges: Mapping[NamedPartition, tuple[int, int]]
    ) -> list[PartitionRange]:
        """The ranges with their segments; a warning names those that cannot be decoded."""
        found = with_segments(self._files, self._manifests, ranges, self._pool)
        warn_of_undecodable(self._files, found)
        return found

    def segment_ends(self, named: NamedPartition, start: int, end: int) -> Sequence[int]:
        """The ends of the partition's segments in ``(start, end]``, ascending."""
        found = segments(self._files, self._manifests[named], start, end)
        return [segment.end for segment in found if start < segment.end <= end]

    def close(self) -> None:
        """Release connections and threads."""
        self._pool.shutdown(cancel_futures=True)
        self._files.close()
