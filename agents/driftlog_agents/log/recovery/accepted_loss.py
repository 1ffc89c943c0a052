"""Accepts a loss: an operator confirms that objects or keys of a partition are gone for good.

    examine   both keys ──▶ flush records ──▶ footers, manifest ──▶ the plan: lost ranges
    accept    the same again: is it the plan shown? ──▶ claim ──▶ audit record ──▶ seal the rest,
              gaps as empty ranges ──▶ the partition's key ──▶ release

An agent never accepts a loss by itself: an operator requests it, for a partition that the agent
cannot serve.  The agent does it under a claim, so its writes are fenced like those of any leader.
It leaves keys and a manifest that any takeover can open: the agent that the partition is placed on
claims it as usual.  If it is interrupted, the partition is still offline, and the manifest has what
was sealed; the next attempt starts from there.

An object is gone if the store answers "not found", or returns a damaged footer, for half a minute.
An object that cannot be read now is not lost.  The newest manifest is found by its key: the store
has none of the next version.  A stale listing may show an older one.

The same repairs a served partition that cannot be sealed because an object of its tail is gone: its
leader releases it first.  It also repairs a served partition whose segments are gone: their ranges
become empty, and the rest is unchanged.

Shell.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol
from uuid import UUID

import structlog

from driftlog_agents.cluster.view import TopicEntry
from driftlog_agents.log.leadership.claim_transactions import release
from driftlog_agents.log.leadership.claims import require_both
from driftlog_agents.log.leadership.partition_keys import PartitionKeys
from driftlog_agents.log.objects.availability import DamagedObjectError
from driftlog_agents.log.objects.flush_object_ends import FlushObjectEnds, do_all, in_time
from driftlog_agents.log.objects.missing_objects import MissingObjects
from driftlog_agents.log.partition.partition import PartitionLog, State, StoredAt, TailSlice
from driftlog_agents.log.partition.tail import FlushBatches, flushed_between, tail_slice
from driftlog_agents.log.recovery.accepted_loss_plan import (
    FoundSlice,
    LossPlan,
    Piece,
    is_ahead,
    plan_loss,
    plan_sealed_loss,
)
from driftlog_agents.log.recovery.recovery import REPAIR
from driftlog_agents.log.sealing.sealer import Sealer
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.codec import (
    decode_at,
    decode_flush_record,
    decode_leader,
    decode_partition_state,
)
from driftlog_metadata.schema.keys import (
    FLUSHES_PREFIX,
    SESSIONS_PREFIX,
    leader_key,
    parse_flush_key,
    parse_session_key,
    partition_key,
    session_key,
)
from driftlog_metadata.schema.model import FlushRecord, Leader, PartitionState, TopicPartition
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_metadata.stores.store import CreateRevisionIs, Get, KeyValue
from driftlog_metadata.transactions import session_transactions as transactions
from driftlog_metadata.transactions.session_transactions import Claim, Txn
from driftlog_tiering.formats.accepted_loss import AcceptedLoss, encode_accepted_loss
from driftlog_tiering.formats.flush_object import (
    CorruptFlushObjectError,
    Footer,
    decode_footer,
)
from driftlog_tiering.formats.manifest import LeaderEpoch, Manifest, SegmentRef
from driftlog_tiering.formats.manifest_codec import CorruptManifestError
from driftlog_tiering.formats.manifests import VoidEditError, load_at_least, load_following
from driftlog_tiering.stores.object_store import (
    AlreadyExistsError,
    NotFoundError,
    ObjectStore,
)

EPOCHS_SKIPPED: Final = 2**20
"""The new leader epoch is this far above the largest known one if the leader key is gone: leaders
that committed nothing had epochs, too."""


_RESTORE: Final = (
    "accept-loss covers flush objects, flush records, keys and segments that are gone; a manifest, "
    "a producer snapshot and a segment that is damaged must be put back (a version of the bucket, "
    "a replica)"
)


class NotLostError(Exception):
    """There is no loss, or not the one that was shown; the message is for the operator."""


class LedElsewhereError(NotLostError):
    """Another agent's session leads the partition: the request belongs to that agent."""


_Outcome = AcceptedLoss | Exception
_Read = dict[str, list[tuple[FoundSlice, TailSlice]]]
"""Slices of a partition by flush object, which never changes once written."""


@dataclass(slots=True)
class _Found:
    """A partition as it was found in both stores."""

    keys: tuple[KeyValue | None, KeyValue | None]
    """The leader key and the partition key before the claim."""
    claim: Claim
    gone: tuple[str, ...]
    """Sessions besides the leader's that must be over for the claim."""
    manifest: Manifest
    read_at_ms: int
    plan: LossPlan
    slices: list[tuple[FoundSlice, TailSlice]] = field(default_factory=list)
    sessions: dict[str, None] = field(default_factory=dict)
    """Sessions whose flush records hold unsealed batches."""
    read: _Read = field(default_factory=dict)
    segments: list[SegmentRef] = field(default_factory=list)
    """Lost segments, if only segments are lost."""


class Leads(Protocol):
    """The part of `leadership/handover` that this needs."""

    async def hold(self, tp: TopicPartition) -> None:
        """Prevents claims of *tp*; UnavailableError: it is being claimed."""
        ...

    def let(self, tp: TopicPartition) -> None:
        """Allows claims of *tp* again."""
        ...

    async def give_up(self, logs: Sequence[PartitionLog]) -> None:
        """Flushes and releases *logs*."""
        ...

    async def give_back(self, tp: TopicPartition) -> None:
        """Releases the claim of *tp* that is kept although the partition is not led, if any."""
        ...


class LossAcceptance:
    """See the module; for one session.

    Args:
        topics: every known topic, by id.
        find: the log of a partition that is led here.
        spawn: runs an acceptance as long as the session lasts.  A cancelled caller does not end it,
            for a partition whose acceptance is interrupted has no leader.
    """

    def __init__(
        self,
        *,
        session: Session,
        objects: ObjectStore,
        sealer: Sealer,
        keys: PartitionKeys,
        leading: Leads,
        find: Callable[[TopicPartition], PartitionLog | None],
        topics: Mapping[UUID, TopicEntry],
        now_ms: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, _Outcome]], asyncio.Task[_Outcome]],
    ) -> None:
        self._session = session
        self._objects = objects
        self._shown_ends = FlushObjectEnds(objects)
        self._sealer = sealer
        self._keys = keys
        self._leading = leading
        self._find_log = find
        self._topics = topics
        self._now_ms = now_ms
        self._spawn = spawn
        self._works: set[asyncio.Task[_Outcome]] = set()
        self._gone = MissingObjects(objects, now_ms)
        self._log = structlog.get_logger()

    async def examine(self, tp: TopicPartition) -> LossPlan:
        """Reads what is lost of *tp*; changes nothing.

        Raises:
            UnavailableError: a store does not answer, or does not return an object that it has.
            CorruptError: an object or key is damaged that this cannot repair.
            LedElsewhereError: see there.
            NotLostError: nothing is lost, or it is ambiguous what is.
            FencedError: the session ended first.
        """
        log = self._check(tp)
        if _is_served(log):
            plan = (await self._find(self._topic(tp), tp, "", sealed=True)).plan
            if not plan.reasons:
                raise NotLostError("the partition is served with all segments: nothing is lost")
            return plan
        plan = (await self._find(self._topic(tp), tp, _reason(log))).plan
        if log is not None and log.damage and not plan.reasons:
            raise NotLostError(f"no unsealed data is lost.  Damaged: {log.damage}.  {_RESTORE}")
        return plan

    async def accept(self, tp: TopicPartition, shown: dict[str, Any], wall_ms: int) -> AcceptedLoss:
        """Accepts the loss if it is the *shown* plan; *wall_ms*: now.

        The partition is claimed again afterwards.  A cancelled caller does not end the work.
        Raises: as `examine`; after UnavailableError it may be repeated.
        """
        work = self._spawn(self._outcome(tp, shown, wall_ms))
        self._works.add(work)
        work.add_done_callback(self._works.discard)
        await asyncio.wait((work,))
        if work.cancelled():
            raise UnavailableError("the agent's session is over: run it again")
        outcome = work.result()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def close(self) -> None:
        """Cancels every acceptance; the partition stays offline for the next leader."""
        works = list(self._works)
        for work in works:
            work.cancel()
        if works:
            await asyncio.wait(works)

    async def _outcome(self, tp: TopicPartition, shown: dict[str, Any], wall_ms: int) -> _Outcome:
        """The result of `accept`: the caller raises an error, and the session survives it."""
        try:
            return await self._accept_held(tp, shown, wall_ms)
        except Exception as error:  # noqa: BLE001 - its caller raises it
            self._log.warning("loss_not_accepted", partition=str(tp), error=str(error))
            return error

    async def _accept_held(
        self, tp: TopicPartition, shown: dict[str, Any], wall_ms: int
    ) -> AcceptedLoss:
        await self._leading.hold(tp)
        try:
            log = self._check(tp)
            sealed = _is_served(log)
            if log is None or log.damage or sealed:
                # Before it is released: it serves, or its buffered batches keep their offsets.
                found = await self._find(self._topic(tp), tp, _reason(log), sealed=sealed)
                _agree(found, shown)
            if log is None:
                await self._leading.give_back(tp)
            else:
                await self._leading.give_up([log])
            return await self._accept(
                self._topic(tp), tp, shown, _reason(log), wall_ms, sealed=sealed
            )
        finally:
            self._leading.let(tp)

    def _topic(self, tp: TopicPartition) -> TopicEntry:
        entry = self._topics.get(tp.topic_id)
        if entry is None:
            raise NotLostError("its topic is gone")
        return entry

    def _check(self, tp: TopicPartition) -> PartitionLog | None:
        """The log of *tp*, if it is led here and may be repaired."""
        log = self._find_log(tp)
        if log is None:
            return None
        if log.state is State.CLOSED:
            raise UnavailableError("the partition is being handed over: try again")
        if REPAIR in log.offline_reason:
            raise NotLostError(log.offline_reason)
        return log

    async def _accept(
        self,
        topic: TopicEntry,
        tp: TopicPartition,
        shown: dict[str, Any],
        reason: str,
        wall_ms: int,
        *,
        sealed: bool,
    ) -> AcceptedLoss:
        """*sealed*: the partition was served, so its unsealed part is complete."""
        found = await self._find(topic, tp, reason, sealed=sealed)
        _agree(found, shown)
        log = await self._claim(topic, found)
        try:
            # Only after the claim no other session commits: see `takeover`.
            if sealed:
                again = await self._examined_sealed(topic, tp, *found.keys)
            else:
                again = await self._examined(topic, tp, reason, *found.keys, read=found.read)
            if again.plan != found.plan:
                raise UnavailableError("the partition has changed meanwhile: run it again")
            found = again
            loss = self._audit(topic, found, wall_ms)
            await self._create(loss.key, encode_accepted_loss(loss))
            self._log.warning(
                "loss_accepted",
                partition=f"{log.topic}-{log.partition}",
                lost=loss.lost,
                objects=loss.objects,
                goes_on_at=loss.goes_on_at,
                audit=loss.key,
            )
            await self._write(log, found)
        except VoidEditError as error:
            raise UnavailableError(f"its manifest has changed: {error}") from error
        finally:
            log.state = State.CLOSED
            await release(
                self._session,
                [transactions.Release(tp, log.leader_epoch, log.leader_revision)],
            )
        return loss

    # ── Examination ──

    async def _find(
        self, topic: TopicEntry, tp: TopicPartition, reason: str, *, sealed: bool = False
    ) -> _Found:
        result = await self._session.transact(
            Txn((), (Get(leader_key(tp)), Get(partition_key(tp))))
        )
        leader_kv, state_kv = ((kvs[0] if kvs else None) for kvs in result.reads)
        leader = "" if leader_kv is None else _decoded(leader_kv, decode_leader).session_id or ""
        is_other = leader not in ("", self._session.session_id)
        if is_other and await self._session.read(session_key(leader)) is not None:
            raise LedElsewhereError("another agent leads the partition: send the request to it")
        if sealed:
            return await self._examined_sealed(topic, tp, leader_kv, state_kv)
        return await self._examined(topic, tp, reason, leader_kv, state_kv)

    async def _examined_sealed(
        self,
        topic: TopicEntry,
        tp: TopicPartition,
        leader_kv: KeyValue | None,
        state_kv: KeyValue | None,
    ) -> _Found:
        """Lost segments of a served partition."""
        require_both(tp, leader_kv, state_kv)
        if state_kv is None:
            raise UnavailableError("the partition has no leader any more: try again")
        state = _decoded(state_kv, decode_partition_state)
        read_at_ms = int(self._now_ms())
        manifest = await self._newest(topic.topic.name, tp, state.manifest_version)
        if manifest.end != state.sealed_end:
            raise UnavailableError("the partition is being sealed: try again")
        segments = await self._gone.segments(manifest)
        return _Found(
            keys=(leader_kv, state_kv),
            claim=_as_claim(tp, leader_kv, state_kv, state, manifest, -1, ()),
            gone=(),
            manifest=manifest,
            read_at_ms=read_at_ms,
            plan=plan_sealed_loss(manifest.end, segments),
            segments=segments,
        )

    async def _examined(
        self,
        topic: TopicEntry,
        tp: TopicPartition,
        reason: str,
        leader_kv: KeyValue | None,
        state_kv: KeyValue | None,
        *,
        read: _Read | None = None,
    ) -> _Found:
        """*read*: objects that need not be read again."""
        read = {} if read is None else read
        missing = [
            key
            for key, kv in ((leader_key(tp), leader_kv), (partition_key(tp), state_kv))
            if kv is None
        ]
        if len(missing) == 2:
            raise NotLostError("the partition has never had a leader: an agent claims it by itself")
        state = None if state_kv is None else _decoded(state_kv, decode_partition_state)
        read_at_ms = int(self._now_ms())
        name = topic.topic.name
        manifest = await self._newest(name, tp, 0 if state is None else state.manifest_version)
        key_end = manifest.end if state is None else state.sealed_end
        # If the partition's key is gone or older than the bucket, any session may have batches of
        # it.
        known = None if state is None or manifest.end > key_end else state.sessions
        slices, lost = await self._slices(tp, known, max(key_end, manifest.end), read)
        epochs = [entry.epoch for entry in manifest.leader_epochs]
        for _, tail in slices:
            assert isinstance(tail.data, _Slices)
            epochs += tail.data.footer.columns[2][tail.first : tail.first + tail.count]
        unnamed_end = 0
        if is_ahead(key_end, manifest.end, [one for one, _ in slices]):
            unnamed_end, epoch = await self._shown_ends.of(tp)
            epochs.append(epoch)
        try:
            plan = plan_loss(
                key_end=key_end,
                manifest_end=manifest.end,
                slices=[one for one, _ in slices],
                lost=lost,
                unnamed_end=unnamed_end,
                missing_keys=missing,
            )
        except ValueError as error:
            raise NotLostError(f"the loss is ambiguous: {error}") from error
        if reason and not plan.reasons:
            # Offline for a reason that its leader saw: the manifest is kept, and the batches after
            # it.
            plan = replace(plan, reasons=(reason,))
        sessions = dict.fromkeys(_session_of(tail) for _, tail in slices)
        newest = max(epochs, default=-1)
        return _Found(
            keys=(leader_kv, state_kv),
            claim=_as_claim(tp, leader_kv, state_kv, state, manifest, newest, sessions),
            gone=tuple(state.sessions) if state is not None and leader_kv is None else (),
            manifest=manifest,
            read_at_ms=read_at_ms,
            plan=plan,
            slices=slices,
            sessions=sessions,
            read=read,
        )

    async def _slices(
        self, tp: TopicPartition, known: tuple[str, ...] | None, sealed_end: int, read: _Read
    ) -> tuple[list[tuple[FoundSlice, TailSlice]], list[str]]:
        """The slices above *sealed_end* that flush records name, and the objects that are gone;
        *known*: the sessions that may have some; None: any."""
        found: list[tuple[FoundSlice, TailSlice]] = []
        lost: list[str] = []

        async def look(kv: KeyValue) -> None:
            record = _decoded(kv, decode_flush_record)
            if record.object_key not in read:
                try:
                    footer = await self._footer(kv, record)
                except DamagedObjectError:
                    lost.append(record.object_key)
                    return
                read[record.object_key] = _slices_in(footer, tp, record.object_key)
            found.extend(one for one in read[record.object_key] if one[0].end > sealed_end)

        reads: list[Coroutine[Any, Any, None]] = []
        for kv in await self._session.read_prefix(FLUSHES_PREFIX):
            try:
                key = parse_flush_key(kv.key)
            except ValueError:
                continue  # not ours
            if known is None or key.session_id in known:
                reads.append(look(kv))
        await do_all(reads)
        found.sort(key=lambda entry: entry[0])
        lost.sort()
        return found, lost

    async def _footer(self, kv: KeyValue, record: FlushRecord) -> Footer:
        """
        Raises:
            DamagedObjectError: its object is gone, or its footer is damaged, and its record still
                exists.
        """
        key = record.object_key

        async def read() -> Footer:
            try:
                return decode_footer(
                    await in_time(
                        lambda: self._objects.get(key, record.footer_start, record.size_bytes)
                    )
                )
            except (NotFoundError, CorruptFlushObjectError) as error:
                now = await self._session.read(kv.key)
                if now is None or now.value != kv.value:
                    raise UnavailableError(f"{kv.key} has changed: try again") from error
                raise

        return await self._gone.read(key, read)

    async def _newest(self, topic: str, tp: TopicPartition, version: int) -> Manifest:
        """The newest manifest, at least *version*, even if listings are stale."""
        try:
            manifest: Manifest = await in_time(
                lambda: load_at_least(self._objects, topic, tp, version)
            )
        except CorruptManifestError as error:
            raise CorruptManifestError(f"{error}.  {_RESTORE}") from error
        while True:
            known = manifest
            following = await in_time(lambda known=known: load_following(self._objects, known))  # type: ignore[misc]
            if following is None:
                return manifest
            manifest = following

    # ── Acceptance ──

    async def _claim(self, topic: TopicEntry, found: _Found) -> PartitionLog:
        """Claims the partition, only to write its keys and manifest."""
        session, claim, tp = self._session, found.claim, found.claim.tp
        live = {parse_session_key(kv.key) for kv in await session.read_prefix(SESSIONS_PREFIX)} - {
            session.session_id
        }
        if claim.needs_gone in live:
            raise LedElsewhereError("another agent now leads the partition: send the request to it")
        if {*found.gone} & live or claim.needs_gone == session.session_id:
            raise NotLostError("a live session leads the partition, or may lead it")
        txn = transactions.claim(
            session.session_id,
            session.revision,
            [claim],
            {topic.topic.name: topic.create_revision},
            cluster=session.cluster,
        )
        gone = tuple(
            CreateRevisionIs(session_key(old), 0) for old in found.gone if old != session.session_id
        )
        result = await session.transact(replace(txn, compares=(*txn.compares, *gone)))
        revisions = result.revision, result.revision
        if not result.succeeded:
            (leader_kv,), (state_kv,) = (kvs or (None,) for kvs in result.reads[:2])
            mine = Leader(session.session_id, claim.epoch)
            if leader_kv is None or state_kv is None or _decoded(leader_kv, decode_leader) != mine:
                raise UnavailableError("the partition's keys have changed: run it again")
            revisions = leader_kv.mod_revision, state_kv.mod_revision  # its answer was lost
        state = claim.state_under(session.session_id)
        log = PartitionLog(
            topic=topic.topic.name,
            topic_id=tp.topic_id,
            partition=tp.partition,
            leader_epoch=claim.epoch,
            log_start=state.log_start,
            sealed_end=state.sealed_end,
        )
        log.sessions = state.sessions
        log.leader_revision, log.partition_revision = revisions
        log.manifest_version = state.manifest_version
        return log

    def _audit(self, topic: TopicEntry, found: _Found, wall_ms: int) -> AcceptedLoss:
        plan, claim = found.plan, found.claim
        has_state = claim.state_revision > 0
        return AcceptedLoss(
            topic=topic.topic.name,
            tp=claim.tp,
            leader_epoch=claim.epoch,
            session_id=self._session.session_id,
            accepted_at_ms=wall_ms,
            reasons=plan.reasons,
            lost=plan.lost,
            objects=plan.objects,
            sealed_end=claim.state.sealed_end if has_state else -1,
            manifest_version=claim.state.manifest_version if has_state else -1,
            goes_on_at=plan.goes_on_at,
        )

    async def _create(self, key: str, body: bytes) -> None:
        with suppress(AlreadyExistsError):  # an earlier try: no other session has this epoch
            await in_time(lambda: self._objects.create(key, [body]))

    async def _write(self, log: PartitionLog, found: _Found) -> None:
        """Seals the pieces; then writes the partition's key."""
        plan, manifest = found.plan, found.manifest
        if found.segments:
            manifest = await self._sealer.drop_segments(
                manifest, found.segments, read_at_ms=found.read_at_ms
            )
            # The key keeps the sessions with unsealed batches.
            await self._keys.write(log, lambda now: replace(now, manifest_version=manifest.version))
            return
        sessions = found.sessions
        if plan.seals:
            sessions = {}
            for piece in plan.pieces:
                manifest = await self._seal(log, found, manifest, piece)
        mine = self._session.session_id
        state = PartitionState(
            sealed_end=manifest.end,
            manifest_version=manifest.version,
            log_start=max(log.log_start, manifest.log_start),
            sessions=tuple(dict.fromkeys((*sessions, mine))),
        )
        await self._keys.write(log, lambda _: state)

    async def _seal(
        self, log: PartitionLog, found: _Found, manifest: Manifest, piece: Piece
    ) -> Manifest:
        """Adds one range to *manifest*, in as many segments as needed.

        A lost range at the log's end gets our leader epoch: so `recovery` sees that batches which
        an older leader buffered for these offsets are not in the log.
        """
        base, end, lost = piece
        last = lost and end == found.plan.goes_on_at
        epochs = ((LeaderEpoch(log.leader_epoch, base),) if last else ()) if lost else None
        part = PartitionLog(
            topic=log.topic,
            topic_id=log.topic_id,
            partition=log.partition,
            leader_epoch=log.leader_epoch,
            log_start=log.log_start,
            sealed_end=base,
        )
        part.sessions = log.sessions
        for one, tail in found.slices:
            if not lost and base < one.end <= end:
                part.restore(tail, self._now_ms())
        while manifest.end < end:
            segments: list[SegmentRef] = []
            stop = end if lost else self._sealer.next_end(part, end)
            manifest = await self._sealer.extend(
                part,
                manifest,
                stop,
                segments,
                read_at_ms=found.read_at_ms,
                lost=epochs,
            )
            if not lost:
                part.seal(stop)
        part.state = State.CLOSED
        return manifest


class _Slices(FlushBatches):
    """The batches of a footer that was read here."""

    __slots__ = ("footer",)

    def __init__(self, footer: Footer) -> None:
        columns = footer.columns
        super().__init__(
            session_id=footer.session_id,
            base_offsets=columns[3],
            lengths=columns[11],
            positions=columns[10],
            max_timestamps_ms=columns[9],
        )
        self.footer = footer


def _slices_in(
    footer: Footer, tp: TopicPartition, object_key: str
) -> list[tuple[FoundSlice, TailSlice]]:
    stored_at = StoredAt(object_key, 0)
    return [
        (
            FoundSlice(s.base, s.end),
            tail_slice(_Slices(footer), s, stored_at, flushed_between(footer, s)),
        )
        for s in footer.slices()
        if (s.topic_id, s.partition) == (tp.topic_id, tp.partition)
    ]


def _as_claim(
    tp: TopicPartition,
    leader_kv: KeyValue | None,
    state_kv: KeyValue | None,
    state: PartitionState | None,
    manifest: Manifest,
    newest_epoch: int,
    sessions: Iterable[str],
) -> Claim:
    """The claim by the keys as they were read; a missing key is derived from the bucket and the
    footers, with an epoch above all of theirs."""
    leader = Leader(None, -1) if leader_kv is None else _decoded(leader_kv, decode_leader)
    if leader_kv is None or leader.leader_epoch < newest_epoch:
        leader = replace(leader, leader_epoch=newest_epoch + EPOCHS_SKIPPED)
    if state is None:
        state = PartitionState(
            sealed_end=manifest.end,
            manifest_version=manifest.version,
            log_start=manifest.log_start,
            sessions=tuple(sessions),
        )
    return Claim(
        tp=tp,
        leader=leader,
        leader_revision=leader_kv.mod_revision if leader_kv else 0,
        state=state,
        state_revision=state_kv.mod_revision if state_kv else 0,
    )


def _agree(found: _Found, shown: dict[str, Any]) -> None:
    """
    Raises:
        NotLostError: nothing is lost, or the plan is not the *shown* one.
    """
    if not found.plan.reasons:
        raise NotLostError("nothing is lost")
    if not found.plan.is_as_shown(shown):
        raise NotLostError(f"the plan has changed; it is now {found.plan.as_json()}")


def _is_served(log: PartitionLog | None) -> bool:
    """Whether the partition is served, with its whole unsealed part."""
    return log is not None and log.state is not State.OFFLINE and not log.damage


def _reason(log: PartitionLog | None) -> str:
    return "" if log is None else log.offline_reason


def _session_of(tail: TailSlice) -> str:
    assert isinstance(tail.data, FlushBatches)
    return tail.data.session_id


def _decoded(kv: KeyValue, decode: Callable[[bytes], Any]) -> Any:
    return decode_at(kv.key, kv.value, decode)
