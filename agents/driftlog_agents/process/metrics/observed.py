"""The sources of an agent's metrics.

Shell.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from driftlog_agents.health.event_loop_monitor import EventLoopMonitor
from driftlog_agents.health.store_times import StoreTimes
from driftlog_agents.network.server import Server
from driftlog_agents.process.composition.agent import AgentProcess
from driftlog_tiering.stores.counted_store import StoreRequests


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """See the module."""

    agent: AgentProcess
    server: Server
    loop_watch: EventLoopMonitor
    store_requests: StoreRequests
    store_times: StoreTimes = field(default_factory=StoreTimes)
    log_lines_dropped: Callable[[], Mapping[str, int]]
    """Lines of the process's log that were not written, by reason."""
