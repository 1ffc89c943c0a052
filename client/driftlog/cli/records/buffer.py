"""`driftlog buffer replay`: produces the records that an agent has set aside on its disk.

Root.
"""

import argparse
from pathlib import Path

from driftlog.cli.common.output import no_extra
from driftlog.cli.common.parsers import Commands, add_command, add_group
from driftlog.cli.connection.connection import add_connection_options


def add_commands(commands: Commands) -> None:
    """Add the commands of this file."""
    buffer = add_group(
        commands, "buffer", help="replay records that an agent has set aside on its disk"
    )
    replay = add_command(
        buffer,
        "replay",
        _replay,
        help="produce the records that an agent acknowledged with acks=1 and could not append",
        description="Produce the records below DIR/kept through any agent, at new offsets, with "
        "their keys, values, headers, timestamps and partitions, and remove each "
        "directory whose records are all acknowledged.  The records follow all records "
        "written since: in a compacted topic an older value becomes the newest of its "
        "key.  The command produces each record once, also if it runs again: it notes "
        "acknowledged records in the directory once a second and at its end.  If the "
        "command is killed, it may produce the records of the last second twice.",
        examples="  driftlog buffer replay /var/lib/driftlog --dry-run\n"
        "  driftlog buffer replay /var/lib/driftlog -b agent-2:9092\n",
    )
    replay.add_argument(
        "directory",
        type=Path,
        metavar="DIR",
        help="the agent's --dir, or one of the directories in its DIR/kept",
    )
    replay.add_argument(
        "-n", "--dry-run", action="store_true", help="show what would be produced, and why"
    )
    replay.add_argument(
        "--skip-deleted",
        action="store_true",
        help="leave out records of topics that were deleted; their directories stay",
    )
    replay.add_argument(
        "--skip-damaged",
        action="store_true",
        help="give up records of damaged or missing files and of batches that cannot be decoded, "
        "and produce the others, also those of a file that was replayed in part before it was "
        "damaged",
    )
    replay.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
    add_connection_options(replay)


def _replay(options: argparse.Namespace) -> int:
    try:
        from driftlog.cli.records.buffer_replay import replay  # noqa: PLC0415  # the agent's extra
    except ImportError as error:
        return no_extra(error, "driftlog buffer replay")
    return replay(options)
