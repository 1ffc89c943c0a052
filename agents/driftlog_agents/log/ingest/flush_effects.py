"""A cut buffer on its way into the log, and what the flush pipeline asks of the flusher for it.

    QUEUED ──Upload──▶ UPLOADING ──▶ STORED ──Commit──▶ COMMITTING ──▶ COMMITTED, Publish

`flush_pipeline` decides, and `flusher` performs the effects.

Pure.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from driftlog_agents.log.partition.batch import Batch, ConnectionActivity
from driftlog_agents.log.partition.partition import PartitionLog


class FlushStage(Enum):
    """The stage of a cut flush."""

    QUEUED = "queued"
    UPLOADING = "uploading"
    STORED = "stored"
    COMMITTING = "committing"
    COMMITTED = "committed"


@dataclass(slots=True, eq=False)
class Flush:
    """A cut buffer, which becomes one object.  *batches*: per partition, in offset order."""

    seq: int
    batches: dict[PartitionLog, list[Batch]]
    size_bytes: int
    held_bytes: int
    """Bytes that its batches keep in memory: those of the frames that they are parts of."""
    reason: str
    sources: set[ConnectionActivity]
    """The producers that wait for its commit."""
    stage: FlushStage = FlushStage.QUEUED
    attempts: dict[int, float] = field(default_factory=dict)
    """Attempts in flight: number → start time, ms."""
    began_ms: list[float] = field(default_factory=list)
    """Start time of each attempt by its number, ms; those that have ended, too."""
    failures: int = 0
    retry_at_ms: float = 0.0
    hedged: bool = False
    stored_attempt: int = -1
    payload: Any = None
    """The flusher's: the body, its footer, names of attempts."""
    cut_ms: float = 0.0
    stored_ms: float = 0.0
    commit_sent_ms: float = 0.0
    """The flusher's: when it was cut, when an attempt was stored, when the last commit was sent."""


class FlushTimes(NamedTuple):
    """The steps of a committed flush, by the agent's clock; of repeated steps the last, which
    succeeded."""

    seq: int
    cut_ms: float
    put_began_ms: float
    stored_ms: float
    commit_sent_ms: float
    committed_ms: float


@dataclass(frozen=True, slots=True)
class Cut:
    """The buffer became a flush: lay out its object."""

    flush: Flush


@dataclass(frozen=True, slots=True)
class Upload:
    """PUT the flush under a new name; call `upload_succeeded` or `upload_failed`."""

    flush: Flush
    attempt: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """Another attempt succeeded: cancel this one.  Its object, if any, is garbage."""

    flush: Flush
    attempt: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Send the commit transaction; call `commit_succeeded`, `commit_failed`, `commit_delayed` or
    `fenced`."""

    flush: Flush


@dataclass(frozen=True, slots=True)
class Publish:
    """The flush is committed: move high watermarks, answer producers, wake fetches."""

    flush: Flush


@dataclass(frozen=True, slots=True)
class Expired:
    """The flush's object is too old to be committed, and a commit of it may still take effect: end
    the session.  `SessionFenced` follows."""

    flush: Flush


@dataclass(frozen=True, slots=True)
class SessionFenced:
    """The session is dead: every uncommitted flush fails."""

    flushes: tuple[Flush, ...]


Effect = Cut | Upload | Abandon | Commit | Publish | Expired | SessionFenced
