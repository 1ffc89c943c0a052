"""A segment that an import writes is another one than agents write, or has other records."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from driftlog_metadata.schema.model import TopicPartition
from driftlog_spark_reader.bulk_import.pieces import Piece
from driftlog_spark_reader.bulk_import.segment_task import SegmentTask, segment_ref
from driftlog_spark_reader.common.errors import ImportTopicError, StorageError
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import LeaderEpoch, SegmentRef
from driftlog_tiering.segments.segment import SegmentReader
from tests.support.sealed_topics import Message, SealedTopic

TOPIC_ID = UUID(int=7)
PIECES = {0: Piece(0, 2, 10, 3, 0), 1: Piece(1, 2, 13, 2, 0), 5: Piece(5, 3, 0, 1, 0)}
ROWS = pa.struct(
    [
        ("piece", pa.int32()),
        ("ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)

Header = tuple[str | None, bytes | None]


def row(piece: int, ms: int, headers: Sequence[Header] | None = None) -> dict[str, object]:
    made = None if headers is None else [{"key": k, "value": v} for k, v in headers]
    value = None if ms % 2 else b"value of %d" % ms
    return {"piece": piece, "ms": ms, "key": b"k%d" % ms, "value": value, "headers": made}


def batch(*rows: dict[str, object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.array(rows, ROWS))


def write(
    location: Path | str, *batches: pa.RecordBatch, segment_bytes: int = 2**20
) -> list[tuple[int, SegmentRef]]:
    """Piece and reference of each segment."""
    task = SegmentTask(str(location), "t", TOPIC_ID, segment_bytes, PIECES)
    found = [one for answer in task(batches) for one in answer.to_pylist()]
    return [(one["piece"], segment_ref(one)) for one in found]


def reader_of(location: Path, ref: SegmentRef) -> SegmentReader:
    return SegmentReader((location / ref.key).read_bytes(), ref.size_bytes, ref.footer_crc)


ALL = (
    batch(row(0, 5), row(0, 6, [("h", None), ("h", b"x")])),
    batch(row(0, 6), row(1, 7), row(1, 9, [])),
    batch(row(5, 1)),
)


def test_each_piece_becomes_segments_with_the_offsets_of_the_plan(tmp_path: Path) -> None:
    """
    And with the facts that agents read: epochs, times, counts, CRCs.
    """
    found = write(tmp_path, *ALL)

    assert [(0, 10, 13), (1, 13, 15), (5, 0, 1)] == [(n, ref.base, ref.end) for n, ref in found]
    ref = found[0][1]
    reader = reader_of(tmp_path, ref)
    assert (LeaderEpoch(0, 10),) == reader.leader_epochs
    assert ("t", TOPIC_ID, 2, 10, 13) == (
        *(reader.topic, reader.topic_id, reader.partition),
        *(reader.base, reader.end),
    )
    assert (3, 5, 6, 11) == (
        *(ref.records, ref.min_timestamp_ms),
        *(ref.max_timestamp_ms, ref.max_timestamp_offset),
    )
    (group,) = reader.row_groups
    data = (tmp_path / ref.key).read_bytes()[group.start : group.end]
    table = reader.read_table(group, data)
    assert [10, 11, 12] == table["offset"].to_pylist()
    assert [b"k5", b"k6", b"k6"] == table["key"].to_pylist()
    assert [None, b"value of 6", b"value of 6"] == table["value"].to_pylist()
    assert [5_000, 6_000, 6_000] == table["timestamp"].cast(pa.int64()).to_pylist()
    headers = [{"key": "h", "value": None}, {"key": "h", "value": b"x"}]
    assert [None, headers, None] == table["headers"].to_pylist()


def test_a_segment_has_the_columns_and_encodings_of_one_that_an_agent_seals(
    tmp_path: Path,
) -> None:
    """
    Same records, from batches and from rows: the same Parquet but for size and ids.
    """
    sealed = SealedTopic(str(tmp_path), "t", 4, TOPIC_ID).create()
    (theirs,) = sealed.seal(3, 0, [Message(1, b"k1", None)])
    ((_, ours),) = write(tmp_path, batch(row(5, 1)))

    def facts(ref: SegmentRef) -> object:
        reader = reader_of(tmp_path, ref)
        (group,) = reader.row_groups
        data = (tmp_path / ref.key).read_bytes()[group.start : group.end]
        return (
            *(reader.records, reader.codec, reader.timestamp_type, reader.leader_epochs),
            reader.read_table(group, data).to_pylist(),
            data,
        )

    assert facts(theirs) == facts(ours)
    assert theirs.codec == ours.codec
    assert theirs.format_version == ours.format_version


def test_a_segment_ends_when_it_is_full(tmp_path: Path) -> None:
    """
    Its successor begins where it ends.
    """
    found = write(tmp_path, batch(*(row(0, ms) for ms in range(3))), segment_bytes=1)
    few = write(tmp_path, *(batch(row(0, ms)) for ms in range(3)), segment_bytes=1)

    assert [(10, 13)] == [(ref.base, ref.end) for _, ref in found]
    assert [(10, 11), (11, 12), (12, 13)] == [(ref.base, ref.end) for _, ref in few]


def test_a_task_that_runs_twice_writes_other_objects(tmp_path: Path) -> None:
    """
    Spark runs a slow task a second time beside itself; one object is never written twice.
    """
    first, second = write(tmp_path, *ALL), write(tmp_path, *ALL)

    assert not {ref.key for _, ref in first} & {ref.key for _, ref in second}
    assert 6 == len(list(tmp_path.rglob("*.parquet")))


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([row(0, 1), row(0, 2)], id="fewer"),
        pytest.param([row(0, n) for n in range(4)], id="more"),
        pytest.param([row(0, 1), row(1, 2), row(1, 3)], id="of another piece"),
    ],
)
def test_other_records_than_were_counted_fail_the_task(
    tmp_path: Path, rows: list[dict[str, object]]
) -> None:
    """
    Else offsets would be given twice, or to no record.
    """
    with pytest.raises(ImportTopicError, match="persist"):
        write(tmp_path, batch(*rows))


def test_a_header_without_a_key_is_refused(tmp_path: Path) -> None:
    """
    Agents could not make a batch of it.
    """
    with pytest.raises(ImportTopicError, match="header without a key"):
        write(tmp_path, batch(row(5, 1, [(None, b"x")])))


def test_a_location_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """
    With its name.
    """
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(StorageError, match="file"):
        write(tmp_path / "file", batch(row(5, 1)))


def test_names_are_those_of_segments(tmp_path: Path) -> None:
    """
    Else the collector would never delete what nothing names.  It works where an event loop runs.
    """

    async def in_a_notebook() -> list[tuple[int, SegmentRef]]:
        return write(tmp_path, *ALL)

    found = asyncio.run(in_a_notebook())

    for number, ref in found:
        key = layout.parse_segment_key(ref.key)
        assert TopicPartition(TOPIC_ID, PIECES[number].partition) == key.tp
