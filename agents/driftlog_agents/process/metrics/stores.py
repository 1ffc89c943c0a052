"""Metrics of the object store and of the metadata store.

Shell.
"""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, Metric

from driftlog_agents.process.composition.agent import AgentProcess
from driftlog_agents.process.metrics.families import counter, gauge, histograms
from driftlog_agents.process.metrics.observed import Observed
from driftlog_tiering.stores.counted_store import RequestKind


def collect(observed: Observed) -> Iterable[Metric]:
    """Both stores."""
    requests = observed.store_requests
    sent = CounterMetricFamily(
        "driftlog_store_requests",
        "Requests sent to the object store, by the kinds of S3's price list, failed ones included; "
        "driftlog cost has their price",
        labels=["request"],
    )
    for kind in RequestKind:
        sent.add_metric([kind], requests.sent[kind])
    yield sent
    yield counter(
        "driftlog_store_sent_bytes", "Bytes of objects sent to the object store", requests.put_bytes
    )
    yield counter(
        "driftlog_store_received_bytes",
        "Bytes of objects received from the object store",
        requests.got_bytes,
    )
    answers = CounterMetricFamily(
        "driftlog_store_answers",
        "Requests to the object store by kind and outcome: ok, not_found, exists (the key is "
        "taken), refused (throttled, down), unanswered (it may have happened), failed. A page of a "
        "listing is one",
        labels=["request", "outcome"],
    )
    times = observed.store_times.requests
    for kind, each in times.items():
        for outcome, count in each.outcomes.items():
            answers.add_metric([kind, outcome], count)
    yield answers
    yield histograms(
        "driftlog_store_request_seconds",
        "Time of each request to the object store, failed ones included",
        "request",
        {kind: each.durations for kind, each in times.items()},
    )
    yield from _metadata(observed.agent)
    yield from _quota(observed.agent)


def _metadata(agent: AgentProcess) -> Iterable[Metric]:
    engine = agent.broker.engine
    now_ms = None if engine is None else engine.ports.now_ms()
    left_ms = failing_ms = 0.0
    if engine is not None and now_ms is not None:
        left_ms = max(0.0, engine.session.valid_until_ms - now_ms)
        failing_ms = engine.health.requests.lasted_ms(now_ms)
    yield gauge(
        "driftlog_lease_remaining_seconds",
        "How long the session's lease is valid without another keep-alive; 0: there is no session",
        left_ms / 1000,
    )
    yield gauge(
        "driftlog_metadata_failing_seconds",
        "Time for which the metadata store has answered no request of the session",
        failing_ms / 1000,
    )
    yield gauge(
        "driftlog_configs_bytes",
        "Bytes of topics, configs and deleted topics in the metadata store, which "
        "driftlog.max.configs.bytes limits",
        agent.broker.view.stored_bytes,
    )
    yield counter(
        "driftlog_metadata_write_pauses",
        "Writes of groups, topics and configs that waited, as more bytes a second would fill the "
        "metadata store",
        agent.quota.pauses,
    )


def _quota(agent: AgentProcess) -> Iterable[Metric]:
    usage = agent.quota.fullest
    if usage is None:
        return
    yield gauge(
        "driftlog_etcd_size_bytes",
        "Size of etcd's database, on the fullest member",
        usage.size_bytes,
    )
    if usage.quota_bytes is not None:
        yield gauge(
            "driftlog_etcd_quota_bytes", "etcd's quota, on the fullest member", usage.quota_bytes
        )
        yield gauge(
            "driftlog_etcd_quota_share",
            "Fraction of etcd's quota in use; from 0.8 produce is refused, and no topic is created",
            usage.share,
        )
    yield gauge(
        "driftlog_etcd_refusing_produce",
        "1 while produce is refused because etcd is full; see the log",
        int(bool(agent.quota.refusal)),
    )
