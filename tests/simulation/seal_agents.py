"""Clusters in which an agent only seals, and others only serve, through everything that happens.

Node `SEALING` has the role `seal` alone in most of its lives, and node 1 `serve` alone; others join
with one role or both.  Now and then a life begins with other roles: on a disk with what an earlier
session had acknowledged, or beside the partitions that it led.

1. An agent that does not serve, on a disk without earlier sessions, leads no partition, ever; in
   the end none does, and the metadata store names none as a leader.
2. It coordinates no group, and no agent says that it leads.
3. Each rewrite of a partition keeps what all rewrites keep (`compaction`, `merging`), whoever makes
   it: an agent that seals, or the leader while there is none.
"""

from random import Random
from typing import TYPE_CHECKING, Final

from driftlog_agents.log.log_session import Engine
from driftlog_metadata.schema.codec import decode_leader
from driftlog_metadata.schema.keys import LEADERS_PREFIX
from driftlog_metadata.schema.model import ALL_ROLES, Role
from tests.simulation.expiry_seeds import has_retention

if TYPE_CHECKING:
    from tests.simulation.agent import SimulatedAgent
    from tests.simulation.node import Node
    from tests.simulation.world import World

FIRST, END = 70_000, 80_000
"""Of the range, the seeds that are clusters; no other seed's schedule is changed by this."""

SEALING: Final = 2
SERVE, SEAL = frozenset({Role.SERVE}), frozenset({Role.SEAL})
_ROLES: Final = (SERVE, SEAL, ALL_ROLES)
_MOST_NODES: Final = 9
"""Later ones are alone on a store of their own (`older_metadata`)."""
_STRANGE: Final = 0.15
"""Of the lives: those with other roles than the node's."""


def has_seal_agent(seed: int) -> bool:
    """Whether an agent of the seed, if it is a cluster, only seals.

    (Every third seed begins at format level 1, which does not know roles; `retention` has seeds in
    which every topic expires, and here one is compacted.)
    """
    return FIRST <= seed < END and seed % 3 != 0 and not has_retention(seed)


class SealAgents:
    """See the module."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"roles {world.seed}")
        self._usual: dict[int, frozenset[Role]] = {}

    def roles(self, number: int) -> frozenset[Role]:
        """Those of a node's life that begins."""
        if not has_seal_agent(self._world.seed) or number > _MOST_NODES:
            return ALL_ROLES
        usual = self._of(number)
        if not self._world.calm and self._rng.random() < _STRANGE:
            self._world.count("lives with other roles")
            return self._rng.choice(_ROLES)
        return usual

    def _of(self, number: int) -> frozenset[Role]:
        """Its roles in most of its lives."""
        if number not in self._usual:
            fixed = {1: SERVE, SEALING: SEAL}
            self._usual[number] = fixed.get(number) or self._rng.choice(_ROLES)
        return self._usual[number]

    def may_leave(self, node: "Node") -> bool:
        """Whether a node that serves is left when *node* leaves for good."""
        if not has_seal_agent(self._world.seed):
            return True
        there = [each for each in self._world.nodes if each is not node and not each.last_life]
        return any(Role.SERVE in self._of(each.number) for each in there)

    def settle(self) -> None:
        """The faults are over: each node's next life has its own roles, and so there is one that
        serves and one that seals; those that have others stop."""
        for node in self._world.nodes if has_seal_agent(self._world.seed) else ():
            if roles_of(node) != self._of(node.number):
                node.process.stop()

    def check(self) -> None:
        """Every partition is led, and every agent is there."""
        mine: set[str] = set()
        for node in self._world.nodes:
            engine = node.process.engine
            if engine is not None and Role.SERVE not in roles_of(node):
                mine.add(engine.agent.session_id)
                self._world.expect(not list(engine.logs()), f"{node.process.name} leads at the end")
        leaders = {
            decode_leader(kv.value).session_id
            for kv in self._world.metadata.snapshot(LEADERS_PREFIX)
        }
        self._world.expect(not mine & leaders, f"{mine & leaders} lead, and do not serve")

    def look(self, process: "SimulatedAgent", engine: Engine) -> None:
        """At a session, all the time."""
        if Role.SERVE in process.agent.settings.roles:
            return
        groups = process.broker.groups
        coordinated = [] if groups is None else list(groups.groups)
        self._world.expect(not coordinated, f"{process.name} coordinates {coordinated}")
        led = list(engine.logs())
        self._world.expect(process.recovers or not led, f"{process.name} leads {led}")


def roles_of(node: "Node") -> frozenset[Role]:
    """Those of its present life."""
    return node.process.agent.settings.roles
