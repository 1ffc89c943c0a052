"""Ports of a simulated agent: who it is, and producers that are read or wait in their sockets."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from driftlog_agents.configs.limits import Limits
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_agents.network.server import Dispatch
from driftlog_metadata.schema.codec import decode_cluster
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import Cluster, Listener
from driftlog_metadata.stores.store import MetadataStore
from tests.simulation.faults import Process
from tests.simulation.loop import NOBODY

LISTENER = Listener("PLAINTEXT", "localhost", 9092)


@dataclass(frozen=True, slots=True)
class SimIdentity:
    """A node keeps its number, whatever becomes of its disk and of the store."""

    number: int
    cluster: bytes
    """The value of the cluster's key when the cluster was made."""
    grace: Grace

    async def join(
        self, metadata: MetadataStore, unknown_keys: UnknownKeys
    ) -> tuple[Cluster, int, Grace]:
        return decode_cluster(self.cluster), self.number, self.grace


class SimServer:
    """A `RequestServer` without frames: clients call the dispatcher's handlers themselves."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.accepts = False
        """The listener is open."""
        self.holds_producers = False
        self._unread: list[Callable[[], None]] = []

    async def bind(self) -> tuple[Listener, ...]:
        return (LISTENER,)

    def start(self, dispatch: Dispatch) -> None:
        self.accepts = True

    def limit_connections(self, most: int, limits: Limits) -> None:
        """There are no connections."""

    def hold_producers(self, held: bool) -> None:
        self.holds_producers = held
        if held:
            return
        unread, self._unread = self._unread, []
        for request in unread:
            read = partial(self.read, request)
            self._process.loop.call_soon(self._process.receive, read, context=NOBODY)

    async def run(self) -> None:
        """Connections need no looking after."""

    async def stop(self) -> None:
        self.accepts = False

    def read(self, request: Callable[[], None]) -> None:
        """Of a producer: it waits in its socket while nothing more is read from producers."""
        if self.holds_producers:
            self._unread.append(request)
        else:
            request()
