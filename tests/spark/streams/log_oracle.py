"""What was ever in the log, and since when it is not there any more, by offset.

    flush record is put ──▶ rows of its object: committed
    partition's key is put ──▶ log start: the rows below it expired now
    manifest is created ──▶ rows of a compacted topic that no segment has any more: removed now

Each is seen in the very moment in which it is stored, and by no code of the reader.
"""

import io
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

import pyarrow.parquet as pq

from driftlog_metadata.schema.codec import decode_flush_record, decode_partition_state
from driftlog_metadata.schema.keys import parse_flush_key, parse_partition_key
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.flush_object import decode_footer
from driftlog_tiering.formats.manifest import SegmentRef
from driftlog_tiering.formats.manifest_codec import decode_manifest
from tests.simulation.batches import is_tombstone, key_of, rows_of

NEVER: Final = math.inf

Expect = Callable[[bool, str], None]


class LogOf(NamedTuple):
    """A partition of a topic, as sinks name it."""

    topic: str
    partition: int


class Place(NamedTuple):
    """A record's place in the log."""

    log: LogOf
    offset: int


@dataclass(slots=True)
class LogOracle:
    """See the module.

    Args:
        topics: names by id.
        compacted: names of the topics that are compacted.
        read: the bytes of an object.
        now_s: virtual time.
    """

    topics: Mapping[UUID, str]
    compacted: frozenset[str]
    read: Callable[[str], bytes]
    now_s: Callable[[], float]
    expect: Expect
    rows: dict[LogOf, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    """All that was ever committed."""
    sealed_ends: dict[LogOf, int] = field(default_factory=lambda: defaultdict(int))
    removals: dict[Place, float] = field(default_factory=dict)
    """When compaction removed a record."""
    _starts: dict[LogOf, list[tuple[int, float]]] = field(
        default_factory=lambda: defaultdict(lambda: [(0, -math.inf)])
    )
    _objects: set[str] = field(default_factory=set)
    _segments: dict[str, frozenset[int]] = field(default_factory=dict)

    # ── What it is told ──

    def put(self, key: str, value: bytes) -> None:
        """A key was put into the metadata store."""
        if _parses(parse_flush_key, key):
            self._flushed(value)
        elif _parses(parse_partition_key, key):
            tp = parse_partition_key(key)
            log = LogOf(self.topics[tp.topic_id], tp.partition)
            state = decode_partition_state(value)
            self.sealed_ends[log] = state.sealed_end
            if state.log_start > self._starts[log][-1][0]:
                self._starts[log].append((state.log_start, self.now_s()))

    def created(self, key: str) -> None:
        """An object is in the bucket."""
        if not _parses(layout.parse_key, key):
            return
        parsed = layout.parse_key(key)
        if not isinstance(parsed, layout.ManifestKey) or parsed.topic not in self.compacted:
            return
        manifest = decode_manifest(self.read(key))
        self.expect(not manifest.lists, "a manifest of a short run has lists")
        there: set[int] = set()
        for segment in manifest.segments:
            there |= self._offsets(segment)
        log = LogOf(parsed.topic, parsed.tp.partition)
        for offset in range(self.start(log), manifest.end):
            if offset not in there and Place(log, offset) not in self.removals:
                self._removed(log, offset)

    def _flushed(self, value: bytes) -> None:
        record = decode_flush_record(value)
        if record.object_key in self._objects:
            return
        self._objects.add(record.object_key)
        body = self.read(record.object_key)
        footer = decode_footer(body[record.footer_start :])
        for s in footer.slices():
            rows = self.rows[LogOf(self.topics[s.topic_id], s.partition)]
            for index in range(s.first, s.first + s.count):
                batch = footer.batch(index)
                for offset, row in rows_of(body[batch.position : batch.position + batch.length]):
                    same = rows.setdefault(offset, row.value) == row.value
                    self.expect(same, f"{row} is at {offset}, where another record was")

    def _offsets(self, segment: SegmentRef) -> frozenset[int]:
        found = self._segments.get(segment.key)
        if found is None:
            table = pq.read_table(io.BytesIO(self.read(segment.key)), columns=["offset"])
            found = self._segments[segment.key] = frozenset(table.column("offset").to_pylist())
        return found

    def _removed(self, log: LogOf, offset: int) -> None:
        rows = self.rows[log]
        newer = any(key_of(rows[at]) == key_of(rows[offset]) for at in rows if at > offset)
        self.expect(
            newer or is_tombstone(rows[offset]),
            f"compaction removed {rows[offset]!r} at {offset} of {log}, the newest of its key",
        )
        self.removals[Place(log, offset)] = self.now_s()

    # ── What it knows ──

    def end(self, log: LogOf) -> int:
        """The high watermark of a partition."""
        return max(self.rows[log], default=-1) + 1

    def start(self, log: LogOf) -> int:
        """Its log start."""
        return self._starts[log][-1][0]

    def expired_s(self, place: Place) -> float:
        """When retention or DeleteRecords took the record."""
        starts = self._starts[place.log]
        return next((at for start, at in starts if start > place.offset), NEVER)

    def removed_s(self, place: Place) -> float:
        """When compaction took the record."""
        return self.removals.get(place, NEVER)


def _parses(parse: Callable[[str], object], key: str) -> bool:
    try:
        parse(key)
    except ValueError:
        return False
    return True
