"""Reads where partitions end in all flush objects of the bucket, named by a flush record or not.

    LIST flush/ ──▶ objects not read before ──▶ the last 16 KiB, more where the footer is larger
                                                   └─▶ by partition: largest end, newest epoch

For a metadata store that is older than the bucket (`accepted_loss`).  Each object is read once in a
session, for all partitions (`shown_ends`).  After a failure or a cancellation the ends read so far
are kept.

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final

from driftlog_agents.foundation.tasks import first_of
from driftlog_agents.log.recovery.shown_ends import ShownEnds
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.flush_object import Footer, find_footer, footer_reads
from driftlog_tiering.stores.object_store import NotFoundError, ObjectInfo, ObjectStore

READS_AT_ONCE: Final = 32
_DEADLINE_S: Final = 10.0


class FlushObjectEnds:
    """See the module; for one session."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._shown = ShownEnds()
        self._reading = asyncio.Lock()

    async def of(self, tp: TopicPartition) -> tuple[int, int]:
        """The largest end of *tp* in any flush object, and its newest leader epoch there; 0 and -1:
        it is in none.

        Raises:
            UnavailableError: the bucket does not answer; the ends read so far are kept.
        """
        async with self._reading:
            limit = asyncio.Semaphore(READS_AT_ONCE)

            async def read(info: ObjectInfo) -> None:
                async with limit:
                    await self._note(info)

            pages = aiter(self._objects.list(layout.FLUSH_PREFIX))
            while (page := await in_time(lambda: anext(pages, None))) is not None:
                await do_all([read(info) for info in self._shown.unread(page.objects)])
        return self._shown.of(tp)

    async def _note(self, info: ObjectInfo) -> None:
        try:
            footer = await self._footer(info)
        except NotFoundError:
            return  # it is deleted by now, or a stale node of the store answers
        self._shown.add(info.key, footer)

    async def _footer(self, info: ObjectInfo) -> Footer | None:
        """The object's footer; None: it is no flush object (a probe)."""
        size = info.size_bytes
        for start in footer_reads(size):
            data = await in_time(
                lambda start=start: self._objects.get(info.key, start, size)  # type: ignore[misc]
            )
            if (footer := find_footer(data)) is not None:
                return footer
        return None


async def in_time(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Returns the answer of *ask*.

    Raises:
        UnavailableError: the store does not answer within 10 s.
    """
    try:
        async with asyncio.timeout(_DEADLINE_S):
            return await ask()
    except (OutcomeUnknownError, TimeoutError) as error:
        raise UnavailableError(str(error) or "the bucket does not answer in time") from error


async def do_all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs all *works* concurrently; raises the error of the first one that fails."""
    task = asyncio.current_task()
    assert task is not None
    cancelled = task.cancelling()
    try:
        async with asyncio.TaskGroup() as tasks:
            for work in works:
                tasks.create_task(work)
    except BaseExceptionGroup as group:
        # Before Python 3.13 the group's own cancellation of this task stays counted, and
        # `foundation/retry` would repeat nothing in this task any more.
        while task.cancelling() > cancelled:
            task.uncancel()
        raise first_of(group) from group
