"""Metrics of requests, connections and the session.

Shell.
"""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, Metric

from driftlog_agents.configs.limits import FETCH_SESSIONS, FETCH_SLOTS, LOG_LINES, PRODUCER_STATE
from driftlog_agents.log.local.range_cache import RangeCache
from driftlog_agents.process.metrics.families import counter, gauge, histograms
from driftlog_agents.process.metrics.observed import Observed


def collect(observed: Observed) -> Iterable[Metric]:
    """Requests, answers, connections, limits and the session."""
    agent = observed.agent
    requests = CounterMetricFamily(
        "driftlog_requests", "Requests received, by Kafka API", labels=["api"]
    )
    for key, count in agent.dispatcher.requests().items():
        requests.add_metric([key.kafka_name], count)
    yield requests
    yield histograms(
        "driftlog_request_seconds",
        "Time from the request to its answer, by Kafka API; a Fetch with its wait for records. Of "
        "Produce ten requests a second are timed, and each counts for all since the last",
        "api",
        {key.kafka_name: each for key, each in agent.dispatcher.times.durations.items()},
    )
    producing, fetching = agent.dispatcher.producing, agent.dispatcher.fetching
    yield counter(
        "driftlog_produced_bytes", "Bytes of batches received from producers", producing.bytes
    )
    yield counter(
        "driftlog_produce_errors", "Partitions of Produce requests refused", producing.errors
    )
    yield counter("driftlog_fetched_bytes", "Bytes of batches sent to consumers", fetching.bytes)
    yield counter("driftlog_cold_fetches", "Fetches that read from the bucket", fetching.cold_reads)
    yield from _read_cache(agent.read_cache)
    sessions = fetching.sessions
    yield gauge("driftlog_fetch_sessions", "Fetch sessions", len(sessions))
    yield gauge(
        "driftlog_fetch_session_partitions", "Partitions of all fetch sessions", sessions.partitions
    )
    yield counter(
        "driftlog_fetch_sessions_evicted",
        "Fetch sessions that made room for others",
        sessions.evicted,
    )
    yield counter(
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
        FETCH_SLOTS: sessions.out_of_slots,
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
    yield gauge("driftlog_connections", "Open connections", len(observed.server.connections))
    yield gauge(
        "driftlog_overloaded",
        "1 while backpressure delays producers",
        int(observed.server.overloaded),
    )
    yield gauge(
        "driftlog_waiting_batch_bytes",
        "Batches that wait for conversion, or for their partition",
        observed.agent.dispatcher.producing.waiting.held_bytes,
    )
    yield gauge(
        "driftlog_incomplete_request_bytes",
        "Memory of requests that have not arrived whole, and of large Produce requests that wait "
        "to be admitted",
        observed.server.frame_budget.held_bytes,
    )
    yield gauge(
        "driftlog_connections_waiting",
        "Connections that the agent does not read until it has memory for their requests",
        observed.server.frame_budget.waiting,
    )
    yield gauge(
        "driftlog_queued_requests",
        "Requests that wait for their turn on their connections",
        observed.server.requests.waiting,
    )
    yield gauge(
        "driftlog_unanswered_requests",
        "Unanswered requests of all connections",
        observed.server.requests.unanswered,
    )
    yield gauge(
        "driftlog_queued_request_bytes",
        "Memory of requests other than Produce, until they are answered, and of received "
        "bytes that no request holds yet",
        observed.server.requests.budget.held_bytes,
    )
    yield gauge(
        "driftlog_response_queue_bytes",
        "Memory of answers that clients have not read",
        observed.server.answers.held_bytes,
    )
    yield gauge(
        "driftlog_agents", "Live agents, as this agent sees them", len(agent.broker.view.agents)
    )
    yield counter("driftlog_sessions", "Sessions begun by this process", agent.sessions)
    yield gauge(
        "driftlog_unfit",
        "1 while the agent takes no partitions because it could not commit while other "
        "agents could",
        int(agent.fitness.unfit),
    )
    yield gauge(
        "driftlog_metadata_store_distrusted",
        "1 from the time at which the metadata store went back or was replaced, until "
        "the agent restarts",
        int(agent.store_watch.evidence is not None),
    )


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
    yield gauge(
        "driftlog_read_cache_bytes",
        "Bytes of the cache on the agent's disk",
        0 if cache is None else cache.used_bytes,
    )
