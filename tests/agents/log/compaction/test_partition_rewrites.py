"""A rewrite leaves the memory of large row groups to cold reads, until its thread is free."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, cast

from driftlog_agents.foundation.offload import SerialOffload
from driftlog_agents.log.compaction.partition_rewrites import (
    PartitionBucket,
    PartitionRewrites,
)
from driftlog_agents.log.compaction.rewrite_ports import RewritePorts
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_metadata.schema.grace import Grace
from tests.agents.log.tiers import TOPIC_ID
from tests.support.memory_object_store import MemoryObjectStore
from tests.tiering.compaction.test_cleaner import spool

MiB = 1 << 20


class Thread:
    """The thread of upkeep, which runs calls when it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def offload(self, fn: Callable[..., Any], *args: Any) -> Any:
        await self.go.wait()
        return fn(*args)


async def test_a_large_row_group_has_no_turn_while_the_thread_does_other_work() -> None:
    """
    A cold read decodes meanwhile.  Then the rewrite has its turn, and the next read waits for it.
    """
    thread = Thread()
    ports = RewritePorts(
        objects=MemoryObjectStore(lambda: 0),
        offload=SerialOffload(thread.offload),
        spool=spool,
        rng=Random(1),
        now_ms=lambda: 0.0,
        wall_ms=lambda: 0,
    )
    rewrites = PartitionRewrites(
        session=cast(Any, None), manifests=cast(Any, None), grace=Grace(1), ports=ports
    )
    log = PartitionLog(topic="t", topic_id=TOPIC_ID, partition=0, leader_epoch=1)
    bucket = PartitionBucket(rewrites, log)
    held: list[int] = []
    verification = asyncio.create_task(ports.offload(held.append, 0))
    await asyncio.sleep(0)
    rewrite = asyncio.create_task(bucket.decode(40 * MiB, held.append, 1))
    await asyncio.sleep(0)

    async with asyncio.timeout(5), ports.decoding.large(40 * MiB):
        held.append(2)
        thread.go.set()
        await verification
        assert [2, 0] == held
    await rewrite
    assert [2, 0, 1] == held
