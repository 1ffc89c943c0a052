"""Edits of a partition's manifest by its leader: more segments, no segments, another log start.

    write the range's objects (`segment_writer`) ──▶ commit the edit ──▶ read the manifest back

The partition's key follows (`sealer`).  An edit is committed within a deadline, and only on a
manifest that was read a short time ago: the collector counts on it.

Shell.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from driftlog_agents.log.objects.manifest_cache import ManifestCache
from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.sealing.attempts import SealAttempts
from driftlog_agents.log.sealing.segment_writer import SealedRangeWriter
from driftlog_agents.log.segments.sealed_range import end_of, leader_epochs, neighbours
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.batches.batch import BatchHeader
from driftlog_tiering.formats.manifest import (
    AddSegments,
    Edit,
    LeaderEpoch,
    Manifest,
    ReplaceSegments,
    SegmentRef,
    SetLogStart,
)
from driftlog_tiering.formats.manifests import VoidEditError, commit_edit, load_version
from driftlog_tiering.stores.object_store import ObjectStore

_EDIT_DEADLINE_MS: Final = 30_000


class ManifestEdits:
    """The edits of one session.

    Args:
        attempts: learns which edits were sent.
    """

    def __init__(
        self,
        *,
        session: Session,
        objects: ObjectStore,
        manifests: ManifestCache,
        writer: SealedRangeWriter,
        attempts: SealAttempts,
        rng: Random,
        now_ms: Callable[[], float],
        grace: Grace,
    ) -> None:
        self._session = session
        self._objects = objects
        self.manifests = manifests
        self._writer = writer
        self.attempts = attempts
        self._rng = rng
        self._now_ms = now_ms
        self._grace = grace

    async def extend(
        self,
        log: PartitionLog,
        manifest: Manifest,
        end: int,
        segments: list[SegmentRef],
        *,
        read_at_ms: int,
        lost: tuple[LeaderEpoch, ...] | None = None,
    ) -> Manifest:
        """Add ``[manifest.end, end)`` of *log* to *manifest*, or the beginning of it
        (`sealed_range.end_of`); returns the newest.  *segments* gets the new segments.  For a range
        whose records are lost, *lost* has its leader epochs, and
        there is no segment.

        Raises:
            VoidEditError: another edit was faster.
            UnavailableError, OutcomeUnknownError, TimeoutError: a store; try again.
            CorruptError, NotFoundError: the manifest or a flush object is damaged.
        """
        base = manifest.end
        states = await self.manifests.producers(manifest)  # first: the snapshot may be damaged
        headers: list[BatchHeader] = []
        if lost is None:
            segments += await self._writer.write(log, base, end, headers)
            end = end_of(segments, end)
        producers = await self._writer.write_producers(log, states, headers, end)
        edit = AddSegments(
            base=base,
            end=end,
            segments=tuple(segments),
            leader_epochs=leader_epochs(headers) if lost is None else lost,
            producers=producers,
            is_deleted=lost is None and not segments,
        )
        self.attempts.sent(log, edit)
        try:
            edited = await self._commit(manifest, edit, read_at_ms)
        except (VoidEditError, UnavailableError):
            self.attempts.not_made(log, edit)
            raise
        return await self.manifests.read_back(log, edited.version)

    async def has_ours(self, log: PartitionLog, manifest: Manifest) -> bool:
        """Whether *manifest*, which has other segments at its end than this session added, has
        them in place of these: a job compacted or merged them before their edit was answered.

        Versions before it tell, back to the one that added its last range.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: a store; try again.
            CorruptManifestError: a version is damaged.
        """
        tp, version = manifest.tp, manifest.version
        while version > 1:
            version -= 1
            before = await load_version(self._objects, manifest.topic, tp, version)
            if before is None or before.end != manifest.end:
                return False
            if self.attempts.adopts(log, before):
                return True
        return False

    async def drop_segments(
        self, manifest: Manifest, segments: Sequence[SegmentRef], *, read_at_ms: int
    ) -> Manifest:
        """Make the ranges of *segments* empty; returns the manifest without them.

        Raises:
            VoidEditError: another edit was faster.
            UnavailableError, OutcomeUnknownError: a store; try again.
            CorruptError: a list of older segments is damaged.
        """
        for run in neighbours(segments):
            edit = ReplaceSegments(replaced=run, added=())
            manifest = await self._commit(manifest, edit, read_at_ms)
        return manifest

    async def move_log_start(
        self, log: PartitionLog, manifest: Manifest, wanted: Callable[[], bool]
    ) -> Manifest:
        """Move the manifest's log start to that of *log*, while it is *wanted*; returns the newest.

        Raises:
            VoidEditError, UnavailableError, OutcomeUnknownError: as `drop_segments`.
        """
        edit = SetLogStart(min(log.log_start, manifest.end))
        read_at_ms = int(self.manifests.read_at_ms(log))
        return await self._commit(manifest, edit, read_at_ms, wanted)

    async def _commit(
        self,
        manifest: Manifest,
        edit: Edit,
        read_at_ms: int,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Manifest:
        await self._session.ownership.hold()
        return await commit_edit(
            self._objects,
            manifest,
            edit,
            f"{self._rng.getrandbits(64):016x}",
            author=self._session.author,
            read_at_ms=read_at_ms,
            deadline_ms=int(self._now_ms()) + _EDIT_DEADLINE_MS,
            now_ms=lambda: int(self._now_ms()),
            wanted=wanted,
            grace=self._grace,
        )
