"""An etcd that lost what it had acknowledged, under running agents: restored from a copy, or wiped.

    copy: all members stop for a moment ──▶ their data, aside
    later, under load:
      all members stop ──▶ newest data aside ──▶ the copy, or nothing ──▶ members start
        ──▶ each agent says in /readyz that the metadata store is not its cluster's
      all members stop ──▶ newest data back ──▶ members start ──▶ agents start again

Between, nothing may be acknowledged that is not in the newest data: the run's oracle finds it lost.
Shell.
"""

import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.chaos.cluster import Cluster

_NOTICED_S: Final = 60.0
"""Agents look every ten seconds; where etcd goes back they find out at the next answer."""

_ON_IT_S: Final = 10.0
"""How long the wrong store goes on when all agents have noticed."""

_ANSWER_S: Final = 5.0
_LOOK_S: Final = 0.2
_READY_S: Final = 60.0
_DISTRUSTED: Final = "restart every agent"
"""What /readyz says of a store that is not ours, and of nothing else."""


class Loss(StrEnum):
    """What etcd comes back with; the values are the table's words."""

    RESTORED = "etcd restored from an older copy, then put right"
    WIPED = "etcd wiped, then put right"


class Stores:
    """See the module.

    Args:
        folder: of etcd's data, one folder a member, and of what is set aside.
        note: is told, in a line, what happens.
        fail: is told what must not happen.
    """

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        note: Callable[[str], None],
        fail: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._folder = folder
        self._note = note
        self._fail = fail
        self._copy = folder / "copy"
        self._aside = 0

    def copy(self) -> None:
        """Set a copy of what etcd has now aside."""
        self._stop()
        for data in self._data():
            shutil.copytree(data, self._copy / data.name)
        self._start()
        self._note("a copy of etcd's data is set aside")

    def lose(self, loss: Loss) -> None:
        """The whole of it, until the agents are up again on the newest data."""
        self._note(f"begins: {loss}")
        self._stop()
        newest = self._set_aside()
        if loss is Loss.RESTORED:
            for data in self._copy.iterdir():
                shutil.copytree(data, self._folder / data.name)
        self._start()
        self._wait_until_noticed(loss)
        time.sleep(_ON_IT_S)
        self._stop()
        self._set_aside()
        for data in newest.iterdir():
            shutil.move(data, self._folder / data.name)
        self._start()
        for agent in self._cluster.agents:
            agent.stop()
        for agent in self._cluster.agents:
            agent.start()
        for agent in self._cluster.agents:
            agent.wait_until_up(_READY_S)
        self._note(f"ends: {loss}")

    def _wait_until_noticed(self, loss: Loss) -> None:
        """Until every agent has said so."""
        began = time.monotonic()
        unaware = {agent.number: agent for agent in self._cluster.agents}
        while unaware and time.monotonic() < began + _NOTICED_S:
            for number, agent in list(unaware.items()):
                said = _readyz(agent.http)
                if _DISTRUSTED in said:
                    took_s = time.monotonic() - began
                    self._note(f"agent {number} noticed after {took_s:.1f} s: {said.strip()}")
                    del unaware[number]
            time.sleep(_LOOK_S)
        for number, agent in unaware.items():
            self._fail(f"agent {number} has not noticed: {loss}; it says {_readyz(agent.http)!r}")

    def _data(self) -> list[Path]:
        return [self._folder / f"m{number}" for number in range(len(self._cluster.etcd.members))]

    def _set_aside(self) -> Path:
        self._aside += 1
        aside = self._folder / f"aside-{self._aside}"
        aside.mkdir()
        for data in self._data():
            shutil.move(data, aside / data.name)
        return aside

    def _stop(self) -> None:
        """All at once."""
        self._cluster.etcd.stop()

    def _start(self) -> None:
        for member in self._cluster.etcd.members:
            member.start()
        self._cluster.etcd.wait_until_healthy()


def _readyz(http: str) -> str:
    """What an agent says of itself; what is wrong, where it does not answer."""
    try:
        with urllib.request.urlopen(f"{http}/readyz", timeout=_ANSWER_S) as answer:
            return str(answer.read(), "utf-8")
    except urllib.error.HTTPError as error:
        return str(error.read(), "utf-8")
    except OSError as error:
        return repr(error)
