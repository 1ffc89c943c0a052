"""What one process has seen of its metadata store: evidence that the store lost some of it.

    answers ──▶ highest revision seen ──an answer to a later request is below──▶ evidence
            └─▶ revision and time of the last one ──further on than a store gets─▶ evidence
    heads   ──▶ what our own session committed ──its head says less──────────────▶ evidence
    cluster's key ─────────────────────────────missing, or another cluster's─────▶ evidence
                   └─a higher format level──▶ it is the cluster's from now on

A store that was restored from a backup, or that came back empty, has lost the changes that it
acknowledged since.  The process must not act on its answers: leaders and epochs would be given out
again, and objects that it does not name would be deleted.  Evidence is never withdrawn; a restarted
process, which has seen nothing yet, accepts the store as it is.

Answers overtake each other: an answer is compared with the revision known when its request was
*sent*.  Only linearizable requests count.

A store that is restored with etcd's ``--bump-revision`` does not go back in its revisions.  The
head of the process's own session shows such a restore if the session committed after the snapshot.
The leap of revisions shows it to every process, if the bump is as large as etcd's manual advises
(1,000,000,000).  The ids in etcd's answers do not show it: they are hashes of names and addresses,
and a cluster that is restored with the same ones has the same ids.

Pure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from driftlog_metadata.schema.codec import decode_cluster, decode_head
from driftlog_metadata.schema.model import CLOSED
from driftlog_metadata.stores.errors import CorruptError, FencedError
from driftlog_metadata.stores.store import KeyValue

WENT_BACK: Final = "metadata_store_went_back"
REPLACED: Final = "metadata_store_replaced"

_LEAP: Final = 100_000_000
_LEAP_PER_MS: Final = 10
"""Revisions that a store may be ahead of its last answer, and more of them for each ms since.
More: a smaller bump, or a bump in a longer outage, is not noticed.  Fewer: a process that was
suspended, or cut off from a busy store, takes what others wrote meanwhile for a restore.  A cluster
writes 5 in a ms at most; a bump of 1,000,000,000 is noticed in outages of up to a day."""

_HEAD_KEPT_MS: Final = 6 * 24 * 3_600_000.0
"""How long the head of an ended session exists for certain: it is deleted after 7 days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Why the store is not the one that this process has seen."""

    event: str
    """`WENT_BACK` or `REPLACED`."""
    reason: str
    revision_seen: int
    """The highest revision that the process has seen."""
    revision_found: int | None = None
    """The store's revision now, if that is the evidence."""


@dataclass(slots=True)
class OwnSession:
    """The last session that this process opened, and what it has committed."""

    session_id: str
    committed: int = 0
    """The last flush that is known to be committed."""
    valid_until_ms: float = 0.0
    """End of its lease, by the process's own clock."""


class SentRequest(NamedTuple):
    """A request that is on its way."""

    seen: int
    """The highest revision that was known when it was sent."""
    sent_ms: float


class StoreWitness:
    """Collects the evidence.  One per process; it spans the process's sessions.

    Args:
        now_ms: the clock of the process's sessions; it counts suspend.
        cluster: the value of the cluster's key, as it was read last; None: it is not known yet.
    """

    def __init__(self, now_ms: Callable[[], float], cluster: bytes | None = None) -> None:
        self._now_ms = now_ms
        self.cluster = cluster
        self.seen = 0
        """The highest revision of any answer or watch."""
        self._last: SentRequest | None = None
        """The highest revision of an answer, and when its request was sent.  Watches do not count:
        after an outage a watch begins with changes written long ago."""
        self.session: OwnSession | None = None
        self.evidence: Evidence | None = None
        """The first evidence found."""
        self._evident: Callable[[], None] = lambda: None

    def when_evident(self, call: Callable[[], None]) -> None:
        """Call *call* once, when there is evidence; at once if there is."""
        self._evident = call
        if self.evidence is not None:
            call()

    def check(self) -> None:
        """Raises FencedError: there is evidence."""
        if self.evidence is not None:
            raise FencedError(self.evidence.reason)

    # ── Observations ──

    def asked(self) -> SentRequest:
        """Call before a linearizable request is sent; pass the result to `answered`."""
        return SentRequest(self.seen, self._now_ms())

    def answered(self, asked: SentRequest, revision: int) -> None:
        """A linearizable request was answered at *revision*."""
        if revision < asked.seen:
            self.went_back(asked.seen, revision)
        self.saw(revision)
        told = SentRequest(revision, asked.sent_ms)
        self._last = told if self._last is None else max(self._last, told)

    def saw(self, revision: int) -> None:
        """The store returned *revision*, so it has reached it."""
        last = self._last
        if last is not None:
            passed_ms = self._now_ms() - last.sent_ms
            if revision > last.seen + _LEAP + _LEAP_PER_MS * passed_ms:
                reason = f"from revision {last.seen} to {revision} in {passed_ms / 1000:.1f} s"
                self._found(WENT_BACK, f"the metadata store was restored: {reason}", revision)
        self.seen = max(self.seen, revision)

    def went_back(self, seen: int, found: int) -> None:
        """The store is at *found*, and was at *seen* before: evidence."""
        reason = f"revision {seen} was seen, and the store is at {found}"
        self._found(WENT_BACK, f"the metadata store went back: {reason}", found)

    def read_cluster(self, kvs: Sequence[KeyValue]) -> None:
        """Check the result of a linearizable read of the cluster's key."""
        if self.cluster is None or (kvs and kvs[0].value == self.cluster):
            return
        risen = _risen(self.cluster, kvs[0].value) if kvs else 0
        if risen > 0:
            self.cluster = kvs[0].value
            return
        if risen < 0:
            reason = "the cluster's format level was higher before"
            self._found(WENT_BACK, f"the metadata store went back: {reason}", None)
            return
        there = f"it says {_cluster_id(kvs[0].value)}" if kvs else "it is missing"
        reason = f"its cluster key said {_cluster_id(self.cluster)}, and now {there}"
        self._found(REPLACED, f"the metadata store is another one: {reason}", None)

    def read_head(self, kvs: Sequence[KeyValue], own: OwnSession, committed: int) -> None:
        """Check a linearizable read of *own*'s head, after flush *committed* was committed.

        The head exists as long as the session, and for days after it.

        Raises:
            CorruptError: the head cannot be decoded.
        """
        head = decode_head(kvs[0].value) if kvs else None
        if head is not None and (head == CLOSED or head >= committed):
            return
        there = "is missing" if head is None else f"says {head}"
        reason = f"session {own.session_id} had committed flush {committed}, and its head {there}"
        self._found(WENT_BACK, f"the metadata store went back: {reason}", None)

    @property
    def head_there(self) -> OwnSession | None:
        """The last session, if its head is in the store for certain."""
        own = self.session
        if own is None or self._now_ms() - own.valid_until_ms >= _HEAD_KEPT_MS:
            return None
        return own

    def _found(self, event: str, reason: str, found: int | None) -> None:
        if self.evidence is None:
            self.evidence = Evidence(
                event=event, reason=reason, revision_seen=self.seen, revision_found=found
            )
            self._evident()


def _risen(known: bytes, value: bytes) -> int:
    """By how much the format level of the same cluster has risen; 0: it is another cluster."""
    try:
        before, now = decode_cluster(known), decode_cluster(value)
    except CorruptError:
        return 0
    return now.format_version - before.format_version if now.cluster_id == before.cluster_id else 0


def _cluster_id(value: bytes) -> str:
    try:
        return decode_cluster(value).cluster_id
    except CorruptError:
        return "what cannot be read"
