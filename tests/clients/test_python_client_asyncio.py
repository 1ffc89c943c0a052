"""`driftlog.AsyncProducer` and `AsyncConsumer` hold up no loop, and lose nothing to a cancellation.

Shell.
"""

import asyncio
import os
import threading
import time
import uuid
from datetime import UTC, datetime

import pytest

from driftlog import AsyncConsumer, AsyncProducer, Consumer
from driftlog.common.records import Delivered
from driftlog.common.settings import ConsumerSettings, ProducerSettings
from driftlog.errors import (
    ClosedError,
    DeliveryError,
    DeserializationError,
    FlushTimeoutError,
    QueueFullError,
    UnknownTopicError,
    UnreachableError,
)
from driftlog.serializers import from_json, to_json
from tests.clients.python_client import QUICK, committed, new_topic, numbered, values_of, write
from tests.support.driftlog_process import DriftlogProcess

pytestmark = [pytest.mark.xdist_group("python_client"), pytest.mark.timeout(240)]


class Pulse:
    """How much longer than a thread beside it the loop was held at most while this was open.

    A busy machine holds both; a call that blocks holds the loop alone.
    """

    def __init__(self) -> None:
        self._loop_s = self._thread_s = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._tick)

    @property
    def held_s(self) -> float:
        return self._loop_s - self._thread_s

    async def _beat(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            now = time.monotonic()
            self._loop_s = max(self._loop_s, now - last)
            last = now

    def _tick(self) -> None:
        last = time.monotonic()
        while not self._closed.is_set():
            time.sleep(0.01)
            now = time.monotonic()
            self._thread_s = max(self._thread_s, now - last)
            last = now

    async def __aenter__(self) -> "Pulse":
        self._thread.start()
        self._task = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        self._closed.set()
        self._thread.join()


def read_all(servers: str, topic: str) -> list[bytes | None]:
    with Consumer(topic, bootstrap_servers=servers, from_beginning=True, end_of_topic=True) as c:
        return values_of(list(c))


async def test_records_go_in_and_come_out(servers: str) -> None:
    """
    With keys, headers, times and serializers, as with the other classes.
    """
    topic = new_topic(servers, retention_ms="-1")  # its records are old
    when = datetime(2024, 2, 29, tzinfo=UTC)
    async with AsyncProducer(bootstrap_servers=servers, value_serializer=to_json) as producer:
        await producer.produce(topic, {"n": 1}, "k", timestamp=when, headers={"a": None})
        delivered = await producer.send_and_wait(topic, None, timestamp=7)
        future = await producer.send(topic, 3)
        assert 2 == (await future).offset

    assert Delivered(topic, 0, 1, 7) == delivered
    async with AsyncConsumer(
        topic,
        bootstrap_servers=servers,
        value_deserializer=from_json,
        from_beginning=True,
        end_of_topic=True,
    ) as consumer:
        records = [record async for record in consumer]
    assert [{"n": 1}, None, 3] == [record.value for record in records]
    assert (b"k", (("a", None),), when) == (
        records[0].key,
        records[0].headers,
        records[0].timestamp,
    )


async def test_many_records_do_not_hold_the_loop(servers: str) -> None:
    """
    20,000 records in and out, more than the queue takes: others get their turn all the while.
    """
    topic = new_topic(servers)
    settings = ProducerSettings(queue_max_records=2_000)
    async with Pulse() as pulse:
        async with AsyncProducer(bootstrap_servers=servers, settings=settings) as producer:
            for value in numbered(20_000):
                await producer.produce(topic, value)
        async with AsyncConsumer(
            topic, bootstrap_servers=servers, from_beginning=True, end_of_topic=True
        ) as consumer:
            values = [record.value async for record in consumer]

    assert numbered(20_000) == values
    assert pulse.held_s < 0.5


async def test_a_silent_cluster_does_not_hold_the_loop() -> None:
    """
    A frozen agent: neither waiting for room, nor a flush, nor a cancelled exit blocks.
    """
    with DriftlogProcess() as agent:
        topic = new_topic(agent.bootstrap)
        settings = ProducerSettings(queue_max_records=100, max_block_ms=700)
        async with AsyncProducer(bootstrap_servers=agent.bootstrap, settings=settings) as producer:
            await producer.send_and_wait(topic, b"first")
            agent.pause()
            async with Pulse() as pulse:
                with pytest.raises(QueueFullError, match="was not taken"):  # noqa: PT012
                    for value in numbered(101):
                        await producer.produce(topic, value)
                with pytest.raises(FlushTimeoutError, match="100 records"):
                    await producer.flush(0.3)
                waiting = asyncio.create_task(producer.produce(topic, b"cancelled"))
                await asyncio.sleep(0.1)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            agent.resume()

        assert [b"first", *numbered(100)] == read_all(agent.bootstrap, topic)
        assert pulse.held_s < 0.5


async def test_a_failed_delivery_is_raised(servers: str) -> None:
    """
    By the next call, by the flush, by the exit; by the future alone, if somebody looked at it.
    """
    refused = new_topic(servers, max_message_bytes="1000")
    topic = new_topic(servers)
    async with AsyncProducer(bootstrap_servers=servers) as producer:
        with pytest.raises(DeliveryError, match=r"max\.message\.bytes"):
            await producer.send_and_wait(refused, os.urandom(5_000))
        await producer.produce(refused, os.urandom(5_000))
        with pytest.raises(DeliveryError, match="1 record was not acknowledged"):
            await producer.flush()
        await producer.produce(refused, os.urandom(5_000))
        with pytest.raises(DeliveryError, match="produce it again"):  # noqa: PT012
            for _ in range(600):
                await producer.produce(topic, b"x")
                await asyncio.sleep(0.05)

    with pytest.raises(DeliveryError):
        async with AsyncProducer(bootstrap_servers=servers) as producer:
            await producer.produce(refused, os.urandom(5_000))
    with pytest.raises(DeliveryError):
        async with AsyncProducer(bootstrap_servers=servers) as producer:
            await producer.send(refused, os.urandom(5_000))
    with pytest.raises(ZeroDivisionError) as raised:  # noqa: PT012
        async with AsyncProducer(bootstrap_servers=servers) as producer:
            await producer.produce(refused, os.urandom(5_000))
            raise ZeroDivisionError
    assert "1 record was not acknowledged" in raised.value.__notes__[0]
    with pytest.raises(ClosedError):
        await producer.produce(topic, b"x")


async def test_what_a_cancelled_sender_no_longer_hears_is_raised(servers: str) -> None:
    """
    The record was taken; its failure is not lost with the task that waited for it.
    """
    refused = new_topic(servers, max_message_bytes="1000")
    producer = AsyncProducer(bootstrap_servers=servers, settings=ProducerSettings(linger_ms=500))
    await producer.flush()
    await producer.send_and_wait(new_topic(servers), b"x")
    task = asyncio.create_task(producer.send_and_wait(refused, os.urandom(5_000)))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(DeliveryError):
        await producer.close()


async def test_a_cancelled_wait_loses_no_record(servers: str) -> None:
    """
    Waits that are given up again and again, while records come: each is read once, in order.
    """
    topic = new_topic(servers)
    count = 300
    read: list[bytes | None] = []
    async with (
        AsyncProducer(bootstrap_servers=servers, settings=ProducerSettings(linger_ms=0)) as out,
        AsyncConsumer(
            topic, bootstrap_servers=servers, from_beginning=True, settings=QUICK
        ) as consumer,
    ):

        async def write_slowly() -> None:
            for value in numbered(count):
                await out.produce(topic, value)
                await asyncio.sleep(0.003)

        task = asyncio.create_task(write_slowly())
        deadline = time.monotonic() + 60
        cancelled = 0
        while len(read) < count and time.monotonic() < deadline:
            try:
                record = await asyncio.wait_for(anext(consumer), 0.004)
            except TimeoutError:
                cancelled += 1
            else:
                read.append(record.value)
        await task

    assert numbered(count) == read
    assert cancelled > 0


async def test_an_error_of_a_cancelled_wait_is_the_next_calls() -> None:
    """
    The wait was cancelled while the thread was at work; the next call raises what went wrong there,
    and does not try again first.
    """
    consumer = AsyncConsumer("t", bootstrap_servers="127.0.0.1:1")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(consumer), 0.1)
    await asyncio.sleep(2)  # a refused connection is tried for a second
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="refuses connections"):
        await anext(consumer)
    assert time.monotonic() - began < 0.5
    await consumer.close()


async def test_an_unreachable_cluster_is_named_and_does_not_hold_the_loop() -> None:
    """
    By both, as by the classes without a loop.
    """
    settings = ProducerSettings(connect_timeout_ms=3_000)
    producer = AsyncProducer(bootstrap_servers="127.0.0.1:1", settings=settings)
    consumer = AsyncConsumer(
        "t", bootstrap_servers="127.0.0.1:1", settings=ConsumerSettings(request_timeout_ms=3_000)
    )
    async with Pulse() as pulse:
        with pytest.raises(UnreachableError):
            await producer.produce("t", b"x")
        with pytest.raises(UnreachableError):
            await anext(consumer)
        await producer.close()
        await consumer.close()
    assert pulse.held_s < 1.5


async def test_reading_in_batches_seeking_and_errors(servers: str) -> None:
    """
    As with `Consumer`.
    """
    topic = new_topic(servers)
    write(servers, topic, numbered(10))
    async with AsyncConsumer(topic, bootstrap_servers=servers, settings=QUICK) as consumer:
        assert [] == await consumer.read(timeout_s=0.2)
        await consumer.seek(topic, 0, 4)
        assert numbered(2, 4) == values_of(await consumer.read(2, timeout_s=30))
        assert [(topic, 0)] == consumer.assignment()
        with pytest.raises(ValueError, match="give the consumer a group"):
            await consumer.commit()
    with pytest.raises(UnknownTopicError):
        await anext(AsyncConsumer("nowhere", bootstrap_servers=servers))
    with pytest.raises(ClosedError):
        await consumer.read()


async def test_a_list_ends_before_a_record_that_cannot_be_deserialized(servers: str) -> None:
    """
    The next read raises; a block that ends with the error does not commit the record.
    """
    topic, group = new_topic(servers), uuid.uuid4().hex
    write(servers, topic, [b"1", b"2", b"{", b"4"])

    def new_member() -> AsyncConsumer[bytes, object]:
        return AsyncConsumer(
            topic,
            group=group,
            bootstrap_servers=servers,
            value_deserializer=from_json,
            from_beginning=True,
            settings=QUICK,
        )

    async def read_on() -> None:
        async with new_member() as consumer:
            while records := await consumer.read(timeout_s=30):
                values.extend(record.value for record in records)

    values: list[object] = []
    with pytest.raises(DeserializationError, match="at offset 2"):
        await read_on()
    assert ([1, 2], 2) == (values, committed(servers, group, topic))

    async with new_member() as consumer:
        with pytest.raises(DeserializationError, match="at offset 2"):
            await consumer.read(timeout_s=30)
        assert [4] == [record.value for record in await consumer.read(timeout_s=30)]
    assert 4 == committed(servers, group, topic)


async def test_a_group_commits_what_was_processed(servers: str) -> None:
    """
    A block that ends well commits all that was handed out; one that fails, or is cancelled,
    all but the record it was at.
    """
    topic, group = new_topic(servers), uuid.uuid4().hex
    write(servers, topic, numbered(10))

    async def read_to(last: bytes, fail: bool) -> None:
        async with AsyncConsumer(
            topic, group=group, bootstrap_servers=servers, from_beginning=True, settings=QUICK
        ) as consumer:
            async for record in consumer:
                if record.value == last:
                    if fail:
                        raise ZeroDivisionError
                    return

    await read_to(b"2", fail=False)
    assert 3 == committed(servers, group, topic)
    with pytest.raises(ZeroDivisionError):
        await read_to(b"5", fail=True)
    assert 5 == committed(servers, group, topic)

    async def read_and_sleep() -> None:
        async with AsyncConsumer(
            topic, group=group, bootstrap_servers=servers, from_beginning=True, settings=QUICK
        ) as consumer:
            async for record in consumer:
                if record.value == b"8":
                    reached.set()
                    await asyncio.sleep(60)

    reached = asyncio.Event()
    task = asyncio.create_task(read_and_sleep())
    await asyncio.wait_for(reached.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 8 == committed(servers, group, topic)
