"""The newest known manifest of each led partition, and since when it is known.

1. A known manifest is replaced by a newer version only: reads and commits may end in any order.
2. A partition's key names a version: an older manifest is not current, and is read again.
3. The manifest of a closed partition is not kept: `forget` would not remove it any more.

Pure.
"""

from typing import Final

from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats.manifest import Manifest

COMPACTED_AGE_MS: Final = 300_000.0
"""A compacted partition's manifest is read again after this, while the partition is read: its
tombstones go only so long after their horizon (`CleanerSettings.reader_ms`), and a job may have
compacted it, also for the first time.  Longer: fewer listings, and tombstones stay longer."""


class KnownManifests:
    """See the module; for one session."""

    def __init__(self) -> None:
        self._newest: dict[PartitionLog, Manifest] = {}
        self._read_at_ms: dict[PartitionLog, float] = {}
        self._edited: dict[tuple[str, TopicPartition], None] = {}

    def newest(self, log: PartitionLog) -> Manifest | None:
        """The known manifest, which may be old; None: there is none."""
        return self._newest.get(log)

    def current(self, log: PartitionLog, now_ms: float) -> Manifest | None:
        """The known manifest, if the partition's key names no newer one, and a compacted
        partition's was read within `COMPACTED_AGE_MS`."""
        known = self._newest.get(log)
        if known is None or known.version < log.manifest_version:
            return None
        is_compacted = log.compacted or known.cleaned_end > 0
        if is_compacted and self.age_ms(log, now_ms) > COMPACTED_AGE_MS:
            return None
        return known

    def was_read(self, log: PartitionLog, manifest: Manifest, began_ms: float) -> None:
        """*manifest* was read from the bucket, by a read that began at *began_ms*."""
        known = self._newest.get(log)
        if known is None or known.version <= manifest.version:
            self._keep(log, manifest, began_ms)

    def was_edited(self, log: PartitionLog, manifest: Manifest, began_ms: float) -> None:
        """An edit gave *manifest*, or a read past the cache; it began at *began_ms*."""
        if manifest.version > 1:
            self._edited[manifest.topic, manifest.tp] = None
        self.was_read(log, manifest, began_ms)

    def _keep(self, log: PartitionLog, manifest: Manifest, began_ms: float) -> None:
        if log.state is not State.CLOSED:
            self._newest[log] = manifest
            self._read_at_ms[log] = began_ms

    def take_edited(self) -> list[tuple[str, TopicPartition]]:
        """Partitions, with their topics' names, that got a newer version by `was_edited` since the
        last call."""
        edited, self._edited = self._edited, {}
        return list(edited)

    def read_at_ms(self, log: PartitionLog, now_ms: float) -> float:
        """When the read of the known manifest began; now, if there is none."""
        return self._read_at_ms.get(log, now_ms)

    def age_ms(self, log: PartitionLog, now_ms: float) -> float:
        """How long ago the read of the known manifest began; 0: there is none."""
        return now_ms - self.read_at_ms(log, now_ms)

    def drop(self, log: PartitionLog) -> None:
        """Removes the known manifest, which may be old."""
        self._newest.pop(log, None)

    def forget(self, log: PartitionLog) -> None:
        """Removes every entry of *log*, which is closed: this session does not lead it any more."""
        assert log.state is State.CLOSED
        self.drop(log)
        self._read_at_ms.pop(log, None)
