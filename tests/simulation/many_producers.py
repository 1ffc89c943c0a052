"""More idempotent producers than an agent may remember, when all else is over.

    one that goes on ─────▶ all the time, never refused
    short-lived ones ─────▶ refused while the budget is used up, taken when age has made room
    copies of their batches, within the time that they are remembered ──▶ duplicates
    pipelining ones ───────▶ the first batch is refused, the second arrives when there is room

1. A batch is refused for the budget only where that is used up, or was a moment ago; never one of
   a producer that is remembered.
2. No producer is forgotten before `producer.id.expiration.ms`: a copy has the offset of the first.
3. Every producer is answered in the end.
4. No second batch of a producer passes for its first (`Producer`: there is no gap before it).

In every hundred the seeds 20 to 29.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from driftlog_agents.log.session.producer_budget import ProducerSettings
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_tiering.batches.producers import PRODUCER_BYTES
from tests.simulation.clients import Attempt, Producer
from tests.simulation.final_log import read_topics

if TYPE_CHECKING:
    from tests.simulation.world import World

_EXPIRATION_MS: Final = 20_000.0
_ROOM: Final = 8
"""Producers of one batch for which each agent has room: there are more already."""
_SHORT_LIVED: Final = 40
_PIPELINING: Final = 5
_FIRST_ID: Final = 500_000
"""Of a producer; those of others are lower."""
_COUNTED_MS: Final = 8_000.0
"""A refusal follows within this the moment at which the budget was used up: a count a second, and
five behind the last refusal."""
_DEADLINE_S: Final = 300.0
_PIPELINED_MS: Final = 4_000.0
"""Between a refusal and the next batch, at most: less than `admission_verdict.SETTLED_MS`."""
_SMALL: Final = ProducerSettings(
    expiration_ms=_EXPIRATION_MS, state_bytes=_ROOM * (PRODUCER_BYTES + 16)
)


def has_many_producers(seed: int) -> bool:
    """Whether the seed has them; 26 finds a planted bug, in a schedule that this would change."""
    return seed // 10 % 10 == 2 and seed % 100 != 26


async def let_many_produce(world: "World") -> None:
    """See the module."""
    if has_many_producers(world.seed):
        await ManyProducers(world, Random(f"many producers {world.seed}")).run()


@dataclass(slots=True, eq=False)
class ManyProducers:
    """See the module."""

    world: "World"
    rng: Random
    stop: bool = False
    full_ms: dict[int, float] = field(default_factory=dict)
    """By node: when its budget was used up last."""

    async def run(self) -> None:
        """Let them come and go."""
        for node in self.world.nodes:
            if (engine := node.process.engine) is not None and not node.last_life:
                engine.producers.budget.settings = _SMALL
        topics = [t for t in (await read_topics(self.world)).values() if t.partitions]
        places = [(t.name, n) for t in topics for n in range(t.partitions)]
        watch = asyncio.get_running_loop().create_task(self._watch())
        try:
            async with asyncio.timeout(_DEADLINE_S), asyncio.TaskGroup() as tasks:
                lasting = tasks.create_task(self._last(*self.rng.choice(places)))
                async with asyncio.TaskGroup() as short:
                    for n in range(_SHORT_LIVED):
                        place = self.rng.choice(places)
                        short.create_task(self._live_shortly(*place, _FIRST_ID + n))
                        await asyncio.sleep(self.rng.uniform(0, 0.3))
                    for n in range(_PIPELINING):
                        place = self.rng.choice(places)
                        short.create_task(self._pipeline(*place, _FIRST_ID + _SHORT_LIVED + n))
                self.stop = True
                await lasting
        except TimeoutError as error:
            self.world.expect(False, f"new producers are refused for ever: {error!r}")
        watch.cancel()

    async def _watch(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(0.1)

    def _look(self) -> None:
        for node in self.world.nodes:
            engine = node.process.engine
            if engine is not None:
                used = sum(log.producers.size_bytes for log in engine.logs())
                if used >= engine.producers.budget.settings.state_bytes:
                    self.full_ms[node.number] = self.world.now_ms()

    # ── Producers ──

    async def _last(self, topic: str, partition: int) -> None:
        """One that appends all the time."""
        producer = self._new(topic, partition, _FIRST_ID - 1, known=True)
        while not self.stop:
            producer.total += 1
            await producer.run()
            await asyncio.sleep(self.rng.uniform(0.5, 3))

    async def _live_shortly(self, topic: str, partition: int, producer_id: int) -> None:
        """One that appends a batch or a few, and what the network kept back of it."""
        producer = self._new(topic, partition, producer_id, known=False)
        producer.total = self.rng.randint(1, 6)
        await producer.run()
        self.world.count("short-lived producers")
        await asyncio.sleep(self.rng.uniform(0, 0.8) * _EXPIRATION_MS / 1000)
        await producer.send_again()

    async def _pipeline(self, topic: str, partition: int, producer_id: int) -> None:
        """One whose second batch was on its way before it heard that the first was refused."""
        producer = self._new(topic, partition, producer_id, known=False)
        producer.window, producer.total = 5, 1
        while not producer.promised:
            producer.send_oldest()
            until_ms = self.world.now_ms() + _PIPELINED_MS
            while not producer.promised and self.world.now_ms() < until_ms:
                await asyncio.sleep(self.rng.uniform(0, 0.1))
                if producer.refused is not None and not self._is_full(producer.refused):
                    self.world.count("batches behind a refused one")
                    producer.send_behind(producer.refused)
                    return await producer.run()
        return await producer.run()

    @staticmethod
    def _is_full(refused: Attempt) -> bool:
        """Whether the agent that refused it would do so again."""
        engine = refused.process.engine
        return engine is not None and engine.producers.full

    def _new(self, topic: str, partition: int, producer_id: int, *, known: bool) -> "_Refused":
        producer = _Refused(
            world=self.world,
            name=f"many{producer_id}",
            topic=topic,
            partition=partition,
            acks=-1,
            producer_id=producer_id,
            window=1 if known else self.rng.choice((1, 5)),
            total=0,
            rng=Random(self.rng.random()),
        )
        producer.on_refused = lambda at: self._refused(producer, at)
        self.world.producers.append(producer)
        return producer

    def _refused(self, producer: "_Refused", node: int) -> None:
        self.world.count("new producers refused")
        self._look()  # it may have been used up since the last one
        known = bool(producer.promised)
        self.world.expect(not known, f"{producer.name}, which is remembered, was refused")
        since_ms = self.world.now_ms() - self.full_ms.get(node, -1e12)
        self.world.expect(since_ms < _COUNTED_MS, f"{producer.name} was refused, and there is room")


@dataclass(slots=True, eq=False)
class _Refused(Producer):
    """One that knows of the budget."""

    on_refused: Callable[[int], None] = field(default=lambda _: None)
    refused: Attempt | None = None

    def send_oldest(self) -> None:
        """Send its first batch."""
        self.refused, self.retry = None, False
        self._send_all()

    def send_behind(self, refused: Attempt) -> None:
        """Send the next batch, and only then hear that the first was refused."""
        (first,) = self.unacknowledged
        self.retry, first.attempt = False, refused
        self.total = self.produced + 1
        self._send_all()
        first.attempt = None

    def failed(self, attempt: Attempt, code: ErrorCode) -> None:
        if code is ErrorCode.NOT_ENOUGH_REPLICAS:
            self.refused = attempt
            self.on_refused(attempt.process.node.number)
            code = ErrorCode.REQUEST_TIMED_OUT  # it does what it does then
        Producer.failed(self, attempt, code)
