"""Judges whether an agent serves, for `/readyz`: every reason against it, with a code and a text.

    starting                     the process has not joined its cluster yet
    draining                     it was told to stop
    metadata_store_not_trusted   the store went back or was replaced: an operator must act
    unfit                        it alone cannot commit: it has given its partitions up
    sealing_hangs                it only seals, and a thread waits for its disk for a minute
    no_session                   between two sessions, or the lease is over
    metadata_store_failing       no answer for 5 s
    commits_failing              no flush was committed for 5 s
    partitions_loading           after the start of the process, until all were loaded once

Partitions that are taken over later are no reason, however many load: the agent serves the others,
and after the loss of an agent all that are left would be unready at once.  A partition that is
offline or damaged is no reason either: the others are served, a restart repairs none of them, and
`driftlog_offline_partitions` has its alert.  None of these is a reason to restart the process:
`/healthz` answers while the event loop runs, and needs no judgement.

Pure.
"""

from dataclasses import dataclass
from typing import Final

_FAILING_MS: Final = 5_000.0
"""What fails for less is normal: retries handle it."""

_NOT_OURS: Final = (
    "bring back the right store and restart every agent, or restore the cluster from its bucket "
    "(driftlog restore); the log says more"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """One session, at one moment."""

    session_id: str
    serves: bool
    """Whether it has claimed its partitions, and its lease is valid."""
    metadata_failing_ms: float = 0.0
    metadata_error: str = ""
    commits_failing_ms: float = 0.0
    commits_error: str = ""
    led: int = 0
    loading: int = 0
    """Led partitions whose manifest or producers are being read, and are not damaged."""
    offline: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFacts:
    """One agent, at one moment."""

    started: bool
    stopping: bool = False
    distrusted: str = ""
    """Why the metadata store is not the one that the process has seen."""
    unfit: bool = False
    hangs: bool = False
    """Whether it only seals, and a thread that seals does not return."""
    session: SessionFacts | None = None
    """None: between two sessions."""


@dataclass(frozen=True, slots=True)
class NotReady:
    """Why an agent is not ready."""

    code: str
    text: str


class Readiness:
    """The judgements of one agent."""

    def __init__(self) -> None:
        self._loaded = False
        """Whether all partitions of a session were loaded once."""

    def judge(self, agent: AgentFacts) -> list[NotReady]:
        """Every reason, the most important first; empty: the agent is ready."""
        if not agent.started:
            return [NotReady("starting", "starting")]
        found: list[NotReady] = []
        if agent.stopping:
            found.append(NotReady("draining", "draining: the agent was told to stop"))
        if agent.distrusted:
            text = f"{agent.distrusted}: {_NOT_OURS}"
            found.append(NotReady("metadata_store_not_trusted", text))
        if agent.unfit:
            text = "unfit: this agent cannot commit while other agents can; the log says why"
            found.append(NotReady("unfit", text))
        if agent.hangs:
            text = (
                "a thread that seals has waited for its disk for a minute: other agents write "
                "segments.  Look at the disk of DIR, and restart the agent"
            )
            found.append(NotReady("sealing_hangs", text))
        session = agent.session
        if session is None or not session.serves:
            return [*found, NotReady("no_session", f"between two sessions{_silence(session)}")]
        if session.metadata_failing_ms >= _FAILING_MS:
            text = f"the session lives{_silence(session)}"
            found.append(NotReady("metadata_store_failing", text))
        if session.commits_failing_ms >= _FAILING_MS:
            seconds = session.commits_failing_ms / 1000
            text = f"nothing was committed for {seconds:.0f} s: {session.commits_error}"
            found.append(NotReady("commits_failing", text))
        self._loaded = self._loaded or not session.loading
        if not self._loaded:
            text = f"{session.loading} of {session.led} partitions are being loaded"
            found.append(NotReady("partitions_loading", text))
        return found


def _silence(session: SessionFacts | None) -> str:
    if session is None or not session.metadata_failing_ms:
        return ""
    seconds = session.metadata_failing_ms / 1000
    return f": the metadata store has not answered for {seconds:.0f} s: {session.metadata_error}"
