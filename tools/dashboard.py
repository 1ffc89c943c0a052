"""observability/: the Grafana dashboard and the recording rules, made from one description.

    python -m tools.dashboard         writes both; a test fails when they are not up to date

`dashboard_panels` says what is shown.  Prices are those of `driftlog cost`
(`client/driftlog/cost/prices.json`): there is one table of them.

Shell.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from driftlog.cost.bill import MONTH_S
from driftlog.cost.prices import read_prices
from tools.dashboard_panels import ROWS, Panel

_REPOSITORY: Final = Path(__file__).resolve().parents[1]
_PRICES: Final = _REPOSITORY / "client" / "driftlog" / "cost" / "prices.json"
_FOLDER: Final = _REPOSITORY / "observability"
DASHBOARD: Final = _FOLDER / "grafana" / "driftlog.json"
RULES: Final = _FOLDER / "prometheus" / "rules.yml"

_WIDTH: Final = 24
_COLUMNS: Final = 3
_HEIGHT: Final = 8


def dashboard() -> str:
    """The dashboard, for Grafana's import."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in ROWS:
        panels.append(_heading(row.title, len(panels), top))
        top += 1
        for at, panel in enumerate(row.panels):
            where = {"h": _HEIGHT, "w": _WIDTH // _COLUMNS}
            where |= {"x": at % _COLUMNS * where["w"], "y": top + at // _COLUMNS * _HEIGHT}
            panels.append(_panel(panel, len(panels), where))
        top += -(-len(row.panels) // _COLUMNS) * _HEIGHT
    board = {
        "uid": "driftlog",
        "title": "driftlog",
        "description": "Made by `python -m tools.dashboard`.",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": panels,
    }
    return json.dumps(board, indent=1) + "\n"


_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}
    yield {
        "name": "agent",
        "label": "Agent",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": "label_values(driftlog_uptime_seconds, instance)", "refId": "agent"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _heading(title: str, number: int, top: int) -> dict[str, Any]:
    where = {"h": 1, "w": _WIDTH, "x": 0, "y": top}
    return {"id": number + 1, "type": "row", "title": title, "gridPos": where, "panels": []}


def _panel(panel: Panel, number: int, where: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "stat" if panel.single else "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": where,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend,
                "instant": panel.single,
                "range": not panel.single,
            }
            for at, (query, legend) in enumerate(panel.queries)
        ],
    }


def rules() -> str:
    """The recording rules, for Prometheus."""
    prices = read_prices(_PRICES.read_text())
    puts, gets = prices.put_per_1000 / 1000, prices.get_per_1000 / 1000

    def month(price: float, kinds: str) -> str:
        rate = f'rate(driftlog_store_requests_total{{request=~"{kinds}"}}[5m])'
        return f"sum by (instance, request) ({rate}) * {MONTH_S} * {price:.10f}".rstrip("0")

    return f"""\
# Made by `python -m tools.dashboard`: change that, not this file.
groups:
  - name: driftlog
    rules:
      # Requests to the object store at the present rate, dollars a month: {prices.source}
      # ({prices.date}); DELETE is free.
      - record: driftlog:store_requests:dollars_per_month
        expr: |
          {month(puts, "put|list")}
          or
          {month(gets, "get|head")}
      # A group's coordinator knows its committed offsets, a partition's leader knows its end.
      - record: driftlog:group_lag:records
        expr: |
          sum by (group, topic) (
            clamp_min(
              max by (topic, partition) (driftlog_partition_high_watermark)
              - on (topic, partition) group_right ()
              max by (group, topic, partition) (driftlog_group_committed_offset),
              0
            )
          )
"""


if __name__ == "__main__":
    DASHBOARD.write_text(dashboard())
    RULES.write_text(rules())
