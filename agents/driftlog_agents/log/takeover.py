"""Taking over partitions: claim, read what was committed, and go on where it ends.

    close the heads of our dead sessions ──▶ claim ──▶ revoke their leases
        ──▶ read the flush records ──▶ footers ──▶ sealed end + slices join? ──▶ logs
                                                         ╳ offline, with the reason
        ──▶ drop finished sessions from the lists of those who have led

design.md, "Takeover" and "Back on its own disk": nothing of an old session can be
committed after its head is closed, so what is read after that is all there is.

A session is *finished* for a partition when its key was gone before the flush records were
read, and none of them holds a batch of it above the partition's sealed end:

1. It was in the list when we claimed, so its key had been created; that it is gone later says
   that it will never commit again, whatever its head says: every commit compares its key.
2. So its flush records only go, and those that were there before the read held, of this
   partition, what was sealed then; sealed ends never go back.
3. The list is written comparing leader key and partition key as our claim left them, so what is
   dropped is what we looked at.

Without this a partition that is idle gets a session per start for ever: the write of a sealed
end, which drops them too, never comes.  A session whose directory is still on this disk stays in
the lists of the partitions that go on here: see `recovery`, where a directory cannot be read.

Shell.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import structlog

from driftlog_agents.log.partition import NO_PRODUCER_ID, PartitionLog, State, TailSlice
from driftlog_agents.log.records_index import KnownRecord, RecordsIndex
from driftlog_agents.log.session import Session, close_head
from driftlog_agents.log.tail import TailData, unsealed_sessions
from driftlog_metadata import transactions
from driftlog_metadata.codec import (
    decode_flush_record,
    decode_leader,
    decode_partition_state,
    decode_topic,
)
from driftlog_metadata.errors import (
    CorruptError,
    FencedError,
    OutcomeUnknownError,
    UnavailableError,
)
from driftlog_metadata.keys import (
    FLUSHES_PREFIX,
    LEADERS_PREFIX,
    PARTITIONS_PREFIX,
    SESSIONS_PREFIX,
    TOPICS_PREFIX,
    leader_key,
    parse_flush_key,
    parse_leader_key,
    parse_partition_key,
    parse_session_key,
    partition_key,
)
from driftlog_metadata.model import FlushRecord, Leader, PartitionState, Topic, TopicPartition
from driftlog_metadata.store import KeyValue
from driftlog_metadata.transactions import CLAIMS_PER_TXN, STATES_PER_TXN, Claim, StateWrite
from driftlog_tiering.flush_object import Footer, decode_footer
from driftlog_tiering.object_store import NotFoundError, ObjectStore

_FOOTERS_AT_ONCE: Final = 16
"""Ranged GETs in flight: an agent's share of a bucket's request rate, and little memory."""

_FOOTER_DEADLINE_S: Final = 10.0
_RETRY_S: Final = 0.2
_DEAD_YET_S: Final = 0.5
"""Between two looks whether a session that is not of this disk has ended."""

_FINISHED_SESSIONS: Final = 4
"""A list is written again when so many in it are finished.  Fewer: more writes at each start;
more: larger keys.  10,000 idle partitions take 157 transactions at every fourth start."""


@dataclass(slots=True)
class Taken:
    """What a takeover found."""

    old_sessions: list[str] = field(default_factory=list)
    """Dead ones of this disk, oldest first."""
    buffered: set[str] = field(default_factory=set)
    """Of these, whose directories are still there: what they promised may be nowhere else."""
    topics: dict[UUID, Topic] = field(default_factory=dict)
    topic_revisions: dict[UUID, int] = field(default_factory=dict)
    logs: dict[TopicPartition, PartitionLog] = field(default_factory=dict)
    continued: set[TopicPartition] = field(default_factory=set)
    """Claimed from a session whose buffer files are ours."""
    records: RecordsIndex = field(default_factory=RecordsIndex)
    forgettable: list[KnownRecord] = field(default_factory=list)

    def buffering(self, tp: TopicPartition) -> set[str]:
        """Sessions that stay in the partition's list, because their directories may have what
        was promised there: once others have led since, that has no place in its log any more."""
        return self.buffered if tp in self.continued else set()


class Takeover:
    """Claims and opens partitions for one session."""

    def __init__(self, *, session: Session, objects: ObjectStore) -> None:
        self._session = session
        self._objects = objects
        self._log = structlog.get_logger()

    async def everything(self, old_sessions: Sequence[str], now_ms: float) -> Taken:
        """Lead every partition that nobody else leads.

        *old_sessions*: those whose directories are ours; they are dead.

        Raises:
            FencedError: our own session ended first.
        """
        opened = {old: await close_head(self._session, old) for old in old_sessions}
        taken = Taken(
            old_sessions=sorted(opened, key=lambda old: opened[old]), buffered=set(old_sessions)
        )
        await self._read_topics(taken)
        waited_for = 0
        while left := await self._claim_all(taken, frozenset(old_sessions)):
            # Their sessions are not of this disk, and not over yet.
            if left != waited_for:
                self._log.warning(
                    "partitions_led_elsewhere",
                    partitions=left,
                    advice="claimed when that session's lease ends; is another agent running?",
                )
                waited_for = left
            await asyncio.sleep(_DEAD_YET_S)
            await self._read_topics(taken)  # they make topics
        for old in old_sessions:
            await self._session.revoke(transactions.lease_id_of(old))
        # After the claims and before the flush records: see the module.
        live = await self._live()
        await self._read_flushes(taken, now_ms)
        await self._drop_finished(taken, live)
        return taken

    async def topic(self, topic: Topic) -> dict[TopicPartition, PartitionLog]:
        """Lead the partitions of a topic that was just created or got more partitions.

        Only those that nobody has ever led: the others may have flush records, which are read
        by `everything`.

        Raises:
            FencedError: our own session ended first.
        """
        taken = Taken(topics={topic.topic_id: topic})
        await self._claim_all(taken, frozenset(), topic.topic_id, new_only=True)
        return taken.logs

    async def stand_by(self, old_sessions: Sequence[str]) -> None:
        """Wait until no session is there that began before ours, but for those of this disk.

        One agent serves, and the others are there for when it is not: partitions are not divided
        among agents yet, and nobody but their leader hears of new topics.

        Raises:
            FencedError: our own session ended first.
        """
        said = False
        while others := [
            parse_session_key(kv.key)
            for kv in await self._session.read_prefix(SESSIONS_PREFIX)
            if kv.create_revision < self._session.revision
            and parse_session_key(kv.key) not in old_sessions
        ]:
            if not said:
                self._log.warning(
                    "standing_by",
                    sessions=others,
                    advice="another agent serves; this one takes over when that session ends",
                )
                said = True
            await asyncio.sleep(_DEAD_YET_S)

    async def _read_topics(self, taken: Taken) -> None:
        claimed = {tp.topic_id for tp in taken.logs}
        taken.topics = {i: topic for i, topic in taken.topics.items() if i in claimed}
        for kv in await self._session.read_prefix(TOPICS_PREFIX):
            topic = decode_topic(kv.value)
            taken.topics[topic.topic_id] = topic
            taken.topic_revisions[topic.topic_id] = kv.mod_revision

    # ── Claims ──

    async def _claim_all(
        self,
        taken: Taken,
        old_sessions: frozenset[str],
        topic_id: UUID | None = None,
        *,
        new_only: bool = False,
    ) -> int:
        """Claim what can be; returns how many partitions others lead."""
        suffix = "" if topic_id is None else f"{topic_id}/"
        leaders = {
            parse_leader_key(kv.key): kv
            for kv in await self._session.read_prefix(LEADERS_PREFIX + suffix)
        }
        states = {
            parse_partition_key(kv.key): kv
            for kv in await self._session.read_prefix(PARTITIONS_PREFIX + suffix)
        }
        live = await self._live()
        claims: list[Claim] = []
        wanted = 0
        for topic in taken.topics.values():
            for partition in range(topic.partitions):
                tp = TopicPartition(topic.topic_id, partition)
                if tp in taken.logs or (new_only and tp in leaders):
                    continue
                claim = _as_claim(tp, leaders.get(tp), states.get(tp), old_sessions)
                wanted += 1
                if self._claimable(claim, live):
                    claims.append(claim)
        before = len(taken.logs)
        for i in range(0, len(claims), CLAIMS_PER_TXN):
            await self._claim(taken, claims[i : i + CLAIMS_PER_TXN], old_sessions)
        return wanted - (len(taken.logs) - before)

    async def _live(self) -> set[str]:
        """Sessions whose key is there."""
        kvs = await self._session.read_prefix(SESSIONS_PREFIX)
        return {parse_session_key(kv.key) for kv in kvs}

    def _claimable(self, claim: Claim, live: set[str]) -> bool:
        if claim.leader is None or claim.leader.session_id is None or claim.same_disk:
            return True
        return claim.leader.session_id not in live

    async def _claim(self, taken: Taken, claims: list[Claim], old_sessions: frozenset[str]) -> None:
        """Claim in one transaction; where it does not hold, each by itself on what is there now."""
        session = self._session
        result = await session.transact(
            transactions.claim(session.session_id, session.revision, claims)
        )
        if result.succeeded:
            for claim in claims:
                self._claimed(taken, claim, result.revision, result.revision)
            return
        *reads, mine = result.reads
        if not mine or mine[0].create_revision != session.revision:
            raise FencedError("the session ended while it claimed its partitions")
        for claim, leader_kvs, state_kvs in zip(claims, reads[::2], reads[1::2], strict=True):
            leader_kv = leader_kvs[0] if leader_kvs else None
            state_kv = state_kvs[0] if state_kvs else None
            now = _as_claim(claim.tp, leader_kv, state_kv, old_sessions)
            if now.leader is not None and now.leader.session_id == session.session_id:
                # Our own attempt, its answer lost: it is ours with the epoch we asked for.
                assert now.leader.leader_epoch == claim.epoch
                assert leader_kv is not None
                assert state_kv is not None
                self._claimed(taken, claim, leader_kv.mod_revision, state_kv.mod_revision)
            elif len(claims) > 1 or now != claim:
                await self._claim(taken, [now], old_sessions)
            else:
                # As the store has it and still refused: its leader's session lives.
                self._log.info(
                    "partition_led_elsewhere",
                    partition=f"{claim.tp.topic_id}/{claim.tp.partition}",
                    session=claim.leader.session_id if claim.leader else None,
                )

    def _claimed(
        self, taken: Taken, claim: Claim, leader_revision: int, state_revision: int
    ) -> None:
        state = claim.state_under(self._session.session_id)
        log = PartitionLog(
            topic=taken.topics[claim.tp.topic_id].name,
            topic_id=claim.tp.topic_id,
            partition=claim.tp.partition,
            leader_epoch=claim.epoch,
            log_start=state.log_start,
            sealed_end=state.sealed_end,
        )
        log.sessions = state.sessions
        log.leader_revision = leader_revision
        log.partition_revision = state_revision
        log.manifest_version = state.manifest_version
        log.state = State.LOADING if state.manifest_version else State.ONLINE
        taken.logs[claim.tp] = log
        if claim.same_disk:
            taken.continued.add(claim.tp)

    # ── What was committed ──

    async def _read_flushes(self, taken: Taken, now_ms: float) -> None:
        records = [
            (kv, decode_flush_record(kv.value))
            for kv in await self._session.read_prefix(FLUSHES_PREFIX)
        ]
        limit = asyncio.Semaphore(_FOOTERS_AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            reads = [
                tasks.create_task(self._footer(kv.key, record, limit)) for kv, record in records
            ]
        # A topic is gone only if a read that began after the records were read lacks it.
        there = {
            decode_topic(kv.value).topic_id for kv in await self._session.read_prefix(TOPICS_PREFIX)
        }
        slices: dict[TopicPartition, list[tuple[TailSlice, Footer]]] = {}
        for (kv, record), read in zip(records, reads, strict=True):
            footer = read.result()
            if isinstance(footer, str):
                self._damaged(taken, parse_flush_key(kv.key)[0], footer)
                continue
            data = TailData.of_footer(footer, record.object_key)
            ends: list[tuple[TopicPartition, int]] = []
            for s in footer.slices():
                tp = TopicPartition(s.topic_id, s.partition)
                log = taken.logs.get(tp)
                if log is None:
                    if s.topic_id in there:
                        ends.append((tp, s.end))  # led elsewhere: not ours to forget
                    continue
                if s.end > log.sealed_end:
                    ends.append((tp, s.end))
                    size = sum(data.lengths[s.first : s.first + s.count])
                    tail = TailSlice(s.base, s.end, data, s.first, s.count, size)
                    slices.setdefault(tp, []).append((tail, footer))
            known = taken.records.add(kv.key, record, sorted(ends, key=lambda end: end[1]))
            if known is not None:
                taken.forgettable.append(known)
        for tp, found in slices.items():
            found.sort(key=lambda entry: entry[0].base)
            self._restore(taken.logs[tp], found, now_ms)
        for log in taken.logs.values():
            if log.offline_reason and log.state is not State.OFFLINE:
                log.state = State.OFFLINE
                self._log.error(
                    "partition_offline",
                    partition=f"{log.topic}-{log.partition}",
                    reason=log.offline_reason,
                    advice="nothing is read from it or written to it until the object is restored",
                )

    def _restore(
        self, log: PartitionLog, found: list[tuple[TailSlice, Footer]], now_ms: float
    ) -> None:
        for tail, footer in found:
            if tail.base > log.high_watermark or (
                tail.base < log.high_watermark and log.high_watermark != log.sealed_end
            ):
                log.offline_reason = (
                    f"committed data does not join: [{tail.base}, {tail.end}) follows "
                    f"{log.high_watermark}; a flush record is missing"
                )
                return
            log.restore(tail, now_ms)
            for index in range(tail.first, tail.first + tail.count):
                batch = footer.batch(index)
                log.start_epoch(batch.leader_epoch, batch.base_offset)
                if batch.producer_id != NO_PRODUCER_ID:
                    log.producers.append(
                        batch.producer_id,
                        batch.producer_epoch,
                        batch.base_sequence,
                        batch.last_offset_delta + 1,
                        batch.base_offset,
                    )

    def _damaged(self, taken: Taken, session_id: str, reason: str) -> None:
        """A footer is gone: no partition that its session led can say where it ends."""
        self._log.error("flush_object_damaged", session=session_id, reason=reason)
        for log in taken.logs.values():
            if session_id in log.sessions:
                log.offline_reason = reason

    async def _drop_finished(self, taken: Taken, live: set[str]) -> None:
        """Shorten the lists that name many sessions that are finished for their partition."""
        writes: list[StateWrite] = []
        for tp, log in taken.logs.items():
            if log.state is State.OFFLINE or len(log.sessions) <= _FINISHED_SESSIONS:
                continue  # what is damaged may be anybody's
            needed = live | taken.buffering(tp) | unsealed_sessions(log, log.sealed_end)
            needed.add(self._session.session_id)
            kept = tuple(s for s in log.sessions if s in needed)
            if len(log.sessions) - len(kept) >= _FINISHED_SESSIONS:
                state = PartitionState(
                    sealed_end=log.sealed_end,
                    manifest_version=log.manifest_version,
                    log_start=log.log_start,
                    sessions=kept,
                )
                writes.append(
                    StateWrite(
                        tp=tp,
                        leader_revision=log.leader_revision,
                        state_revision=log.partition_revision,
                        state=state,
                    )
                )
        for at in range(0, len(writes), STATES_PER_TXN):
            batch = writes[at : at + STATES_PER_TXN]
            result = await self._session.transact(transactions.write_states(batch))
            for i, write in enumerate(batch):
                revision = result.revision
                if not result.succeeded:
                    leader, current = result.reads[2 * i : 2 * i + 2]
                    if (
                        not leader
                        or leader[0].mod_revision != write.leader_revision
                        or not current
                        or decode_partition_state(current[0].value) != write.state
                    ):
                        continue  # not ours any more, or its neighbour is not: another time
                    revision = current[0].mod_revision  # our own attempt, its answer lost
                log = taken.logs[write.tp]
                log.sessions = write.state.sessions
                log.partition_revision = revision

    async def _footer(
        self, key: str, record: FlushRecord, limit: asyncio.Semaphore
    ) -> Footer | str:
        """The footer; or why there is none, once it is sure that it is damage."""
        async with limit:
            while True:
                try:
                    async with asyncio.timeout(_FOOTER_DEADLINE_S):
                        data = await self._objects.get(
                            record.object_key, record.footer_start, record.size_bytes
                        )
                    return decode_footer(data)
                except (UnavailableError, OutcomeUnknownError, TimeoutError) as error:
                    self._log.warning(
                        "footer_read_repeated", object=record.object_key, error=str(error)
                    )
                    await asyncio.sleep(_RETRY_S)
                except (NotFoundError, CorruptError) as error:
                    if await self._session.read(key) is None:
                        return f"flush record {key} went while it was read"
                    return f"flush object {record.object_key}: {error or 'not found'}"


def _as_claim(
    tp: TopicPartition,
    leader_kv: KeyValue | None,
    state_kv: KeyValue | None,
    old_sessions: frozenset[str],
) -> Claim:
    assert leader_kv is None or leader_kv.key == leader_key(tp)
    assert state_kv is None or state_kv.key == partition_key(tp)
    leader: Leader | None = decode_leader(leader_kv.value) if leader_kv else None
    return Claim(
        tp=tp,
        leader=leader,
        leader_revision=leader_kv.mod_revision if leader_kv else 0,
        state=decode_partition_state(state_kv.value) if state_kv else PartitionState(),
        state_revision=state_kv.mod_revision if state_kv else 0,
        same_disk=leader is not None and leader.session_id in old_sessions,
    )
