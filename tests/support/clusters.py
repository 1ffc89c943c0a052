"""The cluster that tests' stores belong to, for what opens sessions without `join_cluster`.

Session(store=await in_cluster(MemoryMetadataStore(…)), …)
"""

import asyncio

from driftlog_metadata.schema.codec import encode_cluster
from driftlog_metadata.schema.keys import CLUSTER_KEY
from driftlog_metadata.schema.model import Cluster
from driftlog_metadata.stores.store import CreateRevisionIs, MetadataStore, Put
from driftlog_metadata.witness.witness import StoreWitness
from driftlog_metadata.witness.witnessed_store import WitnessedStore

AUTHOR = Cluster("a-cluster")
"""The cluster that tests' manifests are of, at the newest level."""

CLUSTER = encode_cluster(AUTHOR)
"""The value of the cluster's key."""

MARK = Put(CLUSTER_KEY, CLUSTER)
"""What makes a store one of the cluster's."""


def _now_ms() -> float:
    """The loop's clock, which tests give to sessions as well."""
    return asyncio.get_running_loop().time() * 1000


def witnessed(store: MetadataStore) -> WitnessedStore:
    """*store*, as a new process of the cluster uses it."""
    return WitnessedStore(store, StoreWitness(_now_ms, CLUSTER))


async def in_cluster(store: MetadataStore) -> WitnessedStore:
    """As `witnessed`; a store without a cluster's key gets ours."""
    await store.txn((CreateRevisionIs(CLUSTER_KEY, 0),), (MARK,))
    kv = await store.get(CLUSTER_KEY)
    assert kv is not None
    return WitnessedStore(store, StoreWitness(_now_ms, kv.value))
