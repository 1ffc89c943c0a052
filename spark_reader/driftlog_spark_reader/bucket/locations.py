"""Locations as users write them, for processes without a JVM: `open_files`.

    s3://bucket/prefix   s3a://bucket/prefix    a bucket, or a part of it
    file:///absolute/path   file:/path   /path   a directory

Root.
"""

from urllib.parse import unquote, urlsplit

from driftlog_spark_reader.bucket.files import Files
from driftlog_spark_reader.bucket.local_files import LocalFiles
from driftlog_spark_reader.common.errors import StorageError


def open_files(location: str) -> Files:
    """The files at *location*, which the caller closes.

    Raises:
        StorageError: *location* is none, or there is no such directory.
    """
    if not location.strip():
        raise StorageError("the location is empty")
    if location.startswith("file:"):
        return LocalFiles(unquote(urlsplit(location).path))
    if "://" in location:
        from driftlog_spark_reader.bucket.store_files import StoreFiles  # noqa: PLC0415

        return StoreFiles(location)
    return LocalFiles(location)
