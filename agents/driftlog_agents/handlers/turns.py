"""Long work of many requests, one slice in each turn of the loop for all of them together.

`slices` cuts the work of one request: of a hundred requests a hundred slices are done in one turn.

Shell.
"""

import asyncio
import time
from collections.abc import Iterator

from driftlog_agents.handlers.slices import SLICE_S


class Turns:
    """Of work that gives way to other work of its kind after each slice."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()

    async def run(self, steps: Iterator[object]) -> None:
        """Go through *steps*, which are short."""
        while True:
            async with self._one:
                ends_s = time.perf_counter() + SLICE_S
                for _ in steps:
                    if time.perf_counter() >= ends_s:
                        break
                else:
                    return
                await asyncio.sleep(0)
