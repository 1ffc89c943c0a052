"""A bucket is taken for the cluster's that it was before a restore."""

from collections.abc import AsyncIterator

import pytest

from driftlog_metadata.schema.model import Cluster
from driftlog_tiering.formats import bucket_files, layout
from driftlog_tiering.formats.cluster_files import newest_cluster_file
from driftlog_tiering.stores.object_store import Listing, NotFoundError
from tests.support.memory_object_store import MemoryObjectStore


async def test_the_file_of_the_largest_number_is_valid() -> None:
    """
    By number, and not by age; an unrecognised key is no file.
    """
    bucket = MemoryObjectStore(lambda: 0)
    with pytest.raises(NotFoundError):
        await newest_cluster_file(bucket)
    for number in (0, 11, 2):
        body = bucket_files.encode_cluster(Cluster(f"c{number}"))
        await bucket.put(layout.cluster_key(number), [body])
    await bucket.put("cluster/notes.txt", [b"x"])

    number, found = await newest_cluster_file(bucket)

    assert (11, "c11") == (number, bucket_files.decode_cluster(found).cluster_id)


async def test_a_restore_may_be_interrupted_while_it_replaces_the_first_file() -> None:
    """
    The next file is there then, and counts.
    """
    bucket = MemoryObjectStore(lambda: 0)
    await bucket.put(layout.cluster_key(1), [bucket_files.encode_cluster(Cluster("c"))])

    number, found = await newest_cluster_file(bucket)

    assert (1, "c") == (number, bucket_files.decode_cluster(found).cluster_id)


class Behind(MemoryObjectStore):
    """A store whose listings lack the newest objects."""

    async def list(
        self, prefix: str, *, start_after: str = "", page_size: int = 1000
    ) -> AsyncIterator[Listing]:
        yield Listing((), 0)


async def test_a_listing_that_lacks_the_newest_file_hides_no_restore() -> None:
    """
    Files are numbered without a gap, so the next one is asked for.
    """
    bucket = Behind(lambda: 0)
    for number in range(4):
        body = bucket_files.encode_cluster(Cluster("new" if number == 3 else "old"))
        await bucket.put(layout.cluster_key(number), [body])

    number, found = await newest_cluster_file(bucket)

    assert (3, "new") == (number, bucket_files.decode_cluster(found).cluster_id)


def test_a_file_says_which_clusters_the_bucket_had() -> None:
    """
    The newest last; the file of a new cluster names none.
    """
    restored = bucket_files.encode_cluster(Cluster("c"), None, ("a", "b"))
    new = bucket_files.encode_cluster(Cluster("c"))

    assert ("a", "b") == bucket_files.decode_restored_from(restored)
    assert () == bucket_files.decode_restored_from(new)
    assert b"restored_from" not in new
