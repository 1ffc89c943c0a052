"""Serializers and deserializers: what they are given, and what is said where one is missing.

Without these: a serializer that needs the topic or the headers (Avro with a registry, envelopes)
cannot be used, and a dict without a serializer is refused in C's words.
Shell.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.serialization import MessageField, StringDeserializer, StringSerializer

from driftlog import AsyncConsumer, AsyncProducer, Consumer, Producer
from driftlog.common.serialization import takes_context
from driftlog.errors import SerializationError
from driftlog.serializers import SerializationContext, from_json, to_json
from tests.clients.python_client import new_topic

pytestmark = [pytest.mark.xdist_group("python_client"), pytest.mark.timeout(240)]


def enveloped(value: object, ctx: SerializationContext) -> bytes:
    """What it was given, in the bytes; and a header of its own."""
    ctx.headers.append((f"made-{ctx.field}", b"yes"))
    return to_json([ctx.topic, ctx.field, [name for name, _ in ctx.headers], value])


def opened(data: bytes, ctx: SerializationContext) -> object:
    return [ctx.topic, ctx.field, [name for name, _ in ctx.headers], json.loads(data)[-1]]


def test_serializers_see_topic_field_and_headers(servers: str) -> None:
    """
    Those of keys and of values; what they append to the headers is sent.  None is never given to
    them.
    """
    topic = new_topic(servers)
    with Producer(
        bootstrap_servers=servers, key_serializer=enveloped, value_serializer=enveloped
    ) as producer:
        producer.produce(topic, 1, 2, headers={"a": b"b"})
        producer.produce(topic, 3)
        producer.produce(topic)

    with Consumer(topic, bootstrap_servers=servers, from_beginning=True, end_of_topic=True) as raw:
        first, second, third = raw
    assert [topic, "key", ["a", "made-key"], 2] == from_json(first.key or b"")
    assert [topic, "value", ["a", "made-key", "made-value"], 1] == from_json(first.value or b"")
    assert (("a", b"b"), ("made-key", b"yes"), ("made-value", b"yes")) == first.headers
    assert [topic, "value", ["made-value"], 3] == from_json(second.value or b"")
    assert (None, None, ()) == (third.key, third.value, third.headers)

    with Consumer(
        topic,
        bootstrap_servers=servers,
        key_deserializer=opened,
        value_deserializer=opened,
        from_beginning=True,
        end_of_topic=True,
    ) as consumer:
        names = ["a", "made-key", "made-value"]
        read = [(record.key, record.value) for record in consumer]
    assert ([topic, "key", names, 2], [topic, "value", names, 1]) == read[0]
    assert (None, None) == read[2]


async def test_those_of_asyncio_see_them_too(servers: str) -> None:
    """
    The same two callables.
    """
    topic = new_topic(servers)
    async with AsyncProducer(
        bootstrap_servers=servers, key_serializer=enveloped, value_serializer=enveloped
    ) as producer:
        await producer.send_and_wait(topic, 1, 2, headers=[("a", b"b")])

    async with AsyncConsumer(
        topic,
        bootstrap_servers=servers,
        key_deserializer=opened,
        value_deserializer=opened,
        from_beginning=True,
        end_of_topic=True,
    ) as consumer:
        (record,) = [record async for record in consumer]
    names = ["a", "made-key", "made-value"]
    assert ([topic, "key", names, 2], [topic, "value", names, 1]) == (record.key, record.value)


def test_serializers_of_confluent_kafka_fit(servers: str) -> None:
    """
    Their context is an optional argument named ctx; its field compares equal.
    """
    fields = []

    def told(value: bytes, ctx: SerializationContext) -> bytes:
        fields.append(ctx.field)
        return value

    topic = new_topic(servers)
    with Producer(
        bootstrap_servers=servers, key_serializer=StringSerializer(), value_serializer=told
    ) as producer:
        producer.produce(topic, b"v", "k")
    with Consumer(
        topic,
        bootstrap_servers=servers,
        key_deserializer=StringDeserializer(),
        from_beginning=True,
        end_of_topic=True,
    ) as consumer:
        assert "k" == next(consumer).key

    assert [MessageField.VALUE] == fields


class WithOption:
    def __call__(self, value: object, indent: int = 0) -> bytes:
        return json.dumps(value, indent=indent).encode()


@pytest.mark.parametrize(
    "call, expected",
    [
        (to_json, False),
        (enveloped, True),
        (bytes.decode, False),
        (str.encode, False),
        (int, False),
        (lambda value: value, False),
        (lambda value, other: value, True),
        (lambda value, ctx=None: value, True),
        (WithOption(), False),
        (StringSerializer(), True),
    ],
)
def test_a_required_second_argument_or_one_named_ctx_is_the_context(
    call: Callable[..., Any], expected: bool
) -> None:
    """
    Options of a callable of one argument keep their defaults.
    """
    assert expected is takes_context(call)


def test_a_value_without_a_serializer_is_refused_with_the_way_out(servers: str) -> None:
    """
    The value, and the key, of both producers; the record is not taken, and the producer goes on.
    """
    topic = new_topic(servers)
    with Producer(bootstrap_servers=servers) as producer:
        with pytest.raises(SerializationError, match="has type dict") as raised:
            producer.produce(topic, {"n": 1})  # type: ignore[arg-type]
        assert "value_serializer=driftlog.serializers.to_json" in str(raised.value)
        with pytest.raises(SerializationError, match=r"the key of a record .* has type int"):
            producer.produce(topic, b"", 3)  # type: ignore[arg-type]
        producer.produce(topic, b"taken")

    async def produce() -> None:
        async with AsyncProducer(bootstrap_servers=servers) as producer:
            await producer.produce(topic, {"n": 1})  # type: ignore[arg-type]

    with pytest.raises(SerializationError, match=r"driftlog\.serializers\.to_json"):
        asyncio.run(produce())
    with Consumer(topic, bootstrap_servers=servers, from_beginning=True, end_of_topic=True) as c:
        assert [b"taken"] == [record.value for record in c]


def test_a_serializer_that_returns_no_bytes_is_named(servers: str) -> None:
    """
    It failed, and not the record.
    """

    def wrong(value: int) -> Any:
        return {"v": value}

    with (
        Producer(bootstrap_servers=servers, value_serializer=wrong) as producer,
        pytest.raises(SerializationError, match="value_serializer returned a value of type dict"),
    ):
        producer.produce(new_topic(servers), 1)
