"""How many ranges an agent with the role ``seal`` writes at once for others.

Pure.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from driftlog_agents.log.segments.segment_request import BusyError

AT_ONCE: Final = 3
"""Some fill a segment, which takes a worker thread, while another's is uploaded.  More: each takes
memory for a row group; fewer: leaders compress more themselves."""


class WriteTurns:
    """The turns of an agent."""

    def __init__(self) -> None:
        self.at_once = AT_ONCE
        """Ranges that are written at once."""
        self.taken = 0
        """Ranges that are written now."""

    @property
    def are_taken(self) -> bool:
        """Whether no other range can be written now."""
        return self.taken >= self.at_once

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The turn of one range.

        Raises:
            BusyError: all turns are taken.
        """
        if self.are_taken:
            raise BusyError
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
