"""Compacts or merges partitions: what runs on executors, one partition in each task of Spark.

    number of a partition ──▶ cluster file ──▶ `compact_one` or `merge_one` ──▶ report, as a row

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
from dataclasses import asdict, dataclass
from functools import partial
from typing import IO, Any, Final
from uuid import UUID

import pyarrow as pa

from driftlog_metadata.schema.model import TopicPartition
from driftlog_spark_reader.bucket.store_calls import with_store
from driftlog_spark_reader.common.errors import StorageError
from driftlog_tiering.compaction.compact_one import compact_one
from driftlog_tiering.compaction.policy import CleanerSettings, CompactionPolicy
from driftlog_tiering.compaction.rewrite_report import Outcome, RewriteReport
from driftlog_tiering.compaction.sealed_partition import (
    ClusterLevelError,
    SealedPartition,
    read_cluster,
)
from driftlog_tiering.compaction.segment_rows import RewriteEnvironment
from driftlog_tiering.merging.merge_one import merge_one
from driftlog_tiering.merging.policy import MergePolicy
from driftlog_tiering.stores.object_store import Buffer, ObjectStore

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
    policy: CompactionPolicy | MergePolicy


@dataclass(frozen=True)
class RewriteTask:
    """What every task of a job knows; Spark sends it to executors.

    Args:
        by: the job, as other editors are told.
        cluster_id: of the bucket when the job began.
        done: is told of each report.
    """

    location: str
    by: str
    cluster_id: str
    map_bytes: int
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
        if isinstance(work.policy, MergePolicy):
            return await merge_one(partition, report, work.policy)
        return await compact_one(
            partition,
            report,
            work.policy,
            settings=CleanerSettings(map_bytes=self.map_bytes),
            new_seed=lambda: secrets.token_bytes(_SEED_BYTES),
        )


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
