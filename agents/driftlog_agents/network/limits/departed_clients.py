"""Clients that left while their connection was not read: nobody else sees the end of its stream.

A client that has only ended its requests looks the same, and Kafka answers what came before the end
(its Selector reads a closing channel to the end): so a connection is closed at the second look
between which its client got nothing.  A request that waits for memory is read when there is some,
if all of it came before the end.

Shell.
"""

import array
import fcntl
import select
import termios
from collections.abc import Iterable
from typing import Final, Protocol

_ENDED: Final[int] = getattr(select, "POLLRDHUP", 0)  # Linux; others find out when they read


class UnreadConnection(Protocol):
    """A connection that may not be read just now."""

    @property
    def unread_file(self) -> int | None:
        """Its socket, while it is not read for what its client does, or for memory."""
        ...

    @property
    def missing_bytes(self) -> int:
        """Of a frame that waits for memory, and keeps its socket from being read."""
        ...

    @property
    def got(self) -> tuple[int, int]:
        """Other than before when its client has got something."""
        ...

    def close(self) -> None:
        """Close now."""
        ...


def ended(files: Iterable[int]) -> list[int]:
    """Those of the sockets at whose other end nobody writes any more."""
    poll = select.poll()
    for file in files:
        poll.register(file, _ENDED)
    return [file for file, _ in poll.poll(0)]


def unread_bytes(file: int) -> int:
    """What the kernel has received on a socket, and nobody has read."""
    size = array.array("i", [0])
    fcntl.ioctl(file, termios.FIONREAD, size)
    return size[0]


class DepartedClients:
    """Looks when it is told to."""

    def __init__(self) -> None:
        self._ended: dict[UnreadConnection, tuple[int, int]] = {}
        """Whose client wrote no more at the last look, and what it had got."""

    def look(self, connections: Iterable[UnreadConnection]) -> None:
        """Close those that are not read, and of which nobody is at the other end."""
        unread = {file: c for c in connections if (file := c.unread_file) is not None}
        before, self._ended = self._ended, {}
        for file in ended(unread):
            connection = unread[file]
            missing = connection.missing_bytes
            if missing and missing <= unread_bytes(file):
                continue
            if before.get(connection) == connection.got:
                connection.close()
            else:
                self._ended[connection] = connection.got
