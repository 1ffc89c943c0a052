"""Writes of an import to the bucket: segments from executors, manifests from the driver.

Shell.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import Cluster, TopicPartition
from driftlog_metadata.stores.errors import DeclinedError, StoreError
from driftlog_spark_reader.bucket.store_calls import with_store
from driftlog_tiering.formats.manifest import AddSegments, LeaderEpoch, SegmentRef, empty_manifest
from driftlog_tiering.formats.manifests import commit_edit
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_store import ObjectStore

_TRIES: Final = 5
"""Of one PUT; then Spark runs the task again."""

_FIRST_PAUSE_S: Final = 0.5
_MANIFESTS_AT_ONCE: Final = 32
_EDIT_DEADLINE_MS: Final = 120_000


def put_object(location: str, name: Callable[[], str], body: Buffer) -> str:
    """Put *body*, each time under another *name*; returns the name that was answered as done.

    Raises:
        StorageError: the bucket does not take it.
    """

    async def put(store: ObjectStore) -> str:
        pause_s = _FIRST_PAUSE_S
        for tries in range(1, _TRIES + 1):
            key = name()
            try:
                await store.put(key, [body])
            except DeclinedError:
                raise
            except (StoreError, TimeoutError):
                if tries == _TRIES:
                    raise
                await asyncio.sleep(pause_s)
                pause_s *= 2
            else:
                return key
        raise AssertionError("the last try returns or raises")

    return with_store(location, put)


def write_manifests(
    location: str,
    topic: str,
    topic_id: UUID,
    segments: Mapping[int, Sequence[SegmentRef]],
    *,
    leader_epoch: int,
    author: Cluster,
    grace: Grace,
) -> None:
    """Write the first manifest of each partition in *segments*, whose segments are dense from 0.

    Raises:
        StorageError: the bucket does not take them.
    """

    async def write(store: ObjectStore) -> None:
        limit = asyncio.Semaphore(_MANIFESTS_AT_ONCE)

        async def one(partition: int, refs: Sequence[SegmentRef]) -> None:
            edit = AddSegments(
                base=0,
                end=refs[-1].end,
                segments=tuple(refs),
                leader_epochs=(LeaderEpoch(leader_epoch, 0),),
                producers=None,
            )
            async with limit:
                now_ms = _now_ms()
                await commit_edit(
                    store,
                    empty_manifest(topic, TopicPartition(topic_id, partition)),
                    edit,
                    secrets.token_hex(8),
                    author=author,
                    read_at_ms=now_ms,
                    deadline_ms=now_ms + _EDIT_DEADLINE_MS,
                    now_ms=_now_ms,
                    grace=grace,
                )

        await asyncio.gather(*(one(number, refs) for number, refs in segments.items()))

    with_store(location, write)


def _now_ms() -> int:
    return round(time.monotonic() * 1000)
