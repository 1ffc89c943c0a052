"""What the metadata store was made to say, change by change, held against design.md.

It looks at every revision of the store as it happens, whoever wrote it:

1. A claim has the next leader epoch, a live session, and the partition to itself: the session
   before it is gone, or released it, or was closed on the same disk.  The claimer is in the
   partition's list.
2. A release finds nothing admitted that is not committed, and nobody admitting.
3. A commit is of the partition's leader; its batches follow what is committed, without a gap,
   in epochs that do not go back.  So a batch of epoch e is in the log exactly if its offset is
   below the start of the next epoch, and two sessions never both commit.
4. A flush record goes when all it holds is sealed, or its topic is gone, or when others that hold
   the same take its place.
5. Neither a sealed end nor a log start goes back, or is above what is committed.  The partition's
   list has every session whose records hold something unsealed of it.

And when clients are told something: whether it is committed by then.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from driftlog_agents.log.partition.partition import State
from driftlog_metadata.schema.codec import (
    decode_flush_record,
    decode_head,
    decode_leader,
    decode_live_session,
    decode_partition_state,
)
from driftlog_metadata.schema.keys import (
    DELETED_PREFIX,
    FLUSHES_PREFIX,
    HEADS_PREFIX,
    LEADERS_PREFIX,
    PARTITIONS_PREFIX,
    SESSIONS_PREFIX,
    parse_deleted_key,
    parse_head_key,
    parse_leader_key,
    parse_partition_key,
    parse_session_key,
)
from driftlog_metadata.schema.model import CLOSED, Leader, PartitionState, TopicPartition
from driftlog_metadata.stores.store import DeleteEvent, PutEvent, WatchEvent
from driftlog_tiering.formats.flush_object import decode_footer
from tests.simulation.faults import now
from tests.support.memory_store import MemoryMetadataStore

if TYPE_CHECKING:
    from tests.simulation.world import World


class WatchedStore(MemoryMetadataStore):
    """A metadata store that shows a `Ledger` every change."""

    def __init__(self, world: "World") -> None:
        super().__init__(lambda: int(world.loop.now_s * 1000))
        self._world = world

    def _end(self, events: Sequence[WatchEvent]) -> None:
        super()._end(events)
        if not events:
            return
        loss = self._world.store_loss
        if loss is not None and loss.wrote(events):
            return
        try:
            self._world.ledger.apply(events)
        except Exception as error:  # noqa: BLE001  # it would be taken for the store's answer
            self._world.expect(False, f"the ledger: {error!r}")


class Committed(NamedTuple):
    """What a flush record holds of a partition: ``[base, end)``, by its batches."""

    base: int
    end: int
    batches: tuple[tuple[int, int], ...]
    """(Base offset, leader epoch)."""
    runs: int
    """Without a gap between offsets.  (A session that led twice, consolidated, has several.)"""


class Term(NamedTuple):
    """One leader's: who it is, and where the log ended when it claimed."""

    epoch: int
    node: int
    start: int


class Ledger:
    """See the module."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.sessions: dict[str, int] = {}
        """Live ones, and their node ids."""
        self.leaders: dict[TopicPartition, Leader] = {}
        self.terms: dict[TopicPartition, list[Term]] = {}
        self.states: dict[TopicPartition, PartitionState] = {}
        self.ends: dict[TopicPartition, int] = {}
        """What is committed ends there."""
        self._epochs: dict[TopicPartition, int] = {}
        """Of the last batch that is committed."""
        self._heads: dict[str, int] = {}
        self._records: dict[str, dict[TopicPartition, Committed]] = {}
        self._deleted: set[UUID] = set()
        self._is_closed = False

    def close(self) -> None:
        """The bucket is another cluster's: from now on the store says nothing that counts."""
        self._is_closed = True

    # ── What clients see ──

    def committed(self, tp: TopicPartition, end: int, what: str) -> None:
        """A client was told that the log is committed up to *end*."""
        there = self.ends.get(tp, 0)
        self._expect(end <= there, f"{what}: up to {end} of {tp}, committed is {there}")

    def admitted(self, session_id: str, tp: TopicPartition) -> None:
        """A session that lives admitted a batch: the partition must be its own.

        (Of one that was revoked behind its back nothing is committed.)
        """
        leader = self.leaders.get(tp)
        if self._is_closed:
            return
        if session_id in self.sessions and tp.topic_id not in self._deleted:
            self._expect(
                leader is not None and leader.session_id == session_id,
                f"{session_id} admitted to {tp}, which {leader} leads",
            )

    def overtaken(self, tp: TopicPartition, offset: int, epoch: int, node: int) -> bool:
        """Whether another node than *node* led after *epoch* from at or below *offset* on."""
        terms = self.terms.get(tp, ())
        return any(t.epoch > epoch and t.node != node and t.start <= offset for t in terms)

    def record_ends(self) -> dict[str, dict[TopicPartition, int]]:
        """Of each flush record that is there: where its batches of each partition end."""
        return {
            key: {tp: part.end for tp, part in slices.items()}
            for key, slices in self._records.items()
        }

    # ── Changes ──

    def apply(self, events: Sequence[WatchEvent]) -> None:
        """All of one revision."""
        if self._is_closed:
            return
        gone: dict[str, dict[TopicPartition, Committed]] = {}
        come: dict[str, dict[TopicPartition, Committed]] = {}
        for event in events:
            key = event.key if isinstance(event, DeleteEvent) else event.kv.key
            value = None if isinstance(event, DeleteEvent) else event.kv.value
            if key.startswith(FLUSHES_PREFIX):
                if value is None:
                    gone[key] = self._records.pop(key)
                else:
                    come[key] = self._read(key, value)
            elif isinstance(event, PutEvent):
                self._put(key, event.kv.value, events)
            else:
                self._gone(key)
        self._records.update(come)
        if gone:
            self._forgotten(gone, come)
        else:
            for key, slices in come.items():
                self._commit(key.removeprefix(FLUSHES_PREFIX).partition("/")[0], slices)

    def _put(self, key: str, value: bytes, events: Sequence[WatchEvent]) -> None:
        if key.startswith(SESSIONS_PREFIX):
            self.sessions[parse_session_key(key)] = decode_live_session(value).node_id
        elif key.startswith(HEADS_PREFIX):
            self._heads[parse_head_key(key)] = decode_head(value)
        elif key.startswith(LEADERS_PREFIX):
            self._led(parse_leader_key(key), decode_leader(value))
        elif key.startswith(PARTITIONS_PREFIX):
            self._state(parse_partition_key(key), decode_partition_state(value))
        elif key.startswith(DELETED_PREFIX):
            self._deleted.add(parse_deleted_key(key))

    def _gone(self, key: str) -> None:
        if key.startswith(SESSIONS_PREFIX):
            del self.sessions[parse_session_key(key)]
        elif key.startswith(LEADERS_PREFIX):
            del self.leaders[parse_leader_key(key)]
        elif key.startswith(PARTITIONS_PREFIX):
            del self.states[parse_partition_key(key)]

    # ── Leaders ──

    def _led(self, tp: TopicPartition, leader: Leader) -> None:
        before = self.leaders.get(tp)
        self.leaders[tp] = leader
        if tp.topic_id in self._deleted:
            return
        if leader.session_id is None:
            self._released(tp, before, leader)
            return
        node = self.sessions.get(leader.session_id)
        what = f"{leader} after {before} of {tp}"
        if node is None:
            self._expect(False, f"{what}: its session is over")
            return
        self._expect(
            leader.leader_epoch == (0 if before is None else before.leader_epoch + 1),
            f"{what}: not the next leader epoch",
        )
        terms = self.terms.setdefault(tp, [])
        if before is not None and before.session_id is not None:
            closed = self._heads.get(before.session_id) == CLOSED and terms[-1].node == node
            is_mine = before.session_id == leader.session_id
            retained = is_mine and not self._was_opened(tp, leader.session_id)
            if retained:
                self._world.count("retained claims replaced")
            is_over = before.session_id not in self.sessions
            self._expect(is_over or closed or retained, f"{what}: which lives")
        end = self.ends.get(tp, 0)
        if terms and terms[-1].node != node:
            released = before is not None and before.session_id is None
            self._world.count("partitions handed over" if released else "partitions taken over")
            self._world.unsettled.add(tp)
            self._world.oracle.moved(tp, terms[-1].node, end)
        terms.append(Term(leader.leader_epoch, node, end))

    def _released(self, tp: TopicPartition, before: Leader | None, leader: Leader) -> None:
        what = f"{tp} was released by {before}"
        if before is None or before.session_id is None:
            self._expect(False, f"{what}, who did not lead it")
            return
        self._expect(leader.leader_epoch == before.leader_epoch, f"{what} with {leader}")
        end = self.ends.get(tp, 0)
        if not self._was_opened(tp, before.session_id):
            # Given back, for the bucket withholds what it needs: so is what is only on our disk.
            self._world.unsettled.add(tp)
            self._world.oracle.moved(tp, self.terms[tp][-1].node, end)
        told = self._world.oracle.told_end(tp)
        self._expect(told <= end, f"{what} at {end}, and {told} was told")
        for node in self._world.nodes:
            engine = node.process.engine
            if engine is None or engine.session.session_id != before.session_id:
                continue
            for log in engine.logs():
                if (log.topic_id, log.partition) == (tp.topic_id, tp.partition):
                    self._expect(log.state is State.CLOSED, f"{what}, who still admits to it")
                    self._expect(log.log_end == end, f"{what} at {end}: {log!r}")

    def _was_opened(self, tp: TopicPartition, session_id: str) -> bool:
        """Whether the session has admitted anything to the partition, or may have."""
        for node in self._world.nodes:
            engine = node.process.engine
            if engine is not None and engine.session.session_id == session_id:
                return engine.find(tp) is not None
        return True

    # ── Commits ──

    def _read(self, key: str, value: bytes) -> dict[TopicPartition, Committed]:
        record = decode_flush_record(value)
        body, error = now(self._world.bucket.get(record.object_key))
        if error is not None:
            self._expect(False, f"{key} names {record.object_key}: {error!r}")
        footer = decode_footer(body[record.footer_start :])
        found: dict[TopicPartition, Committed] = {}
        for s in footer.slices():
            entries = [footer.batch(index) for index in range(s.first, s.first + s.count)]
            batches = tuple((entry.base_offset, entry.leader_epoch) for entry in entries)
            tp = TopicPartition(s.topic_id, s.partition)
            before = found.get(tp, Committed(s.base, s.end, (), 0))
            found[tp] = Committed(before.base, s.end, (*before.batches, *batches), before.runs + 1)
        return found

    def _commit(self, session_id: str, slices: dict[TopicPartition, Committed]) -> None:
        self._expect(session_id in self.sessions, f"{session_id} committed after its end")
        for tp, part in slices.items():
            if tp.topic_id in self._deleted:
                self.ends[tp] = max(part.end, self.ends.get(tp, 0))
                continue
            leader, end = self.leaders.get(tp), self.ends.get(tp, 0)
            what = f"{session_id} committed [{part.base}, {part.end}) of {tp}"
            if leader is None or leader.session_id != session_id:
                self._expect(False, f"{what}, which {leader} leads")
                return
            self._expect((part.base, part.runs) == (end, 1), f"{what}, behind {end}: {part}")
            epochs = [epoch for _, epoch in part.batches]
            newest = self._epochs.get(tp, -1)
            self._expect(
                sorted(epochs) == epochs and newest <= epochs[0] <= leader.leader_epoch,
                f"{what} in epochs {epochs}, after {newest}",
            )
            self.ends[tp] = part.end
            self._epochs[tp] = epochs[-1]

    def _forgotten(
        self,
        gone: dict[str, dict[TopicPartition, Committed]],
        come: dict[str, dict[TopicPartition, Committed]],
    ) -> None:
        before, after = self._unsealed(gone), self._unsealed(come)
        self._expect(before == after, f"{list(gone)} went, with {before}, for {after}")

    def _unsealed(
        self, records: dict[str, dict[TopicPartition, Committed]]
    ) -> list[tuple[TopicPartition, int, int]]:
        return sorted(
            (tp, base, epoch)
            for slices in records.values()
            for tp, part in slices.items()
            if tp.topic_id not in self._deleted and part.end > self._sealed_end(tp)
            for base, epoch in part.batches
            if base >= self._sealed_end(tp)
        )

    def _sealed_end(self, tp: TopicPartition) -> int:
        state = self.states.get(tp)
        return 0 if state is None else state.sealed_end

    def _log_start(self, tp: TopicPartition) -> int:
        state = self.states.get(tp)
        return 0 if state is None else state.log_start

    # ── Partitions ──

    def _state(self, tp: TopicPartition, state: PartitionState) -> None:
        before, started = self._sealed_end(tp), self._log_start(tp)
        self.states[tp] = state
        if tp.topic_id in self._deleted:
            return
        end = self.ends.get(tp, 0)
        self._expect(
            before <= state.sealed_end <= end,
            f"{tp}: sealed up to {before}, then {state.sealed_end}, of {end}",
        )
        self._expect(
            started <= state.log_start <= end,
            f"{tp}: it started at {started}, then at {state.log_start}, of {end}",
        )
        if state.log_start > started and self._world.retention is not None:
            self._world.retention.moved(tp, started, state.log_start)
        leader = self.leaders.get(tp)
        needed = {
            key.removeprefix(FLUSHES_PREFIX).partition("/")[0]
            for key, slices in self._records.items()
            if tp in slices and slices[tp].end > state.sealed_end
        }
        if leader is not None and leader.session_id is not None:
            needed.add(leader.session_id)
        missing = needed - set(state.sessions)
        self._expect(not missing, f"{tp}: {missing} are not in {state}")

    def _expect(self, holds: bool, message: str) -> None:
        self._world.expect(holds, message)
