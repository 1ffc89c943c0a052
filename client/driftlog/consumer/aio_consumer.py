"""Records out, for asyncio.

    async with AsyncConsumer("flights", group="board") as consumer:
        async for record in consumer:
            ...

The rules of `driftlog.Consumer` hold.  One thread does what may wait; the loop takes records that
are there without it:

    loop:    async for ◀── buffer          a cancelled wait loses nothing: what comes stays in the
    thread:        └──▶ fill ──▶ ┘         buffer, and the next call has it

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, overload

from driftlog.common.connection import bootstrap
from driftlog.common.records import K, Record, TopicPartition, V
from driftlog.common.settings import ConsumerSettings
from driftlog.consumer.lookups import Where
from driftlog.consumer.reading import Deserializer, Reader
from driftlog.errors import ClosedError, DriftlogError

T = TypeVar("T")

_SLICE_S: Final = 0.2
_YIELD_EVERY: Final = 256
"""Records that are there already; then others of the loop get their turn."""


class AsyncConsumer(Generic[K, V]):
    """As `driftlog.Consumer`, for one task of an event loop; it never blocks the loop.

    Args:
        As those of `driftlog.Consumer`.  Deserializers run in the loop.
    """

    @overload
    def __init__(
        self: "AsyncConsumer[bytes, bytes]",
        topics: str | Sequence[str],
        *,
        group: str | None = None,
        bootstrap_servers: str | Sequence[str] | None = None,
        from_beginning: bool = False,
        end_of_topic: bool = False,
        partitions: Sequence[int] | None = None,
        auto_commit: bool = True,
        key_deserializer: None = None,
        value_deserializer: None = None,
        settings: ConsumerSettings | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: "AsyncConsumer[K, bytes]",
        topics: str | Sequence[str],
        *,
        group: str | None = None,
        bootstrap_servers: str | Sequence[str] | None = None,
        from_beginning: bool = False,
        end_of_topic: bool = False,
        partitions: Sequence[int] | None = None,
        auto_commit: bool = True,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: None = None,
        settings: ConsumerSettings | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: "AsyncConsumer[bytes, V]",
        topics: str | Sequence[str],
        *,
        group: str | None = None,
        bootstrap_servers: str | Sequence[str] | None = None,
        from_beginning: bool = False,
        end_of_topic: bool = False,
        partitions: Sequence[int] | None = None,
        auto_commit: bool = True,
        key_deserializer: None = None,
        value_deserializer: Callable[[bytes], V],
        settings: ConsumerSettings | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        topics: str | Sequence[str],
        *,
        group: str | None = None,
        bootstrap_servers: str | Sequence[str] | None = None,
        from_beginning: bool = False,
        end_of_topic: bool = False,
        partitions: Sequence[int] | None = None,
        auto_commit: bool = True,
        key_deserializer: Callable[[bytes], K],
        value_deserializer: Callable[[bytes], V],
        settings: ConsumerSettings | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None: ...

    def __init__(
        self,
        topics: str | Sequence[str],
        *,
        group: str | None = None,
        bootstrap_servers: str | Sequence[str] | None = None,
        from_beginning: bool = False,
        end_of_topic: bool = False,
        partitions: Sequence[int] | None = None,
        auto_commit: bool = True,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        settings: ConsumerSettings | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._reader = Reader(
            [topics] if isinstance(topics, str) else topics,
            group=group,
            servers=bootstrap(bootstrap_servers),
            partitions=partitions,
            from_beginning=from_beginning,
            end_of_topic=end_of_topic,
            auto_commit=auto_commit,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            settings=settings or ConsumerSettings(),
            config=config,
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="driftlog-consumer")
        self._job: asyncio.Future[Any] | None = None
        self._since_yield = 0
        self._closed = False

    def __aiter__(self) -> AsyncIterator[Record[K, V]]:
        return self

    async def __anext__(self) -> Record[K, V]:
        """The next record; what was handed out before is processed.

        Raises:
            As `Consumer.__next__`, with StopAsyncIteration.
        """
        reader = self._reader
        await self._settle()
        reader.processed()
        self._since_yield += 1
        if self._since_yield >= _YIELD_EVERY:
            self._since_yield = 0
            await asyncio.sleep(0)
        if not reader.buffer or reader.due:
            self._check_open()
            timeout_s = 0.0 if reader.buffer else _SLICE_S
            await self._run(lambda: reader.fill(timeout_s))
        while not reader.buffer:
            if reader.finished:
                await self._run(reader.commit_processed)
                raise StopAsyncIteration
            await self._run(lambda: reader.fill(_SLICE_S))
        return reader.next_record()

    async def read(self, max_records: int = 500, timeout_s: float = 1.0) -> list[Record[K, V]]:
        """What is there, at least one record if one comes in time; empty: none came.

        What was handed out before is processed.

        Raises:
            As `Consumer.read`.
        """
        self._check_open()
        reader = self._reader
        await self._settle()
        reader.processed()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        await self._run(lambda: reader.fill(0))
        while not reader.buffer and not reader.finished:
            left_s = deadline - loop.time()
            if left_s <= 0:
                break
            wait_s = min(_SLICE_S, left_s)
            await self._run(lambda wait_s=wait_s: reader.fill(wait_s))  # type: ignore[misc]
        if reader.finished:
            await self._run(reader.commit_processed)
        return [reader.next_record() for _ in range(min(max_records, len(reader.buffer)))]

    async def commit(self, record: Record[Any, Any] | None = None) -> None:
        """Commit now, and wait: all that was handed out, or its partition up to *record*.

        Raises:
            As `Consumer.commit`.
        """
        self._check_open()
        await self._run(lambda: self._reader.commit(record))

    async def seek(self, topic: str, partition: int, where: Where) -> None:
        """Go on at an offset, at a time, at the "beginning" or at the "end" of a partition.

        Raises:
            As `Consumer.seek`.
        """
        self._check_open()
        await self._run(lambda: self._reader.seek(TopicPartition(topic, partition), where))

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read now."""
        return self._reader.assignment()

    async def close(self) -> None:
        """Commit what was processed, leave the group.  Harmless when repeated.

        The record that was handed out last does not count as processed: use ``async with``, or
        `commit`.  Cancelled, it goes on in its thread.

        Raises:
            CommitError: it could not be committed; the consumer is closed all the same.
        """
        await self._close(last_processed=False)

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._close(last_processed=error is None)
        except DriftlogError as uncommitted:
            if error is None:
                raise
            error.add_note(f"driftlog: {uncommitted}")

    # ── Inside ──

    async def _close(self, *, last_processed: bool) -> None:
        if self._closed:
            return
        self._closed = True
        # Submitted at once, behind what the thread does now: a cancellation finds it under way.
        job = asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: self._reader.close(last_processed=last_processed)
        )
        self._thread.shutdown(wait=False)
        await asyncio.shield(job)

    async def _run(self, work: Callable[[], T]) -> T:
        """In the thread, after what it does now.  Cancelled, the work goes on and is not lost."""
        await self._settle()
        job = asyncio.get_running_loop().run_in_executor(self._thread, work)
        self._job = job
        try:
            return await asyncio.shield(job)
        finally:
            if job.done():
                self._job = None

    async def _settle(self) -> None:
        """Wait for what a cancelled call left to the thread; its error is this call's."""
        job = self._job
        if job is not None:
            try:
                await asyncio.shield(job)
            finally:
                if job.done():
                    self._job = None

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this consumer is closed: make a new one")
