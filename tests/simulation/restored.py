"""A cluster is restored from its bucket while its agents still run, with their metadata store.

    old agents serve ── the next cluster file ── 75 s ── the restore reads what the bucket has
       ▲ frozen, killed, slow PUTs, a bucket that is away; ── ends at its next commit

In seeds of their own, with no other phase:

1. What an old agent acknowledged with acks=all, at any time, is in the restored log at its offset.
2. Once the restore has waited, nothing is acknowledged that was not committed before.
3. Every old agent that has something to commit ends, and is not started again.
4. Groups come back as `restored_groups` says, and topics as `restored_topics` does.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

from driftlog_agents.foundation.offload import inline
from driftlog_agents.process.composition.cluster_identity import WrongClusterError
from driftlog_agents.restore.old_agents import until_old_agents_stop
from driftlog_agents.restore.restorer import RestorePorts, Restorer
from driftlog_metadata.schema.codec import decode_cluster
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats.manifests import load_newest
from tests.simulation.final_log import read_sealed
from tests.simulation.format_levels import first_cluster
from tests.simulation.loop import NOBODY
from tests.simulation.oracle import GONE, Place
from tests.simulation.restored_groups import RestoredGroups
from tests.simulation.restored_topics import RestoredTopics, has_altered_topic
from tests.support.agent_ports import spool
from tests.support.memory_store import MemoryMetadataStore

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World

_FIRST, _END = 20_000, 30_000

_STOPPED_S: Final = 240
"""After the restore: one agent after the other takes what the last one led, and ends."""


def has_restore(seed: int) -> bool:
    """Whether the seed is one."""
    return _FIRST <= seed < _END


class RestoredBeside:
    """See the module."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"restore {world.seed}")
        self._metadata = MemoryMetadataStore(lambda: int(world.now_ms()))
        self._ends: dict[TopicPartition, int] | None = None
        """What was committed when the restore had waited; None: it has not yet."""
        self._begins = asyncio.Event()
        self._groups = RestoredGroups(world)
        self._topics = RestoredTopics(world)

    # ── What the world asks ──

    @property
    def is_over(self) -> bool:
        """Whether the restore goes on: manifests are not the old cluster's any more."""
        return self._ends is not None

    def acknowledged(self, place: Place) -> None:
        """A producer was told by an old agent that a batch is committed."""
        if self._ends is not None:
            end, there = place.base_offset + len(place.records), self._ends.get(place.tp, 0)
            self._world.expect(
                end <= there,
                f"{place.tp} was acknowledged up to {end} after the restore, which has {there}",
            )

    def ends(self, error: BaseException) -> bool:
        """Whether an agent ended because the bucket is another cluster's."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return isinstance(error, WrongClusterError) and "of cluster" in str(error)

    # ── The phase ──

    async def run(self) -> None:
        """From agents that serve to agents that have ended, and a log that is compared."""
        world, rng = self._world, self._rng
        await world.ready()
        loop = asyncio.get_running_loop()
        producing = loop.create_task(self._produce(), context=NOBODY.copy())
        consuming = self._groups.start()
        altering: list[asyncio.Task[None]] = []
        if has_altered_topic(world.seed):
            altering = [
                loop.create_task(work, context=NOBODY.copy())
                for work in (self._topics.run(), self._topics.watch())
            ]
        await asyncio.sleep(rng.uniform(3, 45))
        await self._groups.check_before_faults()
        faults = [
            loop.create_task(self._trouble(node), context=NOBODY.copy()) for node in world.nodes
        ]
        if rng.random() < 0.5:
            self._aim(rng.choice(world.nodes))
            async with asyncio.timeout(120):
                await self._begins.wait()
        world.note("restored")
        ports = RestorePorts(
            metadata=self._metadata,
            objects=world.bucket,
            offload=inline,
            spool=spool,
            rng=Random(rng.getrandbits(64)),
            now_ms=world.now_ms,
            wait=self._wait,
            progress=lambda what, count: None,
        )
        report = await Restorer(ports).run(decode_cluster(first_cluster(world.seed)).cluster_id)
        world.expect(report.is_whole, f"not restored: {report}")
        await self._check()
        await self._groups.check(self._metadata)
        await self._topics.check_restored(self._metadata)
        await asyncio.gather(*faults)
        await self._all_end()
        for task in (producing, *altering):
            task.cancel()
        if consuming is not None:
            consuming.cancel()
        await self._check()

    async def _wait(self) -> None:
        await until_old_agents_stop(lambda what, count: None)
        self._ends = dict(self._world.ledger.ends)
        self._world.ledger.close()
        self._topics.waited()

    async def _produce(self) -> None:
        while True:
            for topic in self._world.first_topics:
                self._world.produce_to(topic, batches=8)
            await asyncio.sleep(self._rng.uniform(4, 12))

    def _aim(self, node: "Node") -> None:
        """Let the restore begin just when a look of *node* has acted, and its answer travels; it
        reads the answer, or what it has sent before, long after."""

        def begin() -> None:
            self._begins.set()
            seconds = self._rng.choice((10.0, 30.0, 100.0))
            work = node.pause(seconds, threads=self._rng.random() < 0.7)
            asyncio.get_running_loop().create_task(work, context=NOBODY.copy())

        node.trap("get cluster/", begin)
        asyncio.get_running_loop().call_later(60, self._begins.set, context=NOBODY.copy())

    async def _trouble(self, node: "Node") -> None:
        """What happens to one machine until the restore is over."""
        rng = self._rng
        for _ in range(rng.randint(1, 4)):
            await asyncio.sleep(rng.uniform(0, 25))
            match rng.choice(("frozen", "frozen", "slow", "away", "killed")):
                case "frozen":
                    await node.pause(rng.choice((4.0, 20.0, 70.0, 90.0)))
                case "slow":
                    node.store_weather.late = 0.3
                    await asyncio.sleep(rng.uniform(5, 30))
                    node.store_weather.late = 0.0
                case "away":
                    node.store_weather.down = True
                    await asyncio.sleep(rng.uniform(5, 90))
                    node.store_weather.down = False
                case _:
                    node.kill("kill")

    async def _all_end(self) -> None:
        left: list[int] = []
        for _ in range(_STOPPED_S):
            left = [n.number for n in self._world.nodes if not (n.last_life and n.well)]
            if not left:
                return
            await asyncio.sleep(1)
        self._world.expect(False, f"agents of the old cluster go on: {left}")

    # ── The oracle ──

    async def _check(self) -> None:
        world = self._world
        by_partition: dict[TopicPartition, dict[int, Callable[..., bool]]] = {}
        for (tp, offset), told in world.oracle.acked.items():
            if (tp, offset) not in world.oracle.ones:
                by_partition.setdefault(tp, {})[offset] = told.is_in
        names = {topic.topic_id: topic.name for topic in world.first_topics}
        for tp, acked in by_partition.items():
            manifest = await load_newest(world.bucket, names[tp.topic_id], tp)
            world.expect(manifest is not None, f"{tp} has no manifest")
            assert manifest is not None
            log = await read_sealed(world, manifest)
            start, cleaned_end = manifest.log_start, manifest.cleaned_end
            for offset, is_in in acked.items():
                row = log.get(offset, GONE)
                holds = is_in(row) or offset < start or (row is GONE and offset < cleaned_end)
                world.expect(holds, f"{offset} of {tp} was acknowledged, and the restore has {row}")
