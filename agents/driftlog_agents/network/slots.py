"""The turn of a request on its connection: answers are sent in the order of the requests.

Shell.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

from driftlog_agents.network.client_connection import ClientConnection
from driftlog_tiering.foundation.types import Buffer


class Slot:
    """The turn of one request on its connection."""

    __slots__ = ("answer", "begin", "connection")

    queued: ClassVar[bool] = False
    """Whether it is a `QueuedRequest`."""

    claims: ClassVar[bool] = False
    """Whether room for the answer is claimed before it is made (`Answers.room`)."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.begin: Callable[[], None] | None = None
        """Starts the request when its turn comes; None: the request has started."""
        self.answer: Sequence[Buffer] | None = None

    def respond(self, answer: Sequence[Buffer]) -> None:
        """Answer with whole frames; an empty answer ends the turn and writes nothing (acks=0)."""
        assert self.answer is None, "answered twice"
        self.answer = answer
        self.connection.answers.made(sum(map(len, answer)), claimed=self.claims)
        self.connection.answered()


class LargeSlot(Slot):
    """The turn of a large Produce."""

    __slots__ = ("frame",)

    claims = True

    def __init__(self, connection: ClientConnection, frame: memoryview) -> None:
        super().__init__(connection)
        self.frame: memoryview | None = frame
        """None: the frame is decoded, or the connection is closed."""
