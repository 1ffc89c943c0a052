"""The status that a session publishes to the other agents, in its key; `own_status` says which.

Shell.
"""

from driftlog_agents.cluster.watch import ClusterWatch
from driftlog_agents.log.leadership.own_status import OwnStatus
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.model import SessionStage
from driftlog_metadata.transactions import session_transactions as transactions


class SessionStatus:
    """See the module; for one session."""

    def __init__(
        self, node_id: int, session: Session, cluster: ClusterWatch, *, leads: bool = True
    ) -> None:
        self._session = session
        self._cluster = cluster
        self._view = cluster.view
        self._status = OwnStatus(node_id, session.session_id, leads=leads)

    @property
    def asks(self) -> bool:
        """Whether this agent cannot commit, and asks which agents can."""
        return self._status.asks

    def others(self) -> set[int]:
        """Node ids of the other agents that the plan uses."""
        return self._status.others(self._view)

    def nodes(self) -> tuple[int, ...]:
        """Node ids of the agents that the plan uses, ascending.  This agent is one of them even
        before it is SERVING, and is not when it leaves, nor without the role `serve`."""
        return self._status.nodes(self._view)

    def others_start(self) -> bool:
        """Whether another agent is STARTING."""
        return self._status.others_start(self._view)

    async def set_stage(self, stage: SessionStage) -> None:
        """Publishes *stage*: partitions can be placed here, or this agent leaves.

        Raises:
            FencedError: the session is over.
        """
        self._status.stage = stage
        await self._store()

    def leave(self) -> None:
        """Removes this agent from `nodes`; `set_stage` publishes it."""
        self._status.stage = SessionStage.LEAVING

    async def ask(self, asks: bool) -> None:
        """Publishes *asks*: this agent cannot commit, and asks which agents can.

        Raises:
            FencedError: the session is over.
        """
        self._status.asks = asks
        await self._store_if_open()

    async def prove(self) -> None:
        """Publishes another proof that this agent can commit.

        Raises:
            FencedError: the session is over.
        """
        self._status.proofs += 1
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
                if self._status.tells_topics(self._view):
                    await self._store()
                await changed.wait()

    async def _store_if_open(self) -> None:
        """Writes the key; a session that still opens publishes this with its stage."""
        if self._session.revision:
            await self._store()

    async def _store(self) -> None:
        """Writes the session's key until it holds the present status."""
        session, status = self._session, self._status
        while (wanted := status.to_store(self._view)) is not None:
            assert session.revision  # otherwise this would create the key without its head
            revision = status.stored_revision or session.revision
            result = await session.transact(
                transactions.report(session.session_id, session.revision, revision, wanted)
            )
            if result.succeeded:
                status.stored(wanted, result.revision)
            else:
                status.refused(result.reads[0], session.revision)
