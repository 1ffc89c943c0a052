"""The data source that Spark finds under the name ``driftlog``.

    spark.read.format("driftlog").option("location", …).option("subscribe", "flights").load()

Spark starts a Python process for each stream, and the first batch waits for the import of this
module.  So only what plans every query is imported here; the client, Parquet, the tail and S3 are
imported where they are used first.

Root.
"""

from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from driftlog_spark_reader.common.schema import KAFKA_SCHEMA, schema_of
from driftlog_spark_reader.options.source_options import SourceOptions, parse_options
from driftlog_spark_reader.source.batch_reader import BatchReader
from driftlog_spark_reader.source.session_location import SETTING, session_location
from driftlog_spark_reader.source.stream_reader import StreamReader

FORMAT: Final = "driftlog"


class DriftlogSource(DataSource):
    """The format ``driftlog``; its options are those of `options.source_options`.

    ``default_location``: of a class that `register` made for a session.
    """

    default_location: str | None = None

    @classmethod
    def name(cls) -> str:
        """The name for ``format(…)`` and ``USING``."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of Spark's Kafka source; ``headers`` with ``includeHeaders``."""
        text = self.options.get("includeHeaders", "false").strip().lower()
        return schema_of(include_headers=text == "true")

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query."""
        options = parse_options(self.options, streaming=False)
        _check_schema(schema, options)
        return BatchReader(self._location(options), options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of a stream."""
        options = parse_options(self.options, streaming=True)
        _check_schema(schema, options)
        return StreamReader(self._location(options), options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer of a DataFrame, which produces its rows."""
        from driftlog_spark_reader.sink.rows_writer import rows_writer  # noqa: PLC0415

        return rows_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """The writer of a stream's micro-batches."""
        from driftlog_spark_reader.sink.rows_writer import rows_stream_writer  # noqa: PLC0415

        return rows_stream_writer(self.options, schema, overwrite)

    def _location(self, options: SourceOptions) -> str:
        """
        Raises:
            ValueError: no location is known.
        """
        found = options.location or self.default_location or session_location()
        if not found:
            raise ValueError(
                f"where is the log?  Set option location (s3://bucket/prefix, or a directory), or "
                f"start the session with {SETTING}, or call driftlog_spark_reader.register(spark, "
                "location)"
            )
        return found


def bound_source(location: str) -> type[DriftlogSource]:
    """The data source with a default for option ``location``."""
    return type("BoundDriftlogSource", (DriftlogSource,), {"default_location": location})


def _check_schema(schema: StructType, options: SourceOptions) -> None:
    """
    Raises:
        ValueError: the user gave another schema.
    """
    if schema != schema_of(include_headers=options.include_headers):
        raise ValueError(
            "the driftlog source has a fixed schema (that of Spark's Kafka source) and cannot be "
            f"set with a custom one: {', '.join(KAFKA_SCHEMA.fieldNames())}; headers only with "
            "includeHeaders=true"
        )
