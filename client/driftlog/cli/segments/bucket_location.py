"""Where the objects are, for commands that read the bucket without an agent.

Shell.
"""

import argparse
import os
from pathlib import Path
from typing import Final

from driftlog.cli.common.errors import UsageError
from driftlog.cli.common.parsers import STORE_VARIABLE, Parser

EXTRAS: Final = ("agent", "spark")
"""Each has the packages that read the bucket."""


def add_location_options(parser: Parser) -> None:
    """Add --store, --dir and --json."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--store",
        metavar="LOCATION",
        help="location of the objects: s3://bucket/prefix or a directory (default: the variable "
        f"{STORE_VARIABLE})",
    )
    where.add_argument(
        "--dir", type=Path, metavar="DIR", help="directory of the agent that holds its objects"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def location_of(options: argparse.Namespace) -> str:
    """The location that the options, or the environment, name.

    Raises:
        UsageError: neither does.
    """
    location = options.store or (options.dir and str(options.dir / "objects"))
    location = location or os.environ.get(STORE_VARIABLE)
    if not location:
        raise UsageError(
            "the location of the objects is missing: give --store LOCATION, or --dir DIR of "
            "the agent"
        )
    return str(location)
