"""How an agent's process leaves: whatever makes it leave, the same deadline is set."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, cast

import pytest

from driftlog_agents.process import main
from driftlog_agents.process.agent import AgentProcess
from driftlog_agents.process.startup_configs import Options
from driftlog_agents.process_log.process_log import ProcessLog


class Agent:
    """An agent that never gets ready, and leaves when it is told to."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        await self._stopping.wait()

    def stop(self) -> None:
        self._stopping.set()


class Timer:
    """As `threading.Timer`; it is only told of."""

    started: ClassVar[list[float]] = []

    def __init__(self, seconds: float, _: Callable[[], None]) -> None:
        self._seconds = seconds
        self.daemon = False

    def start(self) -> None:
        self.started.append(self._seconds)


async def test_an_agent_that_leaves_because_its_directory_is_gone_has_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    What it waits for at its end may hang, as after SIGTERM.
    """
    monkeypatch.setattr(threading, "Timer", Timer)
    monkeypatch.setattr(Timer, "started", [])
    agent, overdue = cast("AgentProcess", Agent()), main._Overdue(ProcessLog("info"))
    options = Options(directory=tmp_path)

    async with asyncio.timeout(60):
        lost = await main._run(agent, options, "", overdue, [lambda: None, lambda: "lock"])

    assert "lock" == lost
    assert [main._OVERDUE_S] == Timer.started
