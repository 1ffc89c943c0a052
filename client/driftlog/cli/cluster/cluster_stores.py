"""The stores of a cluster, opened without an agent: the bucket, and etcd or the embedded store.

    --etcd URL            etcd
    --dir DIR             DIR/metadata.db, as a copy: an agent may be using it
    --dir DIR             without one, the etcd of `driftlog dev --agents`, by DIR/etcd.json

Root.
"""

import argparse
import logging
import os
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from driftlog.cli.common.errors import CommandError, UsageError
from driftlog.cli.common.parsers import STORE_VARIABLE, Parser
from driftlog.cli.connection.etcd_options import add_etcd_options, etcd_settings
from driftlog.dev_cluster import local_etcd

if TYPE_CHECKING:
    from driftlog_metadata.stores.store import MetadataStore
    from driftlog_tiering.stores.object_store import ObjectStore


def add_store_options(
    parser: Parser,
    directory: str = "directory with the metadata: that of the agent, or of `driftlog dev "
    "--agents`",
) -> None:
    """Add the options that say where both stores are."""
    parser.add_argument(
        "--store",
        metavar="LOCATION",
        help="location of the objects: s3://bucket/prefix or a directory (default: the variable "
        f"{STORE_VARIABLE}, or DIR/objects)",
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help=directory)
    add_etcd_options(parser)


def location_of(options: argparse.Namespace) -> str:
    """Where the objects of a cluster are.

    Raises:
        UsageError: the options do not say where both stores are.
        CommandError: there is no such directory, or DIR has no metadata.
    """
    if (options.etcd is None) == (options.dir is None):
        raise UsageError("where are the metadata?  Give --etcd URL, or --dir DIR of the agent")
    if options.dir is not None and not _database(options.dir).exists():
        _url_of_dev_cluster(options.dir)
    return bucket_location(options)


def bucket_location(options: argparse.Namespace) -> str:
    """Where the objects are, whether there are metadata or not.

    Raises:
        UsageError: the options do not say it.
        CommandError: there is no such directory.
    """
    location = options.store or os.environ.get(STORE_VARIABLE)
    location = location or (options.dir and str(options.dir / "objects"))
    if not location:
        raise UsageError("where are the objects?  Give --store LOCATION")
    if ":" not in location.partition("/")[0] and not Path(location).is_dir():
        raise CommandError(f"there is no directory {location}")
    return str(location)


def quiet_logs() -> None:
    """Keeps what an agent logs off the terminal: the command's report says the same."""
    import structlog  # noqa: PLC0415  # an extra

    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet)


@contextmanager
def store_errors() -> Iterator[None]:
    """Raises errors of stores as the command's own.

    Raises:
        ImportError: the extra is not installed.
        UsageError: a location is none.
        CommandError: a store is damaged or does not answer.
    """
    from driftlog_metadata.stores.errors import CorruptError, StoreError  # noqa: PLC0415  # an extra

    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error
    except (StoreError, CorruptError, TimeoutError) as error:
        raise CommandError(str(error) or repr(error)) from error


@asynccontextmanager
async def open_bucket(location: str) -> "AsyncIterator[ObjectStore]":
    """The bucket at *location*.

    Raises:
        CommandError: it is no driftlog bucket.
        ValueError: *location* is none.
    """
    from driftlog_tiering.formats import layout  # noqa: PLC0415  # an extra
    from driftlog_tiering.stores.locations import open_object_store  # noqa: PLC0415
    from driftlog_tiering.stores.object_store import NotFoundError  # noqa: PLC0415

    objects = open_object_store(location)
    try:
        yield objects
    except NotFoundError as error:
        raise CommandError(
            f"no driftlog bucket at {location}: there is no {layout.CLUSTER_KEY}"
        ) from error
    finally:
        await objects.close()


@asynccontextmanager
async def open_metadata(options: argparse.Namespace) -> "AsyncIterator[MetadataStore]":
    """The metadata store, for reads.

    Raises:
        CommandError: DIR has none, or it cannot be read.
    """
    database = None if options.dir is None else _database(options.dir)
    if database is None or not database.exists():
        from driftlog_metadata.stores.etcd.etcd_client import (  # noqa: PLC0415  # an extra
            EtcdSettings,
        )
        from driftlog_metadata.stores.etcd.etcd_store import (  # noqa: PLC0415  # an extra
            EtcdMetadataStore,
        )

        settings = etcd_settings(options)
        if settings is None:
            settings = EtcdSettings(endpoints=(_url_of_dev_cluster(options.dir),))
        etcd = EtcdMetadataStore(settings)
        try:
            yield etcd
        finally:
            await etcd.close()
        return
    from driftlog_metadata.stores.sqlite_store import SqliteMetadataStore  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "metadata.db"
        _copy(database, copy)
        store = await SqliteMetadataStore.open(copy, lambda: time.time_ns() // 1_000_000)
        try:
            yield store
        finally:
            await store.close()


def _database(directory: Path) -> Path:
    return directory / "metadata.db"


def _url_of_dev_cluster(directory: Path) -> str:
    if not directory.is_dir():
        raise CommandError(f"there is no directory {directory}")
    url = local_etcd.url_of(directory)
    if url is None:
        raise CommandError(
            f"{directory} has no metadata.db, so its agent has its metadata in etcd: give --etcd "
            "URL and --store LOCATION of that agent, without --dir"
        )
    return url


def _copy(database: Path, copy: Path) -> None:
    uri = f"{database.absolute().as_uri()}?mode=ro"
    try:
        with (
            closing(sqlite3.connect(uri, uri=True)) as here,
            closing(sqlite3.connect(copy)) as there,
        ):
            here.backup(there)
    except sqlite3.Error as error:
        raise CommandError(f"{database} cannot be read: {error}") from error
