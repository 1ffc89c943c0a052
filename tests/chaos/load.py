"""Producers and consumers of confluent-kafka and aiokafka that go on whatever happens.

Settings are the clients' defaults, but for what a promise asks for (acks, idempotence, requests
in flight) and for how often a consumer looks: what a default client shows its user is counted.
confluent-kafka's have a thread of their own, aiokafka's another one.
Shell.
"""

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiokafka
import confluent_kafka
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from tests.chaos.oracle import Oracle, Promise
from tests.chaos.records import Origin, TopicPartition, make_value

CONFLUENT_LOG: Final = "confluent-kafka"
"""The logger of its producers."""

_DEBUGGED: Final[dict[Promise, dict[str, Any]]] = {
    Promise.IDEMPOTENT: {"debug": "eos"},
    Promise.ALL_IN_ORDER: {"debug": "topic"},
}
"""What an idempotent producer does about errors is a story of its own; so is, of one that stopped
to send for a partition for good once, whom it took for the leader."""

_TICK_S: Final = 0.02
_OPEN: Final = 2_000
"""Records that one producer has open at most: then it waits, as applications do."""

_AGAIN_S: Final = 25.0
"""How long a consumer reads on before another one starts somewhere further back."""

_BACK: Final = 3_000
"""How far back, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A producer: its name, what it asks for, and its client's settings."""

    name: str
    promise: Promise
    settings: dict[str, Any]


CONFLUENT: Final = (
    Plan(
        name="confluent-idempotent-1",
        promise=Promise.IDEMPOTENT,
        settings={"enable.idempotence": True},
    ),
    Plan(
        name="confluent-idempotent-2",
        promise=Promise.IDEMPOTENT,
        settings={"enable.idempotence": True, "compression.type": "zstd", "linger.ms": 50},
    ),
    Plan(name="confluent-all", promise=Promise.ALL, settings={"acks": "all"}),
    Plan(
        name="confluent-all-in-order",
        promise=Promise.ALL_IN_ORDER,
        settings={"acks": "all", "max.in.flight": 1, "compression.type": "lz4"},
    ),
    Plan(name="confluent-one", promise=Promise.ONE, settings={"acks": 1}),
)

AIOKAFKA: Final = (
    Plan(
        name="aiokafka-idempotent",
        promise=Promise.IDEMPOTENT,
        settings={"enable_idempotence": True},
    ),
    Plan(name="aiokafka-all", promise=Promise.ALL, settings={"acks": "all"}),
    Plan(name="aiokafka-one", promise=Promise.ONE, settings={"acks": 1}),
)


class Load:
    """Starts them, stops them, flushes them.

    Args:
        bootstrap: of all agents.
        oracle: is told everything.
        now: the run's clock.
        rate: records a second of each producer.
        seed: of values and partitions.
        note: is told, in a line, what is odd.
    """

    def __init__(
        self,
        bootstrap: str,
        oracle: Oracle,
        *,
        now: Callable[[], float],
        rate: float,
        seed: int,
        note: Callable[[str], None],
    ) -> None:
        self._oracle = oracle
        self._now = now
        self._note = note
        self._producing, self._consuming = threading.Event(), threading.Event()
        self._producing.set()
        self._consuming.set()
        dice = random.Random(seed)
        for plan in (*CONFLUENT, *AIOKAFKA):
            oracle.producer(plan.name, plan.promise)
        self._confluent = [
            _ConfluentProducer(bootstrap, plan, oracle, now, random.Random(dice.random()), rate)
            for plan in CONFLUENT
        ]
        self._aiokafka = _Aiokafka(bootstrap, oracle, now, dice.random(), rate, self)
        self._threads = [
            threading.Thread(target=self._confluent_produce, daemon=True),
            threading.Thread(
                target=self._confluent_consume,
                args=(bootstrap, random.Random(dice.random())),
                daemon=True,
            ),
            threading.Thread(target=self._aiokafka.run, daemon=True),
        ]

    @property
    def producing(self) -> bool:
        return self._producing.is_set()

    @property
    def consuming(self) -> bool:
        return self._consuming.is_set()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, flush_s: float) -> None:
        """Nothing new; what is open has *flush_s* seconds; then consumers end too."""
        self._producing.clear()
        deadline = time.monotonic() + flush_s
        while self._oracle.open_records and time.monotonic() < deadline:
            time.sleep(_TICK_S)
        self._consuming.clear()
        for thread in self._threads:
            thread.join(30)
            if thread.is_alive():
                self._note(f"a client's thread did not end: {thread.name}")

    def _confluent_produce(self) -> None:
        while self.producing:
            for producer in self._confluent:
                producer.produce_what_is_due()
            time.sleep(_TICK_S)
        while self.consuming:
            for producer in self._confluent:
                producer.poll()
            time.sleep(_TICK_S)

    def _confluent_consume(self, bootstrap: str, dice: random.Random) -> None:
        started = 0
        while self.consuming:
            started += 1
            name = f"confluent-consumer-{started}"
            self._confluent_read(bootstrap, name, _first_offsets(self._oracle, started, dice))

    def _confluent_read(
        self, bootstrap: str, name: str, offsets: dict[TopicPartition, int]
    ) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": name,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 2,
            }
        )
        for at, offset in offsets.items():
            self._oracle.starts(name, at, offset)
        consumer.assign(
            [confluent_kafka.TopicPartition(at.topic, at.partition, o) for at, o in offsets.items()]
        )
        until = time.monotonic() + _AGAIN_S
        while self.consuming and time.monotonic() < until:
            for message in consumer.consume(500, 0.2):
                error = message.error()
                if error is None:
                    self._oracle.shown(name, *_place(message), message.value())
                elif error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET:
                    self._oracle.refused(name, _place(message)[0], str(error))
        consumer.close()


class _ConfluentProducer:
    def __init__(
        self,
        bootstrap: str,
        plan: Plan,
        oracle: Oracle,
        now: Callable[[], float],
        dice: random.Random,
        rate: float,
    ) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": plan.name,
                **_DEBUGGED.get(plan.promise, {"log_level": 2}),
                **plan.settings,
            },
            logger=logging.getLogger(CONFLUENT_LOG),
        )
        self._name = plan.name
        self._oracle = oracle
        self._now = now
        self._dice = dice
        self._rate = rate
        self._due_s = now()

    def produce_what_is_due(self) -> None:
        now_s = self._now()
        while self._due_s < now_s:
            self._due_s += 1 / self._rate
            if len(self._producer) < _OPEN:
                self._produce(self._dice.choice(self._oracle.partitions))
        self.poll()

    def poll(self) -> None:
        self._producer.poll(0)

    def _produce(self, at: TopicPartition) -> None:
        origin = self._oracle.sent(at, self._name, self._now())
        value = make_value(origin, self._dice)

        def delivered(error: confluent_kafka.KafkaError | None, message: Any) -> None:
            if error is None:
                self._oracle.acknowledged(at, origin, message.offset(), self._now())
            else:
                self._oracle.failed(at, origin, f"confluent-kafka: {error.name()}")

        self._producer.produce(at.topic, value, partition=at.partition, on_delivery=delivered)


class _Aiokafka:
    """All of aiokafka's clients, on one loop."""

    def __init__(
        self,
        bootstrap: str,
        oracle: Oracle,
        now: Callable[[], float],
        seed: float,
        rate: float,
        load: Load,
    ) -> None:
        self._bootstrap = bootstrap
        self._oracle = oracle
        self._now = now
        self._dice = random.Random(seed)
        self._rate = rate
        self._load = load

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._consume())
            for plan in AIOKAFKA:
                tasks.create_task(self._produce(plan))

    async def _produce(self, plan: Plan) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self._bootstrap, client_id=plan.name, **plan.settings
        )
        await producer.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                # One for each: a partition that takes nothing holds up nobody else.
                for at in self._oracle.partitions:
                    tasks.create_task(self._produce_to(producer, plan, at))
            while self._load.consuming:  # noqa: ASYNC110  # another thread says so
                await asyncio.sleep(_TICK_S)
        finally:
            with contextlib.suppress(KafkaError, TimeoutError):
                await asyncio.wait_for(producer.stop(), 10)

    async def _produce_to(self, producer: Any, plan: Plan, at: TopicPartition) -> None:
        pause_s = len(self._oracle.partitions) / self._rate
        open_: set[asyncio.Future[Any]] = set()
        await asyncio.sleep(self._dice.uniform(0, pause_s))
        while self._load.producing:
            if len(open_) < _OPEN // len(self._oracle.partitions):
                origin = self._oracle.sent(at, plan.name, self._now())
                value = make_value(origin, self._dice)
                try:
                    sent = await producer.send(at.topic, value, partition=at.partition)
                except KafkaError as error:
                    self._failed(at, origin, error)
                else:
                    open_.add(sent)
                    sent.add_done_callback(open_.discard)
                    sent.add_done_callback(self._answered(at, origin))
            await asyncio.sleep(pause_s)

    def _answered(self, at: TopicPartition, origin: Origin) -> Callable[[Any], None]:
        def done(sent: asyncio.Future[Any]) -> None:
            if sent.cancelled():
                return  # it stays open, and the oracle says so
            error = sent.exception()
            if error is None:
                self._oracle.acknowledged(at, origin, sent.result().offset, self._now())
            else:
                self._failed(at, origin, error)

        return done

    def _failed(self, at: TopicPartition, origin: Origin, error: BaseException) -> None:
        self._oracle.failed(at, origin, f"aiokafka: {type(error).__name__}")

    async def _consume(self) -> None:
        started = 0
        while self._load.consuming:
            started += 1
            name = f"aiokafka-consumer-{started}"
            try:
                await self._read(name, _first_offsets(self._oracle, started, self._dice))
            except KafkaError:
                await asyncio.sleep(0.5)  # it found nobody to start with

    async def _read(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            client_id=name,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
        )
        try:
            await consumer.start()
            assigned = {aiokafka.TopicPartition(at.topic, at.partition): at for at in offsets}
            consumer.assign(list(assigned))
            for theirs, at in assigned.items():
                self._oracle.starts(name, at, offsets[at])
                consumer.seek(theirs, offsets[at])
            until = time.monotonic() + _AGAIN_S
            while self._load.consuming and time.monotonic() < until:
                try:
                    batches = await consumer.getmany(timeout_ms=200)
                except OffsetOutOfRangeError as error:
                    for theirs in error.args[0]:
                        self._oracle.refused(name, assigned[theirs], repr(error))
                    return
                for theirs, messages in batches.items():
                    for message in messages:
                        self._oracle.shown(name, assigned[theirs], message.offset, message.value)
        finally:
            with contextlib.suppress(KafkaError, TimeoutError):
                await asyncio.wait_for(consumer.stop(), 10)


def _place(message: confluent_kafka.Message) -> tuple[TopicPartition, int]:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return TopicPartition(topic, partition), offset


def _first_offsets(oracle: Oracle, started: int, dice: random.Random) -> dict[TopicPartition, int]:
    """The beginning, or, for those who start later, somewhere before the newest that was shown."""
    if started == 1:
        return dict.fromkeys(oracle.partitions, 0)
    return {at: max(0, end - dice.randrange(_BACK)) for at, end in oracle.shown_ends().items()}


def read_whole(
    bootstrap: str, partitions: Sequence[TopicPartition], deadline_s: float
) -> tuple[dict[TopicPartition, list[tuple[int, bytes | None]]], str]:
    """Every partition from its beginning to its end, by a consumer that nobody has used yet.

    Also, in words, of which it did not reach the end in time; empty if that is none.
    """
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "final",
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 2,
        }
    )
    consumer.assign(
        [confluent_kafka.TopicPartition(at.topic, at.partition, 0) for at in partitions]
    )
    logs: dict[TopicPartition, list[tuple[int, bytes | None]]] = {at: [] for at in partitions}
    open_ = set(partitions)
    deadline = time.monotonic() + deadline_s
    said = ""
    try:
        while open_ and time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.5):
                error = message.error()
                if error is None:
                    at, offset = _place(message)
                    logs[at].append((offset, message.value()))
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    open_.discard(_place(message)[0])
                else:
                    said = str(error)
    finally:
        consumer.close()
    missing = ", ".join(f"{at} from {len(logs[at])} on" for at in sorted(open_, key=str))
    return logs, f"{missing} {said}".strip()
