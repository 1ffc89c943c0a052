"""Compaction and merging of topics on Spark: `compact_topics`, `merge_topics`.

    topics' files ──▶ partitions ──▶ one task each (executors) ──▶ reports

Executors run the cleaner and the merger of the agents on the agents' object store: they need
driftlog, and the credentials of the bucket in the ``AWS_*`` variables or where boto3 finds them.
Agents go on meanwhile.  A job that ends anywhere is run again: it does what is left.

Root.
"""

import secrets
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pyspark import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from driftlog_metadata.schema.model import Topic
from driftlog_spark_reader.bucket.catalog import find_topic, topic_names
from driftlog_spark_reader.bucket.locations import open_files
from driftlog_spark_reader.bucket.session_files import has_jvm
from driftlog_spark_reader.bucket.store_calls import with_store
from driftlog_spark_reader.common.errors import DeletedTopicError, JobError
from driftlog_spark_reader.rewrites.rewrite_task import (
    Compaction,
    Merge,
    PartitionWork,
    RewriteTask,
    decode_report,
)
from driftlog_tiering.compaction.broker_defaults import BrokerDefaults, broker_defaults
from driftlog_tiering.compaction.policy import CleanerSettings
from driftlog_tiering.compaction.rewrite_report import Outcome, RewriteReport
from driftlog_tiering.compaction.sealed_partition import ClusterLevelError, read_cluster
from driftlog_tiering.formats.bucket_files import decode_cluster
from driftlog_tiering.formats.cluster_files import newest_cluster_file
from driftlog_tiering.stores.object_store import ObjectStore

MAP_BYTES: Final = CleanerSettings().map_bytes
FACTOR: Final = 16

_LOOK_S: Final = 0.3
"""Between two looks at which tasks have ended."""

Progress = Callable[[int, int, RewriteReport], None]
"""Is called after each partition, with how many are done, how many there are, and its report."""


@dataclass(frozen=True, slots=True)
class Rewrites:
    """What a job did, partition by partition."""

    job: str
    partitions: tuple[RewriteReport, ...]

    @property
    def failed(self) -> list[RewriteReport]:
        """Partitions on which the work failed."""
        return [each for each in self.partitions if each.outcome is Outcome.FAILED]

    @property
    def unfinished(self) -> list[RewriteReport]:
        """Partitions on which the work failed, or was void: the job is run again."""
        return [each for each in self.partitions if each.outcome in (Outcome.FAILED, Outcome.VOID)]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"job": self.job, "partitions": [asdict(each) for each in self.partitions]}


def compact_topics(
    spark: SparkSession,
    location: str,
    topics: str | Collection[str] | None = None,
    *,
    partitions: Collection[int] | None = None,
    min_dirty_ratio: float | None = None,
    map_bytes: int = MAP_BYTES,
    progress: Progress | None = None,
) -> Rewrites:
    """Compact the partitions of *topics* that are due, as agents do.

    Args:
        spark: a session; progress needs a classic one.
        location: where the agents store their objects: a directory, or ``s3://bucket/prefix``.
        topics: names of topics whose own ``cleanup.policy`` has ``compact``; None: all of these.
        partitions: only these.
        min_dirty_ratio: in place of each topic's ``min.cleanable.dirty.ratio``; 0: every partition
            with something new.
        map_bytes: of memory for the keys of one partition, 24 bytes each
            (``log.cleaner.dedupe.buffer.size``).  A partition of more keys is read several times.
        progress: is told of each partition.

    Raises:
        ValueError: an argument is invalid.
        JobError: a topic is not compacted, or the cluster's format level does not allow it, or
            `spark.speculation` is on.
        StorageError: the bucket.
        ReadTopicError: there is no such topic.
    """
    if min_dirty_ratio is not None and not 0 <= min_dirty_ratio <= 1:
        raise ValueError(f"min_dirty_ratio is {min_dirty_ratio}; it can be 0 to 1")
    if map_bytes < 1:
        raise ValueError("map_bytes is at least 1")
    rewriting = Compaction(min_dirty_ratio, map_bytes)
    return _run(spark, "compact", location, _chosen(topics), rewriting, partitions, progress)


def merge_topics(
    spark: SparkSession,
    location: str,
    topics: str | Collection[str] | None = None,
    *,
    partitions: Collection[int] | None = None,
    factor: int = FACTOR,
    progress: Progress | None = None,
) -> Rewrites:
    """Merge small neighbouring segments of *topics*, as agents do; also in partitions that are not
    written any more.

    Args:
        spark: as in `compact_topics`, and so are *location*, *partitions* and *progress*.
        topics: names; None: all.
        factor: small segments at the end of a partition that become one.  Fewer: fewer files soon,
            and each byte is written again sooner.

    Raises: as `compact_topics`.
    """
    if factor < 2:
        raise ValueError(f"factor is {factor}; it is at least 2")
    rewriting = Merge(factor)
    return _run(spark, "merge", location, _chosen(topics), rewriting, partitions, progress)


def _chosen(topics: str | Collection[str] | None) -> Collection[str] | None:
    return [topics] if isinstance(topics, str) else topics


def _run(
    spark: SparkSession,
    job: str,
    location: str,
    topics: Collection[str] | None,
    rewriting: Compaction | Merge,
    partitions: Collection[int] | None,
    progress: Progress | None,
) -> Rewrites:
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        raise JobError(
            "spark.speculation=true runs tasks twice, and two attempts on a partition make each "
            "other void: set it to false"
        )
    if ":" not in location:
        location = str(Path(location).absolute())  # executors may have another directory
    found = _topics(location, topics)
    try:
        defaults = with_store(location, _defaults) if found else BrokerDefaults()
        works = _works(found, defaults, rewriting, partitions, are_named=topics is not None)
        if not works:
            return Rewrites(job, ())
        cluster, _ = with_store(location, read_cluster)
    except ClusterLevelError as error:
        raise JobError(str(error)) from error
    with _progress(spark, len(works), progress) as done:
        task = RewriteTask(
            location=location,
            by=f"spark {job} {secrets.token_hex(4)}",
            cluster_id=cluster.cluster_id,
            rewriting=rewriting,
            defaults=defaults,
            works=dict(enumerate(works)),
            done=done,
        )
        numbers = spark.range(0, len(works), numPartitions=len(works))
        rows = numbers.mapInArrow(task, "report string").collect()
    reports = [decode_report(row["report"]) for row in rows]
    return Rewrites(job, tuple(sorted(reports, key=lambda each: (each.topic, each.partition))))


def _topics(location: str, topics: Collection[str] | None) -> list[Topic]:
    """The topics of these names; None: all that are not deleted."""
    files = open_files(location)
    found: list[Topic] = []
    try:
        for name in topic_names(files) if topics is None else topics:
            try:
                found.append(find_topic(files, name, None))
            except DeletedTopicError:
                if topics is not None:
                    raise
    finally:
        files.close()
    return found


async def _defaults(store: ObjectStore) -> BrokerDefaults:
    _, body = await newest_cluster_file(store)
    return await broker_defaults(store, decode_cluster(body).cluster_id)


def _works(
    topics: Collection[Topic],
    defaults: BrokerDefaults,
    rewriting: Compaction | Merge,
    partitions: Collection[int] | None,
    *,
    are_named: bool,
) -> list[PartitionWork]:
    found: list[PartitionWork] = []
    for topic in topics:
        if not _is_rewritten(topic, defaults, rewriting):
            if not are_named:
                continue
            raise JobError(
                f"topic {topic.name} has {_own_policy(topic)}, and a job compacts only topics that "
                "have compact in a cleanup.policy of their own: leave it out, or set "
                f"driftlog topics alter {topic.name} --config cleanup.policy=compact"
            )
        chosen = sorted(set(range(topic.partitions) if partitions is None else partitions))
        if chosen and chosen[-1] >= topic.partitions:
            raise JobError(f"topic {topic.name} has partitions 0 to {topic.partitions - 1}")
        found += [PartitionWork(topic.name, topic.topic_id, each) for each in chosen]
    return found


def _own_policy(topic: Topic) -> str:
    own = topic.configs.get("cleanup.policy")
    return "no cleanup.policy of its own" if own is None else f"cleanup.policy={own}"


def _is_rewritten(topic: Topic, defaults: BrokerDefaults, rewriting: Compaction | Merge) -> bool:
    try:
        return rewriting.policy(topic.configs, defaults.configs) is not None
    except ValueError as error:
        raise JobError(
            f"topic {topic.name} has a config that is no number ({error}): correct it with "
            f"driftlog topics alter {topic.name}"
        ) from error


# ── Progress ──


class _Reports(AccumulatorParam[list[str]]):
    """Reports of tasks that have ended."""

    def zero(self, value: list[str]) -> list[str]:
        return []

    def addInPlace(self, value1: list[str], value2: list[str]) -> list[str]:  # noqa: N802
        value1 += value2
        return value1


class _Done:
    """Tells the driver of a report, from an executor."""

    def __init__(self, reports: "Accumulator[list[str]] | None") -> None:
        self._reports = reports

    def __call__(self, reports: list[str]) -> None:
        if self._reports is not None:
            self._reports.add(reports)


@contextmanager
def _progress(
    spark: SparkSession, count: int, progress: Progress | None
) -> Iterator[Callable[[list[str]], None]]:
    """What tasks tell of their reports.  Without a JVM beside this process, nothing comes here."""
    if progress is None or not has_jvm(spark):
        yield _Done(None)
        return
    reports = spark.sparkContext.accumulator([], _Reports())
    ended = threading.Event()
    told = 0

    def tell() -> None:
        nonlocal told
        for text in list(reports.value)[told:]:
            told += 1
            progress(told, count, decode_report(text))

    def look() -> None:
        while not ended.wait(_LOOK_S):
            tell()

    thread = threading.Thread(target=look, name="progress", daemon=True)
    thread.start()
    try:
        yield _Done(reports)
    finally:
        ended.set()
        thread.join()
        tell()
