"""Verifies the sealed log of one partition; it only reads.

    newest manifest ──▶ lists ──▶ segments: name, size, footer, counts, CRC of each row group, rows
                  └──▶ producer snapshot
    ──▶ suspects ──a pause──▶ the newest manifest, read again ──▶ the suspects' ranges, once more
    ──▶ damage: named by a manifest that was read after the first failure, and damaged again

1. An object that is missing or damaged, and that the newest manifest no longer names, is no damage:
   the log has been rewritten meanwhile, and its new objects are verified in its place.  A manifest
   that was read once is read again by its key where a LIST does not show it: if it is gone, what
   seemed damaged is damage.
2. Objects are read in ranges, and segments by a few workers: memory does not grow with the log.
   Only `deep` holds whole row groups, two at a time.
3. One damaged object stops nothing: what is around it is verified.  A list that cannot be read
   hides its segments; its whole range is damage.
4. A topic that is deleted has no damage: its ``deleted.json`` is there before objects go.

`rules` says what is compared with what.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.batches import kernel
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.accepted_loss import decode_accepted_loss
from driftlog_tiering.formats.bucket_files import decode_topic
from driftlog_tiering.formats.layout import SegmentKind
from driftlog_tiering.formats.manifest import (
    Manifest,
    ProducerSnapshotRef,
    SegmentList,
    SegmentListRef,
    SegmentRef,
    overlaps,
)
from driftlog_tiering.formats.manifest_codec import CorruptManifestError, decode_segment_list
from driftlog_tiering.formats.manifests import MissingManifestError, load_at_least, load_newest
from driftlog_tiering.foundation.types import Buffer, Offload
from driftlog_tiering.segments.segment import (
    TAIL_BYTES,
    CorruptSegmentError,
    RowGroup,
    SegmentReader,
    footer_start,
)
from driftlog_tiering.stores.object_store import NotFoundError
from driftlog_tiering.verification import rules
from driftlog_tiering.verification.findings import (
    MOST_KEPT,
    Damage,
    DamageKind,
    OffsetGap,
    PartitionReport,
)
from driftlog_tiering.verification.object_reads import RANGE_BYTES, ObjectReads

_WORKERS: Final = 8
"""Segments of one partition at once."""

_DECODED_AT_ONCE: Final = 2
"""Row groups in memory at once, for `deep`."""

_MOST_LOOKS: Final = 10
"""Looks at objects that a rewrite replaces again and again."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    """An object of the range ``[base, end)`` that seems damaged; empty: a producer snapshot."""

    base: int
    end: int
    damage: list[Damage]


_Suspects = dict[str, _Suspect]
"""By key."""


@dataclass(slots=True)
class _Look:
    """One look at a range of a manifest's log; *seen*: what seemed damaged in earlier ones."""

    manifest: Manifest
    base: int
    end: int
    seen: _Suspects
    suspects: _Suspects = field(default_factory=dict)


class PartitionVerifier:
    """See the module.

    Args:
        offload: runs ``fn(*args)`` outside the event loop.
        deep: decode every row, too.
        pause_s: before the second look at what seems damaged; a store may withhold an object for a
            moment.
    """

    def __init__(
        self, reads: ObjectReads, offload: Offload, *, deep: bool = False, pause_s: float = 2.0
    ) -> None:
        self._reads = reads
        self._offload = offload
        self._deep = deep
        self._pause_s = pause_s
        self._decoded = asyncio.Semaphore(_DECODED_AT_ONCE)

    async def verify(self, topic: str, tp: TopicPartition, at_least: int = 0) -> PartitionReport:
        """Verify one partition.

        *at_least*: the manifest version that the metadata store names.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: the store failed, each time.
        """
        report = PartitionReport(topic=topic, topic_id=tp.topic_id, partition=tp.partition)
        await self._verify(topic, tp, at_least, report)
        if report.damage and await self._is_deleted(topic, tp):
            return PartitionReport(
                topic=topic, topic_id=tp.topic_id, partition=tp.partition, is_deleted=True
            )
        return report

    async def _verify(
        self, topic: str, tp: TopicPartition, at_least: int, report: PartitionReport
    ) -> None:
        manifest = await self._manifest(topic, tp, at_least, report)
        if manifest is None:
            return
        look = _Look(manifest, manifest.log_start, manifest.end, {})
        await self._walk(look, report)
        await self._producers(look)
        seen, suspects = dict(look.suspects), look.suspects
        confirmed: set[str] = set()
        for _ in range(_MOST_LOOKS):
            if not suspects:
                break
            await asyncio.sleep(self._pause_s)
            newest = await self._manifest(topic, tp, max(at_least, manifest.version), report)
            if newest is None:
                break
            manifest = newest
            found = await self._look_again(manifest, suspects, seen, report)
            for key in sorted(found.keys() & seen.keys() - confirmed):
                report.add_damage(found[key].damage)
                confirmed.add(key)
            suspects = {key: one for key, one in found.items() if key not in confirmed}
            seen |= suspects
        # Replaced again and again, and never right; or the manifest cannot be read any more.
        for suspect in suspects.values():
            report.add_damage(suspect.damage)
        report.log_start, report.end = manifest.log_start, manifest.end
        await self._holes(manifest, report)
        report.damage.sort(key=lambda one: one.base)

    async def _is_deleted(self, topic: str, tp: TopicPartition) -> bool:
        try:
            await self._reads.get_whole(layout.deleted_key(topic, tp.topic_id))
        except NotFoundError:
            return False
        return True

    async def _manifest(
        self, topic: str, tp: TopicPartition, at_least: int, report: PartitionReport
    ) -> Manifest | None:
        """The newest manifest; None: there is none, or it is damaged, which *report* gets."""

        async def load() -> Manifest | None:
            if at_least:
                return await load_at_least(self._reads.store, topic, tp, at_least)
            return await load_newest(self._reads.store, topic, tp)

        for last in (False, True):
            try:
                manifest = await self._reads.ask(load)
            except CorruptManifestError as error:
                if last:
                    report.add_damage([_manifest_damage(error, topic, tp)])
                    return None
                await asyncio.sleep(self._pause_s)
                continue
            report.manifest = None if manifest is None or not manifest.version else manifest.key
            return manifest
        raise AssertionError("two looks")

    # ── Looks ──

    async def _look_again(
        self, manifest: Manifest, suspects: _Suspects, seen: _Suspects, report: PartitionReport
    ) -> _Suspects:
        """What is damaged now in the ranges of *suspects*."""
        look = _Look(manifest, 0, 0, seen)
        for base, end in _ranges(suspects.values(), manifest):
            look.base, look.end = base, end
            await self._walk(look, report)
        if manifest.producers is not None and manifest.producers.key in suspects:
            await self._producers(look)
        return look.suspects

    async def _walk(self, look: _Look, report: PartitionReport) -> None:
        """Verify the segments with offsets in the look's range, by several workers."""
        queue: asyncio.Queue[SegmentRef | None] = asyncio.Queue(_WORKERS)

        async def work() -> None:
            while (ref := await queue.get()) is not None:
                await self._one(look, ref, report)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(_WORKERS):
                    tasks.create_task(work())
                async for ref in self._segments(look, report):
                    await queue.put(ref)
                for _ in range(_WORKERS):
                    await queue.put(None)
        except ExceptionGroup as group:
            raise _first(group) from group

    async def _segments(self, look: _Look, report: PartitionReport) -> AsyncIterator[SegmentRef]:
        """The segments of the look's range, ascending; gaps between them go to *report*."""
        manifest, offset = look.manifest, look.base
        pending: list[SegmentRef | SegmentListRef] = [*manifest.lists, *manifest.segments]
        pending.reverse()
        while pending:
            entry = pending.pop()
            if not overlaps(entry, look.base, look.end):
                continue
            if isinstance(entry, SegmentRef):
                report.add_gaps(rules.gap(offset, entry.base, manifest.key), look.base, look.end)
                offset = max(offset, entry.end)
                yield entry
                continue
            below = await self._list(look, entry)
            if below is None:
                offset = max(offset, entry.end)  # its segments are not known: no gap is
            else:
                report.lists += 1
                pending.extend(reversed(below))
        report.add_gaps(rules.gap(offset, look.end, manifest.key), look.base, look.end)

    async def _list(
        self, look: _Look, ref: SegmentListRef
    ) -> list[SegmentRef | SegmentListRef] | None:
        """The entries of a list; None: it cannot be read, or contradicts its reference.

        In the second look one that can be read is followed, so that its segments are verified.
        """
        manifest = look.manifest
        content: SegmentList | None = None
        try:
            content = decode_segment_list(await self._reads.get_whole(ref.key), ref)
        except NotFoundError:
            found = [Damage(DamageKind.MISSING, ref.base, ref.end, ref.key, "a list of segments")]
        except CorruptManifestError as error:
            detail = str(error).removeprefix(f"{ref.key}: ")
            found = [Damage(DamageKind.MANIFEST, ref.base, ref.end, ref.key, detail)]
        else:
            found = rules.list_facts(manifest.topic, manifest.tp, ref, content)
        if found:
            _suspect(look, ref, found)
            if ref.key not in look.seen:
                return None
        return None if content is None else [*content.lists, *content.segments]

    async def _producers(self, look: _Look) -> None:
        manifest, ref = look.manifest, look.manifest.producers
        if ref is None:
            return
        try:
            body = await self._reads.get_whole(ref.key)
        except NotFoundError:
            found = [_snapshot_missing(manifest, ref)]
        else:
            found = await self._offload(rules.producers_facts, manifest, ref, body)
        if found:
            look.suspects[ref.key] = _Suspect(manifest.end, manifest.end, found)

    # ── One segment ──

    async def _one(self, look: _Look, ref: SegmentRef, report: PartitionReport) -> None:
        manifest = look.manifest
        damage = rules.segment_name(manifest.topic, manifest.tp, ref)
        gaps: list[OffsetGap] = []
        if not damage:
            try:
                if ref.kind is SegmentKind.RAW:
                    damage, gaps = await self._raw(ref)
                else:
                    damage, gaps = await self._parquet(manifest, ref)
            except NotFoundError:
                damage = [Damage(DamageKind.MISSING, ref.base, ref.end, ref.key, "a segment")]
        if damage:
            _suspect(look, ref, damage)
            return
        report.add_gaps(gaps, look.base, look.end)
        report.add_segment(ref, undecodable=ref.kind is SegmentKind.RAW)

    async def _raw(self, ref: SegmentRef) -> tuple[list[Damage], list[OffsetGap]]:
        async with self._decoded:
            body = await self._reads.get_range(ref.key, 0, ref.size_bytes + 1)
            if len(body) != ref.size_bytes:
                return [_size_damage(ref, len(body), ref.size_bytes)], []
            found: tuple[list[Damage], list[OffsetGap]] = await self._offload(
                rules.raw_facts, ref, body
            )
            return found

    async def _parquet(
        self, manifest: Manifest, ref: SegmentRef
    ) -> tuple[list[Damage], list[OffsetGap]]:
        size = ref.size_bytes
        held_from = 0 if size < RANGE_BYTES else size - TAIL_BYTES
        held = await self._reads.get(ref.key, held_from, size + 1)
        if len(held) != size - held_from:
            return [_size_damage(ref, held_from + len(held) if held else None, size)], []
        try:
            start = footer_start(held, size)
            if start < held_from:
                more = await self._reads.get_range(ref.key, start, held_from)
                held, held_from = b"".join((more, held)), start
            reader: SegmentReader = await self._offload(SegmentReader, held, size, ref.footer_crc)
        except CorruptSegmentError as error:
            return [Damage(DamageKind.FOOTER, ref.base, ref.end, ref.key, str(error))], []
        damage = rules.footer_facts(manifest.topic, manifest.tp, ref, reader)
        if damage:
            return damage, []
        gaps = rules.footer_gaps(ref, reader)
        latest: int | None = None
        for group in reader.row_groups:
            wrong, found_gaps, newest = await self._row_group(ref, reader, group, held, held_from)
            damage += wrong
            if found_gaps:  # exact; the footer knows only how many
                gaps = [one for one in gaps if one.base != group.first_offset] + found_gaps
            if latest is None and group.max_timestamp_ms == ref.max_timestamp_ms:
                latest = newest
        if latest is not None and not damage:
            damage += rules.latest_facts(ref, latest)
        return damage, gaps

    async def _row_group(
        self,
        ref: SegmentRef,
        reader: SegmentReader,
        group: RowGroup,
        held: Buffer,
        held_from: int,
    ) -> tuple[list[Damage], list[OffsetGap], int | None]:
        """Damage of a row group; from its rows, with `deep`, also its gaps and the offset with its
        largest timestamp."""
        if self._deep:
            async with self._decoded:
                if group.start >= held_from:
                    data = memoryview(held)[group.start - held_from : group.end - held_from]
                else:
                    data = memoryview(await self._reads.get_range(ref.key, group.start, group.end))
                found: tuple[list[Damage], list[OffsetGap], int | None]
                found = await self._offload(_rows, ref, reader, group, data)
                return found
        crc, length = 0, 0
        if group.start >= held_from:
            data = memoryview(held)[group.start - held_from : group.end - held_from]
            crc, length = await self._offload(kernel.crc32c, data), len(data)
        else:
            for at in range(group.start, group.end, RANGE_BYTES):
                end = min(at + RANGE_BYTES, group.end)
                part = await self._reads.get(ref.key, at, end)
                crc = await self._offload(kernel.crc32c, part, crc)
                length += len(part)
        if (crc, length) != (group.crc, group.end - group.start):
            return [rules.damaged_group(ref, reader, group)], [], None
        return [], [], None

    # ── Holes ──

    async def _holes(self, manifest: Manifest, report: PartitionReport) -> None:
        """Of the gaps, those that nothing explains are damage."""
        if not report.gaps or manifest.cleaned_end:
            return
        topic, tp = manifest.topic, manifest.tp
        if await self._was_compacted(topic, tp):
            return
        lost: list[tuple[int, int]] = []
        for key in await self._reads.keys(layout.audit_topic_prefix(topic, tp.topic_id)):
            with suppress(ValueError, CorruptError, NotFoundError):
                if layout.parse_audit_key(key).tp == tp:
                    lost += decode_accepted_loss(await self._reads.get_whole(key)).lost
        report.add_damage(rules.holes(report.gaps, lost, compacted=False))

    async def _was_compacted(self, topic: str, tp: TopicPartition) -> bool:
        """Whether any version of the topic's file has the policy ``compact``: a run that ended
        half-way has left gaps, and has not moved cleaned end."""
        for key in await self._reads.keys(layout.topic_file_prefix(topic, tp.topic_id)):
            with suppress(ValueError, CorruptError, NotFoundError):
                layout.parse_topic_key(key)
                configs = decode_topic(await self._reads.get_whole(key)).topic.configs
                if "compact" in configs.get("cleanup.policy", ""):
                    return True
        return False


def _rows(
    ref: SegmentRef, reader: SegmentReader, group: RowGroup, data: Buffer
) -> tuple[list[Damage], list[OffsetGap], int | None]:
    if len(data) != group.end - group.start or kernel.crc32c(data) != group.crc:
        return [rules.damaged_group(ref, reader, group)], [], None
    try:
        table = reader.read_table(group, data)
    except CorruptSegmentError as error:
        detail = f"row group {group.index}: {error}"
        end = reader.end_of(group)
        return [Damage(DamageKind.ROWS, group.first_offset, end, ref.key, detail)], [], None
    damage = rules.row_facts(ref, reader, group, table)
    if damage:
        return damage, [], None
    return [], rules.row_gaps(ref, table, MOST_KEPT), rules.latest_offset(table)


def _size_damage(ref: SegmentRef, found: int | None, stated: int) -> Damage:
    if found is None:
        what = "fewer"
    else:
        what = "more" if found > stated else f"{found}"
    detail = f"the object has {what} bytes, and {stated} in the reference"
    return Damage(DamageKind.SIZE, ref.base, ref.end, ref.key, detail)


def _snapshot_missing(manifest: Manifest, ref: ProducerSnapshotRef) -> Damage:
    return Damage(DamageKind.MISSING, manifest.end, None, ref.key, "the producer snapshot")


def _manifest_damage(error: CorruptManifestError, topic: str, tp: TopicPartition) -> Damage:
    kind = DamageKind.MISSING if isinstance(error, MissingManifestError) else DamageKind.MANIFEST
    key, _, detail = str(error).partition(": ")
    if not detail:
        key, detail = layout.manifest_prefix(topic, tp), str(error)
    return Damage(kind, 0, None, key, detail)


def _suspect(look: _Look, ref: SegmentRef | SegmentListRef, found: list[Damage]) -> None:
    """Note what is above log start: the records below it are gone anyway."""
    log_start = look.manifest.log_start
    damage = [
        replace(one, base=max(one.base, log_start))
        for one in found
        if one.end is None or one.end > log_start
    ]
    if damage:
        look.suspects[ref.key] = _Suspect(ref.base, ref.end, damage)


def _ranges(suspects: Iterable[_Suspect], manifest: Manifest) -> list[tuple[int, int]]:
    """Their ranges above log start, ascending and disjoint."""
    found: list[tuple[int, int]] = []
    for base, end in sorted((one.base, one.end) for one in suspects):
        start, stop = max(base, manifest.log_start), min(end, manifest.end)
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        elif start < stop:
            found.append((start, stop))
    return found


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, Exception)
    return found
