"""Whether the agent's directory is still the one that it has open: looked at, and said loudly.

    every second: lock, buffer/, buffer files, metadata.db: is the path what was opened?
                                          ╳ no: ERROR, and the agent leaves

What is written to a file without a name is gone with the process.  So the agent leaves as it does
when it is told to: what it holds is uploaded and committed, from memory and from the open files,
and nothing that it acknowledged is lost unless it is killed before that is done.

Shell.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

_LOOK_S: Final = 1.0
"""Longer: more is acknowledged that a kill would lose; shorter: more calls of stat."""


class DirectoryMonitor:
    """See the module.

    Args:
        looks: each says what was removed or replaced; None: nothing of its own.
        stop: makes the agent leave.
    """

    def __init__(self, looks: Sequence[Callable[[], str | None]], stop: Callable[[], None]) -> None:
        self._looks = looks
        self._stop = stop
        self.lost: str | None = None
        """What was removed or replaced."""

    async def run(self) -> None:
        """Look until something is lost."""
        while self.lost is None:
            await asyncio.sleep(_LOOK_S)
            self.look()

    def look(self) -> None:
        """Once."""
        for lost in filter(None, (look() for look in self._looks)):
            self.lost = lost
            structlog.get_logger().error(
                "directory_lost",
                path=lost,
                means="it was removed or replaced under the running agent: what the agent writes "
                "there is gone when it ends; it uploads and commits what it holds, and ends",
                advice="do not kill it; standard error says at its end what to do",
            )
            self._stop()
            return
