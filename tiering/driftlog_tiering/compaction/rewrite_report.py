"""What a job did to one partition, and how each failure is reported.

Shell.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from driftlog_metadata.stores.errors import CorruptError, StoreError
from driftlog_tiering.compaction.policy import PartitionBusyError
from driftlog_tiering.formats.manifest import SegmentRef
from driftlog_tiering.formats.manifests import OtherClusterError, VoidEditError


class Outcome(StrEnum):
    """How the work on a partition ended."""

    DONE = "done"
    CLEAN = "clean"
    """There was nothing to do, or not enough to be due."""
    BUSY = "busy"
    """Another agent or job is at work there: nothing was changed."""
    VOID = "void"
    """Another edit was faster, each time; committed pieces stay."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteReport:
    """One partition; before and after are sums over the segments that end above log start."""

    topic: str
    partition: int
    outcome: Outcome = Outcome.CLEAN
    reason: str = ""
    records_before: int = 0
    records: int = 0
    bytes_before: int = 0
    bytes: int = 0
    segments_before: int = 0
    segments: int = 0
    pieces: int = 0
    """Edits of the manifest that replaced segments."""
    keys: int = 0
    """In the key map: distinct keys of the dirty part."""
    cleaned_end: int = 0

    def began_with(self, segments: Sequence[SegmentRef]) -> "RewriteReport":
        """This report, of a partition that had *segments*, and has them now."""
        records, size = sums(segments)
        count = len(segments)
        return replace(
            self,
            records_before=records,
            bytes_before=size,
            segments_before=count,
            records=records,
            bytes=size,
            segments=count,
        )

    def ended_with(self, segments: Sequence[SegmentRef]) -> "RewriteReport":
        """This report, of a partition that has *segments* now."""
        records, size = sums(segments)
        return replace(self, records=records, bytes=size, segments=len(segments))

    def failed(self, error: Exception) -> "RewriteReport":
        """This report, of work that ended with one of `REPORTED`."""
        match error:
            case PartitionBusyError():
                outcome, reason = Outcome.BUSY, f"{error}: run the job again then"
            case OtherClusterError():
                outcome = Outcome.FAILED
                reason = f"{error}: a restore gave the bucket to another cluster; nothing is wrong"
            case VoidEditError():
                outcome, reason = Outcome.VOID, f"nothing more was committed: {error}; run it again"
            case CorruptError():
                outcome = Outcome.FAILED
                reason = f"{error}: run driftlog verify, and restore the object from a copy"
            case _:
                outcome = Outcome.FAILED
                reason = f"{error or repr(error)}: run the job again"
        return replace(self, outcome=outcome, reason=reason)


REPORTED: Final = (PartitionBusyError, StoreError, CorruptError, TimeoutError, OSError)
"""Errors of a store, of another editor, of damage, and of the local disk."""


def sums(segments: Sequence[SegmentRef]) -> tuple[int, int]:
    """Records and bytes of *segments*."""
    return sum(each.records for each in segments), sum(each.size_bytes for each in segments)
