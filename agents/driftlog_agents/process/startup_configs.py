"""The options of a start, and the settings of an agent that they make.

    options, configs NAME=VALUE ──▶ checked ──▶ settings

Kafka's names are accepted where they mean something here, and our own names, which begin with
``driftlog.``.  A config that is set shows in DescribeConfigs, and holds until the next start.
Addresses, directories and the session's timeout have options of their own.
Shell.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.definitions import InvalidConfigError
from driftlog_agents.configs.dynamic_configs import configure
from driftlog_agents.configs.group_settings import ClassicSettings, GroupSettings
from driftlog_agents.configs.start_configs import with_configs
from driftlog_agents.log.compaction.compaction_looks import CompactionSettings
from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.ingest.flush_pipeline import FlushSettings
from driftlog_agents.log.merging.merge_looks import MergeSettings
from driftlog_agents.log.retention.policy import RetentionSettings
from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_agents.log.session.lease import SessionSettings
from driftlog_agents.log.session.producer_budget import ProducerSettings
from driftlog_agents.log.verification.schedule import VerificationSettings
from driftlog_agents.network.limits.open_files import connections_possible
from driftlog_agents.process.composition.agent import AgentSettings
from driftlog_agents.process_log.process_log import TEXT
from driftlog_metadata.schema.grace import DEFAULT_GRACE_MS
from driftlog_metadata.schema.model import ALL_ROLES, AgentRelease, Role

if TYPE_CHECKING:
    from driftlog_metadata.stores.etcd.etcd_client import EtcdSettings

DEV_SEAL_MS: Final = 60_000
"""`driftlog dev` seals after a minute, so that a first Spark read is not empty."""

REBALANCE_DELAY_MS: Final = 3_000
"""Kafka's default of ``group.initial.rebalance.delay.ms``."""

DEV_REBALANCE_DELAY_MS: Final = 0
"""In `driftlog dev` the first member of a group does not wait for others, as in the
server.properties that come with Kafka."""

_DIRECTORY_FLUSHES_PER_SECOND: Final = 200
"""A directory has no price per PUT: a producer that waits for each answer gets more than 20 a
second."""

_DIRECTORY_UPLOADS: Final = 2
"""Each upload copies its data into a buffer of its own (`file_writes`): more of them only take the
cores from the event loop."""


LISTENER: Final = "127.0.0.1:9092"
"""The listener for Kafka clients, unless the command line sets another."""

HTTP_LISTENER: Final = "127.0.0.1:9644"
"""The listener of /metrics and the like, unless the command line sets another."""


class StartError(Exception):
    """The agent cannot start; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the command line."""

    directory: Path
    store: str | None = None
    listeners: tuple[str, ...] = (LISTENER,)
    """``[NAME://]HOST:PORT`` each; the same for `advertised_listeners`."""
    advertised_listeners: tuple[str, ...] = ()
    http_listener: str | None = None
    """None: `HTTP_LISTENER`, or a free port when that one is taken."""
    rack: str | None = None
    roles: frozenset[Role] = ALL_ROLES
    session_timeout_ms: int = 6_000
    etcd: "EtcdSettings | None" = None
    """None: the embedded metadata store, in the directory."""
    seal_ms: float | None = None
    """Age at which batches are sealed, in small partitions too, where neither their topic nor the
    broker configs set one; None: that of `SealSettings`."""
    auto_create_topics: bool = False
    """Unless ``auto.create.topics.enable`` is set.  False: a typo makes no topic."""
    group_initial_rebalance_delay_ms: int = REBALANCE_DELAY_MS
    new_cluster_grace_ms: int = DEFAULT_GRACE_MS
    """Grace of a cluster that this agent makes (`schema/grace`)."""
    log_level: str = "info"
    log_format: str = TEXT
    configs: tuple[str, ...] = ()
    """Broker configs, ``NAME=VALUE`` each, from the file, the environment and ``--config``."""
    banner: Callable[[str], None] = print


def agent_settings(options: Options, location: str, *, in_bucket: bool) -> AgentSettings:
    """The settings of an agent whose bucket is at *location*; *in_bucket*: flushes are PUTs that
    cost money.

    Raises:
        StartError: a config is wrong.
    """
    flush = FlushSettings()
    if not in_bucket:
        flush = replace(
            flush,
            flushes_per_second=_DIRECTORY_FLUSHES_PER_SECOND,
            burst=_DIRECTORY_FLUSHES_PER_SECOND / 4,
            max_uploads=_DIRECTORY_UPLOADS,
        )
    seal = SealSettings()
    if options.seal_ms is not None:
        seal = replace(seal, segment_ms=options.seal_ms, small_ms=options.seal_ms)
    classic = ClassicSettings(initial_rebalance_delay_ms=options.group_initial_rebalance_delay_ms)
    broker = BrokerSettings(
        location=location,
        auto_create_topics_enable=options.auto_create_topics,
        log_level=options.log_level,
        groups=GroupSettings(classic=classic),
    )
    try:
        limits = with_configs(broker, options.configs).limits
        possible = connections_possible(limits.driftlog_http_max_connections)
        broker = with_configs(replace(broker, max_connections=possible), options.configs)
    except InvalidConfigError as error:
        raise StartError(f"configs: {error}") from error
    if broker.max_connections > possible:
        structlog.get_logger().warning(
            "max_connections_lowered",
            wanted=broker.max_connections,
            used=possible,
            advice="the limit of open files leaves room for so many connections; raise it "
            "(ulimit -n)",
        )
        broker = replace(broker, max_connections=possible)
    engine = EngineSettings(
        session=SessionSettings(
            ttl_ms=options.session_timeout_ms,
            knows=AgentRelease(version("driftlog")),
        ),
        flush=flush,
        seal=seal,
        compaction=CompactionSettings(enabled=broker.log_cleaner_enable),
        merging=MergeSettings(enabled=broker.driftlog_segment_merge_enable),
        retention=RetentionSettings(check_interval_ms=broker.log_retention_check_interval_ms),
        verification=VerificationSettings(
            interval_ms=broker.driftlog_verification_interval_ms,
            bytes_per_s=broker.driftlog_verification_bytes_per_second,
        ),
        producers=ProducerSettings(state_bytes=broker.driftlog_producer_state_max_bytes),
    )
    configure(engine, broker)
    return AgentSettings(
        rack=options.rack,
        roles=options.roles,
        broker=broker,
        connections_possible=possible,
        engine=engine,
    )


def as_roles(names: Iterable[str]) -> frozenset[Role]:
    """The roles of these names."""
    return frozenset(map(Role, names))


def check_roles(options: Options) -> None:
    """Check that other agents may serve where this one does not.

    Raises:
        StartError: there can be none.
    """
    if Role.SERVE not in options.roles and options.etcd is None:
        raise StartError(
            "--roles seal: without --etcd the agent has a metadata store of its own, and no other "
            "agent could serve: give it the --etcd and the --store of the agents that serve, or "
            "--roles serve,seal"
        )
