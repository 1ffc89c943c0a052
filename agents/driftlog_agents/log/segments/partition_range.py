"""A range of one partition that is sealed, with its topic's name.

Pure.
"""

from dataclasses import dataclass

from driftlog_metadata.schema.model import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The offsets ``[base, end)`` of a partition of *topic*; both are borders of batches."""

    topic: str
    tp: TopicPartition
    base: int
    end: int

    @property
    def name(self) -> str:
        """The partition, as log lines name it."""
        return f"{self.topic}-{self.tp.partition}"
