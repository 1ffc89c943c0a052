"""Lazy frames of Polars on exactly the requested records of files.

Shell.
"""

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from driftlog_spark_reader.arrow.s3_engines import polars_credentials, polars_options
from driftlog_spark_reader.common.s3_access import S3Access
from driftlog_spark_reader.options.time_range import TimeRange
from driftlog_spark_reader.query.wanted_files import PartitionRange, WantedFile, cut_groups
from driftlog_tiering.segments.columns import SCHEMA

if TYPE_CHECKING:
    import polars as pl


def lazy_frame(
    root: str, files: Sequence[WantedFile], time: TimeRange, access: S3Access | None
) -> "pl.LazyFrame":
    """The records of *files* under *root*, which *access* reaches if it is in a bucket.

    Raises:
        ImportError: Polars is not installed.
        StorageError: there are no keys for S3.
    """
    try:
        import polars as pl  # noqa: PLC0415  # optional
    except ModuleNotFoundError as error:
        raise ImportError("TopicScan.polars needs Polars: pip install polars") from error
    if not files:
        return pl.DataFrame(SCHEMA.empty_table()).lazy()
    options: dict[str, Any] = {}
    if access is not None:
        options["storage_options"] = polars_options(access)
        options["credential_provider"] = polars_credentials()

    def read(some: Sequence[WantedFile]) -> Any:
        paths = [f"{root}/{file.segment.key}" for file in some]
        # A folder's name may look like a pattern, or like a Hive partition.
        return pl.scan_parquet(paths, glob=False, hive_partitioning=False, **options)

    whole = [file for file in files if file.is_whole]
    parts = [read(whole)] if whole else []
    for ranges, some in cut_groups(files):
        parts.append(read(some).filter(_condition(pl, ranges, time)))
    frame: pl.LazyFrame = pl.concat(parts)
    return frame


def _condition(pl: Any, ranges: Sequence[PartitionRange], time: TimeRange) -> Any:
    condition = reduce(
        or_,
        (
            (pl.col("topic") == wanted.named.topic)
            & (pl.col("partition") == wanted.named.partition)
            & (pl.col("offset") >= wanted.start)
            & (pl.col("offset") < wanted.end)
            for wanted in ranges
        ),
    )

    def timestamp(ms: int) -> Any:
        return pl.lit(ms * 1_000).cast(pl.Datetime("us", "UTC"))

    if time.start_ms is not None:
        condition &= pl.col("timestamp") >= timestamp(time.start_ms)
    if time.end_ms is not None:
        condition &= pl.col("timestamp") < timestamp(time.end_ms)
    return condition
