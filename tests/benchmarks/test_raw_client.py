"""The benchmark client sends valid requests, counts truly, and counts no errors."""

import random
import socket
import threading
from collections.abc import Iterator

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import wire
from benchmarks.batches import (
    PAYLOADS,
    Codec,
    CorruptBatchError,
    Growing,
    encode_batch,
    set_producer,
    walk,
)
from benchmarks.load import make_batches
from benchmarks.rawclient import Answers, connected, produce, produce_tiny
from benchmarks.sink import Sink

values_lists = st.lists(st.binary(max_size=300), min_size=1, max_size=50)


@pytest.fixture
def sink() -> Iterator[str]:
    server = Sink(0, 4)
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield f"127.0.0.1:{server.port}"
    server.close()
    thread.join(10)


@given(values_lists, st.sampled_from(Codec))
def test_batches_are_what_aiokafka_reads(values: list[bytes], codec: Codec) -> None:
    """
    An independent decoder finds the CRC right and every value, for all codecs.
    """
    batch = encode_batch(values, codec=codec, timestamp_ms=5)
    decoder = DefaultRecordBatch(bytes(batch.data))

    assert decoder.validate_crc()
    assert values == [record.value for record in decoder]


def test_a_batch_of_another_producer_keeps_a_valid_crc() -> None:
    """
    Patching producer id, epoch and sequence is followed by the CRC.
    """
    batch = encode_batch([b"value"])
    set_producer(batch.data, 77, 3, 12)
    decoder = DefaultRecordBatch(bytes(batch.data))

    assert decoder.validate_crc()
    assert (77, 3, 12) == (decoder.producer_id, decoder.producer_epoch, decoder.base_sequence)


@given(st.integers(1, 200))
def test_a_growing_batch_equals_one_that_was_encoded(records: int) -> None:
    """
    The first n of the prebuilt records are byte for byte a batch of n records.
    """
    growing = Growing(b"x" * 70, 200, 9)

    assert encode_batch([b"x" * 70] * records, timestamp_ms=9).data == growing.first(records)


def test_walk_leaves_out_an_incomplete_batch() -> None:
    """
    A fetch may end inside a batch; what is before it counts, and the next offset is its.
    """
    whole = encode_batch([b"a", b"b"]).data

    assert (1, 2, 2) == walk(memoryview(whole + whole[:-1]), verify=True)


def test_walk_refuses_a_wrong_crc_when_it_verifies() -> None:
    """
    One flipped bit in a value is found.
    """
    data = encode_batch([b"value"]).data
    data[-2] ^= 1

    with pytest.raises(CorruptBatchError):
        walk(memoryview(data), verify=True)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_payloads_have_the_stated_size(payload: str) -> None:
    """
    MB/s are computed from it.
    """
    assert {1024} == {len(value) for value in PAYLOADS[payload](random.Random(1), 50, 1024)}


def test_everything_that_is_sent_is_counted_once(sink: str) -> None:
    """
    Requests, records and bytes of a pipelined load are those that the sink gave offsets to.
    """
    batches = make_batches("random", 20_000, 100, count=3)
    result = produce(sink, "t", range(4), batches, 2_000_000, connections=2, window=7)

    assert result.requests * batches[0].records == result.records
    assert result.records * 100 == result.value_bytes
    assert 2_000_000 <= result.value_bytes < 2_000_000 + 2 * batches[0].value_bytes


def test_tiny_requests_are_all_answered(sink: str) -> None:
    """
    Blocks of requests in one write are counted one by one.
    """
    (batch,) = make_batches("random", 1, 100, count=1)

    assert 4000 == produce_tiny(sink, "t", [0, 1], batch, 4000, block=100).requests


def test_a_producer_id_comes_from_the_broker(sink: str) -> None:
    """
    Request and answer of InitProducerId agree with the sink's.
    """
    with connected(sink) as connection:
        assert (1, 0) == connection.init_producer_id()


@pytest.mark.parametrize("version", [7, 9])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_an_error_among_good_answers_is_raised(version: int, bad: int) -> None:
    """
    Three answers in one read, one of them with an error: no load is measured on refusals.
    """
    envelope = wire.produce_envelope(version, b"topic", 0, 1, 100)
    answer = bytearray(wire.FRAME_SIZE.pack(envelope.answer_bytes - 4))
    answer += bytes(envelope.answer_bytes - 4)
    stream = answer * 3
    stream[bad * len(answer) + envelope.error_at + 1] = 6
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(stream)
        with pytest.raises(wire.KafkaError) as raised:
            Answers(ours, envelope).receive()

    assert 6 == raised.value.code
