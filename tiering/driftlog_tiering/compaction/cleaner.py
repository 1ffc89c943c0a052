"""The cleaner of one partition: builds the key map of the dirty part, rewrites all up to its end.

    dirty segments ──▶ keys, offsets ──▶ key map: each key's newest offset
    log start … end of the map ──▶ row groups ──▶ rows that stay ──▶ new segments ──▶ PUT
        ──▶ an edit of the manifest: replaced, added, cleaned end

1. The map covers ``[cleaned end, E)`` without a hole.  E is the dirty end, or the offset of the
   first record whose key found no slot: the next run continues there.
2. Both passes read whole row groups and check their CRCs: a damaged key would drop another key's
   records.
3. A run commits in pieces, ascending, each within about `piece_ms` of its first PUT.  A piece that
   is void ends the run; cleaned end moves with the last piece.  The topic's policy is asked for
   before each edit: after a change the piece is void, and its objects are garbage.
4. The horizon of a tombstone is later than the edit that removes the last older value: the store's
   time before the edit, and the longest time that the edit takes.
5. What fails leaves objects that no manifest names: the collector deletes them.  It counts their
   age by the store's clock, so a piece is as old as by that clock: ours does not count the time for
   which a hypervisor has paused the machine.

Agents and Spark jobs run the same cleaner.

Source: org.apache.kafka.storage.internals.log.Cleaner#doClean.

Shell.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from driftlog_tiering.batches.kernel import KeyMap
from driftlog_tiering.compaction.policy import (
    CleanerSettings,
    CompactionPolicy,
    first_raw,
    groups,
    horizon_at,
    horizons,
    tombstones_end,
)
from driftlog_tiering.compaction.segment_rows import (
    EDIT_MS,
    Bucket,
    RewriteEnvironment,
    SegmentRows,
    StoredRows,
    damage_of,
)
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import Manifest, ReplaceSegments, SegmentRef
from driftlog_tiering.formats.manifests import VoidEditError
from driftlog_tiering.segments.columns import RECORD_COLUMNS, key_rows
from driftlog_tiering.segments.segment import SegmentInfo, SegmentWriter

_SLOT_BYTES: Final = 24
_SMALLEST_MAP_BYTES: Final = 64 * 1024


@dataclass(slots=True)
class Cleaned:
    """What one run did."""

    end: int = 0
    """The new cleaned end."""
    keys: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    segments_read: int = 0
    segments_written: int = 0


@dataclass(slots=True)
class _Piece:
    """Segments that were rewritten since the last edit."""

    began_ms: float
    store_ahead_ms: float
    """By how much the store's clock was ahead of ours, before the first PUT."""
    replaced: list[SegmentRef] = field(default_factory=list)
    added: list[tuple[SegmentRef, list[tuple[SegmentRef, int]]]] = field(default_factory=list)
    """Each new segment, and the number of tombstones that it has of each replaced one."""


@dataclass(frozen=True, slots=True)
class _Run:
    """What holds for all pieces of a run."""

    manifest: Manifest
    policy: CompactionPolicy
    policy_now: Callable[[], Awaitable[CompactionPolicy | None]]
    dated_end: int
    """Tombstones below it get a horizon."""
    gone: int
    """Tombstones below it go: `tombstones_end`."""


class Cleaner:
    """Compacts one partition at a time; see the module.

    Args:
        seed: 16 random bytes, new for each run.
    """

    def __init__(
        self,
        bucket: Bucket,
        environment: RewriteEnvironment,
        *,
        seed: bytes,
        settings: CleanerSettings | None = None,
    ) -> None:
        self._bucket = bucket
        self._rows = SegmentRows(bucket, environment.offload)
        self._offload = environment.offload
        self._spool = environment.spool
        self._nonce = environment.nonce
        self._now_ms = environment.now_ms
        self._seed = seed
        self._settings = settings or CleanerSettings()

    async def clean(
        self,
        manifest: Manifest,
        segments: Sequence[SegmentRef],
        dirty_end: int,
        policy: CompactionPolicy,
        policy_now: Callable[[], Awaitable[CompactionPolicy | None]],
    ) -> Cleaned:
        """Compact the partition up to *dirty_end*, or as far as the key map holds the keys.

        *segments*: all of *manifest* that end above its log start, ascending.  *policy_now* asks
        for the topic's policy; None: it is not compacted any more.

        Raises:
            VoidEditError: another edit was faster, or *policy* has changed; the pieces before it
                are committed.
            CorruptError: a segment is damaged or missing.
            UnavailableError, OutcomeUnknownError, TimeoutError: a store or the disk.
        """
        done = Cleaned()
        cleaned_end = max(manifest.cleaned_end, manifest.log_start)
        below = [each for each in segments if each.end <= dirty_end]
        key_map, end = await self._build_map(manifest, below, cleaned_end, dirty_end, done)
        kept_ms = policy.delete_retention_ms + self._settings.reader_ms
        store_ms = await self._bucket.store_now_ms()
        store_ahead_ms = store_ms - self._now_ms()
        gone = tombstones_end(segments, store_ms - kept_ms)
        raw = first_raw(segments)
        dated_end = end if raw is None else min(end, raw)
        run = _Run(manifest, policy, policy_now, dated_end, gone)

        piece: _Piece | None = None
        rewritten = [each for each in below if each.base < end]
        for group in groups(rewritten, policy.segment_bytes):
            if piece is not None and self._now_ms() - piece.began_ms > self._settings.piece_ms:
                await self._commit(piece, run, 0)
                piece = None
            piece = piece or _Piece(self._now_ms(), store_ahead_ms)
            piece.replaced += group
            if group[0].kind is SegmentKind.RAW:
                piece.added.append((group[0], []))
                continue
            made = await self._rewrite(manifest, group, key_map, end, gone, done)
            if made is not None:
                piece.added.append(made)
        if piece is not None:
            await self._commit(piece, run, end)
        done.end = manifest.cleaned_end if piece is None else end
        done.keys = key_map.keys
        maps = [key_map]
        del key_map
        await self._offload(maps.clear)  # its memory takes milliseconds to free
        return done

    # ── The key map ──

    async def _build_map(
        self,
        manifest: Manifest,
        segments: Sequence[SegmentRef],
        cleaned_end: int,
        dirty_end: int,
        done: Cleaned,
    ) -> tuple[KeyMap, int]:
        """The map of ``[cleaned_end, E)``, and E."""
        dirty = [each for each in segments if each.end > cleaned_end]
        records = sum(each.records for each in dirty if each.kind is SegmentKind.PARQUET)
        settings = self._settings
        wanted = int((records + 2) * _SLOT_BYTES / settings.map_load)
        memory = min(settings.map_bytes, max(wanted, _SMALLEST_MAP_BYTES))
        key_map = KeyMap(memory, settings.map_load, self._seed)
        async with aclosing(self._rows.of(manifest, dirty)) as row_groups:
            async for rows in row_groups:
                done.bytes_read += len(rows.data)
                if rows.group.last_offset < cleaned_end:
                    continue
                full: int | None = await self._bucket.decode(
                    rows.group.decoded_bytes, _add_keys, key_map, rows, cleaned_end
                )
                if full is not None:
                    return key_map, full
        return key_map, dirty_end

    # ── Rewriting ──

    async def _rewrite(
        self,
        manifest: Manifest,
        group: Sequence[SegmentRef],
        key_map: KeyMap,
        end: int,
        gone: int,
        done: Cleaned,
    ) -> tuple[SegmentRef, list[tuple[SegmentRef, int]]] | None:
        """One segment of the rows of *group* that stay; None: none stays."""
        tombstones = dict.fromkeys(group, 0)
        kept = 0
        with (
            self._spool() as spool,
            SegmentWriter(
                spool.file,
                topic=manifest.topic,
                topic_id=manifest.tp.topic_id,
                partition=manifest.tp.partition,
                base=group[0].base,
            ) as writer,
        ):
            async with aclosing(self._rows.of(manifest, group)) as row_groups:
                async for rows in row_groups:
                    done.bytes_read += len(rows.data)
                    stay, deletes = await self._bucket.decode(
                        rows.group.decoded_bytes, _keep_rows, writer, key_map, rows, end, gone
                    )
                    kept += stay
                    tombstones[rows.ref] += deletes
                    done.records_read += rows.group.records
            done.segments_read += len(group)
            if not kept:
                return None
            info: SegmentInfo = await self._offload(writer.finish, group[-1].end)
            key = layout.segment_key(
                manifest.topic, manifest.tp, info.base, info.end, self._nonce()
            )
            await self._bucket.put(key, spool.body())
        done.records_kept += kept
        done.segments_written += 1
        done.bytes_written += info.size_bytes
        ref = info.reference(key, _received_bytes(info, group))
        return ref, list(tombstones.items())

    async def _commit(self, piece: _Piece, run: _Run, cleaned_end: int) -> None:
        """Commit one piece; *cleaned_end* 0: it is not the last one."""
        # In this order: the deadline is not after the store's time, read later, and EDIT_MS.
        deadline_ms = self._now_ms() + EDIT_MS
        store_ms = await self._bucket.store_now_ms()
        paused_ms = max(0, store_ms - self._now_ms() - piece.store_ahead_ms)
        at_ms = horizon_at(store_ms + EDIT_MS, run.policy)
        added = tuple(
            replace(ref, horizons=horizons(replaced, run.dated_end, run.gone, at_ms))
            if replaced
            else ref
            for ref, replaced in piece.added
        )
        edit = ReplaceSegments(replaced=tuple(piece.replaced), added=added, cleaned_end=cleaned_end)
        if await run.policy_now() != run.policy:
            raise VoidEditError("the topic's policy of compaction has changed", run.manifest)
        await self._bucket.commit(edit, piece.began_ms - paused_ms, deadline_ms)


def _add_keys(key_map: KeyMap, rows: StoredRows, cleaned_end: int) -> int | None:
    """Add the keys of a row group from *cleaned_end* on; returns the offset whose key found no
    slot."""
    table = rows.table(("key", "offset"))
    offsets = table.column("offset")
    with damage_of(rows.ref):
        keys = key_rows(table)
    first = pc.sum(pc.less(offsets, cleaned_end)).as_py() or 0
    taken = key_map.add(keys, first, table.num_rows)
    return None if taken == table.num_rows else offsets[taken].as_py()


def _keep_rows(
    writer: SegmentWriter, key_map: KeyMap, rows: StoredRows, end: int, gone: int
) -> tuple[int, int]:
    """Append the rows that stay; returns how many these are, and how many of them are tombstones
    below *end*."""
    table = rows.table(RECORD_COLUMNS)
    with damage_of(rows.ref):
        keys = key_rows(table)
    mask, kept, tombstones = key_map.survivors(keys, end, gone)
    raw_bytes: float = rows.raw_bytes
    if kept < table.num_rows:
        bits = pa.BooleanArray.from_buffers(pa.bool_(), table.num_rows, [None, pa.py_buffer(mask)])
        stay = table.filter(bits)
        raw_bytes *= stay.nbytes / table.nbytes
        table = stay
    with damage_of(rows.ref):
        writer.append_rows(table, rows.reader, round(raw_bytes))
    return kept, tombstones


def _received_bytes(info: SegmentInfo, replaced: Sequence[SegmentRef]) -> int:
    """The share of what was received that *info* keeps."""
    raw_bytes = sum(each.raw_bytes for each in replaced)
    received = sum(each.received_bytes for each in replaced)
    return round(received * info.raw_bytes / raw_bytes) if raw_bytes else 0
