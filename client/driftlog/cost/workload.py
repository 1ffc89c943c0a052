"""A workload: what producers send, what consumers read, how long records stay.

Pure.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """An even load, around the clock.  Bytes are as producers compress them."""

    write_bytes_per_s: float
    fan_out: float = 1.0
    """How often each byte is read."""
    cold_share: float = 0.0
    """Share of the reads that are of old records: from segments, or from Kafka's remote tier."""
    retention_s: float = 7 * 86_400
    partitions: int = 100
    """With records, evenly."""
    zones: int = 3
    sealed_ratio: float = 1.0
    """Bytes of Parquet for each byte received.  Below 1 where producers compress little."""

    @property
    def read_bytes_per_s(self) -> float:
        """To all consumers."""
        return self.write_bytes_per_s * self.fan_out

    @property
    def cold_bytes_per_s(self) -> float:
        """Of these, old records."""
        return self.read_bytes_per_s * self.cold_share
