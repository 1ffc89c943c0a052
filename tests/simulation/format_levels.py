"""Clusters that begin at format level 1 and are raised while everything else happens.

Agents go on from formats of level 1 to those of level 2 in the middle of flushes, seals, rewrites
and takeovers; an agent that comes back on an older metadata store finds newer objects.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Final

from driftlog_metadata.schema.codec import encode_cluster
from driftlog_metadata.schema.keys import CLUSTER_KEY
from driftlog_metadata.schema.model import Cluster
from driftlog_metadata.stores.store import Put
from tests.simulation.faults import now
from tests.simulation.store_loss import has_store_loss
from tests.support.clusters import AUTHOR, CLUSTER

if TYPE_CHECKING:
    from tests.simulation.world import World

_EVERY: Final = 3
AT_LEVEL_1: Final = encode_cluster(Cluster(AUTHOR.cluster_id, 1))


def is_raised(seed: int) -> bool:
    """Whether the seed's cluster begins at level 1: a third of them.  A store that is lost is put
    back as it was at the beginning."""
    return seed % _EVERY == 0 and not has_store_loss(seed)


def first_cluster(seed: int) -> bytes:
    """The value of the cluster's key at the beginning."""
    return AT_LEVEL_1 if is_raised(seed) else CLUSTER


async def raise_level(world: "World") -> None:
    """As `driftlog cluster upgrade --finalize`, at some time."""
    await asyncio.sleep(Random(f"level {world.seed}").uniform(1, 25))
    now(world.metadata.txn((), [Put(CLUSTER_KEY, CLUSTER)]))
    world.note("format level raised")
