"""Commands for an operator after an agent's directory or database was removed or moved.

    DIR was moved                    ──▶ move it back
    database removed, or replaced    ──▶ put the copy that the agent saved in its place

The commands can be pasted: paths are quoted, and no command overwrites or deletes a file that an
operator may need.
Pure.
"""

import shlex


def move_back(directory: str, moved_to: str) -> str:
    """The command that moves *moved_to* back to *directory*.  With GNU's -T, mv refuses a target
    directory that is not empty."""
    return f"`mv -T -- {shlex.quote(moved_to)} {shlex.quote(directory)}`"


def put_back(database: str, rescued: str, *, replaced: bool) -> str:
    """The command that puts the copy *rescued* in the place of *database*, without the old
    database's -wal and -shm files.

    *replaced*: another file has the database's path.
    """
    stale = " ".join(shlex.quote(f"{database}{end}") for end in ("-wal", "-shm"))
    command = f"rm -f -- {stale} && mv -n -- {shlex.quote(rescued)} {shlex.quote(database)}"
    first = "move away what is there now, with its -wal and -shm, then " if replaced else ""
    return f"{first}`{command}`"
