"""A task that is started while its group ends is reported as the end of the session."""

import asyncio

import pytest

from driftlog_agents.foundation.tasks import spawn
from driftlog_metadata.stores.errors import FencedError


async def _work() -> int:
    return 7


async def test_a_task_of_a_group_that_goes_on_runs() -> None:
    """
    As the group's own.
    """
    async with asyncio.TaskGroup() as tasks:
        task = spawn(tasks, _work())

    assert 7 == task.result()


async def test_a_group_that_is_ending_is_a_session_that_is_over() -> None:
    """
    No bug, which would end the agent: who is still at work in the same turn is told so, and nothing
    is left that was never awaited.
    """
    told: list[BaseException] = []

    async def fails() -> None:
        raise ValueError("the first")

    async def goes_on(tasks: asyncio.TaskGroup) -> None:
        try:
            await asyncio.sleep(10)
        finally:
            try:
                spawn(tasks, _work())
            except FencedError as error:
                told.append(error)

    async def both() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(goes_on(tasks))
            await asyncio.sleep(0)
            tasks.create_task(fails())

    with pytest.raises(ExceptionGroup) as ended:
        await both()

    assert ["the session is over"] == [str(error) for error in told]
    assert [ValueError] == [type(error) for error in ended.value.exceptions]
