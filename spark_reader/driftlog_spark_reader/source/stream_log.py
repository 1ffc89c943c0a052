"""The topics of a stream as its driver reads them, trigger by trigger.

Manifests that have not changed are not read again: a trigger without news costs two listings for
each topic, and one for each partition.

Shell.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from driftlog_spark_reader.bucket.catalog import segments
from driftlog_spark_reader.bucket.locations import open_files
from driftlog_spark_reader.options.bounds import NamedPartition
from driftlog_spark_reader.options.resolution import LogEnds, check_all_named
from driftlog_spark_reader.options.source_options import SourceOptions
from driftlog_spark_reader.query.ranges import (
    THREADS,
    PartitionState,
    bound_offsets,
    check_decodable,
    read_states,
    with_segments,
)
from driftlog_spark_reader.query.wanted_files import PartitionRange
from driftlog_spark_reader.tail.open_tail import open_tail
from driftlog_spark_reader.tail.port import TailReader


class StreamLog:
    """The selected partitions, as of the last `refresh`."""

    def __init__(self, location: str, options: SourceOptions) -> None:
        self._files = open_files(location)
        self._tail = open_tail(options.tail, location)
        self._options = options
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="manifests")
        self._states: dict[NamedPartition, PartitionState] = {}

    def refresh(self) -> dict[NamedPartition, LogEnds]:
        """Look at topics and manifests; returns what of each partition can be read.

        With failOnDataLoss=false, topics that are not there any more are left out.

        Raises:
            ReadTopicError: the topics cannot be read, as `query_ranges` says.
        """
        return self._look(strict=self._options.fail_on_data_loss)

    def _look(self, *, strict: bool) -> dict[NamedPartition, LogEnds]:
        self._states = read_states(
            self._files, self._options, self._pool, self._tail, self._states, strict=strict
        )
        return self.logs()

    def logs(self) -> dict[NamedPartition, LogEnds]:
        """What of each partition could be read at the last look."""
        return {named: state.log for named, state in self._states.items()}

    @property
    def has_tail(self) -> bool:
        """Whether the query reads what is not sealed."""
        return self._tail is not None

    def sealed_ends(self) -> dict[NamedPartition, int]:
        """The sealed end of each partition at the last look."""
        return {named: state.manifest.end for named, state in self._states.items()}

    def ids(self) -> dict[str, str]:
        """The ids of the topics at the last look, by name."""
        return {named.topic: str(state.topic.topic_id) for named, state in self._states.items()}

    def initial_offsets(self) -> dict[NamedPartition, int]:
        """Where the stream starts without a checkpoint.

        Raises:
            ValueError: the options do not fit the topics.
            ReadTopicError: the topics cannot be read.
        """
        check_all_named("the start", self._options.starting, self._look(strict=True))
        return bound_offsets(
            self._files,
            self._options.starting,
            self._states,
            self._pool,
            self._tail,
            is_start=True,
        )

    def logs_to(self, end: Mapping[NamedPartition, int]) -> dict[NamedPartition, LogEnds]:
        """What of each partition can be read, looked at again where that does not reach *end*."""
        logs = self.logs()
        if any(named not in logs or logs[named].end < offset for named, offset in end.items()):
            return self.refresh()
        return logs

    def with_segments(
        self, ranges: Mapping[NamedPartition, tuple[int, int]]
    ) -> list[PartitionRange]:
        """The ranges with their segments.

        Raises:
            DataLossError: a range has records that cannot be decoded; with failOnDataLoss=false a
                warning names them.
            SealedMeanwhileError: the last look is too old: the ranges may be others.
            ReadTopicError: the topics cannot be read.
        """
        found = with_segments(self._files, self._states, ranges, self._pool, tail=self._tail)
        check_decodable(self._files, found, fail_on_data_loss=self._options.fail_on_data_loss)
        return found

    def segment_ends(self, named: NamedPartition, start: int, end: int) -> Sequence[int]:
        """The ends of the partition's segments in ``(start, end]``, ascending."""
        found = segments(self._files, self._states[named].manifest, start, end)
        return [segment.end for segment in found if start < segment.end <= end]

    def tail_reader(self) -> TailReader | None:
        """What executors read the pieces of the tail with."""
        return None if self._tail is None else self._tail.reader()

    def close(self) -> None:
        """Release connections and threads."""
        self._pool.shutdown(cancel_futures=True)
        if self._tail is not None:
            self._tail.close()
        self._files.close()
