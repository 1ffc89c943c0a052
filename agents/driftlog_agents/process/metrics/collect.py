"""Every metric of one agent, at the time of the call.

Shell.
"""

from collections.abc import Iterable

from prometheus_client.core import Metric

from driftlog_agents.process.metrics import groups, log, partitions, process, requests, stores
from driftlog_agents.process.metrics.observed import Observed


def collect(observed: Observed) -> Iterable[Metric]:
    """Every metric, with its help text."""
    agent = observed.agent
    yield from requests.collect(observed)
    yield from stores.collect(observed)
    yield from log.collect(agent)
    yield from partitions.collect(agent)
    yield from groups.collect(agent)
    yield from process.collect(observed)
