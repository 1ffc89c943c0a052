"""Consumers that send Fetch and ListOffsets requests to the agents' own handlers.

    consumer ──Fetch──▶ process ──▶ Fetching ──▶ answered at once, at the next commit, or from the
                                                 bucket ──▶ encoded, decoded, checked here

Each answer is encoded by the agent and decoded here in the version of its request.  Promises:

1. A partition without an error is answered by an agent that held its lease by its own clock: when
   it answers, or, where the bucket had to be read, when the request arrived.
2. High watermark and log start are at least what anybody was told before the request was sent, and
   nothing above what is committed is told.
3. Batches are whole, follow each other from the offset that was asked for, and keep to the limits
   of KIP-74.  An answer without records says that the offset is the high watermark.
4. Errors are ones that consumers retry, or are true: OFFSET_OUT_OF_RANGE of an offset that is not
   in the log, an epoch's of an epoch that is not the leader's.  A record that was read is never
   said to have diverged.
5. When the faults are over every partition is read from its log start to its high watermark.

DeleteRecords goes through its handler in `deletions`.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from driftlog_agents.foundation.fair_queue import Client
from driftlog_agents.handlers.api import list_offsets
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.partition.batch import ConnectionActivity
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.reading.read_plan import holds_zstd
from driftlog_agents.network.answers import Answers
from driftlog_agents.network.limits.loop_share import LoopShare
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.fetch import (
    API,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from driftlog_agents.protocol.messages.list_offsets import API as LIST_OFFSETS
from driftlog_agents.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.batches.batch import check_batch
from driftlog_tiering.foundation.types import Buffer
from tests.simulation.agent import SimulatedAgent
from tests.simulation.aimed import is_aimed
from tests.simulation.batches import rows_of
from tests.simulation.clients import roomy
from tests.simulation.oracle import Lookup, random_target

if TYPE_CHECKING:
    from tests.simulation.world import World

_SEEDS: Final = (16, 19, 22, 25, 32, 39, 45, 46)
"""Of fifty: half of them clusters, half of them with deletions of records."""

_PATIENCE_S: Final = 12.0
_FINAL_S: Final = 240.0
_LIMITS: Final = (1, 150, 400, 2_000, 20_000)
_WAITS_MS: Final = (0, 0, 20, 300, 2_000)
_LONG_MS: Final = 8_000
"""Of half of the requests, where sessions end while one waits (`aimed`)."""
_BY_ID: Final = 13
_ZSTD_SINCE: Final = 10
_LAST_EPOCH_SINCE: Final = 12
_BATCH_LENGTH_AT: Final = 8
_BATCH_PREFIX: Final = 12

_RETRIED: Final = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
}
_EPOCH_ERRORS: Final = {ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH}


def has_requests(seed: int) -> bool:
    """Whether a consumer of the seed goes through the handlers."""
    return seed % 50 in _SEEDS


def _share() -> LoopShare:
    loop = asyncio.get_running_loop()
    return LoopShare(loop, loop.time)


@dataclass(slots=True, eq=False)
class _Connection:
    """What handlers see of a connection."""

    world: "World"
    source: ConnectionActivity = field(default_factory=ConnectionActivity)
    listener: str = "PLAINTEXT"
    client_host: str = "simulated"
    closed: bool = False
    on_close: set[Callable[[], None]] = field(default_factory=set)
    answers: Answers = field(default_factory=roomy)
    client: Client = field(default_factory=lambda: Client("simulated"))
    share: LoopShare = field(default_factory=_share)

    def on_loop(self, step: Callable[[], None]) -> None:
        step()

    def close(self) -> None:
        """The handler met a bug."""
        self.world.expect(False, "a Fetch handler closed its connection: fetch_bug")

    def hang_up(self) -> None:
        """The client does not wait any more."""
        self.closed = True
        for hear in list(self.on_close):
            hear()


@dataclass(slots=True, eq=False)
class _Asked:
    """One partition of a request, and what was known when it was sent."""

    tp: TopicPartition
    partition: FetchPartition
    told_end: int
    told_start: int
    was_read: bool
    """`last_fetched_epoch` is that of the record before, as a consumer was shown it."""


@dataclass(slots=True, eq=False)
class _Exchange:
    """A Fetch request and its answer: a slot of its connection, and a `Waiting`."""

    owner: "ConsumerRequests"
    process: SimulatedAgent
    version: int
    request: FetchRequest
    asked: list[_Asked]
    connection: Any
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    in_lease: bool = False
    """The agent held its lease when the request arrived."""
    above: set[TopicPartition] = field(default_factory=set)
    """What was asked for above its log's end when the request arrived."""
    data: list[PartitionData] = field(default_factory=list)
    has_more: bool = False
    """Its answer has records or an error, of any partition."""
    name: str = "a Fetch request"
    reads_bucket: bool = False
    """It is answered when the bucket has answered, whatever becomes of the session."""

    @property
    def is_over(self) -> bool:
        """Answered, or nobody waits any more."""
        return self.ended.is_set() or self.connection.closed

    @property
    def done(self) -> bool:
        """Whether the end of the session is no news to it."""
        return self.is_over or self.reads_bucket

    def arrive(self) -> None:
        """The agent reads it."""
        process = self.process
        if not process.server.accepts:
            self.ended.set()  # its listener is closed
            return
        engine = process.engine
        self.in_lease = _in_lease(process)
        for one in self.asked:
            log = _log_now(process, one.tp)
            if log is not None and one.partition.fetch_offset > log.log_end:
                self.above.add(one.tp)
        slot: Any = self
        process.fetching.handle(slot, self.version, 0, self.request)
        if engine is not None and not self.done and len(self.asked) == 1:
            process.waits(engine, self)

    def keep(self, size_bytes: int) -> None:
        """As a `QueuedRequest`: no limit refuses that it waits."""

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """As a `QueuedRequest`: what is for a connection that is gone is not begun."""
        if not self.connection.closed:
            self.reads_bucket = True
            await work()

    def respond(self, answer: Sequence[Buffer]) -> None:
        if self.process.dead or self.connection.closed:
            return
        self.owner.expect(not self.ended.is_set(), "a Fetch request was answered twice")
        self.ended.set()
        _, response = API.decode_response(self.version, b"".join(answer)[4:])
        self.owner.answered(self, response)


class ConsumerRequests:
    """See the module."""

    def __init__(self, world: "World", rng: Random) -> None:
        self.world = world
        self.rng = rng
        self._positions: dict[TopicPartition, int] = {}
        self._sent: _Exchange | None = None
        waits_long = [_LONG_MS] * len(_WAITS_MS) if is_aimed(world.seed) else []
        self._waits_ms = (*_WAITS_MS, *waits_long)

    @property
    def waits(self) -> bool:
        """Whether a Fetch of one partition waits for more than there is."""
        sent = self._sent
        if sent is None or sent.done or len(sent.asked) > 1:
            return False
        return sent.request.max_wait_ms == _LONG_MS

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.05, 0.8))
            process = self.rng.choice(self.world.nodes).process
            if process.dead:
                continue
            if self.rng.random() < 0.25:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PATIENCE_S):
                        await process.do(self._list_offsets(process))
            else:
                await self._fetch(process)

    def expect(self, holds: bool, message: str) -> None:
        """A promise."""
        self.world.expect(holds, message)

    # ── Fetch ──

    async def _fetch(self, process: SimulatedAgent) -> None:
        """Send one request and wait for its answer, or give it up."""
        logs = self._some_logs(process)
        if not logs:
            return
        version = self.rng.choice(API.served)
        exchange = self._exchange(process, version, [self._ask(log, version) for log in logs])
        patience_s = self.rng.choice((_PATIENCE_S, _PATIENCE_S, _PATIENCE_S, 0.05))
        await self._send(exchange, patience_s)

    def _some_logs(self, process: SimulatedAgent) -> list[PartitionLog]:
        """Mostly what the agent leads; sometimes what others lead."""
        if self.rng.random() < 0.1:
            process = self.rng.choice(self.world.nodes).process
        engine = process.engine
        logs = engine.logs() if engine is not None else []
        count = min(len(logs), self.rng.choice((1, 1, 1, 2, 3)))
        chosen = self.rng.sample(logs, count)
        names = {(log.topic, log.partition): log for log in chosen}
        return list(names.values())

    def _ask(self, log: PartitionLog, version: int) -> _Asked:
        rng, oracle = self.rng, self.world.oracle
        tp = TopicPartition(log.topic_id, log.partition)
        end, start = oracle.high_watermarks.get(tp, 0), oracle.starts.get(tp, 0)
        offset = self._positions.get(tp, start)
        if rng.random() < 0.5:
            offset = rng.randint(log.log_start, max(log.log_start, log.high_watermark))
        if rng.random() < 0.05:
            offset = rng.choice((0, log.log_end + rng.randint(0, 3)))
        partition = FetchPartition(
            partition=log.partition,
            fetch_offset=offset,
            partition_max_bytes=rng.choice(_LIMITS),
        )
        if version >= _BY_ID - 4 and rng.random() < 0.3:
            partition.current_leader_epoch = log.leader_epoch + rng.choice((0, 0, 0, -1, 1))
        before = oracle.shown.get((tp, offset - 1))
        was_read = before is not None and version >= _LAST_EPOCH_SINCE and rng.random() < 0.5
        if was_read and before is not None:
            partition.last_fetched_epoch = before.epoch
        return _Asked(tp, partition, end, start, was_read)

    def _exchange(self, process: SimulatedAgent, version: int, asked: list[_Asked]) -> _Exchange:
        names = {tp.topic_id: name for tp, name in self._names(asked)}
        topics: dict[Any, FetchTopic] = {}
        for one in asked:
            topic_id = one.tp.topic_id
            topic = topics.setdefault(topic_id, FetchTopic(topic=names[topic_id]))
            if version >= _BY_ID:
                topic.topic_id, topic.topic = topic_id, ""
            topic.partitions.append(one.partition)
        request = FetchRequest(
            max_wait_ms=self.rng.choice(self._waits_ms),
            min_bytes=self.rng.choice((0, 1, 1, 500)),
            max_bytes=self.rng.choice(_LIMITS),
            isolation_level=self.rng.choice((0, 1)),
            topics=list(topics.values()),
        )
        in_order = [
            one
            for topic in request.topics
            for partition in topic.partitions
            for one in asked
            if one.partition is partition
        ]
        return _Exchange(self, process, version, request, in_order, _Connection(self.world))

    def _names(self, asked: list[_Asked]) -> list[tuple[TopicPartition, str]]:
        known = {
            log.topic_id: log.topic
            for node in self.world.nodes
            if node.process.engine is not None
            for log in node.process.engine.logs()
        }
        return [(one.tp, known[one.tp.topic_id]) for one in asked]

    async def _send(self, exchange: _Exchange, patience_s: float) -> None:
        process, connection = exchange.process, exchange.connection
        self._sent = exchange
        process.receive(exchange.arrive)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await exchange.ended.wait()
        if not exchange.is_over:
            process.receive(partial(connection.hang_up))

    def answered(self, exchange: _Exchange, response: FetchResponse) -> None:
        """Check an answer in the turn of the event loop in which the agent gave it."""
        self.expect(response.error_code == 0, f"a Fetch request was refused: {response}")
        data = [data for topic in response.responses for data in topic.partitions]
        self.expect(len(data) == len(exchange.asked), "a Fetch answer misses partitions")
        exchange.data = data
        size = 0
        self.world.count("fetches answered")
        exchange.has_more = any(_records(one) or one.error_code for one in data)
        for asked, one in zip(exchange.asked, data, strict=True):
            self._check_partition(exchange, asked, one, size)
            size += len(_records(one))

    def _check_partition(
        self, exchange: _Exchange, asked: _Asked, data: PartitionData, size_before: int
    ) -> None:
        code = ErrorCode(data.error_code)
        offset = asked.partition.fetch_offset
        what = f"{exchange.process.name}, Fetch {exchange.version} of {asked.tp} at {offset}"
        self.expect(data.partition_index == asked.tp.partition, f"{what}: of another partition")
        log = _log_now(exchange.process, asked.tp)
        if exchange.version < _BY_ID and log is None and code is ErrorCode.NONE:
            return  # its name stands for another topic by now
        if code is not ErrorCode.NONE:
            self._check_error(exchange, asked, code, log, what)
            return
        diverged = data.diverging_epoch.epoch >= 0
        self.expect(not diverged or not asked.was_read, f"{what}: a record that was read diverged")
        if diverged:
            return
        self._check_ends(exchange, asked, data, what)
        self._check_records(exchange, asked, data, size_before, what)

    def _check_error(
        self,
        exchange: _Exchange,
        asked: _Asked,
        code: ErrorCode,
        log: PartitionLog | None,
        what: str,
    ) -> None:
        self.world.count("fetches refused")
        offset = asked.partition.fetch_offset
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            inside = log is not None and log.log_start <= offset <= log.high_watermark
            closed = log is None or log.state is State.CLOSED
            # The log may grow up to it while another partition of the request is read.
            grew = len(exchange.asked) > 1 and asked.tp in exchange.above
            self.expect(closed or grew or not inside, f"{what}: {log!r} has this offset")
        elif code in _EPOCH_ERRORS:
            sent = asked.partition.current_leader_epoch
            self.expect(sent >= 0, f"{what}: {code.name}, and no epoch was asked for")
        elif code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE:
            self.expect(exchange.version < _ZSTD_SINCE, f"{what}: {code.name}")
        else:
            self.expect(code in _RETRIED, f"{what}: {code.name}")

    def _check_ends(
        self, exchange: _Exchange, asked: _Asked, data: PartitionData, what: str
    ) -> None:
        end = data.high_watermark
        in_lease = _in_lease(exchange.process)
        if len(exchange.asked) > 1 or _records(data):
            in_lease = in_lease or exchange.in_lease  # the bucket may have been read meanwhile
        self.expect(in_lease, f"{what}: answered after the lease")
        self.expect(end >= asked.told_end, f"{what}: ends at {end}, {asked.told_end} was told")
        self.world.ledger.committed(asked.tp, end, what)
        if end > self.world.oracle.high_watermarks.get(asked.tp, 0):
            self.world.saw_high_watermark(asked.tp, end)
        if exchange.version >= 5:
            start = data.log_start_offset
            self.expect(
                asked.told_start <= start <= end,
                f"{what}: starts at {start}, {asked.told_start} was told, and ends at {end}",
            )

    def _check_records(
        self,
        exchange: _Exchange,
        asked: _Asked,
        data: PartitionData,
        size_before: int,
        what: str,
    ) -> None:
        partition, world = asked.partition, self.world
        batches = _batches(_records(data))
        if not batches:
            # A partition whose objects are slow waits for no other: a later answer has it.
            may_be_empty = exchange.has_more or partition.fetch_offset >= data.high_watermark
            self.expect(may_be_empty, f"{what}: nothing, below {data.high_watermark}")
            return
        size = sum(map(len, batches))
        room = min(partition.partition_max_bytes, exchange.request.max_bytes - size_before)
        first = size_before == 0 and len(batches) == 1
        self.expect(size <= room or first, f"{what}: {size} bytes where {room} were left")
        self.expect(
            exchange.version >= _ZSTD_SINCE or not holds_zstd(batches), f"{what}: zstd is answered"
        )
        self.expect(
            partition.fetch_offset >= asked.told_start,
            f"{what}: is read, and was deleted up to {asked.told_start}",
        )
        end = partition.fetch_offset
        for batch in batches:
            header = check_batch(batch, from_client=False)
            follows = header.base_offset == end or (
                end == partition.fetch_offset and header.base_offset <= end < header.end_offset
            )
            self.expect(follows, f"{what}: a batch at {header.base_offset} where {end} was to come")
            end = header.end_offset
            for at, row in rows_of(bytes(batch)):
                self.expect(at < end, f"{what}: record {at} in a batch that ends at {end}")
                world.show(asked.tp, at, row)
        self._positions[asked.tp] = end

    # ── ListOffsets ──

    async def _list_offsets(self, process: SimulatedAgent) -> None:
        logs = self._some_logs(process)
        engine = process.engine
        if not logs or engine is None or not process.server.accepts:
            return
        log = logs[0]
        timestamp = self.rng.choice(
            (list_offsets.LATEST, list_offsets.EARLIEST, list_offsets.MAX_TIMESTAMP, None)
        )
        if timestamp is None:
            timestamp = random_target(self.rng, self.world.now_ms()) or 0
        await self._look_up(process, engine, log, timestamp)

    async def _look_up(
        self, process: SimulatedAgent, engine: Engine, log: PartitionLog, timestamp: int
    ) -> ListOffsetsPartitionResponse | None:
        """Ask, in the process; returns the answer, None: it says nothing that can be checked."""
        oracle = self.world.oracle
        tp = TopicPartition(log.topic_id, log.partition)
        told_end, told_start = oracle.high_watermarks.get(tp, 0), oracle.starts.get(tp, 0)
        before, start = log.high_watermark, log.log_start
        in_lease = _in_lease(process)
        version = self.rng.choice(range(7, LIST_OFFSETS.served[-1] + 1))
        wanted = ListOffsetsPartition(partition_index=log.partition, timestamp=timestamp)
        response = await list_offsets.handle(
            process.broker,
            ListOffsetsRequest(
                topics=[ListOffsetsTopic(name=log.topic, partitions=[wanted])],
                isolation_level=self.rng.choice((0, 1)),
                timeout_ms=self.rng.choice((300, 30_000)),
            ),
            RequestContext(
                api_version=version, client_id="looks", client_host="simulated", listener=""
            ),
        )
        answer = response.topics[0].partitions[0]
        code = ErrorCode(answer.error_code)
        what = f"{process.name}, ListOffsets of {timestamp} of {log!r}: {answer}"
        if code is not ErrorCode.NONE:
            self.expect(code in _RETRIED, what)
            return None
        if engine.log(log.topic, log.partition) is not log or log.state is State.CLOSED:
            return None  # another leader's, or another topic's of the same name
        self.world.count("offsets listed")
        self.expect(in_lease, f"{what}: answered after the lease")
        match timestamp:
            case list_offsets.LATEST:
                self.expect(answer.offset >= told_end, f"{what}: {told_end} was told")
                self.world.ledger.committed(tp, answer.offset, what)
            case list_offsets.EARLIEST:
                good = told_start <= answer.offset <= log.high_watermark
                self.expect(good, f"{what}: {told_start} was told")
            case _:
                target_ms = None if timestamp == list_offsets.MAX_TIMESTAMP else timestamp
                found = (answer.offset, answer.timestamp, answer.leader_epoch)
                lookup = Lookup(
                    target_ms,
                    found if answer.offset >= 0 else None,
                    (before, log.high_watermark),
                    (start, log.log_start),
                )
                oracle.looked_up(tp, lookup)
        return answer

    # ── When the faults are over ──

    async def read_everything(self) -> None:
        """Read every partition that is led from its start to its end, by these requests alone."""
        for node in self.world.nodes:
            engine = node.process.engine
            for log in engine.logs() if engine is not None and node.process.serving else ():
                try:
                    async with asyncio.timeout(_FINAL_S):
                        await self._read_whole(log)
                except TimeoutError:
                    self.expect(False, f"{log!r} is not read by Fetch requests to its end")

    async def _read_whole(self, log: PartitionLog) -> None:
        tp = TopicPartition(log.topic_id, log.partition)
        self._positions[tp] = log.log_start
        while True:
            led = self.world.leading(log.topic, log.partition)
            if led is None or led.log.topic_id != log.topic_id:
                if self.world.topic_partition(log.topic, log.partition) != tp:
                    return
                await asyncio.sleep(0.1)
                continue
            offset = max(self._positions[tp], led.log.log_start)
            if offset >= led.log.high_watermark:
                return
            asked = self._ask(led.log, _ZSTD_SINCE)
            asked.partition.fetch_offset = offset
            asked.partition.current_leader_epoch = -1
            exchange = self._exchange(led.process, self.rng.choice((_ZSTD_SINCE, 17)), [asked])
            await self._send(exchange, _PATIENCE_S)
            if not exchange.data or exchange.data[0].error_code:
                await asyncio.sleep(0.1)


def _in_lease(process: SimulatedAgent) -> bool:
    """Whether the agent holds its lease, by the time at which it sent its last renewal."""
    engine = process.engine
    if engine is None:
        return False
    return process.lease_until_ms(engine) > process.loop.now_s * 1000


def _log_now(process: SimulatedAgent, tp: TopicPartition) -> PartitionLog | None:
    engine = process.engine
    return None if engine is None else engine.find(tp)


def _records(data: PartitionData) -> bytes:
    records: Any = data.records
    if records is None:
        return b""
    return b"".join(records) if isinstance(records, list) else bytes(records)


def _batches(records: bytes) -> list[Buffer]:
    """Cut what was answered where batches begin; the last one is cut where the answer ends."""
    found: list[Buffer] = []
    while records:
        at = _BATCH_LENGTH_AT
        size = _BATCH_PREFIX + int.from_bytes(records[at : at + 4], "big")
        found.append(records[:size])
        records = records[size:]
    return found
