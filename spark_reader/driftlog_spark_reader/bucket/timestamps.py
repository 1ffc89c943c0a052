"""Offsets by time, from manifests and a few ranges of a segment: ListOffsets without a broker.

    manifest ──▶ first segment that reaches the time ──▶ its footer ──▶ one row group's times

Shell.
"""

from collections.abc import Iterator

from driftlog_spark_reader.bucket.catalog import DAMAGED, MISSING, segments
from driftlog_spark_reader.bucket.files import Files
from driftlog_spark_reader.common.errors import DamagedTopicError
from driftlog_spark_reader.options.time_range import TimeRange
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import Manifest, SegmentRef
from driftlog_tiering.segments.segment import (
    TAIL_BYTES,
    CorruptSegmentError,
    SegmentReader,
    footer_start,
)


def offset_at(files: Files, manifest: Manifest, timestamp_ms: int) -> int | None:
    """The offset of the first sealed record with that timestamp or a later one; None: none is.

    Raises:
        DamagedTopicError: a segment list or a segment is damaged or missing.
        StorageError: the location cannot be read.
    """
    since = TimeRange(timestamp_ms, None)
    for ref in segments(files, manifest, manifest.log_start, manifest.end, since):
        if ref.kind is not SegmentKind.PARQUET or ref.max_timestamp_ms < timestamp_ms:
            continue
        reader = open_segment(files, ref)
        try:
            for group in reader.row_groups_since(timestamp_ms):
                if group.last_offset < manifest.log_start:
                    continue
                data = files.read_range(ref.key, *reader.times_range(group))
                if data is None:
                    raise _missing(files, ref)
                found = reader.find_timestamp(group, data, timestamp_ms, manifest.log_start)
                if found is not None:
                    return found[0]
        except CorruptSegmentError as error:
            raise DamagedTopicError(f"{files.path(ref.key)}: {error}; {DAMAGED}") from error
    return None


def open_segment(files: Files, ref: SegmentRef) -> SegmentReader:
    """A segment by its footer.

    Raises:
        DamagedTopicError: it is damaged or missing.
        StorageError: the location cannot be read.
    """
    try:
        for size in _tail_sizes(ref.size_bytes):
            tail = files.read_range(ref.key, ref.size_bytes - size, ref.size_bytes)
            if tail is None:
                raise _missing(files, ref)
            if footer_start(tail, ref.size_bytes) >= ref.size_bytes - size:
                return SegmentReader(tail, ref.size_bytes, ref.footer_crc)
        raise CorruptSegmentError("the footer has no start")
    except CorruptSegmentError as error:
        raise DamagedTopicError(f"{files.path(ref.key)}: {error}; {DAMAGED}") from error


def _tail_sizes(size_bytes: int) -> Iterator[int]:
    """Bytes of the object's end to read: nearly always the first suffices."""
    size = min(TAIL_BYTES, size_bytes)
    yield size
    while size < size_bytes:
        size = min(8 * size, size_bytes)
        yield size


def _missing(files: Files, ref: SegmentRef) -> DamagedTopicError:
    return DamagedTopicError(f"{files.path(ref.key)}: {MISSING}")
