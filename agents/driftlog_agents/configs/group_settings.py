"""What groups may do: Kafka's broker configs that mean something here.

Pure.
"""

from dataclasses import dataclass, field
from typing import Final

_MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSettings:
    """Kafka's broker configs for classic groups, under their names."""

    initial_rebalance_delay_ms: int = 3_000
    """`group.initial.rebalance.delay.ms`: how long the first member of a group waits for others.
    Longer: fewer rebalances while a service starts; shorter: its first record comes earlier."""

    min_session_timeout_ms: int = 6_000
    """`group.min.session.timeout.ms`."""

    max_session_timeout_ms: int = 1_800_000
    """`group.max.session.timeout.ms`."""

    max_size: int = 10_000
    """`group.max.size`: members of one group (Kafka: 2^31 - 1)."""

    new_member_join_timeout_ms: int = 300_000
    """How long a member that has never had a generation may wait for one.  Its client cannot
    heartbeat meanwhile, so nothing else would tell that it is gone (Kafka: a constant)."""

    max_pending_members: int = 10_000
    """Ids of one group that were given out and not used yet.  They cost memory only, and a
    client that asks and asks for one must not fill the memory (Kafka: no limit)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Kafka's broker configs for groups of KIP-848, under their names."""

    heartbeat_interval_ms: int = 5_000
    """`group.consumer.heartbeat.interval.ms`: what members are told.  Shorter: rebalances are
    over sooner; every heartbeat costs the agent about 30 µs."""

    session_timeout_ms: int = 45_000
    """`group.consumer.session.timeout.ms`: how long a member may be silent."""

    max_size: int = 10_000
    """`group.consumer.max.size`: members of one group (Kafka: 2^31 - 1)."""

    classic_max_size: int = 10_000
    """`group.max.size`: what is larger does not become a group of the classic protocol."""

    assignors: tuple[str, ...] = ("uniform", "range")
    """`group.consumer.assignors`; the first is that of groups which ask for none."""

    migration_policy: str = "bidirectional"
    """`group.consumer.migration.policy`: whether groups change between the protocols while they
    have members: ``bidirectional``, ``upgrade``, ``downgrade`` or ``disabled``."""

    assignment_interval_ms: int = 1_000
    """`group.consumer.assignment.interval.ms`: how long a target stands at least.  Longer: many
    members that start together cause fewer rebalances; 0: every one that joins causes one."""

    regex_refresh_interval_ms: int = 600_000
    """`group.consumer.regex.refresh.interval.ms`: how often patterns are looked at though no topic
    has come or gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Under Kafka's names, with Kafka's defaults."""

    classic: ClassicSettings = field(default_factory=ClassicSettings)
    consumer: ConsumerSettings = field(default_factory=ConsumerSettings)
    offset_metadata_max_bytes: int = 4096
    """`offset.metadata.max.bytes`: of the text that a client keeps beside an offset."""

    offsets_retention_minutes: int = 10_080
    """`offsets.retention.minutes`: how long unused offsets are kept.  Longer: a consumer
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
