"""`driftlog.Producer` writes, and fails, the same to an agent and to Apache Kafka.

Shell.
"""

import os
import time
from datetime import UTC, datetime

import confluent_kafka
import pytest

from driftlog import Consumer, Producer
from driftlog.common.records import Delivered
from driftlog.common.settings import ConsumerSettings, ProducerSettings
from driftlog.errors import (
    DeliveryError,
    FlushTimeoutError,
    QueueFullError,
    RequestError,
    SerializationError,
    UnknownTopicError,
    UnreachableError,
)
from driftlog.serializers import to_json
from tests.clients.python_client import (
    new_topic,
    numbered,
    values_of,
)
from tests.support.driftlog_process import DriftlogProcess

pytestmark = [pytest.mark.xdist_group("python_client"), pytest.mark.timeout(240)]


def test_a_million_records_need_five_lines(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The program of docs/clients.md, as it stands there, with fewer records: all arrive, in order.
    """
    topic = new_topic(servers)
    monkeypatch.setenv("DRIFTLOG_BOOTSTRAP_SERVERS", servers)
    count, value = 20_000, os.urandom(1024)

    with Producer() as producer:
        for number in range(count):
            producer.produce(topic, value, key=str(number))

    with Consumer(topic, from_beginning=True, end_of_topic=True) as consumer:
        keys = [record.key for record in consumer]
    assert [b"%d" % n for n in range(count)] == keys


def test_null_and_empty_headers_and_times_come_back_as_they_were(servers: str) -> None:
    """
    Null and empty stay different; headers keep order, repetitions and nulls; times are exact.
    """
    topic = new_topic(servers, retention_ms="-1")  # its records are old
    when = datetime(2024, 2, 29, 12, 0, 0, 123_000, tzinfo=UTC)
    headers = (("a", b"1"), ("b", None), ("a", b""))
    with Producer(bootstrap_servers=servers) as producer:
        producer.produce(topic, None, None)
        producer.produce(topic, b"", b"", timestamp=1)
        producer.produce(topic, "välue", "kéy", timestamp=when, headers=headers)

    with Consumer(
        topic, bootstrap_servers=servers, from_beginning=True, end_of_topic=True
    ) as consumer:
        first, second, third = consumer

    assert (None, None, ()) == (first.key, first.value, first.headers)
    assert (b"", b"", 1) == (second.key, second.value, second.timestamp_ms)
    assert ("kéy".encode(), "välue".encode(), headers) == (third.key, third.value, third.headers)
    assert when == third.timestamp
    assert b"" == third.header("a")
    assert (topic, 0, 2) == (third.topic, third.partition, third.offset)


def test_a_future_says_where_the_record_is(servers: str) -> None:
    """
    `send` needs no flush: somebody waits for the answer beside the caller.
    """
    topic = new_topic(servers, 3)
    with Producer(bootstrap_servers=servers) as producer:
        delivered = producer.send(topic, "x", partition=2, timestamp=7).result(30)

    assert Delivered(topic, 2, 0, 7) == delivered


def test_a_callback_is_told_of_its_record(servers: str) -> None:
    """
    Once, with the place, in the thread of the producer.
    """
    topic = new_topic(servers)
    told: list[tuple[DeliveryError | None, Delivered | None]] = []
    with Producer(bootstrap_servers=servers) as producer:
        producer.produce(topic, "x", timestamp=7, on_delivery=lambda e, d: told.append((e, d)))

    assert [(None, Delivered(topic, 0, 0, 7))] == told


def refused_topic(servers: str) -> str:
    """A topic that takes no batch above 1,000 bytes: the broker refuses, and not the client."""
    return new_topic(servers, max_message_bytes="1000")


def test_a_failed_delivery_is_raised_at_the_exit(servers: str) -> None:
    """
    With the topic, the partition, the key, the reason, and what to do.
    """
    topic = refused_topic(servers)
    with (
        pytest.raises(DeliveryError) as raised,
        Producer(bootstrap_servers=servers) as producer,
    ):
        producer.produce(topic, os.urandom(5_000), key="k1")

    failure = raised.value.failures[0]
    assert 1 == raised.value.count
    assert (topic, 0, b"k1") == (failure.topic, failure.partition, failure.key)
    assert 10 == failure.code
    assert not failure.outcome_unknown
    assert "max.message.bytes" in str(raised.value)
    assert f"{topic}-0, key b'k1'" in str(raised.value)


def test_a_failed_delivery_is_raised_by_the_next_call_and_once(servers: str) -> None:
    """
    By produce, which says that its own record was not taken; the producer then goes on.
    """
    refused, topic = refused_topic(servers), new_topic(servers)
    with Producer(bootstrap_servers=servers) as producer:
        producer.produce(refused, os.urandom(5_000))
        deadline = time.monotonic() + 30
        with pytest.raises(DeliveryError, match="produce it again"):  # noqa: PT012
            while time.monotonic() < deadline:
                producer.produce(topic, b"x")
                time.sleep(0.05)
        producer.produce(refused, os.urandom(5_000))
        with pytest.raises(DeliveryError, match="1 record was not acknowledged"):
            producer.flush()
        producer.produce(topic, b"last")

    with Consumer(topic, bootstrap_servers=servers, from_beginning=True, end_of_topic=True) as c:
        values = [record.value for record in c]
    assert b"last" == values[-1]
    assert {b"x", b"last"} == set(values)


def test_the_error_of_the_block_is_not_hidden(servers: str) -> None:
    """
    An error inside `with` comes out, and what was not delivered is noted on it.
    """
    topic = refused_topic(servers)
    with (  # noqa: PT012  # the error of the block comes out of its exit
        pytest.raises(ZeroDivisionError) as raised,
        Producer(bootstrap_servers=servers) as producer,
    ):
        producer.produce(topic, os.urandom(5_000))
        raise ZeroDivisionError

    assert "1 record was not acknowledged" in raised.value.__notes__[0]


def test_a_failure_that_a_future_told_is_not_raised_again(servers: str) -> None:
    """
    Where nobody looked at the future, closing raises it.
    """
    topic = refused_topic(servers)
    with Producer(bootstrap_servers=servers) as producer, pytest.raises(DeliveryError):
        producer.send(topic, os.urandom(5_000)).result(30)

    with pytest.raises(DeliveryError), Producer(bootstrap_servers=servers) as producer:
        producer.send(topic, os.urandom(5_000))


def test_what_a_callback_raises_is_raised(servers: str) -> None:
    """
    librdkafka's thread does not swallow it.
    """
    topic = new_topic(servers)

    def bad(error: DeliveryError | None, delivered: Delivered | None) -> None:
        raise KeyError("mine")

    producer = Producer(bootstrap_servers=servers)
    producer.produce(topic, b"x", on_delivery=bad)
    with pytest.raises(KeyError, match="mine"):
        producer.flush()
    producer.close()


def test_a_full_queue_waits_and_then_says_so() -> None:
    """
    Nothing is dropped: with room again the records go on; without, the call says it took nothing.
    """
    with DriftlogProcess() as agent:
        topic = new_topic(agent.bootstrap)
        settings = ProducerSettings(queue_max_records=100, max_block_ms=1_000)
        with Producer(bootstrap_servers=agent.bootstrap, settings=settings) as producer:
            for value in numbered(1_000):
                producer.produce(topic, value)
            producer.flush()
            agent.pause()
            begin = time.monotonic()
            with pytest.raises(QueueFullError, match="was not taken"):  # noqa: PT012
                for number in range(101):
                    producer.produce(topic, b"%d" % (1_000 + number))
            assert 1.0 <= time.monotonic() - begin < 10
            assert 100 == len(producer)
            with pytest.raises(FlushTimeoutError, match="100 records"):
                producer.flush(0.2)
            agent.resume()

        with Consumer(
            topic, bootstrap_servers=agent.bootstrap, from_beginning=True, end_of_topic=True
        ) as consumer:
            assert numbered(1_100) == values_of(list(consumer))


def test_records_that_are_not_acknowledged_in_time_fail() -> None:
    """
    The error says that they may be there all the same, and what the last trouble was.
    """
    with DriftlogProcess() as agent:
        topic = new_topic(agent.bootstrap)
        producer = Producer(
            bootstrap_servers=agent.bootstrap, settings=ProducerSettings(delivery_timeout_ms=5_000)
        )
        producer.send(topic, b"x").result(30)
        agent.kill()
        producer.produce(topic, b"y", key=b"k")
        with pytest.raises(DeliveryError, match="delivery_timeout_ms") as raised:
            producer.close()

    assert raised.value.failures[0].outcome_unknown
    assert "Connect" in str(raised.value)


def test_an_unreachable_cluster_is_named() -> None:
    """
    By the first call, with the address and what to do; for readers and writers.
    """
    producer = Producer(
        bootstrap_servers="127.0.0.1:1", settings=ProducerSettings(connect_timeout_ms=500)
    )
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1 refuses connections.*driftlog dev"):
        producer.produce("t", b"x")
    consumer = Consumer(
        "t", bootstrap_servers="127.0.0.1:1", settings=ConsumerSettings(request_timeout_ms=500)
    )
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1 refuses connections"):
        next(consumer)


def test_a_record_that_cannot_be_written_is_refused_at_once(servers: str) -> None:
    """
    Too large, no such partition, a time before 1970 or without a zone, a serializer that fails.
    """
    topic = new_topic(servers)
    with Producer(bootstrap_servers=servers, value_serializer=to_json) as producer:
        with pytest.raises(RequestError, match="max_message_bytes"):
            producer.produce(topic, "x" * 2_000_000)
        with pytest.raises(UnknownTopicError, match="no such partition"):
            producer.produce(topic, "x", partition=7)
        with pytest.raises(ValueError, match="1970"):
            producer.produce(topic, "x", timestamp=0)
        with pytest.raises(ValueError, match="no time zone"):
            producer.produce(topic, "x", timestamp=datetime(2024, 1, 1))  # noqa: DTZ001
        with pytest.raises(SerializationError, match="was not taken"):
            producer.produce(topic, {1, 2})
        producer.produce(topic, None)

    with Consumer(topic, bootstrap_servers=servers, from_beginning=True, end_of_topic=True) as c:
        assert [None] == [record.value for record in c]


def test_an_abandoned_producer_delivers(servers: str) -> None:
    """
    One that nobody closed delivers what it has when it goes.
    """
    topic = new_topic(servers)
    producer = Producer(bootstrap_servers=servers)
    producer.produce(topic, b"x")
    del producer

    with Consumer(topic, bootstrap_servers=servers, from_beginning=True, end_of_topic=True) as c:
        assert [b"x"] == values_of(list(c))


def test_the_same_key_goes_where_javas_clients_put_it(servers: str) -> None:
    """
    murmur2, not librdkafka's CRC-32; `confluent_kafka.murmur2` is the oracle.
    """
    topic = new_topic(servers, 7)
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(50):
            producer.produce(topic, b"x", key=b"key-%d" % number)

    with Consumer(topic, bootstrap_servers=servers, from_beginning=True, end_of_topic=True) as c:
        places = {record.key: record.partition for record in c}
    expected = {
        b"key-%d" % number: confluent_kafka.murmur2(b"key-%d" % number, 7) for number in range(50)
    }
    assert expected == places
