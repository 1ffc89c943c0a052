"""An agent tells an operator that its options do not change the identity of a cluster that exists.

If it failed: a grace that is not the cluster's would be taken for it.
"""

from random import Random
from typing import cast

import pytest
from structlog.testing import capture_logs

from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_agents.process.cluster_identity import ClusterIdentity
from driftlog_metadata.schema.grace import DEFAULT_GRACE_MS, Grace
from tests.support.memory_object_store import MemoryObjectStore
from tests.support.memory_store import MemoryMetadataStore


class EmptyDisk:
    """A new directory, of which nothing is read again."""

    def load(self, name: str) -> None:
        return None

    async def save(self, name: str, data: bytes) -> None:
        return None


@pytest.mark.parametrize(
    ("option_ms", "warnings"), [(60_000, 1), (5_000, 0), (DEFAULT_GRACE_MS, 0)]
)
async def test_a_grace_that_is_not_the_clusters_is_named(option_ms: int, warnings: int) -> None:
    """
    The option has no effect on a cluster that exists; without it there is nothing to say.
    """
    metadata, objects = MemoryMetadataStore(lambda: 0), MemoryObjectStore(lambda: 0)

    async def start(grace_ms: int) -> Grace:
        identity = ClusterIdentity(
            objects=objects,
            disk=cast(AgentDisk, EmptyDisk()),
            location="s3://bucket",
            session_ms=0,
            rng=Random(grace_ms),
            grace=Grace(grace_ms),
        )
        _, _, found = await identity.join(metadata, UnknownKeys())
        return found

    with capture_logs() as lines:
        first = await start(5_000)
    assert [] == [line for line in lines if line["event"] == "new_cluster_grace_ignored"]
    with capture_logs() as lines:
        second = await start(option_ms)

    assert Grace(5_000) == first == second
    told = [line for line in lines if line["event"] == "new_cluster_grace_ignored"]
    assert warnings == len(told)
    assert all("driftlog cluster grace --set" in line["advice"] for line in told)
