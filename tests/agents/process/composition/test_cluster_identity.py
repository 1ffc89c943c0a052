"""An agent starts on an old backup of its metadata store, and gives offsets to other records.

Or an option that does not change the identity of a cluster that exists goes unnamed.
"""

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import cast

import pytest
from structlog.testing import capture_logs

from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_agents.process.composition.cluster_identity import (
    ClusterIdentity,
    WrongClusterError,
    check_roles_known,
)
from driftlog_metadata.schema.codec import encode_head
from driftlog_metadata.schema.grace import DEFAULT_GRACE_MS, Grace
from driftlog_metadata.schema.keys import head_key
from driftlog_metadata.schema.model import ALL_ROLES, ROLES_LEVEL, Cluster, Role
from driftlog_metadata.stores.store import Put
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import FinalHead, encode_final_head
from driftlog_tiering.stores.object_store import Listing
from tests.agents.log.lives import now_ms, on_virtual_time
from tests.simulation.faults import Process
from tests.simulation.loop import VirtualLoop
from tests.simulation.sim_disk import Platter, SimDisk
from tests.support.memory_object_store import MemoryObjectStore
from tests.support.memory_store import MemoryMetadataStore

SESSION = f"{7:032x}"


class Started:
    """A cluster with one directory."""

    def __init__(self) -> None:
        self.objects = MemoryObjectStore(lambda: int(now_ms()))
        self.metadata = MemoryMetadataStore(lambda: int(now_ms()))
        self.platter = Platter()

    async def start(self) -> str:
        """Start an agent; returns the cluster's id."""
        process = Process("agent", cast(VirtualLoop, asyncio.get_running_loop()))
        identity = ClusterIdentity(
            objects=self.objects,
            disk=SimDisk(self.platter, process, Random(1)),
            location="the bucket",
            session_ms=0,
            rng=Random(1),
        )
        cluster, _, _ = await identity.join(self.metadata, UnknownKeys())
        return cluster.cluster_id

    async def go_on(self) -> None:
        """Other agents commit for a while."""
        for number in range(20):
            await self.metadata.txn((), [Put(head_key(SESSION), encode_head(number))])


@on_virtual_time
async def test_a_store_that_is_older_than_the_newest_group_snapshot_is_refused() -> None:
    """
    With the store as it was the start goes on.
    """
    cluster = Started()
    cluster_id = await cluster.start()
    backup = cluster.metadata.copy()
    await cluster.go_on()
    key = layout.group_snapshot_key(cluster_id, cluster.metadata.revision)
    await cluster.objects.put(key, [b"x"])
    assert cluster_id == await cluster.start()
    cluster.metadata.become(backup)

    with pytest.raises(WrongClusterError, match="driftlog restore"):
        await cluster.start()


@on_virtual_time
async def test_a_store_that_is_older_than_a_final_head_is_refused() -> None:
    """
    The backup has the session's head as it was then.
    """
    cluster = Started()
    cluster_id = await cluster.start()
    await cluster.go_on()
    backup = cluster.metadata.copy()
    await cluster.go_on()
    final = FinalHead(SESSION, 19, cluster.metadata.revision)
    await cluster.objects.put(layout.final_head_key(SESSION, 19), [encode_final_head(final)])
    assert cluster_id == await cluster.start()
    cluster.metadata.become(backup)

    with pytest.raises(WrongClusterError, match="driftlog restore"):
        await cluster.start()


class Slow(MemoryObjectStore):
    """Each listing takes a tenth of a second."""

    async def list(
        self, prefix: str, *, start_after: str = "", page_size: int = 1_000
    ) -> AsyncIterator[Listing]:
        async for page in super().list(prefix, start_after=start_after, page_size=page_size):
            await asyncio.sleep(0.1)
            yield page


@on_virtual_time
async def test_the_heads_of_many_sessions_are_checked_at_once() -> None:
    """
    A day of restarts leaves a thousand heads; one after the other a start takes minutes.
    """
    cluster = Started()
    cluster.objects = Slow(lambda: int(now_ms()))
    await cluster.start()
    for n in range(1_000):
        await cluster.metadata.txn((), [Put(head_key(f"{n:032x}"), encode_head(1))])
    began = now_ms()

    await cluster.start()

    assert now_ms() - began < 10_000


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


@pytest.mark.parametrize("roles", [[Role.SERVE], [Role.SEAL]])
def test_an_agent_with_one_role_needs_a_cluster_that_knows_roles(roles: list[Role]) -> None:
    """
    An older agent would take it for a broker; the error says what to do.
    """
    check_roles_known(Cluster("c", ROLES_LEVEL), frozenset(roles))
    check_roles_known(Cluster("c", ROLES_LEVEL - 1), ALL_ROLES)
    with pytest.raises(WrongClusterError, match=rf"^--roles {roles[0]}: .*upgrade --finalize"):
        check_roles_known(Cluster("c", ROLES_LEVEL - 1), frozenset(roles))
