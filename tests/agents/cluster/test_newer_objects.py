"""An agent on an old backup of its metadata store serves, and gives offsets to other records."""

from driftlog_agents.cluster.newer_objects import newer_final_head, newer_group_snapshot
from driftlog_metadata.stores.store import Put
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import FinalHead, encode_final_head
from tests.support.clusters import MARK
from tests.support.memory_object_store import MemoryObjectStore
from tests.support.memory_store import MemoryMetadataStore


async def stores() -> tuple[MemoryObjectStore, MemoryMetadataStore, int]:
    """A bucket, a metadata store of the cluster, and its revision."""
    metadata = MemoryMetadataStore(lambda: 0)
    await metadata.txn((), [MARK])
    for number in range(9):
        await metadata.txn((), [Put("k", b"%d" % number)])
    return MemoryObjectStore(lambda: 0), metadata, metadata.revision


async def test_the_newest_snapshot_of_the_own_cluster_counts() -> None:
    """
    One of the store's revision, or below it, is what a cluster that goes on finds.
    """
    objects, metadata, revision = await stores()
    assert "" == await newer_group_snapshot(objects, metadata, "c")
    await objects.put(layout.group_snapshot_key("c", revision), [b"x"])
    await objects.put(layout.group_snapshot_key("other", revision + 5), [b"x"])
    assert "" == await newer_group_snapshot(objects, metadata, "c")
    await objects.put(layout.group_snapshot_key("c", revision + 1), [b"x"])

    wrong = await newer_group_snapshot(objects, metadata, "c")

    assert "driftlog restore" in wrong
    assert layout.group_snapshot_key("c", revision + 1) in wrong


async def test_every_final_head_of_a_session_counts() -> None:
    """
    Whatever it says, a head is of the store's revision or below it.
    """
    objects, metadata, revision = await stores()

    async def ended(session_id: str, head: int, at: int) -> None:
        body = encode_final_head(FinalHead(session_id, head, at))
        await objects.put(layout.final_head_key(session_id, head), [body])

    assert "" == await newer_final_head(objects, metadata, "s")
    await ended("s", 3, revision)
    await ended("t", 9, revision + 5)
    assert "" == await newer_final_head(objects, metadata, "s")
    await ended("s", 2, revision + 1)

    assert layout.final_head_key("s", 2) in await newer_final_head(objects, metadata, "s")
