"""Reads the partitions of one Fetch: from memory and disk at once, from the bucket in slices.

    each partition ──▶ led here, and its epoch and offset fit? ──no──▶ Kafka's error
                            └─yes─▶ its batches, as far as the answer has room

The first partition that has records gets one batch at least, however large; the others get what
fits.  If the bucket alone has the first records, several partitions are read from it together
(`bucket_reads`).  An answer also ends where it has the most batches, and a partition's records
end where one step has read the most from memory and disk (`Allowance`): it is `cut`, and sent at
once.
Source: kafka.server.ReplicaManager#readFromLog, Partition#checkCurrentLeaderEpoch.

Shell.
"""

from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.cluster_metadata import not_led
from driftlog_agents.handlers.fetch.bucket_reads import (
    LEAST_BYTES,
    MOST_BYTES,
    BucketRead,
    BucketReads,
)
from driftlog_agents.handlers.fetch.request import UNKNOWN_PARTITION
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.partition.local_plan import Allowance
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.partition.topic_logs import TopicLogs
from driftlog_agents.log.reading.read_plan import holds_zstd
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from driftlog_metadata.stores.errors import CorruptError, OutcomeUnknownError, UnavailableError
from driftlog_tiering.foundation.types import Buffer

_ZSTD_FROM_VERSION: Final = 10
_TOPIC_IDS_FROM_VERSION: Final = 13
_READ_COMMITTED: Final = 1
_ISOLATION_LEVELS: Final = (0, _READ_COMMITTED)
_SMALL_BYTES: Final = 1024
"""Batches of a smaller average size are joined once: each buffer of an answer is handled five times
until it is written."""


class ReadFailures(Protocol):
    """Logs reads that fail."""

    def not_read(self, log: PartitionLog, error: str) -> None:
        """The bucket did not return batches of *log*."""
        ...

    def damaged(self, log: PartitionLog, client_host: str, error: str) -> None:
        """Batches of *log* cannot be decoded."""
        ...


class FetchReads:
    """The reads of one Fetch request."""

    __slots__ = (
        "_allowance",
        "_broker",
        "_bucket",
        "_client_host",
        "_failures",
        "_request",
        "_version",
    )

    def __init__(
        self,
        broker: Broker,
        version: int,
        request: FetchRequest,
        client_host: str,
        failures: ReadFailures,
        bucket: BucketReads,
    ) -> None:
        self._broker = broker
        self._bucket = bucket
        self._version = version
        self._request = request
        self._client_host = client_host
        self._failures = failures
        self._allowance = Allowance()

    @property
    def cut(self) -> bool:
        """Whether the last read ended before what else it might have read."""
        return self._allowance.cut

    def read(self) -> tuple[list[FetchableTopicResponse] | None, int, bool]:
        """(answers, bytes, cold); cold: the first records are only in the bucket.  Answers are None
        then, and where `read_slowly` must read: one step has no time for all partitions."""
        engine = self._broker.engine
        allowance = self._allowance = Allowance()
        responses: list[FetchableTopicResponse] = []
        size = 0
        for topic in self._request.topics:
            entry = None if engine is None else self.topic(engine, topic.topic, topic.topic_id)
            partitions: list[PartitionData] = []
            for asked in topic.partitions:
                data, log = self._check(engine, entry, topic.topic, topic.topic_id, asked)
                partitions.append(data)
                if log is None or asked.fetch_offset >= log.high_watermark:
                    continue
                room = self._request.max_bytes - size
                if size and room <= 0:
                    continue
                limit, offset = min(asked.partition_max_bytes, room), asked.fetch_offset
                buffers = self._broker.reader.read_local(log, offset, limit, allowance)
                if buffers is None:
                    if size == 0:
                        return None, 0, True
                    continue  # the next request reads it first
                if not buffers and allowance.batches:
                    return None, 0, False
                size += self._put(data, buffers, limit, first=size == 0)
            responses.append(
                FetchableTopicResponse(
                    topic=topic.topic, topic_id=topic.topic_id, partitions=partitions
                )
            )
        return responses, size, False

    def _put(self, data: PartitionData, buffers: list[Buffer], limit: int, *, first: bool) -> int:
        size = sum(map(len, buffers))
        if size > limit and not first:
            return 0  # a batch larger than the room that is left is only for the first partition
        if self._version < _ZSTD_FROM_VERSION and holds_zstd(buffers):
            data.error_code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
            return 0
        small = size < len(buffers) * _SMALL_BYTES
        data.records = [b"".join(buffers)] if small else buffers
        return size

    def topic(self, engine: Engine, name: str, topic_id: UUID) -> TopicLogs | None:
        """The logs of a topic, by name or by id, as the version has it."""
        if self._version >= _TOPIC_IDS_FROM_VERSION:
            return engine.topics_by_id.get(topic_id)
        return engine.topics.get(name)

    def _not_led(self, name: str, topic_id: UUID, partition: int) -> ErrorCode:
        topics = self._broker.topics
        if self._version < _TOPIC_IDS_FROM_VERSION:
            return not_led(self._broker, topics.by_name.get(name), partition)
        topic = topics.by_id.get(topic_id)
        if topic is None and topics.known:
            return ErrorCode.UNKNOWN_TOPIC_ID
        return not_led(self._broker, topic, partition)

    def _check(
        self,
        engine: Engine | None,
        entry: TopicLogs | None,
        topic: str,
        topic_id: UUID,
        asked: FetchPartition,
    ) -> tuple[PartitionData, PartitionLog | None]:
        """The partition's answer without records, and its log if it can be read.

        Kafka names aborted transactions where the partition is not there (none), and where it is
        read as committed; they are null with any other error.
        """
        data = PartitionData(
            partition_index=asked.partition,
            high_watermark=-1,
            last_stable_offset=-1,
            log_start_offset=-1,
            aborted_transactions=None,
            records=[],
        )
        if engine is None or not engine.ready.is_set():
            data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return data, None
        log = log_of(entry, asked.partition)
        if log is None:
            data.error_code = self._not_led(topic, topic_id, asked.partition)
            if data.error_code in UNKNOWN_PARTITION:
                data.aborted_transactions = []
            return data, None
        if log.state is State.CLOSED or not engine.session.alive:
            data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return data, None
        if log.state is State.OFFLINE:
            # The log's end is not known: no offset is out of range, and none is the end.
            data.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            return data, None
        if self._request.isolation_level not in _ISOLATION_LEVELS:
            data.error_code = ErrorCode.INVALID_REQUEST
            return data, None
        if not self._check_epochs(data, log, asked):
            return data, None
        if not log.log_start <= asked.fetch_offset <= max(log.log_end, log.high_watermark):
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return data, None
        data.high_watermark = log.high_watermark
        data.last_stable_offset = log.high_watermark
        data.log_start_offset = log.log_start
        if self._request.isolation_level == _READ_COMMITTED:
            data.aborted_transactions = []
        return data, log

    def _check_epochs(self, data: PartitionData, log: PartitionLog, asked: FetchPartition) -> bool:
        """`Partition#checkCurrentLeaderEpoch`, and truncation found by the last fetched epoch.  Any
        negative epoch is none (`FetchRequest#optionalEpoch`)."""
        current = asked.current_leader_epoch
        if current >= 0 and current != log.leader_epoch:
            data.error_code = (
                ErrorCode.FENCED_LEADER_EPOCH
                if current < log.leader_epoch
                else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
            return False
        last = asked.last_fetched_epoch
        # While the log is loaded only the epochs of its tail are known.
        known = log.state is State.ONLINE or (log.epochs and last >= log.epochs[0][0])
        if last >= 0 and known:
            epoch, end = log.end_offset_for_epoch(last)
            if epoch < 0 or end < 0 or asked.fetch_offset < log.log_start:
                data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
                return False
            if epoch < last or end < asked.fetch_offset:
                data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
                data.high_watermark = log.high_watermark
                data.last_stable_offset = log.high_watermark
                data.log_start_offset = log.log_start
                return False
        return True

    async def read_slowly(self, *, bucket: bool) -> tuple[list[FetchableTopicResponse], int] | None:
        """As `read`, in slices.  None: the first records are only in the bucket, and *bucket* is
        false."""
        self._allowance = Allowance()
        responses: list[FetchableTopicResponse] = []
        planned: list[_Planned] = []
        plan = _Room(self._request.max_bytes)
        async for topic in sliced(self._request.topics):
            partitions: list[PartitionData] = []
            async for asked in sliced(topic.partitions):
                data, log = self._plan(planned, plan, topic, asked)
                if log is not None and not bucket and not planned:
                    return None
                if log is not None and bucket:
                    self._plan_cold(planned, plan, data, log, asked)
                partitions.append(data)
            responses.append(
                FetchableTopicResponse(
                    topic=topic.topic, topic_id=topic.topic_id, partitions=partitions
                )
            )
        await self._read_bucket(planned)
        size = 0
        async for one in sliced(planned):
            if one.error is not None:
                self._failed(one, one.error)
            elif one.buffers:
                limit = min(one.limit, self._request.max_bytes - size)
                buffers = _fitting(one.buffers, limit) if size else one.buffers
                size += self._put(one.data, buffers, limit, first=size == 0)
        return responses, size

    def _plan(
        self, planned: list["_Planned"], plan: "_Room", topic: FetchTopic, asked: FetchPartition
    ) -> tuple[PartitionData, PartitionLog | None]:
        """The partition's answer without records; its log, if only the bucket has its records."""
        engine = self._broker.engine
        entry = None if engine is None else self.topic(engine, topic.topic, topic.topic_id)
        data, log = self._check(engine, entry, topic.topic, topic.topic_id, asked)
        if log is None or asked.fetch_offset >= log.high_watermark or plan.is_full:
            return data, None
        limit, offset = plan.limit(asked), asked.fetch_offset
        self._allowance.next_step()
        try:
            buffers = self._broker.reader.read_local(log, offset, limit, self._allowance)
        except UnavailableError as error:
            planned.append(_Planned(data, log, limit, error=error))
            return data, None
        if buffers is None:
            return data, log
        if buffers:
            planned.append(_Planned(data, log, limit, buffers))
            plan.take(sum(map(len, buffers)))
        return data, None

    def _plan_cold(
        self,
        planned: list["_Planned"],
        plan: "_Room",
        data: PartitionData,
        log: PartitionLog,
        asked: FetchPartition,
    ) -> None:
        """Read the partition from the bucket, if there is room for it."""
        limit = plan.limit(asked)
        if not plan.take_cold(limit):
            return  # a later request reads it
        limits = self._broker.topics.limits.get(log.topic)
        codec = None if limits is None else limits.codec
        zstd = self._version >= _ZSTD_FROM_VERSION
        read = BucketRead(log, asked.fetch_offset, limit, zstd, codec)
        planned.append(_Planned(data, log, limit, read=read))

    async def _read_bucket(self, planned: list["_Planned"]) -> None:
        cold = [one for one in planned if one.read is not None]
        if not cold:
            return
        outcomes = await self._bucket.read([one.read for one in cold if one.read is not None])
        for one, outcome in zip(cold, outcomes, strict=True):
            if isinstance(outcome, Exception):
                one.error = outcome
            elif outcome is not None:
                one.buffers = outcome[: self._allowance.batches]
                self._allowance.take_batches(len(one.buffers))

    def _failed(self, one: "_Planned", error: Exception) -> None:
        """Put *error* into the answer of its partition.

        Raises: *error*, if no store and no client caused it.
        """
        match error:
            case RefusedError():
                one.data.error_code = error.code
            case CorruptError():
                # Not KAFKA_STORAGE_ERROR: Java retries that for ever, without a message.
                self._failures.damaged(one.log, self._client_host, str(error))
                one.data.error_code = ErrorCode.CORRUPT_MESSAGE
            case UnavailableError() | OutcomeUnknownError() | TimeoutError():
                self._failures.not_read(one.log, str(error) or repr(error))
                one.data.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            case _:
                raise error


@dataclass(slots=True)
class _Planned:
    """A partition of which the answer may have records."""

    data: PartitionData
    log: PartitionLog
    limit: int
    buffers: list[Buffer] | None = None
    error: Exception | None = None
    read: BucketRead | None = None


class _Room:
    """Bytes that an answer has room for, while its reads are planned."""

    __slots__ = ("_cold_bytes", "_planned", "_room_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._room_bytes = max_bytes
        self._cold_bytes = 0
        self._planned = False

    @property
    def is_full(self) -> bool:
        """No more records fit."""
        return self._planned and self._room_bytes <= 0

    def limit(self, asked: FetchPartition) -> int:
        """Most bytes of the partition."""
        return max(0, min(asked.partition_max_bytes, self._room_bytes))

    def take(self, size_bytes: int) -> None:
        """Take the room of records."""
        self._planned = True
        self._room_bytes -= size_bytes

    def take_cold(self, limit_bytes: int) -> bool:
        """Take the room of a read from the bucket; False: it reads enough already."""
        charged = max(LEAST_BYTES, limit_bytes)
        if self._cold_bytes and self._cold_bytes + charged > MOST_BYTES:
            return False
        self._cold_bytes += charged
        self.take(limit_bytes)
        return True


def _fitting(buffers: list[Buffer], limit: int) -> list[Buffer]:
    """The first of *buffers* that have together at most *limit* bytes.

    A read plans with limits, and the first batch of an answer may be larger than its limit.
    """
    size = 0
    for count, buffer in enumerate(buffers):
        size += len(buffer)
        if size > limit:
            return buffers[:count]
    return buffers


def log_of(entry: TopicLogs | None, partition: int) -> PartitionLog | None:
    """The partition's log, if this agent leads it."""
    if entry is None or not 0 <= partition < len(entry.logs):
        return None
    return entry.logs[partition]
