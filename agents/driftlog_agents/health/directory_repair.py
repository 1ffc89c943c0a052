"""What a person does when an agent's directory, or its database, was removed or moved under it.

    only moved: DIR is whole elsewhere  ──▶ moved back
    database removed, or replaced       ──▶ the copy that the agent saved is put in its place

Commands can be pasted: paths are quoted, and none of them overwrites or deletes what a person may
need.
Pure.
"""

import shlex


def move_back(directory: str, moved_to: str) -> str:
    """How *moved_to* becomes *directory* again.  GNU's -T refuses a directory with content."""
    return f"`mv -T -- {shlex.quote(moved_to)} {shlex.quote(directory)}`"


def put_back(database: str, rescued: str, *, replaced: bool) -> str:
    """How the copy *rescued* becomes *database*, whose old log must not stand beside it.

    *replaced*: another file has its name.
    """
    stale = " ".join(shlex.quote(f"{database}{end}") for end in ("-wal", "-shm"))
    command = f"rm -f -- {stale} && mv -n -- {shlex.quote(rescued)} {shlex.quote(database)}"
    first = "move away what is there now, with its -wal and -shm, then " if replaced else ""
    return f"{first}`{command}`"
