"""Produce and Fetch through a socket: limits after a rewrite, timeouts, errors that cost little."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from benchmarks.batches import Codec, encode_batch
from driftlog_agents.handlers.produce.waiters import OneBatchWaiter, SeveralBatches
from driftlog_agents.log.partition.partition import State
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import fetch, list_offsets, produce
from driftlog_tiering.batches import batch as batches
from driftlog_tiering.batches.batch import TimestampType, check_batch
from tests.agents.handlers.test_offsets_api import batch as batch_of
from tests.agents.network.serving import Serving, eventually, fetching, one_in_a_slice, records
from tests.clients.batches import (
    ATTRIBUTES,
    BASE_SEQUENCE,
    COUNT,
    LAST_OFFSET_DELTA,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    with_field,
)

HOUR_MS = 3_600_000


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Serving]:
    """An agent that listens."""
    async with Serving(tmp_path) as serving:
        yield serving


def batch(value: bytes = b"x", codec: Codec = Codec.NONE, timestamp_ms: int = 1) -> bytearray:
    """One record."""
    return encode_batch([value], codec=codec, timestamp_ms=timestamp_ms).data


def at(time_ms: int) -> list_offsets.ListOffsetsRequest:
    """ListOffsets by time."""
    asked = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=time_ms)
    return list_offsets.ListOffsetsRequest(
        topics=[list_offsets.ListOffsetsTopic(name="t", partitions=[asked])]
    )


def now_ms() -> int:
    """The agent's wall clock."""
    return time.time_ns() // 1_000_000


# ── Limits after a rewrite ──


@pytest.mark.parametrize("stamp", ["CreateTime", "LogAppendTime"])
async def test_a_batch_that_is_too_large_only_when_it_is_unpacked_is_refused(
    agent: Serving, stamp: str
) -> None:
    """
    100 kB of zeros are small as zstd and over max.message.bytes as the topic keeps them: the
    producer is told, nothing of it is in the log, and what fits is taken.
    """
    async with agent.client() as client:
        await client.create(
            "t",
            compression_type="uncompressed",
            max_message_bytes="50000",
            message_timestamp_type=stamp,
        )
        small = batch(bytes(100_000), Codec.ZSTD)
        refused = await client.produce("t", {0: small})
        taken = await client.produce("t", {0: batch(bytes(40_000), Codec.ZSTD)})
        read = records((await client.fetch("t", {0: 0}))[0])

    assert len(small) < 1_000
    assert ErrorCode.MESSAGE_TOO_LARGE == refused[0].error_code
    assert "max.message.bytes (50000)" in (refused[0].error_message or "")
    assert (0, 0) == (taken[0].error_code, taken[0].base_offset)
    assert 40_000 < len(read) < 50_000


async def test_a_batch_that_recompression_makes_small_enough_was_too_large(agent: Serving) -> None:
    """
    The limit is on what was sent as well, as in Kafka.
    """
    async with agent.client() as client:
        await client.create("t", compression_type="zstd", max_message_bytes="50000")
        refused = await client.produce("t", {0: batch(bytes(100_000))})

    assert ErrorCode.MESSAGE_TOO_LARGE == refused[0].error_code


@pytest.mark.parametrize("behind_ms", [2 * HOUR_MS, -2 * HOUR_MS])
async def test_a_max_timestamp_that_had_to_be_found_is_held_to_the_limits(
    agent: Serving, behind_ms: int
) -> None:
    """
    A batch that does not say its max timestamp is looked into; what is found there is refused as
    if it had said so, and taken if it is in time.
    """
    async with agent.client() as client:
        await client.create(
            "t",
            message_timestamp_before_max_ms=str(HOUR_MS),
            message_timestamp_after_max_ms=str(HOUR_MS),
        )
        old = with_field(batch(timestamp_ms=now_ms() - behind_ms), MAX_TIMESTAMP, -1)
        good = with_field(batch(timestamp_ms=now_ms()), MAX_TIMESTAMP, -1)
        refused = await client.produce("t", {0: old})
        taken = await client.produce("t", {0: good})

    assert ErrorCode.INVALID_TIMESTAMP == refused[0].error_code
    assert (0, 0) == (taken[0].error_code, taken[0].base_offset)


@pytest.mark.parametrize(
    ("sent", "max_timestamp", "codec"),
    [
        (batch_of(9_000, 5_000), 5_000, "producer"),
        (batch_of(9_000, 5_000), 0, "producer"),
        (batch_of(3_000, 9_000, 5_000), 5_000, "zstd"),
    ],
)
async def test_a_record_is_found_by_its_time_whatever_the_header_says(
    agent: Serving, sent: bytearray, max_timestamp: int, codec: str
) -> None:
    """
    kafka-go's Conn writes the last record's time as the largest.  ListOffsets by time skipped the
    batch, and a consumer that begins there missed its records.
    """
    sent = batch_of(9_000, 5_000)
    async with agent.client() as client:
        await client.create("t", compression_type=codec)
        await client.produce("t", {0: with_field(sent, MAX_TIMESTAMP, max_timestamp)})
        await client.produce("t", {0: batch_of(6_000, 6_000)})
        found = [await client.call(list_offsets.API, 7, at(time_ms)) for time_ms in (5_500, 8_500)]

    assert [9_000] * 2 == [each.topics[0].partitions[0].timestamp for each in found]


async def test_a_batch_that_was_sent_again_is_not_said_to_have_another_time(
    agent: Serving,
) -> None:
    """
    The log has the time of the first one; a producer was told that of the second.
    """
    sent = with_field(with_field(batch(), PRODUCER_ID, 7), PRODUCER_EPOCH, 0)
    sent = with_field(sent, BASE_SEQUENCE, 0)
    async with agent.client() as client:
        await client.create("t", message_timestamp_type="LogAppendTime")
        first, again = [(await client.produce("t", {0: bytearray(sent)}))[0] for _ in range(2)]
        header = check_batch(records((await client.fetch("t", {0: 0}))[0]))

    assert header.max_timestamp == first.log_append_time_ms > 0
    assert (0, 0, -1) == (again.error_code, again.base_offset, again.log_append_time_ms)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_a_rewritten_batch_is_stamped_as_any_other(agent: Serving, codec: Codec) -> None:
    """
    With LogAppendTime and a codec of the topic's: the answer says the time, the batch that is
    read has it, and its CRC fits; the clients' own times are held to no limit.
    """
    async with agent.client() as client:
        await client.create(
            "t",
            compression_type="lz4",
            message_timestamp_type="LogAppendTime",
            message_timestamp_before_max_ms=str(HOUR_MS),
        )
        began = now_ms()
        answer = await client.produce("t", {0: batch(b"y" * 500, codec)})
        header = check_batch(records((await client.fetch("t", {0: 0}))[0]), from_client=False)

    assert 0 == answer[0].error_code
    assert began <= answer[0].log_append_time_ms <= now_ms()
    assert answer[0].log_append_time_ms == header.max_timestamp
    assert (Codec.LZ4, 8) == (header.attributes & 7, header.attributes & 8)


async def test_the_partition_s_order_is_kept_behind_a_rewrite(agent: Serving) -> None:
    """
    What needs no rewrite waits behind what does: offsets are in the order of the requests.
    """
    async with agent.client() as client:
        await client.create("t", compression_type="lz4")
        agent.rewrites.close()
        asked = [
            client.send_produce("t", {0: batch(b"%d" % n, Codec.LZ4 if n % 2 else Codec.ZSTD)})
            for n in range(10)
        ]
        await eventually(lambda: len(agent.log("t").busy) == 10)
        agent.rewrites.open()
        answers = [await client.receive() for _ in asked]

    offsets = [a.responses[0].partition_responses[0].base_offset for _, a in answers]
    assert list(range(10)) == offsets


async def test_a_client_waits_for_one_rewrite_of_another_client(agent: Serving) -> None:
    """
    Batches of five partitions wait on one connection; the batch of another one, which is larger
    and comes last, is rewritten after the one that has begun.
    """
    async with agent.client() as flood, agent.client() as client:
        await flood.create("t", 6, compression_type="lz4")
        agent.rewrites.close()
        asked = flood.send_produce("t", dict.fromkeys(range(5), batch(codec=Codec.ZSTD)))
        await eventually(lambda: all(len(agent.log("t", n).busy) == 1 for n in range(5)))
        late = client.send_produce("t", {5: batch(b"y" * 999)})
        await eventually(lambda: len(agent.log("t", 5).busy) == 1)
        agent.rewrites.open()  # for the one that has begun
        agent.rewrites.close()
        await eventually(lambda: sum(ends_of(agent)) == 1)
        agent.rewrites.open()  # for the next one
        agent.rewrites.close()
        await eventually(lambda: sum(ends_of(agent)) == 2)
        ends = ends_of(agent)
        agent.rewrites.open()
        answers = [await flood.receive(), await client.receive()]

    assert [0, 0, 0, 0, 1] == sorted(ends[:5])
    assert 1 == ends[5]
    assert [asked, late] == [number for number, _ in answers]


def ends_of(agent: Serving) -> list[int]:
    """Log ends of the six partitions of "t"."""
    return [agent.log("t", n).log_end for n in range(6)]


@pytest.mark.parametrize("moves", [False, True])
async def test_batches_wait_while_their_partition_is_paused(agent: Serving, moves: bool) -> None:
    """
    A hand-over waits for the last flush.  If it is late they are admitted in the order of the
    requests, also those that are rewritten; if the partition moves they are all sent elsewhere.
    """
    async with agent.client() as client:
        await client.create("t", compression_type="lz4")
        log = agent.log("t")
        agent.engine.partitions.pause(log)
        asked = [
            client.send_produce("t", {0: batch(b"%d" % n, Codec.ZSTD if n % 2 else Codec.LZ4)})
            for n in range(10)
        ]
        await eventually(lambda: len(log.busy) == 9)
        await eventually(lambda: len(log.parked) == 2)
        before = log.log_end
        if moves:
            agent.engine.partitions.retire(log)
        agent.engine.partitions.resume(log)
        answers = [await client.receive() for _ in asked]
        held = agent.process.dispatcher.producing.waiting.held_bytes

    found = [a.responses[0].partition_responses[0] for _, a in answers]
    assert (0, 0) == (before, held)
    assert asked == [number for number, _ in answers]
    if moves:
        assert {ErrorCode.NOT_LEADER_OR_FOLLOWER} == {each.error_code for each in found}
    else:
        assert list(range(10)) == [each.base_offset for each in found]


async def test_what_comes_while_parked_batches_are_admitted_waits_behind_them(
    agent: Serving,
) -> None:
    """
    One is admitted in an iteration; the connection's next batches come meanwhile.
    """
    one_in_a_slice()
    async with agent.client() as client:
        await client.create("t", compression_type="lz4")
        log = agent.log("t")
        agent.engine.partitions.pause(log)
        asked = [client.send_produce("t", {0: batch(codec=Codec.LZ4)}) for _ in range(200)]
        await eventually(lambda: len(log.parked) == 200)
        agent.engine.partitions.resume(log)
        for codec in (Codec.LZ4, Codec.ZSTD, Codec.LZ4):
            asked.append(client.send_produce("t", {0: batch(codec=codec)}))
            await asyncio.sleep(0)
        answers = [await client.receive() for _ in asked]

    found = [a.responses[0].partition_responses[0].base_offset for _, a in answers]
    assert list(range(203)) == found


async def test_a_bug_in_resuming_a_batch_costs_its_connection_and_no_other(
    agent: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Batches that are parked behind it are admitted, and later ones are not parked.
    """
    stamp = batches.stamp_log_append_time

    def stamped(records: bytearray | memoryview, now_ms: int) -> None:
        if len(records) > 200:
            raise ValueError("a bug")
        stamp(records, now_ms)

    monkeypatch.setattr(batches, "stamp_log_append_time", stamped)
    async with agent.client() as client, agent.client() as other:
        await client.create("t", message_timestamp_type="LogAppendTime")
        log = agent.log("t")
        agent.engine.partitions.pause(log)
        asked = [other.send_produce("t", {0: batch()})]
        await eventually(lambda: len(log.parked) == 1)
        client.send_produce("t", {0: batch(b"y" * 200)})
        await eventually(lambda: len(log.parked) == 2)
        asked += [other.send_produce("t", {0: batch()}) for _ in range(3)]
        await eventually(lambda: len(log.parked) == 5)
        one_in_a_slice()
        with capture_logs() as lines:
            agent.engine.partitions.resume(log)
            closed = await client.closed()
            answers = [await other.receive() for _ in asked]
        later = await other.produce("t", {0: batch()})

    found = [a.responses[0].partition_responses[0].base_offset for _, a in answers]
    assert (closed, ["connection_bug"]) == (True, [line["event"] for line in lines])
    assert [*range(5)] == [*found, later[0].base_offset]


async def test_acks_zero_hears_that_its_partition_has_moved_while_it_waited(agent: Serving) -> None:
    """
    The connection closes, as where the partition had moved before: the client looks for the leader.
    """
    async with agent.client() as client:
        await client.create("t")
        log = agent.log("t")
        agent.engine.partitions.pause(log)
        client.send_produce("t", {0: batch(b"x")}, acks=0)
        await eventually(lambda: len(log.parked) == 1)
        agent.engine.partitions.retire(log)

        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.receive()


# ── Time ──


async def test_a_request_that_takes_too_long_is_answered_and_its_partitions_as_they_are(
    agent: Serving,
) -> None:
    """
    REQUEST_TIMED_OUT for what is not committed in time, what was refused keeps its own error;
    what was not committed then may be later.
    """
    broken = batch(b"wrong CRC")
    broken[-1] ^= 1
    async with agent.client() as client:
        await client.create("t", 3)
        agent.objects.writes.close()
        several = await client.produce("t", {0: batch(), 1: broken, 2: batch()}, timeout_ms=200)
        one = await client.produce("t", {0: batch()}, timeout_ms=200)
        agent.objects.writes.open()
        await eventually(lambda: agent.log("t").high_watermark == 2)
        after = await client.produce("t", {0: batch()}, timeout_ms=20_000)

    timed_out, corrupt = ErrorCode.REQUEST_TIMED_OUT, ErrorCode.CORRUPT_MESSAGE
    assert [timed_out, corrupt, timed_out] == [several[n].error_code for n in range(3)]
    assert timed_out == one[0].error_code
    assert (0, 2) == (after[0].error_code, after[0].base_offset)


def unanswered() -> int:
    """Produce requests that are in memory and have no outcome yet."""
    gc.collect()  # no garbage of an earlier test, which may go meanwhile
    kinds = (OneBatchWaiter, SeveralBatches)
    return sum(isinstance(each, kinds) and not each.done for each in gc.get_objects())


async def test_requests_of_a_client_that_has_left_are_not_kept_for_their_timeout(
    agent: Serving,
) -> None:
    """
    Their batches were not rewritten yet, and are not: each was kept for its 24 days, and all later
    requests of the same timeout behind it.
    """
    before = unanswered()
    async with agent.client() as client:
        await client.create("t", 2, compression_type="lz4")
        agent.rewrites.close()
        for _ in range(5):
            client.send_produce("t", {0: batch()}, timeout_ms=2**31 - 1)
            client.send_produce("t", {0: batch(), 1: batch()}, timeout_ms=2**31 - 1)
        await eventually(lambda: len(agent.log("t").busy) == 10)
        assert agent.server.prefixes.held_bytes > 0
    await eventually(lambda: not agent.server.connections)
    assert 0 == agent.server.prefixes.held_bytes
    agent.rewrites.open()

    await eventually(lambda: not agent.log("t").busy and unanswered() == before)


def answers() -> int:
    """Answers of partitions that are in memory, each byte of encoded ones counted as one."""
    gc.collect()
    objects = gc.get_objects()
    slots = [each.slot for each in objects if isinstance(each, SeveralBatches)]
    encoded = sum(len(buffer) for slot in slots for buffer in slot.answer or ())
    return encoded + sum(isinstance(each, produce.PartitionProduceResponse) for each in objects)


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("partitions", [20, 2_000])
async def test_a_batch_that_waits_keeps_no_other_answer_of_a_request_that_is_over(
    agent: Serving, partitions: int, leaves: bool
) -> None:
    """
    Its client has its answer, or has left: while the bucket took nothing, each such batch kept up
    to 40 MB of answers, which nothing counted.
    """
    data = dict.fromkeys(range(1, partitions), b"") | {0: batch()}
    async with agent.client() as client, agent.client() as other:
        await other.create("t", 1)
        agent.objects.writes.close()
        before = answers()
        client.send_produce("t", data, timeout_ms=2**31 - 1 if leaves else 200)
        if leaves:
            await eventually(lambda: agent.log("t").log_end == 1)
            await eventually(lambda: answers() - before >= partitions)
            client.writer.close()
            await eventually(lambda: len(agent.server.connections) == 1)
        else:
            await client.receive()
        kept = answers() - before
        agent.objects.writes.open()

    assert kept <= 1


# ── What costs a connection, and what costs less ──


async def test_a_bug_in_a_rewrite_costs_its_connection_and_no_other(agent: Serving) -> None:
    """
    The connection is closed, the session goes on, and the partition's next batches are taken.
    """
    async with agent.client() as client, agent.client() as other:
        await other.create("t", compression_type="lz4")
        agent.rewrites.error = ValueError("a bug")
        before = unanswered()
        client.send_produce("t", {0: batch()})
        closed = await client.closed()
        agent.rewrites.error = None
        answer = await other.produce("t", {0: batch()})
        kept = unanswered() - before

    assert (True, 0) == (closed, kept)
    assert (0, 0) == (answer[0].error_code, answer[0].base_offset)
    assert 1 == agent.process.sessions


async def test_a_bug_in_a_cold_read_costs_its_connection_and_no_other(agent: Serving) -> None:
    """
    The same of what is read from the bucket.
    """
    async with agent.client() as client, agent.client() as other:
        await other.create("t")
        await other.produce("t", {0: batch(b"cold")})
        await agent.seal("t")
        agent.engine.manifests.drop(agent.log("t"))
        agent.objects.reads.error = ValueError("a bug")
        client.send(fetch.API, 11, fetching("t", {0: 0}))
        closed = await client.closed()
        agent.objects.reads.error = None
        read = records((await other.fetch("t", {0: 0}))[0])

    assert closed
    assert b"cold" in read
    assert 1 == agent.process.sessions


async def test_a_partition_that_is_offline_is_a_storage_error_at_every_offset(
    agent: Serving,
) -> None:
    """
    Where it ends is not known: a consumer that is beyond what the agent happens to know must not
    be told to reset.
    """
    async with agent.client() as client:
        await client.create("t")
        await client.produce("t", {0: batch()})
        agent.log("t").state = State.OFFLINE
        codes = [(await client.fetch("t", {0: offset}))[0].error_code for offset in (0, 1, 99)]
        # Whoever would wait is not answered while this test lasts.
        codes.append((await client.fetch("t", {0: 1}, max_wait_ms=3_600_000))[0].error_code)

    assert [ErrorCode.KAFKA_STORAGE_ERROR] * 4 == codes


async def test_append_times_of_a_producer_are_refused_where_the_broker_writes_them(
    agent: Serving,
) -> None:
    """
    Kafka names each record; on a topic of CreateTime it takes the batch, and clears the bit, unless
    the batch has no time.  Left there, the bit would hide the records' own times from consumers.
    """
    stamped = with_field(batch_of(7, 3), ATTRIBUTES, 8)
    async with agent.client() as client:
        await client.create("created")
        await client.create("appended", message_timestamp_type="LogAppendTime")
        refused = [
            (await client.produce("appended", {0: bytearray(stamped)}))[0],
            (await client.produce("created", {0: with_field(stamped, MAX_TIMESTAMP, -1)}))[0],
        ]
        taken = (await client.produce("created", {0: bytearray(stamped)}))[0]
        header = check_batch(records((await client.fetch("created", {0: 0}))[0]))

    for each in refused:
        assert ErrorCode.INVALID_TIMESTAMP == each.error_code
        assert [0, 1] == [error.batch_index for error in each.record_errors]
    assert (0, 0, -1) == (taken.error_code, taken.base_offset, taken.log_append_time_ms)
    assert (TimestampType.CREATE_TIME, 7) == (header.timestamp_type, header.max_timestamp)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_a_count_that_lies_takes_no_offsets(agent: Serving, codec: Codec) -> None:
    """
    Twenty batches of a record each could take all the offsets of a hundred years.
    """
    liar = with_field(batch(codec=codec), COUNT, 2**31 - 1)
    liar = with_field(liar, LAST_OFFSET_DELTA, 2**31 - 2)
    async with agent.client() as client:
        await client.create("t")
        refused = (await client.produce("t", {0: bytearray(liar)}))[0]
        taken = (await client.produce("t", {0: batch(codec=codec)}))[0]

    assert ErrorCode.INVALID_RECORD == refused.error_code
    assert (0, 0) == (taken.error_code, taken.base_offset)
    assert 1 == agent.process.broker.refusals.counts["driftlog.max.batch.records"]


async def test_an_uncompressed_batch_holds_what_it_says(agent: Serving) -> None:
    """
    No record has fewer than seven bytes.
    """
    liar = with_field(batch(), COUNT, 1_000)
    liar = with_field(liar, LAST_OFFSET_DELTA, 999)
    async with agent.client() as client:
        await client.create("t")
        refused = (await client.produce("t", {0: bytearray(liar)}))[0]

    assert ErrorCode.INVALID_RECORD == refused.error_code
    assert "does not hold 1000 records" in (refused.error_message or "")
