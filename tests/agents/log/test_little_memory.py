"""A lack of memory while a segment is written costs an attempt.

If it failed: the agent would end, and end again whenever it came to the same segment.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.retention.policy import RetentionSettings
from driftlog_agents.log.retention.segment_expiry import SegmentExpiry
from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_agents.log.sealing.sealer import Sealer
from driftlog_tiering.segments.segment import SegmentWriter
from tests.agents.handlers.asking import create, new
from tests.agents.log.lives import make_batch
from tests.support.engine import RunningAgent


@pytest.mark.parametrize("error", [MemoryError(), pa.ArrowMemoryError("malloc of 1 GiB failed")])
async def test_it_costs_a_seal_an_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: MemoryError
) -> None:
    """
    Twice there is too little; the third attempt seals, in the same session.
    """
    lacking = _lacks_memory(monkeypatch, error, times=2)

    with capture_logs() as lines:
        async with RunningAgent(tmp_path) as agent, asyncio.timeout(30):
            await create(agent, new("t", segment_ms="1"))
            await agent.append("t", 0, make_batch([b"v"]))
            while not agent.log("t", 0).sealed_end:  # noqa: ASYNC110  # the log tells nobody
                await asyncio.sleep(0.01)
            sessions = agent.sessions

    assert [] == lacking
    assert 1 == sessions
    assert [line for line in lines if "too little memory" in str(line)]


@pytest.mark.parametrize(
    ("kind", "method"), [(Sealer, "seal"), (SegmentExpiry, "_check")], ids=["seal", "retention"]
)
async def test_it_costs_other_upkeep_an_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, method: str
) -> None:
    """
    A manifest or a list may not fit, either.
    """
    left = [MemoryError()]
    does = getattr(kind, method)
    done = asyncio.Event()

    async def works(self: object, *args: object) -> object:
        if left:
            raise left.pop()
        result = await does(self, *args)
        done.set()
        return result

    monkeypatch.setattr(kind, method, works)
    settings = replace(
        EngineSettings(),
        retention=RetentionSettings(check_interval_ms=100),
        seal=SealSettings(check_interval_ms=20),
    )
    async with RunningAgent(tmp_path, engine=settings) as agent, asyncio.timeout(30):
        await create(agent, new("t", segment_ms="1", retention_ms="1000000"))
        await agent.append("t", 0, make_batch([b"v"]))
        await done.wait()
        sessions = agent.sessions

    assert 1 == sessions


def _lacks_memory(
    monkeypatch: pytest.MonkeyPatch, error: MemoryError, *, times: int
) -> list[MemoryError]:
    """So often a segment cannot be finished; returns what is left of it."""
    left = [error] * times
    finish = SegmentWriter.finish

    def finish_or_not(self: SegmentWriter, end: int) -> Any:
        if left:
            raise left.pop()
        return finish(self, end)

    monkeypatch.setattr(SegmentWriter, "finish", finish_or_not)
    return left
