"""Metrics of the consumer groups that this agent coordinates.

A group's lag is known here for the partitions that this agent leads.  For the others Prometheus
subtracts the committed offset from the high watermark, which their leader shows
(`observability/prometheus/rules.yml`).

1. `driftlog.metrics.max.partitions` committed offsets have series of their own.  Each group has an
   eighth of them at most, in the order in which the groups were loaded; what is left goes to larger
   groups in that order.  So a group of many partitions hides no other one.
2. The lag of all other offsets is summed under `OTHERS`.  After `_MOST_SUMMED` of them the sum
   ends, for it takes time.  A gauge counts the offsets without series, which Prometheus' sum leaves
   out.
3. A long group id is cut: a client chooses it, and it may have 32 KB.

Shell.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import islice
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from driftlog_agents.groups.storage_format import CLASSIC, CONSUMER
from driftlog_agents.process.composition.agent import AgentProcess
from driftlog_agents.process.metrics.families import counter, gauge, histogram
from driftlog_agents.process.metrics.partitions import OTHERS
from driftlog_metadata.schema.model import TopicPartition

_MOST_SUMMED: Final = 20_000

_PARTS: Final = 8
"""Groups of many partitions that have series beside each other.  More: fewer series for each."""

_LABEL_BYTES: Final = 249
"""Longest group id that is shown whole: as long as a topic's name may be."""


class GroupFigures:
    """The figures of one scrape.

    Numbers are read on the event loop, where `steps` runs in slices: groups may change between two
    of them.  `metrics` may run in a thread.
    """

    def __init__(self, agent: AgentProcess) -> None:
        coordinator = agent.broker.groups
        self._view = agent.broker.view
        self._engine = agent.broker.engine
        self._most = agent.settings.broker.driftlog_metrics_max_partitions
        self._groups = [] if coordinator is None else list(coordinator.groups.values())
        self._kinds: Counter[str] = Counter()
        self._members = 0
        self._offsets = 0
        self._committed: list[tuple[tuple[str, str, str], int]] = []
        self._lags: Counter[tuple[str, str]] = Counter()

    def steps(self) -> Iterator[None]:
        """Reads the numbers, each step those of one group or of one offset."""
        spare, part = self._most, max(1, self._most // _PARTS)
        shares: list[int] = []
        for group in self._groups:
            self._kinds[group.kind] += 1
            self._members += len(group.machine.members)
            size = len(group.offsets)
            self._offsets += size
            shares.append(min(size, part, spare))
            spare -= shares[-1]
            yield
        summed = _MOST_SUMMED
        for group, share in zip(self._groups, shares, strict=True):
            more = max(0, min(len(group.offsets) - share, spare))
            spare -= more
            shown = share + more
            label = _label(group.group_id) if shown else OTHERS
            offsets = list(islice(group.offsets.items(), shown + summed))
            summed -= max(0, len(offsets) - shown)
            for number, (tp, at) in enumerate(offsets):
                self._read(label if number < shown else OTHERS, tp, at.offset)
                yield
            yield

    def _read(self, group: str, tp: TopicPartition, offset: int) -> None:
        topic = self._view.topics.get(tp.topic_id)
        if topic is None:
            return
        labels = (OTHERS, OTHERS)
        if group != OTHERS:
            labels = (group, topic.topic.name)
            self._committed.append(((*labels, str(tp.partition)), offset))
        log = None if self._engine is None else self._engine.find(tp)
        if log is not None:
            self._lags[labels] += max(0, log.high_watermark - offset)

    def metrics(self) -> Iterable[Metric]:
        """What was read."""
        kinds = GaugeMetricFamily(
            "driftlog_groups", "Groups coordinated here, by protocol", labels=["protocol"]
        )
        for kind in (CLASSIC, CONSUMER):
            kinds.add_metric([kind], self._kinds[kind])
        yield kinds
        yield gauge(
            "driftlog_group_members", "Members of the groups coordinated here", self._members
        )
        committed = GaugeMetricFamily(
            "driftlog_group_committed_offset",
            "Committed offset of a group coordinated here",
            labels=["group", "topic", "partition"],
        )
        for labels, offset in self._committed:
            committed.add_metric(labels, offset)
        yield committed
        behind = GaugeMetricFamily(
            "driftlog_group_lag_records",
            "Offsets from the committed one to the high watermark, over the partitions of a topic "
            "that this agent leads, of a group coordinated here",
            labels=["group", "topic"],
        )
        for of, lag in self._lags.items():
            behind.add_metric(of, lag)
        yield behind
        yield gauge(
            "driftlog_group_offsets_without_series",
            "Committed offsets of groups coordinated here that driftlog.metrics.max.partitions "
            "leaves without a series: driftlog:group_lag:records does not count them",
            max(0, self._offsets - len(self._committed)),
        )


def small(agent: AgentProcess) -> Iterable[Metric]:
    """The figures over all groups, which take no time."""
    for name, text in _GROUP_COUNTERS.items():
        yield counter(name, text, agent.group_counters[name])
    yield histogram(
        "driftlog_group_load_seconds",
        "Time from the claim of an existing group until it is served",
        agent.group_loads,
    )
    coordinator = agent.broker.groups
    held = 0 if coordinator is None else coordinator.budget.held_bytes
    yield gauge("driftlog_group_bytes", "Approximate memory of the groups coordinated here", held)


def collect(agent: AgentProcess) -> Iterable[Metric]:
    """The groups of this agent."""
    yield from small(agent)
    figures = GroupFigures(agent)
    for _ in figures.steps():
        pass
    yield from figures.metrics()


def _label(group_id: str) -> str:
    """*group_id*; a long one is cut, and has its hash at the end."""
    whole = group_id.encode()
    if len(whole) <= _LABEL_BYTES:
        return group_id
    return f"{whole[:_LABEL_BYTES].decode(errors='ignore')}-{sha256(whole).hexdigest()[:16]}"


_GROUP_COUNTERS: Final = {
    "driftlog_group_commits": "OffsetCommit requests whose offsets were stored",
    "driftlog_group_offsets_committed": "Offsets stored by OffsetCommit requests",
    "driftlog_group_offsets_expired": "Offsets that expired after offsets.retention.minutes",
    "driftlog_group_rebalances": "Generations and target assignments of the groups coordinated "
    "here",
    "driftlog_group_transactions": "Transactions that wrote groups or their offsets",
    "driftlog_groups_lost": "Groups found to be claimed by another agent when they were used",
}
"""Help texts of the groups' counters, which count over all sessions of the process."""
