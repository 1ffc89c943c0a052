"""Flush objects: raw record batches of many partitions, and a footer that finds each.

    ┌──────────┬──────────┬── … ──┬────────┐
    │ batch 0  │ batch 1  │       │ footer │      sorted by (topic id, partition, offset)
    └──────────┴──────────┴── … ──┴────────┘
    0                             footer_start   size_bytes

Batches are stored as consumers receive them: base offset and leader epoch patched in,
everything else as the producer sent it.  The footer is

    offset size  field
    0      4     magic "DLFF"
    4      2     version (1 to 4), big endian like all that follows
    6      2     reserved, 0
    8      4     CRC-32C of the compressed body
    12     4     length of the body before compression, bytes
    16     …     body: one zstd frame

and its body, columns of N values each:

    8      committed_seq: the session's sequence number that was committed
    8      seq: this object's sequence number
    2+n    session id, UTF-8
    4      T, number of topics;  16 × T  topic ids
    4      N, number of batches
    4 × N  topic index      4 × N  partition         4 × N  leader epoch
    8 × N  base offset      4 × N  last offset delta 2 × N  attributes
    8 × N  producer id      2 × N  producer epoch    4 × N  base sequence
    8 × N  max timestamp ms 4 × N  position, bytes   4 × N  length, bytes
    8 × N  flushed at, ms since 1970 (version 3; 0: not known)
    8 × N  first offset of the batch's leader epoch (version 4; −1: not known)
    8 × N  log start when the flush was cut         (version 4; −1: not known)
    4      level;  4  index, as in the record's key (version 4; 0: no rewrite)
    T × (2 + n)  name of each topic, UTF-8          (version 4; empty: not known)

In version 1 the batches of a partition follow each other without a gap in offsets, as in one
flush.  Version 2 allows gaps: a session may release a partition and lead it again later, other
sessions continue it in between, and a consolidated object of the session's flushes has gaps in
that partition.  Each run without a gap is a `Slice`.  Version 3 adds one column to version 2: the
time at which the flush of the batch was cut, by the wall clock of its agent.  A rewrite keeps that
time; for batches of versions 1 and 2 the time is not known.  Version 4 adds `RestoreFacts`: what
only a restore from the bucket needs.  Agents write version 3, and version 4 from the cluster's
format level 2 on.

A *consolidated* object holds the batches that are still needed of earlier flushes of one session.
Its footer has the columns of every batch as the flush had them (except positions), so that the
next leader of a partition finds the same log in it.  ``session id`` is the session that
flushed; ``seq`` the last sequence number that was replaced, as in the record's key; and
``committed_seq`` is the same: everything that it replaces was committed.

A stored format: add a version, never edit one in place.
Pure.
"""

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple
from uuid import UUID

import crc32c
import zstandard

from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.foundation.types import Buffer

VERSION: Final = 4
_WITHOUT_FACTS: Final = 3
_WITHOUT_GAPS: Final = 1
_WITHOUT_TIMES: Final = 2
_HEAD: Final = Struct(">4sHHII")
_MAGIC: Final = b"DLFF"
_SEQUENCES: Final = Struct(">qq")
_PLACE: Final = Struct(">ii")
NOT_KNOWN: Final = -1
_MAX_BODY_BYTES: Final = 256 * 1024 * 1024
"""4 million batches; a flush object of 64 MiB holds a million of the smallest."""

_TAILS_BYTES: Final = (16 * 1024, 256 * 1024)
"""Sizes of the first reads, before the whole object is read: the footer is at its end."""

_TYPECODES: Final = "iiiqihqhiqiiq"
"""Columns from topic index to time of flush, as `array` typecodes (sizes 4, 8 and 2 bytes)."""

LENGTH: Final = 11
FLUSHED_AT: Final = 12
"""Columns by number."""


class CorruptFlushObjectError(CorruptError):
    """The bytes are no footer, or the footer contradicts itself."""


class NewerFlushObjectError(CorruptFlushObjectError):
    """The footer's version is of a later release: nothing is damaged."""


class FlushBatch(NamedTuple):
    """One batch of a flush object, as its footer has it."""

    topic_index: int
    partition: int
    leader_epoch: int
    base_offset: int
    last_offset_delta: int
    attributes: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    max_timestamp_ms: int
    position: int
    length: int
    flushed_at_ms: int = 0


class Slice(NamedTuple):
    """The batches ``[first, first + count)`` of one partition, ``[base, end)`` in offsets."""

    topic_id: UUID
    partition: int
    base: int
    end: int
    first: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which has no caller


@dataclass(frozen=True, slots=True, eq=False)
class RestoreFacts:
    """What a restore from the bucket needs beside the batches: columns of one entry for each batch,
    and the topics' names, in the order of their ids.  ``level``, ``index``: of a rewrite."""

    topic_names: tuple[str, ...]
    epoch_starts: "array[int]"
    log_starts: "array[int]"
    level: int = 0
    index: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Footer:
    """The decoded index of a flush object: columns of equal length, sorted as the batches are."""

    session_id: str
    seq: int
    committed_seq: int
    topic_ids: tuple[UUID, ...]
    columns: tuple["array[int]", ...]
    facts: RestoreFacts | None = None
    """None: of a version before 4."""

    def __len__(self) -> int:
        return len(self.columns[0])

    def batch(self, index: int) -> FlushBatch:
        """The batch at *index*, ``0 ≤ index < len(footer)``."""
        return FlushBatch(*[column[index] for column in self.columns])

    def slices(self) -> Iterator[Slice]:
        """One slice per partition, and per run without a gap in offsets, in the object's order."""
        topics, partitions = self.columns[0], self.columns[1]
        bases, deltas = self.columns[3], self.columns[4]
        first, n = 0, len(self)
        for i in range(1, n + 1):
            if (
                i == n
                or partitions[i] != partitions[first]
                or topics[i] != topics[first]
                or bases[i] != bases[i - 1] + deltas[i - 1] + 1
            ):
                yield Slice(
                    topic_id=self.topic_ids[topics[first]],
                    partition=partitions[first],
                    base=bases[first],
                    end=bases[i - 1] + deltas[i - 1] + 1,
                    first=first,
                    count=i - first,
                )
                first = i


def encode_footer(
    *,
    session_id: str,
    seq: int,
    committed_seq: int,
    topic_ids: Sequence[UUID],
    columns: Sequence["array[int]"],
    facts: RestoreFacts | None = None,
) -> bytes:
    """Encode the footer of an object whose batches *columns* describe (`FlushBatch`'s order), in
    version 4 with *facts*, else in version 3.

    Raises:
        AssertionError: columns of another type or of different lengths.
    """
    assert [c.typecode for c in columns] == list(_TYPECODES)
    assert len({len(c) for c in columns}) == 1
    name = session_id.encode()
    count = len(columns[0])
    parts = [
        _SEQUENCES.pack(committed_seq, seq),
        len(name).to_bytes(2, "big"),
        name,
        len(topic_ids).to_bytes(4, "big"),
        *(topic_id.bytes for topic_id in topic_ids),
        count.to_bytes(4, "big"),
    ]
    parts.extend(_big_endian(column) for column in columns)
    if facts is not None:
        assert len(facts.topic_names) == len(topic_ids)
        assert len(facts.epoch_starts) == len(facts.log_starts) == count
        parts += [_big_endian(facts.epoch_starts), _big_endian(facts.log_starts)]
        parts.append(_PLACE.pack(facts.level, facts.index))
        for topic in facts.topic_names:
            parts += [len(topic.encode()).to_bytes(2, "big"), topic.encode()]
    version = _WITHOUT_FACTS if facts is None else VERSION
    body = b"".join(parts)
    assert len(body) <= _MAX_BODY_BYTES
    packed = zstandard.ZstdCompressor(level=1).compress(body)
    return _HEAD.pack(_MAGIC, version, 0, crc32c.crc32c(packed), len(body)) + packed


def decode_footer(data: Buffer) -> Footer:
    """Invert `encode_footer`.

    Raises:
        CorruptFlushObjectError: not a footer, an unknown version, a checksum that does
            not match, or columns that contradict each other.
    """
    if len(data) < _HEAD.size:
        raise CorruptFlushObjectError(f"a footer of {len(data)} bytes is cut short")
    magic, version, _, checksum, length = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptFlushObjectError(f"not a flush object's footer: it starts with {magic!r}")
    if not _WITHOUT_GAPS <= version <= VERSION:
        raise NewerFlushObjectError(
            f"footer version {version}; this release reads 1 to {VERSION}: upgrade the agent"
        )
    packed = memoryview(data)[_HEAD.size :]
    if crc32c.crc32c(packed) != checksum:
        raise CorruptFlushObjectError("the footer's CRC-32C does not match")
    if length > _MAX_BODY_BYTES:
        raise CorruptFlushObjectError(f"a footer of {length} bytes is over the limit")
    try:
        body = zstandard.ZstdDecompressor().decompress(packed, max_output_size=length)
        if len(body) != length:
            raise CorruptFlushObjectError(f"{len(body)} bytes where {length} were announced")
        footer = _decode_body(body, version)
    except (zstandard.ZstdError, StructError, UnicodeDecodeError, IndexError) as error:
        raise CorruptFlushObjectError(f"the footer cannot be decoded: {error}") from error
    _check(footer, gaps=version > _WITHOUT_GAPS)
    return footer


def footer_reads(size_bytes: int) -> Iterable[int]:
    """Where the reads of an object's footer start, one after the other until it is found."""
    for tail in _TAILS_BYTES:
        if tail < size_bytes:
            yield size_bytes - tail
    yield 0


def find_footer(tail: Buffer) -> Footer | None:
    """The footer at the end of *tail*, an object's last bytes; None: it is not there, or not all of
    it."""
    whole = bytes(tail)
    at = len(whole)
    while (at := whole.rfind(_MAGIC, 0, at)) >= 0:
        try:
            return decode_footer(whole[at:])
        except CorruptError:
            continue
    return None


def _decode_body(body: bytes, version: int) -> Footer:
    committed_seq, seq = _SEQUENCES.unpack_from(body, 0)
    at = _SEQUENCES.size
    name_length = int.from_bytes(body[at : at + 2], "big")
    session_id = body[at + 2 : at + 2 + name_length].decode()
    at += 2 + name_length
    topics = int.from_bytes(body[at : at + 4], "big")
    at += 4
    if topics * 16 > len(body) - at:
        raise CorruptFlushObjectError(f"{topics} topics do not fit into the footer")
    topic_ids = tuple(UUID(bytes=body[at + 16 * i : at + 16 * i + 16]) for i in range(topics))
    at += 16 * topics
    count = int.from_bytes(body[at : at + 4], "big")
    at += 4
    times = version > _WITHOUT_TIMES
    columns: list[array[int]] = []
    for typecode in _TYPECODES if times else _TYPECODES[:-1]:
        columns.append(_column(body, at, typecode, count))
        at += columns[-1].itemsize * count
    facts = None
    if version > _WITHOUT_FACTS:
        starts = [_column(body, at + 8 * count * i, "q", count) for i in range(2)]
        at += 16 * count
        level, index = _PLACE.unpack_from(body, at)
        at += _PLACE.size
        names: list[str] = []
        for _ in topic_ids:
            size = int.from_bytes(body[at : at + 2], "big")
            names.append(body[at + 2 : at + 2 + size].decode())
            at += 2 + size
        facts = RestoreFacts(tuple(names), starts[0], starts[1], level, index)
    if at != len(body):
        raise CorruptFlushObjectError(f"{len(body) - at} bytes too many in the footer")
    if not times:
        columns.append(array(_TYPECODES[-1], bytes(8 * count)))
    return Footer(session_id, seq, committed_seq, topic_ids, tuple(columns), facts)


def _column(body: bytes, at: int, typecode: str, count: int) -> "array[int]":
    column: array[int] = array(typecode)
    size = column.itemsize * count
    if size > len(body) - at:
        raise CorruptFlushObjectError(f"{count} batches do not fit into the footer")
    column.frombytes(body[at : at + size])
    if sys.byteorder == "little":
        column.byteswap()
    return column


def _check(footer: Footer, *, gaps: bool) -> None:
    """Check what readers rely on: indexes in range, batches back to back, offsets in order, and
    no gap in them unless *gaps*."""
    topics, partitions, _, bases, deltas, *_rest, positions, lengths, times = footer.columns
    if len(set(footer.topic_ids)) != len(footer.topic_ids):
        raise CorruptFlushObjectError("a topic is there twice")
    at = 0
    previous: tuple[int, int] | None = None
    next_offset = 0
    for i in range(len(footer)):
        if not 0 <= topics[i] < len(footer.topic_ids):
            raise CorruptFlushObjectError(f"batch {i} names topic {topics[i]}, which is not there")
        if positions[i] != at or lengths[i] <= 0:
            raise CorruptFlushObjectError(f"batch {i} does not start where its predecessor ends")
        at += lengths[i]
        place = (topics[i], partitions[i])
        if previous is not None and place < previous:
            raise CorruptFlushObjectError(f"batch {i} is out of order")
        if place == previous and bases[i] < next_offset:
            raise CorruptFlushObjectError(f"batch {i} begins before its predecessor ends")
        if place == previous and bases[i] > next_offset and not gaps:
            raise CorruptFlushObjectError(f"a gap in offsets before batch {i}")
        if deltas[i] < 0 or bases[i] < 0:
            raise CorruptFlushObjectError(f"batch {i} has a negative offset or no records")
        if times[i] < 0:
            raise CorruptFlushObjectError(f"batch {i} was flushed before 1970")
        previous, next_offset = place, bases[i] + deltas[i] + 1


def _big_endian(column: "array[int]") -> bytes:
    if sys.byteorder == "little":
        column = column[:]
        column.byteswap()
    return column.tobytes()
