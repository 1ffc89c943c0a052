"""The units of an agent's machine are what systemd takes, confine the agent, and name what exists.

Shell.
"""

import re
import runpy
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.components import REPOSITORY
from tests.terraform.checkout import TERRAFORM
from tools import metrics_page

SYSTEMD: Final = REPOSITORY / "deploy" / "systemd"
ETCD: Final = TERRAFORM / "modules" / "metadata" / "files"
UNITS: Final = sorted(
    path
    for folder in (SYSTEMD, ETCD)
    for path in folder.iterdir()
    if path.suffix in {".service", ".timer"}
)
_MOST_EXPOSED: Final = 25
"""Tenths of systemd's exposure level: below it a service counts as well confined."""


def _analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze: apt-get install systemd")
    command = ["systemd-analyze", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def metrics_script() -> Mapping[str, Any]:
    """The names of driftlog-metrics."""
    return runpy.run_path(str(SYSTEMD / "driftlog-metrics"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_each_unit(unit: Path, tmp_path: Path) -> None:
    """
    Nothing is misspelt, and nothing is ignored.  (The commands are on the machines only.)
    """
    for each in UNITS:
        text = each.read_text()
        (tmp_path / each.name).write_text(
            re.sub(r"(?m)^ExecStart=.*$", "ExecStart=/bin/true", text)
        )

    done = _analyze("verify", "--man=no", str(tmp_path / unit.name))

    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize("unit", [SYSTEMD / "driftlog.service", ETCD / "driftlog-etcd.service"])
def test_a_service_that_listens_is_confined(unit: Path) -> None:
    """
    It writes to its directory and nowhere else, has no capability, and gains none.
    """
    confined = f"--threshold={_MOST_EXPOSED}"

    done = _analyze("security", "--offline=true", "--no-pager", confined, str(unit))

    assert 0 == done.returncode, done.stdout[-2000:]


def test_an_agent_has_time_to_drain() -> None:
    """
    systemd waits longer than an agent takes from SIGTERM to its own end, which is 28 s.
    """
    unit = (SYSTEMD / "driftlog.service").read_text()
    settings = dict(re.findall(r"(?m)^(\w+)=(.+)$", unit))

    assert "SIGTERM" == settings["KillSignal"]
    assert 28 < int(settings["TimeoutStopSec"]) < 90
    assert "/var/lib/driftlog" == settings["ReadWritePaths"]


def test_cloudwatch_gets_metrics_that_agents_export(metrics_script: Mapping[str, Any]) -> None:
    """
    A metric that is renamed would leave its alarm without data.
    """
    exported = {metric.name for metric in metrics_page.described()}

    assert set() == set(metrics_script["METRICS"]) - exported


def test_each_alarm_has_a_metric(metrics_script: Mapping[str, Any]) -> None:
    """
    Alarms on agents stand on what driftlog-metrics sends.
    """
    alarms = (TERRAFORM / "modules" / "observability" / "main.tf").read_text()
    of_agents = re.findall(r"(?m)^    (\w+) = \{$", alarms.partition("alarms = {")[2])
    sent = {name for name, _ in metrics_script["METRICS"].values()}

    assert set() == set(of_agents) - sent
    assert {"Agents"} == sent - set(of_agents)


def test_cloudwatch_gets_the_largest_of_a_metric_with_labels(
    metrics_script: Mapping[str, Any],
) -> None:
    """
    And from an agent that does not answer, that it does not.
    """
    text = '# HELP driftlog_agents x\ndriftlog_agents 3.0\ndriftlog_overloaded{a="b"} 1.0\n'
    text += 'driftlog_overloaded{a="c"} 0.0\ndriftlog_groups{protocol="x"} 7.0\n'

    data = metrics_script["datums"](metrics_script["exposed"](text), "mine")
    silent = metrics_script["datums"]({}, "mine")

    values = {datum["MetricName"]: datum["Value"] for datum in data}
    assert {"Agents": 3.0, "Overloaded": 1.0, "AgentAnswers": 1.0} == values
    assert [("AgentAnswers", 0.0)] == [(d["MetricName"], d["Value"]) for d in silent]
