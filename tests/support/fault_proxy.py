"""A proxy in front of an S3 server, which can be told to fail as servers and networks do.

    client ──▶ Link ──▶ S3Faults ──▶ S3 server

    pass      requests go through
    refuse    connections are reset, old ones and new ones: the server is down
    hang      connections are taken and nothing is ever answered: the network is cut
    throttle  every request is answered 503 SlowDown, as S3 does it

It runs on a thread of its own and ends with its block.
Shell.
"""

from types import TracebackType
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from tests.support.links import LinkMode, Network
from tests.support.s3_faults import S3Faults, S3Trouble

Mode = Literal["pass", "refuse", "hang", "throttle"]

_LINKS: Final[dict[Mode, LinkMode]] = {
    "pass": "pass",
    "refuse": "refuse",
    "hang": "stall",
    "throttle": "pass",
}


class FaultProxy:
    """See the module.

    Args:
        url: of the server behind it, on this machine.
    """

    def __init__(self, url: str) -> None:
        port = urlsplit(url).port
        assert port is not None
        self._network = Network()
        self._behind = port

    def __enter__(self) -> Self:
        self._network.__enter__()
        self._s3 = S3Faults(self._network, self._behind, seed=0)
        self._link = self._network.link(self._s3.port)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._network.__exit__(kind, error, trace)

    @property
    def url(self) -> str:
        return self._link.url

    @property
    def refused(self) -> int:
        """Connections and requests that it has made fail."""
        return self._link.held_up + self._s3.done["503 SlowDown"]

    def set_mode(self, mode: Mode) -> None:
        """From now on, for connections that are open too."""
        self._s3.set(S3Trouble(throttle=float(mode == "throttle")))
        self._link.set(_LINKS[mode], deliver_late=False)
