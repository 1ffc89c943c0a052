"""Metrics of the log: flushes, sealing, upkeep and garbage, over all partitions.

Shell.
"""

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from driftlog_agents.log.log_session import Engine
from driftlog_agents.log.retention.policy import ExpiryReason
from driftlog_agents.process.composition.agent import AgentProcess
from driftlog_agents.process.metrics.families import counter, gauge, histogram, histograms


def collect(agent: AgentProcess) -> Iterable[Metric]:
    """The log of this agent."""
    engine = agent.broker.engine
    counters = agent.counters
    for name, text in _LOG_COUNTERS.items():
        yield counter(f"driftlog_{name}", text, getattr(counters, name))
    expired_records = CounterMetricFamily(
        "driftlog_expired_records",
        "Records that log start has passed, by retention.ms (time) or retention.bytes (size)",
        labels=["reason"],
    )
    expired_bytes = CounterMetricFamily(
        "driftlog_expired_bytes", "Bytes of their batches, as received", labels=["reason"]
    )
    for reason in ExpiryReason:
        expired_records.add_metric([reason], counters.expired_records[reason])
        expired_bytes.add_metric([reason], counters.expired_bytes[reason])
    yield expired_records
    yield expired_bytes
    yield histogram(
        "driftlog_commit_seconds", "Transactions that committed a flush", counters.commits
    )
    yield from _operations(agent)
    yield from _garbage(agent)
    if engine is not None:
        yield from _session(engine)


def _session(engine: Engine) -> Iterable[Metric]:
    logs = engine.logs()
    yield gauge("driftlog_partitions", "Partitions led", len(logs))
    yield gauge(
        "driftlog_buffer_directories_set_aside",
        "Directories in DIR/kept, whose records are in no log; driftlog buffer replay "
        "produces them",
        engine.ports.disk.count_kept(),
    )
    yield gauge(
        "driftlog_offline_partitions",
        "Partitions that this agent should lead and cannot; see driftlog partitions offline",
        len(engine.offline()),
    )
    yield gauge(
        "driftlog_unavailable_partitions",
        "Partitions placed on this agent without a leader because an object cannot be "
        "read; the log names it",
        len(engine.assignments.unreadable),
    )
    yield gauge(
        "driftlog_damaged_partitions",
        "Partitions that cannot be sealed because an object is missing or damaged; the "
        "log names it",
        sum(1 for log in logs if log.damage),
    )
    yield gauge(
        "driftlog_pending_bytes",
        "Bytes of admitted batches that are not committed",
        engine.flusher.pending_bytes,
    )
    yield gauge(
        "driftlog_pending_limit_bytes",
        "Pending bytes from which on the agent does not read from producers",
        engine.settings.memory.pending_bytes,
    )
    yield gauge(
        "driftlog_buffer_disk_bytes",
        "Size of the session's buffer files, committed batches and spare files included",
        engine.buffer.disk_bytes,
    )
    yield gauge(
        "driftlog_sealing_failing_seconds",
        "Time for which no attempt to seal has succeeded",
        engine.health.sealing.lasted_ms(engine.ports.now_ms()) / 1000,
    )
    yield gauge(
        "driftlog_commits_failing_seconds",
        "Time for which no flush could be committed because the bucket or the metadata store fails",
        engine.health.flushes.lasted_ms(engine.ports.now_ms()) / 1000,
    )
    yield gauge(
        "driftlog_unsealed_bytes",
        "Bytes of committed batches that are not sealed",
        sum(log.unsealed_bytes for log in logs),
    )
    yield gauge(
        "driftlog_producers",
        "Idempotent producers in memory, each once per partition",
        engine.producers.producers,
    )
    yield gauge(
        "driftlog_producer_state_bytes",
        "Memory of idempotent producers, limited by driftlog.producer.state.max.bytes",
        engine.producers.used_bytes,
    )
    yield gauge(
        "driftlog_verification_damaged_ranges",
        "Damaged ranges of sealed records, each partition at its last verification by this agent; "
        "the log names the objects",
        engine.upkeep.verification.damaged,
    )
    yield gauge(
        "driftlog_verification_overdue_seconds",
        "For how long the verification that is due longest has been due",
        engine.upkeep.verification.overdue_ms / 1000,
    )
    yield gauge(
        "driftlog_flush_records",
        "Flush records in the metadata store",
        engine.flush_records.records,
    )


def _operations(agent: AgentProcess) -> Iterable[Metric]:
    counters = agent.counters
    operations = {
        "flush": counters.uploads,
        "commit": counters.commit_attempts,
        "seal": counters.seals,
        "segment-request": counters.segment_requests,
        "compact": counters.compaction_runs,
        "merge": counters.merge_runs,
        "collect": agent.collector.passes,
    }
    attempts = CounterMetricFamily(
        "driftlog_operations",
        "Attempts by outcome: ok, failed; refused, unanswered (it may have happened), fenced; void "
        "(another edit of the manifest was faster). flush is the PUT of a flush object; commit its "
        "transaction; seal a segment or some; segment-request a range that another agent is asked "
        "to write as segments; compact and merge a run over a partition; collect a pass of the "
        "collector",
        labels=["operation", "outcome"],
    )
    for name, each in operations.items():
        for outcome, count in each.outcomes.items():
            attempts.add_metric([name, outcome], count)
    yield attempts
    yield histograms(
        "driftlog_operation_seconds",
        "Time of each attempt, failed ones included",
        "operation",
        {name: each.durations for name, each in operations.items()},
    )


def _garbage(agent: AgentProcess) -> Iterable[Metric]:
    collector = agent.collector
    objects = CounterMetricFamily(
        "driftlog_collected_objects",
        "Objects of the bucket that were deleted",
        labels=["kind", "reason"],
    )
    for what, count in sorted(collector.deletions.objects.items()):
        objects.add_metric(what, count)
    yield objects
    sizes = CounterMetricFamily(
        "driftlog_collected_bytes",
        "Their bytes, as far as listings and manifests say: replaced segment lists and producer "
        "snapshots count as 0",
        labels=["kind", "reason"],
    )
    for what, count in sorted(collector.deletions.bytes.items()):
        sizes.add_metric(what, count)
    yield sizes
    passes = GaugeMetricFamily(
        "driftlog_collector_last_pass_seconds",
        "When the last complete pass of this agent began, since 1970 by the bucket's clock; 0: "
        "none yet. Flush objects have one agent of the cluster, sealed objects all",
        labels=["objects"],
    )
    passes.add_metric(["flush"], collector.looked_ms / 1000)
    passes.add_metric(["sealed"], collector.sealed.listed_ms / 1000)
    yield passes


_LOG_COUNTERS: Final = {
    "partitions_taken_over": "Partitions claimed",
    "partitions_handed_over": "Partitions released",
    "flush_puts": "PUTs of flush objects, hedges included",
    "flush_hedges": "PUTs that were a hedge",
    "flushes_early": "Flushes cut early",
    "compactions": "Runs of compaction over a partition",
    "compaction_read_bytes": "Bytes of segments that compaction read",
    "compaction_written_bytes": "Bytes of segments that compaction wrote",
    "compaction_removed_records": "Records that compaction removed",
    "merges": "Merges of small segments",
    "merged_segments": "Small segments that merges replaced",
    "merge_read_bytes": "Bytes of segments that merges read",
    "merge_written_bytes": "Bytes of segments that merges wrote",
    "committed_bytes": "Bytes of committed flushes",
    "committed_records": "Records of committed flushes",
    "buffer_bytes": "Bytes written to buffer files",
    "buffer_syncs": "fdatasync calls",
    "buffer_unreadable": "Failed attempts to read the buffer files of earlier sessions in "
    "DIR/buffer; the log names them",
    "buffer_damaged_files": "Buffer files of earlier sessions with damaged entries before whole "
    "ones; the log names them",
    "buffer_damaged_entries": "Damaged entries of buffer files that were skipped, at least",
    "buffer_damaged_bytes": "Damaged bytes of buffer files that were skipped",
    "buffer_set_aside_records": "Records acknowledged with acks=1 that lost their place in the "
    "log and were moved to DIR/kept; driftlog buffer replay produces them",
    "buffer_set_aside_bytes": "Bytes of the batches moved to DIR/kept",
    "buffer_deleted_records": "Records acknowledged with acks=1, below log start and dropped "
    "from DIR/buffer because nothing tells whether the log had them",
    "producers_refused": "Batches refused because their idempotent producer is unknown and the "
    "memory for producers is used up; see the log",
    "verified_partitions": "Verifications of a partition's sealed objects",
    "verified_bytes": "Bytes of the segments that were right",
    "segments_sealed": "Segments sealed",
    "sealed_bytes": "Bytes sealed, uncompressed",
    "undecodable_batches": "Batches stored as they came because their records cannot be decoded",
}
"""Help texts of the fields of `LogCounters`."""
