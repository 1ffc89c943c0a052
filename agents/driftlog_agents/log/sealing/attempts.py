"""Which partitions the sealer attempts, and what earlier attempts have left.

    due by `policy` ─────────────────────────┐
    blocked, and due for another try ────────┼──▶ attempts, in `turns`
    manifest names offsets below log start ──┘

    edit sent ──▶ perhaps made ──▶ the key has its end: forgotten
                       │  ╳ void, or refused: never made
                       └──▶ a manifest that ends where it ends may be adopted

*Sealed* means only this: below the sealed end in the partition's key.  A manifest that is ahead of
the key is adopted if it ends at or below the log's end at the takeover, or where an edit of this
session ends: only this session seals batches that it admitted.  (The newest manifest itself may be
a former leader's: its late edit of log start, on top of ours.)  Any other manifest has other
records at the same offsets (the metadata store went back).

Pure.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Final

from driftlog_agents.log.objects.availability import Availability
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.sealing.policy import (
    SealSettings,
    TopicSealPolicy,
    can_be_sealed,
    fullness,
    seal_end,
    segment_bytes,
)
from driftlog_tiering.formats.manifest import AddSegments, Manifest
from driftlog_tiering.formats.manifest_codec import CorruptManifestError

NOT_SERVED: Final = (State.CLOSED, State.OFFLINE)


class SealStep(Enum):
    """What the attempt of one partition does next."""

    CHECK_LEADER = "check leader"
    """The manifest has records that are not in our log: another agent leads the partition, or the
    partition goes offline."""
    WRITE_KEY = "write key"
    """The manifest is ahead of the key, and its segments count."""
    ADD_SEGMENTS = "add segments"
    MOVE_LOG_START = "move log start"
    NOTHING = "nothing"


class SealAttempts:
    """See the module; for one session.

    Args:
        jitter: a random number in [0, 1).
    """

    def __init__(self, settings: SealSettings, jitter: Callable[[], float]) -> None:
        self._settings = settings
        self._edits: dict[PartitionLog, list[AddSegments]] = {}
        """Edits that this session has made since the last known one, or may have made."""
        self._blocked = Availability[PartitionLog](jitter)
        """Partitions that need an object that cannot be read: repeated after a while."""

    # ── What is next ──

    def next_end(self, log: PartitionLog, wanted: int, topic: TopicSealPolicy | None) -> int:
        """Where the next segment of *log* ends on the way to *wanted*."""
        return min(wanted, seal_end(log, segment_bytes(self._settings, topic)))

    def may_have_work(self, log: PartitionLog, manifest: Manifest | None) -> bool:
        """Whether a look needs *log*, whose manifest was last read as *manifest*: most of very
        many partitions are idle."""
        return (
            bool(log.slices or log.damage)
            or log in self._blocked
            or is_behind(log, manifest)
            or is_ahead_at_takeover(log, manifest)
        )

    def forget_ended(self) -> None:
        """Drop what is noted of partitions that are led no more."""
        self._edits = {log: e for log, e in self._edits.items() if log.state is not State.CLOSED}
        self._blocked.keep_only(lambda log: log.state not in NOT_SERVED)

    def repeated_ends(
        self,
        log: PartitionLog,
        topic: TopicSealPolicy | None,
        manifest: Manifest | None,
        now_ms: float,
    ) -> Iterator[int]:
        """Up to where *log* is attempted though it is not due.

        It was blocked for long enough: its damage is noted, so it is never due.  And 0, which adds
        no segment: its key and its *manifest* differ, also where the first attempt fails.
        """
        if self._blocked.waits(log, now_ms):
            return
        if log in self._blocked:
            yield self.next_end(log, log.high_watermark, topic)
        if is_behind(log, manifest) or is_ahead_at_takeover(log, manifest):
            yield 0

    def newly_full(self, logs: Iterable[PartitionLog]) -> list[PartitionLog]:
        """Keeps partitions that cannot be sealed from growing for ever; returns those that take no
        more from now on."""
        damaged = [log for log in logs if log.damage]
        full = bool(damaged) and fullness(damaged, self._settings) > 1
        news = [log for log in damaged if full and not log.full]
        for log in damaged:
            log.full = full
        return news

    # ── Blocked partitions ──

    def is_blocked(self, log: PartitionLog) -> bool:
        """Whether an object that *log* needs could not be read."""
        return log in self._blocked

    def blocked(self, log: PartitionLog, error: str, now_ms: float) -> bool:
        """An object that *log* needs cannot be read; True: log it.  Nothing for a deleted topic."""
        if log.state is State.CLOSED:
            return False
        log.damage = error
        return self._blocked.failed(log, now_ms)

    def succeeded(self, log: PartitionLog) -> bool:
        """An attempt succeeded; True: the partition was blocked before."""
        if not self._blocked.found(log):
            return False
        log.damage = ""
        log.full = False
        return True

    # ── Edits that may have been made ──

    def sent(self, log: PartitionLog, edit: AddSegments) -> None:
        """*edit* is about to be made; from now on a manifest may have it."""
        self._edits.setdefault(log, []).append(edit)

    def not_made(self, log: PartitionLog, edit: AddSegments) -> None:
        """*edit* was not made, and never will be."""
        edits = self._edits.get(log, [])
        if edit in edits:
            edits.remove(edit)

    def key_written(self, log: PartitionLog) -> None:
        """The partition's key has the end of the manifest: earlier edits matter no longer."""
        self._edits.pop(log, None)

    def next_step(self, log: PartitionLog, manifest: Manifest, end: int) -> SealStep:
        """The next step of sealing *log* up to *end*, by its newest *manifest*.

        Raises:
            CorruptManifestError: the manifest ends below the partition's sealed end.
        """
        if manifest.end > log.sealed_end:
            return SealStep.WRITE_KEY if self.adopts(log, manifest) else SealStep.CHECK_LEADER
        if end > log.sealed_end:
            if manifest.end < log.sealed_end:
                raise CorruptManifestError(
                    f"{manifest.key} ends at {manifest.end}, and its partition is sealed up to "
                    f"{log.sealed_end}"
                )
            return SealStep.ADD_SEGMENTS
        return SealStep.MOVE_LOG_START if is_behind(log, manifest) else SealStep.NOTHING

    def adopts(self, log: PartitionLog, manifest: Manifest) -> bool:
        """Whether the segments of *manifest*, which is ahead of the key, have the records of
        *log*."""
        if manifest.end <= log.recovered_end:
            return True
        return any(_is_on_top(manifest, edit) for edit in self._edits.get(log, ()))


def is_behind(log: PartitionLog, manifest: Manifest | None) -> bool:
    """Whether *manifest*, as last read here, still names offsets below log start; None: it was not
    read yet, and may.

    Also while the tail is damaged: what is sealed below log start is deleted all the same.
    """
    if not log.log_start or not log.manifest_version or log.state in NOT_SERVED:
        return False
    return manifest is None or min(log.log_start, manifest.end) > manifest.log_start


def is_ahead_at_takeover(log: PartitionLog, manifest: Manifest | None) -> bool:
    """Whether *manifest* has a seal of the leader before, which did not write the key.

    It is adopted without waiting for the next seal: a job may compact that range, and fetches of
    what is not sealed read the flush objects.
    """
    return (
        manifest is not None
        and can_be_sealed(log)
        and log.sealed_end < manifest.end <= log.recovered_end
    )


def _is_on_top(manifest: Manifest, edit: AddSegments) -> bool:
    """Whether the end of *manifest* is what *edit* adds.

    A rewrite replaces segments and keeps the producer snapshot, whose key has a nonce of the edit.
    """
    if manifest.end != edit.end:
        return False
    if edit.producers is not None and edit.producers == manifest.producers:
        return True
    # No segments in the manifest: they are in a list, or below log start.
    ours, theirs = edit.segments[-1:], manifest.segments[-1:]
    return not ours or not theirs or ours[0].key == theirs[0].key
