"""Locations of objects, as users write them: `open_object_store` makes the store.

    s3://bucket/prefix   s3a://bucket/prefix (as Spark has it)   a bucket, or a part of it
    file:///absolute/path   any/path                              a directory

Root.
"""

import re
from typing import Final
from urllib.parse import unquote, urlsplit

from driftlog_tiering.stores.directory_store import DirectoryObjectStore
from driftlog_tiering.stores.object_store import ObjectStore

_HINT: Final = "write s3://bucket/prefix, file:///path or a directory"

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
"""Amazon's rule, and what older buckets and other servers allow."""


def open_object_store(location: str) -> ObjectStore:
    """The store at *location*.  A missing directory is made, a missing bucket never.

    Raises:
        ValueError: *location* is none; the message shows one.
        UnavailableError: the directory cannot be used.
    """
    if not location.strip() or "\0" in location:
        raise ValueError(f"no location: {location!r}: {_HINT}")
    scheme = _SCHEME.match(location)
    match scheme and scheme[1].lower():
        case None:
            return DirectoryObjectStore(location)
        case "file":
            return DirectoryObjectStore(_file_path(location))
        case "s3" | "s3a":
            return _open_s3(location)
        case other:
            raise ValueError(f"{location!r}: there is no store for {other}: — {_HINT}")


def _file_path(location: str) -> str:
    url = urlsplit(location)
    if url.netloc not in ("", "localhost") or not url.path.startswith("/"):
        raise ValueError(f"{location!r} has a host or no absolute path: write file:///path")
    return unquote(url.path)


def _open_s3(location: str) -> ObjectStore:
    _, slashes, rest = location.partition("://")
    bucket, _, prefix = rest.partition("/")
    if not slashes or not _BUCKET.fullmatch(bucket):
        raise ValueError(f"{location!r} names no bucket: {_HINT}")
    try:  # An extra: a directory store does not need it.
        from driftlog_tiering.stores.s3_store import S3ObjectStore  # noqa: PLC0415
    except ImportError as error:
        raise ValueError(f"{location!r} needs aiobotocore, which is not installed") from error
    try:
        return S3ObjectStore.open(bucket, prefix.strip("/"))
    except ValueError as error:
        raise ValueError(f"{location!r}: {error}") from error
