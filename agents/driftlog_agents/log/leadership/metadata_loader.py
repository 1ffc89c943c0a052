"""Loads a taken-over partition's leader epochs and producer state from the bucket.

    taken over ──▶ manifest, producer snapshot ──▶ online
                        │        ▲
                        ▼        │ tried again (`availability`)
                     unavailable: the tail is served; requests that need more are refused

The tail needs neither of them: committed batches and their producers come from the footers.  So a
missing, withheld or damaged manifest or snapshot stops only what depends on it: cold reads,
sealing, older epochs, and batches of idempotent producers that are not in the footers.

Shell.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias

import structlog

from driftlog_agents.foundation.failure_tracker import FailureTracker
from driftlog_agents.log.objects.availability import Availability, ObjectUnavailableError
from driftlog_agents.log.objects.bucket_probe import BucketProbes
from driftlog_agents.log.objects.manifest_cache import ManifestCache
from driftlog_agents.log.objects.object_retry import ObjectRetry
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.partition.waiters import unpark
from driftlog_agents.log.session.producer_id_blocks import ProducerIdFloor
from driftlog_agents.log.session.producer_memory import ProducerMemory
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.batches.producers import ProducerStates
from driftlog_tiering.formats.manifest import Manifest

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

_LOADS_AT_ONCE: Final = 32


class MetadataLoader:
    """Loads the partitions of one session.

    Args:
        stop: set when the session leaves; the loader stops retrying then.
        jitter: a random number in [0, 1).
    """

    def __init__(
        self,
        manifests: ManifestCache,
        probes: BucketProbes,
        producer_ids: ProducerIdFloor,
        stop: asyncio.Event,
        now_ms: Callable[[], float],
        jitter: Callable[[], float],
        memory: ProducerMemory,
        outage: FailureTracker,
    ) -> None:
        self._producer_ids = producer_ids
        self._manifests = manifests
        self._memory = memory
        self._reads = ObjectRetry(
            probes,
            now_ms,
            outage,
            event="partition_load_repeated",
            advice="retrying; until the manifest loads, sealed reads wait, and so do producers "
            "absent from unsealed data",
        )
        self._now_ms = now_ms
        self._stop = stop
        self._limit = asyncio.Semaphore(_LOADS_AT_ONCE)
        self._loads: dict[PartitionLog, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unavailable = Availability[PartitionLog](jitter)
        """Partitions with an object that cannot be read."""
        self._log = structlog.get_logger()

    async def loaded(self, log: PartitionLog) -> None:
        """Waits until *log* is loaded, or an object that it needs is unavailable.

        Raises:
            UnavailableError: the partition was closed first.
        """
        while log.state is State.LOADING and not log.damage:
            await self._loads.setdefault(log, asyncio.Event()).wait()
        if log.state is State.CLOSED:
            raise UnavailableError(f"{log.topic}-{log.partition} is not led here any more")

    async def admits(self, log: PartitionLog) -> None:
        """Waits until the partition is `loaded` and not paused, and all parked batches are resumed.

        Raises:
            UnavailableError: the partition was closed first.
        """
        await self.loaded(log)
        while log.paused or log.parked:
            over = asyncio.Event()
            log.parked.append(over.set)
            await over.wait()
            await self.loaded(log)

    def begin(self, spawn: Spawn, log: PartitionLog) -> None:
        """Loads *log* in the background.

        Raises:
            UnavailableError: the session is over.
        """
        task = spawn(self._load(log))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def give_up(self) -> None:
        """Cancels every load that the bucket has not answered yet."""
        for task in self._tasks:
            task.cancel()

    async def _load(self, log: PartitionLog) -> None:
        """Fetches the manifest and the producer snapshot, and wakes waiting requests."""
        while self._is_wanted(log):
            try:
                found = await self._reads.read(
                    repr(log), partial(self._fetch, log), once=bool(log.damage)
                )
            except ObjectUnavailableError as error:
                self._cannot_read(log, error.why)
                await self._until(self._unavailable.due_ms(log))
                continue
            if found is None:
                break
            manifest, producers = found
            await self._producer_ids.saw_states(producers)
            await self._producer_ids.settle()  # before one of these ids is given out again
            for _ in log.producers.put_under(producers, manifest.end):
                await asyncio.sleep(0)
            if log.state is State.LOADING:
                log.put_epochs_below(manifest.leader_epochs)
                log.state = State.ONLINE
                log.damage, log.full = "", False
        if self._unavailable.found(log) and log.state is State.ONLINE:
            self._log.info("partition_readable_again", partition=f"{log.topic}-{log.partition}")
        if log.state is not State.LOADING:
            self._go_on(log)  # otherwise closing the log wakes the waiting requests

    def _is_wanted(self, log: PartitionLog) -> bool:
        return log.state is State.LOADING and not self._stop.is_set()

    async def _fetch(self, log: PartitionLog) -> tuple[Manifest, ProducerStates] | None:
        """The manifest and the producer states; None: *log* needs them no more."""
        if not self._is_wanted(log):
            return None
        async with self._limit:
            manifest = await self._manifests.get(log)
            producers = await self._manifests.producers(manifest)
            return manifest, await self._memory.remembered(producers)

    async def _until(self, due_ms: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout((due_ms - self._now_ms()) / 1000):
                await self._stop.wait()

    async def learn_epochs(self, log: PartitionLog) -> None:
        """Puts the leader epochs of the sealed part below those of the tail.

        Raises:
            ObjectUnavailableError: the bucket answers, but does not return the manifest now.
        """
        name = f"the manifest of {log!r}"
        manifest = await self._reads.read(name, partial(self._manifests.get, log))
        log.put_epochs_below(manifest.leader_epochs)

    def close(self) -> None:
        """Wakes every request that waits for a load."""
        for event in self._loads.values():
            event.set()

    def _cannot_read(self, log: PartitionLog, reason: str) -> None:
        says = self._unavailable.failed(log, self._now_ms())
        if log.state is not State.LOADING:
            return
        if says:
            self._log.error(
                "partition_unreadable",
                partition=f"{log.topic}-{log.partition}",
                reason=reason,
                advice="restore the object; the agent retries at least once a minute. Until then "
                "sealed records cannot be read, the partition is not sealed, and idempotent "
                "producers absent from unsealed data are refused",
            )
        log.damage = reason
        self._go_on(log)

    def _go_on(self, log: PartitionLog) -> None:
        event = self._loads.pop(log, None)
        if event is not None:
            event.set()
        unpark(log)
