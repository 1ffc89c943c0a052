"""`driftlog gc --dry-run`: what the agents' collector would delete now, why, and how large it is.

Bucket and metadata store are read; no agent is asked, and nothing is deleted.
Root.
"""

import argparse
import asyncio
import logging
import os
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from driftlog.cli.common.errors import FAILED, OK, CommandError, UsageError
from driftlog.cli.common.output import complain, no_extra, plural, print_json, print_table, size
from driftlog.cli.common.parsers import STORE_VARIABLE, Commands, add_command
from driftlog.cli.connection.etcd_options import add_etcd_options, etcd_settings

if TYPE_CHECKING:
    from driftlog_agents.log.garbage.dry_run import Report
    from driftlog_metadata.stores.store import MetadataStore


T = TypeVar("T")


def add_commands(commands: Commands) -> None:
    """Add the commands of this file."""
    gc = add_command(
        commands,
        "gc",
        _gc,
        help="print which objects the collector would delete",
        description="Print which objects of the bucket are garbage now: the agents delete the same "
        "ones by themselves.  Nothing is deleted.  Exit status 1: something damaged keeps objects "
        "from being judged.",
        examples="  driftlog gc --dry-run --store s3://bucket/prefix --etcd http://127.0.0.1:2379\n"
        "  driftlog gc --dry-run --dir /tmp/log               the DIR of `driftlog dev`\n",
    )
    gc.add_argument("--dry-run", action="store_true", help="required: only agents delete")
    gc.add_argument(
        "--store",
        metavar="LOCATION",
        help="location of the objects: s3://bucket/prefix or a directory (default: the variable "
        f"{STORE_VARIABLE}, or DIR/objects)",
    )
    gc.add_argument(
        "--dir", type=Path, metavar="DIR", help="directory of the agent that has the metadata"
    )
    gc.add_argument("--json", action="store_true", help="print JSON")
    add_etcd_options(gc)


def _gc(options: argparse.Namespace) -> int:
    if not options.dry_run:
        raise UsageError("gc needs --dry-run: the agents delete garbage by themselves")
    if (options.etcd is None) == (options.dir is None):
        raise UsageError("where are the metadata?  Give --etcd URL, or --dir DIR of the agent")
    location = options.store or os.environ.get(STORE_VARIABLE)
    location = location or (options.dir and str(options.dir / "objects"))
    if not location:
        raise UsageError("where are the objects?  Give --store LOCATION")
    try:
        found = _read(options, location)
    except ImportError as error:
        return no_extra(error, "`driftlog gc`")
    if options.json:
        print_json(_document(found))
    else:
        _print(found)
    for what, why in found.damaged.items():
        complain(f"{what}: nothing of it is judged: {why}")
    return FAILED if found.damaged else OK


def _read(options: argparse.Namespace, location: str) -> "Report":
    """Look at both stores.

    Raises:
        ImportError: the extra is not installed.
        UsageError: a location is none.
        CommandError: a store is damaged, does not answer, or is not there.
    """
    import structlog  # noqa: PLC0415  # an extra

    from driftlog_agents.log.garbage.dry_run import report  # noqa: PLC0415  # an extra
    from driftlog_metadata.stores.errors import CorruptError, StoreError  # noqa: PLC0415
    from driftlog_tiering.formats import layout  # noqa: PLC0415
    from driftlog_tiering.stores.locations import open_object_store  # noqa: PLC0415
    from driftlog_tiering.stores.object_store import NotFoundError  # noqa: PLC0415

    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet)  # the report says the same

    async def main() -> "Report":
        async with _metadata(options) as metadata:
            objects = open_object_store(location)
            try:
                return await report(metadata, objects, _at_once)
            except NotFoundError as error:
                raise CommandError(
                    f"no driftlog bucket at {location}: there is no {layout.CLUSTER_KEY}"
                ) from error
            finally:
                await objects.close()

    if ":" not in location.partition("/")[0] and not Path(location).is_dir():
        raise CommandError(f"there is no directory {location}")
    try:
        return asyncio.run(main())
    except ValueError as error:
        raise UsageError(str(error)) from error
    except (StoreError, CorruptError, TimeoutError) as error:
        raise CommandError(str(error) or repr(error)) from error


@asynccontextmanager
async def _metadata(options: argparse.Namespace) -> "AsyncIterator[MetadataStore]":
    """The metadata store: etcd, or a copy of the embedded one, which an agent may be using."""
    if options.etcd is not None:
        from driftlog_metadata.stores.etcd.etcd_store import (  # noqa: PLC0415  # an extra
            EtcdMetadataStore,
        )

        etcd = EtcdMetadataStore(etcd_settings(options))
        try:
            yield etcd
        finally:
            await etcd.close()
        return
    from driftlog_metadata.stores.sqlite_store import SqliteMetadataStore  # noqa: PLC0415

    database = options.dir / "metadata.db"
    if not database.exists():
        raise CommandError(f"{options.dir} has no metadata.db: give --etcd of its agent")
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "metadata.db"
        _copy(database, copy)
        store = await SqliteMetadataStore.open(copy, lambda: time.time_ns() // 1_000_000)
        try:
            yield store
        finally:
            await store.close()


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


async def _at_once(fn: Callable[..., T], *args: Any) -> T:
    return fn(*args)


def _document(found: "Report") -> dict[str, Any]:
    return {
        "cluster_id": found.cluster_id,
        "grace_ms": found.grace.ms,
        "garbage": [
            {
                "key": one.key,
                "kind": one.kind,
                "reason": one.reason.value,
                "size_bytes": one.size_bytes,
            }
            for one in found.garbage
        ],
        "unrecognised": found.unrecognised,
        "damaged": found.damaged,
    }


def _print(found: "Report") -> None:
    if found.garbage:
        print_table(
            ("kind", "reason", "size", "object"),
            [(o.kind, o.reason.value, size(o.size_bytes), o.key) for o in found.garbage],
        )
    kinds = Counter(one.kind for one in found.garbage)
    total = sum(one.size_bytes for one in found.garbage)
    parts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    complain(
        f"{plural(len(found.garbage), 'object')} would go{f' ({parts})' if parts else ''}, "
        f"{size(total)}; grace is {found.grace.ms / 1000:g} s"
    )
    for key in found.unrecognised:
        complain(f"{key}: not recognised, and never deleted")
