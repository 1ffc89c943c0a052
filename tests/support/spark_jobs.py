"""What Spark's jobs do in the bucket, without Spark: their own tasks, one after the other.

The location is a bucket that the AWS_* variables lead to.  Shell.
"""

from collections.abc import Sequence

import pyarrow as pa

from driftlog_spark_reader.bucket.catalog import find_topic
from driftlog_spark_reader.bucket.locations import open_files
from driftlog_spark_reader.bucket.store_calls import with_store
from driftlog_spark_reader.bulk_import.agent_imports import AgentImports, Renewal
from driftlog_spark_reader.bulk_import.object_writes import write_manifests
from driftlog_spark_reader.bulk_import.pieces import Piece
from driftlog_spark_reader.bulk_import.segment_task import LEADER_EPOCH, SegmentTask, segment_ref
from driftlog_spark_reader.rewrites.rewrite_task import Merge, PartitionWork, RewriteTask
from driftlog_tiering.compaction.broker_defaults import broker_defaults
from driftlog_tiering.compaction.rewrite_report import RewriteReport
from driftlog_tiering.compaction.sealed_partition import read_cluster

_ROWS = pa.schema(
    [
        ("piece", pa.int32()),
        ("ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


def imported(location: str, bootstrap: str, topic: str, values: Sequence[bytes]) -> None:
    """As `import_parquet` makes a topic of one partition."""
    agents = AgentImports(bootstrap, None)
    begun = agents.begin(topic, 1, {"retention.ms": "-1"})
    with Renewal(begun.grace, lambda: agents.renew(begun.topic_id)):
        pieces = {0: Piece(0, 0, 0, len(values), 0)}
        task = SegmentTask(location, topic, begun.topic_id, 1 << 20, pieces)
        rows = [{"piece": 0, "ms": 1, "value": value} for value in values]
        answers = task([pa.RecordBatch.from_pylist(rows, _ROWS)])
        refs = [segment_ref(row) for answer in answers for row in answer.to_pylist()]
        write_manifests(
            location,
            topic,
            begun.topic_id,
            {0: refs},
            leader_epoch=LEADER_EPOCH,
            author=begun.author,
            grace=begun.grace,
        )
        agents.publish(topic, begun.topic_id, [len(values)])


def merged(location: str, topic: str) -> RewriteReport:
    """As `merge_topics` merges partition 0, two segments and more."""
    files = open_files(location)
    try:
        topic_id = find_topic(files, topic, None).topic_id
    finally:
        files.close()
    cluster, _ = with_store(location, read_cluster)
    task = RewriteTask(
        location=location,
        by="a test",
        cluster_id=cluster.cluster_id,
        rewriting=Merge(factor=2),
        defaults=with_store(location, lambda store: broker_defaults(store, cluster.cluster_id)),
        works={},
        done=lambda _: None,
    )
    return task.rewrite(PartitionWork(topic, topic_id, 0))
