"""Metrics of single partitions: offsets, records and bytes, by where they are.

    buffer     admitted, and not committed            log end − high watermark
    flushed    committed, and not sealed              high watermark − sealed end
    sealed     in segments, above log start           sealed end − log start

At most `driftlog.metrics.max.partitions` partitions have series of their own: the first by topic
and number, so that a series does not come and go with the load.  The records and bytes of all
others are summed under `OTHERS`, which is no topic's name; their offsets are left out.

Shell.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.retention.policy import tail_bytes
from driftlog_agents.process.composition.agent import AgentProcess

OTHERS: Final = "(others)"

_TIERS: Final = ("buffer", "flushed", "sealed")

_Tiers = tuple[int, int, int]
"""A number for each of `_TIERS`."""

_Figures = tuple[tuple[str, str], tuple[int, int, int, int], _Tiers, _Tiers]
"""Labels, offsets, records, bytes."""

_NOTHING: Final = (0, 0, 0)


class PartitionFigures:
    """The figures of one scrape.

    Numbers are read on the event loop: of many partitions in slices, which takes microseconds for
    each.  `metrics` may run in a thread.
    """

    def __init__(self, agent: AgentProcess) -> None:
        self._engine = engine = agent.broker.engine
        self._most = agent.settings.broker.driftlog_metrics_max_partitions
        self.logs: list[PartitionLog] = []
        """What is to be read; empty between two sessions."""
        self._pending: Counter[PartitionLog] = Counter()
        self._shown: list[_Figures] = []
        self._others = [_NOTHING, _NOTHING]
        if engine is not None:
            topics = (engine.topics[name].logs for name in sorted(engine.topics))
            self.logs = [log for logs in topics for log in logs if log is not None]
            self._pending = engine.flusher.pipeline.uncommitted_bytes()

    def read(self, log: PartitionLog) -> None:
        """Read the numbers of the next one of `logs`."""
        assert self._engine is not None
        sealed = self._engine.upkeep.retention.sealed_bytes(log)
        sizes = self._pending.get(log, 0), tail_bytes(log), sealed
        if len(self._shown) < self._most:
            labels = log.topic, str(log.partition)
            offsets = log.log_start, log.sealed_end, log.high_watermark, log.log_end
            self._shown.append((labels, offsets, _records(log), sizes))
        else:
            records, others = self._others
            self._others = [_sum(records, _records(log)), _sum(others, sizes)]

    def metrics(self) -> Iterable[Metric]:
        """What was read."""
        yield from _offsets(self._shown)
        records = GaugeMetricFamily(
            "driftlog_partition_records",
            "Offsets of a led partition by tier: buffer (not committed), flushed (not sealed), "
            "sealed. Compaction leaves offsets without a record",
            labels=["topic", "partition", "tier"],
        )
        sizes = GaugeMetricFamily(
            "driftlog_partition_bytes",
            "Bytes of its batches by tier, as received; sealed ones once the manifest is known",
            labels=["topic", "partition", "tier"],
        )
        for labels, _, *tiers in self._shown:
            _add(records, labels, tiers[0])
            _add(sizes, labels, tiers[1])
        if len(self.logs) > self._most:
            _add(records, (OTHERS, OTHERS), self._others[0])
            _add(sizes, (OTHERS, OTHERS), self._others[1])
        yield records
        yield sizes


def collect(agent: AgentProcess) -> Iterable[Metric]:
    """The partitions that this agent leads."""
    figures = PartitionFigures(agent)
    for log in figures.logs:
        figures.read(log)
    yield from figures.metrics()


def _offsets(shown: Iterable[_Figures]) -> Iterable[Metric]:
    start = GaugeMetricFamily(
        "driftlog_partition_log_start_offset",
        "Log start of a led partition",
        labels=["topic", "partition"],
    )
    sealed = GaugeMetricFamily(
        "driftlog_partition_sealed_end_offset",
        "Records below it are sealed",
        labels=["topic", "partition"],
    )
    high = GaugeMetricFamily(
        "driftlog_partition_high_watermark",
        "Records below it are committed: consumers read up to here",
        labels=["topic", "partition"],
    )
    end = GaugeMetricFamily(
        "driftlog_partition_log_end_offset",
        "The offset of the next record",
        labels=["topic", "partition"],
    )
    families = start, sealed, high, end
    for labels, offsets, *_ in shown:
        for family, offset in zip(families, offsets, strict=True):
            family.add_metric(labels, offset)
    yield from families


def _records(log: PartitionLog) -> _Tiers:
    sealed = max(0, log.sealed_end - log.log_start)
    flushed = log.high_watermark - max(log.sealed_end, log.log_start)
    return log.log_end - log.high_watermark, max(0, flushed), sealed


def _sum(a: _Tiers, b: _Tiers) -> _Tiers:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def _add(family: GaugeMetricFamily, labels: tuple[str, str], values: _Tiers) -> None:
    for tier, value in zip(_TIERS, values, strict=True):
        family.add_metric([*labels, tier], value)
