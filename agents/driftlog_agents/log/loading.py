"""What the bucket knows of a partition that was taken over: its epochs and its producers.

    taken over ──▶ manifest, producer snapshot ──▶ online
                        │        ▲
                        ▼        │ every half minute
                     damaged: the tail goes on; what needs to know more is refused
                     (or withheld for a minute by a bucket that answers otherwise: the same)

The tail is complete without the bucket: committed batches and their producers come from the
footers.  So a missing or damaged manifest or snapshot stops no more than what hangs on it: cold
reads, sealing, older epochs, and batches of idempotent producers that the footers cannot judge.

Shell.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

import structlog

from driftlog_agents.log.bucket_probe import BucketProbes, Withholding
from driftlog_agents.log.manifests import Manifests
from driftlog_agents.log.outage import Outage
from driftlog_agents.log.partition import PartitionLog, State
from driftlog_metadata.errors import CorruptError, OutcomeUnknownError, UnavailableError
from driftlog_tiering.manifest import Manifest
from driftlog_tiering.object_store import NotFoundError
from driftlog_tiering.producers import ProducerStates

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

_LOADS_AT_ONCE: Final = 32
_RETRY_S: Final = 0.2
_DAMAGED_S: Final = 30.0
"""Between two looks whether what is damaged was put back."""
_WITHHELD_MS: Final = 60_000.0
"""Refused for so long an object is as good as damaged.  Longer: who waits for it does so longer."""
_WITHHELD_FROM_ALL_MS: Final = 12_000.0
"""The same while nothing is served, because of it."""


class Loading:
    """Loads the partitions of one session.

    Args:
        stop: set when the session is left; nothing is tried again after that.
    """

    def __init__(
        self,
        manifests: Manifests,
        probes: BucketProbes,
        stop: asyncio.Event,
        now_ms: Callable[[], float],
    ) -> None:
        self._manifests = manifests
        self._probes = probes
        self._now_ms = now_ms
        self._outage = Outage()
        self._stop = stop
        self._limit = asyncio.Semaphore(_LOADS_AT_ONCE)
        self._loads: dict[PartitionLog, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger()

    async def wait(self, log: PartitionLog) -> None:
        """Until *log* is loaded, or known to be damaged."""
        while log.state is State.LOADING and not log.damage:
            await self._loads.setdefault(log, asyncio.Event()).wait()

    def begin(self, spawn: Spawn, log: PartitionLog) -> None:
        """Load *log* in the background.

        Raises:
            FencedError: the session is over.
        """
        task = spawn(self._load(log))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def give_up(self) -> None:
        """Nobody waits for what the bucket has not answered yet."""
        for task in self._tasks:
            task.cancel()

    async def _load(self, log: PartitionLog) -> None:
        """Fetch the manifest and the producer snapshot, and let in who waits for them."""
        withholding = Withholding(self._probes, self._now_ms)
        while log.state is State.LOADING and not self._stop.is_set():
            sent_ms = self._now_ms()
            try:
                async with self._limit:
                    manifest = await self._manifests.get(log)
                    producers = await self._manifests.producers(manifest)
            except (UnavailableError, OutcomeUnknownError, TimeoutError) as error:
                why = str(error) or "no answer in time"
                self._failed(log, why, sent_ms)
                if log.damage or await withholding.found(_WITHHELD_MS):
                    self._damaged(log, f"the bucket withholds what it knows of it: {why}")
                    await self._between_looks()
                else:
                    await asyncio.sleep(_RETRY_S)
            except (CorruptError, NotFoundError) as error:
                self._damaged(log, str(error) or repr(error))
                await self._between_looks()
            else:
                self._outage.ended(self._now_ms())
                if log.state is State.LOADING:
                    _merge(log, manifest, producers)
                    log.state = State.ONLINE
                    if log.damage:
                        self._log.info("partition_repaired", log=repr(log))
                    log.damage, log.full = "", False
        if log.state is not State.LOADING:
            self._go_on(log)  # or it is left as it is, and whoever waits is told by its closing

    async def _between_looks(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DAMAGED_S):
                await self._stop.wait()

    def _failed(self, log: PartitionLog, error: str, sent_ms: float) -> None:
        if self._outage.failed(error, sent_ms, self._now_ms()):
            self._log.warning(
                "partition_load_repeated",
                partition=f"{log.topic}-{log.partition}",
                error=error,
                failures=self._outage.failures,
                advice="tried again; until then producers that its tail does not show wait, and "
                "so do reads of what is sealed",
            )

    async def sealed_epochs(self, log: PartitionLog) -> list[tuple[int, int]]:
        """(leader epoch, start offset) of what is sealed; none where nobody can say.

        Then the partition is offline: its leftovers cannot be judged, and where they belong
        nothing else may go.

        Raises:
            UnavailableError: the bucket withholds them, and answers otherwise.
        """
        withholding = Withholding(self._probes, self._now_ms)
        while True:
            sent_ms = self._now_ms()
            try:
                manifest = await self._manifests.get(log)
            except (UnavailableError, OutcomeUnknownError, TimeoutError) as error:
                why = str(error) or "no answer in time"
                self._failed(log, why, sent_ms)
                if await withholding.found(_WITHHELD_FROM_ALL_MS):
                    raise UnavailableError(f"its manifest cannot be read: {why}") from error
                await asyncio.sleep(_RETRY_S)
            except (CorruptError, NotFoundError) as error:
                log.state = State.OFFLINE
                log.offline_reason = str(error)
                self._log.error(
                    "partition_offline",
                    log=repr(log),
                    reason=str(error),
                    advice="put the object back and start the agent again: what is buffered for "
                    "this partition can only then be put where it belongs",
                )
                return []
            else:
                return [(entry.epoch, entry.start_offset) for entry in manifest.leader_epochs]

    def close(self) -> None:
        """Nobody waits any more."""
        for event in self._loads.values():
            event.set()

    def _damaged(self, log: PartitionLog, reason: str) -> None:
        if log.state is not State.LOADING:
            return
        if log.damage != reason:
            self._log.error(
                "partition_damaged",
                log=repr(log),
                reason=reason,
                advice="put the object back (or let it be read), it is looked for every half "
                "minute; until then older "
                "records are not read, nothing is sealed, and idempotent producers that are not "
                "known from what is unsealed are refused",
            )
        log.damage = reason
        self._go_on(log)

    def _go_on(self, log: PartitionLog) -> None:
        event = self._loads.pop(log, None)
        if event is not None:
            event.set()
        parked, log.parked = log.parked, []
        for resume in parked:
            resume()


def _merge(log: PartitionLog, manifest: Manifest, producers: ProducerStates) -> None:
    """Put what the manifest knows under what the footers and this session added.

    The snapshot is of exactly the manifest's end; later batches follow in offset order.
    """
    later = [
        (batch.base_offset, producer_id, epoch, batch)
        for producer_id, epoch, batches in log.producers.items()
        for batch in batches
        if batch.base_offset >= manifest.end
    ]
    for _, producer_id, epoch, batch in sorted(later):
        records = batch.last_offset - batch.base_offset + 1
        producers.append(producer_id, epoch, batch.base_sequence, records, batch.base_offset)
    log.producers = producers
    known = [(entry.epoch, entry.start_offset) for entry in manifest.leader_epochs]
    newest = known[-1][0] if known else -1
    log.epochs = known + [entry for entry in log.epochs if entry[0] > newest]
