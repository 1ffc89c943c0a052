"""Fetch: returns whole batches from the requested offset, or waits until there are enough.

    try now, from memory and buffer files ──▶ enough, or an error: answer
         │                   │
         │                   └─ some of it is in the bucket: read it in a task, answer
         └─ too little: wait for the high watermarks, at most max_wait, try again

When the high watermark of a partition moves, a waiting request checks that partition only, however
many it waits for.  What is too much for one step is read in slices.  If a partition is named
twice, the last entry counts.  A request that goes on with a session (`session_cache`) looks only at
what is due in it (`session`): nothing is done for idle partitions.

Limits are Kafka's (KIP-74): the first batch of the first partition that has data is returned
whatever its size; after that `max_bytes` and `partition_max_bytes` hold.  A partition that moves to
another agent is an error of that partition, sent at once to waiting requests.

The bucket is the replica, and only the leader serves what is not in it yet.  There are no
followers, so a client's rack (KIP-392) has no effect and ``preferred_read_replica`` stays −1.
Metadata shows the zone of each agent.
Source: kafka.server.KafkaApis#handleFetchRequest, DelayedFetch, ReplicaManager#readFromLog.

Shell.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any, Final

import structlog

from driftlog_agents.configs.limits import FETCH_MAX_BYTES
from driftlog_agents.foundation.fair_queue import Client
from driftlog_agents.foundation.loop_slices import off_the_loop, sliced
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.leader_hints import FETCH_SINCE, FetchHints, add_to_fetch
from driftlog_agents.handlers.fetch.bucket_reads import LEAST_BYTES, BucketReads, most_bytes
from driftlog_agents.handlers.fetch.reads import FetchReads, log_of
from driftlog_agents.handlers.fetch.request import (
    MANY_PARTITIONS,
    has_error,
    is_large,
    named_once,
)
from driftlog_agents.handlers.fetch.session import FetchSession, next_epoch
from driftlog_agents.handlers.fetch.session_cache import NO_SESSION, FetchSessions
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.network.answers import SMALL_BYTES
from driftlog_agents.network.queued_requests import REQUEST_BYTES, QueuedRequest
from driftlog_agents.protocol.api import take_apart
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.fetch import (
    API,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)

_PARTITION_BYTES: Final = 512
"""Memory of a waiting Fetch for each partition: 450 bytes, with its entries in tables."""

_TOPIC_BYTES: Final = 512
"""The same for each topic, with its name."""

_PACE_S: Final = 10.0
"""Shortest time between two log lines about reads that fail."""

_SESSION_ID_BITS: Final = 31


class FetchHandler:
    """Handles Fetch requests for one agent."""

    def __init__(
        self,
        broker: Broker,
        spawn: Callable[[Any], None],
        rng: Random,
        now_ms: Callable[[], float],
    ) -> None:
        self._broker = broker
        self._spawn = spawn
        self._now_ms = now_ms
        limits = broker.settings.limits
        self.sessions = FetchSessions(
            slots=limits.max_incremental_fetch_session_cache_slots,
            most_bytes=limits.driftlog_max_fetch_session_bytes,
            new_id=lambda: rng.getrandbits(_SESSION_ID_BITS),
        )
        self.bucket = BucketReads(broker.reader, spawn)
        self.log = structlog.get_logger()
        self.requests = 0
        self.bytes = 0
        self.cold_reads = 0
        self._unread = 0
        self._say_at_s = 0.0

    def not_read(self, log: PartitionLog, error: str) -> None:
        """Log that the bucket did not return batches of *log*: clients ask again at once, and for
        ever."""
        self._unread += 1
        now_s = asyncio.get_running_loop().time()
        if now_s < self._say_at_s:
            return
        self._say_at_s = now_s + _PACE_S
        self.log.warning(
            "cold_read_failed",
            partition=f"{log.topic}-{log.partition}",
            error=error,
            failures=self._unread,
            advice="clients retry; reads from memory and disk continue. If it goes on, repair the "
            "bucket, or restore the object that the line object_missing names",
        )
        self._unread = 0

    def damaged(self, log: PartitionLog, client_host: str, error: str) -> None:
        """Log that batches of *log* cannot be decoded."""
        self.log.error(
            "log_damaged",
            client=client_host,
            partition=f"{log.topic}-{log.partition}",
            error=error,
            advice="restore the object; consumers get an error for its records until then. "
            "driftlog verify names what is damaged, and what to do",
        )

    def handle(
        self, slot: QueuedRequest, version: int, correlation_id: int, request: FetchRequest
    ) -> None:
        """Answer through *slot*, at once or after a wait."""
        self.requests += 1
        # ReplicaManager#fetchMessages: the smaller of what is requested and what is allowed.
        most = self._broker.settings.fetch_max_bytes
        if request.max_bytes > most:
            request.max_bytes = most
            self._broker.refusals.count(FETCH_MAX_BYTES)
        request.min_bytes = min(request.min_bytes, request.max_bytes)  # KafkaApis
        session, error = self.sessions.go_on(version, request, self._now_ms())
        # Of the fields that may be long, only the partitions are kept.
        request.forgotten_topics_data, request.rack_id, request.cluster_id = [], "", None
        fetch = _Fetch(self, self._broker, slot, version, correlation_id, request, session)
        if error:
            fetch.refuse(error)
        else:
            fetch.begin()

    def begin_session(self, version: int, request: FetchRequest) -> FetchSession | None:
        """A session that begins with the answer to a full fetch, if it asks for one."""
        return self.sessions.begin(version, request, self._now_ms())

    def spawn(self, coroutine: Any) -> None:
        """Run *coroutine* under the server's task group."""
        self._spawn(coroutine)


class _Fetch:
    """One request; also the `Waiter` of its partitions."""

    __slots__ = (
        "_asked_bytes",
        "_broker",
        "_correlation_id",
        "_done",
        "_expired",
        "_moved",
        "_owner",
        "_reads",
        "_ready",
        "_ready_bytes",
        "_request",
        "_session",
        "_slot",
        "_timer",
        "_version",
        "_waits_for",
    )

    def __init__(
        self,
        owner: FetchHandler,
        broker: Broker,
        slot: QueuedRequest,
        version: int,
        correlation_id: int,
        request: FetchRequest,
        session: FetchSession | None,
    ) -> None:
        self._owner = owner
        self._broker = broker
        self._slot = slot
        self._version = version
        self._correlation_id = correlation_id
        self._request = request
        self._session = session
        """The session that it goes on with."""
        self._asked_bytes: int | None = None
        """What `most_bytes` returns, if a thread has counted it."""
        self._timer: asyncio.TimerHandle | None = None
        self._done = False
        self._reads = FetchReads(
            broker, version, request, slot.connection.client_host, owner, owner.bucket
        )
        self._expired = False
        """It is answered at the next check, however few bytes there are."""
        self._waits_for: dict[PartitionLog, FetchPartition] = {}
        self._moved: set[PartitionLog] = set()
        """Partitions whose high watermark moved since the last check."""
        self._ready: dict[PartitionLog, int] = {}
        """Bytes ready in each partition, up to its `partition_max_bytes`."""
        self._ready_bytes = 0

    # ── Deciding ──

    def begin(self) -> None:
        """Answer, or wait."""
        request = self._request
        self._keep_little()
        self._ask_due()
        if is_large(request):
            self._spawn(self._begin_large)
            return
        if self._session is None:
            named_once(request)
        found, size, cold = self._reads.read()
        if cold:
            self._go_cold()
        elif found is None:
            self._spawn(self._begin_large)
        elif self._enough(found, size) or not self._may_wait():
            self._answer(found, size)
        else:
            for log, asked in self._logs():
                self._wait_for(log, asked)
            self._wait()
            if self._ready_bytes >= request.min_bytes:
                self._look_soon()  # whole batches that fit an answer may be less

    def refuse(self, error: ErrorCode) -> None:
        """Answer that there is no such session."""
        self._respond(FetchResponse(error_code=error))

    def _ask_due(self) -> None:
        """A session asks for what is due in it now."""
        if self._session is not None:
            self._request.topics = self._session.due()

    async def _begin_large(self) -> None:
        """As `begin`, in slices.  After an error the connection closes: the slot never stays
        open."""
        try:
            if self._session is None and is_large(self._request):
                await off_the_loop(named_once, self._request)
                self._asked_bytes = await off_the_loop(most_bytes, self._request)
            here = await self._reads.read_slowly(bucket=False)
            if here is None:
                self._go_cold()
                return
            found, size = here
            if self._enough(found, size) or not self._may_wait():
                await self._answer_slowly(found, size)
                return
            await off_the_loop(take_apart, found)
            async for log, asked in sliced(self._logs()):
                if self._done:
                    return  # a high watermark moved, and that was enough
                self._wait_for(log, asked)
            if self._slot.connection.closed:
                self._forget()
            elif not self._done:
                self._wait_for_more()
                self._wait()
                self._look_soon()  # some may have moved since they were read
        except Exception:  # noqa: BLE001  # a bug here costs one connection, not the agent
            self._forget()
            self._slot.connection.broken()

    @property
    def _partitions(self) -> int:
        return sum(len(topic.partitions) for topic in self._request.topics)

    def _enough(self, found: list[FetchableTopicResponse], size: int) -> bool:
        """Whether to answer now.  A request without partitions does not wait: the Java consumer
        sends one as it closes."""
        request, session = self._request, self._session
        return (
            size >= request.min_bytes
            or self._reads.cut
            or request.max_wait_ms <= 0
            or has_error(found, self._partitions if session is None else session.partitions)
            or (session is None and not any(topic.partitions for topic in request.topics))
        )

    def _may_wait(self) -> bool:
        """Claim the memory of a waiting request.  Without room the request is answered with what
        there is, and its client asks again."""
        topics, partitions = len(self._request.topics), self._partitions
        size_bytes = REQUEST_BYTES + topics * _TOPIC_BYTES + partitions * _PARTITION_BYTES
        refused_by = self._slot.keep(size_bytes)
        if refused_by is not None:
            self._broker.refusals.count(refused_by)
        return refused_by is None

    def _logs(self) -> Iterator[tuple[PartitionLog, FetchPartition]]:
        """The requested partitions that this agent leads."""
        engine = self._broker.engine
        if engine is None:
            return
        for topic in self._request.topics:
            entry = self._reads.topic(engine, topic.topic, topic.topic_id)
            for asked in topic.partitions:
                log = log_of(entry, asked.partition)
                if log is not None and log.state is not State.CLOSED:
                    yield log, asked

    def _wait_for(self, log: PartitionLog, asked: FetchPartition) -> None:
        log.waiting_fetches[self] = None
        self._waits_for[log] = asked
        self._count(log, asked)

    def _wait_for_more(self) -> None:
        """Wait for what became due in the session since it was asked."""
        self._ask_due()
        for log, asked in self._logs() if self._session is not None else ():
            if log not in self._waits_for:
                self._wait_for(log, asked)

    def _wait(self) -> None:
        if self._session is not None:
            self._session.waiting = self
        loop, connection = asyncio.get_running_loop(), self._slot.connection
        self._timer = loop.call_later(self._request.max_wait_ms / 1000, self._expire)
        connection.on_close.add(self._forget)

    def committed(self, log: PartitionLog) -> None:
        """A high watermark moved: check once, after the other commits of this turn."""
        if not self._done:
            self._moved.add(log)
            self._look_soon()

    def joined(self, log: PartitionLog, asked: FetchPartition) -> None:
        """A partition that was idle in the session has new records."""
        if not self._done:
            log.waiting_fetches[self] = None
            self._waits_for[log] = asked
            self.committed(log)

    def _look_soon(self) -> None:
        """Check in the request's turn: one commit may concern a thousand waiting requests."""
        self._slot.connection.share.wait(self)

    def _expire(self) -> None:
        self._expired = True
        self._look_soon()

    @property
    def client(self) -> Client:
        """The client that waits."""
        return self._slot.connection.client

    def take_turn(self) -> None:
        """Check now: the request's turn has come."""
        self._slot.connection.on_loop(self._look)

    def synced(self, log: PartitionLog) -> None:
        raise AssertionError("a fetch waits for no sync")

    unsynced = synced

    def lost(self, log: PartitionLog) -> None:
        """This agent no longer leads the partition: answer at once."""
        if not self._done:
            self._expire()

    def _look(self) -> None:
        if self._done:
            return
        if self._expired:
            self._out_of_time()
            return
        moved, self._moved = self._moved, set()
        for log in moved:
            self._count(log, self._waits_for[log])
        if self._ready_bytes >= self._request.min_bytes:
            self._out_of_time()

    def _count(self, log: PartitionLog, asked: FetchPartition) -> None:
        """Count the bytes from the batch of the requested offset to the high watermark, up to the
        partition's limit (`DelayedFetch#tryComplete`)."""
        size = 0
        if asked.fetch_offset < log.high_watermark:
            size = min(log.bytes_from(asked.fetch_offset), asked.partition_max_bytes)
        self._ready_bytes += size - self._ready.get(log, 0)
        self._ready[log] = size

    def _out_of_time(self) -> None:
        """Answer with what there is."""
        self._forget()
        if self._slot.connection.closed:
            return
        self._keep_little()
        self._ask_due()
        if not is_large(self._request):
            found, size, cold = self._reads.read()
            if cold:
                self._go_cold()
                return
            if found is not None:
                self._answer(found, size)
                return
        if self._slot.connection.answers.room(self._most_bytes(), self._out_of_time):
            self._spawn(self._read_cold)

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._owner.spawn(self._slot.run(work))

    def _forget(self) -> None:
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
        for log in self._waits_for:
            log.waiting_fetches.pop(self, None)
        if self._session is not None and self._session.waiting is self:
            self._session.waiting = None
        self._slot.connection.on_close.discard(self._forget)
        self._slot.connection.share.leave(self)

    # ── Reading what is in the bucket ──

    def _go_cold(self) -> None:
        self._done = True
        if self._slot.connection.closed:
            return
        self._keep_little()
        if not self._slot.connection.answers.room(self._most_bytes(), self._go_cold):
            return
        self._owner.cold_reads += 1
        self._spawn(self._read_cold)

    async def _read_cold(self) -> None:
        """Read in slices, with the bucket, and answer.  After an error the connection closes."""
        answers = self._slot.connection.answers
        answers.read_begins()
        try:
            found = await self._reads.read_slowly(bucket=True)
            assert found is not None
            await self._answer_slowly(*found)
        except Exception:  # a bug here costs one connection, not the agent
            self._owner.log.exception("fetch_bug", client=self._slot.connection.client_host)
            self._slot.connection.close()
        finally:
            answers.read_ended()

    def _keep_little(self) -> None:
        """Lower `max_bytes` while answers that clients do not read hold much memory."""
        request = self._request
        request.max_bytes = min(request.max_bytes, self._slot.connection.answers.most_bytes)

    def _most_bytes(self) -> int:
        """Bytes read from the bucket, at most.  Room for data from memory and disk is claimed when
        its size is known."""
        asked = self._asked_bytes
        if asked is None:
            asked = most_bytes(self._request)
        return min(asked, max(LEAST_BYTES, self._request.max_bytes))

    # ── Answering ──

    def _answer(self, responses: list[FetchableTopicResponse], size: int) -> None:
        self._done = True
        if size > SMALL_BYTES and not self._slot.connection.answers.room(size, self._out_of_time):
            return  # everything is read again when there is room for it
        self._owner.bytes += size
        self._respond(self._response(responses))

    async def _answer_slowly(self, responses: list[FetchableTopicResponse], size: int) -> None:
        """As `_answer`; an answer of many partitions is encoded by a thread, which then takes it
        and its request apart."""
        self._done = True
        connection = self._slot.connection
        if sum(len(topic.partitions) for topic in responses) <= MANY_PARTITIONS:
            if not connection.closed:
                self._answer(responses, size)
            return
        if connection.closed:
            await off_the_loop(take_apart, self._request.topics)
        elif size <= SMALL_BYTES or connection.answers.room(size, self._out_of_time):
            self._owner.bytes += size
            response = self._response(responses)
            await self._add_leaders(response)
            answer = await off_the_loop(
                API.encode_response_parts, self._version, self._correlation_id, response
            )
            if not connection.closed:
                self._slot.respond(answer)
            await off_the_loop(take_apart, self._request.topics)
        await off_the_loop(take_apart, responses)

    async def _add_leaders(self, response: FetchResponse) -> None:
        """As `add_to_fetch`, in slices."""
        if self._version < FETCH_SINCE:
            return
        hints = FetchHints(self._broker, self._slot.connection.listener)
        async for topic in sliced(response.responses):
            async for data in sliced(topic.partitions):
                hints.add(topic.topic_id, data)
        response.node_endpoints = hints.endpoints()

    def _response(self, responses: list[FetchableTopicResponse]) -> FetchResponse:
        """The answer: in a session, what it must be told."""
        request, session = self._request, self._session
        if session is None:
            session = self._owner.begin_session(self._version, request)
            if session is None:
                return FetchResponse(session_id=NO_SESSION, responses=responses)
        elif session.closed:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        elif session.epoch != next_epoch(request.session_epoch):
            error = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            return FetchResponse(error_code=error, session_id=session.session_id)
        told = session.told((topic, self._logs_of(topic)) for topic in responses)
        return FetchResponse(session_id=session.session_id, responses=told)

    def _logs_of(self, answer: FetchableTopicResponse) -> list[PartitionLog | None]:
        engine = self._broker.engine
        if engine is None:
            return [None] * len(answer.partitions)
        entry = self._reads.topic(engine, answer.topic, answer.topic_id)
        return [log_of(entry, data.partition_index) for data in answer.partitions]

    def _respond(self, response: FetchResponse) -> None:
        connection = self._slot.connection
        if not connection.closed:
            add_to_fetch(self._broker, self._version, response, connection.listener)
            self._slot.respond(
                API.encode_response_parts(self._version, self._correlation_id, response)
            )
