"""DescribeLogDirs: one directory, the store, and the size of each partition in it.

Each agent answers for the partitions that it leads: clients ask all agents.  A partition's size is
that which retention counts: the batches above log start, in bytes as received.  A bucket has no
total and no usable bytes: both are −1, "not known".
Source: kafka.server.ReplicaManager#describeLogDirs.
Shell.
"""

from typing import Final

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.handlers.common.broker import Broker
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.partition.partition import State
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

_PARTITION_BYTES: Final = 200
"""Memory of one partition while an answer is made: its object, and its bytes."""


async def handle(
    broker: Broker, request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse:
    """Answer *request*; partitions that this agent does not lead are left out."""
    engine = broker.engine
    where = broker.settings.location or "bucket"
    if engine is None or not engine.ready.is_set():
        # The directory is offline, like that of a failed disk: tools show that and ask again.
        offline = DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=where)
        return DescribeLogDirsResponse(results=[offline])
    wanted: dict[str, set[int] | None] = dict.fromkeys(engine.topics)
    if request.topics is not None:
        wanted = {topic.topic: set() for topic in request.topics}
        for topic in request.topics:
            numbers = wanted[topic.topic]
            assert numbers is not None
            numbers.update(topic.partitions)
    there = 0
    async for name, numbers in sliced(wanted.items()):
        entry = engine.topics.get(name)
        if entry is not None:
            there += len(entry.logs) if numbers is None else min(len(numbers), len(entry.logs))
    await context.room(there * _PARTITION_BYTES)
    topics = [
        described
        async for name, numbers in sliced(wanted.items())
        if (described := _described(engine, name, numbers)).partitions
    ]
    return DescribeLogDirsResponse(results=[DescribeLogDirsResult(log_dir=where, topics=topics)])


def _described(engine: Engine, name: str, numbers: set[int] | None) -> DescribeLogDirsTopic:
    entry = engine.topics.get(name)
    return DescribeLogDirsTopic(
        name=name,
        partitions=[
            DescribeLogDirsPartition(
                partition_index=log.partition,
                partition_size=engine.upkeep.retention.size_bytes(log),
            )
            for log in ([] if entry is None else entry.logs)
            if log is not None
            and log.state is not State.CLOSED
            and (numbers is None or log.partition in numbers)
        ],
    )
