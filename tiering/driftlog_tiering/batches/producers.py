"""Producer state of one partition: what makes an idempotent producer's retry harmless.

For each producer id the newest epoch and its last 64 batches are remembered
(Kafka: 5, because its clients keep at most 5 requests in flight on one
connection; an acknowledgement from a bucket takes 60 times as long, so driftlog
remembers more).  The rules are those of Kafka's `ProducerAppendInfo` and
`ProducerStateEntry`:

* the same (epoch, first, last) sequence again → a duplicate, with its offsets;
* an older epoch → refused; a newer one must start at sequence 0;
* within an epoch the next batch continues the last one, and 2^31 − 1 is followed by 0;
* a producer that is not known may start anywhere.

Producers are forgotten by age and never by count: one that has been silent for
`producer.id.expiration.ms` may start anywhere again, however many others there are.
One that has been silent for ten minutes keeps five batches, as Kafka's do.

    append ──▶ writing: 64 batches ──ten minutes──▶ silent: 5 ──a day──▶ forgotten
                  ▲                                   │
                  └───────────── append ──────────────┘

All times of one `ProducerStates` are of one clock.  A leader's own state has its monotonic clock
(`age`).  A *snapshot* is the state at one offset, computed from the previous snapshot and the
batches since.  Its times are those of flushes, in ms since 1970, and age is counted up to its
newest flush: the time of the computation makes no difference (`settle`).

A wall clock may be ahead, for hours and many flushes.  The time between two flushes counts for
`_STEP_MS` at most: five minutes if they are of two sessions, whose clocks may be of two machines;
an hour within one session, whose clock may be set forward.  `flushed` takes the rest off the age
of every producer.  So one clock that is ahead makes the agent forget no producer, and a producer
that wrote within five minutes keeps its batches under every leader.  After the clock that is
ahead, no time is older than the flush that follows.  The price: a partition with fewer flushes
than that remembers a producer for longer, up to 24 flushes (288 if each is of another session)
with the expiration of a day.

A batch takes 16 bytes and a producer 400 more; `size_bytes` is the sum.

Pure.
"""

from collections.abc import Iterator
from enum import Enum
from itertools import chain, islice
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

import crc32c
import zstandard

from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.foundation.types import Buffer

WINDOW: Final = 64
"""Batches remembered per producer and partition (design.md, step 1)."""

SILENT_WINDOW: Final = 5
"""Batches remembered of a silent producer (`ProducerStateEntry.NUM_BATCHES_TO_RETAIN`)."""

SILENT_MS: Final = 600_000.0
"""Clients send a batch again for up to two minutes (Java, `delivery.timeout.ms`) or five
(librdkafka, `message.timeout.ms`).  Longer: producers that are gone take more memory."""

EXPIRATION_MS: Final = 86_400_000.0
"""`producer.id.expiration.ms`, by default."""

STATE_BYTES: Final = 256 * 1024 * 1024
"""`driftlog.producer.state.max.bytes`, by default."""

PRODUCER_BYTES: Final = 400
"""Memory of one producer in CPython, without its batches."""

MAX_BODY_BYTES: Final = 1 << 30
"""Largest body of a snapshot: four times what an agent remembers of all partitions by default."""

_STEP_MS: Final = (SILENT_MS / 2, 3_600_000.0)
"""Limit of the time that counts between two flushes: of two sessions, and of one.  Longer: a clock
that is ahead makes producers older.  Shorter: partitions with few writes remember producers for
longer."""

_SEQUENCE_MODULUS: Final = 1 << 31
_HEAD: Final = Struct(">4sHHI")
_MAGIC: Final = b"DLPS"
_VERSION: Final = 2
_WITHOUT_TIMES: Final = 1
_WHAT: Final = Struct(">Iq")
_CLOCK: Final = Struct(">qH")
_PRODUCER: Final = Struct(">qhHq")
_BATCH: Final = Struct(">iiq")
_PRODUCER_1: Final = Struct(">qhH")
_BATCH_1: Final = Struct(">iiqi")
"""A batch of version 1."""
_NUMBERS: Final = Struct(">ii")
_pack: Final = _BATCH.pack
_BATCH_BYTES: Final = _BATCH.size
_WINDOW_BYTES: Final = WINDOW * _BATCH_BYTES
_NOT_KNOWN: Final = 0.0
_AT_ONCE: Final = 250


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


class _Producer:
    """One producer; *batches*: its newest ones, packed as in a snapshot, oldest first."""

    __slots__ = ("batches", "epoch", "last_ms", "last_offset", "next_sequence")

    def __init__(
        self, epoch: int, next_sequence: int, last_offset: int, last_ms: float, batches: bytearray
    ) -> None:
        self.epoch = epoch
        self.next_sequence = next_sequence
        self.last_offset = last_offset
        self.last_ms = last_ms
        """Time of its last append; 0: not known."""
        self.batches = batches

    def original(self, base_sequence: int, records: int) -> ProducerBatch | None:
        """The remembered batch of exactly these sequences; None: there is none."""
        batches = self.batches
        numbers = _NUMBERS.pack(base_sequence, records - 1)
        at = batches.rfind(numbers)
        while at >= 0 and at % _BATCH_BYTES:
            at = batches.rfind(numbers, 0, at + _NUMBERS.size - 1)
        return None if at < 0 else _batch(*_BATCH.unpack_from(batches, at))

    def trim(self) -> int:
        """Keep only the batches of a silent producer; returns how many bytes that frees."""
        batches = self.batches
        gone = len(batches) - SILENT_WINDOW * _BATCH_BYTES
        if gone <= 0:
            return 0
        self.batches = batches[gone:]  # a copy, without spare capacity
        return gone

    def put_under(self, older: "_Producer", offset: int) -> int:
        """Put *older*'s batches of the same epoch before the own ones from *offset* on; returns by
        how many bytes `batches` grew."""
        before = len(self.batches)
        if older.epoch == self.epoch:
            mine = self.batches
            start = 0
            while start < len(mine) and _offset_at(mine, start) < offset:
                start += _BATCH_BYTES
            self.batches = (older.batches + mine[start:])[-_WINDOW_BYTES:]
        return len(self.batches) - before


def last_sequence(base_sequence: int, records: int) -> int:
    """Sequence of the last of *records* ≥ 1 (`DefaultRecordBatch.incrementSequence`: wraps)."""
    return (base_sequence + records - 1) % _SEQUENCE_MODULUS


class ProducerStates:
    """All producers of one partition."""

    __slots__ = ("_newest_ms", "_session_id", "_silent", "_writing", "size_bytes")

    def __init__(self) -> None:
        self._writing: dict[int, _Producer] = {}
        self._silent: dict[int, _Producer] = {}
        """Both are in the order of the last append: the first producer is forgotten first."""
        self.size_bytes = 0
        """Approximate memory of all producers."""
        self._session_id = ""
        self._newest_ms = _NOT_KNOWN
        """Of a snapshot: the session of its newest flush, and its time by that session's clock."""

    def __len__(self) -> int:
        return len(self._writing) + len(self._silent)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._writing or producer_id in self._silent

    def check(
        self, producer_id: int, epoch: int, base_sequence: int, records: int
    ) -> ProducerBatch | Refusal | None:
        """Judge a batch: the original that it duplicates, a refusal, or None: append it."""
        producer = self._writing.get(producer_id) or self._silent.get(producer_id)
        if producer is None:
            return None
        if epoch != producer.epoch:
            if epoch < producer.epoch:
                return Refusal.INVALID_PRODUCER_EPOCH
            return None if base_sequence == 0 else Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER
        if base_sequence == producer.next_sequence:
            return None
        original = producer.original(base_sequence, records)
        return Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER if original is None else original

    def last_offset(self, producer_id: int) -> int:
        """Last offset of the producer's newest batch; −1: the producer is not known."""
        producer = self._writing.get(producer_id) or self._silent.get(producer_id)
        return -1 if producer is None else producer.last_offset

    def append(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        records: int,
        base_offset: int,
        at_ms: float = _NOT_KNOWN,
    ) -> None:
        """Remember a batch that is in the log.  Batches come in offset order."""
        writing = self._writing
        producer = writing.pop(producer_id, None)
        if producer is None:
            producer = self._silent.pop(producer_id, None)
            if producer is None:
                self.size_bytes += PRODUCER_BYTES
                producer = _Producer(epoch, 0, -1, at_ms, bytearray())
        assert producer.last_offset < base_offset, "batches come in offset order"
        batches = producer.batches
        if producer.epoch != epoch:
            self.size_bytes -= len(batches)
            producer.epoch = epoch
            producer.batches = batches = bytearray()
        if len(batches) < _WINDOW_BYTES:
            self.size_bytes += _BATCH_BYTES
        else:
            del batches[:_BATCH_BYTES]
        batches += _pack(base_sequence, records - 1, base_offset)
        producer.next_sequence = (base_sequence + records) % _SEQUENCE_MODULUS
        producer.last_offset = base_offset + records - 1
        producer.last_ms = at_ms
        writing[producer_id] = producer

    def items(self) -> Iterator[tuple[int, int, tuple[ProducerBatch, ...]]]:
        """(producer id, epoch, remembered batches), longest silent first."""
        for producer_id, producer in self._all():
            yield (
                producer_id,
                producer.epoch,
                tuple(_batch(*numbers) for numbers in _BATCH.iter_unpack(producer.batches)),
            )

    def ids(self) -> list[int]:
        """The ids of all producers, longest silent first."""
        return [*self._silent, *self._writing]

    def last_sequence(self, producer_id: int) -> tuple[int, int] | None:
        """A producer's epoch, and the sequence of its newest record; None: it is not known."""
        producer = self._writing.get(producer_id) or self._silent.get(producer_id)
        if producer is None:
            return None
        return producer.epoch, (producer.next_sequence - 1) % _SEQUENCE_MODULUS

    def _all(self) -> Iterator[tuple[int, _Producer]]:
        return chain(self._silent.items(), self._writing.items())

    # ── Forgetting ──

    def age(self, now_ms: float, expiration_ms: float, most: int = _AT_ONCE) -> bool:
        """Forget producers that have been silent for *expiration_ms*, and keep fewer batches of
        those that have been for ten minutes; *most* of each per call.  *now_ms* is of a monotonic
        clock.  True: there may be more."""
        silent_ms = min(SILENT_MS, expiration_ms)
        silent = self._silent
        moved = _due(self._writing, now_ms - silent_ms, most)
        for producer_id in moved:
            producer = silent[producer_id] = self._writing.pop(producer_id)
            self.size_bytes -= producer.trim()
        gone = _due(silent, now_ms - expiration_ms, most)
        for producer_id in gone:
            self._forget(silent, producer_id)
        return max(len(moved), len(gone)) == most

    def flushed(self, session_id: str, at_ms: float) -> None:
        """Note that *session_id* flushed the batches appended next to a snapshot at *at_ms*, by its
        clock; 0: not known.  Flushes come in offset order.

        Time since the previous flush beyond `_STEP_MS` is taken off the age of every producer.
        """
        if not at_ms:
            return
        before_ms, same = self._newest_ms, session_id == self._session_id
        self._newest_ms, self._session_id = at_ms, session_id
        excess_ms = at_ms - before_ms - _STEP_MS[same]
        if not before_ms or excess_ms <= 0:
            return
        for _, producer in self._all():
            if producer.last_ms:
                producer.last_ms = min(producer.last_ms, before_ms) + excess_ms

    def settle(self, expiration_ms: float) -> None:
        """As `age`, for a snapshot, up to its newest flush (`flushed`); if the time of that is not
        known, no producer is forgotten.

        Times that are not known, or later (a wall clock was ahead), count as that flush's.
        """
        newest_ms = self._newest_ms
        if not newest_ms:
            return
        for among in (self._silent, self._writing):
            for producer_id, producer in list(among.items()):
                producer.last_ms = min(producer.last_ms or newest_ms, newest_ms)
                silent_ms = newest_ms - producer.last_ms
                if silent_ms >= expiration_ms:
                    self._forget(among, producer_id)
                elif silent_ms >= SILENT_MS:
                    self.size_bytes -= producer.trim()

    def remember_from(self, now_ms: float, wall_ms: float, expiration_ms: float) -> None:
        """Convert the times of a snapshot to a monotonic clock, which shows *now_ms* at *wall_ms*
        since 1970.

        A time that is not known counts as now.  Every producer of the snapshot is remembered for
        ten minutes at least, whatever wall clocks say: clients send a batch again within that time.
        """
        oldest_ms = max(0.0, expiration_ms - SILENT_MS)
        for _, producer in self._all():
            age_ms = wall_ms - producer.last_ms if producer.last_ms else 0.0
            producer.last_ms = now_ms - min(max(age_ms, 0.0), oldest_ms)
        self._writing = dict(sorted(self._all(), key=_last_ms))
        self._silent = {}

    def put_under(self, older: "ProducerStates", offset: int) -> Iterator[None]:
        """Merge in *older*, the state at *offset*; this state has the batches after it.  Works step
        by step, so that an event loop runs in between.  Batches may be appended to this state
        meanwhile; *older* is used up.
        """
        for n, (producer_id, producer) in enumerate(list(self._all())):
            before = older._pop(producer_id)
            if before is not None:
                self.size_bytes += producer.put_under(before, offset)
            if n % _AT_ONCE == _AT_ONCE - 1:
                yield
        self._silent = older._silent | self._silent
        older._writing.update(self._writing)
        self._writing = older._writing
        self.size_bytes += older.size_bytes

    def _pop(self, producer_id: int) -> _Producer | None:
        producer = self._silent.pop(producer_id, None) or self._writing.pop(producer_id, None)
        if producer is not None:
            self.size_bytes -= PRODUCER_BYTES + len(producer.batches)
        return producer

    def _forget(self, among: dict[int, _Producer], producer_id: int) -> None:
        self.size_bytes -= PRODUCER_BYTES + len(among.pop(producer_id).batches)

    # ── Snapshots ──

    def encode(self, offset: int) -> bytes:
        """The snapshot at *offset*: every remembered batch is below it.

        offset size  field
        0      4     magic "DLPS"
        4      2     version (2)
        6      2     0
        8      4     CRC-32C of all that follows
        12     4     length of the body, bytes
        16     8     offset
        24     …     zstd(body): newest flush at 8, ms since 1970, 0: not known; its session id,
                     length 2 and UTF-8; then per producer (id 8, epoch 2, batches n 2, flushed
                     at 8, as above), and per batch (base sequence 4, last offset delta 4, base
                     offset 8)

        In version 1 there are no times and no session, and a batch has (base sequence 4, last
        sequence 4, base offset 8, last offset delta 4).
        """
        name = self._session_id.encode()
        parts: list[bytes | bytearray] = [_CLOCK.pack(int(self._newest_ms), len(name)), name]
        for producer_id, producer in self._all():
            assert producer.last_offset < offset
            count = len(producer.batches) // _BATCH_BYTES
            last_ms = int(producer.last_ms)
            parts.append(_PRODUCER.pack(producer_id, producer.epoch, count, last_ms))
            parts.append(producer.batches)
        body = b"".join(parts)
        assert len(body) <= MAX_BODY_BYTES
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
        if magic != _MAGIC or zero:
            raise CorruptSnapshotError(f"not a producer snapshot: it starts with {magic!r}")
        if not _WITHOUT_TIMES <= version <= _VERSION:
            raise CorruptSnapshotError(
                f"producer snapshot version {version}; this release reads 1 to {_VERSION}: "
                "upgrade the agent"
            )
        checked = memoryview(data)[_HEAD.size :]
        if crc32c.crc32c(checked) != checksum:
            raise CorruptSnapshotError("the producer snapshot's CRC-32C does not match")
        length, offset = _WHAT.unpack_from(checked)
        if length > MAX_BODY_BYTES:
            raise CorruptSnapshotError(f"a producer snapshot of {length} bytes is too long")
        packed = checked[_WHAT.size :]
        try:
            body = zstandard.ZstdDecompressor().decompress(packed, max_output_size=length)
            if len(body) != length:
                raise CorruptSnapshotError(f"{len(body)} bytes where {length} were announced")
            states = cls()
            at = 0
            if version > _WITHOUT_TIMES:
                states._newest_ms, states._session_id, at = _read_clock(body)
            for producer_id, producer in (_read if at else _read_1)(body, at, offset):
                if producer_id in states._writing:
                    raise CorruptSnapshotError(f"producer {producer_id} is there twice")
                states._writing[producer_id] = producer
                states.size_bytes += PRODUCER_BYTES + len(producer.batches)
        except (zstandard.ZstdError, StructError, UnicodeDecodeError) as error:
            raise CorruptSnapshotError(f"the producer snapshot is damaged: {error}") from error
        return offset, states


def _read_clock(body: bytes) -> tuple[float, str, int]:
    """Time and session of the newest flush, and the position of the first producer."""
    newest_ms, length = _CLOCK.unpack_from(body)
    at = _CLOCK.size + length
    if newest_ms < 0 or at > len(body):
        raise CorruptSnapshotError("the newest flush is cut short, or was before 1970")
    return float(newest_ms), body[_CLOCK.size : at].decode(), at


def _read(body: bytes, at: int, offset: int) -> Iterator[tuple[int, _Producer]]:
    """The producers of a body of version 2, from *at* on."""
    while at < len(body):
        producer_id, epoch, count, last_ms = _PRODUCER.unpack_from(body, at)
        at += _PRODUCER.size
        batches = bytearray(body[at : at + count * _BATCH_BYTES])
        if len(batches) < count * _BATCH_BYTES or last_ms < 0:
            raise CorruptSnapshotError(f"producer {producer_id} is cut short, or wrote before 1970")
        at += len(batches)
        yield producer_id, _checked(producer_id, epoch, float(last_ms), batches, offset)


def _read_1(body: bytes, at: int, offset: int) -> Iterator[tuple[int, _Producer]]:
    """The producers of a body of version 1."""
    while at < len(body):
        producer_id, epoch, count = _PRODUCER_1.unpack_from(body, at)
        at += _PRODUCER_1.size
        batches = bytearray()
        for _ in range(count):
            first, last, base, delta = _BATCH_1.unpack_from(body, at)
            at += _BATCH_1.size
            if last != last_sequence(first, delta + 1):
                raise CorruptSnapshotError(f"producer {producer_id}: {last} does not end a batch")
            batches += _pack(first, delta, base)
        yield producer_id, _checked(producer_id, epoch, _NOT_KNOWN, batches, offset)


def _checked(
    producer_id: int, epoch: int, last_ms: float, batches: bytearray, offset: int
) -> _Producer:
    """The producer, whose batches are in order and below *offset*."""
    if not 0 < len(batches) <= _WINDOW_BYTES:
        raise CorruptSnapshotError(f"producer {producer_id} has {len(batches)} bytes of batches")
    last = -1
    after = 0
    for first, delta, base in _BATCH.iter_unpack(batches):
        if not last < base <= base + delta < offset:
            raise CorruptSnapshotError(f"producer {producer_id}: no batch fits at {base}")
        last = base + delta
        after = (first + delta + 1) % _SEQUENCE_MODULUS
    return _Producer(epoch, after, last, last_ms, batches)


def _due(among: dict[int, _Producer], last_ms: float, most: int) -> list[int]:
    """Those of the first *most* producers that have appended nothing since *last_ms*."""
    found: list[int] = []
    for producer_id, producer in islice(among.items(), most):
        if producer.last_ms > last_ms:
            break
        found.append(producer_id)
    return found


def _batch(base_sequence: int, delta: int, base_offset: int) -> ProducerBatch:
    last = last_sequence(base_sequence, delta + 1)
    return ProducerBatch(base_sequence, last, base_offset, base_offset + delta)


def _offset_at(batches: bytearray, at: int) -> int:
    offset: int = _BATCH.unpack_from(batches, at)[2]
    return offset


def _last_ms(entry: tuple[int, _Producer]) -> float:
    return entry[1].last_ms
