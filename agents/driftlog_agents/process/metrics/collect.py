"""Every metric of one agent, at the time of the call.

Shell.
"""

import asyncio
from collections.abc import Iterable
from itertools import chain

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.foundation.single_flight import SingleFlight
from driftlog_agents.process.metrics import groups, log, partitions, process, requests, stores
from driftlog_agents.process.metrics.observed import Observed


def collect(observed: Observed) -> Iterable[Metric]:
    """Every metric, with its help text."""
    yield from _small(observed)
    yield from groups.collect(observed.agent)
    yield from partitions.collect(observed.agent)


class Scrapes:
    """The scrapes of one agent, one at a time: those that come meanwhile get the same text."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed
        self._under_way = SingleFlight[str, bytes]()

    async def text(self) -> bytes:
        """Every metric, as Prometheus reads it."""
        return await self._under_way.do("", lambda: _scrape(self._observed))


async def _scrape(observed: Observed) -> bytes:
    """Does not stall the event loop for long: numbers of thousands of partitions and groups are
    read in slices, and a thread makes the text."""
    small = [*_small(observed), *groups.small(observed.agent)]
    of_groups = groups.GroupFigures(observed.agent)
    async for _ in sliced(of_groups.steps()):
        pass
    figures = partitions.PartitionFigures(observed.agent)
    async for each in sliced(figures.logs):
        figures.read(each)

    def text() -> bytes:
        registry = CollectorRegistry()
        registry.register(_Collected(chain(small, of_groups.metrics(), figures.metrics())))
        return generate_latest(registry)

    return await asyncio.to_thread(text)


class _Collected(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> list[Metric]:
        return self._metrics


def _small(observed: Observed) -> Iterable[Metric]:
    agent = observed.agent
    yield from requests.collect(observed)
    yield from stores.collect(observed)
    yield from log.collect(agent)
    yield from process.collect(observed)
