"""An agent that takes more than its limits, or frees batches that only memory has, fails here.

Pure.
"""

from array import array
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

from driftlog_agents.log.ingest.flush_effects import FlushStage
from driftlog_agents.log.ingest.flush_memory import FlushMemory, MemorySettings
from driftlog_agents.log.ingest.flush_pipeline import FlushPipeline
from driftlog_agents.log.partition.tail import FlushBatches

SETTINGS = MemorySettings(memory_bytes=1_000, pending_bytes=8_000)


def batches(size: int, *, in_file: bool, held: int | None = None) -> FlushBatches:
    """The one batch of a flush, in memory and perhaps in a file; *held*: with its frame."""
    data = FlushBatches(
        session_id="s",
        base_offsets=array("q", [0]),
        lengths=array("i", [size]),
        positions=array("i", [0]),
        max_timestamps_ms=array("q", [0]),
    )
    data.views = [bytes(size)]
    data.held_bytes = size if held is None else held
    if in_file:
        data.files = [cast(Any, SimpleNamespace(alive=True, trusted=True))]
        data.file_numbers, data.file_positions = array("B", [0]), array("q", [0])
    return data


def memory(*flushes: tuple[FlushBatches, FlushStage]) -> FlushMemory:
    """Of a pipeline with these flushes, oldest first."""
    cut = deque(
        SimpleNamespace(size_bytes=data.size_bytes, stage=stage, payload=SimpleNamespace(data=data))
        for data, stage in flushes
    )
    pipeline = SimpleNamespace(flushes=cut, open_held_bytes=0)
    return FlushMemory(cast(FlushPipeline, pipeline), SETTINGS)


@pytest.mark.parametrize(
    ("pending_bytes", "pending_batches", "held_bytes", "in_file", "expected"),
    [
        (8_000, 100_000, 900, True, False),
        (8_001, 1, 900, True, True),
        (1, 100_001, 900, True, True),
        (2_000, 1, 900, False, True),  # the disk fails: memory alone has it
        (1_000, 1, 700, False, False),  # an eighth of the limit is no overload
        (10, 1, 900, False, True),  # a small batch in a large frame
    ],
)
def test_producers_wait_above_the_limits(
    pending_bytes: int, pending_batches: int, held_bytes: int, in_file: bool, expected: bool
) -> None:
    """
    Bytes, batches, and bytes that no buffer file has.
    """
    held = memory((batches(10, in_file=in_file, held=held_bytes), FlushStage.QUEUED))
    held.pending_bytes, held.pending_batches = pending_bytes, pending_batches

    assert expected == held.is_overloaded


def test_committed_batches_are_freed_before_uncommitted_ones() -> None:
    """
    The oldest first, and only as many as needed.
    """
    held = memory((batches(200, in_file=True), FlushStage.QUEUED))
    committed = [batches(2, in_file=False, held=200) for _ in range(3)]
    for data in committed:
        held.commits(data, 0)
    held.trim()

    assert [None, None] == [data.views for data in committed[:2]]
    assert committed[2].views is not None
    assert held.held_bytes <= SETTINGS.memory_bytes


def test_only_uncommitted_batches_in_files_and_in_no_upload_are_freed() -> None:
    """
    The newest first: the oldest is needed next.
    """
    flushes = [
        (batches(600, in_file=True), FlushStage.QUEUED),
        (batches(600, in_file=True), FlushStage.UPLOADING),
        (batches(600, in_file=False), FlushStage.QUEUED),
        (batches(600, in_file=True), FlushStage.STORED),
    ]
    memory(*flushes).trim()

    assert [None, True, True, None] == [data.views and True for data, _ in flushes]
