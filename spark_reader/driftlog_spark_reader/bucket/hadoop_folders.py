"""Folders and small files that jobs write, through the Hadoop file system of a Spark session.

A rename is one step in HDFS and in a directory; S3A copies object by object.

Adapter.
"""

from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from driftlog_spark_reader.bucket.hadoop_files import HadoopFiles, failure
from driftlog_spark_reader.common.errors import StorageError


class HadoopFolders:
    """A folder and what is below it.  Paths are full paths, or keys below the folder.

    Raises:
        StorageError: there is no file system for the location.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.files = HadoopFiles(spark, location)
        self.root = self.files.root
        self._jvm: Any = spark._jvm
        self._conf: Any = spark._jsparkSession.sessionState().newHadoopConf()
        self._fs: Any = self._path("").getFileSystem(self._conf)

    def exists(self, key: str = "") -> bool:
        """Whether there is a file or folder.

        Raises:
            StorageError: the file system does not answer.
        """
        return bool(
            self._do(f"look at {self._text(key)}", lambda: self._fs.exists(self._path(key)))
        )

    def size(self, key: str = "") -> tuple[int, int]:
        """Files and bytes below a folder.

        Raises:
            StorageError: the folder cannot be listed.
        """

        def count() -> tuple[int, int]:
            summary = self._fs.getContentSummary(self._path(key))
            return int(summary.getFileCount()), int(summary.getLength())

        found: tuple[int, int] = self._do(f"list {self._text(key)}", count)
        return found

    def write(self, key: str, body: bytes) -> None:
        """Create or replace a small file.

        Raises:
            StorageError: it cannot be written.
        """

        def put() -> None:
            stream = self._fs.create(self._path(key), True)
            try:
                stream.write(body)
            finally:
                stream.close()

        self._do(f"write {self._text(key)}", put)

    def copy_from(self, source: "HadoopFolders", key: str) -> None:
        """Copy all of another folder to *key*, which does not exist.

        Raises:
            StorageError: it cannot be copied.
        """
        copy = self._jvm.org.apache.hadoop.fs.FileUtil.copy
        self._do(
            f"copy {source.root} to {self._text(key)}",
            lambda: copy(
                source._fs, source._path(""), self._fs, self._path(key), False, self._conf
            ),
        )

    def rename_here(self, other: "HadoopFolders", key: str = "") -> None:
        """Give another folder the name of this one, or of *key* below it, which is free.

        Raises:
            StorageError: it has not happened, or only in part.
        """
        what = f"rename {other.root} to {self._text(key)}"

        def move() -> bool:
            self._fs.mkdirs(self._path(key).getParent())
            return bool(self._fs.rename(other._path(""), self._path(key)))

        if not self._do(what, move):
            raise StorageError(f"cannot {what}")

    def delete(self, key: str) -> None:
        """Delete a folder and all below it; nothing happens where there is none.

        Raises:
            StorageError: it cannot be deleted.
        """
        self._do(f"delete {self._text(key)}", lambda: self._fs.delete(self._path(key), True))

    def _text(self, key: str) -> str:
        return f"{self.root}/{key}" if key else self.root

    def _path(self, key: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._text(key))

    def _do(self, what: str, act: Any) -> Any:
        try:
            return act()
        except (Py4JJavaError, Py4JError) as error:
            raise StorageError(f"cannot {what}: {failure(error)}") from error
