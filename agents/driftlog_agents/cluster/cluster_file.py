"""The look at the bucket's newest cluster file before objects are deleted by it.

    another id, another grace than at the start, or no file ──▶ nothing is deleted

Another id: the prefix was given to another cluster, or the cluster was restored.  Another grace: an
operator has changed it, and agents that read the old one may still name older objects.

Shell.
"""

import asyncio

from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.stores.errors import FencedError
from driftlog_tiering.formats import bucket_files, layout
from driftlog_tiering.formats.cluster_files import newest_cluster_file
from driftlog_tiering.stores.object_store import NotFoundError, ObjectStore


class ClusterFile:
    """See the module.

    Args:
        grace: as the agent read it at its start.
    """

    def __init__(
        self, objects: ObjectStore, cluster_id: str, grace: Grace, *, deadline_ms: float = 30_000.0
    ) -> None:
        self._objects = objects
        self._cluster_id = cluster_id
        self._grace = grace
        self._deadline_ms = deadline_ms

    async def confirm(self) -> None:
        """Check now that the bucket is the cluster's.

        Raises:
            FencedError: it is not, or its grace has changed.
            CorruptError: the file is damaged.
            UnavailableError, OutcomeUnknownError, TimeoutError: the bucket did not answer.
        """
        try:
            async with asyncio.timeout(self._deadline_ms / 1000):
                number, body = await newest_cluster_file(self._objects)
        except NotFoundError as error:
            raise FencedError(f"{layout.CLUSTER_KEY} is not there any more") from error
        there = bucket_files.decode_cluster(body).cluster_id
        if there != self._cluster_id:
            key = layout.cluster_key(number)
            raise FencedError(f"{key} is of cluster {there}, and not of {self._cluster_id}")
        grace = bucket_files.decode_grace(body)
        if grace != self._grace:
            raise FencedError(
                f"the cluster's grace is {grace.ms} ms, and was {self._grace.ms} ms when this "
                "agent started: stop all agents, then start them again"
            )
