"""Checks that the agent's directory is still the one that it has open.

    every second: lock, buffer/, buffer files, metadata.db: is the path what was opened?
                                          ╳ no: ERROR, and the agent leaves

Data in an unlinked file are lost when the process ends.  So the agent leaves as after a SIGTERM: it
uploads and commits its data from memory and from the open files.  No acknowledged record is lost
unless the agent is killed before that is done.

Shell.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

_LOOK_S: Final = 1.0
"""Longer: a kill can lose more acknowledged records; shorter: more calls of stat."""


class DirectoryMonitor:
    """See the module.

    Args:
        looks: checks; each returns the path that was removed or replaced, or None.
        stop: makes the agent leave.
    """

    def __init__(self, looks: Sequence[Callable[[], str | None]], stop: Callable[[], None]) -> None:
        self._looks = looks
        self._stop = stop
        self.lost: str | None = None
        """The path that was removed or replaced; None: none was."""

    async def run(self) -> None:
        """Check every second until a path is lost."""
        while self.lost is None:
            await asyncio.sleep(_LOOK_S)
            self.look()

    def look(self) -> None:
        """Run all checks once; after a lost path, log it and stop the agent."""
        for lost in filter(None, (look() for look in self._looks)):
            self.lost = lost
            structlog.get_logger().error(
                "directory_lost",
                path=lost,
                means="the directory was removed or replaced under the running agent, and what "
                "the agent writes there is lost at its end; the agent uploads and "
                "commits what it holds, and ends",
                advice="do not kill the agent; at its end standard error names the next step",
            )
            self._stop()
            return
