"""A dashboard or an alert that names a metric that no agent has, or a runbook that is not there."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.components import REPOSITORY
from tests.test_pages import anchors
from tools import metrics_page
from tools.dashboard import DASHBOARD, RULES, dashboard, rules
from tools.dashboard_panels import ROWS

_FOLDER: Final = RULES.parent
_ALERTS: Final = (_FOLDER / "alerts.yml").read_text().split("- alert: ")[1:]
_TESTS: Final = (_FOLDER / "alerts_test.yml").read_text()

_PROMETHEUS: Final = {"instance", "job", "le"}
"""Labels that Prometheus adds."""

_METRIC: Final = re.compile(r"\b((?:driftlog|process)_[a-z_]+)(?:\{([^}]*)\})?")
_GROUPED: Final = re.compile(r"\b(?:by|on|group_left|group_right) \(([a-z_, ]*)\)")


def _queries() -> Iterator[str]:
    for row in ROWS:
        for panel in row.panels:
            yield from (query for query, _ in panel.queries)
    yield from (line for line in rules().splitlines() if not line.strip().startswith("#"))
    for alert in _ALERTS:
        yield alert.partition("labels:")[0]


def _labels() -> dict[str, set[str]]:
    """The labels of each series that an agent exports."""
    found: dict[str, set[str]] = {}
    for metric in metrics_page.described():
        suffixes = ("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",)
        for suffix in suffixes:
            found[metric.name + suffix] = {*metric.labels, *_PROMETHEUS}
    return found


def test_the_dashboard_and_the_rules_are_up_to_date() -> None:
    """
    Else: ``python -m tools.dashboard``.
    """
    assert dashboard() == DASHBOARD.read_text()
    assert rules() == RULES.read_text()
    assert json.loads(dashboard())["panels"]


@pytest.mark.parametrize("query", sorted(set(_queries())))
def test_each_query_names_what_an_agent_exports(query: str) -> None:
    """
    Metrics, and labels of those metrics.
    """
    exported = _labels()
    named = _METRIC.findall(query.replace("driftlog:", ""))
    known = set[str]()
    for name, matchers in named:
        assert name in exported, name
        known |= exported[name]
        assert {
            match.split("=")[0].strip(" ~!") for match in matchers.split(", ") if match
        } <= known
    grouped = {label for found in _GROUPED.findall(query) for label in found.split(", ") if label}

    assert not named or grouped <= known


def test_each_panel_has_a_title_of_its_own() -> None:
    """
    Of a failed test it says which.
    """
    titles = [panel.title for row in ROWS for panel in row.panels]

    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("alert", _ALERTS, ids=lambda alert: str(alert).partition("\n")[0])
def test_each_alert_says_what_to_do(alert: str) -> None:
    """
    It has a severity, a summary, and a section of a page; a test in which it fires, and another.
    """
    name = alert.partition("\n")[0]
    runbook = re.search(r"runbook: ((?:docs|observability)/\w+\.md)#([a-z-]+)\n", alert)

    assert re.search(r"severity: (critical|warning)\n", alert)
    assert re.search(r'summary: ".+"\n', alert)
    assert re.search(r'description: ".+"\n', alert)
    assert runbook is not None
    page: Path = REPOSITORY / runbook[1]
    assert runbook[2] in anchors(page)
    for what in ("fires", "does not fire"):
        assert f"- name: {name} {what}\n" in _TESTS
