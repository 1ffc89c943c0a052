"""Bugs of the collector of sealed objects, to be planted: `collecting` notices each."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from driftlog_agents.log.garbage.common.garbage_objects import Garbage, GarbageReason
from driftlog_agents.log.garbage.common.version_pairs import (
    NamedPartition,
    Pair,
    Version,
    Versions,
    Wait,
    next_pair,
)
from driftlog_agents.log.garbage.sealed import superseded_versions, unnamed_objects
from driftlog_agents.log.garbage.sealed.manifest_names import EVERYTHING
from driftlog_agents.log.garbage.sealed.partition_reads import PartitionReads
from driftlog_agents.log.garbage.sealed.replaced_objects import ListsRead
from driftlog_agents.log.garbage.sealed.superseded_versions import SupersededVersions
from driftlog_agents.log.garbage.sealed.unjudged_objects import ListedPartition
from driftlog_agents.log.garbage.sealed.unnamed_objects import UnnamedObjects
from driftlog_agents.process.composition.agent import AgentProcess
from driftlog_metadata.schema.grace import Grace
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import Manifest, empty_manifest

Plant = Callable[[pytest.MonkeyPatch], None]


def collected_before_grace(patch: pytest.MonkeyPatch) -> None:
    """A superseded version is due at once."""

    def at_once(versions: Sequence[Version], now_ms: int, _: Grace) -> Pair | Wait | None:
        return next_pair(versions, now_ms, Grace(0))

    patch.setattr(superseded_versions, "next_pair", at_once)


def grace_by_an_agents_clock(patch: pytest.MonkeyPatch) -> None:
    """A walk takes its agent's wall clock for the store's."""
    original = AgentProcess._prepare

    async def prepare(self: AgentProcess) -> None:
        await original(self)
        reads = self.collector.sealed._superseded._reads
        versions = reads.versions

        async def by_wall_clock(partition: NamedPartition) -> Versions | None:
            found = await versions(partition)
            return found and replace(found, store_now_ms=self._ports.wall_ms())

        patch.setattr(reads, "versions", by_wall_clock)

    patch.setattr(AgentProcess, "_prepare", prepare)


def names_used_for_later_pages(patch: pytest.MonkeyPatch) -> None:
    """Names are read once, before all later pages that are judged by them."""
    known: dict[NamedPartition, frozenset[str]] = {}

    async def unnamed(
        self: UnnamedObjects, found: ListedPartition, there: Versions
    ) -> set[str] | None:
        partition = found.partition
        if partition not in known:
            names: frozenset[str] = frozenset()
            for version in there.ascending:
                manifest = await self._reads.manifest(partition, version)
                if manifest is None:
                    return None
                names |= await self._reads.named_within(
                    manifest, EVERYTHING, EVERYTHING, ListsRead()
                )
            known[partition] = names
        return set(found.objects) - known[partition]

    patch.setattr(UnnamedObjects, "_unnamed", unnamed)


def missing_version_is_empty(patch: pytest.MonkeyPatch) -> None:
    """A version that another collector has deleted names nothing."""
    original = PartitionReads.manifest

    async def manifest(
        self: PartitionReads, partition: NamedPartition, version: Version
    ) -> Manifest | None:
        found = await original(self, partition, version)
        return found or empty_manifest(partition.topic, partition.tp)

    patch.setattr(PartitionReads, "manifest", manifest)


def version_goes_before_its_objects(patch: pytest.MonkeyPatch) -> None:
    """A version is deleted first, then what only it names."""
    original = SupersededVersions._collect

    async def collect(
        self: SupersededVersions, partition: NamedPartition, version: Version, gone: Any
    ) -> None:
        key = layout.manifest_key(partition.topic, partition.tp, version.number)
        await self._deleter.delete([Garbage(key, 0, GarbageReason.REPLACED)])
        await original(self, partition, version, gone)

    patch.setattr(SupersededVersions, "_collect", collect)


def only_the_newest_version_counts(patch: pytest.MonkeyPatch) -> None:
    """A listing takes for garbage what the newest version does not name."""
    patch.setattr(unnamed_objects, "_newest_first", lambda ascending: ascending[-1:])


COLLECTING_BUGS: Final[tuple[Plant, ...]] = (
    collected_before_grace,
    grace_by_an_agents_clock,
    names_used_for_later_pages,
    missing_version_is_empty,
    version_goes_before_its_objects,
    only_the_newest_version_counts,
)
