"""A client's connection, as requests, their handlers and limits see it.

`network/connection.Connection` is the only implementation.

Port.
"""

from collections.abc import Callable
from typing import Protocol

from driftlog_agents.foundation.fair_queue import Client, Turn
from driftlog_agents.log.partition.batch import ConnectionActivity
from driftlog_agents.network.answers import Answers


class TurnQueue(Protocol):
    """Decides which connection is next on the event loop."""

    def wait(self, turn: Turn, /) -> None:
        """Take *turn* in this or one of the next iterations of the loop."""
        ...

    def leave(self, turn: Turn, /) -> None:
        """Remove *turn*, if it waits."""
        ...


class ClientConnection(Protocol):
    """See the module."""

    @property
    def client(self) -> Client:
        """The client whose turns the connection takes."""
        ...

    @property
    def client_host(self) -> str:
        """The client's address and port, for the log."""
        ...

    @property
    def listener(self) -> str:
        """The name of the listener that accepted the connection."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the connection is closed: no answer is sent any more."""
        ...

    @property
    def source(self) -> ConnectionActivity:
        """When bytes were last received, and the numbers of requests and answers."""
        ...

    @property
    def share(self) -> TurnQueue:
        """The queue in which the connection waits for its turn."""
        ...

    @property
    def answers(self) -> Answers:
        """The memory of the connection's answers."""
        ...

    @property
    def answered(self) -> Callable[[], None]:
        """A handler calls this when a slot has its answer."""
        ...

    @property
    def frames_trusted(self) -> bool:
        """Whether the client has sent a large frame completely."""
        ...

    @property
    def on_close(self) -> set[Callable[[], None]]:
        """Functions that are called when the connection closes."""
        ...

    def on_loop(self, step: Callable[[], None], /) -> None:
        """Run *step*; an error in it closes only this connection."""
        ...

    def soon(self, step: Callable[[], None], /) -> None:
        """Run *step* in the next iteration of the loop."""
        ...

    def reconsider(self) -> None:
        """Read the socket again if there is room now, or stop reading it."""
        ...

    def take_rest(self) -> None:
        """Take the received frames that had to wait."""
        ...

    def admitted(self) -> None:
        """Called when the connection's large Produce is in the log, or refused."""
        ...

    def batches_wait(self, size_bytes: int, /) -> None:
        """Count *size_bytes* of batches that wait for admission (negative: they wait no longer)."""
        ...

    def hang_up(self, event: str, reason: str, /) -> None:
        """Close, and log *event* with *reason* once."""
        ...

    def broken(self) -> None:
        """Close after an error in the code, and log it."""
        ...

    def close(self) -> None:
        """Close now, without sending the answers that are owed."""
        ...
