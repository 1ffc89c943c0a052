"""Whoever leads a partition, asked by an agent that has something to append there.

    ends ──▶ where leader epochs ended        append ──▶ the offset, once it is committed

Ourselves are one of them: `LocalLeaderClient` goes through admission, as every producer does;
another agent is asked over the network (`driftlog_agents.log.recovery.remote_leader_client`).

Shell.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol

from driftlog_agents.log.ingest.admission import Admission
from driftlog_agents.log.ingest.flusher import Flusher
from driftlog_agents.log.partition.batch import BatchHeaderFields, ConnectionActivity
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.batches.batch import parse_header

_DEADLINE_S: Final = 30.0
"""Of a commit, before it is asked again: a default producer's `request.timeout.ms`."""


class NamedPartition(NamedTuple):
    """A partition, and what its topic is called."""

    topic: str
    tp: TopicPartition

    def __str__(self) -> str:
        return f"{self.topic}-{self.tp.partition}"


class EpochEndQuery(NamedTuple):
    """A question: where *epoch* ended, to who leads in *leader_epoch* (-1: whichever it is)."""

    place: NamedPartition
    epoch: int
    leader_epoch: int = -1


Answer = int | RefusedError
"""An offset, or Kafka's error for this partition; nothing happened then, but after
REQUEST_TIMED_OUT and NOT_LEADER_OR_FOLLOWER it may have."""


class PartitionLeaderClient(Protocol):
    """See the module.  One request at a time; `test_leader_client` of tests/ is its contract.

    Both methods may raise `UnavailableError`, and `append` `OutcomeUnknownError`, of all that was
    asked together.
    """

    @property
    def node_id(self) -> int:
        """Its broker id."""
        ...

    async def ends(self, asked: Sequence[EpochEndQuery]) -> list[Answer]:
        """Where each leader epoch ended in the leader's log: the start of the next one.

        All of them are over: the leader's own is a later one.
        """
        ...

    async def append(self, batches: Sequence[tuple[NamedPartition, bytearray]]) -> list[Answer]:
        """Append a batch to each of several partitions with acks=all; base offsets.

        A repeat of a batch with its producer id, epoch and sequence is answered with the offset
        of the first.  The batches are the leader's from now on.
        """
        ...

    async def close(self) -> None:
        """Nobody asks any more."""
        ...


class _Commit:
    """A `Waiter`."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.is_lost = False

    def committed(self, log: PartitionLog) -> None:
        self.done.set()

    def synced(self, log: PartitionLog) -> None:
        raise AssertionError("it waits for its commit")

    unsynced = synced

    def lost(self, log: PartitionLog) -> None:
        self.is_lost = True
        self.done.set()


class LocalLeaderClient:
    """This agent, for the partitions that it leads itself.

    Limits that came since (`max.message.bytes`, …) are not applied: each of these batches was
    accepted here once, under those of its time.
    """

    def __init__(
        self,
        *,
        node_id: int,
        find: Callable[[TopicPartition], PartitionLog | None],
        admits: Callable[[PartitionLog], Awaitable[None]],
        admission: Admission,
        flusher: Flusher,
        now_ms: Callable[[], float],
    ) -> None:
        self._node_id = node_id
        self._find = find
        self._admits = admits
        self._admission = admission
        self._flusher = flusher
        self._now_ms = now_ms
        self._source = ConnectionActivity()

    @property
    def node_id(self) -> int:
        return self._node_id

    def epoch(self, tp: TopicPartition) -> int:
        """In which it leads *tp*; -1: it does not."""
        log = self._find(tp)
        return -1 if log is None or log.state is State.CLOSED else log.leader_epoch

    async def ends(self, asked: Sequence[EpochEndQuery]) -> list[Answer]:
        return [await self._end(place, epoch) for place, epoch, _ in asked]

    async def _end(self, place: NamedPartition, epoch: int) -> Answer:
        try:
            log = await self._led(place)
        except RefusedError as error:
            return error
        later = bisect_right(log.epochs, epoch, key=lambda entry: entry[0])
        if log.damage and later == 0:
            return RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, log.damage)
        if later == len(log.epochs):
            return RefusedError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"epoch {epoch} is not over")
        return log.epochs[later][1]

    async def append(self, batches: Sequence[tuple[NamedPartition, bytearray]]) -> list[Answer]:
        if self._flusher.overloaded:
            raise UnavailableError("this agent holds as much as it may; producers wait as well")
        admitted = [await self._admit(place, batch) for place, batch in batches]
        try:
            async with asyncio.timeout(_DEADLINE_S):
                for each in admitted:
                    if not isinstance(each, RefusedError):
                        await each[1].done.wait()
        except TimeoutError:
            pass
        return [each if isinstance(each, RefusedError) else _told(*each) for each in admitted]

    async def _admit(
        self, place: NamedPartition, batch: bytearray
    ) -> tuple[int, _Commit] | RefusedError:
        header = parse_header(batch)
        checked: BatchHeaderFields = (
            header.record_count,
            header.attributes,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.base_timestamp,
            header.max_timestamp,
        )
        waiter = _Commit()
        try:
            log = await self._led(place)
            self._source.heard_ms = self._now_ms()
            result = self._admission.admit(
                log, memoryview(batch), checked, -1, self._source, waiter
            )
        except RefusedError as error:
            return error
        if result.answered:
            waiter.done.set()
        return result.base_offset, waiter

    async def _led(self, place: NamedPartition) -> PartitionLog:
        log = self._find(place.tp)
        if log is None or log.state is State.CLOSED:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if log.state is State.OFFLINE:
            raise RefusedError(ErrorCode.KAFKA_STORAGE_ERROR, log.offline_reason)
        try:
            await self._admits(log)
        except UnavailableError as error:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error)) from error
        return log

    async def close(self) -> None:
        """Nothing is open."""


def _told(base_offset: int, waiter: _Commit) -> Answer:
    if not waiter.done.is_set():
        return RefusedError(ErrorCode.REQUEST_TIMED_OUT, "not committed in time")
    if waiter.is_lost:
        return RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "led elsewhere meanwhile")
    return base_offset
