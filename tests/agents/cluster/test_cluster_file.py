"""The look at cluster.json before each delete: without it a collector empties another's bucket."""

import pytest

from driftlog_agents.cluster.cluster_file import ClusterFile
from driftlog_agents.log.garbage.deletions import Deletions
from driftlog_agents.log.garbage.garbage_objects import Garbage, GarbageReason
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import Cluster
from driftlog_metadata.stores.errors import CorruptError, FencedError
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import encode_cluster
from tests.support.memory_object_store import MemoryObjectStore

OBJECT = layout.flush_key("s", 1, "a")
GARBAGE = [Garbage(OBJECT, 1, GarbageReason.NO_RECORD)]


async def deletes_with(body: bytes | None) -> tuple[Deletions, MemoryObjectStore]:
    """Deletions of cluster a with the default grace, on a bucket whose file is *body*."""
    bucket = MemoryObjectStore(lambda: 0)
    await bucket.put(OBJECT, [b"x"])
    if body is not None:
        await bucket.put(layout.CLUSTER_KEY, [body])
    confirm = ClusterFile(bucket, "a", Grace()).confirm
    return Deletions(bucket, confirm, deadline_ms=1_000), bucket


async def test_the_own_cluster_is_confirmed_before_each_delete() -> None:
    """
    A file of the first releases, which has no grace, means 12 h.
    """
    deletions, bucket = await deletes_with(encode_cluster(Cluster("a")))

    await deletions.delete(GARBAGE)

    assert [layout.CLUSTER_KEY] == [i.key async for p in bucket.list("") for i in p.objects]
    assert {("flush_object", "no_flush_record"): 1} == deletions.objects == deletions.bytes


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (None, FencedError),
        (encode_cluster(Cluster("b")), FencedError),
        (encode_cluster(Cluster("a"), Grace(60_000)), FencedError),
        (b"{", CorruptError),
    ],
    ids=["no file", "another cluster", "another grace", "damaged"],
)
async def test_nothing_is_deleted_in_any_other_bucket(
    body: bytes | None, error: type[Exception]
) -> None:
    """
    Another grace counts, too: agents that read the old one may still name older objects.
    """
    deletions, bucket = await deletes_with(body)

    with pytest.raises(error):
        await deletions.delete(GARBAGE)

    assert b"x" == await bucket.get(OBJECT)
    assert not deletions.objects


async def test_a_key_that_is_not_driftlogs_is_never_deleted() -> None:
    """
    Whatever names it as garbage: the batch that has it is refused.
    """
    deletions, bucket = await deletes_with(encode_cluster(Cluster("a")))

    with pytest.raises(ValueError, match=r"flush/notes\.txt"):
        await deletions.delete([*GARBAGE, Garbage("flush/notes.txt", 1, GarbageReason.NO_RECORD)])

    assert b"x" == await bucket.get(OBJECT)
