"""Checks whether the bucket has more sealed batches of a claimed partition than its log.

    claimed ──▶ LIST of one key: the newest manifest ──at most the version in the key──▶ no problem
                    │ a later version
                    ▼
                 GET it ──▶ `manifest_verdict` ──no problem──▶ `known_manifests`

The check comes before any batch is admitted or appended.

A listing proves presence only.  `sealing/sealer` finds a manifest that the listing does not show:
it never adopts a manifest that ends among the records of its own session unless it wrote it.

A manifest that is ahead of its key is known from then on, and sealing adopts it at once
(`sealing/attempts`).  `manifest_listings` says what is listed.

Shell.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from driftlog_agents.foundation.failure_tracker import FailureTracker
from driftlog_agents.foundation.offload import inline
from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.objects.bucket_probe import BucketProbes
from driftlog_agents.log.objects.hedged_reads import HedgedReads
from driftlog_agents.log.objects.manifest_listings import (
    Newest,
    shows_use,
    to_list,
    topic_prefixes,
    unlisted,
)
from driftlog_agents.log.objects.manifest_verdict import find_problem
from driftlog_agents.log.objects.object_retry import ObjectRetry
from driftlog_agents.log.partition.known_manifests import KnownManifests
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.session.producer_id_blocks import ProducerIdFloor
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_tiering.batches.producers import ProducerStates
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifests import load_at_least, newest_version
from driftlog_tiering.foundation.types import Offload
from driftlog_tiering.stores.object_store import ObjectStore

_AT_ONCE: Final = 64
"""Requests in flight.  More: thousands of partitions are led sooner; fewer: less load on a bucket
that is slow for all."""

_TIMEOUTS_S: Final = (3.0, 30.0)
"""First and longest timeout of a request: it lists one key, and a claimed partition waits."""

_WAITING: Final = 1_024
"""Reads in flight or waiting for a retry.  More: more memory while the bucket fails."""

_K = TypeVar("_K")
_T = TypeVar("_T")


class ManifestCheck:
    """See the module; for one session.

    Args:
        manifests: gets each manifest that was read here and is no problem.
        offload: ``await offload(fn, *args)`` runs *fn* off the event loop.
    """

    def __init__(
        self,
        *,
        objects: ObjectStore,
        probes: BucketProbes,
        producer_ids: ProducerIdFloor,
        manifests: KnownManifests,
        now_ms: Callable[[], float],
        offload: Offload = inline,
        unknown_keys: UnknownKeys | None = None,
        outage: FailureTracker | None = None,
    ) -> None:
        self._objects = objects
        self._manifests = manifests
        self._now_ms = now_ms
        self._offload = offload
        self._producer_ids = producer_ids
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._hedged = HedgedReads(
            now_ms, timeout_s=_TIMEOUTS_S[0], longest_timeout_s=_TIMEOUTS_S[1]
        )
        self._unknown_keys = unknown_keys or UnknownKeys()
        self._log = structlog.get_logger()
        self._retry = ObjectRetry(
            probes,
            now_ms,
            outage or FailureTracker(),
            event="manifest_check_repeated",
            advice="retrying; the claimed partitions are led when the bucket has listed their "
            "newest manifests",
        )

    async def newest(
        self, logs: Mapping[TopicPartition, PartitionLog], fresh: Collection[TopicPartition]
    ) -> Newest:
        """Lists the newest manifests of *logs*; *fresh*: partitions that were never led."""
        found = Newest()
        prefixes = topic_prefixes(logs, fresh)
        used, failed = await self._all(
            {key: (prefix, partial(self._is_used, prefix)) for key, prefix in prefixes.items()}
        )
        found.unreadable.update(unlisted(fresh, failed))
        wanted = {
            tp: (f"newest manifest of {log!r}", partial(self._newest_version, log.topic, tp))
            for tp, log in to_list(logs, fresh, used).items()
        }
        found.versions, more = await self._all(wanted)
        found.unreadable.update(more)
        return found

    async def problem(self, log: PartitionLog, version: int) -> str | None:
        """Why the recovered *log*, whose newest manifest has *version*, cannot be served; None: it
        can.

        Raises:
            UnavailableError: the manifest cannot be read, for now or at all.
        """
        tp = TopicPartition(log.topic_id, log.partition)
        if version <= log.manifest_version:
            return None
        began_ms = self._now_ms()
        manifest = await self._read(
            layout.manifest_prefix(log.topic, tp),
            lambda: load_at_least(self._objects, log.topic, tp, version, self._strange),
        )
        problem = find_problem(log, manifest)
        if problem is None:
            self._manifests.was_read(log, manifest, began_ms)
        else:
            self._producer_ids.seen.saw_a_lost_store()
            if manifest.end > log.high_watermark and manifest.producers is not None:
                await self._raise_producer_ids(manifest.producers.key)
        return problem

    async def _raise_producer_ids(self, key: str) -> None:
        """Reserves producer ids that were given out and that the metadata store does not know."""
        try:
            data = await self._read(key, lambda: self._objects.get(key))
            _, states = await self._offload(ProducerStates.decode, data)
        except (UnavailableError, CorruptError) as error:
            self._log.warning(
                "producer_ids_not_known",
                object=key,
                error=str(error),
                advice="no action needed; the agent skips a block of producer ids, which should "
                "cover those in the object",
            )
        else:
            await self._producer_ids.saw_states(states)

    # ── Requests ──

    async def _is_used(self, prefix: str) -> bool:
        """Whether any partition of the topic has an object in the bucket."""
        async for page in self._objects.list(prefix, page_size=1):
            return any(shows_use(info.key, prefix) for info in page.objects)
        return False

    async def _newest_version(self, topic: str, tp: TopicPartition) -> int:
        return await newest_version(self._objects, topic, tp, self._strange) or 0

    def _strange(self, key: str) -> None:
        self._unknown_keys.is_ours(key, layout.parse_manifest_key)

    async def _all(
        self, asks: Mapping[_K, tuple[str, Callable[[], Coroutine[Any, Any, _T]]]]
    ) -> tuple[dict[_K, _T], dict[_K, str]]:
        """The answers, and the reasons for missing ones; each request has a name for the log."""
        answers: dict[_K, _T] = {}
        unavailable: dict[_K, str] = {}
        left = iter(asks.items())

        async def work() -> None:
            for key, (name, ask) in left:
                try:
                    answers[key] = await self._read(name, ask)
                except ObjectUnavailableError as error:
                    unavailable[key] = str(error)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(_WAITING, len(asks))):
                tasks.create_task(work())
        return answers, unavailable

    async def _read(self, name: str, ask: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """
        Raises:
            ObjectUnavailableError: the bucket answers, but does not return the object now.
        """

        async def read() -> _T:
            async with self._slots:
                return await self._hedged.read(ask)

        return await self._retry.read(name, read)
