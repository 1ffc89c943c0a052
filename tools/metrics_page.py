"""docs/metrics.md: every metric of an agent, made from the module that exports them.

    python -m tools.metrics_page         writes the page; a test fails when it is not up to date

The names and texts are read from the source of `process/metrics/`: some metrics exist only while an
agent serves, or only with etcd.

Shell.
"""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from driftlog_agents.process.metrics import groups, log, partitions, process, requests, stores

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"

_HEAD: Final = """\
# Metrics

`GET /metrics` of an agent's HTTP port has them in Prometheus' text format. Counters end in
`_total`. `driftlog_refused_total` has one series for each [limit](limits.md), from the start.
[Operate](operate.md#alerts) says which of them to alert on.

<!-- Made by `python -m tools.metrics_page`: change the metrics, not this page. -->

| metric | type | labels | what it says |
|---|---|---|---|
"""

_FAMILIES: Final = {
    "CounterMetricFamily": "counter",
    "GaugeMetricFamily": "gauge",
    "HistogramMetricFamily": "histogram",
    "InfoMetricFamily": "info",
    "counter": "counter",
    "gauge": "gauge",
    "histogram": "histogram",
    "histograms": "histogram",
}
_MODULES: Final = (requests, stores, log, partitions, groups, process)

_TABLES: Final = ("_LOG_COUNTERS", "_GROUP_COUNTERS")
"""Dictionaries of the modules: names of counters, and their texts."""


@dataclass(frozen=True, slots=True, order=True)
class Described:
    """One metric as Prometheus sees it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def page() -> str:
    """The content of the page."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{name}`' for name in metric.labels)} | "
        f"{metric.text.replace('|', chr(92) + '|')} |"
        for metric in sorted(described())
    ]
    return _HEAD + "\n".join(rows) + "\n"


def described() -> Iterator[Described]:
    """Every metric that the module can export."""
    for module in _MODULES:
        yield from _of(module)


def _of(module: ModuleType) -> Iterator[Described]:
    for name in _TABLES:
        for key, text in getattr(module, name, {}).items():
            name = key if key.startswith("driftlog_") else f"driftlog_{key}"
            yield Described(f"{name}_total", "counter", (), text)
    for call in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        kind = _FAMILIES.get(call.func.id)
        if kind is None or not all(isinstance(part, ast.Constant) for part in call.args[:2]):
            continue
        name, text = (ast.literal_eval(part) for part in call.args[:2])
        suffix = {"counter": "_total", "info": "_info"}.get(kind, "")
        labels = next((word.value for word in call.keywords if word.arg == "labels"), None)
        listed = () if labels is None else tuple(ast.literal_eval(labels))
        if call.func.id == "histograms":
            listed = (ast.literal_eval(call.args[2]),)
        yield Described(name.removesuffix(suffix) + suffix, kind, listed, text)


if __name__ == "__main__":
    PAGE.write_text(page())
