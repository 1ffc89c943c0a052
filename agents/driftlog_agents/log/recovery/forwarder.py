"""Appends leftovers through whoever leads their partitions now; `recovery/uncommitted_batches` says
which of them.

    note: no place of its own ──▶ ask where its epochs ended ──▶ note: ends, producer id
                                        ▲                                │
             leader away, or another ◀──┴── append, a batch per partition ◀┘  (file by file)
                                                │
                                                ▼
                                      all answered: note, log ──▶ the directory may go

It runs in the background of a session, as long as it takes, and is begun again by the next: what
was answered is in the note, and what was appended without an answer is a duplicate.  It holds one
file of one directory in memory, and `_ROUND_BYTES` on their way to each leader.

Shell.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from driftlog_agents.log.local.buffer_format import Entry, entries
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.recovery.directory import LED_ELSEWHERE, Directory
from driftlog_agents.log.recovery.leader_client import (
    Answer,
    EpochEndQuery,
    LocalLeaderClient,
    NamedPartition,
    PartitionLeaderClient,
)
from driftlog_agents.log.recovery.uncommitted_batches import (
    MAX_REFUSED,
    NO_PRODUCER_ID,
    Leftover,
    SequencePlan,
    renumbered,
)
from driftlog_agents.log.session.producer_id_blocks import next_block
from driftlog_agents.log.session.session import Session
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.codec import decode_topic
from driftlog_metadata.schema.keys import TOPICS_PREFIX, parse_topic_key
from driftlog_metadata.schema.model import Agent, TopicPartition
from driftlog_metadata.stores.errors import CorruptError, OutcomeUnknownError, UnavailableError
from driftlog_tiering.batches.batch import BatchHeader, CorruptBatchError, check_batch
from driftlog_tiering.stores.object_store import ObjectStore

_PAUSE_S: Final = (0.5, 15.0)
"""First and longest wait before what waits is tried again."""
_SAID_S: Final = 60.0
"""Between two lines that say that something waits."""
_PATIENCE_S: Final = 10.0
"""Before the first of them: a partition whose leader is gone has a new one by then."""
_ROUND_BYTES: Final = 4 * 1024 * 1024
"""Of one request to a leader, unless one batch has more: half a flush."""
_ROUND_BATCHES: Final = 1_000
"""The same of small ones: a leader admits so many at once."""
_ASKED: Final = 1_000
"""Epochs in one question, and those of the partition that it ends with."""
_BREATHE_BYTES: Final = 1024 * 1024
"""Let the loop run after this much was read."""

_NEVER: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
"""Of this batch, by the topic's configs as they are: asking again does not help."""

_OUT_OF_ORDER: Final = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}
)
"""The directory is not what it was when its first batches were appended."""

KEPT: Final = (
    "acknowledged with acks=1 and in no log; the directory goes to DIR/kept when the rest of it is "
    "appended, with a leftovers.json that names these batches"
)


@dataclass(slots=True, eq=False)
class _Stream:
    """The leftovers of one partition, while a directory is read."""

    place: NamedPartition
    leftover: Leftover
    leader: PartitionLeaderClient
    numbering: SequencePlan = field(default_factory=SequencePlan)
    ready: deque[tuple[Entry, BatchHeader]] = field(default_factory=deque)
    """Of the file that is read."""
    active: bool = True
    records: int = 0
    old_offset: int = -1
    new_offset: int = -1
    """Of the first record, where it stood in the buffer and where it stands in the log."""


class AcksOneForwarder:
    """See the module.

    Args:
        own: this agent, for what it leads.
        leader_of: the live agent that leads a partition, as far as is known here, and its epoch.
        connect: asks another agent; None: there are none.
    """

    def __init__(
        self,
        *,
        disk: AgentDisk,
        session: Session,
        objects: ObjectStore,
        own: LocalLeaderClient,
        leader_of: Callable[[TopicPartition], tuple[Agent | None, int]],
        connect: Callable[[Agent], PartitionLeaderClient] | None,
        now_ms: Callable[[], float],
        strangers: UnknownKeys | None = None,
    ) -> None:
        self._disk = disk
        self._session = session
        self._objects = objects
        self._own = own
        self._leader_of = leader_of
        self._connect = connect
        self._now_ms = now_ms
        self._said_ms = now_ms() - (_SAID_S - _PATIENCE_S) * 1000
        self._log = structlog.get_logger()
        self._strangers = strangers or UnknownKeys()

    async def append(self, directories: Sequence[Directory]) -> AsyncIterator[Directory]:
        """Append what is in *directories*, oldest first; each is given back when it is done.

        Raises:
            FencedError: the session ended first.
        """
        waiting = list(directories)
        pause_s, longest_s = _PAUSE_S
        while waiting:
            moved = False
            before: set[TopicPartition] = set()
            for directory in list(waiting):
                left = len(directory.pending)
                await self._try(directory, before)
                moved |= len(directory.pending) < left
                if directory.done:
                    waiting.remove(directory)
                    yield directory
                before.update(directory.pending)  # of a partition the oldest come first
            if waiting:
                pause_s = _PAUSE_S[0] if moved else pause_s
                self._say(waiting)
                await asyncio.sleep(pause_s)
                pause_s = min(longest_s, pause_s * 2)

    def _say(self, waiting: list[Directory]) -> None:
        now_ms = self._now_ms()
        if now_ms - self._said_ms < _SAID_S * 1000:
            return
        self._said_ms = now_ms
        for directory in waiting:
            tps = directory.pending
            reasons = {directory.reasons.get(tp, "older leftovers of it wait") for tp in tps}
            self._log.warning(
                "leftovers_wait",
                session=directory.session_id,
                partitions=len(tps),
                first=str(directory.names.get(tps[0], tps[0].topic_id)) if tps else None,
                reasons=sorted(reasons)[:3],
                advice="acknowledged with acks=1, only on this disk, and tried again until their "
                "leaders take them",
            )

    async def _try(self, directory: Directory, before: set[TopicPartition]) -> None:
        """One attempt, for all that can be."""
        leaders: dict[int, PartitionLeaderClient] = {}
        directory.reasons.clear()
        try:
            streams = await self._streams(directory, before, leaders)
            if streams:
                await self._append(directory, streams)
            await self._look_for_topics(directory)
            if directory.changed:
                await self.save(directory)
        except (UnavailableError, CorruptError, RefusedError) as error:
            # The disk, or the cluster's producer ids: damaged, used up, or not marked.
            for tp in directory.pending:
                directory.reasons[tp] = str(error)
        finally:
            for leader in leaders.values():
                await leader.close()

    async def save(self, directory: Directory) -> None:
        """Write the note.

        Raises:
            UnavailableError: the disk does not take it.
        """
        async with directory.saving:
            directory.changed = False
            try:
                await self._disk.save_note(directory.session_id, directory.note.encode())
            except BaseException:
                directory.changed = True
                raise

    # ── Who leads, and what is to be appended ──

    async def _streams(
        self,
        directory: Directory,
        before: set[TopicPartition],
        leaders: dict[int, PartitionLeaderClient],
    ) -> dict[TopicPartition, _Stream]:
        """What can be appended now: its leader is there, and it is noted what is not in the log."""
        led: dict[TopicPartition, tuple[PartitionLeaderClient, int]] = {}
        for tp in directory.pending:
            if tp in before:
                continue
            if tp not in directory.names:
                directory.reasons[tp] = "its topic is not known"
                continue
            leader, leader_epoch = self._leader(tp, leaders)
            if leader is None:
                directory.reasons[tp] = "nobody leads the partition"
            elif leader_epoch <= max(directory.begins.get(tp, ()), default=-1):
                directory.reasons[tp] = "its leader is not known yet"
            else:
                led[tp] = leader, leader_epoch
        for leader in [self._own, *leaders.values()]:
            asked: list[EpochEndQuery] = []
            for tp, (its, leader_epoch) in led.items():
                if its is leader and directory.note.partitions[tp].ends is None:
                    at = NamedPartition(directory.names[tp], tp)
                    asked += [
                        EpochEndQuery(at, e, leader_epoch) for e in sorted(directory.begins[tp])
                    ]
                if len(asked) >= _ASKED:
                    await self._ask(directory, leader, asked)
                    asked = []
            if asked:
                await self._ask(directory, leader, asked)
        streams: dict[TopicPartition, _Stream] = {}
        for tp, (leader, _) in led.items():
            leftover = directory.note.partitions[tp]
            if leftover.ends is not None and not leftover.done:
                streams[tp] = _Stream(NamedPartition(directory.names[tp], tp), leftover, leader)
        return streams

    def _leader(
        self, tp: TopicPartition, leaders: dict[int, PartitionLeaderClient]
    ) -> tuple[PartitionLeaderClient | None, int]:
        if (own_epoch := self._own.epoch(tp)) >= 0:
            return self._own, own_epoch
        agent, leader_epoch = self._leader_of(tp)
        if agent is None or self._connect is None or agent.node_id == self._own.node_id:
            return None, -1
        if agent.node_id not in leaders:
            leaders[agent.node_id] = self._connect(agent)
        return leaders[agent.node_id], leader_epoch

    async def _ask(
        self, directory: Directory, leader: PartitionLeaderClient, asked: list[EpochEndQuery]
    ) -> None:
        try:
            answers = await leader.ends(asked)
        except (UnavailableError, OutcomeUnknownError) as error:
            for place, _, _ in asked:
                directory.reasons[place.tp] = str(error)
            return
        ends: dict[TopicPartition, dict[int, int]] = {}
        failed: set[TopicPartition] = set()
        for (place, epoch, _), answer in zip(asked, answers, strict=True):
            if isinstance(answer, RefusedError):
                directory.reasons[place.tp] = str(answer)
                failed.add(place.tp)
            else:
                ends.setdefault(place.tp, {})[epoch] = answer
        for tp, known in ends.items():
            if tp not in failed and known.keys() == directory.begins[tp].keys():
                directory.note.partitions[tp].ends = known
                directory.changed = True

    async def _look_for_topics(self, directory: Directory) -> None:
        """Whatever waits may be of a topic that is gone: absent from a read that begins now."""
        waiting = [tp for tp in directory.pending if tp in directory.reasons]
        if not waiting:
            return
        kvs = await self._session.read_prefix(TOPICS_PREFIX)
        try:
            topics = self._strangers.decoded(kvs, decode_topic, parse_topic_key)
        except CorruptError as error:
            # It may be any of them: nothing is known to be gone.
            self._log.error("topics_unreadable", error=str(error), advice="upgrade the agent")
            return
        names = {topic.topic_id: topic.name for topic in topics}
        self._drop(directory, [tp for tp in waiting if tp.topic_id not in names])
        for tp in directory.pending:
            if tp.topic_id in names:
                directory.names[tp] = names[tp.topic_id]

    def _drop(self, directory: Directory, gone: Sequence[TopicPartition]) -> None:
        """Their topics were deleted: nobody waits for their records."""
        for topic_id in {tp.topic_id for tp in gone}:
            partitions = [tp for tp in gone if tp.topic_id == topic_id]
            for tp in partitions:
                directory.end(tp)
            self._log.info(
                "leftovers_dropped",
                session=directory.session_id,
                topic=directory.names.get(partitions[0]),
                topic_id=str(topic_id),
                partitions=len(partitions),
                reason="the topic was deleted",
            )

    # ── Appending ──

    async def _append(self, directory: Directory, streams: dict[TopicPartition, _Stream]) -> None:
        note = directory.note
        if note.producer_id == NO_PRODUCER_ID:
            block = await next_block(self._session, self._objects, self._own.node_id)
            note.producer_id = block.first_producer_id
            directory.changed = True
        if directory.changed:
            await self.save(directory)
        for number in await self._disk.read_files(directory.session_id):
            concerned = {tp: s for tp, s in streams.items() if directory.first_file(tp) <= number}
            if any(stream.active for stream in concerned.values()):
                data = await self._disk.read_file(directory.session_id, number)
                await self._select(directory, number, data, concerned)
                await self._send(directory, concerned.values())
        for tp, stream in streams.items():
            if stream.active:
                self._finished(directory, stream)
                directory.end(tp)

    async def _select(
        self,
        directory: Directory,
        number: int,
        data: bytes,
        streams: dict[TopicPartition, _Stream],
    ) -> None:
        """Queue what of a file is to be appended."""
        since = 0
        for entry in entries(data, number):
            stream = streams.get(TopicPartition(entry.topic_id, entry.partition))
            if stream is None or not entry.acks_one or not stream.active:
                continue
            try:
                header = check_batch(entry.batch, from_client=False)
            except CorruptBatchError:
                continue  # torn or damaged, as `recovery` says
            if stream.leftover.has(entry, header):
                stream.ready.append((entry, header))
            since += len(entry.batch)
            if since >= _BREATHE_BYTES:
                since = 0
                await asyncio.sleep(0)

    async def _send(self, directory: Directory, streams: Iterable[_Stream]) -> None:
        """Append what is queued, to all leaders at once."""
        by_leader: dict[PartitionLeaderClient, list[_Stream]] = {}
        for stream in streams:
            if stream.active and stream.ready:
                by_leader.setdefault(stream.leader, []).append(stream)
        async with asyncio.TaskGroup() as tasks:
            for leader, its in by_leader.items():
                tasks.create_task(self._rounds(directory, leader, its))

    async def _rounds(
        self, directory: Directory, leader: PartitionLeaderClient, streams: list[_Stream]
    ) -> None:
        producer_id = directory.note.producer_id
        while True:
            sent: list[_Stream] = []
            batches: list[tuple[NamedPartition, bytearray]] = []
            size = 0
            for stream in streams:
                if not self._next(directory, stream):
                    continue
                entry, header = stream.ready[0]
                if (size and size + len(entry.batch) > _ROUND_BYTES) or len(sent) == _ROUND_BATCHES:
                    break
                batch = renumbered(entry, header, producer_id, stream.numbering.number())
                size += len(batch)
                sent.append(stream)
                batches.append((stream.place, batch))
            if not sent:
                return
            try:
                answers = await leader.append(batches)
            except (UnavailableError, OutcomeUnknownError) as error:
                for stream in streams:
                    self._put_off(directory, stream, str(error))
                return
            for stream, answer in zip(sent, answers, strict=True):
                await self._answered(directory, stream, answer)

    def _next(self, directory: Directory, stream: _Stream) -> bool:
        """Whether the stream has a batch to send."""
        while stream.active and stream.ready and stream.numbering.is_known:
            self._advance(stream, -1)
        if stream.active and stream.ready and stream.numbering.exhausted:
            self._stop(directory, stream, "too many batches for one directory")
        return stream.active and bool(stream.ready)

    def _advance(self, stream: _Stream, offset: int) -> None:
        """The first is in the log; *offset* -1: somewhere."""
        _, header = stream.ready.popleft()
        if stream.old_offset < 0:
            stream.old_offset, stream.new_offset = header.base_offset, offset
        stream.records += header.record_count
        stream.numbering.next(header.record_count)

    def _put_off(self, directory: Directory, stream: _Stream, reason: str) -> None:
        """Nothing more of it in this attempt."""
        stream.active = False
        stream.ready.clear()
        directory.reasons[stream.place.tp] = reason

    def _stop(self, directory: Directory, stream: _Stream, reason: str) -> None:
        """Nothing more of it ever."""
        stream.leftover.stopped = reason
        directory.changed = True
        self._not_appended(directory, stream, reason, "all that follow it are not appended either")
        stream.ready.clear()

    async def _answered(self, directory: Directory, stream: _Stream, answer: Answer) -> None:
        if not isinstance(answer, RefusedError):
            self._advance(stream, answer)
        elif answer.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            stream.numbering.known()
        elif answer.code in _OUT_OF_ORDER:
            self._stop(directory, stream, f"{answer.code.name}: its files have changed")
        elif answer.code in _NEVER:
            await self._refused(directory, stream, str(answer))
        else:
            self._put_off(directory, stream, str(answer))

    async def _refused(self, directory: Directory, stream: _Stream, reason: str) -> None:
        """The rest goes on without this batch, which from now on has no number."""
        refused = stream.leftover.refused
        if len(refused) >= MAX_REFUSED:
            self._stop(directory, stream, f"{MAX_REFUSED} batches were refused; {reason}")
            return
        _, header = stream.ready[0]
        which = (header.partition_leader_epoch, header.base_offset)
        refused.add(which)
        try:
            await self.save(directory)
        except UnavailableError as error:
            refused.discard(which)
            self._put_off(directory, stream, str(error))
            return
        self._not_appended(directory, stream, reason, "those that follow it are appended")
        stream.ready.popleft()

    def _not_appended(self, directory: Directory, stream: _Stream, reason: str, rest: str) -> None:
        _, header = stream.ready[0]
        self._log.error(
            "leftovers_not_appended",
            partition=str(stream.place),
            session=directory.session_id,
            from_offset=header.base_offset,
            records=header.record_count,
            reason=reason,
            advice=f"{KEPT}; {rest}",
        )

    def _finished(self, directory: Directory, stream: _Stream) -> None:
        if stream.records:
            self._log.warning(
                "leftovers_appended_elsewhere",
                partition=str(stream.place),
                session=directory.session_id,
                records=stream.records,
                from_offset=stream.old_offset,
                to_offset=stream.new_offset if stream.new_offset >= 0 else None,
                leader=stream.leader.node_id,
                reason=directory.causes.get(stream.place.tp, LED_ELSEWHERE),
                advice="none for these records: they were acknowledged with acks=1 by this agent, "
                "could not keep their offsets (reason), and are in the log at new ones",
            )
