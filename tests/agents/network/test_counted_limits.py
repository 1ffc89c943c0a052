"""Kafka's limits are counted when they refuse, close or cut something, each by its own name."""

import struct
from pathlib import Path

from benchmarks.batches import encode_batch
from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.group_settings import GroupSettings
from driftlog_agents.configs.limits import LIMITS
from driftlog_agents.process.metrics.collect import collect
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import fetch, offset_commit
from driftlog_agents.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.agents.network.serving import Serving, eventually, fetching


def refused(agent: Serving) -> dict[str, float]:
    """``driftlog_refused_total``, by limit, where it is not 0."""
    return {limit: count for limit, count in series(agent).items() if count}


def series(agent: Serving) -> dict[str, float]:
    """All of ``driftlog_refused_total``."""
    return {
        sample.labels["limit"]: sample.value
        for metric in collect(agent.observed)
        for sample in metric.samples
        if sample.name == "driftlog_refused_total"
    }


async def test_each_limit_has_its_series_before_it_refuses_anything(tmp_path: Path) -> None:
    """
    A rule on a counter that is not there yet does not fire.
    """
    async with Serving(tmp_path) as agent:
        assert dict.fromkeys(LIMITS, 0) == series(agent)


async def test_a_request_over_the_sockets_limit_is_counted(tmp_path: Path) -> None:
    """
    A size that is negative, or no request's, is a malformed one and not counted.
    """
    settings = BrokerSettings(socket_request_max_bytes=1000)
    async with Serving(tmp_path, broker=settings) as agent:
        for size in (1001, -1, 3):
            async with agent.client() as client:
                client.writer.write(struct.pack(">i", size))
                assert await client.closed()

        assert {"socket.request.max.bytes": 1} == refused(agent)


async def test_a_batch_over_the_topics_limit_is_counted(tmp_path: Path) -> None:
    """
    By the broker's name of the config, whatever the topic has.
    """
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("t", max_message_bytes="100")
        answers = await client.produce("t", {0: encode_batch([bytes(100)], timestamp_ms=1).data})

        assert ErrorCode.MESSAGE_TOO_LARGE == answers[0].error_code
        assert {"message.max.bytes": 1} == refused(agent)


async def test_a_fetch_that_asks_for_more_than_one_may_have_is_counted(tmp_path: Path) -> None:
    """
    It is answered with less.
    """
    settings = BrokerSettings(fetch_max_bytes=2000)
    async with Serving(tmp_path, broker=settings) as agent, agent.client() as client:
        await client.create("t")
        for most in (2000, 2001):
            await client.call(fetch.API, 11, fetching("t", {0: 0}, max_bytes=most))

        assert {"fetch.max.bytes": 1} == refused(agent)


async def test_an_offset_with_too_long_a_text_is_counted(tmp_path: Path) -> None:
    """
    Each partition of the request by itself.
    """
    groups = GroupSettings(offset_metadata_max_bytes=4)
    settings = BrokerSettings(groups=groups)
    async with Serving(tmp_path, broker=settings) as agent, agent.client() as client:
        await client.create("t", 2)
        partitions = [
            OffsetCommitRequestPartition(
                partition_index=n, committed_offset=1, committed_metadata=text
            )
            for n, text in enumerate(("four", "fives"))
        ]
        request = OffsetCommitRequest(
            group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)]
        )
        answer = await client.call(offset_commit.API, 2, request)

        too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert [0, too_large] == [p.error_code for p in answer.topics[0].partitions]
        assert {"offset.metadata.max.bytes": 1} == refused(agent)


async def test_a_connection_that_is_closed_for_its_silence_is_counted(tmp_path: Path) -> None:
    """
    Once, and not when its client has closed it.
    """
    settings = BrokerSettings(connections_max_idle_ms=500)
    async with Serving(tmp_path, broker=settings) as agent, agent.client() as client:
        assert await client.closed()
        await eventually(lambda: not agent.server.connections)

        assert {"connections.max.idle.ms": 1} == refused(agent)


async def test_batches_of_producers_that_are_not_remembered_are_counted(tmp_path: Path) -> None:
    """
    They have a counter of their own, which this one repeats.
    """
    async with Serving(tmp_path) as agent:
        agent.engine.producers.refusal()

        assert {"driftlog.producer.state.max.bytes": 1} == refused(agent)
