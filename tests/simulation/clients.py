"""Producers that do what Kafka's clients do, and remember what they were told."""

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from driftlog_agents.log.engine import Engine
from driftlog_agents.log.flush import Source
from driftlog_agents.log.partition import PartitionLog
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.model import TopicPartition
from driftlog_tiering import kernel
from tests.simulation.batches import make_batch

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass(slots=True, eq=False)
class _Sent:
    values: list[bytes]
    sequence: int
    garbage: bool
    attempt: "_Attempt | None" = None


@dataclass(slots=True, eq=False)
class _Attempt:
    """A `Waiter`: one time that a batch was sent."""

    producer: "Producer"
    sent: _Sent
    engine: Engine
    base_offset: int = -1
    done: bool = False
    deaf: bool = False
    """Its connection is gone: whatever is answered, nobody hears it."""
    refused: ErrorCode | None = None

    def committed(self, log: PartitionLog) -> None:
        self._answered()

    def synced(self, log: PartitionLog) -> None:
        self._answered()

    def lost(self, log: PartitionLog) -> None:
        if not self.done:
            self.done = True
            if self.deaf:
                return
            self.producer.failed(self.sent, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _answered(self) -> None:
        assert not self.done, "answered twice"
        self.done = True
        if not self.producer.world.process.dead and not self.deaf:
            self.producer.acknowledged(self.sent, self.base_offset)


@dataclass(slots=True, eq=False)
class Producer:
    """Sends batches in order to one partition, several in flight, until each is acknowledged."""

    world: "World"
    name: str
    tp: TopicPartition
    topic: str
    acks: int
    producer_id: int
    window: int
    total: int
    rng: Random
    unacknowledged: list[_Sent] = field(default_factory=list)
    produced: int = 0
    next_sequence: int = 0
    retry: bool = False
    last: tuple[_Sent, int] | None = None
    source: Source = field(default_factory=Source)

    @property
    def idempotent(self) -> bool:
        return self.producer_id >= 0

    @property
    def finished(self) -> bool:
        return self.produced >= self.total and not self.unacknowledged

    async def run(self) -> None:
        while not self.finished:
            if self.retry:
                self.retry = False
                await asyncio.sleep(self.rng.uniform(0.01, 0.3))
                for sent in self.unacknowledged:
                    if sent.attempt is not None and sent.attempt.engine is not self.world.engine:
                        sent.attempt = None  # its connection is gone
            if self.rng.random() < 0.02:
                self._reconnect()
            if self._send_all():
                await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.02, 0.2, 1.5)))
            else:
                await asyncio.sleep(0.1)
                if self.world.engine is None or self._stale():
                    self.retry = True

    def _reconnect(self) -> None:
        """Lose the connection, and the answers on it; send again what is unacknowledged."""
        for sent in self.unacknowledged:
            if sent.attempt is not None:
                sent.attempt.deaf = True
                sent.attempt = None

    async def send_again(self) -> None:
        """A copy of the last batch that the network kept back for long: it is a duplicate."""
        engine = self.world.engine
        if not self.idempotent or self.last is None or engine is None:
            return
        log = engine.log(self.topic, self.tp.partition)
        assert log is not None
        await engine.loaded(log)
        sent, base_offset = self.last
        attempt = _Attempt(self, sent, engine, deaf=True)
        self._admit(engine, log, attempt)
        if attempt.refused is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return  # by its own clock the session may be over: nothing is said at all
        self.world.expect(
            attempt.base_offset == base_offset,
            f"{self.name}: a duplicate of {base_offset} was given {attempt.base_offset}",
        )

    def _stale(self) -> bool:
        return any(
            s.attempt is None or s.attempt.engine is not self.world.engine or s.attempt.done
            for s in self.unacknowledged
        )

    def _send_all(self) -> bool:
        """Send what is due; False: nothing could be sent."""
        engine = self.world.engine
        if engine is None or not engine.ready.is_set() or self.retry:
            return False
        log = engine.log(self.topic, self.tp.partition)
        if log is None:
            return False
        self.source.heard_ms = self.world.now_ms()
        for sent in list(self.unacknowledged):
            if sent.attempt is None:
                self._send(engine, log, sent)
                if self.retry:
                    return False
        if self.produced >= self.total or len(self.unacknowledged) >= self.window:
            return False
        count = self.rng.randint(1, 3)
        values = [f"{self.name}/{self.produced + i}".encode() for i in range(count)]
        garbage = self.rng.random() < 0.01
        if garbage:
            values = [values[0]]
            count = 1
        sent = _Sent(values, self.next_sequence, garbage)
        self.next_sequence += count
        self.produced += count
        self.unacknowledged.append(sent)
        self._send(engine, log, sent)
        return True

    def _send(self, engine: Engine, log: PartitionLog, sent: _Sent) -> None:
        attempt = _Attempt(self, sent, engine)
        sent.attempt = attempt
        if engine.admission.parks(
            log,
            self.producer_id,
            0 if self.idempotent else -1,
            sent.sequence if self.idempotent else -1,
            len(sent.values),
        ):
            log.parked.append(lambda: self._admit(engine, log, attempt))
        else:
            self._admit(engine, log, attempt)

    def _admit(self, engine: Engine, log: PartitionLog, attempt: _Attempt) -> None:
        sent = attempt.sent
        batch = memoryview(
            make_batch(
                sent.values,
                timestamps_ms=self._timestamps_ms(sent),
                producer_id=self.producer_id,
                producer_epoch=0 if self.idempotent else -1,
                base_sequence=sent.sequence if self.idempotent else -1,
                garbage=sent.garbage,
            )
        )
        checked = kernel.check(batch, 0, len(batch))
        assert not isinstance(checked, int)
        try:
            admitted = engine.admission.admit(
                log,
                batch,
                len(sent.values),
                0,
                self.producer_id,
                0 if self.idempotent else -1,
                sent.sequence if self.idempotent else -1,
                checked[6],
                self.acks,
                self.source,
                attempt,
            )
        except RefusedError as refused:
            attempt.done = True
            attempt.refused = refused.code
            if attempt.deaf:
                return
            self.failed(sent, refused.code)
            return
        attempt.base_offset = admitted.base_offset
        if admitted.answered:
            attempt.committed(log)

    def _timestamps_ms(self, sent: _Sent) -> list[int]:
        """Of a clock that is not the agent's, and records that are not in its order."""
        now_ms = int(self.world.now_ms())
        return [now_ms + self.rng.randint(-1_500, 500) for _ in sent.values]

    def failed(self, sent: _Sent, code: ErrorCode) -> None:
        """A retriable error: everything unacknowledged is sent again, in order."""
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            oldest = self.unacknowledged[0]
            self.world.expect(
                sent is not oldest, f"{self.name}: a gap before its oldest batch {sent.values}"
            )
        self.world.expect(
            code is not ErrorCode.INVALID_PRODUCER_EPOCH, f"{self.name}: its epoch was refused"
        )
        for other in self.unacknowledged:
            if other.attempt is not None and (
                other.attempt.done or other.attempt.engine is not self.world.engine
            ):
                other.attempt = None
        self.retry = True

    def acknowledged(self, sent: _Sent, base_offset: int) -> None:
        """The promise, kept for the end."""
        if sent not in self.unacknowledged:
            return  # an earlier attempt was answered first
        if self.idempotent:
            self.world.expect(
                self.unacknowledged[0] is sent or self.acks != 0,
                f"{self.name}: acknowledged out of order",
            )
        self.unacknowledged.remove(sent)
        self.last = (sent, base_offset)
        for i, value in enumerate(sent.values):
            self.world.acknowledge(
                self.tp, base_offset + i, b"" if sent.garbage else value, sent.garbage
            )
