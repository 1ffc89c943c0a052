"""Admitted batches, and the connections that wait for their commit.

Pure.
"""

from typing import Any


class ConnectionActivity:
    """A connection, as far as the early cut must know it."""

    __slots__ = ("answers", "answers_then", "heard_ms", "requests", "requests_then")

    def __init__(self, heard_ms: float = 0.0) -> None:
        self.heard_ms = heard_ms
        """When something last arrived on its socket."""
        self.requests = 0
        self.answers = 0
        """Read and written, since it was opened."""
        self.requests_then = 0
        self.answers_then = 0
        """The same when a commit last answered some; those answers were not written yet."""


BatchHeaderFields = tuple[int, ...]
"""As `kernel.check` gives it: records, attributes, producer id, producer epoch, base sequence,
base timestamp, max timestamp."""


class Batch:
    """One admitted batch: bytes with offset and epoch patched in, and what the footer needs."""

    __slots__ = (
        "base_offset",
        "checked",
        "file",
        "leader_epoch",
        "length",
        "position",
        "view",
    )

    def __init__(
        self,
        view: memoryview | bytes,
        length: int,
        base_offset: int,
        leader_epoch: int,
        checked: BatchHeaderFields,
    ) -> None:
        self.view: memoryview | bytes | None = view
        self.length = length
        self.base_offset = base_offset
        self.leader_epoch = leader_epoch
        self.checked = checked
        self.file: Any = None
        """The buffer file that holds it at *position*; None: none does."""
        self.position = 0

    @property
    def end_offset(self) -> int:
        """Behind its last record."""
        return self.base_offset + self.checked[0]
