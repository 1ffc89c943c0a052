"""Requests of a rewrite to the bucket, with their deadlines: those of agents and of jobs.

Shell.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_tiering.batches.batch import NO_TIMESTAMP
from driftlog_tiering.compaction.policy import CompactionPolicy
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import SegmentRef
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_keys import body_bytes
from driftlog_tiering.stores.object_store import NotFoundError, ObjectStore
from driftlog_tiering.stores.transfer_time import transfer_s

REQUEST_DEADLINE_S: Final = 30.0


async def put_in_time(store: ObjectStore, key: str, body: Sequence[Buffer]) -> None:
    """Create the object, within a deadline by its size.

    Raises:
        TimeoutError: the deadline passed.
        UnavailableError, OutcomeUnknownError: as `ObjectStore.put`.
    """
    async with asyncio.timeout(REQUEST_DEADLINE_S + transfer_s(body_bytes(body))):
        await store.put(key, body)


async def dated(
    store: ObjectStore, segments: Iterable[SegmentRef], policy: CompactionPolicy
) -> list[SegmentRef]:
    """*segments* as ``min.compaction.lag.ms`` takes them: one without timestamps has the time of
    its PUT, as Kafka takes the time of the file.

    Raises:
        CorruptError: a segment is missing.
        TimeoutError: the deadline of a request passed.
        UnavailableError, OutcomeUnknownError: as `ObjectStore.stat`.
    """
    found: list[SegmentRef] = []
    for ref in segments:
        put_ms = ref.max_timestamp_ms
        if policy.min_lag_ms and put_ms == NO_TIMESTAMP:
            try:
                async with asyncio.timeout(REQUEST_DEADLINE_S):
                    put_ms = (await store.stat(ref.key)).modified_ms
            except NotFoundError as error:
                raise CorruptError(f"{ref.key}: missing") from error
        found.append(replace(ref, max_timestamp_ms=put_ms))
    return found


async def store_now_ms(store: ObjectStore, topic: str, tp: TopicPartition) -> int:
    """The store's clock, ms since 1970: a listing of one key has it.

    Raises:
        TimeoutError: the deadline passed.
        UnavailableError, OutcomeUnknownError: as `ObjectStore.list`.
    """
    prefix = layout.manifest_prefix(topic, tp)
    async with asyncio.timeout(REQUEST_DEADLINE_S):
        async for page in store.list(prefix, page_size=1):
            return page.store_now_ms
    raise UnavailableError(f"{prefix}: a listing without a page")
