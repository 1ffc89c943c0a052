"""Does to a cluster what a schedule says, each trouble in a thread of its own.

Shell.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from tests.chaos.cluster import ChaosAgent, Cluster
from tests.chaos.schedule import CUTS, Kind, Trouble
from tests.support.links import Link, LinkMode
from tests.support.s3_faults import S3Trouble

_LATE_S: Final = 2.0
"""How long a trouble waits for the one before it to be over."""

_UP_S: Final = 120.0
_LATENCIES_MS: Final = (50, 500)


class Troubles:
    """See the module.

    Args:
        note: is told, in a line, what begins and ends.
        fail: is told what could not be done.
        emptied: is told the node id of an agent whose disk was emptied, and when.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        now: Callable[[], float],
        note: Callable[[str], None],
        fail: Callable[[str], None],
        emptied: Callable[[int, float], None],
    ) -> None:
        self._cluster = cluster
        self._now = now
        self._note = note
        self._fail = fail
        self._emptied = emptied
        self.counts: Counter[Kind] = Counter()
        self.drains_s: list[float] = []

    def run(self, troubles: Sequence[Trouble], seconds: float) -> None:
        """All of them, each at its time; return when they are over."""
        began = time.monotonic()
        threads = []
        for trouble in troubles:
            time.sleep(max(0, began + trouble.at_s - time.monotonic()))
            thread = threading.Thread(target=self._one, args=(trouble,))
            thread.start()
            threads.append(thread)
        time.sleep(max(0, began + seconds - time.monotonic()))
        for thread in threads:
            thread.join()

    def _one(self, trouble: Trouble) -> None:
        """From its beginning to its end."""
        cluster = self._cluster
        agents = [cluster.agents[trouble.agent]] if trouble.agent >= 0 else []
        if trouble.kind is Kind.ROLLING:
            agents = cluster.agents
        held: list[ChaosAgent] = []
        try:
            for agent in agents:
                # What befell it before took longer than planned: one thing at a time all the same.
                if not agent.turn.acquire(timeout=_LATE_S):
                    self._note(f"left out: {trouble}")
                    return
                held.append(agent)
            self._note(f"begins: {trouble}")
            self.counts[trouble.kind] += 1
            if trouble.kind in CUTS:
                _cut(agents[0], trouble)
            elif agents:
                self._to_process(agents, trouble)
            elif trouble.member >= 0:
                _member(cluster, trouble)
            else:
                _s3(cluster, trouble)
            self._note(f"ends: {trouble}")
        except Exception as error:  # noqa: BLE001  # a thread of ours: the run goes on, and fails
            self._fail(f"{trouble}: {error!r}")
        finally:
            for agent in held:
                agent.turn.release()

    def _to_process(self, agents: list[ChaosAgent], trouble: Trouble) -> None:
        for agent in agents:
            match trouble.kind:
                case Kind.FREEZE:
                    agent.freeze()
                    time.sleep(trouble.for_s)
                    agent.thaw()
                    return
                case Kind.KILL | Kind.KILL_EMPTY:
                    agent.kill()
                    if trouble.kind is Kind.KILL_EMPTY:
                        node_id = agent.node_id()
                        if node_id is not None:
                            self._emptied(node_id, self._now())
                        agent.empty()
                        self._note(f"the disk of agent {agent.number}, node {node_id}, is empty")
                case _:
                    took_s, status = agent.stop()
                    self.drains_s.append(took_s)
                    self._note(f"agent {agent.number} drained in {took_s:.2f} s: {status}")
            time.sleep(trouble.for_s)
            agent.start()
            if trouble.kind is Kind.ROLLING:
                agent.wait_until_up(_UP_S)


def _cut(agent: ChaosAgent, trouble: Trouble) -> None:
    links: list[Link] = {
        Kind.CUT_MEMBER: [agent.etcd[trouble.member]],
        Kind.CUT_ETCD: agent.etcd,
        Kind.CUT_S3: [agent.s3],
        Kind.CUT_CLIENTS: [agent.clients],
        Kind.CUT_ALL: agent.links,
    }[trouble.kind]
    mode: LinkMode = trouble.style  # type: ignore[assignment]  # the schedule draws modes
    agent.cut(links, mode)
    time.sleep(trouble.for_s)
    agent.mend(links, deliver_late=trouble.deliver_late)


def _member(cluster: Cluster, trouble: Trouble) -> None:
    member = cluster.etcd.members[trouble.member]
    if trouble.kind is Kind.MEMBER_KILL:
        member.kill()
        time.sleep(trouble.for_s)
        member.start()
    else:
        member.freeze()
        time.sleep(trouble.for_s)
        member.thaw()


def _s3(cluster: Cluster, trouble: Trouble) -> None:
    share = trouble.share
    cluster.s3.set(
        {
            Kind.S3_SLOW: S3Trouble(delay_ms=_LATENCIES_MS),
            Kind.S3_503: S3Trouble(throttle=share),
            Kind.S3_RESETS: S3Trouble(reset_before=share / 2, reset_after=share / 2),
            Kind.S3_LOST: S3Trouble(lose_answer=share),
        }[trouble.kind]
    )
    time.sleep(trouble.for_s)
    cluster.s3.set(S3Trouble())
