"""Whether the bucket has more of a claimed partition sealed than its log has.

    claimed ──▶ LIST of one key: the newest manifest ──at most the version in the key──▶ nothing
                    │ a later version
                    ▼
                 GET it ──ends within the log──▶ an agent died between manifest and key: sealing
                    │                            adopts it
                    └─ends above the log, or has other leader epochs──▶ the metadata store is older
                                                 than the bucket: the partition is offline

The comparison comes before anything is admitted or appended.  A metadata store that went back (a
backup) would give out again the offsets of what is sealed, and sealing would then put the bucket's
records in the place of those that were just acknowledged.

A listing proves presence only.  What it does not show is found later by `sealing/sealer`, which
adopts no manifest that ends among the records of its own session and was not made by it.

One LIST per partition, and one per topic where nothing was ever led: partitions' folders sort
before the topic's files, so the first key of a topic says whether any partition has an object.

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from driftlog_agents.foundation.failure_tracker import FailureTracker
from driftlog_agents.foundation.offload import Offload, inline
from driftlog_agents.log.objects.bucket_probe import ANSWERED, UNANSWERED, BucketProbes, Patience
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.session.producer_id_blocks import ProducerIdFloor
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_tiering.batches.producers import ProducerStates
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import Manifest
from driftlog_tiering.formats.manifests import load_at_least, newest_version
from driftlog_tiering.stores.object_store import ObjectStore

_AT_ONCE: Final = 64
"""Requests in flight.  More: thousands of partitions are led sooner; fewer: a bucket that is slow
for all is not made slower."""

_DEADLINES_S: Final = (3.0, 30.0)
"""Of one request, at first and at most: each that is missed doubles the next."""

_RETRY_S: Final = 0.2
_LONGEST_RETRY_S: Final = 1.6
"""Between two requests for one object: twice as long each time."""

_K = TypeVar("_K")
_T = TypeVar("_T")


@dataclass(slots=True)
class Newest:
    """What listings showed of claimed partitions."""

    versions: dict[TopicPartition, int] = field(default_factory=dict)
    """Of the newest manifest; 0: none was shown."""
    unreadable: dict[TopicPartition, str] = field(default_factory=dict)
    """Partitions whose listing was not given, and why."""


class ManifestCheck:
    """See the module; for one session.

    Args:
        offload: ``await offload(fn, *args)`` runs *fn* off the event loop.
    """

    def __init__(
        self,
        *,
        objects: ObjectStore,
        probes: BucketProbes,
        producer_ids: ProducerIdFloor,
        now_ms: Callable[[], float],
        offload: Offload = inline,
        strangers: UnknownKeys | None = None,
        outage: FailureTracker | None = None,
    ) -> None:
        self._objects = objects
        self._offload = offload
        self._probes = probes
        self._producer_ids = producer_ids
        self._now_ms = now_ms
        self._deadline_s = _DEADLINES_S[0]
        self._strangers = strangers or UnknownKeys()
        self._log = structlog.get_logger()
        self._failing = 0
        """Comparisons of which a request had no answer, and that go on."""
        self.outage = outage or FailureTracker()
        """Since when requests have failed, while partitions wait for one."""
        self.requests = 0

    async def newest(
        self, logs: Mapping[TopicPartition, PartitionLog], fresh: Collection[TopicPartition]
    ) -> Newest:
        """List the newest manifests of *logs*; *fresh*: those that were never led."""
        found = Newest()
        topics = {logs[tp].topic_id: logs[tp].topic for tp in fresh}
        used, failed = await self._all(
            {
                topic_id: partial(self._is_used, layout.topic_prefix(topic, topic_id))
                for topic_id, topic in topics.items()
            }
        )
        for tp in fresh:
            if tp.topic_id in failed:
                found.unreadable[tp] = failed[tp.topic_id]
        wanted = {
            tp: partial(self._newest_version, log.topic, tp)
            for tp, log in logs.items()
            if tp not in fresh or used.get(tp.topic_id)
        }
        found.versions, more = await self._all(wanted)
        found.unreadable.update(more)
        return found

    async def problem(self, log: PartitionLog, version: int) -> str | None:
        """Why the recovered *log* cannot be served, whose manifest has *version*; None: it can.

        Raises:
            UnavailableError: the manifest cannot be read, for now or at all.
        """
        tp = TopicPartition(log.topic_id, log.partition)
        if version <= log.manifest_version:
            return None
        manifest = await self._one(
            lambda: load_at_least(self._objects, log.topic, tp, version, self._strange)
        )
        if manifest.end <= log.high_watermark:
            problem = _other_epochs(log, manifest)
            if problem:
                self._producer_ids.saw_a_lost_store()
            return problem
        self._producer_ids.saw_a_lost_store()
        if manifest.producers is not None:
            await self._raise_producer_ids(manifest.producers.key)
        return older_than_bucket(log, manifest)

    async def _raise_producer_ids(self, key: str) -> None:
        """Of producers that the metadata store does not know of: their ids were given out."""
        try:
            data = await self._one(lambda: self._objects.get(key))
            _, states = await self._offload(ProducerStates.decode, data)
        except (UnavailableError, CorruptError) as error:
            self._log.warning(
                "producer_ids_not_known",
                object=key,
                error=str(error),
                advice="some are skipped, which those that it names are taken to be among",
            )
        else:
            self._producer_ids.saw_states(states)

    # ── Requests ──

    async def _is_used(self, prefix: str) -> bool:
        """Whether any partition of the topic has an object."""
        async for page in self._objects.list(prefix, page_size=1):
            return any(not info.key.startswith(f"{prefix}topic/") for info in page.objects)
        return False

    async def _newest_version(self, topic: str, tp: TopicPartition) -> int:
        return await newest_version(self._objects, topic, tp, self._strange) or 0

    def _strange(self, key: str) -> None:
        self._strangers.is_ours(key, layout.parse_manifest_key)

    async def _one(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        answers, failed = await self._all({0: ask})
        if failed:
            raise UnavailableError(failed[0])
        return answers[0]

    async def _all(
        self, asks: Mapping[_K, Callable[[], Awaitable[_T]]]
    ) -> tuple[dict[_K, _T], dict[_K, str]]:
        """The answers, and why there are none; asked again while that may help (`Patience`)."""
        answers: dict[_K, _T] = {}
        patience = Patience(self._probes, self._now_ms)
        wait_s = _RETRY_S
        failing = False
        try:
            while True:
                failed: dict[_K, str] = {}
                broken: dict[_K, str] = {}
                left = iter([key for key in asks if key not in answers])

                async def work(
                    left: Any = left,
                    failed: dict[_K, str] = failed,
                    broken: dict[_K, str] = broken,
                ) -> None:
                    nonlocal failing
                    for key in left:
                        sent_ms = self._now_ms()
                        try:
                            answers[key] = await self._ask(asks[key])
                        except ANSWERED as error:
                            broken[key] = str(error) or repr(error)
                        except UNANSWERED as error:
                            failed[key] = str(error) or "no answer in time"
                        except asyncio.CancelledError:
                            if _is_given_up():
                                raise
                            failed[key] = "the request was cancelled"
                        if key in failed:
                            self._failing += not failing
                            failing = True
                            self._say(failed[key], sent_ms)

                async with asyncio.TaskGroup() as tasks:
                    for _ in range(min(_AT_ONCE, len(asks) - len(answers))):
                        tasks.create_task(work())
                if (not failed and not broken) or await patience.is_over(answered=not failed):
                    return answers, failed | broken
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_RETRY_S)
        finally:
            self._failing -= failing
            if not self._failing:  # or nothing waits for it any more
                self.outage.ended(self._now_ms())

    async def _ask(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        self.requests += 1
        try:
            async with asyncio.timeout(self._deadline_s):
                answer = await ask()
        except TimeoutError:
            self._deadline_s = min(2 * self._deadline_s, _DEADLINES_S[1])
            raise
        self._deadline_s = _DEADLINES_S[0]
        return answer

    def _say(self, error: str, sent_ms: float) -> None:
        if self.outage.failed(error, sent_ms, self._now_ms()):
            self._log.warning(
                "manifest_check_repeated",
                error=error,
                failures=self.outage.failures,
                advice="tried again; partitions that were claimed are led when the bucket says "
                "which of their manifests is the newest",
            )


def _is_given_up() -> bool:
    """Whether this task was cancelled, and not only what it asked."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def older_than_bucket(log: PartitionLog, manifest: Manifest) -> str:
    """Why *log* is offline, whose newest manifest has what the log has not."""
    return (
        f"{manifest.key} ends at {manifest.end}, and the log that the metadata store knows ends at "
        f"{log.high_watermark}: the metadata store is older than the bucket (a backup that was put "
        f"back?); {repair(log)}"
    )


def _other_epochs(log: PartitionLog, manifest: Manifest) -> str | None:
    """Whether what is sealed is what the log has: each leader epoch begins where it does there.

    (Only what begins above both starts says so: an epoch is cut at a start that lies within it.)
    """
    start = max(log.sealed_end, manifest.log_start)
    sealed = {(e.epoch, e.start_offset) for e in manifest.leader_epochs if e.start_offset > start}
    here = {(epoch, at) for epoch, at in log.epochs if start < at < manifest.end}
    if sealed == here:
        return None
    return (
        f"{manifest.key} has leader epochs at {sorted(sealed)}, and the log that the metadata "
        f"store knows at {sorted(here)} (epoch, first offset): the metadata store was older than "
        f"the bucket, and others have written since; {repair(log)}"
    )


def repair(log: PartitionLog) -> str:
    """The way out for *log*, of which the metadata store does not know all."""
    return (
        f"stop the agents and bring the newer metadata store back, if there is one; to go on "
        f"without it, see `driftlog partitions accept-loss {log.topic}:{log.partition}`"
    )
