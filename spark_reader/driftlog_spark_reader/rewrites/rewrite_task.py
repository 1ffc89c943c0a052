"""Compacts or merges partitions: what runs on executors, one partition in each task of Spark.

    number of a partition ──▶ cluster file ──▶ `compact_one` or `merge_one` ──▶ report, as a row
                                                 └─▶ the topic's file, again and again: its policy

A failure is a report, too: Spark repeats no task.  A task that Spark runs again all the same (its
executor was lost) takes over the `Busy` of the first one, which has the same author.

Shell.
"""

import asyncio
import json
import mmap
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import IO, Any, Final, Generic, Protocol, TypeVar
from uuid import UUID

import pyarrow as pa

from driftlog_metadata.schema.model import TopicPartition
from driftlog_spark_reader.bucket.store_calls import with_store
from driftlog_spark_reader.common.errors import StorageError
from driftlog_tiering.compaction.broker_defaults import BrokerDefaults
from driftlog_tiering.compaction.compact_one import compact_one
from driftlog_tiering.compaction.policy import CleanerSettings, CompactionPolicy
from driftlog_tiering.compaction.rewrite_report import Outcome, RewriteReport
from driftlog_tiering.compaction.sealed_partition import (
    ClusterLevelError,
    SealedPartition,
    read_cluster,
)
from driftlog_tiering.compaction.segment_rows import RewriteEnvironment
from driftlog_tiering.compaction.topic_policy import compaction_policy
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.merging.merge_one import merge_one
from driftlog_tiering.merging.policy import MergePolicy
from driftlog_tiering.merging.topic_policy import merge_policy
from driftlog_tiering.stores.object_store import ObjectStore

T_co = TypeVar("T_co", covariant=True)

REPORTS: Final = pa.schema([("report", pa.string())])
"""What a task returns: JSON for each partition."""

_SEED_BYTES: Final = 16
_BOOT_TIME: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS has none


@dataclass(frozen=True, slots=True)
class PartitionWork:
    """One partition, and what is done to it."""

    topic: str
    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True)
class Compaction:
    """What `compact_topics` does to each partition.

    Args:
        min_dirty_ratio: in place of that of a topic.
    """

    min_dirty_ratio: float | None
    map_bytes: int

    def policy(
        self, own: Mapping[str, str], inherited: Mapping[str, str]
    ) -> CompactionPolicy | None:
        """Of a topic with the configs *own*; None: it is not compacted.

        *inherited* are of a minute ago.  Agents accept records without a key as soon as the
        ``cleanup.policy`` of the brokers allows it: that of the topic alone counts.

        Raises:
            ValueError: a config is no number.
        """
        if "cleanup.policy" not in own:
            return None
        found = compaction_policy({**inherited, **own})
        if found is None or self.min_dirty_ratio is None:
            return found
        return replace(found, min_dirty_ratio=self.min_dirty_ratio)


@dataclass(frozen=True, slots=True)
class Merge:
    """What `merge_topics` does to each partition."""

    factor: int

    def policy(self, own: Mapping[str, str], inherited: Mapping[str, str]) -> MergePolicy:
        """Of a topic with the configs *own*.

        Raises:
            ValueError: a config is no number.
        """
        return merge_policy({**inherited, **own}, self.factor)


@dataclass(frozen=True)
class RewriteTask:
    """What every task of a job knows; Spark sends it to executors.

    Args:
        by: the job, as other editors are told.
        cluster_id: of the bucket when the job began.
        defaults: of topics, when the job began.
        done: is told of each report.
    """

    location: str
    by: str
    cluster_id: str
    rewriting: Compaction | Merge
    defaults: BrokerDefaults
    works: Mapping[int, PartitionWork]
    done: Callable[[list[str]], None]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rewrite the partitions of these numbers."""
        for batch in batches:
            for number in batch.column("id").to_pylist():
                report = encode_report(self.rewrite(self.works[number]))
                self.done([report])
                yield pa.RecordBatch.from_pylist([{"report": report}], schema=REPORTS)

    def rewrite(self, work: PartitionWork) -> RewriteReport:
        """Rewrite one partition."""
        report = RewriteReport(topic=work.topic, partition=work.partition)
        try:
            return with_store(self.location, partial(self._rewrite, work, report))
        except (StorageError, ClusterLevelError) as error:
            return RewriteReport(
                topic=work.topic,
                partition=work.partition,
                outcome=Outcome.FAILED,
                reason=str(error),
            )

    async def _rewrite(
        self, work: PartitionWork, report: RewriteReport, store: ObjectStore
    ) -> RewriteReport:
        cluster, grace = await read_cluster(store)
        if cluster.cluster_id != self.cluster_id:
            raise StorageError(
                f"the bucket became that of cluster {cluster.cluster_id} while the job ran (a "
                "restore): run it again"
            )
        partition = SealedPartition(
            store,
            work.topic,
            TopicPartition(work.topic_id, work.partition),
            (cluster, grace),
            _environment(),
            self.by,
        )
        if isinstance(self.rewriting, Merge):
            merging = _NewestPolicy(partition, self.rewriting, self.defaults)
            return await merge_one(partition, report, merging)
        return await compact_one(
            partition,
            report,
            _NewestPolicy(partition, self.rewriting, self.defaults),
            settings=CleanerSettings(map_bytes=self.rewriting.map_bytes),
            new_seed=lambda: secrets.token_bytes(_SEED_BYTES),
        )


class _Policies(Protocol[T_co]):
    def policy(self, own: Mapping[str, str], inherited: Mapping[str, str]) -> T_co | None: ...


class _NewestPolicy(Generic[T_co]):
    """Asks for the policy of the partition's topic as it is now; None: nothing is done to it any
    more."""

    def __init__(
        self, partition: SealedPartition, rewriting: _Policies[T_co], defaults: BrokerDefaults
    ) -> None:
        self._partition = partition
        self._rewriting = rewriting
        self._defaults = defaults
        """As they were last read: a snapshot with the offsets of all groups is read once."""

    async def __call__(self) -> T_co | None:
        topic = await self._partition.topic()
        if topic is None:
            return None
        self._defaults = await self._partition.defaults(self._defaults)
        return self._rewriting.policy(topic.configs, self._defaults.configs)


def encode_report(report: RewriteReport) -> str:
    """As JSON."""
    return json.dumps(asdict(report))


def decode_report(text: str) -> RewriteReport:
    """Invert `encode_report`."""
    fields: dict[str, Any] = json.loads(text)
    return RewriteReport(**{**fields, "outcome": Outcome(fields["outcome"])})


def _environment() -> RewriteEnvironment:
    return RewriteEnvironment(
        offload=_here,
        spool=_spool,
        nonce=lambda: secrets.token_hex(8),
        now_ms=lambda: time.clock_gettime(_BOOT_TIME) * 1000,
    )


async def _here(work: Callable[..., Any], *args: Any) -> Any:
    """Nothing else waits for the event loop of a task."""
    await asyncio.sleep(0)
    return work(*args)


class _FileSpool:
    """A segment in a temporary file."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def body(self) -> Sequence[Buffer]:
        """Everything written so far."""
        self.file.flush()
        return [memoryview(mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ))]


@contextmanager
def _spool() -> Iterator[_FileSpool]:
    with tempfile.TemporaryFile(prefix="driftlog-rewrite-") as file:
        yield _FileSpool(file)
