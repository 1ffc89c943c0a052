"""Changes the grace of a cluster whose agents are all stopped.

    no session lives ──▶ the next cluster file, with the new grace ──▶ still no session? ──▶ done

An agent reads grace at its start and keeps it: beside one with another grace it could name objects
that the other one deletes.  So no agent may run.  One that starts between the two looks at the
sessions may have read either grace: the caller is told that it must start again.

Of a restore and a change at the same time only one creates the next file.  ``cluster.json`` is
replaced too, as by a restore, for releases that read no other.

Shell.
"""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

from driftlog_agents.foundation.retry import Retry
from driftlog_metadata.schema.codec import decode_at, decode_cluster, decode_live_session
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.keys import CLUSTER_KEY, SESSIONS_PREFIX
from driftlog_metadata.stores.errors import CorruptError, FencedError, UnavailableError
from driftlog_metadata.stores.store import MetadataStore
from driftlog_tiering.formats import bucket_files, layout
from driftlog_tiering.formats.cluster_files import newest_cluster_file
from driftlog_tiering.stores.object_store import AlreadyExistsError, ObjectStore

_DEADLINE_S: Final = 30.0
_RETRY: Final = Retry(wait_s=0.2, longest_wait_s=2.0, timeout_s=10.0)


class AgentsRunError(Exception):
    """Agents have a session; ``changed``: grace was changed before they had.

    The message names the agents.
    """

    def __init__(self, agents: list[str], *, changed: bool) -> None:
        super().__init__(", ".join(agents))
        self.changed = changed


async def read_grace(objects: ObjectStore) -> Grace:
    """The grace of the cluster.

    Raises:
        NotFoundError: the bucket has no cluster file.
        CorruptError: it is damaged.
        UnavailableError, OutcomeUnknownError, TimeoutError: the bucket.
    """
    async with asyncio.timeout(_DEADLINE_S):
        _, body = await newest_cluster_file(objects)
    return bucket_files.decode_grace(body)


async def change_grace(
    metadata: MetadataStore, objects: ObjectStore, grace: Grace, *, alone: bool = False
) -> None:
    """Change the grace of the cluster of both stores; may be repeated.

    *alone*: the caller holds the directory of the embedded metadata store, so no agent runs: a
    session in it is of an agent that was killed.

    Raises:
        AgentsRunError: agents run.
        FencedError: the stores are not of one cluster.
        NotFoundError: the bucket has no cluster file.
        CorruptError: it is damaged, or a key of the metadata store is.
        StoreError, TimeoutError: a store; the change may have happened.
    """
    async with asyncio.timeout(_DEADLINE_S):
        number, body = await newest_cluster_file(objects)
        kv = await metadata.get(CLUSTER_KEY)
        ours = None if kv is None else decode_at(kv.key, kv.value, decode_cluster).cluster_id
        there = bucket_files.decode_cluster(body).cluster_id
        if there != ours:
            raise FencedError(f"the bucket is of cluster {there}, and the metadata of {ours}")
        if not alone and (agents := await _agents(metadata)):
            raise AgentsRunError(agents, changed=False)
        new = bucket_files.with_grace(body, grace)
        try:
            await objects.create(layout.cluster_key(number + 1), [new])
        except AlreadyExistsError as error:
            raise UnavailableError("another change, or a restore, was faster") from error
        await objects.delete([layout.CLUSTER_KEY])  # no key is put over: see `ObjectStore.put`
        await _RETRY.run(partial(_create, objects, [new]))
        if not alone and (agents := await _agents(metadata)):
            raise AgentsRunError(agents, changed=True)


async def _create(objects: ObjectStore, body: list[bytes]) -> None:
    with suppress(AlreadyExistsError):  # by an attempt before, whose answer was lost
        await objects.create(layout.CLUSTER_KEY, body)


async def _agents(metadata: MetadataStore) -> list[str]:
    """The agents that have a session."""
    _, kvs = await metadata.get_prefix(SESSIONS_PREFIX)
    found: list[str] = []
    for kv in kvs:
        try:
            found.append(f"agent {decode_at(kv.key, kv.value, decode_live_session).node_id}")
        except CorruptError:
            found.append(kv.key)
    return sorted(found)
