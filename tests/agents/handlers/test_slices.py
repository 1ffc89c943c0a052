"""Long work of requests: where it is done, and who does not wait for it."""

import asyncio
import threading

from driftlog_agents.handlers.slices import off_the_loop
from tests.agents.network.serving import eventually


async def test_large_requests_hold_up_nobody_who_needs_a_thread() -> None:
    """
    A hundred of them wait to be decoded, one after the other: what the event loop's own threads
    are asked for (a file, a name, the fitness of the agent) is done meanwhile.
    """
    go_on, threads = threading.Event(), set[str]()

    def decode() -> None:
        threads.add(threading.current_thread().name)
        go_on.wait()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(100):
            tasks.create_task(off_the_loop(decode))
        await eventually(lambda: bool(threads))
        try:
            async with asyncio.timeout(10):
                done = await asyncio.to_thread(lambda: "done")
        finally:
            go_on.set()

    assert "done" == done
    assert 1 == len(threads)
