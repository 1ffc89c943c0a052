"""One change of a topic that fails ends all others, and the agent."""

import asyncio

import pytest

from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.topics.change_queue import TopicChangeQueue


@pytest.mark.parametrize("error", [ValueError("an empty string has no key"), KeyError("x")])
async def test_a_change_that_fails_in_an_unknown_way_is_refused_and_the_others_go_on(
    error: Exception,
) -> None:
    """
    Any client may send the request that shows a bug.
    """
    queue = TopicChangeQueue()
    go_on = asyncio.Event()

    async def fails() -> None:
        raise error

    async def waits() -> str:
        await go_on.wait()
        return "done"

    async with asyncio.TaskGroup() as queue.tasks:
        other = asyncio.create_task(queue.owned(waits()))
        with pytest.raises(RefusedError) as refused:
            await queue.owned(fails())
        go_on.set()

        assert ErrorCode.UNKNOWN_SERVER_ERROR is refused.value.code
        assert "done" == await other
        assert 0 == queue.pending
