"""Groups of a cluster that is restored from its bucket: offsets as the newest snapshot has them.

    members commit ── a snapshot every 5 s ── the restore ── the restored store has them

1. A restored offset was committed, and was not fenced.  It is as new as the newest snapshot that
   the bucket has: no commit is missing that was acknowledged before the metadata store passed the
   snapshot's revision.
2. Before the first fault the newest snapshot is as new as two intervals allow.

In the seeds of `restored` that have groups.  In all other seeds agents put no snapshots: where the
answer of the metadata store is lost, the read of all groups ends after ten minutes, and `restarts`
waits for one (seed 288).  Requests to etcd end after two seconds.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from driftlog_agents.groups.storage_format import decode_page
from driftlog_metadata.schema.keys import GROUPS_PREFIX, parse_group_key
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats import layout
from tests.simulation.aimed import is_aimed
from tests.simulation.format_levels import is_raised
from tests.simulation.loop import NOBODY
from tests.support.memory_store import MemoryMetadataStore

if TYPE_CHECKING:
    from tests.simulation.world import World

INTERVAL_MS: Final = 5_000.0
"""At which agents put snapshots of groups."""

_SAMPLE_S: Final = 0.1
_ALLOWED_S: Final = 2 * INTERVAL_MS / 1000
"""The age of the newest snapshot without faults: the interval, and the requests of the put."""


class RestoredGroups:
    """See the module."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._revisions: list[tuple[float, int]] = []
        """The metadata store's revision at each sample; both ascend."""

    def start(self) -> "asyncio.Task[None] | None":
        """Let members begin; None: the seed has none."""
        if self._world.groups is None:
            return None
        return asyncio.get_running_loop().create_task(self._run(), context=NOBODY.copy())

    async def _run(self) -> None:
        assert self._world.groups is not None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._world.groups.run())
            while True:
                now_s, revision = self._world.loop.now_s, self._world.metadata.revision
                self._revisions.append((now_s, revision))
                await asyncio.sleep(_SAMPLE_S)

    async def check_before_faults(self) -> None:
        """After some time in which nothing has failed."""
        seed = self._world.seed
        if self._world.groups is None or is_raised(seed) or is_aimed(seed):
            return  # agents of level 1 put no snapshots; aimed reads of groups are not answered
        calm_s = self._world.loop.now_s - self._revisions[0][0]
        if calm_s > _ALLOWED_S:
            age_s = self._world.loop.now_s - await self._snapshot_s()
            self._world.expect(
                age_s <= _ALLOWED_S, f"the newest snapshot of groups is {age_s:.1f} s old"
            )

    async def check(self, restored: MemoryMetadataStore) -> None:
        """When the restore has ended."""
        groups = self._world.groups
        if groups is None:
            return
        snapshot_s = await self._snapshot_s()
        offsets: dict[tuple[str, TopicPartition], int] = {}
        for kv in restored.snapshot(GROUPS_PREFIX):
            key = parse_group_key(kv.key)
            if key.topic_id is not None:
                for partition, committed in decode_page(kv.value, key.page).items():
                    tp = TopicPartition(key.topic_id, partition)
                    offsets[key.group_id, tp] = committed.offset
        for ledger in groups.ledgers:
            for tp in ledger.commits:
                ledger.read(tp, offsets.get((ledger.name, tp), -1), snapshot_s)
        self._world.count_many("offsets restored", len(offsets))

    async def _snapshot_s(self) -> float:
        """A time before which every commit is in the newest snapshot: the last at which the store
        had not passed its revision."""
        revisions = [
            layout.parse_group_snapshot_key(info.key).revision
            async for page in self._world.bucket.list(layout.GROUPS_PREFIX)
            for info in page.objects
        ]
        newest = max(revisions, default=-1)
        before = [at_s for at_s, revision in self._revisions if revision <= newest]
        return max(before, default=float("-inf"))
