"""Decodes frames for the handlers, and encodes the responses that they return.

    frame ──▶ header ──▶ Produce: decoded and admitted at once, on the hot path; a large one in its
                  │                turn, decoded by a thread and admitted in slices
                  └────▶ the others: queued as frames, then decoded and run one after the other on
                         their connection, as Kafka does

Unknown keys and versions close the connection; an ApiVersions request of an unknown version
is answered in version 0 (KIP-511).

Shell.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

import structlog

from driftlog_agents.foundation.keyed_lock import KeyedLock
from driftlog_agents.foundation.loop_slices import off_the_loop, time_for_large, work_for
from driftlog_agents.groups.coordinator.budget import ASKING
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import AnswerBytes, RequestContext
from driftlog_agents.handlers.common.request_times import RequestTimes
from driftlog_agents.handlers.fetch.handler import FetchHandler
from driftlog_agents.handlers.produce.conversion_lanes import ConversionLanes
from driftlog_agents.handlers.produce.handler import ProduceHandler
from driftlog_agents.handlers.produce.record_errors import NAMED_BYTES
from driftlog_agents.handlers.produce.traces import ProduceTraces
from driftlog_agents.handlers.table import HANDLERS, OF_MANY, unsupported_version_response
from driftlog_agents.network.client_connection import ClientConnection
from driftlog_agents.network.connection import Connection
from driftlog_agents.network.queued_requests import QueuedRequest
from driftlog_agents.network.slots import LargeSlot
from driftlog_agents.protocol.api import (
    MAX_REQUEST_ELEMENTS,
    ApiKey,
    RequestHeader,
    has_more_elements,
)
from driftlog_agents.protocol.errors import (
    ELEMENTS,
    RESPONSE_BYTES,
    CorruptFrameError,
    ErrorCode,
    OverLimitError,
    RefusedError,
)
from driftlog_agents.protocol.messages import fetch, produce
from driftlog_agents.protocol.requests.one_batch import OneBatch
from driftlog_agents.protocol.requests.registry import API, decode_request_header
from driftlog_metadata.stores.errors import CorruptError, StoreError

T = TypeVar("T")

_REQUEST_BYTES: Final = "driftlog.max.request.bytes"

_MANY_ELEMENTS: Final = 2_000
"""A thread encodes an answer of more elements, which takes some milliseconds."""

_MANY_BYTES: Final = 1024 * 1024
"""The same of more bytes, where its handler counts them."""

_SWEEP_S: Final = 0.1

_SMALL_BYTES: Final = 2 * 1024
"""A larger request runs after the waiting small ones: its handler may run long before its first
slice.  Periodic requests (heartbeats, commits, joins) are smaller."""

_LARGE_BYTES: Final = 64 * 1024
"""A thread decodes a larger frame."""

_DECODED_WEIGHT: Final = 8
"""Memory of a decoded request, in multiples of its frame: a partition of a Fetch takes 16 to 33
bytes in the frame, and some 200 as an object."""

_COPIED_WEIGHT: Final = 1
"""The same for other APIs: their large fields are strings and blobs."""

_QUEUED_BYTES: Final = "queued.max.request.bytes"

_PRODUCE_ELEMENTS: Final = 60_000
"""Elements of a large Produce request, at most: a batch for each of 30,000 topics with one
partition."""

_AT_ONCE_CHARS: Final = 256_000
"""Characters of the topic names that a Produce request admitted at once may have: its answer
repeats them.  A thousand topics."""

_AT_ONCE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of several batches that are admitted at once, at most: their CRCs take some
milliseconds."""

_AT_ONCE_BATCHES: Final = 2_000
"""Topics and batches of a Produce request that is admitted at once, at most: some 7 ms."""

_ONE_BATCH_ELEMENTS: Final = 2
"""Elements of a Produce request of one batch: a topic and a partition."""

_PRODUCED_BYTES: Final = 33
"""Bytes of the answer for each partition that was appended to."""

_REFUSED_BYTES: Final = 400
"""The same for a refused partition, whose answer states the error twice."""


class Dispatcher:
    """Routes the requests of all connections of one agent."""

    def __init__(
        self,
        broker: Broker,
        lanes: ConversionLanes,
        now_ms: Callable[[], float],
        rng: Random,
        traces: ProduceTraces | None = None,
    ) -> None:
        self._broker = broker
        self._now_ms = now_ms
        self._log = structlog.get_logger()
        self._tags = broker.settings.limits.driftlog_max_tagged_fields
        self._tasks: asyncio.TaskGroup | None = None
        self._one_large = KeyedLock[str]()
        """One large Produce of an address is decoded and admitted at a time: it may wait for room
        for its batches."""
        self.times = RequestTimes(now_ms)
        self.producing = ProduceHandler(broker, lanes, self.spawn, self.times, traces)
        self.fetching = FetchHandler(broker, self.spawn, rng, now_ms)
        self._counts: Counter[ApiKey] = Counter()

    def requests(self) -> Mapping[ApiKey, int]:
        """Requests received, by API."""
        return {ApiKey.PRODUCE: self.producing.requests, **self._counts}

    async def run(self) -> None:
        """Run the tasks of requests, and answer Produce requests that time out, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                while True:
                    await asyncio.sleep(_SWEEP_S)
                    self.producing.sweep(self._now_ms())
            finally:
                self._tasks = None

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a part of a request under the task group."""
        if self._tasks is None:
            coroutine.close()
        else:
            self._tasks.create_task(coroutine)

    def dispatch(self, connection: Connection, frame: memoryview) -> None:
        """Take one request frame.

        Raises:
            CorruptFrameError: the connection must be closed.
        """
        one = connection.one_batch.read(frame)
        if one is not None:
            waiting = self.producing.waiting
            if waiting.scarce and waiting.full(connection) and self._has_to_wait(one):
                connection.put_back(frame, waiting)
            else:
                self.producing.handle_one(connection, *one)
            return
        try:
            self._dispatch(connection, frame)
        except OverLimitError as error:
            self._broker.refusals.count(error.limit)
            raise

    def _has_to_wait(self, one: tuple[OneBatch, int, memoryview | None]) -> bool:
        asked, _, records = one
        data = produce.PartitionProduceData(index=asked.partition, records=records)
        return self.producing.may_wait(asked.topic, data)

    def _dispatch(self, connection: Connection, frame: memoryview) -> None:
        if connection.share.used_up:
            connection.put_back(frame)
            return
        header = decode_request_header(frame, self._tags)
        connection.client_id = header.client_id
        key = header.api_key
        version = header.api_version
        if key is ApiKey.PRODUCE:
            connection.produces = True
            if connection.has_to_wait:
                connection.put_back(frame)
                return
            request = self._decode_produce(header, frame)
            if request is None:
                connection.ask_large(frame, partial(self._produce_large, header))
                return
            waiting = self.producing.waiting
            if waiting.full(connection) and self.producing.any_may_wait(version, request):
                connection.put_back(frame, waiting)
                return
            if request.acks != 0:
                connection.one_batch.learn(frame, header, request)
            self.producing.handle(connection, version, header.correlation_id, request)
        elif len(frame) > (most := self._broker.settings.limits.driftlog_max_request_bytes):
            raise OverLimitError(
                _REQUEST_BYTES,
                f"a {key.kafka_name} request of {len(frame)} bytes, and {most} are allowed",
            )
        elif key is ApiKey.FETCH:
            self._counts[key] += 1
            self._ask(connection, header, frame, _DECODED_WEIGHT, self._fetch)
        else:
            self._counts[key] += 1
            self._other(connection, header, frame)

    def _decode_produce(
        self, header: RequestHeader, frame: memoryview
    ) -> produce.ProduceRequest | None:
        """The request, if it can be admitted at once; None: it is large."""
        most = _AT_ONCE_BATCHES if len(frame) <= _AT_ONCE_BYTES else _ONE_BATCH_ELEMENTS
        try:
            request = produce.API.decode_request(
                header.api_version, frame, header.body_offset, most, self._tags
            )
        except OverLimitError as error:
            if error.limit != ELEMENTS:
                raise
            return None
        large = len(frame) > _AT_ONCE_CHARS and _names_chars(request) > _AT_ONCE_CHARS
        return None if large else request

    def _produce_large(self, header: RequestHeader, slot: LargeSlot) -> None:
        if not slot.connection.closed:
            self.spawn(self._admit_large(header, slot))

    async def _admit_large(self, header: RequestHeader, slot: LargeSlot) -> None:
        connection = slot.connection
        work_for(connection.client)
        try:
            async with self._one_large.of(connection.client.address):
                if slot.frame is None:
                    return
                request = await off_the_loop(
                    produce.LARGE_API.decode_request,
                    header.api_version,
                    slot.frame,
                    header.body_offset,
                    _PRODUCE_ELEMENTS,
                    self._tags,
                )
                most = self._check_answer(request)
                # Without room it is decoded again later: one request at a time is held decoded.
                again = partial(self._produce_large, header, slot)
                if not connection.answers.room(most, again):
                    return
                slot.frame = None
                await self.producing.handle_large(
                    slot, header.api_version, header.correlation_id, request
                )
        except CorruptFrameError as error:
            self._undecodable(connection, error)
        except Exception:  # noqa: BLE001  # as in `_handle`
            connection.broken()
        connection.admitted()

    def _check_answer(self, request: produce.ProduceRequest) -> int:
        """Bytes that the answer to a large Produce has, at most.

        Raises:
            OverLimitError: it is over the limit even without errors; nothing is appended.
        """
        if request.acks == 0:
            return 0
        chars = _names_chars(request)
        count = sum(len(topic.partition_data) for topic in request.topic_data)
        least = chars + count * _PRODUCED_BYTES
        most = self._broker.settings.limits.driftlog_max_response_bytes
        if least > most:
            raise OverLimitError(
                RESPONSE_BYTES,
                f"an answer to {count} partitions has {least} bytes, of {most} allowed: produce to "
                f"fewer at once ({RESPONSE_BYTES})",
            )
        return chars + count * _REFUSED_BYTES + NAMED_BYTES

    def _fetch(self, header: RequestHeader, slot: QueuedRequest, frame: memoryview) -> None:
        if len(frame) > _LARGE_BYTES:
            self.spawn(slot.run(partial(self._fetch_large, header, slot, frame)))
            return
        request = fetch.API.decode_request(
            header.api_version, frame, header.body_offset, MAX_REQUEST_ELEMENTS, self._tags
        )
        self.fetching.handle(slot, header.api_version, header.correlation_id, request)

    async def _fetch_large(
        self, header: RequestHeader, slot: QueuedRequest, frame: memoryview
    ) -> None:
        try:
            request = await off_the_loop(
                _for,
                slot.connection,
                fetch.API.decode_request,
                header.api_version,
                frame,
                header.body_offset,
                MAX_REQUEST_ELEMENTS,
                self._tags,
            )
            if not slot.connection.closed:
                self.fetching.handle(slot, header.api_version, header.correlation_id, request)
        except _ClientLeftError:
            pass
        except CorruptFrameError as error:
            self._undecodable(slot.connection, error)
        except Exception:  # noqa: BLE001  # as in `_handle`
            slot.connection.broken()

    def _undecodable(self, connection: ClientConnection, error: CorruptFrameError) -> None:
        if isinstance(error, OverLimitError):
            self._broker.refusals.count(error.limit)
        connection.hang_up("frame_refused", str(error))

    def _other(self, connection: Connection, header: RequestHeader, frame: memoryview) -> None:
        api = API[header.api_key]
        if header.api_version not in api.served:
            assert header.api_key is ApiKey.API_VERSIONS
            answer = api.encode_response(0, header.correlation_id, unsupported_version_response())
            connection.ask(frame, 0, lambda slot, _: slot.respond([answer]))
            return
        weight = _DECODED_WEIGHT if header.api_key in OF_MANY else _COPIED_WEIGHT
        self._ask(connection, header, frame, weight, self._begin)

    def _ask(
        self,
        connection: Connection,
        header: RequestHeader,
        frame: memoryview,
        weight: int,
        begin: Callable[[RequestHeader, QueuedRequest, memoryview], None],
    ) -> None:
        """Queue a request, unless it alone is over the limit of all: it would block the others.

        Raises:
            OverLimitError: it is over that limit; the connection must be closed.
        """
        size, most = len(frame), self._broker.settings.limits.queued_max_request_bytes
        if size * (weight + 1) > most:
            raise OverLimitError(
                _QUEUED_BYTES,
                f"a {header.api_key.kafka_name} of {size} bytes may come to "
                f"{size * (weight + 1)} when it is decoded, of {most} that all requests together "
                f"may hold: ask for less at once",
            )
        timer = self.times.other(header.api_key, connection.source.heard_ms)
        connection.ask(frame, weight, partial(begin, header), timer.answered)

    def _begin(self, header: RequestHeader, slot: QueuedRequest, frame: memoryview) -> None:
        self.spawn(slot.run(partial(self._decoded, header, slot, frame)))

    async def _decoded(self, header: RequestHeader, slot: QueuedRequest, frame: memoryview) -> None:
        limits = self._broker.settings.limits
        most = limits.driftlog_max_request_elements
        if header.api_key in OF_MANY:
            most = MAX_REQUEST_ELEMENTS
        tags = self._tags
        decode, version = API[header.api_key].decode_request, header.api_version
        try:
            if len(frame) > _LARGE_BYTES:
                request = await off_the_loop(
                    _for, slot.connection, decode, version, frame, header.body_offset, most, tags
                )
            else:
                request = decode(version, frame, header.body_offset, most, tags)
            if len(frame) > _SMALL_BYTES:
                await time_for_large()
            del frame
            await self._handle(slot.connection, slot, header, request)
        except _ClientLeftError:
            pass
        except CorruptFrameError as error:
            self._undecodable(slot.connection, error)
        except Exception:  # noqa: BLE001  # as in `_handle`
            slot.connection.broken()

    async def _handle(
        self, connection: ClientConnection, slot: QueuedRequest, header: RequestHeader, request: Any
    ) -> None:
        ASKING.set(connection.client_host)
        connection.answers.read_begins()
        context = RequestContext(
            api_version=header.api_version,
            client_id=header.client_id,
            client_host=connection.client_host,
            listener=connection.listener,
            answer=AnswerBytes(self._broker.settings.limits.driftlog_max_response_bytes),
            room=_AnswerRoom(connection).more,
            on_close=connection.on_close,
        )
        try:
            response = await _alone(HANDLERS[header.api_key](self._broker, request, context))
            if context.answer.counted_bytes:
                await context.room(context.answer.counted_bytes)
            answer = await self._encoded(connection, header, response, context.answer)
        except (RefusedError, StoreError, CorruptFrameError) as error:
            if isinstance(error, OverLimitError):
                self._broker.refusals.count(error.limit)
            connection.hang_up(
                "request_failed", f"{header.api_key.kafka_name}: {str(error) or repr(error)}"
            )
        except CorruptError as error:
            self._log.error(
                "stored_data_damaged",
                api=header.api_key.kafka_name,
                client=connection.client_host,
                error=str(error),
                advice=(
                    "restore the key that the error names; until then requests that need it fail"
                ),
            )
            connection.close()
        except Exception:  # noqa: BLE001  # see below
            # In connection code an error costs one connection, not the agent's partitions.
            self._log.exception(
                "handler_bug", api=header.api_key.kafka_name, client=connection.client_host
            )
            connection.close()
        else:
            if not connection.closed:
                slot.respond([answer])
        finally:
            connection.answers.read_ended()

    async def _encoded(
        self,
        connection: ClientConnection,
        header: RequestHeader,
        response: Any,
        counted: AnswerBytes,
    ) -> bytes:
        """The answer's frame; a thread encodes a large one.

        Raises:
            OverLimitError: it is over the limit of an answer.
        """
        encode = API[header.api_key].encode_response
        most = self._broker.settings.limits.driftlog_max_response_bytes
        arguments = header.api_version, header.correlation_id, response, most
        is_large = counted.counted_bytes > _MANY_BYTES
        if is_large or has_more_elements(response, _MANY_ELEMENTS):
            return await off_the_loop(_for, connection, encode, *arguments)
        return encode(*arguments)


class _ClientLeftError(RefusedError):
    """Nobody waits for the answer any more: the request ends, and nothing is logged."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, "the client has left")


class _AnswerRoom:
    """The memory of one answer while it is made; parts of it may be made at once."""

    __slots__ = ("_claimed_bytes", "_connection", "_one")

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._claimed_bytes = 0
        self._one: asyncio.Lock | None = None

    async def more(self, size_bytes: int) -> None:
        """See `RequestContext.room`."""
        if not size_bytes:
            return
        if self._one is None:  # most answers need none
            self._one = asyncio.Lock()
        async with self._one:
            self._claimed_bytes += size_bytes
            await _room(self._connection, self._claimed_bytes)


async def _room(connection: ClientConnection, size_bytes: int) -> None:
    """Claim *size_bytes* for the answer, once there is room.

    Raises:
        _ClientLeftError: the connection is closed.
    """
    if connection.closed:
        raise _ClientLeftError
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def over() -> None:
        if not turn.done():
            turn.set_result(None)

    if connection.answers.room(size_bytes, over):
        return
    connection.on_close.add(over)
    try:
        await turn
    finally:
        connection.on_close.discard(over)
    if connection.closed:
        raise _ClientLeftError


def _for(connection: ClientConnection, work: Callable[..., T], *args: Any) -> T:
    """What *work* returns.  A thread calls this when the turn has come: the client of *connection*
    may have left while it waited.

    Raises:
        _ClientLeftError: the connection is closed.
    """
    if connection.closed:
        raise _ClientLeftError
    return work(*args)


def _names_chars(request: produce.ProduceRequest) -> int:
    return sum(len(topic.name) for topic in request.topic_data)


async def _alone(work: Awaitable[Any]) -> Any:
    """Await *work*; of a task group's errors raise one, a bug before any other."""
    try:
        return await work
    except ExceptionGroup as group:
        expected, bugs = group.split((RefusedError, StoreError, CorruptFrameError, CorruptError))
        error: BaseException | None = bugs or expected
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        assert error is not None
        raise error from group
