"""An administrator who deletes records, through the agents' own handler.

1. A log starts where somebody was told that it does, or above: a later answer of any agent, a
   consumer and the stores at the end agree.
2. It never starts above what was asked for, nor above what is committed, and never goes back.
3. What is above is there, as if nothing had been deleted (`oracle`, `final_log`).
"""

import asyncio
import contextlib
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from driftlog_agents.handlers.api import delete_records
from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from driftlog_metadata.schema.model import TopicPartition
from tests.simulation.agent import Led
from tests.simulation.collecting import has_collecting

if TYPE_CHECKING:
    from tests.simulation.world import World

_SINGLE: Final = 9
_CLUSTER: Final = (25, 45)
_CLUSTERS_OF: Final = 50

_PATIENCE_S: Final = 20.0
_TIMEOUTS_MS: Final = (300, 5_000, 30_000)

_REFUSED: Final = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


def has_deletions(seed: int) -> bool:
    """Whether records are deleted: one in ten of single agents, some of clusters, and where the
    collector is watched.

    (Of seeds that find no planted bug, whose schedules this would change.)
    """
    return seed % 10 == _SINGLE or seed % _CLUSTERS_OF in _CLUSTER or has_collecting(seed)


@dataclass(slots=True, eq=False)
class Deletions:
    """See the module."""

    world: "World"
    rng: Random
    asked: dict[TopicPartition, int] = field(default_factory=dict)
    """The largest offset that anybody asked for."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.3, 4))
            process = self.rng.choice(self.world.nodes).process
            engine = process.engine
            logs = engine.logs() if engine is not None and process.serving else []
            if engine is not None and logs:
                led = Led(process, engine, self.rng.choice(logs))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PATIENCE_S):
                        await process.do(self._delete(led))

    async def _delete(self, led: Led) -> None:
        log, oracle = led.log, self.world.oracle
        tp = TopicPartition(log.topic_id, log.partition)
        end = log.high_watermark
        offset = self.rng.randint(0, end + 1)
        if self.rng.random() < 0.2:
            offset = delete_records.HIGH_WATERMARK
        wanted = DeleteRecordsPartition(partition_index=log.partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=log.topic, partitions=[wanted])],
            timeout_ms=self.rng.choice(_TIMEOUTS_MS),
        )
        # −1 is what is committed when it arrives there: the ledger bounds that.
        bound = offset if offset >= 0 else 1 << 62
        self.asked[tp] = max(bound, self.asked.get(tp, 0))
        told = oracle.starts.get(tp, 0)
        response = await delete_records.handle(
            led.process.broker,
            request,
            RequestContext(
                api_version=2, client_id="deletes", client_host="localhost", listener="PLAINTEXT"
            ),
        )
        (answer,) = response.topics[0].partitions
        what = f"{log!r}: {answer} for {offset}"
        if led.engine.log(log.topic, log.partition) is not log:
            return  # it may have been a topic of the same name
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._expect(offset > end, f"{what}, when it ended at {end}")
        elif answer.error_code:
            self._expect(answer.error_code in _REFUSED, what)
        else:
            self.world.count("deletions of records")
            self._expect(answer.low_watermark >= max(told, offset), f"{what}, {told} was told")
            oracle.told_start(tp, answer.low_watermark)

    def check(self, tp: TopicPartition, start: int) -> None:
        """Where the log starts in the end."""
        self._expect(start <= self.asked.get(tp, 0), f"{tp} starts at {start}: nobody asked")

    def _expect(self, holds: bool, message: str) -> None:
        self.world.expect(holds, message)
