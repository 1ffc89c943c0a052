"""What groups may do: Kafka's broker configs that mean something here.

Pure.
"""

from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.groups.classic_messages import ClassicSettings
from driftlog_agents.groups.consumer_messages import ConsumerSettings

_MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Under Kafka's names, with Kafka's defaults."""

    classic: ClassicSettings = field(default_factory=ClassicSettings)
    consumer: ConsumerSettings = field(default_factory=ConsumerSettings)
    offset_metadata_max_bytes: int = 4096
    """`offset.metadata.max.bytes`: of the text that a client keeps beside an offset."""

    offsets_retention_minutes: int = 10_080
    """`offsets.retention.minutes`: how long offsets are kept that nobody uses.  Longer: a consumer
    that comes back after a holiday goes on where it was; shorter: less in the metadata store."""

    offsets_retention_check_interval_ms: int = 600_000
    """`offsets.retention.check.interval.ms`: how often that is looked for."""

    @property
    def offsets_retention_ms(self) -> int:
        """`offsets.retention.minutes`, in milliseconds."""
        return self.offsets_retention_minutes * _MINUTE_MS
