"""Opens, pauses, retires and closes the partitions of one session.

    claimed ──▶ open ──▶ pause ──▶ retire ──▶ released: closed
                  ▲        │
                  └─resume─┘        the topic is deleted, or the session is over: closed

Requests that wait are told of each end.

Pure.
"""

from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from driftlog_agents.cluster.view import ClusterView
from driftlog_agents.log.ingest.admission_verdict import SETTLED_MS
from driftlog_agents.log.leadership.assignment import PartitionAssignments
from driftlog_agents.log.leadership.taken_partitions import Taken
from driftlog_agents.log.partition.known_manifests import KnownManifests
from driftlog_agents.log.partition.partition import PartitionLog, State, Waiter
from driftlog_agents.log.partition.topic_logs import LedTopics
from driftlog_agents.log.session.counters import LogCounters
from driftlog_metadata.schema.model import TopicPartition


class LedPartitions:
    """See the module.

    Args:
        unpark: resumes the parked batches of partitions, and no batch overtakes them.
        tell_lost: tells waiters that a partition is led here no more.
    """

    def __init__(
        self,
        *,
        topics: LedTopics,
        assignments: PartitionAssignments,
        manifests: KnownManifests,
        view: ClusterView,
        counters: LogCounters,
        unpark: Callable[..., None],
        tell_lost: Callable[[PartitionLog, Sequence[Waiter]], None],
    ) -> None:
        self._topics = topics
        self._assignments = assignments
        self._manifests = manifests
        self._view = view
        self._counters = counters
        self._unpark = unpark
        self._tell_lost = tell_lost

    def open(self, taken: Taken, now_ms: float) -> dict[TopicPartition, PartitionLog]:
        """Serves the claimed partitions; returns the logs of all but those of deleted topics."""
        served: dict[TopicPartition, PartitionLog] = {}
        for tp, log in taken.logs.items():
            if not self._topics.open(tp, log):
                log.close()
                continue
            if tp not in taken.fresh:
                log.settled_ms = now_ms + SETTLED_MS
            served[tp] = log
        return served

    def unknown_producers(self, *, at_first: bool) -> str:
        """Why producers of partitions here may still be unknown; empty: all are known.  Unreadable
        partitions count only *at_first*: they may stay unreadable."""
        loading = [log for log in self._topics.logs() if log.state is State.LOADING]
        if any(not log.damage for log in loading):
            return "producer state is being loaded"
        if at_first and (loading or self._assignments.unreadable):
            return "producer state cannot be read yet"
        return ""

    def pause(self, log: PartitionLog) -> None:
        """Pauses admission: batches wait, and reads continue."""
        log.paused = True

    def resume(self, log: PartitionLog) -> None:
        """Admits the waiting batches."""
        log.paused = False
        if log.state is not State.LOADING or log.damage:
            self._unpark(log)

    def retire(self, log: PartitionLog) -> None:
        """Stops produce and fetch for *log*; admitted batches are still committed."""
        self._tell_lost(log, log.retire())
        self._unpark(log)  # the parked batches are refused now

    def gone(self, log: PartitionLog) -> None:
        """Forgets *log*: it was released, and others may lead it."""
        log.close()
        self._counters.partitions_handed_over += 1
        self._manifests.forget(log)
        self._topics.released(log)

    def remove_topic(self, topic_id: UUID) -> bool:
        """Stops serving a topic that is deleted, or is about to be; False: it was not known."""
        entry = self._topics.remove(topic_id)
        if entry is None:
            return False
        self._assignments.topic_deleted(TopicPartition(topic_id, n) for n in range(len(entry.logs)))
        logs = [log for log in entry.logs if log is not None]
        for log in logs:
            self._tell_lost(log, log.close())
            self._manifests.forget(log)
        self._unpark(*logs)  # the parked batches are refused now
        return True

    def close(self, logs: Iterable[PartitionLog], before_parked: Callable[[], None]) -> None:
        """The session is over: every request that waits for *logs* is told so.  Parked batches come
        last, after *before_parked*: they are refused then."""
        logs = list(logs)
        for log in logs:
            self._tell_lost(log, log.close())
        before_parked()
        self._unpark(*logs)

    def offline(self) -> dict[TopicPartition, str]:
        """Partitions of this agent that need an operator, and why: those led here that are offline,
        and those placed here that cannot be claimed or opened.  Each reason ends with the
        advice."""
        assignments = self._assignments
        unreadable = {
            tp: f"{why}; {self._way_back(tp)}" for tp, why in assignments.unreadable.items()
        }
        found = {
            tp: why
            for tp, why in (unreadable | assignments.damaged).items()
            if assignments.is_tried_here(tp)
        }
        for log in self._topics.logs():
            if log.state is State.OFFLINE:
                found[TopicPartition(log.topic_id, log.partition)] = log.offline_reason
        return found

    def _way_back(self, tp: TopicPartition) -> str:
        """The advice if the bucket does not return an object that *tp* needs."""
        topic = self._view.topics.get(tp.topic_id)
        name = f"{'TOPIC' if topic is None else topic.topic.name}:{tp.partition}"
        return (
            "repair the bucket, or restore the missing object (from a version or a replica): "
            "the agent retries at least once a minute; if a flush object is gone for good, "
            f"see `driftlog partitions accept-loss {name}`"
        )
