"""A bad batch gets Kafka's error for its partition, and the others are written."""

import time
from collections.abc import Callable
from typing import Final

import confluent_kafka
import pytest
import zstandard

from benchmarks.batches import Codec
from tests.clients import batches
from tests.clients.batches import at_offset, good, leader_epoch, with_field, with_records
from tests.clients.conftest import make_topic, metrics, seal
from tests.clients.peers import Aiokafka, Confluent
from tests.clients.records import Record, at_offsets
from tests.clients.sockets import (
    CORRUPT_MESSAGE,
    INVALID_RECORD,
    INVALID_REQUIRED_ACKS,
    INVALID_TIMESTAMP,
    INVALID_TXN_STATE,
    MESSAGE_TOO_LARGE,
    UNSUPPORTED_COMPRESSION_TYPE,
    Produced,
    Raw,
)
from tests.support.driftlog_process import DriftlogProcess

pytestmark = pytest.mark.xdist_group("bad_batches")

HOUR_MS: Final = 3_600_000


def _flipped(data: bytearray) -> bytearray:
    changed = bytearray(data)
    changed[-1] ^= 1
    return changed


BAD: dict[str, tuple[int, bytes | bytearray | Callable[[], bytearray] | None]] = {
    "a CRC that does not match": (CORRUPT_MESSAGE, _flipped(good())),
    "a CRC in a compressed batch": (CORRUPT_MESSAGE, _flipped(good(codec=Codec.ZSTD))),
    "fewer records than said": (INVALID_RECORD, with_field(good(), batches.COUNT, 2)),
    "a last offset delta beyond the count": (
        INVALID_RECORD,
        with_field(good(), batches.LAST_OFFSET_DELTA, 5),
    ),
    "a count of zero": (INVALID_RECORD, with_field(good(), batches.COUNT, 0)),
    "a negative count": (INVALID_RECORD, with_field(good(), batches.COUNT, -1)),
    "codec 5": (UNSUPPORTED_COMPRESSION_TYPE, with_field(good(), batches.ATTRIBUTES, 5)),
    "codec 7": (UNSUPPORTED_COMPRESSION_TYPE, with_field(good(), batches.ATTRIBUTES, 7)),
    "two batches": (INVALID_RECORD, good() + good()),
    "no batch, null": (INVALID_RECORD, None),
    "no batch, empty": (INVALID_RECORD, b""),
    "half a header": (INVALID_RECORD, good()[:30]),
    "a batch cut short": (INVALID_RECORD, good(b"x" * 100)[:-10]),
    "a length that is too small": (
        CORRUPT_MESSAGE,
        with_field(good(), batches.LENGTH, 3, crc=False),
    ),
    "a negative length": (CORRUPT_MESSAGE, with_field(good(), batches.LENGTH, -1, crc=False)),
    "magic 1": (INVALID_RECORD, with_field(good(), batches.MAGIC, 1, crc=False)),
    "magic 0": (INVALID_RECORD, with_field(good(), batches.MAGIC, 0, crc=False)),
    "magic 3": (INVALID_RECORD, with_field(good(), batches.MAGIC, 3, crc=False)),
    "the control bit": (INVALID_RECORD, with_field(good(), batches.ATTRIBUTES, 0x20)),
    "the transactional bit": (INVALID_TXN_STATE, with_field(good(), batches.ATTRIBUTES, 0x10)),
    "a base offset": (INVALID_RECORD, with_field(good(), batches.BASE_OFFSET, 17, crc=False)),
    "a log append time without a time": (
        INVALID_TIMESTAMP,
        with_field(good(timestamp_ms=-1), batches.ATTRIBUTES, 0x08),
    ),
    "a timestamp that overflows microseconds": (
        INVALID_TIMESTAMP,
        with_field(good(), batches.MAX_TIMESTAMP, 2**63 - 1),
    ),
    "a timestamp two hours ahead": (
        INVALID_TIMESTAMP,
        # Made in the test: that may be an hour after this file was read.
        lambda: good(timestamp_ms=int(time.time() * 1000) + 2 * HOUR_MS),
    ),
    "a batch over max.message.bytes": (MESSAGE_TOO_LARGE, good(b"x" * 1_048_588)),
}


@pytest.fixture(scope="module")
def three(agent: DriftlogProcess) -> str:
    """A topic of three partitions that all tests here fill."""
    return make_topic(agent, 3)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_batch_fails_alone(agent: DriftlogProcess, three: str, name: str) -> None:
    """
    Kafka's error for its partition; those before and behind it in the same request are taken,
    and the connection goes on.
    """
    code, made = BAD[name]
    bad = made() if callable(made) else made
    with Raw(agent.port) as raw:
        ends = raw.offsets(three, [0, 1, 2], -1)

        answer = raw.produce(three, {0: good(b"before"), 1: bad, 2: good(b"behind")})

        assert raw.offsets(three, [0, 1, 2], -1) == {
            0: ends[0] + 1,
            1: ends[1],
            2: ends[2] + 1,
        }
    assert answer == {0: Produced(0, ends[0]), 1: Produced(code, -1), 2: Produced(0, ends[2])}


@pytest.mark.parametrize("acks", [2, -2, 32_767])
def test_acks_other_than_0_1_and_all_are_refused(agent: DriftlogProcess, acks: int) -> None:
    """
    INVALID_REQUIRED_ACKS for every partition, and nothing is written.
    """
    topic = make_topic(agent)
    with Raw(agent.port) as raw:
        answer = raw.produce(topic, {0: good()}, acks=acks)

        assert answer == {0: Produced(INVALID_REQUIRED_ACKS, -1)}
        assert raw.offsets(topic, [0], -1) == {0: 0}


def test_a_bad_batch_with_acks_0_closes_the_connection(agent: DriftlogProcess) -> None:
    """
    There is no answer to put an error into (KafkaApis#handleProduceRequest).
    """
    topic = make_topic(agent)
    with Raw(agent.port) as raw:
        raw.send_produce(topic, {0: _flipped(good())}, acks=0)

        assert raw.is_closed()


def test_zstd_is_refused_where_the_request_is_too_old_for_it(agent: DriftlogProcess) -> None:
    """
    Produce 6 cannot carry zstd (KIP-110).
    """
    topic = make_topic(agent)
    with Raw(agent.port) as raw:
        answer = raw.produce(topic, {0: good(codec=Codec.ZSTD)}, version=6)

    assert answer == {0: Produced(UNSUPPORTED_COMPRESSION_TYPE, -1)}


@pytest.mark.parametrize("client", ["confluent", "aiokafka"])
def test_a_record_that_is_too_large_is_told_to_its_producer(
    agent: DriftlogProcess, client: str
) -> None:
    """
    MESSAGE_TOO_LARGE for that record; smaller ones before and after it are written.
    """
    topic = make_topic(agent, max_message_bytes="10000")
    small = [Record(None, b"small", 1)]
    large = [Record(None, b"x" * 20_000, 2)]
    peer = Confluent() if client == "confluent" else Aiokafka()
    peer.produce(agent.bootstrap, {topic: "none"}, small)

    with pytest.raises(Exception, match=r"(?i)size.*large|larger|too large"):
        peer.produce(agent.bootstrap, {topic: "none"}, large)

    peer.produce(agent.bootstrap, {topic: "none"}, small)
    assert peer.consume(agent.bootstrap, {topic: 2})[topic] == at_offsets(small * 2)


def test_librdkafka_splits_what_is_too_large_together(agent: DriftlogProcess) -> None:
    """
    A batch of small records that is over max.message.bytes is answered so that its producer
    sends smaller ones; nothing is lost or doubled.
    """
    topic = make_topic(agent, max_message_bytes="3000")
    records = [Record(None, b"%04d" % n + b"x" * 500, 1) for n in range(300)]
    client = Confluent(**{"batch.size": 2_500})

    client.produce(agent.bootstrap, {topic: "none"}, records)

    assert client.consume(agent.bootstrap, {topic: 300})[topic] == at_offsets(records)


def test_a_transactional_producer_is_told_that_there_are_no_transactions(
    agent: DriftlogProcess,
) -> None:
    """
    At once and for good; it does not retry until it times out.
    """
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": agent.bootstrap, "transactional.id": "t", "log_level": 2}
    )

    with pytest.raises(confluent_kafka.KafkaException) as refused:
        producer.init_transactions(20)

    error = refused.value.args[0]
    assert error.code() == confluent_kafka.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert "This version has no transactions" in error.str()
    assert (error.fatal(), error.retriable()) == (True, False)


# ── Undecodable ──

GARBAGE = {
    "random bytes": with_records(good(b"a", b"b", b"c"), lambda r: b"\x9b\xff\x00" * len(r)),
    "a record that is cut": with_records(good(b"abc", b"def"), lambda r: r[:-4]),
    "bytes behind the last record": with_records(good(b"abc"), lambda r: r + b"\0\0\0"),
    "a gzip that is none": with_records(good(b"x" * 99, codec=Codec.GZIP), lambda r: b"no" * 20),
    "a snappy that is cut": with_records(good(b"xy" * 99, codec=Codec.SNAPPY), lambda r: r[:-5]),
    "an lz4 that is none": with_records(good(b"x" * 99, codec=Codec.LZ4), lambda r: b'\4"M\x18'),
    "a zstd that is cut": with_records(good(b"xyz" * 99, codec=Codec.ZSTD), lambda r: r[:-6]),
    "an empty zstd": with_records(good(b"xyz", codec=Codec.ZSTD), lambda r: b""),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_what_cannot_be_decoded_stops_nothing(agent: DriftlogProcess, name: str) -> None:
    """
    A valid CRC around garbage is taken, as Kafka takes it; sealing goes past it; a consumer
    gets it as it came, and what is around it as ever: also after a restart.
    """
    topic = make_topic(agent)
    garbage = GARBAGE[name]
    with Raw(agent.port) as raw:
        before = raw.produce(topic, {0: good(b"one", b"two")})[0]
        middle = raw.produce(topic, {0: garbage})[0]
        behind = raw.produce(topic, {0: good(b"three")})[0]
    assert (before.error_code, middle.error_code, behind.error_code) == (0, 0, 0)
    counted = metrics(agent)["driftlog_undecodable_batches_total"]

    sealed_end = seal(agent, topic)
    counted = metrics(agent)["driftlog_undecodable_batches_total"] - counted
    agent.kill()
    agent.start()

    with Raw(agent.port) as raw:
        fetched = raw.fetch(topic, {0: middle.base_offset})[0].records
        last = raw.fetch(topic, {0: behind.base_offset})[0].records
    expected = at_offset(garbage, middle.base_offset, leader_epoch(fetched))
    assert sealed_end == {0: behind.base_offset + 1}
    assert fetched[: len(garbage)] == expected
    assert b"three" in last
    assert counted == 1


@pytest.mark.parametrize("name", GARBAGE)
def test_what_cannot_be_decoded_cannot_be_recompressed(agent: DriftlogProcess, name: str) -> None:
    """
    Where a topic's codec is another, batches are decoded at once: there garbage is refused,
    alone.
    """
    other = "zstd" if "lz4" in name else "lz4"
    topic = make_topic(agent, compression_type=other)
    with Raw(agent.port) as raw:
        first = raw.produce(topic, {0: good(b"one")})
        refused = raw.produce(topic, {0: GARBAGE[name]})
        last = raw.produce(topic, {0: good(b"two")})

    assert first == {0: Produced(0, 0)}
    assert refused[0].error_code in (INVALID_RECORD, CORRUPT_MESSAGE)
    assert last == {0: Produced(0, 1)}


def test_a_small_batch_of_gigabytes_is_not_unpacked(agent: DriftlogProcess) -> None:
    """
    92 kB of zstd that hold 3 GB of zeros: sealed as undecodable, refused where it had to be
    recompressed, in bounded memory.
    """
    packer = zstandard.ZstdCompressor(level=1).compressobj()
    packed = b"".join(packer.compress(bytes(1 << 24)) for _ in range(180)) + packer.flush()
    bomb = with_records(good(b"x", codec=Codec.ZSTD), lambda _: packed)
    kept, recompressed = make_topic(agent), make_topic(agent, compression_type="lz4")
    agent.reset_peak()
    with Raw(agent.port) as raw:
        taken = raw.produce(kept, {0: bomb})
        refused = raw.produce(recompressed, {0: bomb})
    sealed_end = seal(agent, kept)
    peaks = [agent.usage().peak_rss_bytes]
    agent.kill()
    agent.start()
    with Raw(agent.port) as raw:
        fetched = raw.fetch(kept, {0: 0})[0].records
    peaks.append(agent.usage().peak_rss_bytes)

    assert taken == {0: Produced(0, 0)}
    assert refused == {0: Produced(INVALID_RECORD, -1)}
    assert sealed_end == {0: 1}
    assert fetched == at_offset(bomb, 0, leader_epoch(fetched))
    assert metrics(agent)["driftlog_cold_fetches_total"] == 1
    assert max(peaks) < 1 << 30
