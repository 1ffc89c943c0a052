"""Which agent coordinates a group: rendezvous hashing of its id over the agents that serve.

Agents that see the same agents compute the same; one that does not yet answers NOT_COORDINATOR, or
names an agent that does.  It is not capped as the placement of partitions is: groups are many and
small, and a cap would need to know them all.

Pure.
"""

from collections.abc import Sequence
from zlib import crc32

from driftlog_agents.cluster.placement import mixed
from driftlog_agents.cluster.view import ClusterView
from driftlog_metadata.schema.model import Stage


def coordinator_of(name: str, nodes: Sequence[int]) -> int | None:
    """The node that wins the hash of *name*, which is a group's id; None: there are no nodes."""
    data = name.encode("utf-8", "surrogatepass")
    own = mixed(crc32(data) << 32 | crc32(data, 0xFFFF_FFFF))
    return max(nodes, key=lambda node: (mixed(own ^ mixed(node + 1)), node), default=None)


class Coordinators:
    """The agents that coordinate groups now, computed once for each change of the cluster."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._version = -1
        self._nodes: tuple[int, ...] = ()

    @property
    def nodes(self) -> tuple[int, ...]:
        """Their node ids, ascending: those that serve and stay.

        One that is back on its own disk serves already by its old session, while that lives.
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
            if entry.said.stage is Stage.SERVING
        }
        return tuple(
            sorted(
                node
                for node, agent in view.agents.items()
                if node in serving
                and (session := view.sessions.get(agent.session_id)) is not None
                and session.said.stage is not Stage.LEAVING
            )
        )

    def of(self, name: str) -> int | None:
        """The node id of the coordinator of the group *name*."""
        return coordinator_of(name, self.nodes)
