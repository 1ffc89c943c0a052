"""Relations of DuckDB on exactly the requested records of files.

Shell.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as pads

from driftlog_spark_reader.options.time_range import TimeRange
from driftlog_spark_reader.query.wanted_files import PartitionRange, WantedFile, cut_groups

if TYPE_CHECKING:
    import duckdb


def of_files(
    root: str, files: Sequence[WantedFile], time: TimeRange, connection: Any
) -> "duckdb.DuckDBPyRelation":
    """The records of *files*, of which there is at least one, under the folder *root*.

    Raises:
        ImportError: DuckDB is not installed.
    """
    on = _duckdb() if connection is None else connection

    def read(some: Sequence[WantedFile]) -> Any:
        paths = [f"{root}/{file.segment.key}" for file in some]
        # A folder's name may look like a Hive partition.
        return on.read_parquet(paths, hive_partitioning=False)

    whole = [file for file in files if file.is_whole]
    parts = [read(whole)] if whole else []
    for ranges, some in cut_groups(files):
        parts.append(read(some).filter(_condition(ranges, time)))
    relation: duckdb.DuckDBPyRelation = parts[0]
    for other in parts[1:]:
        relation = relation.union(other)
    return relation


def of_dataset(dataset: pads.Dataset, connection: Any) -> "duckdb.DuckDBPyRelation":
    """The records of *dataset*; DuckDB hands it its filters and columns.

    Raises:
        ImportError: DuckDB is not installed.
    """
    on = _duckdb() if connection is None else connection
    relation: duckdb.DuckDBPyRelation = on.from_arrow(dataset)
    return relation


def _condition(ranges: Sequence[PartitionRange], time: TimeRange) -> str:
    offsets = " OR ".join(
        f'("topic" = \'{wanted.named.topic}\' AND "partition" = {wanted.named.partition} '
        f'AND "offset" >= {wanted.start} AND "offset" < {wanted.end})'
        for wanted in ranges
    )
    bounds = [
        *([] if time.start_ms is None else [f'"timestamp" >= {_timestamp(time.start_ms)}']),
        *([] if time.end_ms is None else [f'"timestamp" < {_timestamp(time.end_ms)}']),
    ]
    return " AND ".join([f"({offsets})", *bounds])


def _timestamp(ms: int) -> str:
    return f"make_timestamptz({ms * 1_000}::BIGINT)"


def _duckdb() -> Any:
    try:
        import duckdb  # noqa: PLC0415  # optional
    except ModuleNotFoundError as error:
        raise ImportError("TopicScan.duckdb needs DuckDB: pip install duckdb") from error
    return duckdb
