"""A directory of an old session, as far as what it holds goes elsewhere.

Shell: it has a lock.
"""

import asyncio
import math
from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.log.recovery.uncommitted_batches import Note
from driftlog_metadata.schema.model import TopicPartition

LED_ELSEWHERE: Final = "another agent leads the partition"
NOT_ON_DISK: Final = (
    "what stood before them is not on this disk: buffer_file_damaged says what a damaged file lacks"
)


@dataclass(slots=True, eq=False)
class Directory:
    """One of an old session, as far as it goes elsewhere."""

    session_id: str
    note: Note
    names: dict[TopicPartition, str] = field(default_factory=dict)
    """What the topics are called."""
    begins: dict[TopicPartition, dict[int, int]] = field(default_factory=dict)
    """Leader epochs of its batches, and the first that has no place at its offset, or may have
    none: where nobody was asked yet where these epochs ended."""
    files: dict[TopicPartition, int] = field(default_factory=dict)
    """The first file that may have something to append: without one, nothing is."""
    causes: dict[TopicPartition, str] = field(default_factory=dict)
    """Why its batches have no place at their offsets."""
    changed: bool = False
    """The note is not on the disk as it is here."""
    reasons: dict[TopicPartition, str] = field(default_factory=dict)
    """Why something waits, as of the last attempt."""
    saving: asyncio.Lock = field(default_factory=asyncio.Lock)

    def first_file(self, tp: TopicPartition) -> float:
        """Files before it have nothing to append."""
        return self.files.get(tp, math.inf)

    @property
    def pending(self) -> list[TopicPartition]:
        """What is not over."""
        return [tp for tp, of in self.note.partitions.items() if not of.done]

    @property
    def done(self) -> bool:
        """Nothing is left to do, and the disk knows."""
        return not self.changed and all(of.done for of in self.note.partitions.values())

    def end(self, tp: TopicPartition) -> None:
        """Nothing more is to be done for *tp*."""
        self.note.partitions[tp].done = True
        self.changed = True
        self.reasons.pop(tp, None)
