"""Bugs to be planted, one at a time: each is a clause of design.md left out.

A simulation that cannot tell is worth nothing; `test_simulation` shows that it can.
"""

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast
from weakref import WeakKeyDictionary

import pytest

from driftlog_agents.log.consolidation.flush_record_index import FlushRecordIndex
from driftlog_agents.log.consolidation.managed_records import ManagedFlushRecords
from driftlog_agents.log.garbage import named_flush_objects as flush_names
from driftlog_agents.log.garbage.unreferenced_objects import Pass
from driftlog_agents.log.ingest import admission, admission_verdict
from driftlog_agents.log.ingest.acks_one import AcksOne
from driftlog_agents.log.ingest.admission import Admission, Admitted
from driftlog_agents.log.ingest.buffer import BufferLog
from driftlog_agents.log.ingest.flush_effects import FlushStage
from driftlog_agents.log.ingest.flush_memory import FlushMemory
from driftlog_agents.log.ingest.flush_pipeline import FlushPipeline
from driftlog_agents.log.ingest.flusher import Flusher
from driftlog_agents.log.leadership import claims as claimed_keys
from driftlog_agents.log.leadership import takeover
from driftlog_agents.log.leadership.taken_partitions import Taken
from driftlog_agents.log.local.buffer_format import ENTRY_HEADER_BYTES, FILE_HEADER_BYTES, entries
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.objects.manifest_cache import ManifestCache
from driftlog_agents.log.objects.manifest_check import ManifestCheck
from driftlog_agents.log.partition.partition import PartitionLog, StoredAt
from driftlog_agents.log.partition.tail import FlushBatches
from driftlog_agents.log.reading.reader import LogReader
from driftlog_agents.log.recovery import displaced_batches, leftover_batches, recovery
from driftlog_agents.log.recovery.displaced_records import DisplacedRecords
from driftlog_agents.log.recovery.leftover_batches import Directory
from driftlog_agents.log.recovery.verdict import BufferedBatch, CommittedLog, Verdict, judge
from driftlog_agents.log.sealing import manifest_edits
from driftlog_agents.log.sealing.attempts import SealAttempts, SealStep
from driftlog_agents.log.sealing.partition_keys import PartitionKeys
from driftlog_agents.log.sealing.record_deletion import RecordDeletion
from driftlog_agents.log.session import producer_id_blocks as id_blocks
from driftlog_agents.log.session.backpressure import Backpressure
from driftlog_agents.log.session.commit_outcome import CommitOutcome
from driftlog_agents.log.session.lease import SessionLease
from driftlog_agents.log.session.producer_id_blocks import ProducerIdFloor
from driftlog_agents.log.session.session import Session
from driftlog_agents.protocol.errors import RefusedError
from driftlog_metadata.schema.model import PartitionState
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_metadata.transactions.session_transactions import Claim
from driftlog_tiering.batches.batch import parse_header
from driftlog_tiering.batches.producers import ProducerStates
from driftlog_tiering.formats.manifest import SetLogStart

Plant = Callable[[pytest.MonkeyPatch], None]


def unknown_commit_is_success(patch: pytest.MonkeyPatch) -> None:
    """A commit without an answer is believed to have happened."""
    original = Session.commit

    async def commit(self: Session, seq: int, record: Any) -> CommitOutcome:
        outcome = await original(self, seq, record)
        return CommitOutcome.COMMITTED if outcome is CommitOutcome.UNKNOWN else outcome

    patch.setattr(Session, "commit", commit)


def acknowledged_when_stored(patch: pytest.MonkeyPatch) -> None:
    """acks=all is answered when the object is in the bucket, before the commit."""
    original = Flusher._commit

    async def commit(self: Flusher, flush: Any) -> None:
        for log, s in flush.payload.slices:
            for end, waiter in list(log.waiters):
                if end <= s.end and not getattr(waiter, "done", True):  # a producer's
                    waiter.committed(log)
                    log.waiters.remove((end, waiter))
        await original(self, flush)

    patch.setattr(Flusher, "_commit", commit)


def old_sessions_live_on(patch: pytest.MonkeyPatch) -> None:
    """Neither heads are closed nor leases revoked: late commits of dead sessions succeed."""

    async def nothing(_: Session, __: str) -> tuple[int, None]:
        return 1, None

    async def keep(_: Session, __: int) -> None:
        return None

    patch.setattr(takeover, "close_head", nothing)
    patch.setattr(Session, "revoke", keep)


def leftovers_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What was buffered and not committed is not appended after a restart."""

    async def nothing(_: Any, __: Any) -> None:
        return None

    patch.setattr(recovery.Recovery, "append_leftovers", nothing)


def duplicate_answered_at_once(patch: pytest.MonkeyPatch) -> None:
    """A duplicate is answered before its original is committed."""

    def duplicate(self: Admission, log: Any, original: Any, acks: int, waiter: Any) -> Admitted:
        return Admitted(original.base_offset, answered=True)

    patch.setattr(Admission, "_duplicate", duplicate)


def acks_one_before_sync(patch: pytest.MonkeyPatch) -> None:
    """acks=1 is answered after the write, not after the sync: power loss takes it."""
    original = BufferLog.write_pending

    def write_pending(self: BufferLog) -> None:
        original(self)
        waiters, self._acks_one.to_sync = self._acks_one.to_sync, {}
        for (log, _), waiter in waiters.items():
            waiter.synced(log)

    patch.setattr(BufferLog, "write_pending", write_pending)


def acks_one_behind_a_hole(patch: pytest.MonkeyPatch) -> None:
    """acks=1 is taken while an uncommitted batch of the partition is not in the file."""
    patch.setattr(BufferLog, "refuses", lambda self, log: False)


def sync_failure_ignored(patch: pytest.MonkeyPatch) -> None:
    """After a failed fdatasync acks=1 is answered all the same."""

    original = AcksOne.sync_ended

    def ended(self: AcksOne, now_ms: float, *, failed: bool) -> list[Any]:
        return original(self, now_ms, failed=False)

    patch.setattr(AcksOne, "sync_ended", ended)


def records_forgotten_early(patch: pytest.MonkeyPatch) -> None:
    """A flush record goes when one of its partitions is sealed, not when all are."""
    original = FlushRecordIndex.sealed

    def sealed(self: FlushRecordIndex, tp: Any, end: int) -> Any:
        forgotten = original(self, tp, end)
        for known in list(self):
            ends = zip(known._partitions, known._ends, strict=True)
            if any(part.tp == tp and known_end <= end for part, known_end in ends):
                self.drop(known)
                forgotten.append(known)
        return forgotten

    patch.setattr(FlushRecordIndex, "sealed", sealed)


def rewrite_leaves_out_what_is_needed(patch: pytest.MonkeyPatch) -> None:
    """A consolidation takes what is sealed in one partition for sealed in all."""
    original = ManagedFlushRecords.sealed_end

    def sealed_end(self: ManagedFlushRecords, tp: Any) -> int:
        parts = [part for kept in self._sessions.values() for part in kept.index._partitions]
        return max((original(self, other) for other in parts), default=0)

    patch.setattr(ManagedFlushRecords, "sealed_end", sealed_end)


def tail_told_of_the_wrong_place(patch: pytest.MonkeyPatch) -> None:
    """After a rewrite the tail reads where the batches stood before, from the new object."""
    original = PartitionLog.move

    def move(self: PartitionLog, index: int, stored_at: StoredAt) -> None:
        shift = self.slices[index].stored_at.shift_bytes
        original(self, index, StoredAt(stored_at.object_key, shift))

    patch.setattr(PartitionLog, "move", move)


def slices_changed_under_reads(patch: pytest.MonkeyPatch) -> None:
    """A rewrite changes the positions of a flush, under reads that looked them up before."""
    original = PartitionLog.move

    def move(self: PartitionLog, index: int, stored_at: StoredAt) -> None:
        tail = self.slices[index]
        positions = cast(FlushBatches, tail.data).positions
        for n in range(tail.first, tail.first + tail.count):
            positions[n] += stored_at.shift_bytes
        original(self, index, StoredAt(stored_at.object_key, 0))

    patch.setattr(PartitionLog, "move", move)


def producers_not_restored(patch: pytest.MonkeyPatch) -> None:
    """Takeover does not read producers from the footers: a retry is appended twice."""
    original = takeover.Takeover._restore

    async def restore(self: Any, log: PartitionLog, found: Any, now_ms: float) -> None:
        await original(self, log, found, now_ms)
        log.producers = ProducerStates()

    patch.setattr(takeover.Takeover, "_restore", restore)


def snapshot_not_loaded(patch: pytest.MonkeyPatch) -> None:
    """Takeover does not read the producer snapshot of the sealed end."""

    async def nothing(_: ManifestCache, __: Any) -> ProducerStates:
        return ProducerStates()

    patch.setattr(ManifestCache, "producers", nothing)


def manifest_ahead_not_adopted(patch: pytest.MonkeyPatch) -> None:
    """A manifest that is ahead of the partition's key is sealed over."""

    original = SealAttempts.next_step

    def next_step(self: SealAttempts, log: PartitionLog, manifest: Any, end: int) -> SealStep:
        step = original(self, log, manifest, end)
        return SealStep.ADD_SEGMENTS if step is SealStep.WRITE_KEY else step

    patch.setattr(SealAttempts, "next_step", next_step)


def leader_epoch_not_raised(patch: pytest.MonkeyPatch) -> None:
    """A claim keeps the old leader's epoch, and goes down to 0."""
    patch.setattr(Claim, "epoch", property(lambda self: 0))


def directories_removed_at_once(patch: pytest.MonkeyPatch) -> None:
    """Old directories go when they are read, not when their last batch is committed."""
    original = recovery.Recovery.append_leftovers

    async def append(self: Any, old_sessions: Any) -> None:
        await original(self, old_sessions)
        for old in old_sessions:
            await self._disk.remove_session(old)

    patch.setattr(recovery.Recovery, "append_leftovers", append)
    patch.setattr(BufferLog, "_write", _written_nowhere(BufferLog._write))


def _written_nowhere(original: Any) -> Any:
    def write(self: BufferLog, pending: Any) -> None:
        mine = [entry for entry in pending if entry[1].leader_epoch == entry[0].leader_epoch]
        if mine:
            original(self, mine)

    return write


def dead_session_goes_on(patch: pytest.MonkeyPatch) -> None:
    """A fenced commit is taken for a success: the session commits after its end."""
    original = Session.commit

    async def commit(self: Session, seq: int, record: Any) -> CommitOutcome:
        outcome = await original(self, seq, record)
        return CommitOutcome.COMMITTED if outcome is CommitOutcome.DEAD else outcome

    patch.setattr(Session, "commit", commit)


def epoch_rule_ignored(patch: pytest.MonkeyPatch) -> None:
    """Recovery appends what is at the log's end, whoever has led since it was buffered."""

    def by_offset(batch: BufferedBatch, log: CommittedLog | None, *, continues: bool) -> Verdict:
        if log is None or batch.base_offset > log.end:
            return judge(batch, log, continues=continues)
        return Verdict.APPEND if batch.base_offset == log.end else Verdict.IN_LOG

    patch.setattr(leftover_batches, "judge", by_offset)


def displaced_records_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What was acks=1 and has lost its place goes with its directory."""

    async def keep(*_: Any) -> None:
        return None

    patch.setattr(DisplacedRecords, "_keep", keep)


def set_aside_whatever_is_there(patch: pytest.MonkeyPatch) -> None:
    """What is in the log is set aside all the same: to produce it again is to have it twice."""
    patch.setattr(displaced_batches, "judge", lambda *_, **__: Verdict.SET_ASIDE)


def decided_by_offsets_alone(patch: pytest.MonkeyPatch) -> None:
    """What is below the log's end is taken for what was buffered for these offsets."""

    def below_the_end(batch: BufferedBatch, log: CommittedLog | None, **_: Any) -> Verdict:
        assert log is not None
        return Verdict.IN_LOG if batch.base_offset < log.end else Verdict.SET_ASIDE

    patch.setattr(displaced_batches, "judge", below_the_end)


def own_clock_not_asked(patch: pytest.MonkeyPatch) -> None:
    """A session serves until the store says that it is over."""
    patch.setattr(SessionLease, "valid_until_ms", property(lambda _: math.inf))


def nobody_told_of_the_end(patch: pytest.MonkeyPatch) -> None:
    """The end of a session forgets who waits for a sync."""
    patch.setattr(BufferLog, "close", lambda _: None)


def parked_not_told_of_the_end(patch: pytest.MonkeyPatch) -> None:
    """The end of a session forgets who waits for the producers to be loaded."""
    original = Engine._close_all

    def close_all(self: Engine) -> None:
        for log in self.logs():
            log.parked.clear()
        original(self)

    patch.setattr(Engine, "_close_all", close_all)


def torn_entry_ends_the_directory(patch: pytest.MonkeyPatch) -> None:
    """Recovery reads no more of a directory behind a file that does not end with a whole entry."""
    torn: WeakKeyDictionary[recovery.Recovery, set[str]] = WeakKeyDictionary()
    original = recovery.Recovery._read

    async def read(
        self: recovery.Recovery, taken: Taken, directory: Directory, number: int, *only: Any
    ) -> None:
        mine, session_id = torn.setdefault(self, set()), directory.session_id
        if session_id in mine:
            return
        await original(self, taken, directory, number, *only)
        with contextlib.suppress(UnavailableError):
            data = await self._disk.read_file(session_id, number)
            whole = sum(ENTRY_HEADER_BYTES + len(entry.batch) for entry in entries(data, number))
            if FILE_HEADER_BYTES + whole < len(data):
                mine.add(session_id)

    patch.setattr(recovery.Recovery, "_read", read)


def judged_by_half_of_the_window(patch: pytest.MonkeyPatch) -> None:
    """While producers load, one that the footers show is judged by these alone, and the patience
    behind a takeover, which would hide it mostly, is not there."""
    patch.setattr(admission_verdict, "_leaves_a_gap", lambda *_: False)
    patch.setattr(
        admission_verdict,
        "_needs_snapshot",
        lambda log, producer_id, _: producer_id >= 0 and producer_id not in log.producers,
    )


def what_comes_behind_a_refused_batch_is_taken(patch: pytest.MonkeyPatch) -> None:
    """The second batch of a producer passes for its first, when that was refused for a moment."""
    for module in (admission, admission_verdict):
        patch.setattr(module, "refused", lambda *refusal: RefusedError(*refusal[-2:]))


def _deaf_to(reason: str, patch: pytest.MonkeyPatch) -> None:
    original = Backpressure.set

    def deaf(self: Backpressure, said: str, held: bool) -> None:
        if said != reason:
            original(self, said, held)

    patch.setattr(Backpressure, "set", deaf)


def sealing_holds_nobody(patch: pytest.MonkeyPatch) -> None:
    """The backpressure of sealing is cut."""
    _deaf_to("sealing", patch)


def consolidation_holds_nobody(patch: pytest.MonkeyPatch) -> None:
    """The backpressure of consolidation is cut."""
    _deaf_to("consolidation", patch)


def sync_trusted_after_a_failed_one(patch: pytest.MonkeyPatch) -> None:
    """fdatasync tells a lost write once: the next one succeeds, and passes for a promise."""
    original = BufferLog._sync

    async def sync(self: BufferLog, use: Any) -> bool:
        return not use.file.trusted or await original(self, use)

    patch.setattr(BufferLog, "_sync", sync)


def disk_never_tried_again(patch: pytest.MonkeyPatch) -> None:
    """acks=1 is refused for good once a write failed."""
    refused, written = BufferLog.refuses, BufferLog._write

    def refuses(self: BufferLog, log: PartitionLog) -> bool:
        return self._acks_one.failed_at_ms is not None or refused(self, log)

    def write(self: BufferLog, pending: Any) -> None:
        if self._acks_one.failed_at_ms is not None:
            raise UnavailableError("it failed once")
        written(self, pending)

    patch.setattr(BufferLog, "refuses", refuses)
    patch.setattr(BufferLog, "_write", write)


def led_without_its_records(patch: pytest.MonkeyPatch) -> None:
    """What was led before goes on at its sealed end, without what else was committed."""

    async def nothing(_: takeover.Takeover, __: Taken, ___: float) -> None:
        return None

    patch.setattr(takeover.Takeover, "_open", nothing)


def read_above_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A read at the end of what is committed goes on in what is not."""
    admitted: WeakKeyDictionary[Flusher, dict[tuple[Any, int, int], bytes]] = WeakKeyDictionary()
    append, read = Flusher.append, LogReader.read

    def appended(self: Flusher, log: Any, batch: Any, *rest: Any) -> None:
        where = (log.topic_id, log.partition, batch.base_offset)
        admitted.setdefault(self, {})[where] = bytes(batch.view)
        append(self, log, batch, *rest)

    async def reads(self: LogReader, log: Any, offset: int, *rest: Any, **more: Any) -> Any:
        found = await read(self, log, offset, *rest, **more)
        end = parse_header(found[-1]).end_offset if found else offset
        for batches in admitted.values():
            following = batches.get((log.topic_id, log.partition, end))
            if following is not None and end == log.high_watermark:
                return [*found, following]
        return found

    patch.setattr(Flusher, "append", appended)
    patch.setattr(LogReader, "read", reads)


def memory_not_given_up(patch: pytest.MonkeyPatch) -> None:
    """Batches stay in memory when they are committed."""
    patch.setattr(FlushMemory, "trim", lambda _: None)


def no_grace_for_garbage(patch: pytest.MonkeyPatch) -> None:
    """What nobody names yet is deleted."""
    original = Pass.__init__

    def begin(self: Pass, *args: Any, **_: Any) -> None:
        original(self, *args, grace_ms=0, max_gap_ms=2**62)

    patch.setattr(Pass, "__init__", begin)


def committed_however_old(patch: pytest.MonkeyPatch) -> None:
    """A flush is committed with an object that the collector may delete by its age."""
    patch.setattr(FlushPipeline, "is_too_old", lambda *_: False)


def what_may_be_committed_is_garbage(patch: pytest.MonkeyPatch) -> None:
    """The collector looks at ages only, and not at what a live session may still commit."""
    original = flush_names._decode

    def decode(*args: Any) -> flush_names.NamedFlushObjects:
        return replace(original(*args), head=None)

    patch.setattr(flush_names, "_decode", decode)


def stored_again_after_an_unanswered_commit(patch: pytest.MonkeyPatch) -> None:
    """A flush whose commit may still act is stored under a new name, and its session lives on."""
    original = FlushPipeline._requeue_old

    def requeue_old(self: FlushPipeline, now_ms: float) -> None:
        head = self._flushes[0] if self._flushes else None
        due = self._commit_retry_at_ms is not None and self._commit_retry_at_ms <= now_ms
        if head is not None and head.stage is FlushStage.COMMITTING and due:
            head.stage = FlushStage.STORED
            self._commit_retry_at_ms = None
        original(self, now_ms)

    patch.setattr(FlushPipeline, "_requeue_old", requeue_old)


def sealing_forgets_log_start(patch: pytest.MonkeyPatch) -> None:
    """A sealed end is written with the manifest's log start, not with what was deleted since."""
    original = PartitionKeys.write

    async def write(self: PartitionKeys, log: PartitionLog, change: Any) -> PartitionState:
        def changed(state: PartitionState) -> PartitionState:
            made: PartitionState = change(replace(state, log_start=0))
            return made

        return await original(self, log, changed)

    patch.setattr(PartitionKeys, "write", write)


def deletion_told_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    """DeleteRecords is answered when memory knows of it."""

    async def delete_to(self: RecordDeletion, log: PartitionLog, offset: int) -> int:
        log.log_start = max(log.log_start, offset)
        return log.log_start

    patch.setattr(RecordDeletion, "delete_to", delete_to)


def manifest_forgets_what_is_left(patch: pytest.MonkeyPatch) -> None:
    """Where log start is within a segment, that segment is forgotten with those before it."""

    def moved(log_start: int) -> SetLogStart:
        return SetLogStart(log_start + 5)

    patch.setattr(manifest_edits, "SetLogStart", moved)


def a_missing_key_is_a_fresh_partition(patch: pytest.MonkeyPatch) -> None:
    """A partition with one of its two keys is claimed as if nobody had ever led it."""
    patch.setattr(claimed_keys, "require_both", lambda *_: None)


def older_stores_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A takeover believes the metadata store, whatever the bucket has."""

    async def problem(_: ManifestCheck, __: PartitionLog, ___: int) -> None:
        return None

    patch.setattr(ManifestCheck, "problem", problem)


def producer_ids_go_back(patch: pytest.MonkeyPatch) -> None:
    """Producer ids are given out again when the metadata store went back."""

    async def settle(floor: ProducerIdFloor) -> None:
        floor.seen.settled = True

    patch.setattr(ProducerIdFloor, "settle", settle)


def producer_ids_are_not_marked(patch: pytest.MonkeyPatch) -> None:
    """A block of producer ids is taken on the word of the metadata store alone."""

    async def mark(*_: Any) -> bool:
        return True

    patch.setattr(id_blocks, "_mark", mark)


BUGS: tuple[Plant, ...] = (
    unknown_commit_is_success,
    acknowledged_when_stored,
    old_sessions_live_on,
    leftovers_forgotten,
    duplicate_answered_at_once,
    acks_one_before_sync,
    acks_one_behind_a_hole,
    sync_failure_ignored,
    records_forgotten_early,
    rewrite_leaves_out_what_is_needed,
    tail_told_of_the_wrong_place,
    slices_changed_under_reads,
    producers_not_restored,
    snapshot_not_loaded,
    manifest_ahead_not_adopted,
    leader_epoch_not_raised,
    directories_removed_at_once,
    dead_session_goes_on,
    epoch_rule_ignored,
    displaced_records_forgotten,
    set_aside_whatever_is_there,
    decided_by_offsets_alone,
    own_clock_not_asked,
    nobody_told_of_the_end,
    parked_not_told_of_the_end,
    torn_entry_ends_the_directory,
    judged_by_half_of_the_window,
    sync_trusted_after_a_failed_one,
    what_comes_behind_a_refused_batch_is_taken,
    sealing_holds_nobody,
    consolidation_holds_nobody,
    disk_never_tried_again,
    led_without_its_records,
    read_above_the_high_watermark,
    memory_not_given_up,
    sealing_forgets_log_start,
    deletion_told_before_it_is_stored,
    manifest_forgets_what_is_left,
    no_grace_for_garbage,
    committed_however_old,
    what_may_be_committed_is_garbage,
    stored_again_after_an_unanswered_commit,
    a_missing_key_is_a_fresh_partition,
    older_stores_are_not_compared,
    producer_ids_go_back,
    producer_ids_are_not_marked,
)
