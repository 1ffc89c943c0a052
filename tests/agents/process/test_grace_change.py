"""Grace is changed while no agent runs: else one agent names objects that another one deletes."""

import json

import pytest

from driftlog_agents.process.grace_change import AgentsRunError, change_grace, read_grace
from driftlog_metadata.schema.codec import encode_cluster, encode_live_session
from driftlog_metadata.schema.grace import DEFAULT_GRACE_MS, Grace
from driftlog_metadata.schema.keys import CLUSTER_KEY, session_key
from driftlog_metadata.schema.model import Cluster, LiveSession
from driftlog_metadata.stores.errors import FencedError, UnavailableError
from driftlog_metadata.stores.store import Put
from driftlog_tiering.formats import bucket_files, layout
from driftlog_tiering.formats.stored_json import encode_json
from tests.support.memory_object_store import MemoryObjectStore
from tests.support.memory_store import MemoryMetadataStore

NEW = Grace(86_400_000)
SESSION = Put(session_key("5e55"), encode_live_session(LiveSession(node_id=7)))


class World:
    """Both stores of a cluster."""

    def __init__(self) -> None:
        self.metadata = MemoryMetadataStore(lambda: 0)
        self.bucket = MemoryObjectStore(lambda: 0)

    async def begin(self, cluster_id: str = "c") -> "World":
        await self.metadata.txn((), [Put(CLUSTER_KEY, encode_cluster(Cluster("c")))])
        body = bucket_files.encode_cluster(Cluster(cluster_id))
        await self.bucket.put(layout.CLUSTER_KEY, [body])
        return self

    async def change(self, *, alone: bool = False) -> None:
        await change_grace(self.metadata, self.bucket, NEW, alone=alone)

    async def grace(self) -> Grace:
        return await read_grace(self.bucket)


async def test_grace_is_changed_and_nothing_else_of_the_file() -> None:
    """
    Fields that a newer release has written stay.
    """
    world = await World().begin()
    fields = {"cluster_id": "c", "grace_ms": DEFAULT_GRACE_MS, "restored_from": ["b"]}
    await world.bucket.delete([layout.CLUSTER_KEY])
    await world.bucket.create(layout.CLUSTER_KEY, [encode_json("driftlog.cluster", 1, fields)])
    await world.change()

    there = json.loads(await world.bucket.get(layout.CLUSTER_KEY))
    assert await world.grace() == NEW
    assert ["b"] == there["restored_from"]
    assert Cluster("c", 1) == bucket_files.decode_cluster(
        await world.bucket.get(layout.CLUSTER_KEY)
    )


async def test_an_agent_that_runs_refuses_the_change() -> None:
    """
    But not in a directory that the caller holds: there the session is of an agent that was killed.
    """
    world = await World().begin()
    await world.metadata.txn((), [SESSION])
    with pytest.raises(AgentsRunError, match="agent 7") as told:
        await world.change()
    refused = await world.grace()
    await world.change(alone=True)

    assert not told.value.changed
    assert DEFAULT_GRACE_MS == refused.ms
    assert await world.grace() == NEW


async def test_an_agent_that_starts_meanwhile_is_told_of() -> None:
    """
    It may have read the grace of before.
    """
    world = await World().begin()
    works = world.bucket.create

    async def create(key: str, body: object) -> None:
        await works(key, body)  # type: ignore[arg-type]
        await world.metadata.txn((), [SESSION])

    world.bucket.create = create  # type: ignore[method-assign]
    with pytest.raises(AgentsRunError, match="agent 7") as told:
        await world.change()

    assert told.value.changed


async def test_of_two_changes_at_once_one_is_told() -> None:
    """
    A restore creates the same file: it would be undone.
    """
    world = await World().begin()
    body = bucket_files.encode_cluster(Cluster("c"), Grace(1_000_000))
    works = world.bucket.create

    async def create(key: str, new: list[bytes]) -> None:
        if key == layout.cluster_key(1):
            await works(key, [body])
        await works(key, new)

    world.bucket.create = create  # type: ignore[method-assign, assignment]
    with pytest.raises(UnavailableError):
        await world.change()

    assert await world.grace() == Grace(1_000_000)


async def test_grace_changes_more_than_once() -> None:
    """
    Each change is a file of its own, and ``cluster.json`` says the same.
    """
    world = await World().begin()
    await world.change()
    await change_grace(world.metadata, world.bucket, Grace(5_000))

    first = bucket_files.decode_grace(await world.bucket.get(layout.CLUSTER_KEY))
    assert await world.grace() == first == Grace(5_000)


async def test_stores_of_two_clusters_are_refused() -> None:
    """
    The sessions of the one say nothing of the other's agents.
    """
    world = await World().begin("another")
    with pytest.raises(FencedError):
        await world.change()

    assert DEFAULT_GRACE_MS == (await world.grace()).ms
