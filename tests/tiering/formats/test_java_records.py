"""Apache Kafka's own record classes read what we write, and we read what they write."""

import subprocess
from pathlib import Path

from driftlog_tiering.batches.batch import Codec, check_batch, iterate_batches
from driftlog_tiering.batches.kernel_py import Record
from tests.support.components import java, java_classpath
from tests.tiering.segments.test_segment import Row, make_batch, read, rows_of, sealed

SOURCE = Path(__file__).with_name("JavaRecords.java")


def a_log() -> list[bytes]:
    """Every shape of record, two epochs, LogAppendTime, gaps, several snappy and lz4 blocks."""
    odd = [
        Record(0, 0, None, b"", ()),
        Record(-7, 1, b"", None, (("h", b"1"), ("h", None), ("\u00e9", b""))),
        Record(5, 4, b"key", b"repeated " * 30_000, ()),
        Record(6, 5, b"k" * 200, bytes(range(256)) * 600, (("long", b"v" * 300),)),
    ]
    return [
        make_batch(3, odd, epoch=1),
        make_batch(20, odd, epoch=1, append_time=77_777, extra=2),
        make_batch(40, odd[:2], epoch=4, base_timestamp=1_760_000_000_000),
    ]


def line(row: Row) -> str:
    offset, timestamp, kind, key, value, headers = row
    words = [str(offset), str(timestamp), str(kind), as_hex(key), as_hex(value)]
    return " ".join(words + [f"{as_hex(k.encode())}={as_hex(v)}" for k, v in headers])


def as_hex(data: bytes | None) -> str:
    return "null" if data is None else "x" + data.hex()


def test_kafka_s_own_classes_and_ours_read_each_other(tmp_path: Path) -> None:
    """
    Batches re-encoded from a segment under every codec, empty ones too, are valid for
    MemoryRecords and hold the same records; batches of its builder hold them for us.
    """
    log = a_log()
    _, data = sealed(log, end=100, row_group_bytes=600_000)
    batches = read(sealed([], end=9)[1], 0, Codec.NONE, 1)
    for codec in Codec:
        batches += read(data, 0, codec, 200_000)
    (tmp_path / "ours").write_bytes(b"".join(batch.data for batch in batches))

    run = subprocess.run(
        [java(), "-cp", java_classpath(), SOURCE, tmp_path / "ours", tmp_path],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    expected = []
    for batch in batches:
        header = check_batch(batch.data, from_client=False)
        expected.append(
            f"batch {header.base_offset} {header.end_offset} {header.partition_leader_epoch}"
        )
        expected += [line(row) for row in rows_of(batch.data)]
    assert expected == run.stdout.splitlines()
    rows = [row for batch in batches for row in rows_of(batch.data)]
    for theirs in Codec:
        (made,) = iterate_batches((tmp_path / f"codec-{int(theirs)}").read_bytes())
        assert theirs is check_batch(made[1]).codec
        assert [row[3:] for row in rows] == [row[3:] for row in rows_of(bytes(made[1]))]
