"""What an agent does for its clients, as its start says: defaults, then `--config` and options.

Pure.
"""

from dataclasses import dataclass, field

from driftlog_agents.configs.group_settings import GroupSettings
from driftlog_agents.configs.limits import Limits
from driftlog_tiering.batches.producers import EXPIRATION_MS, STATE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """What an agent does for its clients; names are Kafka's broker configs where it has one."""

    auto_create_topics_enable: bool = True
    num_partitions: int = 1
    default_replication_factor: int = 1
    message_max_bytes: int = 1_048_588
    socket_request_max_bytes: int = 104_857_600
    connections_max_idle_ms: int = 600_000
    max_connections: int = 10_000
    fetch_max_bytes: int = 57_671_680
    producer_id_expiration_ms: int = int(EXPIRATION_MS)
    driftlog_producer_state_max_bytes: int = STATE_BYTES
    """See `ProducerSettings`."""
    limits: Limits = field(default_factory=Limits)
    given: frozenset[str] = frozenset()
    """Names of the configs that were set at the start, with `--config`, their defaults too."""
    log_level: str = "info"
    """Of the log on standard error: `--log-level`."""
    seal_ms: float | None = None
    """Seal whatever is this old, small partitions too (`driftlog dev`: a minute); None: by topic
    configs."""
    groups: GroupSettings = field(default_factory=GroupSettings)
    location: str = ""
    """Where the objects are, for people: a directory or s3://bucket/prefix."""
