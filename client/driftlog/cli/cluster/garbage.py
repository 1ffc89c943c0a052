"""`driftlog gc --dry-run`: what the agents' collector would delete now, why, and how large it is.

Bucket and metadata store are read; no agent is asked, and nothing is deleted.
Root.
"""

import argparse
import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from driftlog.cli.cluster.cluster_stores import (
    add_store_options,
    location_of,
    open_bucket,
    open_metadata,
    quiet_logs,
    store_errors,
)
from driftlog.cli.common.errors import FAILED, OK, UsageError
from driftlog.cli.common.output import (
    complain,
    duration,
    no_extra,
    plural,
    print_json,
    print_table,
    size,
)
from driftlog.cli.common.parsers import Commands, add_command

if TYPE_CHECKING:
    from driftlog_agents.log.garbage.dry_run import Report

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
    add_store_options(gc)
    gc.add_argument("--json", action="store_true", help="print JSON")


def _gc(options: argparse.Namespace) -> int:
    if not options.dry_run:
        raise UsageError("gc needs --dry-run: the agents delete garbage by themselves")
    location = location_of(options)
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
    """Look at both stores; raises as `store_errors` and `open_bucket`."""
    from driftlog_agents.log.garbage.dry_run import report  # noqa: PLC0415  # an extra

    quiet_logs()

    async def main() -> "Report":
        async with open_metadata(options) as metadata, open_bucket(location) as objects:
            return await report(metadata, objects, _at_once)

    with store_errors():
        return asyncio.run(main())


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
                "size_bytes": one.size_bytes or None,
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
            [
                (o.kind, o.reason.value, size(o.size_bytes) if o.size_bytes else "unknown", o.key)
                for o in found.garbage
            ],
        )
    kinds = Counter(one.kind for one in found.garbage)
    total = sum(one.size_bytes for one in found.garbage)
    parts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    unknown = sum(not one.size_bytes for one in found.garbage)
    complain(
        f"{plural(len(found.garbage), 'object')} would go{f' ({parts})' if parts else ''}, "
        f"{size(total)}{f' without {unknown:,} of unknown size' if unknown else ''}; "
        f"grace is {duration(found.grace.ms)}"
    )
    for key in found.unrecognised:
        complain(f"{key}: not recognised, and never deleted")
