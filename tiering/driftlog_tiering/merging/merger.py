"""The merger of one partition: the rows of neighbouring segments become one segment.

    chosen segments ──▶ row groups ──▶ all rows, in larger row groups ──▶ new segment ──▶ PUT
        ──▶ an edit of the manifest: replaced, added

1. Each record stays at its offset, with its timestamp, key, value, headers and leader epoch; bytes
   as received, horizons and times of the segments are summed up, and the sums are checked.
2. Rows are copied as columns: no batch is made.  They are compressed anew, because row groups as
   small as those of small segments would make files that are slow to read.
3. Memory holds one row group of a source, and one of the result.
4. What fails leaves an object that no manifest names: the collector deletes it.

Agents and Spark jobs run the same merger.

Shell.
"""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from driftlog_tiering.compaction.segment_rows import (
    EDIT_MS,
    Bucket,
    RewriteEnvironment,
    SegmentRows,
    StoredRows,
    damage_of,
)
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import Manifest, ReplaceSegments, SegmentRef
from driftlog_tiering.merging.policy import joined_horizons
from driftlog_tiering.segments.columns import RECORD_COLUMNS
from driftlog_tiering.segments.segment import CorruptSegmentError, SegmentInfo, SegmentWriter


@dataclass(frozen=True, slots=True)
class Merged:
    """What one merge did."""

    segments: int
    added: SegmentRef
    bytes_read: int


class Merger:
    """Merges segments of one partition; see the module."""

    def __init__(self, bucket: Bucket, environment: RewriteEnvironment) -> None:
        self._bucket = bucket
        self._rows = SegmentRows(bucket, environment.offload)
        self._offload = environment.offload
        self._spool = environment.spool
        self._nonce = environment.nonce
        self._now_ms = environment.now_ms

    async def merge(self, manifest: Manifest, segments: Sequence[SegmentRef]) -> Merged:
        """Put one segment in the place of *segments*, which `policy.next_merge` chose.

        Raises:
            VoidEditError: another edit was faster; nothing is changed.
            CorruptError: a segment is damaged or missing.
            UnavailableError, OutcomeUnknownError, TimeoutError: a store or the disk.
        """
        began_ms, bytes_read = self._now_ms(), 0
        base, end = segments[0].base, segments[-1].end
        with (
            self._spool() as spool,
            SegmentWriter(
                spool.file,
                topic=manifest.topic,
                topic_id=manifest.tp.topic_id,
                partition=manifest.tp.partition,
                base=base,
            ) as writer,
        ):
            async with aclosing(self._rows.of(manifest, segments)) as row_groups:
                async for rows in row_groups:
                    bytes_read += len(rows.data)
                    await self._bucket.decode(rows.group.decoded_bytes, _append, writer, rows)
            info: SegmentInfo = await self._offload(writer.finish, end)
            key = layout.segment_key(manifest.topic, manifest.tp, base, end, self._nonce())
            added = merged_reference(segments, info, key)
            await self._bucket.put(key, spool.body())
        edit = ReplaceSegments(replaced=tuple(segments), added=(added,))
        await self._bucket.commit(edit, began_ms, self._now_ms() + EDIT_MS)
        return Merged(len(segments), added, bytes_read)


def merged_reference(segments: Sequence[SegmentRef], info: SegmentInfo, key: str) -> SegmentRef:
    """The reference of the segment that *segments* became.

    Raises:
        CorruptSegmentError: it has not what their references say.
    """
    made = info.reference(key, sum(each.received_bytes for each in segments))
    expected = (
        sum(each.records for each in segments),
        max(each.max_timestamp_ms for each in segments),
        min(each.min_timestamp_ms for each in segments),
    )
    if expected != (made.records, made.max_timestamp_ms, made.min_timestamp_ms):
        names = ", ".join(each.key for each in segments)
        raise CorruptSegmentError(f"the segments have not what the manifest says: {names}")
    return replace(
        made,
        horizons=joined_horizons(segments),
        merges=max(each.merges for each in segments) + 1,
    )


def _append(writer: SegmentWriter, rows: StoredRows) -> None:
    with damage_of(rows.ref):
        writer.append_rows(rows.table(RECORD_COLUMNS), rows.reader, rows.raw_bytes)
