"""Names and small files at a location, through the Hadoop file system of a Spark session.

Listing and reading use the connectors, endpoints and credentials of the job's scans: nothing else
has to be installed or configured.  All calls run on the driver.

Adapter.
"""

import re
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from driftlog_spark_reader.common.errors import StorageError

_S3A_HINT: Final = (
    "this Spark has no S3A connector: start it with org.apache.hadoop:hadoop-aws (of Spark's "
    "Hadoop version) and software.amazon.awssdk:bundle in spark.jars.packages or spark.jars"
)

_MISSING: Final = ("java.io.FileNotFoundException", "java.nio.file.NoSuchFileException")


class HadoopFiles:
    """A directory or a bucket's prefix.  Its methods may be called from several threads.

    Raises:
        StorageError: there is no file system for the location.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        if not location:
            raise StorageError("the location is empty")
        try:
            jvm: Any = spark._jvm
            conf: Any = spark._jsparkSession.sessionState().newHadoopConf()
        except Exception as error:  # Attributes of Spark Connect's session differ by version.
            raise StorageError(
                "read_topic needs a classic Spark session: it lists files on the driver's JVM, "
                "which Spark Connect does not offer"
            ) from error
        self._jvm = jvm
        if location.startswith("s3://") and not conf.get("fs.s3.impl"):
            location = f"s3a://{location.removeprefix('s3://')}"
        try:
            path = self._jvm.org.apache.hadoop.fs.Path(location)
            self._fs: Any = path.getFileSystem(conf)
            self.root: str = self._fs.makeQualified(path).toString().rstrip("/")
        except Py4JError as error:
            said = failure(error)
            hint = f"; {_S3A_HINT}" if "S3AFileSystem not found" in said else ""
            raise StorageError(f"{location}: {said}{hint}") from error

    def path(self, key: str) -> str:
        """The full path of a key."""
        return f"{self.root}/{key}"

    def names(self, prefix: str) -> list[str]:
        """Last components of the names in the folder *prefix*; empty when there is none.

        Raises:
            StorageError: the listing failed.
        """
        folder = self.path(prefix.rstrip("/"))
        functional = self._jvm.org.apache.hadoop.util.functional
        try:
            found = self._fs.listStatusIterator(self._jvm.org.apache.hadoop.fs.Path(folder))
            statuses = functional.RemoteIterators.toList(found)
            # One JVM call for all names: FileStatus prints as "…FileStatus{path=…/name; …".
            text = statuses.toString()
            names = re.findall(re.escape(f"{{path={folder}/") + "([^;/]+);", text)
            if len(names) != statuses.size():  # The file system prints another form.
                names = [status.getPath().getName() for status in statuses]
        except Py4JJavaError as error:
            if _is_missing(error):
                return []
            raise StorageError(f"cannot list {folder}: {failure(error)}") from error
        return names

    def read(self, key: str) -> bytes | None:
        """The bytes of a small file; None when there is none.

        Raises:
            StorageError: the file cannot be read.
        """
        path = self.path(key)
        try:
            stream = self._fs.open(self._jvm.org.apache.hadoop.fs.Path(path))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()
        except Py4JJavaError as error:
            if _is_missing(error):
                return None
            raise StorageError(f"cannot read {path}: {failure(error)}") from error

    def read_range(self, key: str, start: int, end: int) -> bytes | None:
        """The bytes ``[start, end)`` of a file, fewer where it ends before; None: no such file.

        Raises:
            StorageError: the file cannot be read.
        """
        path = self.path(key)
        try:
            stream = self._fs.open(self._jvm.org.apache.hadoop.fs.Path(path))
            try:
                stream.seek(start)
                return bytes(stream.readNBytes(end - start))
            finally:
                stream.close()
        except Py4JJavaError as error:
            if _is_missing(error):
                return None
            raise StorageError(f"cannot read {path}: {failure(error)}") from error

    def close(self) -> None:
        """Nothing to release: Hadoop keeps its file systems."""


def _is_missing(error: Py4JJavaError) -> bool:
    """Whether the path does not exist.  A missing bucket is another class."""
    return error.java_exception.getClass().getName() in _MISSING


def failure(error: Py4JError) -> str:
    """The message of the JVM, without its stack."""
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.toString())
    return str(error)
