"""Metrics of single partitions: offsets, records and bytes, by where they are.

    buffer     admitted, and not committed            log end − high watermark
    flushed    committed, and not sealed              high watermark − sealed end
    sealed     in segments, above log start           sealed end − log start

At most `driftlog.metrics.max.partitions` partitions have series of their own: the first by topic
and number, so that a series does not come and go with the load.  The records and bytes of all
others are summed under `OTHERS`, which is no topic's name; their offsets are left out.

Shell.
"""

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.retention.policy import tail_bytes
from driftlog_agents.process.agent import AgentProcess

OTHERS: Final = "(others)"

_TIERS: Final = ("buffer", "flushed", "sealed")


def collect(agent: AgentProcess) -> Iterable[Metric]:
    """The partitions that this agent leads; none between two sessions."""
    engine = agent.broker.engine
    most = agent.settings.broker.driftlog_metrics_max_partitions
    logs: list[PartitionLog] = []
    if engine is not None:
        served = (log for log in engine.logs() if log.state is not State.CLOSED)
        logs = sorted(served, key=lambda log: (log.topic, log.partition))
    yield from _offsets(logs[:most])
    yield from _tiers(engine, logs, most)


def _offsets(logs: list[PartitionLog]) -> Iterable[Metric]:
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
    for log in logs:
        labels = [log.topic, str(log.partition)]
        start.add_metric(labels, log.log_start)
        sealed.add_metric(labels, log.sealed_end)
        high.add_metric(labels, log.high_watermark)
        end.add_metric(labels, log.log_end)
    yield from (start, sealed, high, end)


def _tiers(engine: Engine | None, logs: list[PartitionLog], most: int) -> Iterable[Metric]:
    records = GaugeMetricFamily(
        "driftlog_partition_records",
        "Offsets of a led partition by tier: buffer (not committed), flushed (not sealed), sealed. "
        "Compaction leaves offsets without a record",
        labels=["topic", "partition", "tier"],
    )
    sizes = GaugeMetricFamily(
        "driftlog_partition_bytes",
        "Bytes of its batches by tier, as received; sealed ones once the manifest is known",
        labels=["topic", "partition", "tier"],
    )
    if engine is not None:
        pending = engine.flusher.pipeline.uncommitted_bytes()
        others = [(0, 0, 0), (0, 0, 0)]
        for at, log in enumerate(logs):
            held = _records(log), _bytes(engine, log, pending[log])
            if at < most:
                for family, values in zip((records, sizes), held, strict=True):
                    _add(family, (log.topic, str(log.partition)), values)
            else:
                others = [_sum(a, b) for a, b in zip(others, held, strict=True)]
        if len(logs) > most:
            for family, values in zip((records, sizes), others, strict=True):
                _add(family, (OTHERS, OTHERS), values)
    yield records
    yield sizes


def _records(log: PartitionLog) -> tuple[int, int, int]:
    sealed = max(0, log.sealed_end - log.log_start)
    flushed = log.high_watermark - max(log.sealed_end, log.log_start)
    return log.log_end - log.high_watermark, max(0, flushed), sealed


def _bytes(engine: Engine, log: PartitionLog, pending: int) -> tuple[int, int, int]:
    flushed = tail_bytes(log)
    return pending, flushed, engine.upkeep.retention.size_bytes(log) - flushed


def _sum(a: tuple[int, int, int], b: tuple[int, int, int]) -> tuple[int, int, int]:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def _add(family: GaugeMetricFamily, labels: tuple[str, str], values: tuple[int, int, int]) -> None:
    for tier, value in zip(_TIERS, values, strict=True):
        family.add_metric([*labels, tier], value)
