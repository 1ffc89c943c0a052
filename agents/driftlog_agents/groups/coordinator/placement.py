"""Which agent coordinates a group: rendezvous hashing of its id over the serving agents.

Agents whose views have the same agents compute the same coordinator; an agent whose view is behind
answers NOT_COORDINATOR.  There is no cap per agent, unlike for partitions (`cluster.placement`):
groups are many and small, and a cap needs the list of all groups.

Pure.
"""

from collections.abc import Sequence
from zlib import crc32

from driftlog_agents.cluster.placement import mixed
from driftlog_agents.cluster.view import ClusterView
from driftlog_metadata.schema.model import SessionStage


def coordinator_of(name: str, nodes: Sequence[int]) -> int | None:
    """The node with the highest hash for *name*, a group's id; None: *nodes* is empty."""
    data = name.encode("utf-8", "surrogatepass")
    own = mixed(crc32(data) << 32 | crc32(data, 0xFFFF_FFFF))
    return max(nodes, key=lambda node: (mixed(own ^ mixed(node + 1)), node), default=None)


class Coordinators:
    """The agents that coordinate groups, recomputed after each change of the view's members."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._version = -1
        self._nodes: tuple[int, ...] = ()

    @property
    def nodes(self) -> tuple[int, ...]:
        """Node ids of the agents with the role `serve` that are ready and do not leave, ascending.

        An agent that restarts on its own disk counts as serving while its old session lives.
        """
        view = self._view
        if self._version != view.members_version:
            self._version = view.members_version
            self._nodes = self._serving()
        return self._nodes

    def _serving(self) -> tuple[int, ...]:
        view = self._view
        serving = {
            entry.said.node_id
            for entry in view.sessions.values()
            if entry.said.stage is SessionStage.SERVING
        }
        return tuple(
            sorted(
                node
                for node, agent in view.serving_agents().items()
                if node in serving
                and (session := view.sessions.get(agent.session_id)) is not None
                and session.said.stage is not SessionStage.LEAVING
            )
        )

    def of(self, name: str) -> int | None:
        """The node id of the coordinator of the group *name*."""
        return coordinator_of(name, self.nodes)
