"""An acks=1 request that is told "synced" of a batch that a power loss takes fails here.

Pure.
"""

from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from driftlog_agents.log.ingest.acks_one import AcksOne, Answer, Told
from driftlog_agents.log.ingest.buffer_files import PendingBatch
from driftlog_agents.log.partition.batch import Batch
from driftlog_agents.log.partition.partition import PartitionLog, StoredAt, TailSlice

PROBE_MS = 1_000


class Request:
    """One that waits."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.told: list[Told] = []

    def committed(self, log: PartitionLog) -> None:
        """As `Waiter`."""

    synced = unsynced = lost = committed


def batch(log: PartitionLog) -> Batch:
    """The next of a partition, with one record."""
    base = log.append(1, -1, -1, -1, 0.0)
    return Batch(memoryview(b"x"), 1, base, 0, (1, 0, -1, -1, -1, 0, 0))


def tail(log: PartitionLog, end: int) -> TailSlice:
    """What a flush commits."""
    base = log.high_watermark
    return TailSlice(base, end, cast(Any, None), 0, end - base, 1, StoredAt("k", 0))


class DiskMachine(RuleBasedStateMachine):
    """One partition; its batches are written, synced and committed, or not."""

    def __init__(self) -> None:
        super().__init__()
        self.acks_one = AcksOne(PROBE_MS)
        self.log = PartitionLog(topic="t", topic_id=UUID(int=1), partition=0, leader_epoch=0)
        self.now_ms = 0.0
        self.pending: list[PendingBatch] = []
        self.requests: list[Request] = []
        self.written: set[int] = set()
        """Offsets in the file; a sync that begins now makes them durable."""
        self.in_sync: set[int] | None = None
        self.durable: set[int] = set()
        self.broken: set[int] = set()
        """Offsets in files whose sync failed: later syncs fail while one is uncommitted."""
        self.closed = False

    def _answer(self, answers: list[Answer]) -> None:
        for waiter, log, told in answers:
            assert log is self.log
            assert isinstance(waiter, Request)
            if told is Told.SYNCED:
                missing = set(range(log.high_watermark, waiter.end)) - self.durable
                assert not missing, f"{missing} would be lost"
            if told is Told.COMMITTED:
                assert waiter.end <= log.high_watermark
            waiter.told.append(told)

    @precondition(lambda self: not self.closed)
    @rule(one=st.booleans())
    def produce(self, one: bool) -> None:
        if one and self.acks_one.refuses(self.log, self.now_ms):
            return
        made = batch(self.log)
        request = Request(made.end_offset) if one else None
        if request is not None:
            self.requests.append(request)
        self.pending.append((self.log, made, request))

    @precondition(lambda self: not self.closed)
    @rule(fails=st.booleans())
    def write(self, fails: bool) -> None:
        pending, self.pending = self.pending, []
        if self.acks_one.waits_for_disk(self.now_ms):
            self._answer(self.acks_one.write_failed(pending, None))
        elif fails:
            self._answer(self.acks_one.write_failed(pending, self.now_ms))
        else:
            self.acks_one.written(pending)
            self.written |= {one.base_offset for _, one, _ in pending}

    @precondition(lambda self: not self.closed and not self.pending)
    @rule(data=st.data())
    def duplicate(self, data: st.DataObject) -> None:
        if self.log.log_end > self.log.high_watermark:
            end = data.draw(st.integers(self.log.high_watermark + 1, self.log.log_end))
            if not self.acks_one.refuses(self.log, self.now_ms):
                self.requests.append(Request(end))
                self._answer(self.acks_one.wait(self.log, end, self.requests[-1]))

    @precondition(lambda self: not self.closed and self.in_sync is None)
    @rule()
    def begin_a_sync(self) -> None:
        if self.acks_one.begin_sync():
            self.in_sync = set(self.written)

    @precondition(lambda self: not self.closed and self.in_sync is not None)
    @rule(fails=st.booleans())
    def end_the_sync(self, fails: bool) -> None:
        assert self.in_sync is not None
        uncommitted = {n for n in self.in_sync if n >= self.log.high_watermark}
        fails = bool(fails and uncommitted) or any(
            n >= self.log.high_watermark for n in self.broken
        )
        if fails:
            self.broken |= self.written
            self.written = set()
        else:
            self.durable |= self.in_sync
        self.in_sync = None
        self._answer(self.acks_one.sync_ended(self.now_ms, failed=fails))

    @precondition(lambda self: not self.closed and not self.pending)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        if self.log.log_end > self.log.high_watermark:
            end = data.draw(st.integers(self.log.high_watermark + 1, self.log.log_end))
            producers = self.log.commit(tail(self.log, end), self.now_ms)
            for waiter in (*producers, *self.log.committed_duplicates()):
                assert isinstance(waiter, Request)
                waiter.told.append(Told.COMMITTED)

    @rule(ms=st.integers(1, 2 * PROBE_MS))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @precondition(lambda self: not self.closed)
    @rule()
    def close(self) -> None:
        self.closed = True
        self._answer(self.acks_one.close(self.pending))
        for waiter in self.log.close():
            assert isinstance(waiter, Request)
            waiter.told.append(Told.LOST)

    @invariant()
    def each_request_is_told_once(self) -> None:
        for request in self.requests:
            ends = [told for told in request.told if told is not Told.UNSYNCED]
            assert len(ends) <= 1, request.told
            assert request.told.count(Told.UNSYNCED) <= 1
            if self.closed:
                assert ends


TestDisk = DiskMachine.TestCase


@pytest.mark.parametrize("syncs", [True, False])
def test_only_the_newest_duplicate_of_a_batch_waits(syncs: bool) -> None:
    """
    For a sync that takes long, and for a commit: the request before it is told that it is lost.
    """
    acks_one = AcksOne(PROBE_MS)
    log = PartitionLog(topic="t", topic_id=UUID(int=1), partition=0, leader_epoch=0)
    original, *copies = requests = [Request(1) for _ in range(1_000)]
    pending = [(log, batch(log), original)]
    if syncs:
        acks_one.written(pending)
    else:
        acks_one.write_failed(pending, 0.0)

    answers = [answer for each in copies for answer in acks_one.wait(log, 1, each)]

    assert requests[:-1] == [waiter for waiter, _, told in answers if told is Told.LOST]
    acks_one.begin_sync()
    acks_one.sync_ended(0.0, failed=True)
    assert {1: requests[-1]} == log.waiting_duplicates


def test_an_older_request_does_not_take_the_place_of_a_newer_one() -> None:
    """
    Its sync fails while its duplicate waits for the commit: the client has given the older one up.
    """
    acks_one = AcksOne(PROBE_MS)
    log = PartitionLog(topic="t", topic_id=UUID(int=1), partition=0, leader_epoch=0)
    original, newer = Request(1), Request(1)
    acks_one.written([(log, batch(log), original)])
    acks_one.begin_sync()
    acks_one.write_failed([(log, batch(log), Request(2))], 0.0)
    acks_one.wait(log, 1, newer)

    assert [(original, log, Told.LOST)] == acks_one.sync_ended(0.0, failed=True)
    assert newer is log.waiting_duplicates[1]


def test_acks_1_is_refused_until_the_disk_is_tried_again() -> None:
    """Then a write shows whether it has recovered."""
    acks_one = AcksOne(PROBE_MS)
    log = PartitionLog(topic="t", topic_id=UUID(int=1), partition=0, leader_epoch=0)
    acks_one.write_failed([], 5_000.0)

    assert [True, True, False] == [acks_one.refuses(log, ms) for ms in (5_000, 5_999, 6_000)]
    assert [True, False] == [acks_one.written([]), acks_one.written([])]
    assert not acks_one.refuses(log, 5_000)
