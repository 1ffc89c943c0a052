"""One request over a socket, as no client sends it: every field as it is given.

Shell.
"""

import socket
import struct
from typing import Any

from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.requests.registry import API


def ask(port: int, key: ApiKey, version: int, request: Any) -> Any:
    """The answer of whoever serves *port* of 127.0.0.1, on a connection of its own."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(API[key].encode_request(version, 7, "test", request))
        stream = connection.makefile("rb")
        (size,) = struct.unpack(">i", stream.read(4))
        return API[key].decode_response(version, stream.read(size))[1]
