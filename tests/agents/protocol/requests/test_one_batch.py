"""The fast path for a repeated Produce request reads exactly what the codec reads, or declines."""

import random
from collections.abc import Iterator

import pytest

from driftlog_agents.protocol.errors import CorruptFrameError
from driftlog_agents.protocol.messages import produce
from driftlog_agents.protocol.requests.one_batch import OneBatch, OneBatchReader, PrefixMemory
from driftlog_agents.protocol.requests.registry import decode_request_header
from driftlog_tiering.foundation.types import MiB

BY_NAME = range(produce.API.served.start, 13)


def frame(
    version: int,
    *,
    correlation_id: int = 7,
    client_id: str | None = "client",
    acks: int = -1,
    topics: tuple[tuple[str, tuple[tuple[int, bytes | None], ...]], ...],
) -> memoryview:
    """A request as it follows its size."""
    request = produce.ProduceRequest(
        acks=acks,
        timeout_ms=1500,
        topic_data=[
            produce.TopicProduceData(
                name=name,
                partition_data=[
                    produce.PartitionProduceData(
                        index=index, records=None if records is None else memoryview(records)
                    )
                    for index, records in partitions
                ],
            )
            for name, partitions in topics
        ],
    )
    encoded = produce.API.encode_request(version, correlation_id, client_id, request)
    return memoryview(bytearray(encoded))[4:]


def one(
    version: int, size: int, *, partition: int = 0, topic: str = "t", **more: object
) -> memoryview:
    """A request of one batch of *size* bytes."""
    return frame(version, topics=((topic, ((partition, bytes(size)),)),), **more)  # type: ignore[arg-type]


def by_codec(view: memoryview) -> tuple[OneBatch, int, bytes] | None:
    """What the codec reads, where it is a request of one batch."""
    header = decode_request_header(view)
    request = produce.API.decode_request(header.api_version, view, header.body_offset)
    if [len(topic.partition_data) for topic in request.topic_data] != [1]:
        return None
    (topic,) = request.topic_data
    (data,) = topic.partition_data
    if data.records is None:
        return None
    asked = OneBatch(header.api_version, request.acks, request.timeout_ms, topic.name, data.index)
    return asked, header.correlation_id, bytes(data.records)


def learn(reader: OneBatchReader, view: memoryview) -> None:
    header = decode_request_header(view)
    request = produce.API.decode_request(header.api_version, view, header.body_offset)
    reader.learn(view, header, request)


def read(reader: OneBatchReader, view: memoryview) -> tuple[OneBatch, int, bytes] | None:
    found = reader.read(view)
    return None if found is None else (found[0], found[1], bytes(found[2]))


@pytest.mark.parametrize("version", BY_NAME)
def test_what_was_learned_is_read_as_the_codec_reads_it(version: int) -> None:
    """
    Other correlation ids and sizes, other partitions of the topic once each is known.
    """
    reader = OneBatchReader(PrefixMemory())
    assert reader.read(one(version, 100)) is None
    for partition in range(3):
        learn(reader, one(version, 100, partition=partition))

    for size in (61, 62, 126, 127, 128, 16_382, 16_384, 3_000_000):
        for partition in range(3):
            view = one(version, size, partition=partition, correlation_id=size)
            assert by_codec(view) == read(reader, view) != None  # noqa: E711


@pytest.mark.parametrize("version", BY_NAME)
def test_what_differs_is_the_codecs(version: int) -> None:
    """
    Another partition, topic, acks, client, version; several batches; none; too short; cut off.
    """
    reader = OneBatchReader(PrefixMemory())
    learn(reader, one(version, 100))
    other_version = version - 1 if version > produce.API.served.start else version + 1
    batches = bytes(100)
    for view in (
        one(version, 100, partition=1),
        one(version, 100, topic="u"),
        one(version, 100, acks=1),
        one(version, 100, client_id="clienu"),
        one(version, 100, client_id=None),
        one(other_version, 100),
        frame(version, topics=(("t", ((0, batches), (1, batches))),)),
        frame(version, topics=(("t", ((0, batches),)), ("u", ((0, batches),)))),
        frame(version, topics=(("t", ((0, None),)),)),
        frame(version, topics=()),
        one(version, 10),
        one(version, 100)[:-1],
        memoryview(bytes(one(version, 100)) + b"\0"),
    ):
        assert reader.read(view) is None


def test_a_topic_that_is_asked_for_by_its_id_is_the_codecs() -> None:
    """
    Only agents ask so, and what is learned are names.
    """
    reader = OneBatchReader(PrefixMemory())
    learn(reader, one(13, 100))

    assert reader.read(one(13, 100)) is None


def test_tagged_fields_are_the_codecs() -> None:
    """
    A tag behind the batch, which no client sends today, is neither learned nor skipped.
    """
    plain = bytes(one(9, 100))
    tagged = memoryview(bytearray(plain[:-1] + b"\x01\x05\x01x"))
    assert by_codec(memoryview(bytearray(plain))) == by_codec(tagged)
    reader = OneBatchReader(PrefixMemory())
    learn(reader, tagged)
    assert reader.read(tagged) is None

    learn(reader, memoryview(bytearray(plain)))
    assert reader.read(tagged) is None


def mutations(view: memoryview, rng: random.Random) -> Iterator[memoryview]:
    for _ in range(400):
        data = bytearray(view)
        for _ in range(rng.randint(1, 4)):
            match rng.randrange(4):
                case 0:
                    data[rng.randrange(len(data))] = rng.randrange(256)
                case 1:
                    data[rng.randrange(min(60, len(data)))] = rng.randrange(256)
                case 2:
                    del data[rng.randrange(len(data)) :]
                case _:
                    at = rng.randrange(len(data))
                    data[at:at] = rng.randbytes(rng.randint(1, 3))
            data = data or bytearray(b"\0")
        yield memoryview(data)


@pytest.mark.parametrize("version", BY_NAME)
def test_whatever_comes_is_read_as_the_codec_reads_it_or_not_at_all(version: int) -> None:
    """
    Mutated frames, learned from where the codec takes them: the two never disagree.
    """
    rng = random.Random(version)
    reader = OneBatchReader(PrefixMemory())
    agreed = 0
    for start in (one(version, 100), one(version, 300, partition=5), one(version, 61, acks=1)):
        learn(reader, start)
        for view in mutations(start, rng):
            try:
                found = read(reader, view)
            except CorruptFrameError:
                with pytest.raises(CorruptFrameError):
                    by_codec(view)
                continue
            if found is not None:
                assert by_codec(view) == found
                agreed += 1
            try:
                learn(reader, view)
            except CorruptFrameError:
                continue
    assert agreed > 50


def test_prefixes_of_many_lengths_are_given_up() -> None:
    """
    Who writes to topics of ever other lengths is not slowed down by learning each time.
    """
    reader = OneBatchReader(PrefixMemory())
    known = learned = 0
    for i in range(200):
        view = one(9, 100, topic="t" * (1 + i % 7))
        before = reader.read(view) is not None
        learn(reader, view)
        known += before
        learned += not before and reader.read(view) is not None

    assert known <= 200 // 7 + 1
    assert learned <= 8


def test_many_partitions_are_forgotten_together() -> None:
    """
    The memory of one connection is bounded.
    """
    reader = OneBatchReader(PrefixMemory())
    for partition in range(10_000):
        learn(reader, one(7, 61, partition=partition))
    known = [p for p in range(10_000) if reader.read(one(7, 61, partition=p)) is not None]
    assert len(known) <= 4096
    assert 9_999 in known


def test_connections_share_the_memory_of_what_they_know() -> None:
    """
    A thousand of them came to 20 GB.  Beyond the limit each still knows a few, and what is
    forgotten makes room; names that no topic has are not remembered.
    """
    memory = PrefixMemory()
    readers = [OneBatchReader(memory) for _ in range(20)]
    for number, reader in enumerate(readers):
        for partition in range(1_600):
            view = one(7, 61, client_id=f"{number:0950}", partition=partition)
            learn(reader, view)
            if partition == 0:
                assert read(reader, view) == by_codec(view)
    full_bytes = memory.held_bytes
    refused = reader.read(view)
    learn(reader, one(7, 61, client_id="x" * 950, topic="é"))
    assert full_bytes == memory.held_bytes
    readers[0].forget()
    learn(reader, view)

    assert 64 * MiB - 3_000 < full_bytes <= 64 * MiB + 20 * 4_096
    assert None is refused
    assert read(reader, view) == by_codec(view)
    for reader in readers:
        reader.forget()
    assert 0 == memory.held_bytes


@pytest.mark.parametrize("version", [7, 9])
@pytest.mark.parametrize(("size", "learned"), [(700, True), (2_000, False)])
def test_long_prefixes_are_not_remembered(version: int, size: int, learned: bool) -> None:
    """
    A client with a client id of kilobytes and thousands of partitions holds no memory with them.
    """
    reader = OneBatchReader(PrefixMemory())
    view = one(version, 100, client_id="x" * size)
    header = decode_request_header(view)
    request = produce.API.decode_request(header.api_version, view, header.body_offset)
    reader.learn(view, header, request)

    assert learned == (reader.read(view) is not None)
