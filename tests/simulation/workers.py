"""Worker threads of a simulated process: real ones, that stop between any two lines of ours.

    the loop   ──step──┐                 ┌─ sleeps ─ others run ──step──┐
    the thread         └ lines … stops ──┘                              └ lines … returns

One of the two runs at a time, and the thread stops where the seed says: what it reads of a process
that lives on beside it changes under it, as it may in a real one.
"""

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Final

import driftlog_agents
import driftlog_metadata
import driftlog_tiering

_OURS: Final = (
    *(f"{Path(p.__path__[0])}/" for p in (driftlog_agents, driftlog_metadata, driftlog_tiering)),
    f"{Path(__file__).parent}/",  # where bugs are planted
)
_PLANTED: Final = "planted.py"
"""Where a bug is planted it stops soon: chance alone would stop it elsewhere, nearly always."""
_STOPS: Final = 30
"""Of one call: then it runs to its end."""


class Workers:
    """See the module.

    Args:
        rng: where they stop, and for how long.
        share: of the calls that run in a thread; the others run at once, as if it were not stopped.
        longest_s: all stops of one call; a core may be long in coming.
    """

    def __init__(self, rng: Random, share: float, longest_s: float) -> None:
        self._rng = rng
        self._share = share
        self._longest_s = longest_s

    async def offload(self, fn: Callable[..., Any], *args: Any) -> Any:
        """What threads do takes a moment, and other things happen meanwhile."""
        await asyncio.sleep(0.002)
        if self._rng.random() >= self._share:
            return fn(*args)
        worker = _Worker(lambda: fn(*args), self._rng)
        left_s = self._longest_s * self._rng.random() ** 4
        try:
            while not worker.step():
                stopped_s = self._rng.uniform(0, left_s / 2)
                left_s -= stopped_s
                await asyncio.sleep(stopped_s)
        finally:
            worker.finish()
        return worker.result()


class _Worker:
    """One call in its thread."""

    def __init__(self, job: Callable[[], Any], rng: Random) -> None:
        self._job = job
        self._rng = rng
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._stops = 0
        self._between = 10 ** rng.uniform(0, 3)
        """Lines, on average."""
        self._lines = self._next()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self) -> bool:
        """Let it run until it stops; whether it has returned."""
        if not self._done:
            self._go.release()
            self._stopped.acquire()
        return self._done

    def finish(self) -> None:
        """Let it run to its end: nobody ends a thread."""
        self._stops = _STOPS
        self.step()
        self._thread.join()

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result

    def _next(self) -> int:
        return 1 + int(self._rng.expovariate(1 / self._between))

    def _run(self) -> None:
        self._go.acquire()
        sys.settrace(self._trace)
        try:
            self._result = self._job()
        except BaseException as error:  # noqa: BLE001  # it is raised where the result is asked for
            self._error = error
        finally:
            sys.settrace(None)
            self._done = True
            self._stopped.release()

    def _trace(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if self._stops >= _STOPS:
            return None
        if event == "call":
            if frame.f_code.co_filename.endswith(_PLANTED):
                self._lines = min(self._lines, self._rng.randint(1, 3))
            return self._trace if frame.f_code.co_filename.startswith(_OURS) else None
        if event == "line":
            self._lines -= 1
            if not self._lines:
                self._stops += 1
                self._lines = self._next()
                self._stopped.release()
                self._go.acquire()
        return self._trace
