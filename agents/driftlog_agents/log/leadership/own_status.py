"""What this agent tells the others about its session, and what it counts itself as.

    STARTING ──serve──▶ SERVING ──leave──▶ LEAVING      which topics it has seen
                                                        whether it asks which agents can commit
                                                        how often it has shown that it can

1. The session's key holds the status last stored; it is written while another one is wanted.
2. This agent is a node of the plan even before it is SERVING, and is none when it leaves, nor when
   it lacks the role `serve`.

Pure.
"""

from collections.abc import Sequence

from driftlog_agents.cluster.view import ClusterView
from driftlog_metadata.schema.model import LiveSession, SessionStage
from driftlog_metadata.stores.errors import FencedError
from driftlog_metadata.stores.store import KeyValue


class OwnStatus:
    """See the module; for one session.

    Args:
        leads: whether the agent has the role `serve`.
    """

    def __init__(self, node_id: int, session_id: str, *, leads: bool = True) -> None:
        self._node_id = node_id
        self._session_id = session_id
        self._leads = leads
        self._stored = LiveSession(node_id=node_id)
        self.stored_revision = 0
        """Revision of the session's key as stored last; 0: as the session created it."""
        self.stage = SessionStage.STARTING
        self.asks = False
        """This agent cannot commit, and asks which agents can."""
        self.proofs = 0
        """How often it has shown that it can commit."""

    # ── The plan ──

    def others(self, view: ClusterView) -> set[int]:
        """Node ids of the other agents that the plan uses."""
        return set(view.placed()) - {self._node_id}

    def nodes(self, view: ClusterView) -> tuple[int, ...]:
        """Node ids of the agents that the plan uses, ascending."""
        is_node = self._leads and self.stage is not SessionStage.LEAVING
        return tuple(sorted(self.others(view) | ({self._node_id} if is_node else set())))

    def others_start(self, view: ClusterView) -> bool:
        """Whether another agent is STARTING."""
        return any(
            entry.said.stage is SessionStage.STARTING and entry.session_id != self._session_id
            for entry in view.sessions.values()
        )

    def tells_topics(self, view: ClusterView) -> bool:
        """Whether other agents wait to learn which topics this one has seen."""
        return len(view.sessions) > 1 and self.stage is not SessionStage.STARTING

    # ── The session's key ──

    def to_store(self, view: ClusterView) -> LiveSession | None:
        """The status to store now; None: the key holds it."""
        wanted = LiveSession(
            node_id=self._node_id,
            stage=self.stage,
            topics_revision=view.topics_revision,
            asks=self.asks,
            proofs=self.proofs,
        )
        return None if wanted == self._stored else wanted

    def stored(self, status: LiveSession, revision: int) -> None:
        """The key holds *status* since *revision*."""
        self._stored, self.stored_revision = status, revision

    def refused(self, kvs: Sequence[KeyValue], session_revision: int) -> None:
        """The write was refused; *kvs*: a read of the key.  An earlier try was stored, and its
        answer lost.

        Raises:
            FencedError: the session of *session_revision* has ended.
        """
        if not kvs or kvs[0].create_revision != session_revision:
            raise FencedError("the session ended before it could publish its status")
        self.stored_revision = kvs[0].mod_revision
