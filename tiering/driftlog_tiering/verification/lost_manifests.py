"""Finds partitions whose newest manifest is gone, where no metadata store names it.

    LIST of each partition ──▶ a sealed object ends above the newest manifest
        ──pauses──▶ the newest manifest, read again after each ──▶ still
        ──▶ footers of all flush objects ──▶ they do not have its records, either: damage

1. A seal puts its segments before the manifest that names them.  Their records are in flush objects
   until long after the manifest is there: a seal that goes on, or that ended half-way, is no
   damage.
2. Flush objects are listed only if a partition is suspect after the pauses: there may be millions,
   and in a busy cluster a seal goes on at any time.
3. If no object is left that only the lost manifest names, the loss does not show.

Shell.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.flush_object import find_footer, footer_reads
from driftlog_tiering.formats.manifest_codec import CorruptManifestError
from driftlog_tiering.formats.manifests import load_newest
from driftlog_tiering.stores.object_store import NotFoundError, ObjectInfo
from driftlog_tiering.verification.findings import Damage, DamageKind, PartitionReport
from driftlog_tiering.verification.object_reads import ObjectReads
from driftlog_tiering.verification.sealed_ends import SealedEnds, joined_end


class LostManifests:
    """See the module.

    Args:
        pauses_s: before each further look at the manifests of suspects: a store may withhold an
            object for a moment, and a seal takes seconds.
    """

    def __init__(self, reads: ObjectReads, *, pauses_s: Sequence[float] = (2.0, 10.0)) -> None:
        self._reads = reads
        self._pauses_s = pauses_s
        self._suspects: dict[TopicPartition, tuple[PartitionReport, SealedEnds]] = {}

    async def look(self, report: PartitionReport) -> None:
        """List the partition of *report*, which was verified.

        Raises:
            UnavailableError, OutcomeUnknownError, TimeoutError: the store failed, each time.
        """
        if report.is_unknown or report.is_deleted:
            return
        tp = TopicPartition(report.topic_id, report.partition)
        ends = SealedEnds()
        async for info in self._reads.objects(layout.partition_prefix(report.topic, tp)):
            with suppress(ValueError):
                ends.add(info.key, layout.parse_key(info.key))
        if ends.unnamed(report.end, report.end) is not None:
            self._suspects[tp] = report, ends

    async def settle(self) -> None:
        """Add the damage that was found to the reports.

        Raises: as `look`.
        """
        newest: dict[TopicPartition, tuple[int, str | None]] = {}
        for pause_s in self._pauses_s:
            if not self._suspects:
                return
            await asyncio.sleep(pause_s)
            async with asyncio.TaskGroup() as tasks:  # `ObjectReads` sends few at once
                looks = {
                    tp: tasks.create_task(self._newest(report, tp))
                    for tp, (report, _) in self._suspects.items()
                }
            for tp, look in looks.items():
                found = look.result()
                if found is None or self._suspects[tp][1].unnamed(found[0], found[0]) is None:
                    del self._suspects[tp]
                else:
                    newest[tp] = found
        ranges = await self._unsealed(self._suspects) if self._suspects else {}
        for tp, (report, ends) in self._suspects.items():
            end, key = newest[tp]
            # From the end that was read last: flush objects below it may be collected since.
            lost = ends.unnamed(end, joined_end(end, ranges[tp]))
            if lost is not None:
                report.add_damage([_damage(report, tp, end, key, lost[1])])

    async def _newest(
        self, report: PartitionReport, tp: TopicPartition
    ) -> tuple[int, str | None] | None:
        """The end and the key of the newest manifest; None: it is damaged since."""
        topic, end, key = report.topic, report.end, report.manifest
        try:
            manifest = await self._reads.ask(lambda: load_newest(self._reads.store, topic, tp))
        except CorruptManifestError:
            return None
        return (
            (end, key) if manifest is None or manifest.end < end else (manifest.end, manifest.key)
        )

    async def _unsealed(
        self, wanted: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[tuple[int, int]]]:
        """The offset ranges of the *wanted* partitions in all flush objects."""
        found: dict[TopicPartition, list[tuple[int, int]]] = {tp: [] for tp in wanted}
        queue: asyncio.Queue[ObjectInfo | None] = asyncio.Queue(self._reads.limits.at_once)

        async def work() -> None:
            while (info := await queue.get()) is not None:
                with suppress(NotFoundError):  # it was collected since
                    await self._add(info, found)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._reads.limits.at_once):
                tasks.create_task(work())
            async for info in self._reads.objects(layout.FLUSH_PREFIX):
                await queue.put(info)
            for _ in range(self._reads.limits.at_once):
                await queue.put(None)
        return found

    async def _add(
        self, info: ObjectInfo, found: dict[TopicPartition, list[tuple[int, int]]]
    ) -> None:
        for start in footer_reads(info.size_bytes):
            footer = find_footer(await self._reads.get_range(info.key, start, info.size_bytes))
            if footer is None:
                continue
            for part in footer.slices():
                tp = TopicPartition(part.topic_id, part.partition)
                if tp in found:
                    found[tp].append((part.base, part.end))
            return


def _damage(
    report: PartitionReport, tp: TopicPartition, end: int, newest: str | None, key: str
) -> Damage:
    there = "there is none" if newest is None else f"{newest} is the newest"
    return Damage(
        DamageKind.MISSING,
        end,
        None,
        layout.manifest_prefix(report.topic, tp),
        f"the manifest that names {key}: {there}, and no flush object has these records",
    )
