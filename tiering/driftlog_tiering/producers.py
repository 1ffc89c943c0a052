"""Producer state of one partition: what makes an idempotent producer's retry harmless.

For each producer id the newest epoch and its last 64 batches are remembered
(Kafka: 5, because its clients keep at most 5 requests in flight on one
connection; an acknowledgement from a bucket takes 60 times as long, so ours may
remember more).  The rules are those of Kafka's `ProducerAppendInfo` and
`ProducerStateEntry`:

* the same (epoch, first, last) sequence again → a duplicate, with its offsets;
* an older epoch → refused; a newer one must start at sequence 0;
* within an epoch the next batch continues the last one, and 2^31 − 1 is followed by 0;
* a producer that is not known may start anywhere.

A snapshot is the state at one offset, computed from the previous snapshot and
the batches since, and so the same whoever computes it.  Hence old producers go
by their place in the log and not by a clock: the 5,000 that wrote last are kept.

Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

import crc32c
import zstandard

from driftlog_metadata.errors import CorruptError
from driftlog_tiering.batch import Buffer

WINDOW: Final = 64
"""Batches remembered per producer and partition (design.md, step 1)."""

MAX_PRODUCERS: Final = 5_000
"""Producers remembered per partition; Kafka forgets them after `producer.id.expiration.ms`."""

_SEQUENCE_MODULUS: Final = 1 << 31
_HEAD: Final = Struct(">4sHHI")
_MAGIC: Final = b"DLPS"
_VERSION: Final = 1
_WHAT: Final = Struct(">Iq")
_PRODUCER: Final = Struct(">qhH")
_BATCH: Final = Struct(">iiqi")
_MAX_BODY_BYTES: Final = MAX_PRODUCERS * (_PRODUCER.size + WINDOW * _BATCH.size) + 64


class CorruptSnapshotError(CorruptError):
    """Bytes that are not a producer snapshot."""


class ProducerBatch(NamedTuple):
    """One remembered batch.  Sequences and offsets are those of its first and last record."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class Refusal(Enum):
    """Why a batch is not appended; Kafka's error codes 45 and 47."""

    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47


@dataclass(slots=True)
class _Producer:
    epoch: int
    batches: list[ProducerBatch]


def last_sequence(base_sequence: int, records: int) -> int:
    """Sequence of the last of *records* ≥ 1 (`DefaultRecordBatch.incrementSequence`: wraps)."""
    return (base_sequence + records - 1) % _SEQUENCE_MODULUS


class ProducerStates:
    """All producers of one partition."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        """In the order of their last append: the first is the one to forget."""

    def __len__(self) -> int:
        return len(self._producers)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._producers

    def check(
        self, producer_id: int, epoch: int, base_sequence: int, records: int
    ) -> ProducerBatch | Refusal | None:
        """Judge a batch: the original of which it is a duplicate, a refusal, or None: append it."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return None
        if epoch != producer.epoch:
            if epoch < producer.epoch:
                return Refusal.INVALID_PRODUCER_EPOCH
            return None if base_sequence == 0 else Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER
        newest = producer.batches[-1]
        if base_sequence == (newest.last_sequence + 1) % _SEQUENCE_MODULUS:
            return None
        last = last_sequence(base_sequence, records)
        for batch in reversed(producer.batches):
            if batch.base_sequence == base_sequence and batch.last_sequence == last:
                return batch
        return Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER

    def last_offset(self, producer_id: int) -> int:
        """Of its newest batch; −1: there is none."""
        producer = self._producers.get(producer_id)
        return -1 if producer is None else producer.batches[-1].last_offset

    def append(
        self, producer_id: int, epoch: int, base_sequence: int, records: int, base_offset: int
    ) -> None:
        """Remember a batch that is in the log.  Batches come in offset order."""
        producer = self._producers.pop(producer_id, None)
        batch = ProducerBatch(
            base_sequence,
            last_sequence(base_sequence, records),
            base_offset,
            base_offset + records - 1,
        )
        if producer is None or producer.epoch != epoch:
            producer = _Producer(epoch, [batch])
        else:
            batches = producer.batches
            assert batches[-1].last_offset < base_offset, "batches come in offset order"
            if len(batches) >= WINDOW:
                del batches[0]
            batches.append(batch)
        self._producers[producer_id] = producer
        if len(self._producers) > MAX_PRODUCERS:
            del self._producers[next(iter(self._producers))]

    def items(self) -> Iterator[tuple[int, int, tuple[ProducerBatch, ...]]]:
        """(producer id, epoch, remembered batches), longest silent first."""
        for producer_id, producer in self._producers.items():
            yield producer_id, producer.epoch, tuple(producer.batches)

    def copy(self) -> "ProducerStates":
        """An independent copy."""
        other = ProducerStates()
        other._producers = {
            producer_id: _Producer(p.epoch, list(p.batches))
            for producer_id, p in self._producers.items()
        }
        return other

    # ── Snapshots ──

    def encode(self, offset: int) -> bytes:
        """The snapshot at *offset*: every remembered batch is below it.

        offset size  field
        0      4     magic "DLPS"
        4      2     version (1)
        6      2     0
        8      4     CRC-32C of all that follows
        12     4     length of the body, bytes
        16     8     offset
        24     …     zstd(body): per producer (id 8, epoch 2, batches n 2), then per batch
                     (base sequence 4, last sequence 4, base offset 8, last offset delta 4)
        """
        parts: list[bytes] = []
        for producer_id, epoch, batches in self.items():
            parts.append(_PRODUCER.pack(producer_id, epoch, len(batches)))
            for b in batches:
                assert b.last_offset < offset
                parts.append(
                    _BATCH.pack(
                        b.base_sequence,
                        b.last_sequence,
                        b.base_offset,
                        b.last_offset - b.base_offset,
                    )
                )
        body = b"".join(parts)
        packed = zstandard.ZstdCompressor(level=1).compress(body)
        checked = _WHAT.pack(len(body), offset) + packed
        return _HEAD.pack(_MAGIC, _VERSION, 0, crc32c.crc32c(checked)) + checked

    @classmethod
    def decode(cls, data: Buffer) -> tuple[int, "ProducerStates"]:
        """Invert `encode`: (offset, state).

        Raises:
            CorruptSnapshotError: not a snapshot, an unknown version, a checksum that does
                not match, batches that contradict each other.
        """
        if len(data) < _HEAD.size + _WHAT.size:
            raise CorruptSnapshotError(f"a producer snapshot of {len(data)} bytes is cut short")
        magic, version, zero, checksum = _HEAD.unpack_from(data)
        if magic != _MAGIC or version != _VERSION or zero:
            raise CorruptSnapshotError(f"not a producer snapshot of version {_VERSION}")
        checked = memoryview(data)[_HEAD.size :]
        if crc32c.crc32c(checked) != checksum:
            raise CorruptSnapshotError("the producer snapshot's CRC-32C does not match")
        length, offset = _WHAT.unpack_from(checked)
        if length > _MAX_BODY_BYTES:
            raise CorruptSnapshotError(f"a producer snapshot of {length} bytes is too long")
        packed = checked[_WHAT.size :]
        try:
            body = zstandard.ZstdDecompressor().decompress(packed, max_output_size=length)
            if len(body) != length:
                raise CorruptSnapshotError(f"{len(body)} bytes where {length} were announced")
            return offset, cls._decode_body(body, offset)
        except (zstandard.ZstdError, StructError) as error:
            raise CorruptSnapshotError(f"the producer snapshot is damaged: {error}") from error

    @classmethod
    def _decode_body(cls, body: bytes, offset: int) -> "ProducerStates":
        states = cls()
        at = 0
        while at < len(body):
            producer_id, epoch, count = _PRODUCER.unpack_from(body, at)
            at += _PRODUCER.size
            if not 0 < count <= WINDOW or producer_id in states:
                raise CorruptSnapshotError(f"producer {producer_id} is there twice or {count=}")
            batches: list[ProducerBatch] = []
            for _ in range(count):
                first, last, base, delta = _BATCH.unpack_from(body, at)
                at += _BATCH.size
                after = batches[-1].last_offset if batches else -1
                if not after < base <= base + delta < offset:
                    raise CorruptSnapshotError(f"producer {producer_id}: no batch fits at {base}")
                batches.append(ProducerBatch(first, last, base, base + delta))
            states._producers[producer_id] = _Producer(epoch, batches)
        return states
