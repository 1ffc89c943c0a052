"""The log as DataFrames of Spark, and without Spark for pyarrow, DuckDB and Polars.

    from driftlog_spark_reader import read_topic, session
    df = read_topic(session("s3://bucket/prefix"), "s3://bucket/prefix", "flights")

    from driftlog_spark_reader import read_arrow
    table = read_arrow("s3://bucket/prefix", "flights")

The import loads nothing: the first use of a name imports its module, so what needs no Spark works
where PySpark is not installed.

Root.
"""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from driftlog_spark_reader.arrow.reader import read_arrow as read_arrow
    from driftlog_spark_reader.arrow.reader import scan as scan
    from driftlog_spark_reader.arrow.topic_scan import TopicScan as TopicScan
    from driftlog_spark_reader.bulk_import.importer import ImportReport as ImportReport
    from driftlog_spark_reader.bulk_import.importer import import_parquet as import_parquet
    from driftlog_spark_reader.common.errors import AmbiguousTopicError as AmbiguousTopicError
    from driftlog_spark_reader.common.errors import DamagedTopicError as DamagedTopicError
    from driftlog_spark_reader.common.errors import DataLossError as DataLossError
    from driftlog_spark_reader.common.errors import DeletedTopicError as DeletedTopicError
    from driftlog_spark_reader.common.errors import ImportTopicError as ImportTopicError
    from driftlog_spark_reader.common.errors import JobError as JobError
    from driftlog_spark_reader.common.errors import OffsetOutOfRangeError as OffsetOutOfRangeError
    from driftlog_spark_reader.common.errors import (
        RawSegmentSkippedWarning as RawSegmentSkippedWarning,
    )
    from driftlog_spark_reader.common.errors import ReadTopicError as ReadTopicError
    from driftlog_spark_reader.common.errors import SessionError as SessionError
    from driftlog_spark_reader.common.errors import StorageError as StorageError
    from driftlog_spark_reader.common.errors import TailUnavailableError as TailUnavailableError
    from driftlog_spark_reader.common.errors import UnknownTopicError as UnknownTopicError
    from driftlog_spark_reader.common.errors import WriteTopicError as WriteTopicError
    from driftlog_spark_reader.common.s3_access import S3Access as S3Access
    from driftlog_spark_reader.common.schema import KAFKA_SCHEMA as KAFKA_SCHEMA
    from driftlog_spark_reader.describe.describe import TopicDescription as TopicDescription
    from driftlog_spark_reader.describe.describe import describe_topic as describe_topic
    from driftlog_spark_reader.jobs.audit import audit_topic as audit_topic
    from driftlog_spark_reader.jobs.convert_checkpoint import (
        convert_checkpoint as convert_checkpoint,
    )
    from driftlog_spark_reader.jobs.export import export_topic as export_topic
    from driftlog_spark_reader.jobs.stats import topic_stats as topic_stats
    from driftlog_spark_reader.native.topic_reader import read_topic as read_topic
    from driftlog_spark_reader.rewrites.repartition import Repartition as Repartition
    from driftlog_spark_reader.rewrites.repartition import repartition_topic as repartition_topic
    from driftlog_spark_reader.rewrites.rewrite_topics import Rewrites as Rewrites
    from driftlog_spark_reader.rewrites.rewrite_topics import compact_topics as compact_topics
    from driftlog_spark_reader.rewrites.rewrite_topics import merge_topics as merge_topics
    from driftlog_spark_reader.sessions.spark_session import session as session
    from driftlog_spark_reader.source.registration import register as register

_PLACES: Final = {
    "driftlog_spark_reader.arrow.reader": ("read_arrow", "scan"),
    "driftlog_spark_reader.arrow.topic_scan": ("TopicScan",),
    "driftlog_spark_reader.bulk_import.importer": ("ImportReport", "import_parquet"),
    "driftlog_spark_reader.common.errors": (
        "AmbiguousTopicError",
        "DamagedTopicError",
        "DataLossError",
        "DeletedTopicError",
        "ImportTopicError",
        "JobError",
        "OffsetOutOfRangeError",
        "RawSegmentSkippedWarning",
        "ReadTopicError",
        "SessionError",
        "StorageError",
        "TailUnavailableError",
        "UnknownTopicError",
        "WriteTopicError",
    ),
    "driftlog_spark_reader.common.s3_access": ("S3Access",),
    "driftlog_spark_reader.common.schema": ("KAFKA_SCHEMA",),
    "driftlog_spark_reader.describe.describe": ("TopicDescription", "describe_topic"),
    "driftlog_spark_reader.jobs.audit": ("audit_topic",),
    "driftlog_spark_reader.jobs.convert_checkpoint": ("convert_checkpoint",),
    "driftlog_spark_reader.jobs.export": ("export_topic",),
    "driftlog_spark_reader.jobs.stats": ("topic_stats",),
    "driftlog_spark_reader.native.topic_reader": ("read_topic",),
    "driftlog_spark_reader.rewrites.repartition": ("Repartition", "repartition_topic"),
    "driftlog_spark_reader.rewrites.rewrite_topics": (
        "Rewrites",
        "compact_topics",
        "merge_topics",
    ),
    "driftlog_spark_reader.sessions.spark_session": ("session",),
    "driftlog_spark_reader.source.registration": ("register",),
}
_MODULES: Final = {name: module for module, names in _PLACES.items() for name in names}

__all__ = [
    "KAFKA_SCHEMA",
    "AmbiguousTopicError",
    "DamagedTopicError",
    "DataLossError",
    "DeletedTopicError",
    "ImportReport",
    "ImportTopicError",
    "JobError",
    "OffsetOutOfRangeError",
    "RawSegmentSkippedWarning",
    "ReadTopicError",
    "Repartition",
    "Rewrites",
    "S3Access",
    "SessionError",
    "StorageError",
    "TailUnavailableError",
    "TopicDescription",
    "TopicScan",
    "UnknownTopicError",
    "WriteTopicError",
    "audit_topic",
    "compact_topics",
    "convert_checkpoint",
    "describe_topic",
    "export_topic",
    "import_parquet",
    "merge_topics",
    "read_arrow",
    "read_topic",
    "register",
    "repartition_topic",
    "scan",
    "session",
    "topic_stats",
]


def __getattr__(name: str) -> object:
    """Import the module of *name*, and return the object.

    Raises:
        ImportError: it needs a package that is not installed; the message says how to install it.
    """
    if name not in _MODULES:
        raise AttributeError(f"module 'driftlog_spark_reader' has no attribute {name!r}")
    try:
        value: object = getattr(importlib.import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing.startswith("driftlog"):
            raise
        without_spark = _MODULES[name].split(".")[1] in ("arrow", "describe")
        extra = "arrow" if without_spark else "spark"
        raise ImportError(
            f"driftlog_spark_reader.{name} needs {missing}: pip install 'driftlog[{extra}]'"
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
