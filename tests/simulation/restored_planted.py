"""Bugs to be planted about agents of a cluster that is restored beside them: see `planted`."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from driftlog_agents.cluster.cluster_file import ClusterFile
from driftlog_agents.groups import group_snapshots
from driftlog_agents.groups.group_snapshots import GroupSnapshots
from driftlog_agents.restore.evidence_reads import EvidenceReads
from driftlog_agents.restore.metadata_writes import MetadataWrites
from driftlog_agents.topics import bucket_files as topic_files
from driftlog_agents.topics.bucket_files import TopicBucketFiles
from driftlog_metadata.schema.keys import GROUPS_PREFIX
from driftlog_metadata.schema.model import Topic
from driftlog_metadata.stores.store import KeyValue
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.group_snapshot import GroupSnapshot, decode_group_snapshot
from tests.simulation.loop import _FREEZER, Freezer
from tests.simulation.planted import Plant


def nobody_looks_whose_the_bucket_is(patch: pytest.MonkeyPatch) -> None:
    """Commits and edits go on, whatever the newest cluster file says."""

    async def hold(_: ClusterFile, patience_ms: float = 0.0) -> None:
        return None

    patch.setattr(ClusterFile, "hold", hold)
    patch.setattr(ClusterFile, "holds", lambda _: True)
    patch.setattr(ClusterFile, "is_due", lambda _: False)


def looks_count_from_their_answers(patch: pytest.MonkeyPatch) -> None:
    """A file that was created while the answer travelled is not seen for longer than a minute."""
    found = ClusterFile._found

    def from_the_answer(self: ClusterFile, number: int, there: str, _: float) -> None:
        found(self, number, there, self._now_ms())

    patch.setattr(ClusterFile, "_found", from_the_answer)


def looks_age_by_a_clock_that_stops(patch: pytest.MonkeyPatch) -> None:
    """The time during which the machine is suspended does not count."""
    stood_still_s: defaultdict[Freezer, float] = defaultdict(float)
    freeze, thaw, make = Freezer.freeze, Freezer.thaw, ClusterFile.__init__

    def freezes(self: Freezer) -> None:
        freeze(self)
        stood_still_s[self] -= self._loop.now_s

    def thaws(self: Freezer, **options: Any) -> None:
        if self.frozen:
            stood_still_s[self] += self._loop.now_s
        thaw(self, **options)

    def made(
        self: ClusterFile,
        objects: Any,
        cluster_id: str,
        grace: Any,
        now_ms: Callable[[], float],
        **options: Any,
    ) -> None:
        own = _FREEZER.get()
        assert own is not None
        make(
            self,
            objects,
            cluster_id,
            grace,
            lambda: now_ms() - stood_still_s[own] * 1000,
            **options,
        )

    patch.setattr(Freezer, "freeze", freezes)
    patch.setattr(Freezer, "thaw", thaws)
    patch.setattr(ClusterFile, "__init__", made)


def groups_are_not_written(patch: pytest.MonkeyPatch) -> None:
    """The restored metadata store has no groups."""

    async def groups(_: MetadataWrites, __: Any) -> None:
        return None

    patch.setattr(MetadataWrites, "groups", groups)


def an_older_snapshot_of_groups(patch: pytest.MonkeyPatch) -> None:
    """The restore takes the last snapshot of the listing."""

    async def groups(self: EvidenceReads, cluster_id: str) -> GroupSnapshot | None:
        keys = [
            info.key
            async for page in self._pages(layout.groups_prefix(cluster_id))
            for info in page.objects
        ]
        return decode_group_snapshot(await self.get(keys[-1])) if keys else None

    patch.setattr(EvidenceReads, "groups", groups)


def a_snapshot_has_a_later_revision_than_its_groups(patch: pytest.MonkeyPatch) -> None:
    """The revision in a snapshot's name is read behind the groups."""
    original = GroupSnapshots._read

    async def read(
        self: GroupSnapshots, prefix: str, *, keys_only: bool
    ) -> tuple[int, list[KeyValue]]:
        _, kvs = await original(self, prefix, keys_only=keys_only)
        if prefix == GROUPS_PREFIX and not keys_only:
            await asyncio.sleep(1)
        revision, _ = await original(self, prefix, keys_only=True)
        return revision, kvs

    patch.setattr(GroupSnapshots, "_read", read)


def snapshots_of_groups_are_put_once(patch: pytest.MonkeyPatch) -> None:
    """An agent takes groups for unchanged by their number alone."""
    patch.setattr(group_snapshots, "_seen", lambda kvs: (0, len(kvs)))


def numbers_of_topic_files_are_free_again(patch: pytest.MonkeyPatch) -> None:
    """Old files of a topic go though a listing may lack all that stay."""
    patch.setattr(topic_files, "SETTLED_MS", 0)


def topic_files_go_before_the_next_is_there(patch: pytest.MonkeyPatch) -> None:
    """A change deletes the versions that it has listed, and then writes its own."""
    original = TopicBucketFiles._newest

    async def newest(self: TopicBucketFiles, topic: Topic) -> Any:
        found = await original(self, topic)
        keys, _ = await self._keys(topic)
        await self._host.objects.delete(keys)
        return found

    patch.setattr(TopicBucketFiles, "_newest", newest)


RESTORED_TOPIC_BUGS: tuple[Plant, ...] = (
    numbers_of_topic_files_are_free_again,
    topic_files_go_before_the_next_is_there,
)

RESTORED_GROUP_BUGS: tuple[Plant, ...] = (
    groups_are_not_written,
    an_older_snapshot_of_groups,
    a_snapshot_has_a_later_revision_than_its_groups,
    snapshots_of_groups_are_put_once,
)

RESTORED_BUGS: tuple[Plant, ...] = (
    nobody_looks_whose_the_bucket_is,
    looks_count_from_their_answers,
    looks_age_by_a_clock_that_stops,
)
