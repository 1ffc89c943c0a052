"""An agent without its guards, for `benchmarks/guards.py`: SIGUSR1 removes them, or restores them.

A guard exists only to hold hostile clients: shares of the loop, budgets of memory, numbers of
requests.  Each is replaced by what an agent would do that trusts its clients.  The calls of the
replaced methods remain, and count as work without guards.  Switch while no request is unanswered.

Shell.
"""

import signal
from collections.abc import Iterator, Sequence
from typing import Any

from driftlog_agents.handlers.fetch.handler import _Fetch
from driftlog_agents.handlers.produce.waiting_batches import WaitingBatches
from driftlog_agents.network.answer_writer import AnswerWriter
from driftlog_agents.network.answers import Answers
from driftlog_agents.network.connection import Connection
from driftlog_agents.network.frames import FrameReader
from driftlog_agents.network.limits.loop_share import LoopShare
from driftlog_agents.network.limits.memory_budget import MemoryBudget
from driftlog_agents.network.queued_requests import QueuedRequest, RequestQueue
from driftlog_agents.network.slots import Slot

_UNCOUNTED_BYTES = 4 * 1024


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _yes(*_: Any) -> bool:
    return True


def _buffer_updated(self: Any, nbytes: int) -> None:
    self.source.heard_ms = self._server.now_ms()
    self._take(self.frames.received(nbytes), nbytes)


def _take(self: Any, frames: Iterator[memoryview], _: int) -> None:
    try:
        for frame in frames:
            self._server.dispatch(self, frame)
            assert self._large is None, "a load of small numbers of batches"
        self.frames.taken()
    except Exception:  # noqa: BLE001
        self.broken()


def _ask(self: Any, frame: memoryview, weight: int, begin: Any, on_answer: Any = None) -> None:
    slot = QueuedRequest(self, self._server.requests, frame, weight, begin, on_answer)
    self.writer.queued += 1
    self.queue(slot)
    if self.writer.may_begin(slot):
        slot._run()  # without the memory of the request
    else:
        slot.begin = slot._run


def _queue(self: Any, slot: Slot) -> None:
    self.slots.append(slot)
    self._source.requests += 1


def _release(self: Any) -> None:
    self._frame = self.begin = None


def _made(self: Any, size_bytes: int, **_: Any) -> None:
    if size_bytes > _UNCOUNTED_BYTES:
        self.unwritten_bytes += size_bytes


def _written(self: Any, size_bytes: int) -> None:
    if size_bytes > _UNCOUNTED_BYTES:
        self.unwritten_bytes -= size_bytes


def _buffer(self: Any, **_: Any) -> Any:
    return self._shared if self._tail is None else self._tail


_REPLACED: Sequence[tuple[type, str, Any]] = (
    (LoopShare, "used_up", property(lambda _: False)),
    (Connection, "buffer_updated", _buffer_updated),
    (Connection, "_take", _take),
    (Connection, "ask", _ask),
    (Connection, "has_to_wait", property(lambda _: False)),
    (Connection, "written", _nothing),
    (Connection, "_pause_or_resume", _nothing),
    (AnswerWriter, "queue", _queue),
    (RequestQueue, "answered", _nothing),
    (QueuedRequest, "keep", _nothing),
    (QueuedRequest, "release", _release),
    (Answers, "room", _yes),
    (Answers, "made", _made),
    (Answers, "written", _written),
    (Answers, "settle", _nothing),
    (Answers, "close", _nothing),
    (FrameReader, "buffer", _buffer),
    (FrameReader, "taken", _nothing),
    (MemoryBudget, "take", _yes),
    (MemoryBudget, "note", _nothing),
    (MemoryBudget, "arrived", _nothing),
    (MemoryBudget, "release", _nothing),
    (WaitingBatches, "full", lambda *_: False),
    (_Fetch, "_keep_little", _nothing),
)


def install() -> None:
    """Let SIGUSR1 switch the guards of this process."""
    other = {(kind, name): new for kind, name, new in _REPLACED}

    def switch(*_: Any) -> None:
        for (kind, name), new in other.items():
            other[kind, name] = kind.__dict__[name]
            setattr(kind, name, new)

    signal.signal(signal.SIGUSR1, switch)
