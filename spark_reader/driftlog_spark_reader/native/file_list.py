"""Native scans of exactly the files that manifests name: `read_files`.

Spark asks the file system for the size of every path that it is given: 1.4 ms for each on a local
disk, a request in a bucket, and jobs of their own beyond 32 paths.  Manifests have the sizes.  A
folder with a log of Spark's file sink (``_spark_metadata``) is read by that log, which names files
with their sizes, wherever they are; Spark reads it on the driver when it makes the DataFrame.

Source: org.apache.spark.sql.execution.streaming.MetadataLogFileIndex, SinkFileStatus.

Shell.
"""

import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from pyspark.sql import DataFrame, SparkSession

from driftlog_spark_reader.bucket.files import Files
from driftlog_spark_reader.bucket.session_files import has_jvm
from driftlog_spark_reader.common.schema import KAFKA_SCHEMA
from driftlog_tiering.formats.manifest import SegmentRef

_BLOCK_BYTES: Final = 128 * 1024 * 1024
_GLOB: Final = re.compile(r"[\\*?\[\]{}]")


def read_files(spark: SparkSession, files: Files, segments: Sequence[SegmentRef]) -> DataFrame:
    """A native scan of exactly these files, each of them whole."""
    reader = spark.read.schema(KAFKA_SCHEMA)
    # The settings of the session could leave out what is lost or damaged.
    reader = reader.options(ignoreMissingFiles="false", ignoreCorruptFiles="false")
    if not has_jvm(spark):  # The list would be on the disk of the client, and not of the server.
        return reader.parquet(*(_pattern(files.path(segment.key)) for segment in segments))
    with _file_list(files, segments) as folder:
        # Without this option, Spark takes only files that are in the folder itself.
        return reader.option("recursiveFileLookup", "true").parquet(folder)


def _pattern(path: str) -> str:
    """The path for Spark's readers, which take every path for a pattern.

    Their option against that reads each of n paths with a ``[`` n times
    (`DataSource.checkAndGlobPathIfNecessary`).
    """
    s3a = f"s3a://{path.removeprefix('s3://')}" if path.startswith("s3://") else path
    return _GLOB.sub(r"\\\g<0>", s3a)


@contextmanager
def _file_list(files: Files, segments: Sequence[SegmentRef]) -> Iterator[str]:
    """A folder that names the segments, until Spark has made the DataFrame."""
    with tempfile.TemporaryDirectory(prefix="driftlog-files-") as name:
        log = Path(name) / "_spark_metadata"
        log.mkdir()
        lines = [_line(files, segment) for segment in segments]
        (log / "0").write_text("\n".join(["v1", *lines]))
        yield f"file://{name}"


def _line(files: Files, segment: SegmentRef) -> str:
    return json.dumps(
        {
            "path": quote(files.path(segment.key), safe="/:"),
            "size": segment.size_bytes,
            "isDir": False,
            "modificationTime": 0,
            "blockReplication": 1,
            "blockSize": _BLOCK_BYTES,
            "action": "add",
        }
    )
