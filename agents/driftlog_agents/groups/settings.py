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
    def configs(self) -> dict[str, str]:
        """By the names of Kafka's broker configs."""
        classic, consumer = self.classic, self.consumer
        values = {
            "group.consumer.assignment.interval.ms": consumer.assignment_interval_ms,
            "group.consumer.assignors": ",".join(consumer.assignors),
            "group.consumer.heartbeat.interval.ms": consumer.heartbeat_interval_ms,
            "group.consumer.max.size": consumer.max_size,
            # What groups may set for themselves begins and ends there: nothing is refused here that
            # the agent itself does.
            "group.consumer.max.heartbeat.interval.ms": max(15_000, consumer.heartbeat_interval_ms),
            "group.consumer.max.session.timeout.ms": max(60_000, consumer.session_timeout_ms),
            "group.consumer.min.heartbeat.interval.ms": min(5_000, consumer.heartbeat_interval_ms),
            "group.consumer.min.session.timeout.ms": min(45_000, consumer.session_timeout_ms),
            "group.consumer.migration.policy": consumer.migration_policy,
            "group.consumer.session.timeout.ms": consumer.session_timeout_ms,
            "group.initial.rebalance.delay.ms": classic.initial_rebalance_delay_ms,
            "group.max.session.timeout.ms": classic.max_session_timeout_ms,
            "group.max.size": classic.max_size,
            "group.min.session.timeout.ms": classic.min_session_timeout_ms,
            "offset.metadata.max.bytes": self.offset_metadata_max_bytes,
            "offsets.retention.check.interval.ms": self.offsets_retention_check_interval_ms,
            "offsets.retention.minutes": self.offsets_retention_minutes,
        }
        return {name: str(value) for name, value in values.items()}

    @property
    def offsets_retention_ms(self) -> int:
        """`offsets.retention.minutes`, in milliseconds."""
        return self.offsets_retention_minutes * _MINUTE_MS
