"""Gives the cluster's topics to the loaded groups of KIP-848, as topics come and go.

    view changes ──five times a second at most, in a thread──▶ `ClusterTopics` ──▶ all groups
                                                  └─ a topic is gone ──▶ its offsets are deleted

Shell.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from driftlog_agents.cluster.view import TopicEntry
from driftlog_agents.cluster.watch import ClusterWatch
from driftlog_agents.groups.coordinator.group_runtime import ServedGroup
from driftlog_agents.groups.coordinator.offset_expiry import ForgottenOffsets
from driftlog_agents.groups.topic_metadata import ClusterTopics
from driftlog_tiering.foundation.types import Offload

_INTERVAL_S: Final = 0.2
"""Interval between two updates of the groups' topics.  Shorter: groups see a new topic sooner."""

_READ_HERE: Final = 1_000
"""More topics are read off the event loop: they would block it for milliseconds."""


class GroupTopics:
    """See the module.

    Args:
        groups: the loaded groups, by id.
    """

    def __init__(
        self,
        cluster: ClusterWatch,
        groups: Mapping[str, ServedGroup],
        forgetting: ForgottenOffsets,
        offload: Offload,
    ) -> None:
        self._cluster = cluster
        self._groups = groups
        self._forgetting = forgetting
        self._offload = offload
        self._updating = asyncio.Lock()
        self.current = ClusterTopics(-1, ())
        """The topics of the view at the last update."""

    async def run(self) -> None:
        """Update the groups until cancelled."""
        view = self._cluster.view
        with self._cluster.changes() as changed:
            while True:
                changed.clear()
                if self.current.version != view.topics_version:
                    await self._update()
                    await asyncio.sleep(_INTERVAL_S)  # Thousands may be created one by one.
                else:
                    await changed.wait()

    async def know(self, names: Collection[str]) -> None:
        """Update the topics at once where one of *names* is new: else the member's assignment would
        lack it until the next heartbeat."""
        known = self.current
        behind = known.version != self._cluster.view.topics_version
        if behind and any(name not in known.by_name for name in names):
            await self._update()

    async def _update(self) -> None:
        """Take the topics that the view has now; requests that need the same update share it."""
        view, wanted = self._cluster.view, self._cluster.view.topics_version
        async with self._updating:
            if self.current.version >= wanted:
                return
            known, version, entries = self.current, view.topics_version, list(view.topics.values())
            if len(entries) > _READ_HERE:
                current, are_gone = await self._offload(_topics_after, known, version, entries)
            else:
                current, are_gone = _topics_after(known, version, entries)
            self.current = current
        if are_gone:
            self._forgetting.look()
        for group in self._groups.values():
            if group.consumer is not None:
                group.consumer.topics = self.current


def _topics_after(
    known: ClusterTopics, version: int, entries: Iterable[TopicEntry]
) -> tuple[ClusterTopics, bool]:
    """The topics of *entries*, and whether one of the *known* ones is not among them."""
    topics = ((one.topic.name, one.topic.topic_id, one.topic.partitions) for one in entries)
    current = ClusterTopics(version, topics)
    return current, not known.by_id.keys() <= current.by_id.keys()
