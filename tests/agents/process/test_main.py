"""How an agent's process leaves: whatever makes it leave, the same deadline is set."""

import asyncio
import threading
from typing import cast

from driftlog_agents.process.composition.agent import AgentProcess
from driftlog_agents.process.main import StopDeadline, run_until_stopped


class Agent:
    """An agent that never gets ready, and leaves when it is told to."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        await self._stopping.wait()

    def stop(self) -> None:
        self._stopping.set()


async def test_an_agent_that_leaves_because_its_directory_is_gone_has_a_deadline() -> None:
    """
    What it waits for at its end may hang, as after SIGTERM.
    """
    ended = threading.Event()
    agent, ready = cast("AgentProcess", Agent()), asyncio.sleep(60)

    async with asyncio.timeout(60):
        lost = await run_until_stopped(
            agent, ready, StopDeadline(ended.set, 0.1), [lambda: None, lambda: "lock"]
        )

    assert "lock" == lost
    assert await asyncio.to_thread(ended.wait, 30)
