"""The cluster files of a bucket: the newest one says which cluster the bucket belongs to.

    cluster.json ──restore──▶ cluster/1.json ──restore──▶ cluster/2.json

A restore, a change of grace (`driftlog cluster grace`) and a raise of the format level create the
next file, and only one can: of two restores one wins.  The first two replace ``cluster.json`` too,
for releases that read no other; those do not know a level that was raised.

Files are numbered without a gap.  A listing proves no absence, so the file behind the newest that
it shows is asked for.

Shell.
"""

from contextlib import suppress

from driftlog_tiering.formats import layout
from driftlog_tiering.stores.object_store import NotFoundError, ObjectStore


async def newest_cluster_file(objects: ObjectStore) -> tuple[int, bytes]:
    """The number of the newest cluster file, and its bytes.

    Raises:
        NotFoundError: there is none; the bucket was not listed.
    """
    number, body = 0, b""
    try:
        body = bytes(await objects.get(layout.CLUSTER_KEY))
    except NotFoundError:  # a restore that replaces it was interrupted, or there is no cluster
        number, body = 1, bytes(await objects.get(layout.cluster_key(1)))
    newest = number
    async for page in objects.list(layout.CLUSTER_PREFIX):
        for info in page.objects:
            with suppress(ValueError):  # an unrecognised object
                newest = max(newest, layout.parse_cluster_key(info.key).number)
    if newest > number:
        number, body = newest, bytes(await objects.get(layout.cluster_key(newest)))
    with suppress(NotFoundError):
        while True:
            body = bytes(await objects.get(layout.cluster_key(number + 1)))
            number += 1
    return number, body
