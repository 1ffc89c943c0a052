"""The body of a flush object: its batches, from memory, or checked from the buffer files.

Shell.
"""

from typing import Final

import structlog

from driftlog_agents.log.ingest.flush_payload import Payload
from driftlog_agents.log.partition.tail import FlushBatches
from driftlog_metadata.stores.errors import FencedError, OutcomeUnknownError, UnavailableError
from driftlog_tiering.foundation.types import Buffer

_READ_ATTEMPTS: Final = 3
"""Reads of batches that only a buffer file has, before the disk counts as broken."""


def read_body(payload: Payload, seq: int) -> list[Buffer]:
    """The batches of *payload*, which is flush *seq*.

    A disk error is not `UnavailableError` here: that would throttle uploads.

    Raises:
        OutcomeUnknownError: the disk could not read them; try again.
        FencedError: the disk fails each time, or returns other bytes: the session must end.
    """
    try:
        body = _body(payload.data)
    except UnavailableError as error:
        payload.unreadable += 1
        if payload.unreadable < _READ_ATTEMPTS:
            raise OutcomeUnknownError(f"the buffer file: {error}") from error
        structlog.get_logger().error(
            "buffer_file_unreadable",
            seq=seq,
            error=str(error),
            advice="the session ends, and all that wait are told so; replace the disk",
        )
        raise FencedError(f"the disk does not return flush {seq}") from error
    lost = None if payload.data.views is not None else payload.lost_offset(body)
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
