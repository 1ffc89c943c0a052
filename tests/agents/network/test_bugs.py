"""A bug or damage that a connection meets costs that connection, or the agent if it must."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from benchmarks.batches import encode_batch
from driftlog_agents.handlers.common.producer_ids import ProducerIds
from driftlog_agents.handlers.fetch.reads import FetchReads
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import delete_topics, fetch, init_producer_id, metadata
from driftlog_agents.protocol.messages.delete_topics import DeleteTopicsRequest
from driftlog_agents.protocol.messages.init_producer_id import InitProducerIdRequest
from driftlog_agents.protocol.messages.metadata import MetadataRequest
from driftlog_agents.protocol.requests.one_batch import OneBatchReader
from driftlog_metadata.schema.keys import PRODUCER_IDS_KEY, topic_key
from driftlog_metadata.stores.errors import CorruptError
from driftlog_metadata.stores.store import Delete, Put
from tests.agents.network.serving import Serving, eventually, fetching


def batch(value: bytes = b"x") -> bytearray:
    """One record."""
    return encode_batch([value], timestamp_ms=1).data


# ── Damage ──


async def test_damage_that_a_request_finds_is_told_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    No bug of ours: the log says what is not what it should be, that connection is closed, and
    others go on.
    """

    async def damaged(_: ProducerIds) -> int:
        raise CorruptError("/key: not a block")

    monkeypatch.setattr(ProducerIds, "next", damaged)
    async with Serving(tmp_path) as agent, agent.client() as client, agent.client() as other:
        await other.create("t")
        with capture_logs() as lines:
            client.send(init_producer_id.API, 1, InitProducerIdRequest(transactional_id=None))
            closed = await client.closed()
        answer = await other.produce("t", {0: batch()})
        sessions = agent.process.sessions

    assert closed
    assert [("stored_data_damaged", "/key: not a block")] == [
        (line["event"], line["error"]) for line in lines
    ]
    assert (0, 1) == (answer[0].error_code, sessions)


async def test_producer_ids_whose_key_is_damaged_are_a_retriable_error(tmp_path: Path) -> None:
    """
    The log names the key, and the connection goes on.
    """
    asked = InitProducerIdRequest(transactional_id=None)
    async with Serving(tmp_path) as agent, agent.client() as client:
        await agent.process.broker.metadata.txn((), [Put(PRODUCER_IDS_KEY, b"\xa5")])
        with capture_logs() as lines:
            refused = await client.call(init_producer_id.API, 1, asked)
        await agent.process.broker.metadata.txn((), [Delete(PRODUCER_IDS_KEY)])
        answered = await client.call(init_producer_id.API, 1, asked)

    assert ErrorCode.COORDINATOR_LOAD_IN_PROGRESS == refused.error_code
    assert ["producer_ids_unreadable"] == [line["event"] for line in lines]
    assert lines[0]["error"].startswith(f"{PRODUCER_IDS_KEY}: not a ")
    assert 0 == answered.error_code


async def test_a_topic_whose_key_is_damaged_is_not_changed_and_others_are(tmp_path: Path) -> None:
    """
    Its own answer names the key, as the log does; the other topic of the request is deleted.
    Nobody takes the damaged one for deleted: it is written as before.
    """
    key = topic_key("hurt")
    asked = DeleteTopicsRequest(topic_names=["hurt", "other"], timeout_ms=10_000)
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("hurt")
        await client.create("other")
        with capture_logs() as lines:
            await agent.process.broker.metadata.txn((), [Put(key, b"\xa5")])
            response = await client.call(delete_topics.API, 5, asked)
        produced = await client.produce("hurt", {0: batch()})
        sessions = agent.process.sessions
    answers = {answer.name: answer for answer in response.responses}

    assert ErrorCode.UNKNOWN_SERVER_ERROR == answers["hurt"].error_code
    assert (answers["hurt"].error_message or "").startswith(f"{key}: not a topic")
    assert (0, 1) == (answers["other"].error_code, sessions)
    assert 0 == produced[0].error_code
    told = {line["event"]: line["error"] for line in lines if line["log_level"] == "error"}
    assert {"metadata_key_unreadable", "stored_data_damaged"} <= told.keys()
    assert {answers["hurt"].error_message} == set(told.values())


async def test_a_topic_whose_key_is_damaged_does_not_end_who_looks_through_the_files(
    tmp_path: Path,
) -> None:
    """
    As after each session that is over, this agent's or another's: the other topics' files are
    looked through, and served.
    """
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("hurt")
        await client.create("other")
        topics = agent.process.broker.topics
        with capture_logs() as lines:
            await agent.process.broker.metadata.txn((), [Put(topic_key("hurt"), b"\xa5")])
            await topics.reconcile()
            async with asyncio.timeout(10):
                await topics.repaired.wait()
        produced = await client.produce("other", {0: batch()})

    assert 0 == produced[0].error_code
    assert "topic_file_not_checked" in [line["event"] for line in lines]


# ── Bugs of the log ──


async def test_a_broken_invariant_of_the_log_ends_the_agent(tmp_path: Path) -> None:
    """
    What must be true of the log and is not costs the process, not a wrong answer.
    """
    agent = Serving(tmp_path)
    try:
        await agent.begin()
        await agent.process.ready.wait()
        async with agent.client() as client:
            await client.create("t", compression_type="lz4")
            agent.rewrites.error = AssertionError("a broken invariant")
            client.send_produce("t", {0: batch()})
            await asyncio.wait([agent.running], timeout=10)
        ended = agent.running
    finally:
        agent.running = asyncio.create_task(asyncio.sleep(0))
        await agent.close()

    assert ended.done()
    assert isinstance(ended.exception(), ExceptionGroup)


async def test_a_bug_that_a_request_finds_in_the_log_ends_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Not the connection that happened to find it: nobody is told of an acknowledgement any more,
    and the log says what is wrong.
    """

    def bug(*_: Any) -> int:
        raise AssertionError("a broken invariant")

    agent = Serving(tmp_path)
    with capture_logs() as lines:
        try:
            await agent.begin()
            await agent.process.ready.wait()
            async with agent.client() as client:
                await client.create("t")
                monkeypatch.setattr(PartitionLog, "append", bug)
                client.send_produce("t", {0: batch()})
                await asyncio.wait([agent.running], timeout=10)
            ended = agent.running
        finally:
            agent.running = asyncio.create_task(asyncio.sleep(0))
            await agent.close()

    assert ended.done()
    assert isinstance(ended.exception(), ExceptionGroup)
    assert ["log_bug"] == [line["event"] for line in lines if "bug" in line["event"]]


# ── Bugs of a connection ──


@pytest.mark.parametrize("error", [AssertionError("a broken invariant"), KeyError("a bug")])
async def test_a_bug_in_reading_a_frame_costs_its_connection_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """
    One frame must not end agent after agent.
    """

    def bug(*_: Any) -> None:
        raise error

    async with Serving(tmp_path) as agent, agent.client() as client, agent.client() as other:
        await other.create("t")
        with monkeypatch.context() as patch, capture_logs() as lines:
            patch.setattr(OneBatchReader, "read", bug)
            client.send_produce("t", {0: batch()})
            closed = await client.closed()
        answer = await other.produce("t", {0: batch()})
        sessions = agent.process.sessions

    assert closed
    assert (0, 0) == (answer[0].error_code, answer[0].base_offset)
    assert ["connection_bug"] == [line["event"] for line in lines]
    assert 1 == sessions


async def test_a_request_that_cannot_be_decoded_for_a_bug_costs_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    As one for which there is no memory.  The others, and the agent's session, go on.
    """

    def no_memory(*_: Any) -> None:
        raise MemoryError

    async with Serving(tmp_path) as agent, agent.client() as client, agent.client() as other:
        await other.create("t")
        with monkeypatch.context() as patch, capture_logs() as lines:
            patch.setattr(metadata.API, "decode_request", no_memory)
            client.send(metadata.API, 8, MetadataRequest(topics=None))
            closed = await client.closed()
        answer = await other.produce("t", {0: batch()})
        sessions = agent.process.sessions

    assert closed
    assert ["connection_bug"] == [line["event"] for line in lines]
    assert (0, 1) == (answer[0].error_code, sessions)


@pytest.mark.parametrize("when", ["in turn", "a record came", "out of time"])
async def test_a_bug_in_a_fetch_costs_its_connection_whenever_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """
    Behind another request, when what it waits for has come, and when its time is up: it is not
    left without an answer.
    """

    def bug(*_: Any) -> None:
        raise AssertionError("a broken invariant")

    async with Serving(tmp_path) as agent, agent.client() as client, agent.client() as other:
        await other.create("t")
        await other.create("u")
        wait_ms = {"in turn": 0, "a record came": 20_000, "out of time": 1_500}[when]
        if when == "in turn":
            await other.produce("t", {0: batch()})
            agent.objects.writes.close()
            client.send_produce("u", {0: batch()})
        client.send(fetch.API, 11, fetching("t", {0: 0}, max_wait_ms=wait_ms))
        if when == "in turn":
            await eventually(lambda: agent.objects.writes.waiting > 0)
        else:
            await eventually(lambda: bool(agent.log("t").waiting_fetches))
        with monkeypatch.context() as patch, capture_logs() as lines:
            patch.setattr(PartitionLog, "bytes_from", bug)
            patch.setattr(FetchReads, "_check", bug)
            agent.objects.writes.open()
            if when == "in turn":
                await client.receive()
            elif when == "a record came":
                await other.produce("t", {0: batch()})
            closed = await client.closed()
        answer = await other.produce("t", {0: batch()})
        sessions = agent.process.sessions

    assert closed
    assert ["connection_bug"] == [line["event"] for line in lines]
    assert (0, 1) == (answer[0].error_code, sessions)
