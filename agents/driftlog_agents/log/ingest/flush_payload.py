"""The object of one flush: its batches, its footer, and the names of its attempts.

    cut ──▶ laid out ──each attempt──▶ key, footer, flush record ──committed──▶ named

No name is used twice: each attempt has a nonce of its own.

Pure.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Final
from uuid import UUID

from driftlog_agents.log.partition.batch import Batch
from driftlog_agents.log.partition.partition import PartitionLog, StoredAt, Waiter
from driftlog_agents.log.partition.tail import FlushBatches, lay_out, restore_facts, tail_slice
from driftlog_metadata.schema.model import FlushRecord
from driftlog_tiering.batches import kernel
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.flush_object import (
    FLUSHED_AT,
    RestoreFacts,
    Slice,
    encode_footer,
)
from driftlog_tiering.foundation.types import Buffer

_PLACE: Final = Struct(">q4xi")
"""Base offset and leader epoch in a batch's header, which its CRC does not cover."""


@dataclass(slots=True, eq=False)
class Payload:
    """See the module."""

    session_id: str
    data: FlushBatches
    topic_ids: tuple[UUID, ...]
    columns: tuple["array[int]", ...]
    slices: list[tuple[PartitionLog, Slice]]
    facts: RestoreFacts | None = None
    """None: below the cluster's format level 2."""
    puts: dict[int, tuple[FlushRecord, bytes]] = field(default_factory=dict)
    """Attempt → (flush record that would name its object, footer)."""
    unreadable: int = 0
    """Failed reads of batches that memory has given up."""

    @classmethod
    def of(
        cls,
        batches: dict[PartitionLog, list[Batch]],
        session_id: str,
        flushed_at_ms: int,
        *,
        has_facts: bool,
    ) -> "Payload":
        """The payload of a cut buffer, which gives up its views of the *batches*."""
        data, topic_ids, columns, slices = lay_out(batches, session_id, flushed_at_ms)
        facts = restore_facts(batches) if has_facts else None
        for some in batches.values():
            for batch in some:
                batch.view = None
        return cls(session_id, data, topic_ids, columns, slices, facts)

    def commit(self, object_key: str, now_ms: float) -> list[tuple[Waiter, PartitionLog]]:
        """Moves the high watermarks: *object_key* is committed.  Returns the producers that waited
        for that, each with its log; all logs have moved before the first of them is told.  Those
        of duplicates are left to `PartitionLog.committed_duplicates`."""
        stored_at = StoredAt(object_key, 0)
        ready: list[tuple[Waiter, PartitionLog]] = []
        for log, s in self.slices:
            flushed_at_ms = self.columns[FLUSHED_AT][s.first]
            tail = tail_slice(self.data, s, stored_at, (flushed_at_ms, flushed_at_ms))
            ready += [(waiter, log) for waiter in log.commit(tail, now_ms)]
        return ready

    def begin(self, attempt: int, seq: int, committed_seq: int, nonce: str) -> FlushRecord:
        """Names the object of an attempt; returns the flush record that would name it."""
        footer = encode_footer(
            session_id=self.session_id,
            seq=seq,
            committed_seq=committed_seq,
            topic_ids=self.topic_ids,
            columns=self.columns,
            facts=self.facts,
        )
        size_bytes = self.data.size_bytes
        record = FlushRecord(
            object_key=layout.flush_key(self.session_id, seq, nonce),
            size_bytes=size_bytes + len(footer),
            footer_start=size_bytes,
        )
        self.puts[attempt] = (record, footer)
        return record

    def lost_offset(self, body: Sequence[Buffer]) -> int | None:
        """The base offset of the first batch of *body* that differs from its entry in the footer.

        A disk that loses a page reports it at a sync, if there is one, and returns the page's old
        bytes: in a file that was used again, possibly another whole batch.
        """
        _, _, epochs, offsets, _, *admitted = self.columns[:10]
        each = zip(epochs, offsets, *admitted, strict=True)
        for batch, (epoch, offset, *rest) in zip(body, each, strict=True):
            checked = kernel.check(batch, 0, len(batch), False)
            sound = not isinstance(checked, int) and [*checked[1:5], checked[6]] == rest
            if not sound or _PLACE.unpack_from(batch) != (offset, epoch):
                return int(offset)
        return None
