"""`register`: the topics of a log as views of a session, and the format with its location.

    from driftlog_spark_reader import register
    register(spark, "s3://bucket/prefix")
    spark.sql("SELECT count(*) FROM flights")

Root.
"""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from driftlog_spark_reader.bucket.catalog import topic_names
from driftlog_spark_reader.bucket.session_files import session_files
from driftlog_spark_reader.common.errors import (
    AmbiguousTopicError,
    DamagedTopicError,
    DataLossError,
    DeletedTopicError,
    ReadTopicError,
    UnknownTopicError,
)
from driftlog_spark_reader.native.topic_reader import read_topic
from driftlog_spark_reader.source.data_source import bound_source
from driftlog_spark_reader.source.session_location import SETTING


def register(
    spark: SparkSession,
    location: str | None = None,
    topics: Sequence[str] | None = None,
    *,
    prefix: str = "",
    fail_on_data_loss: bool = True,
) -> list[str]:
    """Make a temporary view of each topic; returns their names.

    A view is a native scan of the segments that the newest manifests name now; call this again for
    newer records, and to drop the views of deleted topics.  The name of a view is *prefix* and the
    topic's name; one with ``.`` or ``-`` is written in backquotes.  From then on
    ``format("driftlog")`` of this session needs no option ``location``.

    Args:
        spark: as in `read_topic`.
        location: a directory, ``s3://bucket/prefix`` or ``s3a://…``; None: the session's
            ``spark.driftlog.location``.
        topics: these only; None: all live ones.
        prefix: of each view's name.
        fail_on_data_loss: False: views leave out records that cannot be decoded, with a warning.

    Raises:
        ValueError: no location is given, or names of topics differ in case only.
        UnknownTopicError, DeletedTopicError, AmbiguousTopicError: there is not one such topic.
        DataLossError: records of a topic cannot be decoded, and *fail_on_data_loss* is set.
        DamagedTopicError: an object is damaged or missing.
        StorageError: the location cannot be read.

    An error of some topics is raised when all others have their views; its type is that of the
    first.
    """
    found = location or spark.conf.get(SETTING, None)
    if not found:
        raise ValueError(
            f"where is the log?  Call register(spark, location), or set {SETTING} in the session"
        )
    spark.dataSource.register(bound_source(found))
    names = topic_names(session_files(spark, found)) if topics is None else list(topics)
    lower = [name.lower() for name in names]
    if twice := sorted(name for name in names if lower.count(name.lower()) > 1):
        raise ValueError(
            f"the topics {', '.join(twice)} differ in case only, and names of views do not: "
            "register them one by one (topics=[…]), with a prefix each"
        )
    views: list[str] = []
    failed: list[ReadTopicError] = []
    for topic in names:
        view = f"{prefix}{topic}"
        try:
            records = read_topic(spark, found, topic, fail_on_data_loss=fail_on_data_loss)
        except (UnknownTopicError, DeletedTopicError) as error:
            spark.catalog.dropTempView(view)  # of before it was deleted
            failed += [] if topics is None else [error]
            continue
        except (AmbiguousTopicError, DataLossError, DamagedTopicError) as error:
            failed.append(error)
            continue
        records.createOrReplaceTempView(f"`{view}`")
        views.append(view)
    if failed:
        raise type(failed[0])("; ".join(map(str, failed)))
    return views
