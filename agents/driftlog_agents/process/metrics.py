"""The metrics of an agent, as Prometheus reads them.

The machines keep plain numbers, which are read at each scrape: so counting costs the hot path an
addition.

Shell.
"""

import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from driftlog_agents.configs.limits import FETCH_SESSIONS, LOG_LINES, PRODUCER_STATE
from driftlog_agents.groups.coordinator.group_runtime import CLASSIC, CONSUMER
from driftlog_agents.health.event_loop_monitor import EventLoopMonitor
from driftlog_agents.log.local.range_cache import RangeCache
from driftlog_agents.log.retention.policy import ExpiryReason
from driftlog_agents.network.server import Server
from driftlog_agents.process.agent import AgentProcess
from driftlog_tiering.stores.counted_store import RequestKind, StoreRequests

_VERSION: Final = metadata.version("driftlog")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The sources of the metrics."""

    agent: AgentProcess
    server: Server
    loop_watch: EventLoopMonitor
    store_requests: StoreRequests
    log_lines_dropped: Callable[[], Mapping[str, int]]
    """Lines of the process's log that were not written, by reason."""


def collect(observed: Observed) -> Iterable[Metric]:
    """Every metric, with its help text."""
    agent = observed.agent
    yield from _requests(observed)
    yield from _store(observed.store_requests)
    yield from _log(agent)
    yield from _garbage(agent)
    yield from _groups(agent)
    yield from _quota(agent)
    yield from _process(observed)


def _read_cache(cache: RangeCache | None) -> Iterable[Metric]:
    """No cache is an empty one: a directory of objects is as near."""
    reads = CounterMetricFamily(
        "driftlog_read_cache_reads",
        "Reads of segments from S3 that asked the cache on the agent's disk, by outcome",
        labels=["outcome"],
    )
    reads.add_metric(["hit"], 0 if cache is None else cache.hits)
    reads.add_metric(["miss"], 0 if cache is None else cache.misses)
    yield reads
    yield _gauge(
        "driftlog_read_cache_bytes",
        "Bytes of the cache on the agent's disk",
        0 if cache is None else cache.used_bytes,
    )


def _requests(observed: Observed) -> Iterable[Metric]:
    agent = observed.agent
    requests = CounterMetricFamily(
        "driftlog_requests", "Requests received, by Kafka API", labels=["api"]
    )
    for key, count in agent.dispatcher.requests().items():
        requests.add_metric([key.kafka_name], count)
    yield requests
    producing, fetching = agent.dispatcher.producing, agent.dispatcher.fetching
    yield _counter(
        "driftlog_produced_bytes", "Bytes of batches received from producers", producing.bytes
    )
    yield _counter(
        "driftlog_produce_errors", "Partitions of Produce requests refused", producing.errors
    )
    yield _counter("driftlog_fetched_bytes", "Bytes of batches sent to consumers", fetching.bytes)
    yield _counter(
        "driftlog_cold_fetches", "Fetches that read from the bucket", fetching.cold_reads
    )
    yield from _read_cache(agent.read_cache)
    sessions = fetching.sessions
    yield GaugeMetricFamily("driftlog_fetch_sessions", "Fetch sessions", len(sessions))
    yield GaugeMetricFamily(
        "driftlog_fetch_session_partitions", "Partitions of all fetch sessions", sessions.partitions
    )
    yield _counter(
        "driftlog_fetch_sessions_evicted",
        "Fetch sessions that made room for others",
        sessions.evicted,
    )
    yield _counter(
        "driftlog_damaged_reads",
        "Reads that failed because an object cannot be read; the log names it",
        agent.broker.reader.damaged_reads,
    )
    refused = CounterMetricFamily(
        "driftlog_refused",
        "Requests and connections that a limit refused, closed or delayed, by the limit's config",
        labels=["limit"],
    )
    left_out = observed.log_lines_dropped()
    counts = {
        **agent.broker.refusals.counts,
        LOG_LINES: left_out.get("rate", 0),
        FETCH_SESSIONS: sessions.full,
        PRODUCER_STATE: agent.counters.producers_refused,
    }
    for limit, count in sorted(counts.items()):
        refused.add_metric([limit], count)
    yield refused
    dropped = CounterMetricFamily(
        "driftlog_log_lines_dropped",
        "Lines of the agent's log that were not written: left out for their rate, because their "
        "reader is too slow (queue), or because the stream is closed or full (write)",
        labels=["reason"],
    )
    for reason, count in left_out.items():
        dropped.add_metric([reason], count)
    yield dropped
    yield _gauge("driftlog_connections", "Open connections", len(observed.server.connections))
    yield _gauge(
        "driftlog_overloaded",
        "1 while backpressure delays producers",
        int(observed.server.overloaded),
    )
    yield _gauge(
        "driftlog_waiting_batch_bytes",
        "Batches that wait for conversion, or for their partition",
        observed.agent.dispatcher.producing.waiting.held_bytes,
    )
    yield _gauge(
        "driftlog_incomplete_request_bytes",
        "Memory of requests that have not arrived whole, and of large Produce requests that wait "
        "to be admitted",
        observed.server.frame_budget.held_bytes,
    )
    yield _gauge(
        "driftlog_connections_waiting",
        "Connections that the agent does not read until it has memory for their requests",
        observed.server.frame_budget.waiting,
    )
    yield _gauge(
        "driftlog_queued_requests",
        "Requests that wait for their turn on their connections",
        observed.server.requests.waiting,
    )
    yield _gauge(
        "driftlog_unanswered_requests",
        "Unanswered requests of all connections",
        observed.server.requests.unanswered,
    )
    yield _gauge(
        "driftlog_queued_request_bytes",
        "Memory of requests other than Produce, until they are answered, and of received "
        "bytes that no request holds yet",
        observed.server.requests.budget.held_bytes,
    )
    yield _gauge(
        "driftlog_response_queue_bytes",
        "Memory of answers that clients have not read",
        observed.server.answers.held_bytes,
    )
    yield _gauge(
        "driftlog_agents", "Live agents, as this agent sees them", len(agent.broker.view.agents)
    )
    yield _counter("driftlog_sessions", "Sessions begun by this process", agent.sessions)
    yield _gauge(
        "driftlog_unfit",
        "1 while the agent takes no partitions because it could not commit while other "
        "agents could",
        int(agent.fitness.unfit),
    )
    yield _gauge(
        "driftlog_metadata_store_distrusted",
        "1 from the time at which the metadata store went back or was replaced, until "
        "the agent restarts",
        int(agent.store_watch.evidence is not None),
    )


def _store(requests: StoreRequests) -> Iterable[Metric]:
    sent = CounterMetricFamily(
        "driftlog_store_requests",
        "Requests sent to the object store, by the kinds of S3's price list, failed ones included; "
        "driftlog cost has their price",
        labels=["request"],
    )
    for kind in RequestKind:
        sent.add_metric([kind], requests.sent[kind])
    yield sent
    yield _counter(
        "driftlog_store_sent_bytes", "Bytes of objects sent to the object store", requests.put_bytes
    )
    yield _counter(
        "driftlog_store_received_bytes",
        "Bytes of objects received from the object store",
        requests.got_bytes,
    )


def _log(agent: AgentProcess) -> Iterable[Metric]:
    engine = agent.broker.engine
    counters = agent.counters
    for name, text in _LOG_COUNTERS.items():
        yield _counter(f"driftlog_{name}", text, getattr(counters, name))
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
    commits = counters.commits
    yield HistogramMetricFamily(
        "driftlog_commit_seconds",
        "Transactions that committed a flush",
        buckets=list(commits.buckets()),
        sum_value=commits.sum_s,
    )
    if engine is None:
        return
    logs = engine.logs()
    yield _gauge("driftlog_partitions", "Partitions led", len(logs))
    yield _gauge(
        "driftlog_buffer_directories_set_aside",
        "Directories in DIR/kept, whose records are in no log; driftlog buffer replay "
        "produces them",
        engine.ports.disk.count_kept(),
    )
    yield _gauge(
        "driftlog_offline_partitions",
        "Partitions that this agent should lead and cannot; see driftlog partitions offline",
        len(engine.offline()),
    )
    yield _gauge(
        "driftlog_unavailable_partitions",
        "Partitions placed on this agent without a leader because an object cannot be "
        "read; the log names it",
        len(engine.assignments.unreadable),
    )
    yield _gauge(
        "driftlog_damaged_partitions",
        "Partitions that cannot be sealed because an object is missing or damaged; the "
        "log names it",
        sum(1 for log in logs if log.damage),
    )
    yield _gauge(
        "driftlog_pending_bytes",
        "Bytes of admitted batches that are not committed",
        engine.flusher.pending_bytes,
    )
    yield _gauge(
        "driftlog_commits_failing_seconds",
        "Time for which no flush could be committed because the bucket or the metadata store fails",
        engine.health.flushes.lasted_ms(engine.ports.now_ms()) / 1000,
    )
    yield _gauge(
        "driftlog_unsealed_bytes",
        "Bytes of committed batches that are not sealed",
        sum(log.unsealed_bytes for log in logs),
    )
    yield _gauge(
        "driftlog_producers",
        "Idempotent producers in memory, each once per partition",
        engine.producers.producers,
    )
    yield _gauge(
        "driftlog_producer_state_bytes",
        "Memory of idempotent producers, limited by driftlog.producer.state.max.bytes",
        engine.producers.used_bytes,
    )
    yield _gauge(
        "driftlog_verification_damaged_ranges",
        "Damaged ranges of sealed records, each partition at its last verification by this agent; "
        "the log names the objects",
        engine.upkeep.verification.damaged,
    )
    yield _gauge(
        "driftlog_verification_overdue_seconds",
        "For how long the verification that is due longest has been due",
        engine.upkeep.verification.overdue_ms / 1000,
    )
    yield _gauge(
        "driftlog_flush_records",
        "Flush records in the metadata store",
        engine.flush_records.records,
    )


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


def _groups(agent: AgentProcess) -> Iterable[Metric]:
    for name, text in _GROUP_COUNTERS.items():
        yield _counter(name, text, agent.group_counters[name])
    loads = agent.group_loads
    yield HistogramMetricFamily(
        "driftlog_group_load_seconds",
        "Time from the claim of an existing group until it is served",
        buckets=list(loads.buckets()),
        sum_value=loads.sum_s,
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
    yield _gauge("driftlog_group_members", "Members of the groups coordinated here", members)
    held = 0 if coordinator is None else coordinator.budget.held_bytes
    yield _gauge("driftlog_group_bytes", "Approximate memory of the groups coordinated here", held)


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


def _quota(agent: AgentProcess) -> Iterable[Metric]:
    usage = agent.quota.fullest
    if usage is None:
        return
    yield _gauge(
        "driftlog_etcd_size_bytes",
        "Size of etcd's database, on the fullest member",
        usage.size_bytes,
    )
    if usage.quota_bytes is not None:
        yield _gauge(
            "driftlog_etcd_quota_bytes", "etcd's quota, on the fullest member", usage.quota_bytes
        )
        yield _gauge(
            "driftlog_etcd_quota_share",
            "Fraction of etcd's quota in use; produce is refused from 0.8",
            usage.share,
        )
    yield _gauge(
        "driftlog_etcd_refusing_produce",
        "1 while produce is refused because etcd is full; see the log",
        int(bool(agent.quota.refusal)),
    )


def _process(observed: Observed) -> Iterable[Metric]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    unit = 1 if sys.platform == "darwin" else 1024
    yield _counter(
        "process_cpu_seconds", "User and system CPU time", usage.ru_utime + usage.ru_stime
    )
    yield _gauge(
        "process_max_resident_memory_bytes", "Largest resident size", usage.ru_maxrss * unit
    )
    yield from _of_proc()
    yield InfoMetricFamily(
        "driftlog_build",
        "Always 1; the labels say which release runs, on which Python",
        value={"version": _VERSION, "python": platform.python_version()},
    )
    yield _gauge(
        "driftlog_event_loop_longest_stall_seconds",
        "Longest time in the last one to two minutes that the event loop was busy or had no core",
        observed.loop_watch.longest_stall_s,
    )
    started = observed.agent.broker.agent.started_at_ms / 1000
    yield _gauge("process_start_time_seconds", "Since 1970", started)
    yield _gauge(
        "driftlog_uptime_seconds", "Time since the start of the process", time.time() - started
    )


def _of_proc() -> Iterable[Metric]:
    """Metrics that only Linux has, under the names of Prometheus' own clients."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        open_files = len(os.listdir("/proc/self/fd")) - 1  # without the one that lists them
    except OSError:
        return
    yield _gauge(
        "process_resident_memory_bytes", "Resident size", pages * os.sysconf("SC_PAGE_SIZE")
    )
    yield _gauge("process_open_fds", "Open file descriptors", open_files)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield _gauge("process_max_fds", "Largest number of open file descriptors", most)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
