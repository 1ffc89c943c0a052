"""What an attack is, and what it is given.

Shell.
"""

import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Final

from driftlog_agents.protocol.api import ApiKey
from tests.attack.wire import GONE, HOSTILE_ADDRESS, Connection
from tests.support.driftlog_process import DriftlogProcess

MiB: Final = 1 << 20


class ImpossibleError(Exception):
    """This machine does not let the attack be made; the message says why."""


class Budget(StrEnum):
    """How much memory an agent may take for an attack."""

    REQUEST = "256 MiB more than before"
    CROWD = "1 GiB in all"


REQUEST_BYTES: Final = 256 * MiB
CROWD_BYTES: Final = 1024 * MiB


@dataclass
class Target:
    """An agent that is attacked."""

    agent: DriftlogProcess
    rng: random.Random
    seconds: float
    """This attack's share: what repeats itself ends by then."""
    healthy_topic: str = ""
    sent: int = 0
    """Requests, or connections where an attack is made of these."""
    failures: list[str] = field(default_factory=list)
    groups: set[str] = field(default_factory=set)
    """Groups that the attack made, to be read after the restart."""

    @property
    def port(self) -> int:
        return self.agent.port

    @property
    def deadline(self) -> float:
        """Of an attack that begins now."""
        return time.monotonic() + self.seconds

    def connect(self, **how: Any) -> Connection:
        """From the hostile address."""
        return Connection(self.port, **{"address": HOSTILE_ADDRESS, **how})

    def fail(self, reason: str) -> None:
        """A promise is broken that no measure shows."""
        self.failures.append(reason)

    def ask(self, connection: Connection, key: ApiKey, version: int, request: Any) -> Any:
        """As `Connection.ask`, counted; None: there was no answer."""
        self.sent += 1
        try:
            return connection.ask(key, version, request)
        except GONE:
            return None

    def shoot(self, frame: bytes, wait_s: float) -> int:
        """One frame on a connection of its own; bytes of the answer, which is not read.

        0: it was closed, or not answered in time.
        """
        self.sent += 1
        with contextlib.suppress(*GONE), self.connect(timeout_s=wait_s) as connection:
            connection.send(frame)
            return connection.receive_size()
        return 0

    def crowd(self, size: int, **how: Any) -> "Crowd":
        """So many connections, or as many as the agent lets in."""
        return Crowd(self, size, how)


class Crowd:
    """Connections that are opened together and closed at the end of a block."""

    def __init__(self, target: Target, size: int, how: dict[str, Any]) -> None:
        self._target, self._size, self._how = target, size, how
        self.connections: list[Connection] = []

    def __enter__(self) -> Sequence[Connection]:
        deadline = time.monotonic() + max(5.0, self._target.seconds)
        while len(self.connections) < self._size and time.monotonic() < deadline:
            try:
                self.connections.append(self._target.connect(**self._how))
            except GONE:
                break
        return self.connections

    def __exit__(self, *_: object) -> None:
        for connection in self.connections:
            connection.close()


class Attack:
    """One attack; derive, name, and describe in the docstring what it does."""

    name: ClassVar[str]
    item: ClassVar[str] = ""
    """Of issue 13: the number of the defect that it found."""
    budget: ClassVar[Budget] = Budget.REQUEST
    arguments: ClassVar[tuple[str, ...]] = ()
    """More of the agent's command line."""
    prefix: ClassVar[tuple[str, ...]] = ()
    """A command that runs the agent."""
    counted_by_agent: ClassVar[bool] = False
    """The agent, and not the attack, counts its requests: what is sent may not have been read."""
    legal_clients: ClassVar[int] = 0
    """As many that do nothing wrong are what its healthy client is compared with."""
    must_end: ClassVar[bool] = False
    """The agent is to end itself with status 1 and say why."""
    ends_within_s: ClassVar[float] = 60.0
    """The time that such an agent has for it."""
    readable: ClassVar[bool] = True
    """Whether the agent is started again afterwards and read."""

    def prepare(self, target: Target) -> None:
        """Make what the attack needs; before anything is measured."""

    def run(self, target: Target) -> None:
        """Attack.  What the agent does to a connection is no error."""
        raise NotImplementedError

    def again(self, target: Target) -> None:
        """When the agent has started again; memory is measured anew."""

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """What the agent needs around it from its start to its end.

        Raises:
            ImpossibleError: it cannot be had.
        """
        yield
