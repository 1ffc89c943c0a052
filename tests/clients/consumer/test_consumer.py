"""`driftlog.Consumer` without a group reads the same from an agent and from Apache Kafka.

Shell.
"""

import time
from datetime import UTC, datetime

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]  # no __all__

from driftlog import Consumer, Producer
from driftlog.common.settings import ConsumerSettings, ProducerSettings
from driftlog.errors import (
    DeserializationError,
    NotAssignedError,
    UnknownTopicError,
)
from driftlog.serializers import from_json, from_text, to_json, to_text
from tests.clients.batches import with_strange_header
from tests.clients.python_client import QUICK, new_topic, numbered, values_of, write
from tests.clients.sockets import Raw

pytestmark = [pytest.mark.xdist_group("python_client"), pytest.mark.timeout(240)]


def test_serializers_and_deserializers_meet(servers: str) -> None:
    """
    Null is never given to them.
    """
    topic = new_topic(servers)
    with Producer(
        bootstrap_servers=servers, key_serializer=to_text, value_serializer=to_json
    ) as producer:
        producer.produce(topic, {"n": [1, None]}, "k")
        producer.produce(topic, None, None)

    with Consumer(
        topic,
        bootstrap_servers=servers,
        key_deserializer=from_text,
        value_deserializer=from_json,
        from_beginning=True,
        end_of_topic=True,
    ) as consumer:
        assert [("k", {"n": [1, None]}), (None, None)] == [(r.key, r.value) for r in consumer]


def test_a_record_that_cannot_be_deserialized_can_be_skipped(servers: str) -> None:
    """
    The error names it; the next call goes on behind it.
    """
    topic = new_topic(servers)
    write(servers, topic, [b"1", b"{", b"3"])
    with Consumer(
        topic,
        bootstrap_servers=servers,
        value_deserializer=from_json,
        from_beginning=True,
        end_of_topic=True,
    ) as consumer:
        assert 1 == next(consumer).value
        with pytest.raises(DeserializationError, match="at offset 1") as raised:
            next(consumer)
        assert (topic, 0, 1, b"{") == (
            raised.value.topic,
            raised.value.partition,
            raised.value.offset,
            raised.value.value,
        )
        assert [3] == [record.value for record in consumer]


def test_a_record_whose_headers_cannot_be_read_can_be_skipped(servers: str) -> None:
    """
    The error has its key and value; records behind it, and of the same fetch, are read.  The call
    of a method that runs often is another one to the interpreter.
    """
    topic = new_topic(servers)
    often = numbered(20)
    write(servers, topic, often)
    with Raw(int(servers.rpartition(":")[2])) as raw:
        for value in (b"strange", b"stranger"):
            assert 0 == raw.produce(topic, {0: with_strange_header(value)})[0].error_code
    write(servers, topic, [b"last"])
    found: list[bytes | None] = []
    with Consumer(
        topic, bootstrap_servers=servers, from_beginning=True, end_of_topic=True
    ) as consumer:
        while len(found) < len(often):
            found += values_of(consumer.read())
        with pytest.raises(DeserializationError, match=r"at offset 20: .*UTF-8") as raised:
            next(consumer)
        with pytest.raises(DeserializationError, match="at offset 21"):
            consumer.read()
        found += [record.value for record in consumer]

    assert (b"k", b"strange") == (raised.value.key, raised.value.value)
    assert [*often, b"last"] == found


def test_an_interrupted_read_hands_out_nothing(servers: str) -> None:
    """
    The next read returns the records that the interrupted one had deserialized.
    """
    topic = new_topic(servers)
    in_one_batch = ProducerSettings(linger_ms=5_000)
    with Producer(bootstrap_servers=servers, settings=in_one_batch) as producer:
        for number in numbered(4):
            producer.produce(topic, number)
    interrupts = [KeyboardInterrupt()]

    def value(data: bytes) -> int:
        if data == b"2" and interrupts:
            raise interrupts.pop()
        return int(data)

    with Consumer(
        topic, bootstrap_servers=servers, value_deserializer=value, from_beginning=True
    ) as consumer:
        assert 0 == next(consumer).value
        with pytest.raises(KeyboardInterrupt):
            consumer.read()
        assert 1 == consumer.position(topic, 0)
        assert [1, 2, 3] == [record.value for record in consumer.read()]


def test_end_of_topic_stops_at_the_end_as_it_was(servers: str) -> None:
    """
    Records that come while it reads are not read, though they lie in the same batch; an empty
    partition does not keep it waiting.
    """
    topic = new_topic(servers, 3)
    write(servers, topic, numbered(10), partition=0)
    with Consumer(
        topic, bootstrap_servers=servers, from_beginning=True, end_of_topic=True
    ) as consumer:
        read = [next(consumer)]
        write(servers, topic, numbered(10, 10), partition=0)
        write(servers, topic, numbered(10, 20), partition=1)
        read += list(consumer)

    assert numbered(10) == values_of(read)


def test_without_from_beginning_only_what_comes_is_read(servers: str) -> None:
    """
    The end is taken when the consumer starts, not when it first fetches.
    """
    topic = new_topic(servers, 2)
    write(servers, topic, numbered(10), partition=0)
    with Consumer(topic, bootstrap_servers=servers, settings=QUICK) as consumer:
        assert [] == consumer.read(timeout_s=0.3)
        write(servers, topic, [b"new"], partition=0)
        assert [b"new"] == values_of([next(consumer)])


def test_seek_goes_to_offsets_times_and_ends(servers: str) -> None:
    """
    What was fetched ahead is dropped.
    """
    topic = new_topic(servers, retention_ms="-1")  # its records are of 1970
    with Producer(bootstrap_servers=servers) as producer:
        for n in range(100):
            producer.produce(topic, b"%d" % n, timestamp=1_000 + n)

    with Consumer(topic, bootstrap_servers=servers, settings=QUICK) as consumer:
        consumer.seek(topic, 0, 5)
        assert 5 == next(consumer).offset
        consumer.seek(topic, 0, "beginning")
        assert 0 == next(consumer).offset
        consumer.seek(topic, 0, datetime.fromtimestamp(1.042, UTC))
        assert 42 == next(consumer).offset
        consumer.seek(topic, 0, "end")
        assert [] == consumer.read(timeout_s=0.3)
        with pytest.raises(NotAssignedError):
            consumer.seek(topic, 1, 0)
        with pytest.raises(ValueError, match="not negative"):
            consumer.seek(topic, 0, -2)


def test_only_the_named_partitions_are_read(servers: str) -> None:
    """
    Without a group, a consumer may choose.
    """
    topic = new_topic(servers, 3)
    for partition in range(3):
        write(servers, topic, [b"p%d" % partition], partition)

    with Consumer(
        topic,
        bootstrap_servers=servers,
        partitions=[0, 2],
        from_beginning=True,
        end_of_topic=True,
    ) as consumer:
        assert [b"p0", b"p2"] == sorted(record.value or b"" for record in consumer)


def test_what_is_not_there_is_named(servers: str) -> None:
    """
    A topic, a partition.
    """
    topic = new_topic(servers)
    with pytest.raises(UnknownTopicError, match="topic 'nowhere' does not exist"):
        next(Consumer("nowhere", bootstrap_servers=servers))
    with pytest.raises(UnknownTopicError, match="no partition 4"):
        next(Consumer(topic, bootstrap_servers=servers, partitions=[4]))


def test_new_partitions_are_found(servers: str) -> None:
    """
    A consumer without a group reads partitions that were added, from their first record on.
    """
    topic = new_topic(servers)
    admin = AdminClient({"bootstrap.servers": servers})
    settings = ConsumerSettings(fetch_wait_max_ms=50, metadata_max_age_ms=300)
    with Consumer(topic, bootstrap_servers=servers, settings=settings) as consumer:
        assert [] == consumer.read(timeout_s=0.2)
        parts = NewPartitions(topic, 2)
        admin.create_partitions([parts])[topic].result(30)
        write(servers, topic, [b"old"], partition=0)
        write(servers, topic, [b"new"], partition=1)
        read: set[bytes | None] = set()
        deadline = time.monotonic() + 30
        while len(read) < 2 and time.monotonic() < deadline:
            read |= set(values_of(consumer.read(timeout_s=0.2)))
        again = consumer.read(timeout_s=0.5)

    assert {b"old", b"new"} == read
    assert [] == again


def test_offsets_that_are_gone_go_on_at_the_earliest(
    servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    """
    With a warning, not silently, and not at the end.
    """
    topic = new_topic(servers)
    write(servers, topic, numbered(3))
    with Consumer(topic, bootstrap_servers=servers, settings=QUICK) as consumer:
        consumer.seek(topic, 0, 1_000)
        assert b"0" == next(consumer).value

    assert "offset reset" in caplog.text
