"""The newest file of a topic, for a job: `newest_topic`.

    list the topic's files ──▶ newest version ──▶ versions behind it, one by one ──▶ deleted?
         ▲                          │ agents have written newer ones, and deleted it
         └──────────────────────────┘

An agent answers a change of configs after the topic's file has it: a job that reads a partition's
manifest first, and then this file, finds no record in that manifest that was acknowledged after the
answer to a change that the file lacks.  Leaders follow a change earlier, from the topic's key on:
what they acknowledge before the answer may be in the manifest, and its change not in the file.  A
listing proves no absence, so what is behind it is asked for.

Shell.
"""

from contextlib import suppress
from uuid import UUID

from driftlog_metadata.schema.model import Topic
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import decode_topic
from driftlog_tiering.stores.object_store import NotFoundError, ObjectStore


async def newest_topic(store: ObjectStore, name: str, topic_id: UUID) -> Topic | None:
    """The topic as its newest file has it; None: it is deleted.

    Raises:
        CorruptError: the file is damaged.
        UnavailableError, OutcomeUnknownError, TimeoutError: the store.
    """
    newest = await _listed(store, name, topic_id)
    body = None
    while newest:
        with suppress(NotFoundError):
            body = await store.get(layout.topic_key(name, topic_id, newest))
            break
        listed, newest = newest, await _listed(store, name, topic_id)
        if newest <= listed:
            break
    with suppress(NotFoundError):
        while True:
            body = await store.get(layout.topic_key(name, topic_id, newest + 1))
            newest += 1
    with suppress(NotFoundError):
        await store.get(layout.deleted_key(name, topic_id))
        return None
    return None if body is None else decode_topic(body).topic


async def _listed(store: ObjectStore, name: str, topic_id: UUID) -> int:
    """The newest version in a listing; 0: it shows none."""
    newest = 0
    async for page in store.list(layout.topic_file_prefix(name, topic_id)):
        for info in page.objects:
            with suppress(ValueError):  # a mark, or an unrecognised object
                newest = max(newest, layout.parse_topic_key(info.key).version)
    return newest
