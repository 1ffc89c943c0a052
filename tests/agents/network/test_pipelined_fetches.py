"""Fetches behind one another on a connection: answered in turn, held in part, never for ever."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from benchmarks.batches import encode_batch
from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import api_versions, fetch
from driftlog_agents.protocol.messages.api_versions import ApiVersionsRequest
from tests.agents.network.serving import (
    MiB,
    Serving,
    eventually,
    fetched,
    fetching,
    records,
)

FETCH_MAX_BYTES = 300_000
"""Of the agent below."""


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Serving]:
    """An agent that answers a fetch with 300 kB at most, or one batch."""
    settings = BrokerSettings(fetch_max_bytes=FETCH_MAX_BYTES)
    async with Serving(tmp_path, broker=settings) as serving:
        yield serving


def batch(size: int, seed: int = 0) -> bytearray:
    """One record of so many random bytes."""
    return encode_batch([Random(seed).randbytes(size)], timestamp_ms=1).data


# ── Turns ──


async def test_a_long_poll_keeps_what_is_behind_it_waiting_and_not_longer(agent: Serving) -> None:
    """
    Behind a fetch that has nothing come others that have: they are answered when it is, in the
    order in which all were asked.
    """
    async with agent.client() as client:
        await client.create("empty")
        await client.create("full")
        await client.produce("full", {0: batch(1_000)})
        began = time.monotonic()
        waits = client.send(fetch.API, 11, fetching("empty", {0: 0}, max_wait_ms=400))
        others = [client.send(fetch.API, 11, fetching("full", {0: 0})) for _ in range(3)]
        last = client.send(api_versions.API, 0, ApiVersionsRequest())
        answers = [await client.receive() for _ in range(5)]
        took_s = time.monotonic() - began

    assert [waits, *others, last] == [number for number, _ in answers]
    assert [0, *[1_000] * 3] == [
        len(records(fetched(a)[0])) // 1_000 * 1_000 for _, a in answers[:4]
    ]
    assert 0.3 < took_s < 5


async def test_a_fetch_of_nothing_waits_for_nothing(agent: Serving) -> None:
    """
    Who asks for no partition, as the Java consumer does when it closes, is answered at once.
    """
    async with agent.client() as client:
        began = time.monotonic()
        answer = await client.call(
            fetch.API, 17, fetch.FetchRequest(max_wait_ms=20_000, min_bytes=1)
        )
        took_s = time.monotonic() - began

    assert (ErrorCode.NONE, []) == (answer.error_code, answer.responses)
    assert took_s < 10


async def test_a_produce_behind_a_long_poll_is_what_it_waits_for(agent: Serving) -> None:
    """
    Requests are admitted as they are read: a fetch that may wait for a minute is answered with
    what its own connection produces behind it.
    """
    async with agent.client() as client:
        await client.create("t")
        polls = [
            client.send(fetch.API, 11, fetching("t", {0: offset}, max_wait_ms=60_000))
            for offset in (0, 1)
        ]
        first = client.send_produce("t", {0: batch(100, 1)})
        second = client.send_produce("t", {0: batch(100, 2)})
        answers = [await client.receive() for _ in range(4)]

    assert [*polls, first, second] == [number for number, _ in answers]
    assert all(records(fetched(a)[0]) for _, a in answers[:2])


async def test_only_as_many_fetches_are_read_as_a_client_takes_answers(agent: Serving) -> None:
    """
    Of 300 fetches of 300 kB and a client that reads nothing, a few are begun; when it reads, all
    of them are answered, in their order.
    """
    fetching_now = agent.process.dispatcher.fetching
    async with agent.client() as other, agent.client() as deaf:
        await other.create("t")
        await other.produce("t", {0: batch(FETCH_MAX_BYTES)})
        asked = [deaf.send(fetch.API, 11, fetching("t", {0: 0})) for _ in range(300)]
        await deaf.writer.drain()
        await eventually(lambda: fetching_now.requests > 0)
        await asyncio.sleep(0.5)
        begun = fetching_now.requests
        answers = [await deaf.receive() for _ in asked]

    assert begun <= 100, "answers of 300 kB each were made for nobody"
    assert asked == [number for number, _ in answers]
    assert {FETCH_MAX_BYTES} == {
        len(records(fetched(a)[0])) // 100_000 * 100_000 for _, a in answers
    }


async def test_waiting_fetches_go_with_their_connection(agent: Serving) -> None:
    """
    Those that had their turn are no more among those whom a commit wakes; those that had not,
    never begin.
    """
    async with agent.client() as client:
        await client.create("t")
        async with agent.client() as leaving:
            for _ in range(3):
                leaving.send(fetch.API, 11, fetching("t", {0: 0}, max_wait_ms=60_000))
            await eventually(lambda: len(agent.log("t").waiting_fetches) == 1)
        await eventually(lambda: not agent.log("t").waiting_fetches)
        requests = agent.process.dispatcher.fetching.requests
        await client.produce("t", {0: batch(10)})

    assert 1 == requests
    assert requests == agent.process.dispatcher.fetching.requests


# ── Limits over several partitions ──


@pytest.fixture
async def wide(agent: Serving) -> str:
    """Four partitions of three batches of 50 kB, and a fifth with one of 400 kB."""
    async with agent.client() as client:
        await client.create("wide", 5)
        for n in range(3):
            await client.produce("wide", {p: batch(50_000, n) for p in range(4)})
        await client.produce("wide", {4: batch(400_000)})
    return "wide"


SEALED = pytest.mark.parametrize("sealed", [False, True], ids=["recent", "sealed"])


@SEALED
async def test_the_agent_s_own_limit_holds_over_what_is_asked(
    agent: Serving, wide: str, sealed: bool
) -> None:
    """
    A client asks for 50 MiB and gets what fetch.max.bytes allows, whole batches, from the first
    partitions that it named.
    """
    if sealed:
        await agent.seal(wide)
    async with agent.client() as client:
        answer = await client.fetch(wide, dict.fromkeys(range(4), 0))
        cold_reads = agent.process.dispatcher.fetching.cold_reads
    sizes = [len(records(data)) // 50_000 for data in answer.values()]

    assert sealed == (cold_reads > 0)
    assert [0] * 4 == [data.error_code for data in answer.values()]
    assert 3 == sizes[0]
    assert sum(len(records(data)) for data in answer.values()) <= FETCH_MAX_BYTES
    if not sealed:
        assert [3, 2, 0, 0] == sizes


async def test_the_first_batch_is_answered_whatever_the_limits_and_only_the_first(
    agent: Serving, wide: str
) -> None:
    """
    The partition that has data first gives one batch that is over all limits, also where those
    before it have none; behind it nothing that is over a limit is answered.
    """
    small = {"max_bytes": 1_000, "partition_max_bytes": 1_000}
    async with agent.client() as client:
        large = await client.fetch(wide, {4: 0, 0: 0})
        behind = await client.fetch(wide, {0: 3, 1: 0, 2: 0}, **small)
        second = await client.fetch(wide, {0: 0, 4: 0}, partition_max_bytes=60_000)

    def sizes(answer: dict[int, object]) -> list[int]:
        return [len(records(data)) // 50_000 for data in answer.values()]  # type: ignore[arg-type]

    assert [8, 0] == sizes(dict(large))
    assert [0, 1, 0] == sizes(dict(behind))
    assert [1, 0] == sizes(dict(second))


async def test_partition_limits_hold_for_each(agent: Serving, wide: str) -> None:
    """
    partition_max_bytes is every partition's own, until max_bytes is reached over all of them.
    """
    async with agent.client() as client:
        answer = await client.fetch(
            wide, dict.fromkeys(range(4), 0), partition_max_bytes=110_000, max_bytes=270_000
        )

    assert [2, 2, 1, 0] == [len(records(data)) // 50_000 for data in answer.values()]


# ── Sessions ──


@pytest.mark.parametrize("version", [7, 11, 12])
async def test_a_fetch_of_a_session_is_told_that_there_is_none(
    agent: Serving, version: int
) -> None:
    """
    An id that nobody gave is not found, at once, and nothing is read for it; a client that asks
    for a new one gets its records and an id.
    """
    async with agent.client() as client:
        await client.create("t")
        await client.produce("t", {0: batch(1_000)})
        unknown = await client.call(
            fetch.API,
            version,
            fetching("t", {0: 0}, session_id=77, session_epoch=3, max_wait_ms=60_000),
        )
        new = await client.call(
            fetch.API, version, fetching("t", {0: 0}, session_id=0, session_epoch=0)
        )

    assert (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, []) == (
        unknown.error_code,
        unknown.session_id,
        unknown.responses,
    )
    assert 0 == new.error_code
    assert new.session_id > 0
    assert records(fetched(new)[0])


@pytest.mark.parametrize("session", [(77, 0), (77, -1), (-1, -1), (0, 0), (0, -1)])
async def test_a_full_fetch_needs_no_session(agent: Serving, session: tuple[int, int]) -> None:
    """
    Epochs 0 and −1 ask for all, whatever session is named (kafka-go's client names −1): as Kafka
    does it.  Any other epoch goes on with a session, 0 among them.
    """
    session_id, epoch = session
    async with agent.client() as client:
        await client.create("t")
        await client.produce("t", {0: batch(1_000)})
        full = await client.call(
            fetch.API, 11, fetching("t", {0: 0}, session_id=session_id, session_epoch=epoch)
        )
        further = await client.call(
            fetch.API, 11, fetching("t", {0: 0}, session_id=session_id, session_epoch=1)
        )

    assert 0 == full.error_code
    assert (full.session_id > 0) == (epoch == 0)
    assert records(fetched(full)[0])
    assert ErrorCode.FETCH_SESSION_ID_NOT_FOUND == further.error_code


async def test_the_next_request_goes_on_behind_a_refused_session(agent: Serving) -> None:
    """
    It takes its turn among the others.
    """
    async with agent.client() as client:
        await client.create("t")
        await client.produce("t", {0: batch(MiB // 2)})
        asked = [
            client.send(fetch.API, 11, fetching("t", {0: 0}, session_id=n % 2, session_epoch=n % 2))
            for n in range(6)
        ]
        answers = [await client.receive() for _ in asked]

    assert asked == [number for number, _ in answers]
    assert [0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND] * 3 == [a.error_code for _, a in answers]
