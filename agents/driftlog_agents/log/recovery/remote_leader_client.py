"""Another agent, as a Kafka client sees it: where epochs ended, and appending with acks=all.

    connect ──▶ one request ──▶ its answer ──▶ …        one at a time, each with a deadline

Versions are not negotiated: the other end is an agent too, and answers these versions from the
first release on.  A connection that failed is not used again; the next request opens another.
Its `Leader` errors: `UnavailableError` before a request was sent, `OutcomeUnknownError` after.

Shell.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, TypeVar
from uuid import UUID

from driftlog_agents.log.recovery.leader_client import Answer, EpochEndQuery, NamedPartition
from driftlog_agents.protocol.api import Api
from driftlog_agents.protocol.errors import CorruptFrameError, ErrorCode, RefusedError
from driftlog_agents.protocol.messages import offset_for_leader_epoch, produce
from driftlog_agents.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from driftlog_agents.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from driftlog_metadata.schema.model import Agent
from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_tiering.batches.batch import (
    LOG_APPEND_TIME_FLAG,
    NO_TIMESTAMP,
    fill_header,
    parse_header,
)

PRODUCE_VERSION: Final = 13
"""By topic id: a topic that was made again under the name of the one that is meant gets nothing."""

OFFSET_FOR_LEADER_EPOCH_VERSION: Final = 4

_CONNECT_S: Final = 5.0
_TIMEOUT_MS: Final = 30_000
"""What a leader may take for a commit: a default producer's `request.timeout.ms`."""
_ANSWER_S: Final = _TIMEOUT_MS / 1000 + 5
_MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""A thousand partitions and an error message each come to less than one."""
_CLIENT_ID: Final = "driftlog-agent"
_CONSUMER: Final = -2
"""A replica id: we are no replica, and get what consumers get."""
_SIZE: Final = Struct(">i")

K = TypeVar("K")
Q = TypeVar("Q")
R = TypeVar("R")


class RemoteLeaderClient:
    """A `Leader` at the other end of a connection.

    Args:
        client_id: by which it knows us in its logs.
    """

    def __init__(self, agent: Agent, client_id: str = _CLIENT_ID) -> None:
        self._agent = agent
        self._client_id = client_id
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._correlation_id = 0

    @property
    def node_id(self) -> int:
        return self._agent.node_id

    async def ends(self, asked: Sequence[EpochEndQuery]) -> list[Answer]:
        topics: dict[str, OffsetForLeaderTopic] = {}
        for place, epoch, leader_epoch in asked:
            topic = topics.setdefault(place.topic, OffsetForLeaderTopic(topic=place.topic))
            topic.partitions.append(
                OffsetForLeaderPartition(
                    partition=place.tp.partition,
                    leader_epoch=epoch,
                    current_leader_epoch=leader_epoch,
                )
            )
        request = OffsetForLeaderEpochRequest(replica_id=_CONSUMER, topics=list(topics.values()))
        response = await self._ask(
            offset_for_leader_epoch.API, OFFSET_FOR_LEADER_EPOCH_VERSION, request
        )
        # One partition may have been asked about several epochs: answers are in their order.
        answers: dict[tuple[str, int], list[Answer]] = {}
        for result in response.topics:
            for each in result.partitions:
                answer: Answer
                if each.error_code:
                    answer = _refused(each.error_code, None)
                elif each.end_offset < 0:
                    answer = RefusedError(ErrorCode.UNKNOWN_LEADER_EPOCH, "not over there")
                else:
                    answer = each.end_offset
                answers.setdefault((result.topic, each.partition), []).append(answer)
        places = [((place.topic, place.tp.partition), place) for place, _, _ in asked]
        return self._in_order(places, answers)

    async def append(self, batches: Sequence[tuple[NamedPartition, bytearray]]) -> list[Answer]:
        topics: dict[UUID, TopicProduceData] = {}
        for place, batch in batches:
            topic_id = place.tp.topic_id
            topic = topics.setdefault(topic_id, TopicProduceData(topic_id=topic_id))
            records = memoryview(_without_append_time(batch))
            topic.partition_data.append(
                PartitionProduceData(index=place.tp.partition, records=records)
            )
        request = ProduceRequest(acks=-1, timeout_ms=_TIMEOUT_MS, topic_data=list(topics.values()))
        response = await self._ask(produce.API, PRODUCE_VERSION, request)
        answers: dict[tuple[UUID, int], list[Answer]] = {}
        for result in response.responses:
            for each in result.partition_responses:
                answer: Answer = each.base_offset
                if each.error_code:
                    answer = _refused(each.error_code, each.error_message)
                answers.setdefault((result.topic_id, each.index), []).append(answer)
        asked = [((place.tp.topic_id, place.tp.partition), place) for place, _ in batches]
        return self._in_order(asked, answers)

    def _in_order(
        self, asked: Iterable[tuple[K, NamedPartition]], answers: dict[K, list[Answer]]
    ) -> list[Answer]:
        found: list[Answer] = []
        for key, place in asked:
            its = answers.get(key)
            if not its:
                raise OutcomeUnknownError(f"{self} did not answer for {place}")
            found.append(its.pop(0))
        return found

    async def close(self) -> None:
        if self._streams is not None:
            _, writer = self._streams
            self._streams = None
            writer.transport.abort()

    # ── The connection ──

    def __str__(self) -> str:
        listener = self._agent.listeners[0]
        return f"agent {self._agent.node_id} ({listener.host}:{listener.port})"

    async def _ask(self, api: Api[Q, R], version: int, request: Q) -> R:
        reader, writer = self._streams or await self._connect()
        self._correlation_id += 1
        frame = api.encode_request(version, self._correlation_id, self._client_id, request)
        answered = False
        try:
            async with asyncio.timeout(_ANSWER_S):
                writer.write(frame)
                await writer.drain()
                (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
                if not 0 < size <= _MAX_ANSWER_BYTES:
                    raise CorruptFrameError(f"an answer of {size} bytes")
                correlation_id, response = api.decode_response(
                    version, await reader.readexactly(size)
                )
            if correlation_id != self._correlation_id:
                raise CorruptFrameError(f"an answer to {correlation_id}, which was not asked")
            answered = True
        except (OSError, TimeoutError, asyncio.IncompleteReadError, CorruptFrameError) as error:
            raise OutcomeUnknownError(f"{self} did not answer: {_said(error)}") from error
        finally:
            if not answered:
                await self.close()  # what comes on it now answers nobody
        return response

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        listener = self._agent.listeners[0]
        try:
            async with asyncio.timeout(_CONNECT_S):
                self._streams = await asyncio.open_connection(listener.host, listener.port)
        except (OSError, TimeoutError) as error:
            raise UnavailableError(f"cannot connect to {self}: {_said(error)}") from error
        return self._streams


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _refused(code: int, message: str | None) -> RefusedError:
    with contextlib.suppress(ValueError):
        return RefusedError(ErrorCode(code), message)
    return RefusedError(ErrorCode.UNKNOWN_SERVER_ERROR, f"error code {code}")


def _without_append_time(batch: bytearray) -> bytearray:
    """As a client may send it: whose clock its time is from is for the leader's configs to say.

    The records kept the times that they came with; with LogAppendTime only the batch's maximum
    was written over, and without one the leader computes it.
    """
    header = parse_header(batch)
    if header.attributes & LOG_APPEND_TIME_FLAG:
        fill_header(
            batch,
            base_offset=0,
            last_offset_delta=header.last_offset_delta,
            record_count=header.record_count,
            attributes=header.attributes & ~LOG_APPEND_TIME_FLAG,
            base_timestamp=header.base_timestamp,
            max_timestamp=NO_TIMESTAMP,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )
    return batch
