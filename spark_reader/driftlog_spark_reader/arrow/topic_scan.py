"""`TopicScan`: the files that a query reads, for pyarrow, DuckDB and Polars.

Each method reads exactly the requested records: rows of the first and last file that lie outside
of the requested offsets, such as those below log start, are filtered out.

Shell.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs

from driftlog_spark_reader.arrow import arrow_dataset, duckdb_relation, polars_frame
from driftlog_spark_reader.arrow.s3_engines import arrow_filesystem, environment_access
from driftlog_spark_reader.bucket.catalog import DAMAGED
from driftlog_spark_reader.common.errors import DamagedTopicError, StorageError
from driftlog_spark_reader.options.bounds import NamedPartition
from driftlog_spark_reader.options.time_range import TimeRange
from driftlog_spark_reader.query.wanted_files import PartitionRange, wanted_files

if TYPE_CHECKING:
    import duckdb
    import polars as pl


class TopicScan:
    """The requested records of topics, as the newest manifests said when it was made.

    It stays readable while its files exist: those that a rewrite replaces, and those of deleted
    records, stay for a grace period (12 h).
    """

    def __init__(self, root: str, ranges: Sequence[PartitionRange], time: TimeRange) -> None:
        self._in_bucket = not root.startswith("file:")
        self._root = f"s3://{root.partition('://')[2]}" if self._in_bucket else root[len("file:") :]
        self._files = tuple(wanted_files(ranges, time))
        self._offsets = {wanted.named: (wanted.start, wanted.end) for wanted in ranges}
        self._time = time

    @property
    def paths(self) -> list[str]:
        """The Parquet files, by partition and offset: absolute paths, or ``s3://bucket/…``.

        The first and last file of a partition may have records outside of `offsets`.
        """
        return [f"{self._root}/{file.segment.key}" for file in self._files]

    @property
    def offsets(self) -> Mapping[NamedPartition, tuple[int, int]]:
        """The requested offsets ``[start, end)`` of each topic and partition."""
        return MappingProxyType(self._offsets)

    def __repr__(self) -> str:
        size = sum(file.segment.size_bytes for file in self._files)
        return f"TopicScan({len(self._files)} files, {size} bytes, at {self._root})"

    def dataset(self) -> pads.Dataset:
        """A dataset of pyarrow, which reads files when it is scanned."""
        if self._in_bucket:
            filesystem = arrow_filesystem(environment_access())
            paths = [path.removeprefix("s3://") for path in self.paths]
        else:
            filesystem, paths = pafs.LocalFileSystem(), self.paths
        return arrow_dataset.dataset(paths, self._files, self._time, filesystem)

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The records in memory, by partition and offset.

        Args:
            columns: only these are read.

        Raises:
            DamagedTopicError: a file is missing or damaged.
            StorageError: the location cannot be read.
        """
        names = None if columns is None else list(columns)
        try:
            return self.dataset().to_table(names)
        except pa.ArrowInvalid as error:
            raise DamagedTopicError(f"{self._root}: {error}; {DAMAGED}") from error
        except FileNotFoundError as error:
            raise DamagedTopicError(
                f"{self._root}: {error}; the file is missing: scan again if this scan is older "
                f"than 12 h; else {DAMAGED}"
            ) from error
        except OSError as error:
            raise StorageError(f"cannot read {self._root}: {error}") from error

    def duckdb(self, connection: Any = None) -> "duckdb.DuckDBPyRelation":
        """A relation of DuckDB, in no order.

        From a directory, DuckDB reads the files itself.  From a bucket it reads through `dataset`,
        which needs no extension of DuckDB, and no keys in its connection.

        Args:
            connection: None: DuckDB's default connection.

        Raises:
            ImportError: DuckDB is not installed.
        """
        if self._in_bucket or not self._files:
            return duckdb_relation.of_dataset(self.dataset(), connection)
        return duckdb_relation.of_files(self._root, self._files, self._time, connection)

    def polars(self) -> "pl.LazyFrame":
        """A lazy frame of Polars, in no order.

        Raises:
            ImportError: Polars is not installed.
        """
        access = environment_access() if self._in_bucket else None
        return polars_frame.lazy_frame(self._root, self._files, self._time, access)
