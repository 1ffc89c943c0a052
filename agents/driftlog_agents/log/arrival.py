"""Wait until what was admitted to a partition is committed, or lost.

Shell.
"""

import asyncio

from driftlog_agents.log.partition import PartitionLog


class Arrival:
    """A `Waiter` that sets an event when its partition's last batches are committed, or lost."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def committed(self, log: PartitionLog) -> None:
        self.event.set()

    def synced(self, log: PartitionLog) -> None:
        raise AssertionError("it waits for the commit")

    def lost(self, log: PartitionLog) -> None:
        # Its topic was deleted.  (When the session is lost nobody waits any more.)
        self.event.set()
