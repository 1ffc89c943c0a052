"""Closes connections whose clients left while they were not read: no read sees their end.

A client that has only ended its requests looks the same, and Kafka answers what came before the end
(its Selector reads a closing channel to the end).  So a connection is closed at the second check,
when its client received nothing since the first.  A request that waits for memory is read when
there is some, if all of it came before the end.

Shell.
"""

import array
import fcntl
import select
import termios
from collections.abc import Iterable
from typing import Final, Protocol

_ENDED: Final[int] = getattr(select, "POLLRDHUP", 0)  # Linux; elsewhere only a read finds the end


class UnreadConnection(Protocol):
    """A connection that may not be read at present."""

    @property
    def unread_file(self) -> int | None:
        """The file descriptor while it waits for answers or memory and is not read; else None."""
        ...

    @property
    def missing_bytes(self) -> int:
        """Missing bytes of a frame whose wait for memory stops reading; 0: there is none."""
        ...

    @property
    def got(self) -> tuple[int, int]:
        """Changes when the client receives something."""
        ...

    def close(self) -> None:
        """Close now."""
        ...


def ended(files: Iterable[int]) -> list[int]:
    """The sockets at whose other end nothing more is written."""
    poll = select.poll()
    for file in files:
        poll.register(file, _ENDED)
    return [file for file, _ in poll.poll(0)]


def unread_bytes(file: int) -> int:
    """Bytes that the kernel has received on a socket, and the agent has not read."""
    size = array.array("i", [0])
    fcntl.ioctl(file, termios.FIONREAD, size)
    return size[0]


class DepartedClients:
    """Checks connections when `look` is called."""

    def __init__(self) -> None:
        self._ended: dict[UnreadConnection, tuple[int, int]] = {}
        """Connections whose client wrote no more at the last check, and what it had received."""

    def look(self, connections: Iterable[UnreadConnection]) -> None:
        """Close the connections that are not read, and whose clients have left."""
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
