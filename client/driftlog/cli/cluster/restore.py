"""`driftlog restore`: brings a cluster back from its bucket alone, into an empty metadata store.

Root.
"""

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from driftlog.cli.cluster.cluster_stores import (
    add_store_options,
    bucket_location,
    open_bucket,
    quiet_logs,
    store_errors,
)
from driftlog.cli.common.errors import FAILED, OK, CommandError, UsageError
from driftlog.cli.common.output import Progress, complain, no_extra, plural, print_json
from driftlog.cli.common.parsers import Commands, add_command
from driftlog.cli.connection.etcd_options import etcd_settings

if TYPE_CHECKING:
    from driftlog_agents.restore.report import RestoreReport
    from driftlog_metadata.stores.store import MetadataStore
    from driftlog_tiering.stores.object_store import ObjectStore

_DATABASE: Final = "metadata.db"

_BOOT_TIME: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Counts the time in which the machine sleeps: what was read before is then too old for an edit.
macOS has none."""


def add_commands(commands: Commands) -> None:
    """Add the commands of this file."""
    restore = add_command(
        commands,
        "restore",
        _restore,
        help="bring a cluster back from its bucket, into an empty metadata store",
        description="Bring a cluster back from its bucket alone: its metadata store and all disks "
        "of its agents are lost.  The metadata store must be empty.  Agents of the old cluster "
        "that still run stop by themselves: the restore waits 75 s for them.  Every record that "
        "was acknowledged with acks=all comes back at its offset, with topics, configs and "
        "committed offsets of groups.  A restore that was interrupted goes on when it is run "
        "again.  Exit status 1: something is not restored.",
        examples="  driftlog restore --store s3://bucket/prefix --etcd http://127.0.0.1:2379 \\\n"
        "      --from-cluster qBScphWoRRGFs8ZK20LGKg\n"
        "  driftlog restore --dir /tmp/log --discard          the restore is found to be good\n",
    )
    add_store_options(restore, "directory of the agent that gets the metadata")
    restore.add_argument(
        "--from-cluster",
        metavar="ID",
        help="id of the cluster that is lost, as the bucket's newest cluster file says it",
    )
    restore.add_argument(
        "--agents-stopped",
        action="store_true",
        help="do not wait 75 s: all agents of the old cluster are stopped, on every machine.  What "
        "one of them acknowledges while the restore runs may be lost",
    )
    restore.add_argument(
        "--dry-run",
        action="store_true",
        help="write nothing: print what a restore would bring back, as the bucket is now",
    )
    restore.add_argument(
        "--skip-damaged",
        action="store_true",
        help="restore without the flush objects that cannot be read: their records are lost, and "
        "all unsealed records behind them in their partitions",
    )
    restore.add_argument(
        "--discard",
        action="store_true",
        help="let the collector delete the old cluster's flush objects, which a restore keeps",
    )
    restore.add_argument("--json", action="store_true", help="print JSON")


def _restore(options: argparse.Namespace) -> int:
    if options.etcd is not None and options.dir is not None:
        raise UsageError("give --etcd URL or --dir DIR, and not both")
    if options.etcd is None and options.dir is None and not options.dry_run:
        raise UsageError("where do the metadata go?  Give --etcd URL, or --dir DIR of the agent")
    if options.discard and options.dry_run:
        raise UsageError("give --discard or --dry-run, and not both")
    try:
        return _discard(options) if options.discard else _run(options)
    except ImportError as error:
        return no_extra(error, "`driftlog restore`")


def _run(options: argparse.Namespace) -> int:
    report = _restored(options, bucket_location(options))
    if options.json:
        print_json(report.as_json())
    else:
        _print(report)
    if report.refused:
        complain(f"the restore would be refused: {report.refused}")
    for what, why in report.offline.items():
        complain(f"{what} is offline: {why}")
    for named in (report.unreadable, report.left_out, report.not_believed):
        for what, why in named.items():
            complain(f"{what}: {why}")
    return OK if report.is_whole else FAILED


def _restored(options: argparse.Namespace, location: str) -> "RestoreReport":
    """Restore; raises as `store_errors` and `open_bucket`."""
    from driftlog_agents.foundation.offload import inline  # noqa: PLC0415  # an extra
    from driftlog_agents.log.local.spool import spool_in  # noqa: PLC0415
    from driftlog_agents.restore.old_agents import until_old_agents_stop  # noqa: PLC0415
    from driftlog_agents.restore.partition_restores import RestoreOptions  # noqa: PLC0415
    from driftlog_agents.restore.restorer import RestorePorts, Restorer  # noqa: PLC0415

    quiet_logs()
    line = Progress(quiet=options.json)

    def progress(what: str, count: int) -> None:
        if line.due():
            line.show(f"{count:,} {what}")

    async def wait() -> None:
        if not options.agents_stopped:
            await until_old_agents_stop(progress)

    async def main() -> "RestoreReport":
        async with open_bucket(location) as objects:
            if not options.from_cluster:
                raise UsageError(await _advice(objects))
            with tempfile.TemporaryDirectory(prefix="driftlog-restore-") as spools:
                async with _metadata(options, Path(spools)) as metadata:
                    ports = RestorePorts(
                        metadata=metadata,
                        objects=objects,
                        offload=inline,
                        spool=spool_in(Path(spools)),
                        rng=random.SystemRandom(),
                        now_ms=lambda: time.clock_gettime(_BOOT_TIME) * 1000,
                        wait=wait,
                        progress=progress,
                    )
                    wanted = RestoreOptions(
                        dry_run=options.dry_run, skip_damaged=options.skip_damaged
                    )
                    return await Restorer(ports, wanted).run(options.from_cluster)

    try:
        with store_errors():
            return asyncio.run(main())
    finally:
        line.clear()


async def _advice(objects: "ObjectStore") -> str:
    from driftlog_tiering.formats.bucket_files import decode_cluster  # noqa: PLC0415  # an extra
    from driftlog_tiering.formats.cluster_files import newest_cluster_file  # noqa: PLC0415

    _, body = await newest_cluster_file(objects)
    there = decode_cluster(body).cluster_id
    return f"which cluster is lost?  The bucket belongs to {there}: give --from-cluster={there}"


def _discard(options: argparse.Namespace) -> int:
    from driftlog_agents.restore.metadata_writes import (  # noqa: PLC0415  # an extra
        MetadataWrites,
        NotEmptyError,
    )

    if options.dir is not None and not (options.dir / _DATABASE).exists():
        raise CommandError(f"there is no {options.dir / _DATABASE}")

    async def main() -> str:
        async with _metadata(options) as metadata:
            writes = MetadataWrites(metadata)
            try:
                found = await writes.find()
            except NotEmptyError:
                return ""  # a cluster without a restore
            if found is None:
                raise CommandError("the metadata store is empty: it has no cluster")
            if not await writes.is_finished():
                raise CommandError("the restore is not finished: run it again")
            _, offline = await writes.keys()
            if offline:
                raise CommandError(
                    f"{plural(len(offline), 'partition')} could not be restored: put the object "
                    "back that the restore named, and run the restore again"
                )
            await writes.discard()
            return found.from_id

    with store_errors():
        discarded = asyncio.run(main())
    if options.json:
        print_json({"discarded": discarded or None})
    elif discarded:
        print(f"discarded: the collector deletes the flush objects of cluster {discarded}")
    else:
        print("nothing to discard: it is done already, or the cluster came from no restore")
    return OK


@asynccontextmanager
async def _metadata(
    options: argparse.Namespace, scratch: Path | None = None
) -> "AsyncIterator[MetadataStore]":
    """The metadata store: etcd, or the embedded one, which is made where there is none; by a dry
    run in *scratch*."""
    store: MetadataStore
    if options.etcd is not None:
        from driftlog_metadata.stores.etcd.etcd_store import (  # noqa: PLC0415  # an extra
            EtcdMetadataStore,
        )

        store = EtcdMetadataStore(etcd_settings(options))
    else:
        from driftlog_metadata.stores.sqlite_store import SqliteMetadataStore  # noqa: PLC0415

        database = None if options.dir is None else options.dir / _DATABASE
        if options.dry_run and scratch is not None and (database is None or not database.exists()):
            database = scratch / _DATABASE
        assert database is not None
        database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        store = await SqliteMetadataStore.open(database, lambda: time.time_ns() // 1_000_000)
    try:
        yield store
    finally:
        await store.close()


def _print(report: "RestoreReport") -> None:
    if report.was_restored:
        print(f"cluster {report.from_id} is already restored as {report.to_id}")
        return
    if report.dry_run:
        print(f"a restore of cluster {report.from_id} would bring back:")
    else:
        print(f"cluster {report.from_id} is restored as {report.to_id}")
    print(
        f"{plural(report.topics, 'topic')}, {plural(report.partitions, 'partition')}, "
        f"{plural(report.groups, 'group')}"
    )
    print(
        f"{plural(report.joined_records, 'record')} of "
        f"{plural(report.flush_objects, 'flush object')}, and all sealed records"
    )
    if report.refuted:
        print(f"never committed: {plural(len(report.refuted), 'flush object')}")
    for one in report.empty:
        print(f"{one.partition}: no records in [{one.base}, {one.end})")
    if report.groups_revision is None:
        print("there is no snapshot of groups: consumers begin by auto.offset.reset")
    if not report.dry_run:
        print(
            "next: start the agents on this metadata store, with new directories; check the "
            "cluster; then `driftlog restore --discard` with the same --etcd or --dir"
        )
