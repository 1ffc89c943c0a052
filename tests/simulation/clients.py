"""Producers that do what Kafka's clients do, and remember what they were told.

They send Produce requests of one batch to the agent's own handler and read its answers.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from driftlog_agents.foundation.fair_queue import Client
from driftlog_agents.log.partition.batch import ConnectionActivity
from driftlog_agents.network.answers import Answers
from driftlog_agents.network.limits.memory_budget import MemoryBudget
from driftlog_agents.network.slots import Slot
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.produce import (
    API,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.foundation.types import Buffer
from tests.simulation.agent import SimulatedAgent
from tests.simulation.batches import make_batch
from tests.simulation.clocks import has_clock_jumps
from tests.simulation.oracle import Place, Told

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World

_VERSION: Final = 10
"""The first that says who leads instead (KIP-951)."""

_RETRIED: Final = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_RECORD,
}
_NOT_NOW: Final = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT}
_ELSEWHERE: Final = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
_OLD_EPOCH: Final = ErrorCode.INVALID_PRODUCER_EPOCH
_SEND_TRIES: Final = 600
_SLOW_MS: Final = 12_000.0
"""How long a copy may be told to come again where threads are slow: decoding a producer snapshot
and dating it are a call each, each stops for up to 4 s (`Workers`), and a request may wait 3 s."""
_OLD: Final = 20
"""Batches back that copies come: with what is in flight, not more than an agent remembers."""


@dataclass(slots=True, eq=False)
class _Sent:
    values: list[bytes]
    sequence: int
    epoch: int
    garbage: bool
    first: SimulatedAgent | None = None
    """Which agent it was sent to first."""
    overtaken: bool = False
    """What came behind it may have got in before it: its disk refused it, or its agent died."""
    tries: int = 0
    attempt: "_Attempt | None" = None


def roomy() -> Answers:
    """Room for any answer."""
    return Answers(MemoryBudget(1 << 60), lambda _: None)


@dataclass(slots=True, eq=False)
class _Connection:
    """What handlers see of a connection, and of the client behind it."""

    source: ConnectionActivity = field(default_factory=ConnectionActivity)
    listener: str = "PLAINTEXT"
    closed: bool = False
    client_host: str = "simulated"
    answers: Answers = field(default_factory=roomy)
    client: Client = field(default_factory=lambda: Client("simulated"))

    def hang_up(self, event: str, reason: str) -> None:
        """The agent closes it: the only way to say no to acks=0."""
        self.closed = True

    def on_loop(self, step: Callable[[], None]) -> None:
        step()

    def batches_wait(self, size_bytes: int) -> None:
        """Its client sends no more of them than before."""

    def broken(self) -> None:
        raise AssertionError("an answer that cannot be made")

    def close(self) -> None:
        raise AssertionError("a bug in looking into a batch")


@dataclass(slots=True, eq=False)
class _Attempt:
    """One time that a batch was sent: a slot of its connection."""

    producer: "Producer"
    sent: _Sent
    epoch: int
    sequence: int
    """What they were then."""
    connection: _Connection
    process: SimulatedAgent
    sent_ms: float
    of: "_Attempt | None" = None
    """It is a copy of this one."""
    tp: TopicPartition | None = None
    """What its topic's name stood for when the agent read it; None: for nothing."""
    place: Place | None = None
    """Where its batch is, as it was told."""
    answer: PartitionProduceResponse | None = None
    responded: bool = False
    late: bool = False
    """Its agent was stopped when it came; the connection may be gone before the agent knows."""
    leader_epoch: int = -1
    """Of the leader that took it."""

    @property
    def done(self) -> bool:
        """Answered, or nobody listens any more."""
        return self.responded or self.connection.closed

    def respond(self, answer: Sequence[Buffer]) -> None:
        assert not self.responded, "answered twice"
        self.responded = True
        if self.process.dead or not answer:
            return  # (acks=0: admitted, as far as anybody knows)
        assert not self.connection.closed or self.late
        if self.connection.closed:
            return
        _, response = API.decode_response(_VERSION, b"".join(answer)[4:])
        ((self.answer,),) = ([*topic.partition_responses] for topic in response.responses)
        if self.of is not None:
            return  # who sent the copy looks at it
        code = ErrorCode(self.answer.error_code)
        if code is ErrorCode.NONE:
            self.producer.acknowledged(self, self.answer)
        else:
            self.producer.failed(self, code)


class _Turn:
    """The connection, as the handler of one request sees it."""

    def __init__(self, attempt: _Attempt) -> None:
        self._attempt = attempt
        self._slot: Slot | None = None
        self.source = attempt.connection.source
        self.answers = attempt.connection.answers
        self.on_loop = attempt.connection.on_loop
        self.broken = attempt.connection.broken
        self.batches_wait = attempt.connection.batches_wait
        self.listener = attempt.connection.listener
        self.client_host = attempt.connection.client_host
        self.client = attempt.connection.client

    @property
    def closed(self) -> bool:
        return self._attempt.connection.closed and not self._attempt.late

    def turn(self) -> _Attempt:
        return self._attempt

    def queue(self, slot: Slot) -> None:
        self._slot = slot

    def answered(self) -> None:
        assert self._slot is not None
        assert self._slot.answer is not None
        self._attempt.respond(self._slot.answer)


@dataclass(slots=True, eq=False)
class Producer:
    """Sends batches in order to one partition, several in flight, until each is acknowledged."""

    world: "World"
    name: str
    topic: str
    partition: int
    acks: int
    producer_id: int
    window: int
    total: int
    rng: Random
    patience_ms: float = math.inf
    """For an answer; then it looks for another leader."""
    epoch: int = 0
    unacknowledged: list[_Sent] = field(default_factory=list)
    produced: int = 0
    next_sequence: int = 0
    retry: bool = False
    abandoned: bool = False
    """Its topic is gone for good."""
    leader: "Node | None" = None
    """Who leads, as far as it was told."""
    last: _Attempt | None = None
    fenced: _Attempt | None = None
    """The last one of an epoch that a later one of this producer has ended."""
    repeatable: set[bytes] = field(default_factory=set)
    """Sent with two epochs: nobody knows whether the first was taken."""
    promised: dict[tuple[int, int], _Attempt] = field(default_factory=dict)
    """What was acknowledged, by its epoch and the sequence behind it."""
    skipped: set[tuple[int, int]] = field(default_factory=set)
    """Behind what, by epoch and sequence, there is a gap that it made itself."""
    copies: list[_Attempt] = field(default_factory=list)
    connection: _Connection = field(default_factory=_Connection)

    @property
    def idempotent(self) -> bool:
        return self.producer_id >= 0

    @property
    def finished(self) -> bool:
        return self.abandoned or (self.produced >= self.total and not self.unacknowledged)

    async def run(self) -> None:
        while not self.finished:
            if self.retry:
                self.retry = False
                await asyncio.sleep(self.rng.uniform(0.01, 0.3))
                for sent in self.unacknowledged:
                    if sent.attempt is not None and sent.attempt.process.dead:
                        sent.attempt = None  # its connection is gone
            if self.rng.random() < 0.02:
                self._reconnect()
            if not self._patient():
                self.leader = None
                self._reconnect()
            if self._send_all():
                await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.02, 0.2, 1.5)))
            else:
                await asyncio.sleep(0.1)
                if self._stale():
                    self.retry = True

    def _target(self) -> SimulatedAgent | None:
        """The agent to send to; None: none is known now, and the next one was asked."""
        nodes = self.world.nodes
        if len(nodes) == 1:
            process = nodes[0].process
            return process if process.listening else None
        if self.leader is not None and not self.leader.process.listening:
            self.leader = None
        if self.leader is None:
            asked = self.rng.choice(nodes).process
            if asked.listening and not asked.freezer.frozen:
                node_id = asked.leader_of(self.topic, self.partition)
                self.leader = next((node for node in nodes if node.number == node_id), None)
            if self.leader is None or not self.leader.process.listening:
                return None
            self._reconnect()
        return self.leader.process

    def _patient(self) -> bool:
        """Whether it goes on to wait for the agent that it has sent to."""
        oldest = self.unacknowledged[0].attempt if self.unacknowledged else None
        if not self.world.many or oldest is None:
            return True
        return self.world.now_ms() - oldest.sent_ms < self.patience_ms

    def _reconnect(self) -> None:
        """Lose the connection, and the answers on it; send again what is unacknowledged."""
        self.connection.closed = True
        self.connection = _Connection()
        for sent in self.unacknowledged:
            sent.attempt = None

    def _stale(self) -> bool:
        return any(
            s.attempt is None or s.attempt.process.dead or s.attempt.done
            for s in self.unacknowledged
        )

    async def send_again(self) -> None:
        """A copy of the last batch that the network kept back for long: it is a duplicate."""
        if not self.idempotent or self.last is None or self.abandoned:
            return
        original, place = self.last, self.last.place
        assert place is not None
        there = self.world.topic_partition(self.topic, self.partition)
        if there != place.tp or there.topic_id in self.world.admin.dying:
            return  # the topic that has it is gone, or goes when its request acts
        if self.acks == 1 and place.tp in self.world.unsettled:
            return  # it may be in no log
        answer = await self._late_copy(original)
        code, same = ErrorCode(answer.error_code), answer.base_offset == place.base_offset
        if code is ErrorCode.INVALID_RECORD and original.sent.garbage:
            return  # the topic's batches are looked into by now
        lost = self.world.oracle.may_be_lost(place)
        if lost and not (code is ErrorCode.NONE and same):
            self.world.count("lost with a disk")
            self.world.oracle.is_gone(place)
            if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                return  # so are those before it
        self.world.expect(
            code is ErrorCode.NONE and (same or lost),
            f"{self.name}: a duplicate of {place.base_offset} was answered with {answer}",
        )
        self._promised(original, answer)
        if self.fenced is not None and self.fenced.tp == place.tp:
            answer = await self._late_copy(self.fenced)
            garbage = self.fenced.sent.garbage and answer.error_code == ErrorCode.INVALID_RECORD
            self.world.expect(  # (garbage that is looked into by now is refused before)
                answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH or garbage,
                f"{self.name}: an old epoch was answered with {answer}",
            )

    def send_old_one(self) -> None:
        """A copy of one of the last batches, that nobody waits for."""
        process = self._target()
        if not self.idempotent or self.acks != -1 or not self.promised or process is None:
            return
        original = self.rng.choice(list(self.promised.values())[-_OLD:])
        log = process.engine and process.engine.log(self.topic, self.partition)
        there = log and TopicPartition(log.topic_id, log.partition) == original.tp
        if there and not original.sent.garbage:
            self.copies.append(self._attempt(process, original.sent, _Connection(), of=original))

    def check_copies(self) -> None:
        """What was answered to copies: where it is, or nothing that says anything of it."""
        for copy in self.copies:
            assert copy.of is not None
            assert copy.of.place is not None
            if copy.answer is None or copy.answer.error_code in _NOT_NOW:
                continue
            if copy.of.epoch < self.epoch and copy.answer.error_code == _OLD_EPOCH:
                continue
            self.world.expect(
                (copy.answer.error_code, copy.answer.base_offset) == (0, copy.of.place.base_offset),
                f"{self.name}: a copy of {copy.of.place} was answered with {copy.answer}",
            )

    async def _late_copy(self, original: _Attempt) -> PartitionProduceResponse:
        """What is answered to it.  A session may be over by its own clock: then the next one."""
        slow_until_ms = self.world.now_ms() + (_SLOW_MS if self.world.thread_share else 0.0)
        for _ in range(_SEND_TRIES):
            process = self._target()
            await asyncio.sleep(0.1)
            if process is None or not process.listening:
                continue
            attempt = self._attempt(process, original.sent, _Connection(), of=original)
            for _ in range(_SEND_TRIES):
                if attempt.done:
                    break
                await asyncio.sleep(0.1)
            self.world.expect(attempt.done, f"{self.name}: a duplicate was not answered")
            assert attempt.answer is not None
            code = ErrorCode(attempt.answer.error_code)
            if code is ErrorCode.REQUEST_TIMED_OUT and attempt.sent_ms < slow_until_ms:
                continue  # it was parked for longer than it may wait, as clients know: once more
            if code is ErrorCode.KAFKA_STORAGE_ERROR and self.world.hides_objects:
                continue  # what could not be read is looked for again within a minute
            if code not in _ELSEWHERE:
                return attempt.answer
            self.leader = None
        self.world.expect(False, f"{self.name}: nobody takes a duplicate")
        raise AssertionError

    # ── Sending ──

    def _send_all(self) -> bool:
        """Send what is due; False: nothing could be sent."""
        process = self._target()
        if process is None or self.retry:
            return False
        if self.connection.closed:
            self._reconnect()
        for sent in list(self.unacknowledged):
            if not process.listening:
                return False
            if sent.attempt is None:
                self._attempt(process, sent, self.connection)
                if self.retry:
                    return False
        if self.produced >= self.total or len(self.unacknowledged) >= self.window:
            return False
        if self.idempotent and not self.unacknowledged and self.rng.random() < 0.02:
            self._bump_epoch()
        count = self.rng.randint(1, 3)
        values = [f"{self.name}/{self.produced + i}".encode() for i in range(count)]
        garbage = self.rng.random() < 0.01
        if (self.idempotent and self.window > 1) or self.topic in self.world.compacted:
            garbage = False  # if it is refused, what is behind it is not: its place is taken
        if garbage:
            values = [values[0]]
            count = 1
        sent = _Sent(values, self.next_sequence, self.epoch, garbage)
        self.next_sequence += count
        self.produced += count
        if self.acks != 0:
            self.unacknowledged.append(sent)
        self._attempt(process, sent, self.connection)
        return True

    def _attempt(
        self,
        process: SimulatedAgent,
        sent: _Sent,
        connection: _Connection,
        *,
        of: _Attempt | None = None,
    ) -> _Attempt:
        epoch, sequence = (of.epoch, of.sequence) if of else (sent.epoch, sent.sequence)
        now_ms, late = self.world.now_ms(), process.freezer.frozen
        attempt = _Attempt(self, sent, epoch, sequence, connection, process, now_ms, of, late=late)
        if of is None:
            sent.first = sent.first or process
            sent.tries += 1
            sent.overtaken |= sent.first is not process
            sent.attempt = attempt  # it may be answered before this returns
        batch = make_batch(
            sent.values,
            timestamps_ms=self._timestamps_ms(sent, process),
            producer_id=self.producer_id,
            producer_epoch=epoch if self.idempotent else -1,
            base_sequence=sequence if self.idempotent else -1,
            garbage=sent.garbage,
            keyed=self.topic in self.world.compacted,
        )
        connection.source.heard_ms = self.world.now_ms()
        data = PartitionProduceData(index=self.partition, records=memoryview(batch))
        request = ProduceRequest(
            acks=self.acks,
            timeout_ms=self.rng.choice((3_000, 30_000)),
            topic_data=[TopicProduceData(name=self.topic, partition_data=[data])],
        )
        process.receive(partial(process.server.read, partial(self._arrive, attempt, request)))
        return attempt

    def _arrive(self, attempt: _Attempt, request: ProduceRequest) -> None:
        """The agent reads it."""
        process = attempt.process
        engine = process.engine
        log = None if engine is None else engine.log(self.topic, self.partition)
        if log is not None:
            attempt.tp = TopicPartition(log.topic_id, log.partition)
            attempt.leader_epoch = log.leader_epoch
        turn: Any = _Turn(attempt)
        log_end = -1 if log is None else log.log_end
        process.producing.handle(turn, _VERSION, 0, request)
        if log is not None and log.log_end > log_end:
            assert attempt.tp is not None
            process.admitted(attempt.tp)
        if engine is not None and not attempt.done and self.acks != 0:
            process.waits(engine, attempt)

    def _bump_epoch(self) -> None:
        """As InitProducerId gives it: sequences begin again."""
        self.world.count("epochs bumped")
        self.epoch += 1
        self.next_sequence = 0
        for sent in self.unacknowledged:
            self.repeatable.update(sent.values)
            sent.epoch, sent.sequence = self.epoch, self.next_sequence
            self.next_sequence += len(sent.values)
            sent.attempt = None

    def _timestamps_ms(self, sent: _Sent, process: SimulatedAgent) -> list[int]:
        """Of a clock that is nearly the agent's, and records that are not in its order."""
        now_ms = process.node.wall.now_ms()
        return [now_ms + self.rng.randint(-1_500, 500) for _ in sent.values]

    # ── Answers ──

    def failed(self, attempt: _Attempt, code: ErrorCode) -> None:
        """A retriable error: everything unacknowledged is sent again, in order."""
        expect, name, sent = self.world.expect, self.name, attempt.sent
        late = code is ErrorCode.INVALID_TIMESTAMP and has_clock_jumps(self.world.seed)
        expect(late or code in _RETRIED, f"{name}: {sent.values} was refused with {code.name}")
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and sent in self.unacknowledged[:1]:
            expect(self._has_gap(attempt), f"{name}: a gap before its oldest batch {sent.values}")
            self._bump_epoch()
        if code is ErrorCode.KAFKA_STORAGE_ERROR:
            refusable = self.acks == 1 or self.world.hides_objects
            expect(refusable, f"{name}: no disk is needed for acks={self.acks}")
            sent.overtaken |= self.acks == 1
        if code is ErrorCode.INVALID_RECORD:
            expect(sent.garbage, f"{name}: {sent.values} was called garbage")
            sent.garbage = False  # mended, it takes the place that it had
            if self.idempotent and sent.tries > 1:
                self._bump_epoch()  # unless that is taken, by the garbage that was sent before
        if code in _ELSEWHERE and self.leader is not None:
            self._move(attempt)
        for other in self.unacknowledged:
            if other.attempt is not None and (other.attempt.done or other.attempt.process.dead):
                other.attempt = None
        self.retry = True

    def _move(self, attempt: _Attempt) -> None:
        """Go to whom the answer names, or ask somebody."""
        assert attempt.answer is not None
        hint = attempt.answer.current_leader.leader_id
        self.leader = next((n for n in self.world.nodes if n.number == hint), None)
        if self.leader is attempt.process.node:
            self.leader = None
        if self.leader is not None:
            self.world.count("leaders named")
            self._reconnect()

    def _has_gap(self, attempt: _Attempt) -> bool:
        """Whether the log may end before the batch in front of this one, or behind this one."""
        oracle = self.world.oracle
        if (attempt.epoch, attempt.sequence) in self.skipped:
            return True
        before = self.promised.get((attempt.epoch, attempt.sequence))
        if before is not None and before.tp != attempt.tp:
            return True  # in the topic that had the name before
        if before is not None and before.place is not None:
            if oracle.may_be_lost(before.place):
                oracle.is_gone(before.place)
                return True
            return oracle.was_displaced(before.place)
        # A producer that the log does not know may start anywhere, as in Kafka: what came behind
        # a batch that the disk refused may have done so, or what was sent to the next agent first.
        here = (attempt.epoch, attempt.sequence)
        known = any(
            other.place is not None
            and other.tp == attempt.tp
            and not oracle.may_be_lost(other.place)
            and not oracle.was_displaced(other.place)
            for there, other in self.promised.items()
            if there <= here
        )
        others = len(self.unacknowledged) > 1 or any(there > here for there in self.promised)
        return attempt.sent.overtaken and others and not known

    def acknowledged(self, attempt: _Attempt, answer: PartitionProduceResponse) -> None:
        """The promise, kept for the end."""
        self._promised(attempt, answer)
        sent = attempt.sent
        if sent not in self.unacknowledged:
            return  # an earlier attempt was answered first
        self.unacknowledged.remove(sent)
        if attempt.epoch < sent.epoch:  # its place in the epoch that has begun is nobody's
            self.skipped.add((sent.epoch, sent.sequence + len(sent.values)))
        # Answers overtake each other: of who has been silent since, the newest five are remembered.
        here = (attempt.epoch, attempt.sequence)
        if self.last is not None and here < (self.last.epoch, self.last.sequence):
            return
        if self.last is not None and self.last.epoch < attempt.epoch:
            self.fenced = self.last
        self.last = attempt

    def _promised(self, attempt: _Attempt, answer: PartitionProduceResponse) -> None:
        self.world.expect(attempt.tp is not None, f"{self.name}: appended to no topic")
        assert attempt.tp is not None
        sent = attempt.sent
        told = tuple(Told(value, sent.garbage) for value in sent.values)
        attempt.place = Place(attempt.tp, answer.base_offset, told)
        self.promised[attempt.epoch, attempt.sequence + len(told)] = attempt
        self.world.acknowledge(
            attempt.place, attempt.process.node, attempt.leader_epoch, one=self.acks == 1
        )


Attempt = _Attempt
"""For producers of other modules."""
