"""Flush objects as agents write them: real batches, a real footer.

Shell.
"""

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from driftlog_tiering.batches.batch import build_batch
from driftlog_tiering.batches.kernel_py import Record, encode_record
from driftlog_tiering.formats.flush_object import encode_footer

TOPIC = UUID(int=5)

Run = tuple[UUID, int, Sequence[tuple[int, int]]]
"""Topic, partition, and each batch's base and number of records."""


@dataclass(frozen=True)
class FlushBody:
    """An object and what is in it."""

    key: str
    data: bytes
    footer_start: int
    runs: Sequence[Run]

    @property
    def footer(self) -> bytes:
        """Encoded."""
        return self.data[self.footer_start :]

    def first_of(self, topic: UUID, partition: int) -> int:
        """The first offset of a partition."""
        return next(batches[0][0] for *of, batches in self.runs if of == [topic, partition])


def flush_body(
    key: str,
    runs: Sequence[Run],
    *,
    session: str = "s",
    seq: int = 1,
    undecodable: Collection[int] = (),
) -> FlushBody:
    """An object of *runs*; the record at an offset has that as its value, and 1,000 more as its
    time.  *undecodable*: base offsets of batches whose records are garbage."""
    runs = sorted(runs)
    topic_ids = sorted({run[0] for run in runs})
    columns: list[array[int]] = [array(code) for code in "iiiqihqhiqiiq"]
    data = bytearray()
    for topic, partition, batches in runs:
        for base, count in batches:
            batch = _batch(base, count, garbage=base in undecodable)
            row = (
                *(topic_ids.index(topic), partition, 0, base, count - 1, 0, -1, -1, -1),
                *(1_000 + base + count - 1, len(data), len(batch), 1),
            )
            for column, number in zip(columns, row, strict=True):
                column.append(number)
            data += batch
    footer_start = len(data)
    data += encode_footer(
        session_id=session, seq=seq, committed_seq=seq - 1, topic_ids=topic_ids, columns=columns
    )
    return FlushBody(key, bytes(data), footer_start, runs)


def _batch(base: int, count: int, *, garbage: bool) -> bytes:
    records = b"".join(
        encode_record(Record(n, n, None, b"%d" % (base + n), ())) for n in range(count)
    )
    return bytes(
        build_batch(
            b"\xff" * len(records) if garbage else records,
            base_offset=base,
            last_offset_delta=count - 1,
            record_count=count,
            attributes=0,
            base_timestamp=1_000 + base,
            max_timestamp=1_000 + base + count - 1,
        )
    )
