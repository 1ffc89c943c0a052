"""Follows one prefix of the metadata store: reads it, and watches it from there on.

    read the prefix at revision r ──▶ watch it from r + 1 ──▶ apply …
         ▲                                  │
         └── compacted, or refused ─────────┘

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from driftlog_agents.foundation.retry import NO_ANSWER, GrowingTimeout, Waits
from driftlog_metadata.stores.errors import StoreNotOursError
from driftlog_metadata.stores.store import (
    CompactedError,
    KeyValue,
    MetadataStore,
    StoreWentBackError,
    WatchEvent,
)

_TIMEOUT_S: Final = 10.0
"""Timeout of one read; doubled after each timeout, because the prefix may be large."""
_LONGEST_TIMEOUT_S: Final = 40.0
"""Longer: after a lost answer, the agent's view is stale for longer; shorter: a large prefix on a
slow store is never read."""
_RETRY_S: Final = 0.2
_MAX_RETRY_S: Final = 2.0
_NOT_OURS_S: Final = 60.0
"""Wait before the next read of a store that is not the known one: it is refused until a restart."""


async def follow_prefix(
    store: MetadataStore,
    prefix: str,
    reset: Callable[[int, list[KeyValue]], Awaitable[None]],
    apply: Callable[[Sequence[WatchEvent]], None],
) -> None:
    """Follow *prefix* until cancelled.

    Args:
        reset: replaces all that is known by the keys of a read, at its revision.
        apply: applies the next events, in order.
    """
    log = structlog.get_logger()
    waits = Waits(_RETRY_S, _MAX_RETRY_S)
    timeout = GrowingTimeout(_TIMEOUT_S, _LONGEST_TIMEOUT_S)
    while True:
        try:
            revision, kvs = await timeout.of(store.get_prefix(prefix))
            await reset(revision, kvs)
            waits.reset()
            await _watch(store, prefix, revision + 1, apply)
        except (StoreNotOursError, StoreWentBackError):
            # `health/metadata_store_monitor` logs it once a minute.
            await asyncio.sleep(_NOT_OURS_S)
            continue
        except CompactedError as error:
            log.info("watch_compacted", prefix=prefix, reason=str(error))
            continue
        except NO_ANSWER as error:
            log.warning("cluster_read_repeated", prefix=prefix, error=str(error) or repr(error))
        await waits.wait()


async def _watch(
    store: MetadataStore,
    prefix: str,
    start_revision: int,
    apply: Callable[[Sequence[WatchEvent]], None],
) -> None:
    watch = store.watch(prefix, start_revision)
    try:
        async for events in watch:
            apply(events)
    finally:
        await watch.aclose()
