"""Restores every partition from its manifest and its joined batches.

    manifest, facts, joined batches ──plan──▶ segments, an empty range ──▶ both keys
                          a loss, damage ──▶ offline: the leader key alone
                           … is skipped ──▶ what is below it, and both keys

1. Damage stops one partition and no other.
2. A partition that is offline has no partition key: no agent claims it, and the next run of the
   restore tries again.

Shell.
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from driftlog_agents.log.recovery.flush_object_ends import READS_AT_ONCE, do_all
from driftlog_agents.restore.evidence import FlushEvidence, PartitionFacts
from driftlog_agents.restore.evidence_reads import Progress
from driftlog_agents.restore.join import UnsealedBatches
from driftlog_agents.restore.metadata_writes import MetadataWrites
from driftlog_agents.restore.partition_plan import PartitionPlan, plan_partition
from driftlog_agents.restore.partition_writer import PartitionWriter
from driftlog_agents.restore.report import EmptyRange, RestoreReport
from driftlog_metadata.schema.model import PartitionState, Topic, TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import Manifest
from driftlog_tiering.stores.object_store import NotFoundError
from driftlog_tiering.verification.sealed_ends import SealedEnds

DAMAGE: Final = (CorruptError, NotFoundError)
_SEALED_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """What an operator asks for."""

    dry_run: bool = False
    """Write nothing."""
    skip_damaged: bool = False
    """Restore partitions without what is damaged or lost, and without what is behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFacts:
    """What the bucket says of all partitions."""

    evidence: FlushEvidence
    group_offsets: Mapping[TopicPartition, Collection[int]]
    told_epochs: Mapping[TopicPartition, int]
    """The largest leader epoch of audit records and of the metadata store."""
    sealed: Mapping[TopicPartition, SealedEnds]
    listed_ms: int
    """When they were listed, by the store's clock."""


class PartitionRestores:
    """See the module."""

    def __init__(
        self,
        *,
        writes: MetadataWrites,
        writer: PartitionWriter,
        report: RestoreReport,
        options: RestoreOptions,
        progress: Progress,
    ) -> None:
        self._writes = writes
        self._writer = writer
        self._report = report
        self._options = options
        self._progress = progress

    async def restore(
        self,
        topics: Mapping[UUID, Topic],
        manifests: Mapping[TopicPartition, Manifest],
        facts: BucketFacts,
    ) -> None:
        """Restore the partitions of *topics* that have *manifests*.

        Raises:
            FencedError: another run of the restore goes on.
            StoreError, TimeoutError: a store.
        """
        report = self._report
        report.refuted = facts.evidence.refuted()
        batches = UnsealedBatches(facts.evidence.possible(report.refuted))
        skipped = len(damaged_flushes(report)) if self._options.skip_damaged else 0
        sealing, others = asyncio.Semaphore(_SEALED_AT_ONCE), asyncio.Semaphore(READS_AT_ONCE)

        async def restore(topic: str, tp: TopicPartition, manifest: Manifest) -> None:
            epoch = manifest.leader_epochs[-1].epoch if manifest.leader_epochs else -1
            runs = batches.join(tp, manifest.end, epoch)
            plan = plan_partition(
                manifest,
                facts.evidence.partitions.get(tp, PartitionFacts()),
                runs,
                facts.group_offsets.get(tp, ()),
                facts.told_epochs.get(tp, -1),
                skipped,
            )
            loss = _lost_manifest(plan, facts.sealed.get(tp, SealedEnds())) or _gap(
                plan, batches.first_behind_gap(tp, manifest.end, epoch, runs)
            )
            async with others if plan.is_idle else sealing:
                is_restored = await self._restore(topic, plan, loss, facts.listed_ms)
            report.partitions += is_restored
            self._progress("partitions restored", report.partitions)

        await do_all(
            restore(topics[tp.topic_id].name, tp, manifest)
            for tp, manifest in manifests.items()
            if tp.topic_id in topics
        )

    async def take_offline(
        self, topic: str, tp: TopicPartition, epoch: int, error: Exception
    ) -> None:
        """The partition has no leader until it is restored by another run."""
        self._report.offline[name_of(topic, tp)] = str(error) or "an object is missing"
        if not self._options.dry_run:
            await self._writes.partition(tp, epoch, None)

    async def _restore(
        self, topic: str, plan: PartitionPlan, loss: tuple[str, str] | None, at_ms: int
    ) -> bool:
        """*loss*: what is lost, and why.  False: the partition is offline."""
        report, options = self._report, self._options
        name = name_of(topic, plan.tp)
        for offset in plan.not_believed:
            report.not_believed[f"offset {offset} of {name}"] = (
                "a group committed it, far above all records: new records begin below it"
            )
        base = plan.manifest.end
        try:
            if loss is not None:
                self._note_loss(name, *loss)
            if not options.dry_run:
                plan, state = await self._write(topic, plan, at_ms)
        except DAMAGE as error:
            await self.take_offline(topic, plan.tp, plan.leader_epoch, error)
            return False
        if not options.dry_run:
            await self._writes.partition(plan.tp, plan.leader_epoch, state)
        report.joined_records += plan.joined_end - base
        if plan.empty is not None:
            start, end = plan.empty
            report.empty.append(EmptyRange(partition=name, base=start, end=end))
        return True

    def _note_loss(self, name: str, what: str, why: str) -> None:
        """
        Raises:
            CorruptError: it is not to be skipped.
        """
        if not self._options.skip_damaged:
            raise CorruptError(f"{what}: {why}")
        self._report.unreadable[f"{what} of {name}"] = why

    async def _write(
        self, topic: str, plan: PartitionPlan, at_ms: int
    ) -> tuple[PartitionPlan, PartitionState]:
        """Seal *plan*, or what is below the first damaged object where damage is to be skipped;
        returns what is sealed, and the partition's key.

        Raises:
            FencedError: another run of the restore has begun.
            CorruptError, NotFoundError: damage, which is not to be skipped, or cannot be.
        """
        writer = self._writer
        if not plan.is_idle:
            await self._writes.confirm()
        try:
            return plan, await writer.write(topic, plan, at_ms)
        except DAMAGE as error:
            damaged = await writer.first_damaged(topic, plan)
            if damaged is None:
                raise
            number, why = damaged
            key = plan.runs[number].object_key
            if not self._options.skip_damaged:
                raise CorruptError(why if key in why else f"{key}: {why}") from error
        self._report.unreadable[key] = why
        plan = plan.cut(number, await writer.newest(topic, plan.tp))
        return plan, await writer.write(topic, plan, at_ms)


def _lost_manifest(plan: PartitionPlan, sealed: SealedEnds) -> tuple[str, str] | None:
    newest = plan.manifest
    found = sealed.unnamed(newest.end, plan.joined_end)
    if found is None:
        return None
    end, key = found
    there = f"{newest.key} ends at {newest.end}" if newest.end else "no manifest names it"
    return "the newest manifest", (
        f"missing: {key} ends at {end}, and {there}.  Put the missing one back, over one of the "
        "same name if there is one"
    )


def _gap(plan: PartitionPlan, behind: tuple[int, str] | None) -> tuple[str, str] | None:
    """*behind*: see `UnsealedBatches.first_behind_gap`."""
    if behind is None:
        return None
    offset, key = behind
    return f"offsets {plan.joined_end} to {offset - 1}", (
        f"no object has them, and they were committed before {key}, which is behind them"
    )


def damaged_flushes(report: RestoreReport) -> list[str]:
    """Flush objects of unknown content."""
    return [key for key in report.unreadable if key.startswith(layout.FLUSH_PREFIX)]


def name_of(topic: str, tp: TopicPartition) -> str:
    """A partition, as the report names it."""
    return f"{topic}-{tp.partition}"
