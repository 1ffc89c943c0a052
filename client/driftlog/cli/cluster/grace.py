"""`driftlog cluster grace`: how long objects stay after nothing names them, and a change of it.

Bucket and metadata store are read; no agent is asked, and for a change none may run.
Root.
"""

import argparse
import asyncio
from contextlib import ExitStack

from driftlog.cli.cluster.cluster_stores import add_store_options, location_of, open_metadata
from driftlog.cli.common.errors import OK, CommandError, UsageError
from driftlog.cli.common.output import complain, duration, no_extra, print_json
from driftlog.cli.common.parsers import Commands, add_command, grace_ms


def add_grace_command(cluster: Commands) -> None:
    """Add the command to those of `driftlog cluster`."""
    grace = add_command(
        cluster,
        "grace",
        _grace,
        help="show or change how long objects stay after nothing names them",
        description="Show the grace of the cluster: how long an object stays after nothing names "
        "it, and for how long a reader may use a list of files.  --set changes it: stop every "
        "agent first, and jobs that compact or merge; a reader with an older list has the shorter "
        "of both graces.",
        examples="  driftlog cluster grace --store s3://bucket/prefix --etcd http://127.0.0.1:2379\n"
        "  driftlog cluster grace --dir /tmp/log --set 86400000    a day\n",
    )
    grace.add_argument(
        "--set", type=grace_ms, metavar="MS", dest="grace", help="the new grace, at least 1000"
    )
    add_store_options(grace)
    grace.add_argument("--json", action="store_true", help="print JSON")


def _grace(options: argparse.Namespace) -> int:
    location = location_of(options)
    try:
        before, found = _read_or_change(options, location)
    except ImportError as error:
        return no_extra(error, "`driftlog cluster grace`")
    if options.json:
        print_json({"grace_ms": found})
    elif options.grace is None:
        print(f"grace is {duration(found)}")
    else:
        print(f"grace is {duration(found)}, and was {duration(before)}")
        complain("start the agents: they read the grace at their start")
    return OK


def _read_or_change(options: argparse.Namespace, location: str) -> tuple[int, int]:
    """The cluster's grace before and after, in ms.

    Raises:
        ImportError: the extra is not installed.
        UsageError: a location is none.
        CommandError: a store is damaged, does not answer, or is not there; or agents run.
    """
    from driftlog_agents.log.local.posix_disk import (  # noqa: PLC0415
        DirectoryLockedError,
        PosixDisk,
    )
    from driftlog_agents.process.grace_change import (  # noqa: PLC0415  # an extra
        AgentsRunError,
        change_grace,
        read_grace,
    )
    from driftlog_metadata.schema.grace import Grace  # noqa: PLC0415
    from driftlog_metadata.stores.errors import CorruptError, StoreError  # noqa: PLC0415
    from driftlog_tiering.formats import layout  # noqa: PLC0415
    from driftlog_tiering.stores.locations import open_object_store  # noqa: PLC0415
    from driftlog_tiering.stores.object_store import NotFoundError  # noqa: PLC0415

    embedded = options.dir is not None and (options.dir / "metadata.db").exists()

    async def main() -> tuple[int, int]:
        objects = open_object_store(location)
        try:
            before = (await read_grace(objects)).ms
            if options.grace is not None:
                async with open_metadata(options) as metadata:
                    new = Grace(options.grace)
                    await change_grace(metadata, objects, new, alone=embedded)
            return before, (await read_grace(objects)).ms
        except NotFoundError as error:
            raise CommandError(
                f"no driftlog bucket at {location}: there is no {layout.CLUSTER_KEY}"
            ) from error
        finally:
            await objects.close()

    try:
        with ExitStack() as held:
            if options.grace is not None and embedded:
                # No agent starts on it meanwhile.
                held.callback(PosixDisk(options.dir).close)
            return asyncio.run(main())
    except AgentsRunError as error:
        if error.changed:
            raise CommandError(
                f"grace is changed, but {error} started meanwhile: stop it, and start it again"
            ) from error
        raise CommandError(
            f"{error} has a session: stop every agent first; the session of one that was killed "
            "ends by itself within seconds"
        ) from error
    except DirectoryLockedError as error:
        raise CommandError(f"stop the agent first: it runs on {options.dir}") from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    except (StoreError, CorruptError, TimeoutError) as error:
        raise CommandError(str(error) or repr(error)) from error
