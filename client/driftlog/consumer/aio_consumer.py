"""Records out, for asyncio.

    async with AsyncConsumer("flights", group="board") as consumer:
        async for record in consumer:
            ...

The rules of `driftlog.Consumer` hold.  One thread makes the calls that may wait; the loop takes
fetched records without it:

    loop:    async for ◀── records         a cancelled wait loses nothing: its records are kept,
    thread:        └──▶ fill ──▶ ┘         and the next call returns them

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, Self, TypeVar

from driftlog.common.connection import bootstrap
from driftlog.common.records import K, Record, TopicPartition, V
from driftlog.common.serialization import Deserializer, Deserializers
from driftlog.common.settings import ConsumerSettings
from driftlog.consumer.lookups import Where
from driftlog.consumer.loop_callback import LoopCallback, current_callback
from driftlog.consumer.reader import Reader
from driftlog.consumer.rebalance import RebalanceCallbacks, RebalanceEvent
from driftlog.consumer.subscription import Subscription
from driftlog.errors import ClosedError, DriftlogError

T = TypeVar("T")

_SLICE_S: Final = 0.2
_YIELD_EVERY: Final = 256
"""Fetched records in a row; then other tasks of the loop run."""


class AsyncConsumer(Generic[K, V]):
    """As `driftlog.Consumer`, for one task of an event loop; it never blocks the loop.

    Its methods raise what those of `driftlog.Consumer` raise.

    This program writes a record and reads it::

        import asyncio

        from driftlog import AsyncConsumer, AsyncProducer


        async def main() -> None:
            async with AsyncProducer() as producer:
                await producer.produce("greetings", b"hello")
            async with AsyncConsumer(
                "greetings", from_beginning=True, end_of_topic=True
            ) as consumer:
                async for record in consumer:
                    print(record.partition, record.offset, record.value)


        asyncio.run(main())

    Args:
        As those of `driftlog.Consumer`.  Deserializers and the callbacks of *rebalance* run in the
        loop; these callbacks may be coroutine functions.
    """

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
        key_deserializer: Deserializer[K] | None = None,
        value_deserializer: Deserializer[V] | None = None,
        rebalance: RebalanceCallbacks | None = None,
        settings: ConsumerSettings | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._rebalance = rebalance
        self._reader = Reader(
            Subscription(
                topics=[topics] if isinstance(topics, str) else topics,
                group=group,
                partitions=partitions,
                from_beginning=from_beginning,
                end_of_topic=end_of_topic,
                auto_commit=auto_commit,
            ),
            servers=bootstrap(bootstrap_servers),
            deserializers=Deserializers(key_deserializer, value_deserializer),
            settings=settings or ConsumerSettings(),
            config=config,
            notify=None if rebalance is None else self._rebalanced,
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="driftlog-consumer")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._job: asyncio.Future[Any] | None = None
        self._since_yield = 0
        self._closed = False

    def __aiter__(self) -> AsyncIterator[Record[K, V]]:
        return self

    async def __anext__(self) -> Record[K, V]:
        """The next record; the records that were handed out before are processed.

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
        if not reader.records.ready or reader.due:
            self._check_open()
            timeout_s = 0.0 if reader.records.ready else _SLICE_S
            await self._run(lambda: reader.fill(timeout_s))
        while not reader.records.ready:
            if reader.records.finished:
                await self._run(reader.commit_processed)
                raise StopAsyncIteration
            await self._run(lambda: reader.fill(_SLICE_S))
        return reader.next_record()

    async def read(self, max_records: int = 500, timeout_s: float = 1.0) -> list[Record[K, V]]:
        """Up to *max_records* records: at least one if one comes within *timeout_s*, or none.

        The records that were handed out before are processed.  The list ends before a record whose
        deserializer fails: the next call raises its error.
        """
        self._check_open()
        reader = self._reader
        await self._settle()
        reader.processed()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        await self._run(lambda: reader.fill(0))
        while not reader.records.ready and not reader.records.finished:
            left_s = deadline - loop.time()
            if left_s <= 0:
                break
            wait_s = min(_SLICE_S, left_s)
            await self._run(lambda wait_s=wait_s: reader.fill(wait_s))  # type: ignore[misc]
        if reader.records.finished:
            await self._run(reader.commit_processed)
        return reader.next_records(max_records)

    async def commit(
        self,
        record: Record[Any, Any] | None = None,
        *,
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Commit now: all that was handed out, a partition up to *record*, or *offsets*."""
        self._check_open()
        await self._run(lambda: self._reader.commit(record, offsets))

    async def committed(self, topic: str, partition: int) -> int | None:
        """The group's committed offset, from its coordinator; None: there is none."""
        self._check_open()
        return await self._run(lambda: self._reader.committed(TopicPartition(topic, partition)))

    async def position(self, topic: str, partition: int) -> int:
        """The offset of the record that is handed out next, if nothing is deleted until then."""
        self._check_open()
        return await self._run(lambda: self._reader.position(TopicPartition(topic, partition)))

    async def seek(self, topic: str, partition: int, where: Where) -> None:
        """Continue at an offset, at a time, at the "beginning" or at the "end" of a partition."""
        self._check_open()
        await self._run(lambda: self._reader.seek(TopicPartition(topic, partition), where))

    async def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out no records of these partitions until `resume`, or until they are revoked."""
        self._check_open()
        await self._run(lambda: self._reader.pause(partitions))

    async def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out records of these partitions again, from where each stopped."""
        self._check_open()
        await self._run(lambda: self._reader.resume(partitions))

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read now; empty before the first read."""
        return self._reader.records.partitions()

    def paused(self) -> list[TopicPartition]:
        """The assigned partitions that are paused."""
        return self._reader.records.paused()

    async def close(self) -> None:
        """Commit processed records, leave the group.  Harmless when repeated.

        The record that was handed out last does not count as processed: use ``async with``, or
        `commit`.  A cancelled close continues in its thread.

        Raises:
            CommitError: it could not be committed; the consumer is closed all the same.
        """
        await self._close(last_processed=False)

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
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
        self._loop = asyncio.get_running_loop()
        # Submitted at once, after the thread's current work: a cancellation finds it submitted.
        job = self._loop.run_in_executor(
            self._thread, lambda: self._reader.close(last_processed=last_processed)
        )
        self._thread.shutdown(wait=False)
        await asyncio.shield(job)

    async def _run(self, work: Callable[[], T]) -> T:
        """Run *work* in the thread, after its current work.  Cancelled, *work* continues."""
        callback = current_callback(self)
        if callback is not None:
            return await callback.in_thread(work)
        await self._settle()
        self._loop = asyncio.get_running_loop()
        job = self._loop.run_in_executor(self._thread, work)
        self._job = job
        try:
            return await asyncio.shield(job)
        finally:
            if job.done():
                self._job = None

    async def _settle(self) -> None:
        """Wait for the work of a cancelled call in the thread; raises its error."""
        job = self._job
        if job is not None:
            try:
                await asyncio.shield(job)
            finally:
                if job.done():
                    self._job = None

    def _rebalanced(self, event: RebalanceEvent, partitions: list[TopicPartition]) -> None:
        """In the thread: the callback runs in the loop, and the thread waits for it."""
        callback = None if self._rebalance is None else self._rebalance.of(event)
        if callback is not None:
            assert self._loop is not None
            LoopCallback(self, self._loop).run(lambda: callback(self, partitions))

    def _check_open(self) -> None:
        # While it closes, on_revoke may still commit.
        if self._closed and current_callback(self) is None:
            raise ClosedError("this consumer is closed: create a new one")
