"""Which heads of sessions are marked as ended, and which are due and needed no more.

    head, no key of its session ──▶ to mark ──`keep_ms` after the mark──▶ due ──not needed──▶ gone

`session_head_gc` says why, and in which order this is read.

Pure.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from driftlog_metadata.schema.codec import decode_at, decode_ended_head, decode_head
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import KeyValue
from driftlog_metadata.transactions.session_transactions import HEADS_PER_TXN, DeadHead

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSettings:
    """How long heads stay, and how often they are checked."""

    keep_ms: int = 7 * 24 * HOUR_MS
    """How long a head stays after its mark.  Longer: a commit may wait longer for its answer, and
    more small keys are kept."""

    interval_ms: int = 6 * HOUR_MS
    """Time between two checks.  Each reads heads, sessions and, if a head is due, partitions."""

    request_deadline_ms: float = 30_000.0

    def is_due(self, checked_ms: int | None, now_ms: int) -> bool:
        """Whether a check is due; the clock of the object store may have been set back."""
        return checked_ms is None or not 0 <= now_ms - checked_ms < self.interval_ms


@dataclass(slots=True)
class DeadHeads:
    """The heads of one check whose sessions are over."""

    to_mark: list[DeadHead] = field(default_factory=list)
    due: list[DeadHead] = field(default_factory=list)
    """Those that were marked long enough ago."""
    unreadable: dict[str, CorruptError] = field(default_factory=dict)
    """By key; they stay."""


def judge(
    heads: Mapping[str, KeyValue], live: Collection[str | None], now_ms: int, keep_ms: int
) -> DeadHeads:
    """Judges *heads*, by session.  *live*: the sessions whose keys existed in a read that began
    after that of the heads."""
    found = DeadHeads()
    for session_id, kv in heads.items():
        if session_id in live:
            continue
        try:
            head = decode_at(kv.key, kv.value, decode_head)
            ended = decode_ended_head(kv.value)
        except CorruptError as error:
            found.unreadable[kv.key] = error
            continue
        dead = DeadHead(session_id=session_id, revision=kv.mod_revision, head=head)
        if ended is None:
            found.to_mark.append(dead)
        elif now_ms - ended.ended_ms >= keep_ms:
            found.due.append(dead)
    return found


def unneeded(due: Iterable[DeadHead], needed: Collection[str]) -> list[DeadHead]:
    """Those of *due* whose sessions are not *needed*: by a flush record, the list of a partition,
    or a directory on this disk."""
    return [head for head in due if head.session_id not in needed]


def in_transactions(heads: Sequence[DeadHead]) -> Iterator[Sequence[DeadHead]]:
    """*heads*, as many at a time as one transaction takes."""
    return (heads[at : at + HEADS_PER_TXN] for at in range(0, len(heads), HEADS_PER_TXN))
