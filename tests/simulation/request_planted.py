"""Bugs of the handlers of consumers, to be planted: `consumer_requests` notices each."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest

from driftlog_agents.handlers.api import list_offsets
from driftlog_agents.handlers.fetch.handler import _Fetch
from driftlog_agents.handlers.fetch.reads import FetchReads
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.fetch import PartitionData

Plant = Callable[[pytest.MonkeyPatch], None]

_check = FetchReads._check
_Checked = tuple[PartitionData, PartitionLog | None]


def fetch_answers_after_the_lease(patch: pytest.MonkeyPatch) -> None:
    """Fetch does not ask the session's own clock."""

    def check(self: FetchReads, engine: Engine | None, *asked: Any) -> _Checked:
        if engine is None:
            return _check(self, engine, *asked)
        lives: Any = SimpleNamespace(ready=engine.ready, session=SimpleNamespace(alive=True))
        return _check(self, lives, *asked)

    patch.setattr(FetchReads, "_check", check)


def fetch_answers_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    """Fetch tells the end of the log for the high watermark."""

    def check(self: FetchReads, *asked: Any) -> _Checked:
        data, log = _check(self, *asked)
        if log is not None:
            data.high_watermark = log.log_end
        return data, log

    patch.setattr(FetchReads, "_check", check)


def fetch_ignores_log_start(patch: pytest.MonkeyPatch) -> None:
    """Fetch tells that every log starts at 0."""

    def check(self: FetchReads, *asked: Any) -> _Checked:
        data, log = _check(self, *asked)
        if data.error_code == ErrorCode.NONE:
            data.log_start_offset = 0
        return data, log

    patch.setattr(FetchReads, "_check", check)


def fetch_leaves_out_the_first_batch(patch: pytest.MonkeyPatch) -> None:
    """Fetch answers with nothing where the first batch is larger than the limit (before KIP-74)."""
    original = FetchReads._put

    def put(self: FetchReads, data: Any, buffers: Any, limit: int, *, first: bool) -> int:
        return original(self, data, buffers, limit, first=False)

    patch.setattr(FetchReads, "_put", put)


def fetches_not_told_of_the_end(patch: pytest.MonkeyPatch) -> None:
    """A Fetch request that waits is not answered when the session ends."""
    patch.setattr(_Fetch, "lost", lambda *_: None)


def list_offsets_ignores_log_start(patch: pytest.MonkeyPatch) -> None:
    """The earliest offset is 0, whatever was deleted."""
    original = list_offsets._lookup

    async def lookup(
        broker: Any, engine: Engine, log: PartitionLog, timestamp: int
    ) -> tuple[int, int, int]:
        found = await original(broker, engine, log, timestamp)
        return (0, *found[1:]) if timestamp == list_offsets.EARLIEST else found

    patch.setattr(list_offsets, "_lookup", lookup)


REQUEST_BUGS: Final[tuple[Plant, ...]] = (
    fetch_answers_after_the_lease,
    fetch_answers_what_is_not_committed,
    fetch_ignores_log_start,
    fetch_leaves_out_the_first_batch,
    fetches_not_told_of_the_end,
    list_offsets_ignores_log_start,
)
