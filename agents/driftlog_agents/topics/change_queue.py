"""Runs changes of topics in tasks, one at a time for a name; they continue if a client disconnects.

    request ──▶ a task, few at a time ──▶ the lock of the name ──▶ done ──▶ answer

No error of a change ends the other changes: whatever it is, the change is refused.

Shell.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar

import structlog

from driftlog_agents.foundation.keyed_lock import KeyedLock
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.topics.catalog import unlike
from driftlog_metadata.stores.errors import CorruptError, FencedError

AT_ONCE: Final = 32
"""Topics that are changed or repaired at once: it limits an agent's requests to the bucket."""

_MAX_PENDING: Final = 20_000
"""Most pending changes: two of the largest requests.  More are refused."""

T = TypeVar("T")


class TopicChangeQueue:
    """See the module."""

    def __init__(self) -> None:
        self._log = structlog.get_logger()
        self.tasks: asyncio.TaskGroup | None = None
        """The group of the tasks; None: the agent is starting or leaving."""
        self.pending = 0
        """Requested changes that are not done."""
        self.making: set[str] = set()
        """Names of topics that are being created."""
        self._limit = asyncio.Semaphore(AT_ONCE)
        self._locks = KeyedLock[str]()

    async def owned(self, work: Coroutine[Any, Any, T], making: str = "") -> T:
        """Run *work* in a task of its own, which continues when the awaiter is cancelled.

        Raises:
            RefusedError: from *work*; NOT_CONTROLLER: the agent starts or leaves, its session
                ended, or too many changes are pending; UNKNOWN_SERVER_ERROR: damaged metadata, or a
                bug.
        """
        tasks = self.tasks
        if tasks is None or self.pending >= _MAX_PENDING:
            work.close()
            self.making.discard(making)
            why = "the agent is starting or leaving" if tasks is None else "too many changes wait"
            raise RefusedError(ErrorCode.NOT_CONTROLLER, why)
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def do() -> None:
            try:
                async with self._limit:
                    result = await work
            except RefusedError as error:
                if not done.done():
                    done.set_exception(error)
            except CorruptError as error:
                self._log.error(
                    "stored_data_damaged",
                    error=str(error),
                    advice=(
                        "restore the key that the error names; until then this topic cannot "
                        "be changed"
                    ),
                )
                if not done.done():
                    done.set_exception(RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)))
            except FencedError as error:
                self._log.info("topic_change_interrupted", reason=str(error))
                if not done.done():
                    refused = RefusedError(ErrorCode.NOT_CONTROLLER, "the session ended: try again")
                    done.set_exception(refused)
            except Exception as bug:  # noqa: BLE001  # it would end the agent
                if not done.done():
                    done.set_exception(RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(bug)))
                self._log.exception("topic_change_bug", advice="report it; the change is refused")
            else:
                if not done.done():
                    done.set_result(result)
            finally:
                self.pending -= 1
                self.making.discard(making)
                done.cancel()

        self.pending += 1
        tasks.create_task(do())
        return await done

    def only(self, name: str) -> AbstractAsyncContextManager[None]:
        """The lock of a name, which is shared with the names that collide with it."""
        return self._locks.of(unlike(name))
