"""The body of a flush object: its batches, from memory, or checked from the buffer files.

Shell.
"""

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final
from uuid import UUID

import structlog

from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.partition.tail import FlushBatches
from driftlog_metadata.schema.model import FlushRecord
from driftlog_metadata.stores.errors import FencedError, OutcomeUnknownError, UnavailableError
from driftlog_tiering.batches import kernel
from driftlog_tiering.formats.flush_object import RestoreFacts, Slice
from driftlog_tiering.stores.object_store import Buffer

_READ_ATTEMPTS: Final = 3
"""Reads of batches that only a buffer file has, before the disk counts as broken."""

_PLACE: Final = Struct(">q4xi")
"""Base offset and leader epoch in a batch's header, which its CRC does not cover."""


@dataclass(slots=True, eq=False)
class Payload:
    """The object of one flush: its batches, its footer's columns and its attempts."""

    data: FlushBatches
    topic_ids: tuple[UUID, ...]
    columns: tuple["array[int]", ...]
    slices: list[tuple[PartitionLog, Slice]]
    puts: dict[int, tuple[FlushRecord, bytes]]
    """Attempt → (flush record that would name its object, footer)."""
    tasks: dict[int, asyncio.Task[None]]
    facts: RestoreFacts | None
    """None: below the cluster's format level 2."""
    unreadable: int = 0
    """Failed reads of batches that memory has given up."""

    def body(self, seq: int) -> list[Buffer]:
        """The batches.  A disk error is not `UnavailableError` here: that would throttle uploads.

        Raises:
            OutcomeUnknownError: the disk could not read them; try again.
            FencedError: the disk fails each time, or returns other bytes: the session must end.
        """
        try:
            body = _body(self.data)
        except UnavailableError as error:
            self.unreadable += 1
            if self.unreadable < _READ_ATTEMPTS:
                raise OutcomeUnknownError(f"the buffer file: {error}") from error
            structlog.get_logger().error(
                "buffer_file_unreadable",
                seq=seq,
                error=str(error),
                advice="the session ends, and all that wait are told so; replace the disk",
            )
            raise FencedError(f"the disk does not return flush {seq}") from error
        lost = None if self.data.views is not None else _lost_offset(body, self.columns)
        if lost is None:
            return body
        structlog.get_logger().error(
            "buffer_file_lost_batches",
            seq=seq,
            base_offset=lost,
            advice="the session ends, and all that wait are told so; replace the disk",
        )
        raise FencedError(f"the disk lost batches of flush {seq}")


def _body(data: FlushBatches) -> list[Buffer]:
    """The object's batches: from memory, or with one read per buffer file that holds them."""
    if data.views is not None:
        return list(data.views)
    assert data.file_positions is not None
    assert data.file_numbers is not None
    whole: list[tuple[int, memoryview]] = []
    for number, file in enumerate(data.files):
        assert file.alive, "a file that holds what is not committed was given up"
        places = [i for i, n in enumerate(data.file_numbers) if n == number]
        start = min(data.file_positions[i] for i in places)
        end = max(data.file_positions[i] + data.lengths[i] for i in places)
        whole.append((start, memoryview(file.read(start, end - start))))
    body: list[Buffer] = []
    for number, position, length in zip(
        data.file_numbers, data.file_positions, data.lengths, strict=True
    ):
        start, view = whole[number]
        body.append(view[position - start : position - start + length])
    return body


def _lost_offset(body: Sequence[Buffer], columns: Sequence["array[int]"]) -> int | None:
    """The base offset of the first batch of *body* that differs from the footer's *columns*.

    A disk that loses a page reports it at a sync, if there is one, and returns the page's old
    bytes: in a file that was used again, possibly another whole batch.
    """
    _, _, epochs, offsets, _, *admitted = columns[:10]
    each = zip(epochs, offsets, *admitted, strict=True)
    for batch, (epoch, offset, *rest) in zip(body, each, strict=True):
        checked = kernel.check(batch, 0, len(batch), False)
        sound = not isinstance(checked, int) and [*checked[1:5], checked[6]] == rest
        if not sound or _PLACE.unpack_from(batch) != (offset, epoch):
            return int(offset)
    return None
