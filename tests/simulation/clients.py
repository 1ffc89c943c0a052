"""Producers that do what Kafka's clients do, and remember what they were told.

They send Produce requests of one batch to the agent's own handler and read its answers.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from driftlog_agents.log.flush import Source
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.produce import (
    API,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from driftlog_metadata.model import TopicPartition
from driftlog_tiering.object_store import Buffer
from tests.simulation.agent import AgentProcess
from tests.simulation.batches import make_batch

if TYPE_CHECKING:
    from tests.simulation.world import World

_VERSION: Final = 9
_RETRIED: Final = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_RECORD,
}


@dataclass(slots=True, eq=False)
class _Sent:
    values: list[bytes]
    sequence: int
    garbage: bool
    attempt: "_Attempt | None" = None


@dataclass(slots=True, eq=False)
class _Connection:
    """What handlers see of a connection, and of the client behind it."""

    source: Source = field(default_factory=Source)
    closed: bool = False
    client_host: str = "simulated"

    def hang_up(self, event: str, reason: str) -> None:
        """The agent closes it: the only way to say no to acks=0."""
        self.closed = True

    def close(self) -> None:
        raise AssertionError("a bug in looking into a batch")


@dataclass(slots=True, eq=False)
class _Attempt:
    """One time that a batch was sent: a slot of its connection."""

    producer: "Producer"
    sent: _Sent
    connection: _Connection
    process: AgentProcess
    engine: object
    tp: TopicPartition | None
    """What its topic's name stood for then; None: for nothing."""
    copy: bool = False
    answer: PartitionProduceResponse | None = None
    done: bool = False

    def respond(self, answer: Sequence[Buffer]) -> None:
        assert not self.done, "answered twice"
        self.done = True
        if self.process.dead or not answer:
            return
        assert not self.connection.closed
        _, response = API.decode_response(_VERSION, b"".join(answer)[4:])
        ((self.answer,),) = ([*topic.partition_responses] for topic in response.responses)
        if self.copy:
            return
        code = ErrorCode(self.answer.error_code)
        if code is ErrorCode.NONE:
            self.producer.acknowledged(self, self.answer)
        else:
            self.producer.failed(self.sent, code)


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
    unacknowledged: list[_Sent] = field(default_factory=list)
    produced: int = 0
    next_sequence: int = 0
    retry: bool = False
    abandoned: bool = False
    """Its topic is gone for good."""
    last: tuple[_Attempt, int] | None = None
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
            if self._send_all():
                await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.02, 0.2, 1.5)))
            else:
                await asyncio.sleep(0.1)
                if self._stale():
                    self.retry = True

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
        original, base_offset = self.last
        process = self.world.process
        engine = process.engine
        assert engine is not None
        log = engine.log(self.topic, self.partition)
        if log is None or original.tp != TopicPartition(log.topic_id, log.partition):
            return  # the topic that has it is gone
        attempt = self._attempt(original.sent, _Connection(), copy=True)
        for _ in range(100):
            if attempt.done:
                break
            await asyncio.sleep(0.1)
        answer = attempt.answer
        self.world.expect(answer is not None, f"{self.name}: a duplicate was not answered")
        assert answer is not None
        if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return  # by its own clock the session may be over: nothing is said at all
        self.world.expect(
            (answer.error_code, answer.base_offset) == (0, base_offset),
            f"{self.name}: a duplicate of {base_offset} was answered with {answer}",
        )

    # ── Sending ──

    def _send_all(self) -> bool:
        """Send what is due; False: nothing could be sent."""
        process = self.world.process
        if not process.listening or self.retry:
            return False
        if self.connection.closed:
            self._reconnect()
        for sent in list(self.unacknowledged):
            if sent.attempt is None:
                self._attempt(sent, self.connection)
                if self.retry:
                    return False
        if self.produced >= self.total or len(self.unacknowledged) >= self.window:
            return False
        count = self.rng.randint(1, 3)
        values = [f"{self.name}/{self.produced + i}".encode() for i in range(count)]
        garbage = self.rng.random() < 0.01
        if self.idempotent and self.window > 1:
            garbage = False  # if it is refused, what is behind it is not: its place is taken
        if garbage:
            values = [values[0]]
            count = 1
        sent = _Sent(values, self.next_sequence, garbage)
        self.next_sequence += count
        self.produced += count
        self.unacknowledged.append(sent)
        self._attempt(sent, self.connection)
        return True

    def _attempt(self, sent: _Sent, connection: _Connection, *, copy: bool = False) -> _Attempt:
        process = self.world.process
        engine = process.engine
        log = None if engine is None else engine.log(self.topic, self.partition)
        tp = None if log is None else TopicPartition(log.topic_id, log.partition)
        attempt = _Attempt(self, sent, connection, process, engine, tp, copy)
        if not copy:
            sent.attempt = attempt  # it may be answered before this returns
        batch = make_batch(
            sent.values,
            timestamps_ms=self._timestamps_ms(sent),
            producer_id=self.producer_id,
            producer_epoch=0 if self.idempotent else -1,
            base_sequence=sent.sequence if self.idempotent else -1,
            garbage=sent.garbage,
        )
        connection.source.heard_ms = self.world.now_ms()
        data = PartitionProduceData(index=self.partition, records=memoryview(batch))
        request = ProduceRequest(
            acks=self.acks,
            timeout_ms=self.rng.choice((3_000, 30_000)),
            topic_data=[TopicProduceData(name=self.topic, partition_data=[data])],
        )
        slot: Any = attempt
        process.producing.handle(slot, _VERSION, 0, request)
        return attempt

    def _timestamps_ms(self, sent: _Sent) -> list[int]:
        """Of a clock that is not the agent's, and records that are not in its order."""
        now_ms = int(self.world.now_ms())
        return [now_ms + self.rng.randint(-1_500, 500) for _ in sent.values]

    # ── Answers ──

    def failed(self, sent: _Sent, code: ErrorCode) -> None:
        """A retriable error: everything unacknowledged is sent again, in order."""
        expect, name = self.world.expect, self.name
        expect(code in _RETRIED, f"{name}: {sent.values} was refused with {code.name}")
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self.unacknowledged:
            oldest = self.unacknowledged[0]
            expect(sent is not oldest, f"{name}: a gap before its oldest batch {sent.values}")
        if code is ErrorCode.KAFKA_STORAGE_ERROR:
            expect(self.acks == 1, f"{name}: no disk is needed for acks={self.acks}")
        if code is ErrorCode.INVALID_RECORD:
            expect(sent.garbage, f"{name}: {sent.values} was called garbage")
            sent.garbage = False  # mended, it takes the place that it had
        for other in self.unacknowledged:
            if other.attempt is not None and (other.attempt.done or other.attempt.process.dead):
                other.attempt = None
        self.retry = True

    def acknowledged(self, attempt: _Attempt, answer: PartitionProduceResponse) -> None:
        """The promise, kept for the end."""
        sent = attempt.sent
        if sent not in self.unacknowledged:
            return  # an earlier attempt was answered first
        self.unacknowledged.remove(sent)
        self.last = (attempt, answer.base_offset)
        self.world.expect(attempt.tp is not None, f"{self.name}: appended to no topic")
        assert attempt.tp is not None
        for i, value in enumerate(sent.values):
            self.world.acknowledge(
                attempt.tp, answer.base_offset + i, b"" if sent.garbage else value, sent.garbage
            )
