"""The cluster files of a bucket: the newest one says which cluster the bucket belongs to.

    cluster.json ──restore──▶ cluster/1.json ──restore──▶ cluster/2.json

A restore creates the next file, and only one can: of two restores one wins.  ``cluster.json`` is
replaced too, for releases that read no other.

Shell.
"""

from contextlib import suppress

from driftlog_tiering.batches.batch import Buffer
from driftlog_tiering.formats import layout
from driftlog_tiering.stores.object_store import ObjectStore


async def newest_cluster_file(objects: ObjectStore) -> tuple[int, Buffer]:
    """The number of the newest cluster file, and its bytes: one LIST and one GET.

    Raises:
        NotFoundError: there is none.
    """
    number = 0
    async for page in objects.list(layout.CLUSTER_PREFIX):
        for info in page.objects:
            with suppress(ValueError):  # an unrecognised object
                number = max(number, layout.parse_cluster_key(info.key).number)
    return number, await objects.get(layout.cluster_key(number))
