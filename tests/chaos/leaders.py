"""Who leads what, told to the oracle a few times a second, from etcd itself.

Past the proxies and past our own client of etcd: through its JSON gateway, at whichever member
answers.
Shell.
"""

import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from driftlog_metadata.schema.codec import decode_agent, decode_leader, decode_topic
from driftlog_metadata.schema.keys import (
    AGENTS_PREFIX,
    LEADERS_PREFIX,
    TOPICS_PREFIX,
    parse_leader_key,
)
from tests.chaos.cluster import keys_under
from tests.chaos.oracle import Oracle
from tests.chaos.records import TopicPartition
from tests.support.etcd_server import EtcdCluster

_LOOK_S: Final = 0.25


class LeaderWatch:
    """See the module.  It looks for as long as its block runs.

    Args:
        etcd: whose keys it reads.
        oracle: is told.
        now: the run's clock.
        note: is told, in a line, who leads what else.
    """

    def __init__(
        self,
        etcd: EtcdCluster,
        oracle: Oracle,
        now: Callable[[], float],
        note: Callable[[str], None],
    ) -> None:
        self._etcd = etcd
        self._oracle = oracle
        self._now = now
        self._note = note
        self._nodes: dict[str, int] = {}
        self._topics: dict[str, str] = {}
        self.last: dict[TopicPartition, int] = {}
        """Who led each partition when it was looked at last."""
        self.changes: Counter[TopicPartition] = Counter()
        """How often each partition went to another node."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        # Agents first: whoever leads was one before.
        for _, value in keys_under(self._etcd, AGENTS_PREFIX):
            agent = decode_agent(value)
            self._nodes[agent.session_id] = agent.node_id
        leaders = list(keys_under(self._etcd, LEADERS_PREFIX))
        if not self._topics and leaders:
            topics = (decode_topic(value) for _, value in keys_under(self._etcd, TOPICS_PREFIX))
            self._topics = {str(topic.topic_id): topic.name for topic in topics}
        now_s = self._now()
        moved: dict[tuple[int | None, int], list[TopicPartition]] = {}
        for key, value in leaders:
            led = parse_leader_key(key)
            at = TopicPartition(self._topics.get(str(led.topic_id), "?"), led.partition)
            node_id = self._nodes.get(decode_leader(value).session_id or "")
            if node_id is None:
                continue
            self._oracle.led(at, node_id, now_s)
            before = self.last.get(at)
            if before != node_id:
                self.last[at] = node_id
                self.changes[at] += before is not None
                moved.setdefault((before, node_id), []).append(at)
        for (before, node_id), partitions in moved.items():
            self._note(f"node {node_id} leads, after {before}: {', '.join(map(str, partitions))}")
