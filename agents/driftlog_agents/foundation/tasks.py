"""Tasks of a session, started while it may be ending.

A task that fails ends its group: the others are cancelled, and until they have ended the group
takes no more tasks.  asyncio reports that as a bug (RuntimeError); here the session is over.

Shell.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from driftlog_metadata.stores.errors import FencedError

T = TypeVar("T")


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error in *group*, at any depth: the others follow from it."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def spawn(tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """As `TaskGroup.create_task`.

    Raises:
        FencedError: the group is ending.
    """
    try:
        return tasks.create_task(work)
    except RuntimeError:
        work.close()
        raise FencedError("the session is over") from None


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Runs *work*; False: *event* came first, and *work* was cancelled."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work)
        first = tasks.create_task(event.wait())
        await asyncio.wait([task, first], return_when=asyncio.FIRST_COMPLETED)
        done = task.done()
        task.cancel()
        first.cancel()
    return done
