"""Admitted batches, and the connections that wait for their commit.

Pure.
"""

from typing import Any


class ConnectionActivity:
    """What the early cut knows of a connection."""

    __slots__ = ("answers", "answers_then", "heard_ms", "requests", "requests_then")

    def __init__(self, heard_ms: float = 0.0) -> None:
        self.heard_ms = heard_ms
        """When bytes last arrived on its socket, ms."""
        self.requests = 0
        self.answers = 0
        """Requests read and answers written since the connection was opened."""
        self.requests_then = 0
        self.answers_then = 0
        """Both counts at the last commit that answered some, before those answers were written."""


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
        view: memoryview,
        length: int,
        base_offset: int,
        leader_epoch: int,
        checked: BatchHeaderFields,
    ) -> None:
        self.view: memoryview | None = view
        """None: the flush that holds it is cut."""
        self.length = length
        self.base_offset = base_offset
        self.leader_epoch = leader_epoch
        self.checked = checked
        self.file: Any = None
        """The buffer file that holds it at *position*; None: none does."""
        self.position = 0

    @property
    def end_offset(self) -> int:
        """The offset after its last record."""
        return self.base_offset + self.checked[0]
