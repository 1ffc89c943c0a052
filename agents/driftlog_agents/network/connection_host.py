"""What a connection uses of the server that accepted it.

`network/server.Server` is the only implementation; its attributes are shells of all connections.

Shell.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from driftlog_agents.configs.limits import Refusals
from driftlog_agents.network.limits.loop_share import LoopShare
from driftlog_agents.network.limits.memory_budget import MemoryBudget
from driftlog_agents.network.queued_requests import RequestQueue
from driftlog_agents.protocol.requests.one_batch import PrefixMemory
from driftlog_tiering.stores.buffer_pool import BufferPool


class ConnectionHost(Protocol):
    """See the module; a connection is `Any`, because `Connection` uses this module."""

    requests: RequestQueue
    frame_budget: MemoryBudget
    answers: MemoryBudget
    prefixes: PrefixMemory
    loop: asyncio.AbstractEventLoop
    loop_share: LoopShare
    shared: memoryview
    pool: BufferPool
    connections: set[Any]
    dispatch: Callable[[Any, memoryview], None]
    now_ms: Callable[[], float]
    socket_request_max_bytes: int
    max_queued: int
    stalled_ms: float
    overloaded: bool
    refusals: Refusals
    log: Any

    def left(self, connection: Any, /) -> None:
        """*connection* is closed: forget it."""
        ...

    def refuse_foreign(self, connection: Any, protocol: str, /) -> None:
        """Close the connection of a client that speaks *protocol*."""
        ...
