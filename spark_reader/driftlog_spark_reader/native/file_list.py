"""A list of files that Spark scans without looking at them first.

Spark asks the file system for the size of every path that it is given: 1.4 ms for each on a local
disk, a request in a bucket, and jobs of their own beyond 32 paths.  Manifests have the sizes.  A
folder with a log of Spark's file sink (``_spark_metadata``) is read by that log, which names files
with their sizes, wherever they are; Spark reads it on the driver when it makes the DataFrame.

Source: org.apache.spark.sql.execution.streaming.MetadataLogFileIndex, SinkFileStatus.

Shell.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

from driftlog_spark_reader.bucket.hadoop_files import HadoopFiles
from driftlog_tiering.formats.manifest import SegmentRef

FILE_LIST_OPTIONS: Final = MappingProxyType(
    {
        # Without it, Spark takes only files that are in the folder itself.
        "recursiveFileLookup": "true",
        # The settings of the session could leave out what is lost or damaged.
        "ignoreMissingFiles": "false",
        "ignoreCorruptFiles": "false",
    }
)
"""Options to read the folder of `file_list` with."""

_BLOCK_BYTES: Final = 128 * 1024 * 1024


@contextmanager
def file_list(files: HadoopFiles, segments: Sequence[SegmentRef]) -> Iterator[str]:
    """A folder that names the segments, until Spark has made the DataFrame."""
    with tempfile.TemporaryDirectory(prefix="driftlog-files-") as name:
        log = Path(name) / "_spark_metadata"
        log.mkdir()
        lines = [_line(files, segment) for segment in segments]
        (log / "0").write_text("\n".join(["v1", *lines]))
        yield f"file://{name}"


def _line(files: HadoopFiles, segment: SegmentRef) -> str:
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
