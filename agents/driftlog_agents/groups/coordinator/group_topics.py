"""Gives the cluster's topics to the loaded groups of KIP-848, as topics come and go.

    view changes ──at most five times a second──▶ `ClusterTopics` ──▶ all groups
                                                  └─ a topic is gone ──▶ its offsets are deleted

Shell.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from driftlog_agents.cluster.watch import ClusterWatch
from driftlog_agents.groups.coordinator.group_runtime import ServedGroup
from driftlog_agents.groups.coordinator.offset_expiry import ForgottenOffsets
from driftlog_agents.groups.topic_metadata import ClusterTopics

_INTERVAL_S: Final = 0.2
"""Interval between two updates of the groups' topics.  Shorter: groups see a new topic sooner."""


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
    ) -> None:
        self._cluster = cluster
        self._groups = groups
        self._forgetting = forgetting
        self.current = ClusterTopics(-1, ())
        """The topics of the view at the last update."""

    async def run(self) -> None:
        """Update the groups until cancelled."""
        view = self._cluster.view
        with self._cluster.changes() as changed:
            while True:
                changed.clear()
                if self.current.version != view.topics_version:
                    self._update()
                    await asyncio.sleep(_INTERVAL_S)  # Thousands may be created one by one.
                else:
                    await changed.wait()

    def know(self, names: Iterable[str]) -> None:
        """Update the topics at once where one of *names* is new: else the member's assignment would
        lack it until the next heartbeat."""
        known = self.current
        behind = known.version != self._cluster.view.topics_version
        if behind and any(name not in known.by_name for name in names):
            self._update()

    def _update(self) -> None:
        view = self._cluster.view
        known = self.current.by_id.keys()
        self.current = ClusterTopics(
            view.topics_version,
            (
                (entry.topic.name, topic_id, entry.topic.partitions)
                for topic_id, entry in view.topics.items()
            ),
        )
        if known - self.current.by_id.keys():
            self._forgetting.look()
        for group in self._groups.values():
            if group.consumer is not None:
                group.consumer.topics = self.current
