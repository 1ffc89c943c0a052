"""A long test that is a program of its own, such as `python -m tests.chaos`, and what it printed.

It runs in a process of its own: what ends a client's process must not end the tests.  A run that
takes too long is interrupted, not killed: it then says where it stands, and ends what it started.
Shell.
"""

import faulthandler
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.components import REPOSITORY

_ENDED_S: Final = 30
"""From the interrupt to the end of the program."""

_STORY_LINES: Final = 25
"""The last ones of each `story.log` that an interrupted run has left."""


def run_module(module: str, *options: str, folder: Path, timeout_s: float) -> str:
    """Run ``python -m module`` with its files under *folder*; returns what it printed.

    Raises:
        AssertionError: its status is not 0, or it was interrupted; with what it printed.
    """
    faulthandler.cancel_dump_traceback_later()  # of what takes a hundred seconds, as this does
    with subprocess.Popen(
        [sys.executable, "-m", module, *options],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        try:
            printed, _ = running.communicate(timeout=timeout_s)
            late = ""
        except subprocess.TimeoutExpired:
            late = f"interrupted after {timeout_s:.0f} s\n{_stories(folder)}"
            running.send_signal(signal.SIGTERM)
            printed = _rest(running)
    print(printed)
    assert not late, f"{late}\n{printed}"
    assert 0 == running.returncode, printed
    return printed


def _rest(running: subprocess.Popen[str]) -> str:
    try:
        printed, _ = running.communicate(timeout=_ENDED_S)
    except subprocess.TimeoutExpired:
        running.kill()
        printed, _ = running.communicate()
    return printed


def _stories(folder: Path) -> str:
    found: list[str] = []
    for path in sorted(folder.rglob("story.log")):
        found += [str(path), *path.read_text(errors="replace").splitlines()[-_STORY_LINES:]]
    return "\n".join(found)
