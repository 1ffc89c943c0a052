"""`driftlog segments`: seal committed records, and list sealed segments.

Shell.
"""

import argparse
import urllib.parse
from typing import Final

from driftlog.cli.common.errors import FAILED, OK, CommandError
from driftlog.cli.common.output import complain, print_json, print_table
from driftlog.cli.common.parsers import Commands, add_command, add_group
from driftlog.cli.connection import agent_http
from driftlog.cli.connection.connection import Timeout, add_connection_options
from driftlog.cli.connection.http_addresses import http_addresses
from driftlog.cli.segments import bucket_segments

_SEAL_S: Final = 600.0


def add_commands(commands: Commands) -> None:
    """Add the commands of this file."""
    segments = add_group(commands, "segments", help="seal topics; list and describe segments")
    seal = add_command(
        segments,
        "seal",
        _seal,
        help="seal all committed records of a topic now",
        description="Seal all committed records of a topic now: write them to segments, which are "
        "Parquet.  The command ends when all are sealed.",
    )
    seal.add_argument("topic", metavar="TOPIC")
    seal.add_argument("--json", action="store_true", help="print JSON")
    add_connection_options(
        seal,
        timeout_help=f"time limit of the command for all answers (default: {_SEAL_S:g} for "
        "each agent)",
    )
    bucket_segments.add_commands(segments)


def _seal(options: argparse.Namespace) -> int:
    errors: list[str] = []
    sealed: dict[int, int] = {}
    for address in http_addresses(options, errors):
        try:
            sealed |= _seal_at(address, options.topic, options.timeout)
        except CommandError as error:
            errors.append(str(error))
    if options.json:
        print_json([{"partition": at, "sealed_end": end} for at, end in sorted(sealed.items())])
    elif sealed:
        print_table(("partition", "sealed end"), sorted(sealed.items()))
    if not sealed and not errors:
        errors.append(f"no agent leads a partition of {options.topic!r} at the moment: try again")
    for message in dict.fromkeys(errors):
        complain(message)
    return FAILED if errors else OK


def _seal_at(address: str, topic: str, timeout: Timeout) -> dict[int, int]:
    path = f"/topics/{urllib.parse.quote(topic, safe='')}/seal"
    body = agent_http.post(address, path, {}, timeout.left(_SEAL_S))
    return {int(partition): int(end) for partition, end in body["sealed_end"].items()}
