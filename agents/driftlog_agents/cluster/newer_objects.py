"""Objects of this cluster that are newer than its metadata store: the store is an old backup.

    newest group snapshot, final heads ──revision above the store's──▶ the agent does not go on

Both say a revision of the metadata store.  An agent that served with the older store would give
offsets to other records, and its snapshots of groups would count as older than those there.

The store's revision is read after the object: other agents of the cluster put objects meanwhile.
A restore that raises revisions (``etcdutl --bump-revision``) is an operator's decision.

Shell.
"""

import asyncio
from contextlib import suppress
from typing import Final

from driftlog_metadata.schema.keys import CLUSTER_KEY
from driftlog_metadata.stores.store import MetadataStore
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import decode_final_head
from driftlog_tiering.stores.object_store import NotFoundError, ObjectStore

_DEADLINE_S: Final = 30.0


async def newer_group_snapshot(
    objects: ObjectStore, metadata: MetadataStore, cluster_id: str
) -> str:
    """What is wrong with the metadata store, by the newest group snapshot; empty: nothing.

    Raises:
        StoreError, TimeoutError: a store.
    """
    async with asyncio.timeout(_DEADLINE_S):
        async for page in objects.list(layout.groups_prefix(cluster_id)):
            for info in page.objects:
                with suppress(ValueError):  # an unrecognised object
                    revision = layout.parse_group_snapshot_key(info.key).revision
                    return await _compared(metadata, info.key, revision)
    return ""


async def newer_final_head(objects: ObjectStore, metadata: MetadataStore, session_id: str) -> str:
    """What is wrong with the metadata store, by the final heads of a session; empty: nothing.

    Raises:
        CorruptError: a final head is damaged.
        StoreError, TimeoutError: a store.
    """
    async with asyncio.timeout(_DEADLINE_S):
        async for page in objects.list(f"{layout.session_prefix(session_id)}final-"):
            for info in page.objects:
                with suppress(ValueError, NotFoundError):  # unrecognised, or collected meanwhile
                    layout.parse_final_head_key(info.key)
                    revision = decode_final_head(await objects.get(info.key)).revision
                    if wrong := await _compared(metadata, info.key, revision):
                        return wrong
    return ""


async def _compared(metadata: MetadataStore, key: str, revision: int) -> str:
    ours, _ = await metadata.get_prefix(CLUSTER_KEY, keys_only=True)
    if revision <= ours:
        return ""
    return (
        f"{key} is of revision {revision} of the metadata store, which is at {ours} now: it is an "
        "old backup, and agents have committed since.  Start with the metadata store that the "
        "cluster had, or bring the cluster back from its bucket: `driftlog restore`"
    )
