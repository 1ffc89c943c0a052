"""`driftlog segments`: seal what is committed; what is sealed, as the bucket says it.

Shell.
"""

import argparse
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Final

from driftlog.cli import bucket_segments
from driftlog.cli.connection import add_bootstrap_option, bootstrap
from driftlog.cli.errors import FAILED, OK, CommandError
from driftlog.cli.http_addresses import CHANGE_HEADERS, http_addresses
from driftlog.cli.output import complain
from driftlog.cli.parsers import Commands, add_command, add_group

_SEAL_TIMEOUT_S: Final = 600


def add_commands(commands: Commands) -> None:
    """The commands of this file."""
    segments = add_group(commands, "segments", help="seal records; what is sealed")
    seal = add_command(
        segments,
        "seal",
        _seal,
        help="turn everything that is committed in a topic into Parquet now",
    )
    seal.add_argument("topic", metavar="TOPIC")
    add_bootstrap_option(seal)
    bucket_segments.add_commands(segments)


def _seal(options: argparse.Namespace) -> int:
    errors: list[str] = []
    sealed: dict[int, int] = {}
    for address in http_addresses(bootstrap(options), errors):
        try:
            sealed.update(_seal_at(address, options.topic))
        except CommandError as error:
            errors.append(str(error))
    if sealed:
        print(f"{'partition':>9}  {'sealed end':>12}")
        for partition, end in sorted(sealed.items()):
            print(f"{partition:>9}  {end:>12,}")
    elif not errors:
        errors.append(f"nobody leads a partition of {options.topic!r} just now: try again")
    for message in dict.fromkeys(errors):
        complain(message)
    return FAILED if errors else OK


def _seal_at(address: str, topic: str) -> dict[int, int]:
    name = urllib.parse.quote(topic, safe="")
    request = urllib.request.Request(
        f"http://{address}/topics/{name}/seal", headers=CHANGE_HEADERS, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=_SEAL_TIMEOUT_S) as answer:
            body = json.load(answer)
    except urllib.error.HTTPError as error:
        raise CommandError(json.load(error).get("error", str(error))) from error
    except OSError as error:
        raise CommandError(f"{address} does not answer: {error}") from error
    return {int(partition): int(end) for partition, end in body["sealed_end"].items()}
