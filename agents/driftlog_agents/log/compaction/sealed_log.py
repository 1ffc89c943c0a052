"""What compaction and merging know of a partition that they rewrite.

Pure.
"""

from typing import Protocol
from uuid import UUID

from driftlog_agents.log.partition.partition import State


class SealedLog(Protocol):
    """The sealed part of a partition, as its key has it."""

    @property
    def topic(self) -> str:
        """Its topic's name."""
        ...

    @property
    def topic_id(self) -> UUID:
        """Its topic's id."""
        ...

    @property
    def partition(self) -> int:
        """Its number."""
        ...

    @property
    def sealed_end(self) -> int:
        """Everything below is sealed."""
        ...

    @property
    def log_start(self) -> int:
        """Everything below is deleted."""
        ...

    @property
    def manifest_version(self) -> int:
        """The newest manifest is at least of this version; 0: there is none."""
        ...

    @property
    def state(self) -> State:
        """It is rewritten only while it is ONLINE or LOADING."""
        ...


def name_of(log: SealedLog) -> str:
    """The partition, as log lines name it."""
    return f"{log.topic}-{log.partition}"
