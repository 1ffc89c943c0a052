"""Settings of an agent that concern its clients: defaults, then `--config` and options.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from driftlog_agents.configs.definitions import (
    ConfigDef,
    ConfigType,
    at_least,
    between,
    definitions_of,
    setting,
    setting_of,
    values_of,
)
from driftlog_agents.configs.group_settings import GroupSettings
from driftlog_agents.configs.limits import Limits
from driftlog_agents.configs.topic import TOPIC_CONFIGS, broker_default
from driftlog_tiering.batches.producers import EXPIRATION_MS, MAX_BODY_BYTES, STATE_BYTES

_MAX_BATCH: Final = TOPIC_CONFIGS["max.message.bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """See the module; a field has the name of Kafka's broker config where Kafka has one."""

    auto_create_topics_enable: bool = setting(
        True,
        "A Metadata request that names a missing topic creates it.",
        ConfigType.BOOLEAN,
    )
    num_partitions: int = setting(
        1, "Partitions of a topic that is created with -1, or automatically."
    )
    default_replication_factor: int = setting(
        1,
        "Replication factor of a topic that is created with -1, or automatically; the "
        "bucket replicates.",
        check=between(1, 32_767),
    )
    message_max_bytes: int = setting_of(broker_default(_MAX_BATCH), int(_MAX_BATCH.default or ""))
    socket_request_max_bytes: int = setting(
        104_857_600, "Largest request; a larger one closes its connection."
    )
    connections_max_idle_ms: int = setting(
        600_000,
        "The agent closes a connection that is idle for this long.",
        ConfigType.LONG,
    )
    max_connections: int = setting(
        10_000, "Most connections of the agent; it refuses more.", shown="2147483647"
    )
    fetch_max_bytes: int = setting(
        57_671_680, "Most bytes of one answer to Fetch.", check=at_least(1024)
    )
    producer_id_expiration_ms: int = setting(
        int(EXPIRATION_MS),
        "A partition forgets an idempotent producer that appends nothing to it for this long.",
    )
    driftlog_producer_state_max_bytes: int = setting(
        STATE_BYTES,
        "Memory for idempotent producers, of all partitions that this agent leads. When it is "
        "used up, new producers wait until others expire (producer.id.expiration.ms).",
        ConfigType.LONG,
        between(0, MAX_BODY_BYTES),
    )
    limits: Limits = field(default_factory=Limits)
    given: frozenset[str] = frozenset()
    """Names of the configs that `--config` set at the start, even to their defaults."""
    log_level: str = "info"
    """Level of the log on standard error: `--log-level`."""
    seal_ms: float | None = None
    """Age at which batches are sealed, in small partitions too (`driftlog dev`: a minute); None: by
    topic configs."""
    groups: GroupSettings = field(default_factory=GroupSettings)
    location: str = ""
    """Location of the objects, for display: a directory or s3://bucket/prefix."""

    @property
    def configs(self) -> dict[str, str]:
        """Effective values by config name."""
        return values_of(self) | self.groups.configs


STARTUP_CONFIGS: Final[Mapping[str, ConfigDef]] = MappingProxyType(definitions_of(BrokerSettings))
"""The configs that `--config` accepts: fields of `BrokerSettings` and its nested settings."""
