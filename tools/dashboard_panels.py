"""What the Grafana dashboard shows: rows of panels, each with its queries.

`$agent` is the dashboard's variable: the instances that are shown.

Pure.
"""

from dataclasses import dataclass
from typing import Final

_OF: Final = 'instance=~"$agent"'
_RATE: Final = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        queries: PromQL, and the legend of its series.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    description: str = ""
    single: bool = False
    """One number in place of a graph."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


def _one(title: str, unit: str, query: str, legend: str = "", description: str = "") -> Panel:
    return Panel(title, unit, ((query, legend),), description)


def _number(title: str, unit: str, query: str, description: str = "") -> Panel:
    return Panel(title, unit, ((query, ""),), description, single=True)


def _sum(metric: str, *by: str, where: str = "") -> str:
    """The sum of a gauge over the shown agents."""
    grouped = f"sum by ({', '.join(by)})" if by else "sum"
    return f"{grouped} ({metric}{{{_OF}{where}}})"


def _rate(metric: str, *by: str, where: str = "") -> str:
    """The rate of a counter, summed over the shown agents."""
    grouped = f"sum by ({', '.join(by)})" if by else "sum"
    return f"{grouped} (rate({metric}{{{_OF}{where}}}{_RATE}))"


def _quantile(share: float, metric: str, *by: str, where: str = "") -> str:
    """A quantile of a histogram over the shown agents."""
    grouped = ", ".join(("le", *by))
    return (
        f"histogram_quantile({share}, sum by ({grouped}) "
        f"(rate({metric}_bucket{{{_OF}{where}}}{_RATE})))"
    )


def _operation(name: str) -> str:
    return f', operation="{name}"'


ROWS: Final = (
    Row(
        "Overview",
        (
            _number("Agents", "none", 'count(up{job="driftlog"} == 1)'),
            _number("Partitions led", "none", _sum("driftlog_partitions")),
            _number(
                "Partitions not served",
                "none",
                f"{_sum('driftlog_offline_partitions')} + "
                f"{_sum('driftlog_unavailable_partitions')}",
                "Offline, or without a leader while an object cannot be read.",
            ),
            _one(
                "Produced bytes",
                "Bps",
                _rate("driftlog_produced_bytes_total", "instance"),
                "{{instance}}",
            ),
            _one(
                "Fetched bytes",
                "Bps",
                _rate("driftlog_fetched_bytes_total", "instance"),
                "{{instance}}",
            ),
            _one(
                "Committed records",
                "short",
                _rate("driftlog_committed_records_total", "instance"),
                "{{instance}}",
            ),
        ),
    ),
    Row(
        "Requests",
        (
            _one("Requests by API", "reqps", _rate("driftlog_requests_total", "api"), "{{api}}"),
            Panel(
                "Produce: time to the answer",
                "s",
                tuple(
                    (_quantile(share, "driftlog_request_seconds", where=', api="Produce"'), name)
                    for share, name in ((0.5, "p50"), (0.99, "p99"))
                ),
                "Ten requests a second are timed.",
            ),
            _one(
                "Requests: p99 by API",
                "s",
                _quantile(0.99, "driftlog_request_seconds", "api"),
                "{{api}}",
                "A Fetch with its wait for records.",
            ),
            Panel(
                "Refused",
                "reqps",
                (
                    (_rate("driftlog_produce_errors_total"), "partitions of Produce"),
                    (f"topk(5, {_rate('driftlog_refused_total', 'limit')})", "{{limit}}"),
                ),
            ),
            Panel(
                "Connections",
                "short",
                (
                    (_sum("driftlog_connections"), "open"),
                    (_sum("driftlog_unanswered_requests"), "unanswered requests"),
                ),
            ),
            Panel(
                "Reads from the bucket",
                "reqps",
                (
                    (_rate("driftlog_cold_fetches_total"), "cold fetches"),
                    (_rate("driftlog_read_cache_reads_total", "outcome"), "cache {{outcome}}"),
                ),
            ),
        ),
    ),
    Row(
        "Log",
        (
            _one(
                "Committed records by topic",
                "short",
                f"sum by (topic) (rate(driftlog_partition_high_watermark{{{_OF}}}{_RATE}))",
                "{{topic}}",
            ),
            _one("Bytes by tier", "bytes", _sum("driftlog_partition_bytes", "tier"), "{{tier}}"),
            _one(
                "Records by topic",
                "short",
                _sum("driftlog_partition_records", "topic"),
                "{{topic}}",
            ),
            Panel(
                "Unsealed and uncommitted",
                "bytes",
                (
                    (_sum("driftlog_unsealed_bytes"), "not sealed"),
                    (_sum("driftlog_pending_bytes"), "not committed"),
                    (_sum("driftlog_buffer_disk_bytes"), "buffer files"),
                ),
            ),
            _one(
                "Buffer use",
                "percentunit",
                f"driftlog_pending_bytes{{{_OF}}} / driftlog_pending_limit_bytes{{{_OF}}}",
                "{{instance}}",
                "At 1 the agent stops reading from producers.",
            ),
            _one(
                "Producers held back",
                "none",
                _sum("driftlog_overloaded", "instance"),
                "{{instance}}",
            ),
        ),
    ),
    Row(
        "Flush and commit",
        (
            Panel(
                "Flush: PUT",
                "s",
                tuple(
                    (
                        _quantile(share, "driftlog_operation_seconds", where=_operation("flush")),
                        name,
                    )
                    for share, name in ((0.5, "p50"), (0.99, "p99"))
                ),
            ),
            Panel(
                "Commit",
                "s",
                tuple(
                    (
                        _quantile(share, "driftlog_operation_seconds", where=_operation("commit")),
                        name,
                    )
                    for share, name in ((0.5, "p50"), (0.99, "p99"))
                ),
            ),
            _one(
                "Flushes and commits by outcome",
                "ops",
                _rate(
                    "driftlog_operations_total",
                    "operation",
                    "outcome",
                    where=', operation=~"flush|commit"',
                ),
                "{{operation}} {{outcome}}",
            ),
        ),
    ),
    Row(
        "Upkeep",
        (
            _one(
                "Seal, compact, merge, collect by outcome",
                "ops",
                _rate(
                    "driftlog_operations_total",
                    "operation",
                    "outcome",
                    where=', operation=~"seal|compact|merge|collect"',
                ),
                "{{operation}} {{outcome}}",
            ),
            _one(
                "Seal: p99",
                "s",
                _quantile(0.99, "driftlog_operation_seconds", where=_operation("seal")),
                "seal",
            ),
            Panel(
                "Bytes of upkeep",
                "Bps",
                tuple(
                    (_rate(f"driftlog_{name}_total"), name.replace("_", " "))
                    for name in (
                        "sealed_bytes",
                        "compaction_read_bytes",
                        "compaction_written_bytes",
                        "merge_read_bytes",
                        "merge_written_bytes",
                        "verified_bytes",
                    )
                ),
            ),
            Panel(
                "Failing for",
                "s",
                tuple(
                    (
                        _sum(f"driftlog_{what}_failing_seconds", "instance"),
                        f"{what} {{{{instance}}}}",
                    )
                    for what in ("commits", "sealing", "metadata")
                ),
            ),
            Panel(
                "Damage",
                "none",
                (
                    (_sum("driftlog_damaged_partitions"), "partitions not sealed"),
                    (_sum("driftlog_verification_damaged_ranges"), "damaged ranges"),
                    (_rate("driftlog_damaged_reads_total"), "failed reads a second"),
                ),
            ),
            _one(
                "Since the last pass of the collector",
                "s",
                f"time() - max by (objects) (driftlog_collector_last_pass_seconds{{{_OF}}} > 0)",
                "{{objects}}",
                "Flush objects have one agent of the cluster.",
            ),
        ),
    ),
    Row(
        "Groups",
        (
            _one(
                "Lag by group", "short", "sum by (group) (driftlog:group_lag:records)", "{{group}}"
            ),
            _one(
                "Lag by group and topic",
                "short",
                "driftlog:group_lag:records",
                "{{group}} {{topic}}",
            ),
            Panel(
                "Groups",
                "none",
                (
                    (_sum("driftlog_groups", "protocol"), "{{protocol}}"),
                    (_sum("driftlog_group_members"), "members"),
                ),
            ),
            Panel(
                "Commits and rebalances",
                "ops",
                (
                    (_rate("driftlog_group_commits_total"), "commits"),
                    (_rate("driftlog_group_rebalances_total"), "rebalances"),
                ),
            ),
        ),
    ),
    Row(
        "Stores",
        (
            _one(
                "Requests to the object store",
                "reqps",
                _rate("driftlog_store_requests_total", "request"),
                "{{request}}",
            ),
            _one(
                "Object store: p99",
                "s",
                _quantile(0.99, "driftlog_store_request_seconds", "request"),
                "{{request}}",
            ),
            _one(
                "Object store: outcomes",
                "reqps",
                _rate("driftlog_store_answers_total", "outcome"),
                "{{outcome}}",
            ),
            _number(
                "Requests, dollars a month",
                "currencyUSD",
                "sum (driftlog:store_requests:dollars_per_month)",
                "At the present rate and the prices of `driftlog cost`.",
            ),
            _one(
                "Lease: time left",
                "s",
                f"driftlog_lease_remaining_seconds{{{_OF}}}",
                "{{instance}}",
            ),
            _one(
                "etcd: share of the quota",
                "percentunit",
                f"max (driftlog_etcd_quota_share{{{_OF}}})",
                "fullest member",
            ),
        ),
    ),
    Row(
        "Process",
        (
            _one(
                "CPU", "percentunit", _rate("process_cpu_seconds_total", "instance"), "{{instance}}"
            ),
            _one(
                "Resident memory",
                "bytes",
                _sum("process_resident_memory_bytes", "instance"),
                "{{instance}}",
            ),
            Panel(
                "Event loop",
                "s",
                (
                    (_quantile(0.99, "driftlog_event_loop_delay_seconds"), "p99 delay"),
                    (f"max (driftlog_event_loop_longest_stall_seconds{{{_OF}}})", "longest stall"),
                ),
            ),
        ),
    ),
)
