"""Metrics of the consumer groups that this agent coordinates.

A group's lag is known here for the partitions that this agent leads.  For the others Prometheus
subtracts the committed offset from the high watermark, which their leader shows
(`observability/prometheus/rules.yml`).

The first committed offsets, `driftlog.metrics.max.partitions` of them in the order in which their
groups were loaded, have series of their own; the lag of all others is summed under `OTHERS`.  After
`_MOST_SUMMED` of them the sum ends, for it takes time on the event loop.

Shell.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from driftlog_agents.groups.coordinator.group_runtime import CLASSIC, CONSUMER, ServedGroup
from driftlog_agents.process.agent import AgentProcess
from driftlog_agents.process.metrics.families import counter, gauge, histogram
from driftlog_agents.process.metrics.partitions import OTHERS

_MOST_SUMMED: Final = 20_000


def collect(agent: AgentProcess) -> Iterable[Metric]:
    """The groups of this agent."""
    for name, text in _GROUP_COUNTERS.items():
        yield counter(name, text, agent.group_counters[name])
    yield histogram(
        "driftlog_group_load_seconds",
        "Time from the claim of an existing group until it is served",
        agent.group_loads,
    )
    coordinator = agent.broker.groups
    groups = [] if coordinator is None else list(coordinator.groups.values())
    kinds = GaugeMetricFamily(
        "driftlog_groups", "Groups coordinated here, by protocol", labels=["protocol"]
    )
    for kind in (CLASSIC, CONSUMER):
        kinds.add_metric([kind], sum(group.kind == kind for group in groups))
    yield kinds
    members = sum(len(group.machine.members) for group in groups)
    yield gauge("driftlog_group_members", "Members of the groups coordinated here", members)
    yield from _lag(agent, groups)
    held = 0 if coordinator is None else coordinator.budget.held_bytes
    yield gauge("driftlog_group_bytes", "Approximate memory of the groups coordinated here", held)


def _lag(agent: AgentProcess, groups: Iterable[ServedGroup]) -> Iterable[Metric]:
    committed = GaugeMetricFamily(
        "driftlog_group_committed_offset",
        "Committed offset of a group coordinated here",
        labels=["group", "topic", "partition"],
    )
    behind = GaugeMetricFamily(
        "driftlog_group_lag_records",
        "Offsets from the committed one to the high watermark, over the partitions of a topic that "
        "this agent leads, of a group coordinated here",
        labels=["group", "topic"],
    )
    most = agent.settings.broker.driftlog_metrics_max_partitions
    lags: Counter[tuple[str, str]] = Counter()
    offsets = (
        (group.group_id, tp, at.offset) for group in groups for tp, at in group.offsets.items()
    )
    for number, (group_id, tp, offset) in enumerate(islice(offsets, most + _MOST_SUMMED)):
        topic = agent.broker.view.topics.get(tp.topic_id)
        if topic is None:
            continue
        labels = (group_id, topic.topic.name)
        if number < most:
            committed.add_metric([*labels, str(tp.partition)], offset)
        else:
            labels = (OTHERS, OTHERS)
        log = None if agent.broker.engine is None else agent.broker.engine.find(tp)
        if log is not None:
            lags[labels] += max(0, log.high_watermark - offset)
    for labels, lag in lags.items():
        behind.add_metric(labels, lag)
    yield committed
    yield behind


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
