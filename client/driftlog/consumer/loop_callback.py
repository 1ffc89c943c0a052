"""A callback that librdkafka calls in the consumer's thread, and that runs in the event loop.

    thread:  poll ──▶ rebalance ──▶ run ─┐      ┌──▶ in_thread's work ──▶ …    ──▶ poll continues
    loop:                                └──▶ callback: await consumer.commit() ──▶ done

The thread waits for the callback, so that the group waits too.  Calls of the consumer that the
callback awaits need that thread: it runs their work meanwhile.
Shell.
"""

import asyncio
import inspect
import queue
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Final, Optional, TypeVar

from driftlog.errors import DriftlogError

T = TypeVar("T")

_LOOK_S: Final = 0.2
"""How often the thread checks that the loop is still open."""
_CURRENT: Final[ContextVar[Optional["LoopCallback"]]] = ContextVar("_CURRENT", default=None)


class LoopCallback:
    """One call of one callback of *consumer*."""

    def __init__(self, consumer: object, loop: asyncio.AbstractEventLoop) -> None:
        self.consumer = consumer
        self.running = True
        self._loop = loop
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run(self, callback: Callable[[], Any]) -> None:
        """In the thread: call *callback* in the loop, await what it returns, and wait for that.

        Raises:
            DriftlogError: the loop was closed meanwhile.
            BaseException: the callback raised it.
        """
        done: Future[None] = asyncio.run_coroutine_threadsafe(self._call(callback), self._loop)
        done.add_done_callback(lambda _: self._jobs.put(lambda: None))
        while not done.done():
            try:
                self._jobs.get(timeout=_LOOK_S)()
            except queue.Empty:
                if self._loop.is_closed():
                    raise DriftlogError(
                        "the event loop was closed while a rebalance callback ran"
                    ) from None
        while not self._jobs.empty():
            self._jobs.get()()
        done.result()

    async def in_thread(self, work: Callable[[], T]) -> T:
        """In the loop, from the callback: *work* in the thread that waits for the callback."""
        result: Future[T] = Future()

        def job() -> None:
            try:
                result.set_result(work())
            except BaseException as error:  # noqa: BLE001  # the awaiting callback raises it
                result.set_exception(error)

        self._jobs.put(job)
        return await asyncio.wrap_future(result)

    async def _call(self, callback: Callable[[], Any]) -> None:
        _CURRENT.set(self)
        try:
            returned = callback()
            if inspect.isawaitable(returned):
                await returned
        finally:
            self.running = False


def current_callback(consumer: object) -> LoopCallback | None:
    """The running callback of *consumer* that the current task belongs to."""
    callback = _CURRENT.get()
    if callback is None or callback.consumer is not consumer or not callback.running:
        return None
    return callback
