"""The status that a session publishes to the other agents, in its key.

    STARTING ──serve──▶ SERVING ──leave──▶ LEAVING      which topics it has seen
                                                        whether it asks which agents can commit

Shell.
"""

from driftlog_agents.cluster.watch import ClusterWatch
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.model import LiveSession, Stage
from driftlog_metadata.stores.errors import FencedError
from driftlog_metadata.transactions import session_transactions as transactions


class SessionStatus:
    """See the module; for one session."""

    def __init__(self, node_id: int, session: Session, cluster: ClusterWatch) -> None:
        self._node_id = node_id
        self._session = session
        self._cluster = cluster
        self._view = cluster.view
        self._stage = Stage.STARTING
        self._stored = LiveSession(node_id=node_id)
        self._stored_revision = session.revision
        self._asks = False
        self._proofs = 0

    @property
    def asks(self) -> bool:
        """Whether this agent cannot commit, and asks which agents can."""
        return self._asks

    def others(self) -> set[int]:
        """Node ids of the other agents that the plan uses."""
        return set(self._view.placed()) - {self._node_id}

    def nodes(self) -> tuple[int, ...]:
        """Node ids of the agents that the plan uses, ascending.  This agent is one of them even
        before it is SERVING, and is not when it leaves."""
        myself = set() if self._stage is Stage.LEAVING else {self._node_id}
        return tuple(sorted(self.others() | myself))

    def others_start(self) -> bool:
        """Whether another agent is STARTING."""
        return any(
            entry.said.stage is Stage.STARTING and entry.session_id != self._session.session_id
            for entry in self._view.sessions.values()
        )

    async def set_stage(self, stage: Stage) -> None:
        """Publishes *stage*: partitions can be placed here, or this agent leaves.

        Raises:
            FencedError: the session is over.
        """
        self._stage = stage
        await self._store()

    def leave(self) -> None:
        """Removes this agent from `nodes`; `set_stage` publishes it."""
        self._stage = Stage.LEAVING

    async def ask(self, asks: bool) -> None:
        """Publishes *asks*: this agent cannot commit, and asks which agents can.

        Raises:
            FencedError: the session is over.
        """
        self._asks = asks
        await self._store_if_open()

    async def prove(self) -> None:
        """Publishes another proof that this agent can commit.

        Raises:
            FencedError: the session is over.
        """
        self._proofs += 1
        await self._store_if_open()

    async def keep_told(self) -> None:
        """Publishes which topics this agent has seen, while there are other agents; until
        cancelled.

        Raises:
            FencedError: the session is over.
        """
        with self._cluster.changes() as changed:
            while True:
                changed.clear()
                if len(self._view.sessions) > 1 and self._stage is not Stage.STARTING:
                    await self._store()
                await changed.wait()

    async def _store_if_open(self) -> None:
        """Writes the key; a session that still opens publishes this with its stage."""
        if self._session.revision:
            await self._store()

    async def _store(self) -> None:
        """Writes the session's key until it holds the present status."""
        while True:
            wanted = LiveSession(
                node_id=self._node_id,
                stage=self._stage,
                topics_revision=self._view.topics_revision,
                asks=self._asks,
                proofs=self._proofs,
            )
            if wanted == self._stored:
                return
            session = self._session
            assert session.revision  # otherwise this would create the key without its head
            revision = self._stored_revision or session.revision
            result = await session.transact(
                transactions.report(session.session_id, session.revision, revision, wanted)
            )
            if result.succeeded:
                self._stored, self._stored_revision = wanted, result.revision
                continue
            kvs = result.reads[0]
            if not kvs or kvs[0].create_revision != session.revision:
                raise FencedError("the session ended before it could publish its status")
            self._stored_revision = kvs[0].mod_revision  # an earlier try; its answer was lost
