"""Caches the newest manifest of each led partition, and reads the producer snapshot that it names.

Shell.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from driftlog_agents.foundation.keyed_lock import KeyedLock
from driftlog_agents.foundation.offload import inline
from driftlog_agents.log.objects.hedged_reads import HedgedReads
from driftlog_agents.log.partition.known_manifests import KnownManifests
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.batches.producers import CorruptSnapshotError, ProducerStates
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import Manifest
from driftlog_tiering.formats.manifests import load_at_least
from driftlog_tiering.foundation.types import Offload
from driftlog_tiering.stores.object_store import NotFoundError, ObjectStore

_LONGEST_TIMEOUT_S: Final = 30.0
"""Longest timeout while the store is slow for all: a manifest takes a few requests."""


class ManifestCache:
    """The newest manifest of each led partition, read when it is first needed.

    Args:
        offload: ``await offload(fn, *args)`` runs *fn* off the event loop.
    """

    def __init__(
        self,
        objects: ObjectStore,
        now_ms: Callable[[], float],
        offload: Offload = inline,
        unknown_keys: UnknownKeys | None = None,
    ) -> None:
        self._objects = objects
        self._offload = offload
        self._now_ms = now_ms
        self._hedged = HedgedReads(now_ms, longest_timeout_s=_LONGEST_TIMEOUT_S)
        self.cached = KnownManifests()
        self._reading = KeyedLock[PartitionLog]()
        self._unknown_keys = unknown_keys or UnknownKeys()

    def take_edited(self) -> list[tuple[str, TopicPartition]]:
        """Partitions, with their topics' names, that got a newer version by `put` since the last
        call."""
        return self.cached.take_edited()

    async def get(self, log: PartitionLog) -> Manifest:
        """The newest manifest, at least at the version that the partition's key names.

        Raises:
            CorruptManifestError: missing or damaged.
            UnavailableError, OutcomeUnknownError, TimeoutError: the store; try again.
        """
        if (known := self.cached.current(log, self._now_ms())) is not None:
            return known
        async with self._reading.of(log):
            while (known := self.cached.current(log, self._now_ms())) is None:
                began_ms = self._now_ms()
                found = await self._load(log, log.manifest_version)
                if log.state is State.CLOSED:
                    return found
                self.cached.was_read(log, found, began_ms)
            return known

    def _strange(self, key: str) -> None:
        self._unknown_keys.is_ours(key, layout.parse_manifest_key)

    async def read_back(self, log: PartitionLog, version: int) -> Manifest:
        """Reads the newest manifest from the bucket, at least at *version*, past the cache; `put`
        caches it.

        Raises: as `get`.
        """
        return await self._load(log, version)

    async def _load(self, log: PartitionLog, version: int) -> Manifest:
        tp = TopicPartition(log.topic_id, log.partition)
        return await self._hedged.read(
            partial(load_at_least, self._objects, log.topic, tp, version, self._strange)
        )

    def known(self, log: PartitionLog) -> Manifest | None:
        """The cached manifest, which may be old; None: there is none."""
        return self.cached.newest(log)

    def put(self, log: PartitionLog, manifest: Manifest, began_ms: float | None = None) -> None:
        """Caches a newer manifest, whose read or commit began at *began_ms*; None: just now."""
        self.cached.was_edited(log, manifest, self._now_ms() if began_ms is None else began_ms)

    def read_at_ms(self, log: PartitionLog) -> float:
        """When the read of the cached manifest began; now, if there is none."""
        return self.cached.read_at_ms(log, self._now_ms())

    def age_ms(self, log: PartitionLog) -> float:
        """How long ago the read of the cached manifest began; 0: there is none."""
        return self.cached.age_ms(log, self._now_ms())

    def drop(self, log: PartitionLog) -> None:
        """Removes the cached manifest, which may be old: the next `get` reads it again."""
        self.cached.drop(log)

    def forget(self, log: PartitionLog) -> None:
        """Removes every entry of *log*, which is closed: this session does not lead it any more."""
        self.cached.forget(log)

    async def producers(self, manifest: Manifest) -> ProducerStates:
        """The producer state at the manifest's end; its times are those of flushes.

        Raises:
            CorruptSnapshotError: damaged or missing.
        """
        if manifest.producers is None:
            return ProducerStates()
        key = manifest.producers.key
        try:
            data = await self._hedged.read(partial(self._objects.get, key))
            offset, states = await self._offload(ProducerStates.decode, data)
        except NotFoundError as error:
            raise CorruptSnapshotError(f"{key}: missing") from error
        except CorruptSnapshotError as error:
            raise CorruptSnapshotError(f"{key}: {error}") from error
        if offset != manifest.end:
            raise CorruptSnapshotError(f"{key} is of {offset}, not of {manifest.end}")
        assert isinstance(states, ProducerStates)
        return states
