"""The ports of one session of the log.

Shell.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random

from driftlog_agents.cluster.cluster_file import Ownership
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.partition.batch_decoder import BatchDecoder
from driftlog_agents.log.segments.remote_segments import SealAgents
from driftlog_agents.log.segments.write_turns import WriteTurns
from driftlog_agents.log.session.backpressure import Backpressure
from driftlog_agents.log.session.counters import LogCounters
from driftlog_agents.log.session.keep_alive import KeepAlive
from driftlog_agents.log.session.session_health import SessionHealth
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.stores.quota import Quota
from driftlog_metadata.witness.witnessed_store import WitnessedStore
from driftlog_tiering.foundation.types import Offload
from driftlog_tiering.segments.file_likes import Spool
from driftlog_tiering.stores.object_store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of the log: stores, disk, clocks, threads and shared state."""

    metadata: WitnessedStore
    objects: ObjectStore
    disk: AgentDisk
    rng: Random
    now_ms: Callable[[], float]
    """A monotonic clock that includes the time that the machine was suspended."""
    wall_ms: Callable[[], int]
    """Unix time in ms, by a clock that may jump or stand still."""
    offload: Offload
    """Runs ``fn(*args)`` outside the event loop."""
    spool: Callable[[], AbstractContextManager[Spool]]
    ownership: Ownership
    """Whether the cluster has the bucket.  It has no default: without it a restore loses what an
    agent of the old cluster acknowledges."""
    offload_read: Offload | None = None
    """Like *offload*, for work that must not wait behind segments; None: *offload*."""
    offload_groups: Offload | None = None
    """Like *offload*, for long work of groups, which reads must not wait for; None: *offload*."""
    offload_upkeep: Offload | None = None
    """Like *offload*, for what sealing does not wait for: compaction, merging, verification; None:
    *offload*."""
    secret: str | None = None
    """What other agents repeat when they have this session write a segment; None: it writes none
    for others."""
    seal_agents: SealAgents | None = None
    """Agents that write segments for this session; None: it writes them all itself."""
    write_turns: WriteTurns = field(default_factory=WriteTurns)
    """Of the segments that this agent writes for others."""
    decoding: BatchDecoder = field(default_factory=BatchDecoder)
    """Decodes large batches, one at a time in the process."""
    keep_alive: KeepAlive | None = None
    """None: keep-alives are sent from the event loop."""
    quota: Quota = field(default_factory=Quota)
    """How much of its quota the metadata store uses."""
    unknown_keys: UnknownKeys = field(default_factory=UnknownKeys)
    """Unrecognised keys that are logged already, also by earlier sessions of the agent."""
    backpressure: Backpressure = field(default_factory=Backpressure)
    """Holds producers of this session back."""
    health: SessionHealth = field(default_factory=SessionHealth)
    """Health of this session."""
    counters: LogCounters = field(default_factory=LogCounters)
    """Counters of all sessions of the process."""
