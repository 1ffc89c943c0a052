"""What requests, their handlers and limits see of the connection that a client opened.

`network/connection.Connection` is the only one.

Port.
"""

from collections.abc import Callable
from typing import Protocol

from driftlog_agents.foundation.fair_queue import Client, Turn
from driftlog_agents.log.partition.batch import ConnectionActivity
from driftlog_agents.network.answers import Answers


class TurnQueue(Protocol):
    """Who is next on the event loop, of all connections."""

    def wait(self, turn: Turn, /) -> None:
        """*turn* is taken in this or one of the next iterations."""
        ...

    def leave(self, turn: Turn, /) -> None:
        """*turn* is gone."""
        ...


class ClientConnection(Protocol):
    """See the module."""

    @property
    def client(self) -> Client:
        """Whose turns it takes."""
        ...

    @property
    def client_host(self) -> str:
        """The client's address and port, for the log."""
        ...

    @property
    def listener(self) -> str:
        """The name of the listener that it came in through."""
        ...

    @property
    def closed(self) -> bool:
        """No answer is sent any more."""
        ...

    @property
    def source(self) -> ConnectionActivity:
        """When it was heard, and how many requests are answered."""
        ...

    @property
    def share(self) -> TurnQueue:
        """Where it waits for its turn."""
        ...

    @property
    def answers(self) -> Answers:
        """What its answers hold."""
        ...

    @property
    def answered(self) -> Callable[[], None]:
        """To be called when a slot has its answer."""
        ...

    @property
    def frames_trusted(self) -> bool:
        """It has brought a large frame whole."""
        ...

    @property
    def on_close(self) -> set[Callable[[], None]]:
        """What is called when it is gone."""
        ...

    def on_loop(self, step: Callable[[], None], /) -> None:
        """Do *step*; an error in it costs this connection only."""
        ...

    def soon(self, step: Callable[[], None], /) -> None:
        """Do *step* in the next iteration of the loop."""
        ...

    def reconsider(self) -> None:
        """Read it again if there is room now, or stop reading it."""
        ...

    def take_rest(self) -> None:
        """Go on with what was there when it had enough."""
        ...

    def admitted(self) -> None:
        """Its large Produce is in the log, or refused."""
        ...

    def batches_wait(self, size_bytes: int, /) -> None:
        """So many bytes of its batches wait before their admission (negative: no longer)."""
        ...

    def hang_up(self, event: str, reason: str, /) -> None:
        """Close, and say so once."""
        ...

    def broken(self) -> None:
        """Close for an error in the code, and say so."""
        ...

    def close(self) -> None:
        """Close now; answers that are owed are not sent."""
        ...
