"""What was read about a partition with a loss, and what follows from it.

    both keys ─▶ who may lead it, which sessions may have batches of it
    flush records, footers, manifest ─▶ the plan (`accepted_loss_plan`) and the claim
    the shown plan ─▶ is it this one? ─▶ the audit record, pieces to seal, the partition's new key

Pure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar

from driftlog_agents.log.leadership.claims import require_both
from driftlog_agents.log.leadership.taken_partitions import sealed_log
from driftlog_agents.log.partition.partition import PartitionLog, State, StoredAt, TailSlice
from driftlog_agents.log.partition.tail import (
    FlushBatches,
    flushed_between,
    session_of,
    tail_slice,
)
from driftlog_agents.log.recovery.accepted_loss_plan import (
    FoundSlice,
    LogPiece,
    LossPlan,
    is_ahead,
    plan_loss,
    plan_sealed_loss,
)
from driftlog_agents.log.recovery.leftover_batches import REPAIR
from driftlog_metadata.schema.codec import (
    decode_at,
    decode_leader,
    decode_partition_state,
)
from driftlog_metadata.schema.keys import leader_key, parse_flush_key, partition_key, session_key
from driftlog_metadata.schema.model import Leader, PartitionState, TopicPartition
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_metadata.stores.store import CreateRevisionIs, KeyValue, TxnResult
from driftlog_metadata.transactions.session_transactions import Claim
from driftlog_tiering.formats.accepted_loss import AcceptedLoss
from driftlog_tiering.formats.flush_object import Footer
from driftlog_tiering.formats.manifest import LeaderEpoch, Manifest, SegmentRef

EPOCHS_SKIPPED: Final = 2**20
"""The new leader epoch is this far above the largest known one if the leader key is gone: leaders
that committed nothing had epochs, too."""

RESTORE: Final = (
    "accept-loss covers flush objects, flush records, keys and segments that are gone; a manifest, "
    "a producer snapshot and a segment that is damaged must be put back (a version of the bucket, "
    "a replica)"
)

RESTORE_SEGMENT: Final = (
    "Put it back (a version of the bucket, a replica).  If there is none, keep a copy of it, "
    "delete it from the bucket, and run accept-loss again: its range becomes empty"
)

_T = TypeVar("_T")


class NotLostError(Exception):
    """There is no loss, or not the one that was shown; the message is for the operator."""


class LedElsewhereError(NotLostError):
    """Another agent's session leads the partition: the request belongs to that agent."""


class KeysRead(NamedTuple):
    """Both keys of a partition, as they were read at one revision."""

    tp: TopicPartition
    leader_kv: KeyValue | None
    state_kv: KeyValue | None

    @classmethod
    def of(cls, tp: TopicPartition, reads: Sequence[Sequence[KeyValue]]) -> "KeysRead":
        """From the reads of the leader key and the partition key."""
        leader_kv, state_kv = ((kvs[0] if kvs else None) for kvs in reads[:2])
        return cls(tp, leader_kv, state_kv)

    @property
    def leader(self) -> Leader:
        """The leader that the key names; without a key: none, of no epoch."""
        if self.leader_kv is None:
            return Leader(None, -1)
        return decoded(self.leader_kv, decode_leader)

    @property
    def state(self) -> PartitionState | None:
        """The partition's key."""
        return None if self.state_kv is None else decoded(self.state_kv, decode_partition_state)

    def missing(self) -> list[str]:
        """The keys that are gone.

        Raises:
            NotLostError: both: that is no loss.
        """
        keys = (leader_key(self.tp), self.leader_kv), (partition_key(self.tp), self.state_kv)
        missing = [key for key, kv in keys if kv is None]
        if len(missing) == 2:
            raise NotLostError("the partition has never had a leader: an agent claims it by itself")
        return missing

    def state_of_served(self) -> PartitionState:
        """The key of a served partition.

        Raises:
            MissingKeyError: one of the keys is gone.
            UnavailableError: both are.
        """
        require_both(self.tp, self.leader_kv, self.state_kv)
        if self.state is None:
            raise UnavailableError("the partition has no leader any more: try again")
        return self.state

    def claim(self, manifest: Manifest, newest_epoch: int, sessions: Iterable[str]) -> Claim:
        """The claim by these keys; a missing key is derived from the bucket and the footers, with
        an epoch above all of theirs."""
        leader = self.leader
        if self.leader_kv is None or leader.leader_epoch < newest_epoch:
            leader = replace(leader, leader_epoch=newest_epoch + EPOCHS_SKIPPED)
        state = self.state or PartitionState(
            sealed_end=manifest.end,
            manifest_version=manifest.version,
            log_start=manifest.log_start,
            sessions=tuple(sessions),
        )
        return Claim(
            tp=self.tp,
            leader=leader,
            leader_revision=self.leader_kv.mod_revision if self.leader_kv else 0,
            state=state,
            state_revision=self.state_kv.mod_revision if self.state_kv else 0,
        )


class OwnedSlice(NamedTuple):
    """A slice of the partition in an object that the bucket has."""

    found: FoundSlice
    tail: TailSlice
    epochs: Sequence[int]
    """The leader epochs of its batches."""


def slices_in(footer: Footer, tp: TopicPartition, object_key: str) -> list[OwnedSlice]:
    """The slices of *tp* in an object."""
    stored_at = StoredAt(object_key, 0)
    return [
        OwnedSlice(
            FoundSlice(s.base, s.end),
            tail_slice(FlushBatches.of_footer(footer), s, stored_at, flushed_between(footer, s)),
            footer.columns[2][s.first : s.first + s.count],
        )
        for s in footer.slices()
        if (s.topic_id, s.partition) == (tp.topic_id, tp.partition)
    ]


@dataclass(slots=True, kw_only=True)
class UnsealedPart:
    """The flush records above the manifest, as far as they were read."""

    keys: KeysRead
    missing: list[str]
    """The keys that are gone."""
    manifest: Manifest
    read_at_ms: int
    read: dict[str, list[OwnedSlice]] = field(default_factory=dict)
    """The slices of the partition by flush object, which never changes once written."""
    slices: list[OwnedSlice] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Flush objects that are gone."""

    @property
    def key_end(self) -> int:
        """The sealed end in the partition's key; if the key is gone, that of the manifest."""
        state = self.keys.state
        return self.manifest.end if state is None else state.sealed_end

    def may_have(self, record_key: str) -> bool:
        """Whether the flush record's session may have unsealed batches.  If the partition's key is
        gone or older than the bucket, any session may."""
        try:
            session_id = parse_flush_key(record_key).session_id
        except ValueError:
            return False  # not ours
        state = self.keys.state
        return state is None or self.manifest.end > state.sealed_end or session_id in state.sessions

    def add(self, object_key: str) -> None:
        """Adds the unsealed slices of an object that is `read`."""
        end = max(self.key_end, self.manifest.end)
        self.slices += [one for one in self.read[object_key] if one.found.end > end]

    @property
    def is_ahead(self) -> bool:
        """Whether the manifest ends above every end that the metadata store names."""
        return is_ahead(self.key_end, self.manifest.end, [one.found for one in self.slices])

    def found(self, reason: str, unnamed: tuple[int, int]) -> "LostPartition":
        """The loss of the partition, for *reason* if nothing else shows one.

        *unnamed*: if the manifest `is_ahead`, the partition's largest end and leader epoch in any
        flush object; else (0, -1).

        Raises:
            NotLostError: it is ambiguous which records are lost.
        """
        slices = sorted(self.slices, key=lambda one: one.found)
        keys, manifest = self.keys, self.manifest
        try:
            plan = plan_loss(
                key_end=self.key_end,
                manifest_end=manifest.end,
                slices=[one.found for one in slices],
                lost=sorted(self.lost),
                unnamed_end=unnamed[0],
                missing_keys=self.missing,
            )
        except ValueError as error:
            raise NotLostError(f"the loss is ambiguous: {error}") from error
        if reason and not plan.reasons:
            # Offline for a reason that its leader saw: the manifest is kept, and the batches after
            # it.
            plan = replace(plan, reasons=(reason,))
        epochs = [entry.epoch for entry in manifest.leader_epochs]
        epochs += [epoch for one in slices for epoch in one.epochs]
        sessions = tuple(dict.fromkeys(session_of(one.tail) for one in slices))
        state = keys.state
        return LostPartition(
            claim=keys.claim(manifest, max((*epochs, unnamed[1]), default=-1), sessions),
            gone=tuple(state.sessions) if state is not None and keys.leader_kv is None else (),
            manifest=manifest,
            read_at_ms=self.read_at_ms,
            plan=plan,
            slices=slices,
            sessions=sessions,
            read=self.read,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPartition:
    """A partition with a loss, as it was found in both stores."""

    claim: Claim
    gone: tuple[str, ...] = ()
    """Sessions besides the leader's that must be over for the claim."""
    manifest: Manifest
    read_at_ms: int
    plan: LossPlan
    slices: Sequence[OwnedSlice] = ()
    sessions: tuple[str, ...] = ()
    """Sessions whose flush records hold unsealed batches."""
    read: Mapping[str, list[OwnedSlice]] = field(default_factory=dict)
    """See `UnsealedPart`."""
    segments: Sequence[SegmentRef] = ()
    """Lost segments, if only segments are lost."""

    def require(self, shown: Mapping[str, Any]) -> None:
        """
        Raises:
            NotLostError: nothing is lost, or the plan is not the *shown* one.
        """
        if not self.plan.reasons:
            raise NotLostError("nothing is lost")
        if not self.plan.is_as_shown(dict(shown)):
            raise NotLostError(f"the plan has changed; it is now {self.plan.as_json()}")

    def require_over(self, live: Iterable[str], session_id: str) -> None:
        """*live*: sessions whose keys exist; *session_id*: ours.

        Raises:
            NotLostError: a live session leads the partition, or may lead it.
        """
        others = set(live) - {session_id}
        if self.claim.needs_gone in others:
            raise LedElsewhereError("another agent now leads the partition: send the request to it")
        if {*self.gone} & others or self.claim.needs_gone == session_id:
            raise NotLostError("a live session leads the partition, or may lead it")

    def compares(self, session_id: str) -> tuple[CreateRevisionIs, ...]:
        """That the sessions in `gone` are over, for the transaction of the claim."""
        return tuple(CreateRevisionIs(session_key(s), 0) for s in self.gone if s != session_id)

    def claimed(self, topic: str, session_id: str, result: TxnResult) -> PartitionLog:
        """The log of the stored claim; *result*: of the transaction that claims.

        Raises:
            UnavailableError: it was refused.
        """
        claim = self.claim
        revisions = result.revision, result.revision
        if not result.succeeded:
            now = KeysRead.of(claim.tp, result.reads)
            mine = Leader(session_id, claim.epoch)
            if now.leader_kv is None or now.state_kv is None or now.leader != mine:
                raise UnavailableError("the partition's keys have changed: run it again")
            revisions = now.leader_kv.mod_revision, now.state_kv.mod_revision  # a lost answer
        log = sealed_log(topic, claim.tp, claim.epoch, claim.state_under(session_id))
        log.leader_revision, log.partition_revision = revisions
        return log

    def audit(self, topic: str, session_id: str, wall_ms: int) -> AcceptedLoss:
        """The record of the loss that is accepted at *wall_ms*."""
        plan, claim = self.plan, self.claim
        has_state = claim.state_revision > 0
        return AcceptedLoss(
            topic=topic,
            tp=claim.tp,
            leader_epoch=claim.epoch,
            session_id=session_id,
            accepted_at_ms=wall_ms,
            reasons=plan.reasons,
            lost=plan.lost,
            objects=plan.objects,
            sealed_end=claim.state.sealed_end if has_state else -1,
            manifest_version=claim.state.manifest_version if has_state else -1,
            goes_on_at=plan.goes_on_at,
        )

    def part(self, log: PartitionLog, piece: LogPiece, now_ms: float) -> PartitionLog:
        """The part of *log* in *piece*, to be sealed."""
        state = PartitionState(
            sealed_end=piece.base, log_start=log.log_start, sessions=log.sessions
        )
        part = sealed_log(log.topic, self.claim.tp, log.leader_epoch, state)
        for one in self.slices:
            if not piece.lost and piece.base < one.found.end <= piece.end:
                part.restore(one.tail, now_ms)
        return part

    def epochs(self, log: PartitionLog, piece: LogPiece) -> tuple[LeaderEpoch, ...] | None:
        """The leader epochs of a lost range; None: *piece* is not lost.

        A lost range at the log's end gets our leader epoch: so `recovery` sees that batches which
        an older leader buffered for these offsets are not in the log.
        """
        if not piece.lost:
            return None
        is_last = piece.end == self.plan.goes_on_at
        return (LeaderEpoch(log.leader_epoch, piece.base),) if is_last else ()

    def state_after(self, log: PartitionLog, manifest: Manifest, session_id: str) -> PartitionState:
        """The partition's key once the pieces are in *manifest*."""
        sessions = () if self.plan.seals else self.sessions
        return PartitionState(
            sealed_end=manifest.end,
            manifest_version=manifest.version,
            log_start=max(log.log_start, manifest.log_start),
            sessions=tuple(dict.fromkeys((*sessions, session_id))),
        )


def found_sealed(
    keys: KeysRead, manifest: Manifest, read_at_ms: int, segments: Sequence[SegmentRef]
) -> LostPartition:
    """A served partition of which *segments* are lost."""
    return LostPartition(
        claim=keys.claim(manifest, -1, ()),
        manifest=manifest,
        read_at_ms=read_at_ms,
        plan=plan_sealed_loss(manifest.end, segments),
        segments=segments,
    )


def require_repairable(log: PartitionLog | None) -> None:
    """
    Raises:
        UnavailableError: *log*, which is led here, is being handed over.
        NotLostError: it is offline because of the agent's disk.
    """
    if log is None:
        return
    if log.state is State.CLOSED:
        raise UnavailableError("the partition is being handed over: try again")
    if REPAIR in log.offline_reason:
        raise NotLostError(log.offline_reason)


def require_lost(log: PartitionLog | None, plan: LossPlan) -> None:
    """
    Raises:
        NotLostError: by *plan* nothing of the partition, whose *log* is led here, is lost.
    """
    if plan.reasons or log is None:
        return
    if is_served(log):
        raise NotLostError(
            "the partition is served with all segments: nothing is lost.  driftlog verify "
            "finds damaged ones"
        )
    if log.damage:
        raise NotLostError(f"no unsealed data is lost.  Damaged: {log.damage}.  {RESTORE}")


def is_served(log: PartitionLog | None) -> bool:
    """Whether the partition is served, with its whole unsealed part."""
    return log is not None and log.state is not State.OFFLINE and not log.damage


def reason_of(log: PartitionLog | None) -> str:
    """Why its leader has the partition offline; empty: it has not, or there is none."""
    return "" if log is None else log.offline_reason


def decoded(kv: KeyValue, decode: Callable[[bytes], _T]) -> _T:
    """The value of *kv*; the error of a damaged one names the key."""
    return decode_at(kv.key, kv.value, decode)
