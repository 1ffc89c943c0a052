"""Who leads what, told to the oracle a few times a second, from etcd itself.

Past the proxies and past our own client of etcd: through its JSON gateway, at whichever member
answers.
Shell.
"""

import threading
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Self

from driftlog_metadata.codec import decode_agent, decode_leader, decode_topic
from driftlog_metadata.keys import AGENTS_PREFIX, LEADERS_PREFIX, TOPICS_PREFIX, parse_leader_key
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
    """

    def __init__(self, etcd: EtcdCluster, oracle: Oracle, now: Callable[[], float]) -> None:
        self._etcd = etcd
        self._oracle = oracle
        self._now = now
        self._nodes: dict[str, int] = {}
        self._topics: dict[str, str] = {}
        self._last: dict[TopicPartition, int] = {}
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
        for _, value in self._range(AGENTS_PREFIX):
            agent = decode_agent(value)
            self._nodes[agent.session_id] = agent.node_id
        leaders = list(self._range(LEADERS_PREFIX))
        if not self._topics and leaders:
            topics = (decode_topic(value) for _, value in self._range(TOPICS_PREFIX))
            self._topics = {str(topic.topic_id): topic.name for topic in topics}
        now_s = self._now()
        for key, value in leaders:
            led = parse_leader_key(key)
            at = TopicPartition(self._topics.get(str(led.topic_id), "?"), led.partition)
            node_id = self._nodes.get(decode_leader(value).session_id or "")
            if node_id is None:
                continue
            self._oracle.led(at, node_id, now_s)
            if self._last.setdefault(at, node_id) != node_id:
                self._last[at] = node_id
                self.changes[at] += 1

    def _range(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Keys and values under *prefix*; nothing if no member answers."""
        start = prefix.encode()
        end = start[:-1] + bytes([start[-1] + 1])
        body = {"key": b64encode(start).decode(), "range_end": b64encode(end).decode()}
        for member in self._etcd.members:
            try:
                answer = member.post("/v3/kv/range", body, timeout=0.5)
            except OSError:
                continue
            for kv in answer.get("kvs", []):
                yield b64decode(kv["key"]).decode(), b64decode(kv["value"])
            return
