"""A failed read of flush objects ends what its caller would repeat."""

import asyncio

import pytest

from driftlog_agents.log.recovery.flush_object_ends import do_all
from driftlog_metadata.stores.errors import UnavailableError


async def test_a_failure_leaves_no_cancellation_counted() -> None:
    """
    `foundation/retry` takes a counted cancellation for the end of the task.
    """

    async def fail() -> None:
        await asyncio.sleep(0)
        raise UnavailableError("slow down")

    with pytest.raises(UnavailableError):
        await do_all([fail(), asyncio.sleep(0.01)])

    task = asyncio.current_task()
    assert task is not None
    assert 0 == task.cancelling()
