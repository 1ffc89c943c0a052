"""The tail would miss records of a flush object, read another partition's, or hide a gap."""

from array import array
from collections.abc import Sequence
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftlog_metadata.schema.model import PartitionState, TopicPartition
from driftlog_spark_reader.common.errors import (
    DamagedTopicError,
    OffsetOutOfRangeError,
    SealedMeanwhileError,
)
from driftlog_spark_reader.tail.flush_cut import (
    ObjectBatches,
    PartitionCut,
    RangeDecoder,
    UndecodableBatch,
    cut_partitions,
    first_since,
    plan_ranges,
    shared_reads,
    since,
    topic_batches,
)
from driftlog_spark_reader.tail.port import FlushSpan, TailRange
from driftlog_tiering.batches.batch import build_batch
from driftlog_tiering.batches.kernel_py import Record, encode_record
from driftlog_tiering.formats.flush_object import decode_footer
from driftlog_tiering.segments.columns import SCHEMA
from tests.spark.tail.flushes import TOPIC, FlushBody, flush_body

MiB = 1024 * 1024
OTHER = UUID(int=9)
TP = TopicPartition(TOPIC, 1)


@st.composite
def tails(draw: st.DrawFn) -> tuple[int, list[FlushBody]]:
    """A sealed end, and the objects of a tail of partition 1: its batches lie between those of
    other partitions and topics, and the first may be sealed in part."""
    offset = draw(st.integers(0, 5))
    bodies: list[FlushBody] = []
    first_end = 0
    for number in range(draw(st.integers(1, 5))):
        counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
        bases = []
        for count in counts:
            bases.append((offset, count))
            offset += count
        first_end = first_end or offset
        beside = [
            (topic, partition, [(100, 2), (102, 1)])
            for topic, partition in ((TOPIC, 0), (TOPIC, 2), (OTHER, 1))
            if draw(st.booleans())
        ]
        bodies.append(flush_body(f"flush/s/{number}", [*beside, (TOPIC, 1, bases)]))
    sealed_end = draw(st.integers(bodies[0].first_of(TOPIC, 1), first_end - 1))
    return sealed_end, draw(st.permutations(bodies))


def cut_of(sealed_end: int, bodies: Sequence[FlushBody], log_start: int = 0) -> PartitionCut:
    """The cut of partition 1."""
    state = PartitionState(sealed_end=sealed_end, log_start=log_start)
    return cut_partitions("t", {1: state}, [batches_of(body) for body in bodies])[1]


def batches_of(body: FlushBody) -> ObjectBatches:
    """As its footer has them."""
    return topic_batches(body.key, decode_footer(body.footer), TOPIC)


def read(piece: TailRange, bodies: Sequence[FlushBody]) -> list[int]:
    """The offsets of the rows of *piece*."""
    by_key = {body.key: body.data for body in bodies}
    decoder = RangeDecoder(piece)
    rows = [
        batch
        for span in piece.spans
        for batch in decoder.add(
            span, by_key[span.key][span.position : span.position + span.length]
        )
    ]
    rows += decoder.take()
    offsets: list[int] = []
    for batch in rows:
        assert isinstance(batch, pa.RecordBatch)
        assert SCHEMA == batch.schema
        offsets += batch.column("offset").to_pylist()
    return offsets


@given(tails(), st.data())
def test_pieces_have_each_offset_of_their_range_once(
    tail: tuple[int, list[FlushBody]], data: st.DataObject
) -> None:
    """
    Of any range of the tail, by pieces and spans of any size, above any log start.
    """
    sealed_end, bodies = tail
    cut = cut_of(sealed_end, bodies, data.draw(st.integers(0, sealed_end + 3)))
    start = data.draw(st.integers(sealed_end, cut.end))
    end = data.draw(st.integers(start, cut.end))
    span_bytes = data.draw(st.integers(1, 600))

    pieces = plan_ranges(
        cut, "t", TP, start, end, span_bytes=span_bytes, range_bytes=2 * span_bytes
    )

    start = max(start, cut.log_start)
    assert list(range(start, end)) == [n for piece in pieces for n in read(piece, bodies)]
    bounds = [(piece.start, piece.end) for piece in pieces]
    assert [n for n, _ in bounds] == [start, *(n for _, n in bounds[:-1])][: len(bounds)]
    assert all(n == end for _, n in bounds[-1:])
    for span in (span for piece in pieces for span in piece.spans):
        assert span.length <= span_bytes or _batches(span, bodies) == 1


def _batches(span: FlushSpan, bodies: Sequence[FlushBody]) -> int:
    (body,) = (body for body in bodies if body.key == span.key)
    positions = batches_of(body).positions
    return sum(span.position <= at < span.position + span.length for at in positions)


@given(tails(), st.data())
def test_a_missing_flush_record_is_no_empty_range(
    tail: tuple[int, list[FlushBody]], data: st.DataObject
) -> None:
    """
    Without one of the objects below the last, the tail is damaged; the message says from where on.
    """
    sealed_end, bodies = tail
    in_order = sorted(bodies, key=lambda body: body.first_of(TOPIC, 1))
    if len(in_order) < 2:
        return
    gone = in_order.pop(data.draw(st.integers(0, len(in_order) - 2)))

    with pytest.raises(DamagedTopicError, match=r"t-1: .* does not join") as error:
        cut_of(sealed_end, in_order)

    assert f"offset {max(sealed_end, gone.first_of(TOPIC, 1))};" in str(error.value)


def test_batches_that_are_there_twice_are_damage() -> None:
    """
    A flush and its consolidated object are never named at one revision.
    """
    one = flush_body("a", [(TOPIC, 1, [(0, 2), (2, 2)])])
    both = flush_body("b", [(TOPIC, 1, [(2, 2), (4, 2)])])

    with pytest.raises(DamagedTopicError, match="does not join"):
        cut_of(0, [one, both])
    assert 6 == cut_of(3, [both]).end


def test_a_range_that_was_sealed_meanwhile_is_refused() -> None:
    """
    Its flush records are gone: rows of the rest alone would hide it.
    """
    cut = cut_of(10, [flush_body("a", [(TOPIC, 1, [(8, 4), (12, 1)])])])

    with pytest.raises(SealedMeanwhileError, match="offsets 7 to 9 were sealed"):
        plan_ranges(cut, "t", TP, 7, 13)
    assert [(8, 13)] == [(p.start, p.end) for p in plan_ranges(cut, "t", TP, 8, 13)]
    with pytest.raises(SealedMeanwhileError):
        plan_ranges(cut_of(10, []), "t", TP, 9, 10)
    assert [] == plan_ranges(cut_of(10, []), "t", TP, 10, 10)
    with pytest.raises(OffsetOutOfRangeError, match="above the high watermark, 13"):
        plan_ranges(cut, "t", TP, 12, 14)


def test_a_sealed_range_below_log_start_is_not_missed() -> None:
    """
    Its records are deleted.
    """
    cut = cut_of(10, [flush_body("a", [(TOPIC, 1, [(10, 4)])])], log_start=11)

    assert [(11, 13)] == [(p.start, p.end) for p in plan_ranges(cut, "t", TP, 3, 13)]
    assert [] == plan_ranges(cut, "t", TP, 3, 11)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data[:-1], "bytes where"),
        (lambda data: data[:65] + bytes([data[65] ^ 1]) + data[66:], "CRC"),
        (lambda data: data[:7] + b"\x09" + data[8:], "no whole batch of offset 4"),
        (lambda data: data[:30], "bytes where"),
    ],
)
def test_other_bytes_than_the_footer_says_are_damage(change: object, why: str) -> None:
    """
    The message names the object and the offsets.
    """
    assert callable(change)
    body = flush_body("flush/s/0", [(TOPIC, 1, [(4, 2), (6, 1)])])
    (piece,) = plan_ranges(cut_of(4, [body]), "t", TP, 4, 7)
    (span,) = piece.spans

    with pytest.raises(DamagedTopicError, match=f"flush/s/0, bytes 0 .*{why}.* 4 to 6 out"):
        list(RangeDecoder(piece).add(span, change(body.data[: span.length])))


def test_spans_of_another_place_are_damage() -> None:
    """
    Whole batches that end elsewhere.
    """
    body = flush_body("a", [(TOPIC, 1, [(4, 2), (6, 1)])])
    span = FlushSpan("a", 0, body.footer_start, 4, 9)

    with pytest.raises(DamagedTopicError, match="its batches end at 7, not 9"):
        list(
            RangeDecoder(TailRange("t", TOPIC, 1, 4, 9, (span,))).add(
                span, body.data[: span.length]
            )
        )


def test_a_batch_that_cannot_be_decoded_is_told_and_its_neighbours_are_rows() -> None:
    """
    As sealing keeps such a batch verbatim, and goes on.
    """
    body = flush_body("a", [(TOPIC, 1, [(0, 1), (1, 2), (3, 1)])], undecodable=[1])
    (piece,) = plan_ranges(cut_of(0, [body]), "t", TP, 0, 4)
    decoder = RangeDecoder(piece)

    found = [*decoder.add(piece.spans[0], body.data[: body.footer_start]), *decoder.take()]

    told = [each for each in found if isinstance(each, UndecodableBatch)]
    assert [(1, 3)] == [(each.base, each.end) for each in told]
    rows = [each for each in found if isinstance(each, pa.RecordBatch)]
    assert [0, 3] == [n for batch in rows for n in batch.column("offset").to_pylist()]


def test_times_are_looked_for_in_batches_that_may_have_them() -> None:
    """
    By the largest timestamp of the footer, in the order of offsets; then the record.
    """
    body = flush_body("a", [(TOPIC, 1, [(0, 3), (3, 3), (6, 3)])])
    cut = cut_of(0, [body])

    assert [3, 6] == [span.base for span in since(cut, 1_003)]
    assert [] == list(since(cut, 1_009))
    (piece,) = plan_ranges(cut, "t", TP, 3, 9)
    decoder = RangeDecoder(piece)
    list(decoder.add(piece.spans[0], body.data[piece.spans[0].position : body.footer_start]))
    (rows,) = decoder.take()
    assert (4, 1_004) == first_since(rows, 1_004)
    assert (3, 1_003) == first_since(rows, 7)
    assert first_since(rows, 1_009) is None


def test_control_batches_have_no_rows() -> None:
    """
    Markers of transactions are offsets without records.
    """
    marker = build_batch(
        encode_record(Record(0, 0, b"\x00\x00\x00\x01", b"\x00" * 6, ())),
        base_offset=0,
        last_offset_delta=0,
        record_count=1,
        attributes=0x20,
        base_timestamp=1,
        max_timestamp=1,
    )
    span = FlushSpan("a", 0, len(marker), 0, 1)
    decoder = RangeDecoder(TailRange("t", TOPIC, 1, 0, 1, (span,)))

    assert [] == [*decoder.add(span, marker), *decoder.take()]


def test_an_object_is_read_once_for_pieces_that_lie_side_by_side_in_it() -> None:
    """
    Unless what lies between them is most of it, or the task would keep too much.
    """

    def piece(partition: int, *spans: tuple[str, int, int]) -> TailRange:
        found = tuple(FlushSpan(key, at, length, 0, 1) for key, at, length in spans)
        return TailRange("t", TOPIC, partition, 0, 1, found)

    pieces = [
        piece(0, ("small", 100, 50), ("far", 0, 10), ("near", 0, MiB), ("once", 0, 9)),
        piece(1, ("small", 500_000, 50), ("far", 2 * MiB, 10), ("near", 3 * MiB, MiB)),
    ]

    assert {
        "small": FlushSpan("small", 100, 499_950, -1, -1),
        "near": FlushSpan("near", 0, 4 * MiB, -1, -1),
    } == shared_reads(pieces)
    assert ["small"] == list(shared_reads(pieces, budget_bytes=4 * MiB))
    assert {} == shared_reads(pieces, budget_bytes=100)


def test_columns_of_a_topic_are_its_own() -> None:
    """
    An object without the topic has none.
    """
    body = flush_body("a", [(TOPIC, 1, [(0, 1)]), (OTHER, 1, [(5, 2)])])

    found = topic_batches("a", decode_footer(body.footer), OTHER)
    none = topic_batches("a", decode_footer(body.footer), UUID(int=77))

    assert (array("q", [5]), ((1, 5, 7, 0, 1),)) == (found.bases, found.slices)
    assert (0, ()) == (len(none.bases), none.slices)
