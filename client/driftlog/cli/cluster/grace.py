"""`driftlog cluster grace`: how long objects stay after nothing names them, and a change of it.

Bucket and metadata store are read; no agent is asked, and for a change none may run.
Root.
"""

import argparse
import asyncio
from contextlib import ExitStack

from driftlog.cli.cluster.cluster_stores import (
    add_store_options,
    location_of,
    open_bucket,
    open_metadata,
    store_errors,
)
from driftlog.cli.common.errors import OK, CommandError
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
        CommandError: agents run; and as `store_errors` and `open_bucket`.
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

    embedded = options.dir is not None and (options.dir / "metadata.db").exists()

    async def main() -> tuple[int, int]:
        async with open_bucket(location) as objects:
            before = (await read_grace(objects)).ms
            if options.grace is not None:
                async with open_metadata(options) as metadata:
                    new = Grace(options.grace)
                    await change_grace(metadata, objects, new, alone=embedded)
            return before, (await read_grace(objects)).ms

    with store_errors():
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
                f"{error} has a session: stop every agent first; the session of one that was "
                "killed ends by itself within seconds"
            ) from error
        except DirectoryLockedError as error:
            raise CommandError(f"stop the agent first: it runs on {options.dir}") from error
