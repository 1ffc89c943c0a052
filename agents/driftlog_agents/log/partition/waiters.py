"""A waiter for the commit, or the loss, of a partition's last admitted batches.

Shell.
"""

import asyncio

from driftlog_agents.log.partition.partition import PartitionLog


class CommitWaiter:
    """A `Waiter` that sets an event when its partition's last batches are committed, or lost.

    Args:
        any_of: an event that several waiters share; it is set as well.
    """

    def __init__(self, any_of: asyncio.Event | None = None) -> None:
        self.event = asyncio.Event()
        self._any_of = any_of

    def committed(self, log: PartitionLog) -> None:
        self._arrived()

    def synced(self, log: PartitionLog) -> None:
        raise AssertionError("it waits for the commit")

    unsynced = synced

    def lost(self, log: PartitionLog) -> None:
        # Its topic was deleted.  (When the session is lost, no such waiter is left.)
        self._arrived()

    def _arrived(self) -> None:
        self.event.set()
        if self._any_of is not None:
            self._any_of.set()
