"""The names in an agent's directory, and which of them are whole.

    DIR/lock                              flock; names the process that holds it
    DIR/node_id.json, …                   small files of the agent
    DIR/buffer/{session_id}/{number:010d}.buf
    DIR/buffer/{session_id}/leftovers.json    the note about it
    DIR/kept/{session_id}/…                   the files set aside of it, and leftovers.json
    DIR/kept/.{session_id}.part/              files of a session that are not all set aside yet

A folder under DIR/kept is whole if its note says that the session was set aside: a copy of a
session's folder, and what an interrupted removal left, have no such note.  Then the session's own
folder under DIR/buffer is what a killed process did not delete any more.

Pure.
"""

import re
from collections.abc import Iterable
from typing import Final

from driftlog_agents.log.local.leftovers import decode_leftovers
from driftlog_metadata.stores.errors import CorruptError

LOCK: Final = "lock"
BUFFER: Final = "buffer"
KEPT: Final = "kept"
NOTE: Final = "leftovers.json"
OWN_FOLDERS: Final = (BUFFER, KEPT, "spool")
PARTS: Final = ".*.part"
"""Pattern of the folders whose files are not all set aside yet."""

_SESSION: Final = re.compile(r"[0-9a-f]{32}")
_FILE: Final = re.compile(r"[0-9]+\.buf")


def is_session(name: str) -> bool:
    """Whether a folder of this name may be a session's."""
    return _SESSION.fullmatch(name) is not None


def file_name(number: int) -> str:
    """The name of a session's buffer file."""
    return f"{number:010d}.buf"


def file_numbers(names: Iterable[str]) -> list[int]:
    """The numbers of the buffer files among *names*, ascending; other names are foreign."""
    return sorted(int(name[:-4]) for name in names if _FILE.fullmatch(name))


def part_name(session_id: str) -> str:
    """The folder of a session whose files are not all set aside yet."""
    return f".{session_id}.part"


def says_whole(note: bytes | None) -> bool:
    """Whether the note of a folder under DIR/kept says that the folder is whole; None: there is no
    note."""
    try:
        return note is not None and decode_leftovers(note).set_aside_at_ms is not None
    except CorruptError:
        return False


def tightened(mode: int) -> int | None:
    """The mode of a file or folder without the access of other users; None: they have none."""
    others = 0o077
    return mode & ~others if mode & others else None
