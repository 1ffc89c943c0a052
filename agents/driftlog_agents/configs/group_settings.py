"""Settings of groups: the Kafka broker configs that have an effect in driftlog.

Pure.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Final

from driftlog_agents.configs.definitions import (
    ConfigType,
    at_least,
    one_of,
    setting,
    values_of,
)

_MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSettings:
    """Kafka's broker configs for classic groups, under their names."""

    CONFIG_PREFIX: ClassVar = "group."

    initial_rebalance_delay_ms: int = setting(
        3_000,
        "Time that an empty group waits for more members after the first has joined.",
        check=at_least(0),
    )
    """Longer: fewer rebalances while a service starts; shorter: its first record arrives sooner."""

    min_session_timeout_ms: int = setting(
        6_000, "Shortest session timeout of a member of a classic group."
    )
    max_session_timeout_ms: int = setting(
        1_800_000, "Longest session timeout of a member of a classic group."
    )
    max_size: int = setting(10_000, "Most members of a classic group.")
    """Kafka: 2^31 - 1."""

    new_member_join_timeout_ms: int = 300_000
    """How long a new member may wait for its first generation.  Its client does not heartbeat
    meanwhile, so no other timeout detects a dead client (Kafka: a constant)."""

    max_pending_members: int = 10_000
    """Most issued member ids of one group that have not joined yet.  A client that requests ids in
    a loop must not fill the memory (Kafka: no limit)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Kafka's broker configs for groups of KIP-848, under their names."""

    CONFIG_PREFIX: ClassVar = "group.consumer."

    heartbeat_interval_ms: int = setting(5_000, "Heartbeat interval of members of a KIP-848 group.")
    """Shorter: rebalances end sooner; every heartbeat costs the agent about 30 µs."""

    session_timeout_ms: int = setting(
        45_000,
        "A member of a KIP-848 group that sends no heartbeat for this long leaves the group.",
    )
    max_size: int = setting(10_000, "Most members of a KIP-848 group.")
    """Kafka: 2^31 - 1."""

    classic_max_size: int = 10_000
    """`group.max.size`: a larger group is not converted to a classic group."""

    assignors: tuple[str, ...] = setting(
        ("uniform", "range"),
        "Server-side assignors of KIP-848 groups; a group that names none uses the first.",
        ConfigType.LIST,
        one_of("uniform", "range"),
    )
    migration_policy: str = setting(
        "bidirectional",
        "Groups that may change their protocol: classic ones (upgrade), those of KIP-848 "
        "(downgrade), both or none.",
        ConfigType.STRING,
        one_of("bidirectional", "upgrade", "downgrade", "disabled"),
    )
    assignment_interval_ms: int = setting(
        1_000, "Minimum time between two target assignments of a KIP-848 group.", check=at_least(0)
    )
    """Longer: many members that start together cause fewer rebalances; 0: every join causes one."""

    regex_refresh_interval_ms: int = 600_000
    """`group.consumer.regex.refresh.interval.ms`: how often patterns are matched again though no
    topic was created or deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings of all groups, by Kafka's names and with Kafka's defaults."""

    classic: ClassicSettings = field(default_factory=ClassicSettings)
    consumer: ConsumerSettings = field(default_factory=ConsumerSettings)
    offset_metadata_max_bytes: int = setting(
        4096, "Longest metadata text of a committed offset, in UTF-16 units.", check=at_least(0)
    )
    offsets_retention_minutes: int = setting(
        10_080, "Committed offsets of a group without members expire after this time."
    )
    """Longer: a consumer that returns after a holiday continues where it stopped; shorter: less
    data in the metadata store."""

    offsets_retention_check_interval_ms: int = setting(
        600_000, "Interval between two checks for expired offsets.", ConfigType.LONG
    )

    read_bytes: int = 16_000_000
    """Most bytes of values that one transaction reads at a takeover.  A listing has no sizes: each
    value may be as large as its kind can be.  More: fewer requests at a takeover; fewer bytes: a
    slower store answers in time."""

    @property
    def configs(self) -> dict[str, str]:
        """Effective values by config name."""
        heartbeat_ms = self.consumer.heartbeat_interval_ms
        session_ms = self.consumer.session_timeout_ms
        # The bounds of group configs include the agent's own values.
        return values_of(self) | {
            "group.consumer.max.heartbeat.interval.ms": str(max(15_000, heartbeat_ms)),
            "group.consumer.max.session.timeout.ms": str(max(60_000, session_ms)),
            "group.consumer.min.heartbeat.interval.ms": str(min(5_000, heartbeat_ms)),
            "group.consumer.min.session.timeout.ms": str(min(45_000, session_ms)),
        }

    @property
    def offsets_retention_ms(self) -> int:
        """`offsets.retention.minutes`, in milliseconds."""
        return self.offsets_retention_minutes * _MINUTE_MS
