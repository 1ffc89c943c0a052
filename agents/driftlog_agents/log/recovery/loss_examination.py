"""Reads what is lost of a partition; changes nothing.

    both keys ──▶ flush records ──▶ footers, manifest ──▶ `lost_partition`

An object is gone if the store answers "not found", or returns a damaged footer, for half a minute.
An object that cannot be read now is not lost.  The newest manifest is found by its key: the store
has none of the next version.  A stale listing may show an older one.

Shell.
"""

from collections.abc import Callable, Mapping

from driftlog_agents.cluster.view import TopicEntry
from driftlog_agents.log.objects.availability import DamagedObjectError
from driftlog_agents.log.recovery.flush_object_ends import FlushObjectEnds, do_all, in_time
from driftlog_agents.log.recovery.lost_partition import (
    RESTORE,
    RESTORE_SEGMENT,
    KeysRead,
    LedElsewhereError,
    LostPartition,
    NotLostError,
    OwnedSlice,
    UnsealedPart,
    decoded,
    found_sealed,
    slices_in,
)
from driftlog_agents.log.recovery.missing_objects import MissingObjects
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.codec import decode_flush_record
from driftlog_metadata.schema.keys import (
    FLUSHES_PREFIX,
    RESTORE_KEY,
    leader_key,
    partition_key,
    session_key,
)
from driftlog_metadata.schema.model import FlushRecord, TopicPartition
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_metadata.stores.store import Get, KeyValue
from driftlog_metadata.transactions.session_transactions import Txn
from driftlog_tiering.formats.flush_object import (
    CorruptFlushObjectError,
    Footer,
    decode_footer,
)
from driftlog_tiering.formats.manifest import Manifest
from driftlog_tiering.formats.manifest_codec import CorruptManifestError
from driftlog_tiering.formats.manifests import load_at_least, load_following
from driftlog_tiering.stores.object_store import NotFoundError, ObjectStore


class LossExamination:
    """See the module; for one session.  Each method may raise:

    UnavailableError: a store does not answer, or does not return an object that it has.
    CorruptError: an object or key is damaged that an accepted loss cannot repair.
    NotLostError: nothing is lost, or it is ambiguous what is.
    FencedError: the session ended first.
    """

    def __init__(self, session: Session, objects: ObjectStore, now_ms: Callable[[], float]) -> None:
        self._session = session
        self._objects = objects
        self._shown_ends = FlushObjectEnds(objects)
        self._gone = MissingObjects(objects, now_ms)
        self.now_ms = now_ms

    async def keys(self, tp: TopicPartition) -> KeysRead:
        """Both keys of *tp*.

        Raises:
            LedElsewhereError: another agent's live session leads it.
        """
        result = await self._session.transact(
            Txn((), (Get(leader_key(tp)), Get(partition_key(tp))))
        )
        keys = KeysRead.of(tp, result.reads)
        leader = keys.leader.session_id or ""
        is_other = leader not in ("", self._session.session_id)
        if is_other and await self._session.read(session_key(leader)) is not None:
            raise LedElsewhereError("another agent leads the partition: send the request to it")
        return keys

    async def look(
        self,
        topic: TopicEntry,
        keys: KeysRead,
        reason: str | None,
        read: Mapping[str, list[OwnedSlice]] | None = None,
    ) -> LostPartition:
        """What is lost of a partition that cannot be served, for *reason* if nothing else shows
        why.  *reason* None: it is served, so its unsealed part is complete, and only segments can
        be lost.  *read*: objects that need not be read again."""
        if reason is None:
            return await self._sealed(topic, keys)
        missing = keys.missing()
        if keys.state is None and keys.leader.session_id is None:
            await self._require_no_restore()
        version = 0 if keys.state is None else keys.state.manifest_version
        read_at_ms = int(self.now_ms())
        part = UnsealedPart(
            keys=keys,
            missing=missing,
            manifest=await self._newest(topic.topic.name, keys.tp, version),
            read_at_ms=read_at_ms,
            read=dict(read or {}),
        )
        kvs = await self._session.read_prefix(FLUSHES_PREFIX)
        await do_all([self._read(part, kv) for kv in kvs if part.may_have(kv.key)])
        unnamed = await self._shown_ends.of(keys.tp) if part.is_ahead else (0, -1)
        return part.found(reason, unnamed)

    async def _require_no_restore(self) -> None:
        """
        Raises:
            NotLostError: no flush record names the unsealed records of a partition that a restore
                left offline: their offsets would be given out again.
        """
        if await self._session.read(RESTORE_KEY) is not None:
            raise NotLostError(
                "a restore could not bring the partition back: put the object back that it named, "
                "and run `driftlog restore` again, or run it with --skip-damaged"
            )

    async def _sealed(self, topic: TopicEntry, keys: KeysRead) -> LostPartition:
        state = keys.state_of_served()
        read_at_ms = int(self.now_ms())
        manifest = await self._newest(topic.topic.name, keys.tp, state.manifest_version)
        if manifest.end != state.sealed_end:
            raise UnavailableError("the partition is being sealed: try again")
        gone, damaged = await self._gone.segments(manifest)
        if damaged and not gone:
            raise NotLostError(f"no segment is gone.  Damaged: {damaged[0]}.  {RESTORE_SEGMENT}")
        return found_sealed(keys, manifest, read_at_ms, gone)

    async def _read(self, part: UnsealedPart, kv: KeyValue) -> None:
        """Reads the slices above the sealed end that a flush record names."""
        record = decoded(kv, decode_flush_record)
        key = record.object_key
        if key not in part.read:
            try:
                footer = await self._footer(kv, record)
            except DamagedObjectError:
                part.lost.append(key)
                return
            part.read[key] = slices_in(footer, part.keys.tp, key)
        part.add(key)

    async def _footer(self, kv: KeyValue, record: FlushRecord) -> Footer:
        """
        Raises:
            DamagedObjectError: its object is gone, or its footer is damaged, and its record still
                exists.
        """
        key = record.object_key

        async def read() -> Footer:
            try:
                return decode_footer(
                    await in_time(
                        lambda: self._objects.get(key, record.footer_start, record.size_bytes)
                    )
                )
            except (NotFoundError, CorruptFlushObjectError) as error:
                now = await self._session.read(kv.key)
                if now is None or now.value != kv.value:
                    raise UnavailableError(f"{kv.key} has changed: try again") from error
                raise

        return await self._gone.read(key, read)

    async def _newest(self, topic: str, tp: TopicPartition, version: int) -> Manifest:
        """The newest manifest, at least *version*, even if listings are stale."""
        try:
            manifest: Manifest = await in_time(
                lambda: load_at_least(self._objects, topic, tp, version)
            )
        except CorruptManifestError as error:
            raise CorruptManifestError(f"{error}.  {RESTORE}") from error
        while True:
            known = manifest
            following = await in_time(lambda known=known: load_following(self._objects, known))  # type: ignore[misc]
            if following is None:
                return manifest
            manifest = following
