"""How many ranges an agent with the role ``seal`` writes at once for others.

Pure.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from driftlog_agents.log.segments.segment_request import BusyError

AT_ONCE: Final = 3
"""Some fill a segment, which takes a worker thread, while another's is uploaded.  More: each takes
memory for a row group; fewer: leaders compress more themselves."""


class WriteTurns:
    """The turns of an agent, over all its sessions.

    Args:
        at_once: ranges that are written at once.
        refused: counts a range that is refused.
    """

    def __init__(self, at_once: int = AT_ONCE, refused: Callable[[], None] = lambda: None) -> None:
        self.at_once = at_once
        self._refused = refused
        self.taken = 0
        """Ranges that are written now."""

    @property
    def are_taken(self) -> bool:
        """Whether no other range can be written now."""
        return self.taken >= self.at_once

    def check(self) -> None:
        """Raises BusyError: all turns are taken."""
        if self.are_taken:
            self._refused()
            raise BusyError

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The turn of one range.

        Raises:
            BusyError: all turns are taken.
        """
        self.check()
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
