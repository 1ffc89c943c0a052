"""A partition's leader promises the same in process and over the network."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from driftlog_agents.log.recovery.leader_client import (
    EpochEndQuery,
    NamedPartition,
    PartitionLeaderClient,
)
from driftlog_agents.log.recovery.remote_leader_client import RemoteLeaderClient
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.model import Listener, TopicPartition
from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_tiering.batches.batch import LOG_APPEND_TIME_FLAG, fill_header, parse_header
from tests.agents.log.lives import make_batch
from tests.agents.network.serving import Serving, eventually, records
from tests.support.process_usage import free_port

Make = Callable[[Serving], PartitionLeaderClient]


def own(serving: Serving) -> PartitionLeaderClient:
    """The agent itself."""
    return serving.engine.own_leader()


def peer(serving: Serving) -> PartitionLeaderClient:
    """The same, as another agent asks it."""
    return RemoteLeaderClient(serving.process.broker.agent)


@pytest.fixture
async def serving(tmp_path: Path) -> AsyncIterator[Serving]:
    """An agent that leads a topic of three partitions."""
    async with Serving(tmp_path) as agent:
        async with agent.client() as client:
            await client.create("t", 3)
        await eventually(lambda: agent.engine.log("t", 2) is not None)
        yield agent


@pytest.fixture(params=[own, peer])
async def leader(
    request: pytest.FixtureRequest, serving: Serving
) -> AsyncIterator[PartitionLeaderClient]:
    """One that leads it."""
    made: PartitionLeaderClient = request.param(serving)
    yield made
    await made.close()


def place(serving: Serving, partition: int, topic: str = "t") -> NamedPartition:
    """A partition of the topic; of one that is not there, too."""
    found = serving.engine.topics[topic if topic in serving.engine.topics else "t"]
    return NamedPartition(topic, TopicPartition(found.topic.topic_id, partition))


def batch(*values: bytes, epoch: int = 0, sequence: int = 0) -> bytearray:
    """Of the producer 7."""
    return make_batch(values, producer=7, epoch=epoch, sequence=sequence)


async def test_batches_are_appended_and_committed(
    serving: Serving, leader: PartitionLeaderClient
) -> None:
    """
    Several partitions in one request, in any order; the answer is where each of them stands.
    """
    first = await leader.append([(place(serving, n), batch(b"a", b"b")) for n in (2, 0)])
    second = await leader.append(
        [(place(serving, n), batch(b"%d" % n, sequence=s)) for n, s in ((0, 2), (1, 0), (2, 2))]
    )

    assert ([0, 0], [2, 0, 2]) == (first, second)
    assert [3, 1, 3] == [serving.log("t", n).high_watermark for n in range(3)]
    assert leader.node_id == serving.process.broker.node_id


async def test_a_repeat_is_answered_with_the_first_ones_offset(
    serving: Serving, leader: PartitionLeaderClient
) -> None:
    """
    Also when later ones were appended.
    """
    at = place(serving, 0)
    for n in range(3):
        assert [n] == await leader.append([(at, batch(b"%d" % n, sequence=n))])

    assert [1] == await leader.append([(at, batch(b"1", sequence=1))])
    assert 3 == serving.log("t").log_end


async def test_what_cannot_be_appended_is_refused_alone(
    serving: Serving, leader: PartitionLeaderClient
) -> None:
    """
    With Kafka's error: an older producer epoch, a gap, a partition that is not there.
    """
    await leader.append([(place(serving, n), batch(b"x", epoch=1)) for n in range(2)])

    answers = await leader.append(
        [
            (place(serving, 0), batch(b"y")),
            (place(serving, 1), batch(b"y", epoch=1, sequence=5)),
            (place(serving, 2), batch(b"y")),
            (place(serving, 9), batch(b"y")),
        ]
    )

    codes = [answer.code if isinstance(answer, RefusedError) else answer for answer in answers]
    assert [
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        0,
    ] == codes[:3]
    assert codes[3] in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def test_a_topic_that_was_made_again_gets_nothing_of_the_first_one(
    serving: Serving, leader: PartitionLeaderClient
) -> None:
    """
    Neither its only partition nor one among others; the others of a request are appended.
    """
    old = place(serving, 0)
    topics = serving.process.broker.topics
    await topics.delete(topics.by_name["t"])
    async with serving.client() as client:
        await client.create("t", 3)
        await client.create("u", 1)
    await eventually(lambda: serving.engine.log("t", 2) is not None)
    await eventually(lambda: serving.engine.log("u", 0) is not None)

    (alone,) = await leader.append([(old, batch(b"x"))])
    beside, other = await leader.append([(old, batch(b"x")), (place(serving, 0, "u"), batch(b"y"))])

    for answer in (alone, beside):
        assert isinstance(answer, RefusedError)
        assert answer.code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert 0 == other
    assert old.tp.topic_id != place(serving, 0).tp.topic_id
    assert [0, 1] == [serving.log(topic).log_end for topic in ("t", "u")]


@pytest.mark.parametrize("make", [own, peer])
async def test_epochs_that_are_over_have_an_end(serving: Serving, make: Make) -> None:
    """
    The start of the next epoch in the log; several of one partition in one question, and those
    in which nothing was written.
    """
    for written in (2, 0, 1):
        leader = make(serving)
        epoch = serving.log("t").leader_epoch
        for n in range(written):
            await leader.append([(place(serving, 0), make_batch([b"%d" % n]))])
        await leader.close()
        await serving.lose_session()
        await eventually(lambda epoch=epoch: serving.log("t").leader_epoch > epoch)  # type: ignore[misc]
    leader = make(serving)
    now = serving.log("t").leader_epoch

    answers = await leader.ends(
        [EpochEndQuery(place(serving, 0), epoch, now) for epoch in range(3)]
        + [EpochEndQuery(place(serving, 1), 0), EpochEndQuery(place(serving, 9), 0)]
    )

    await leader.close()
    assert [2, 2, 3, 0] == answers[:4]
    assert isinstance(answers[4], RefusedError)


async def test_a_commit_that_takes_long_is_told_as_not_known(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It may be in the log, now or later; the repeat is answered when it is.
    """
    monkeypatch.setattr("driftlog_agents.log.recovery.leader_client._DEADLINE_S", 0.3)
    leader = own(serving)
    serving.objects.writes.close()

    (answer,) = await leader.append([(place(serving, 0), batch(b"x"))])
    serving.objects.writes.open()

    assert isinstance(answer, RefusedError)
    assert ErrorCode.REQUEST_TIMED_OUT is answer.code
    assert [0] == await leader.append([(place(serving, 0), batch(b"x"))])


# ── Over the network ──


async def test_limits_of_the_topic_are_the_leaders(tmp_path: Path) -> None:
    """
    They may have changed since the batch was accepted; the message is for the log.
    """
    async with Serving(tmp_path) as serving, serving.client() as client:
        await client.create("t", 1, max_message_bytes="100", cleanup_policy="compact")
        leader = peer(serving)
        large, keyless = await _refused(leader, serving, 200), await _refused(leader, serving, 1)
        await leader.close()

    assert (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD) == (large.code, keyless.code)
    assert "max.message.bytes (100)" in str(large)


async def _refused(leader: PartitionLeaderClient, serving: Serving, size: int) -> RefusedError:
    (answer,) = await leader.append([(place(serving, 0), make_batch([bytes(size)]))])
    assert isinstance(answer, RefusedError)
    return answer


@pytest.mark.parametrize("stamp", ["CreateTime", "LogAppendTime"])
async def test_a_batch_with_the_first_leaders_time_is_taken(tmp_path: Path, stamp: str) -> None:
    """
    Clients may not send such; as one it has its records' own times, which are found, or gets the
    leader's.
    """
    data = make_batch([b"a", b"b"])
    header = parse_header(data)
    fill_header(
        data,
        base_offset=0,
        last_offset_delta=1,
        record_count=2,
        attributes=header.attributes | LOG_APPEND_TIME_FLAG,
        base_timestamp=1_000,
        max_timestamp=5_000,
    )
    async with Serving(tmp_path) as serving, serving.client() as client:
        await client.create("t", 1, message_timestamp_type=stamp)
        leader = peer(serving)
        assert [0] == await leader.append([(place(serving, 0), data)])
        await leader.close()
        read = parse_header(records((await client.fetch("t", {0: 0}))[0]))

    if stamp == "CreateTime":
        assert (0, 1_000) == (read.attributes & LOG_APPEND_TIME_FLAG, read.max_timestamp)
    else:
        assert read.attributes & LOG_APPEND_TIME_FLAG
        assert read.max_timestamp > 5_000


async def test_nobody_there_means_that_nothing_happened(serving: Serving) -> None:
    """
    And a connection that breaks before the answer, or an answer that is none, that it may have;
    the next request goes over a new connection.
    """
    agent = serving.process.broker.agent
    gone = replace(agent, listeners=(Listener("PLAINTEXT", "127.0.0.1", free_port()),))
    with pytest.raises(UnavailableError, match="cannot connect"):
        await RemoteLeaderClient(gone).append([(place(serving, 0), batch(b"x"))])
    answers: list[bytes] = [b"", b"\0\0\0\4abcd", b"\xff\xff\xff\xff", b"\0\0\0\6\0\0\0\1\0\0"]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.write(answers.pop(0))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    leader = RemoteLeaderClient(
        replace(agent, listeners=(Listener("PLAINTEXT", "127.0.0.1", port),))
    )
    async with server:
        while answers:
            with pytest.raises(OutcomeUnknownError, match=str(port)):
                await leader.append([(place(serving, 0), batch(b"x"))])
    await leader.close()


async def test_an_answer_that_does_not_come_is_given_up(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The connection with it: what comes later answers nobody.
    """
    monkeypatch.setattr("driftlog_agents.log.recovery.remote_leader_client._ANSWER_S", 0.3)
    leader = peer(serving)
    serving.objects.writes.close()
    with pytest.raises(OutcomeUnknownError):
        await leader.append([(place(serving, 0), batch(b"x"))])
    serving.objects.writes.open()
    monkeypatch.undo()

    assert [0] == await leader.append([(place(serving, 0), batch(b"x"))])
    await leader.close()
