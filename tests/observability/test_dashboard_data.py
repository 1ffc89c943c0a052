"""A dashboard with an empty panel, or alerts that a real Prometheus does not take, fails here.

A real Prometheus scrapes a real agent on a real etcd while clients produce, consume and commit, and
while segments are sealed, merged and compacted.
Shell.
"""

import math
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest

from tests.clients.conftest import make_topic, seal
from tests.support import etcd_server
from tests.support.driftlog_process import DriftlogProcess
from tests.support.prometheus_server import PrometheusServer, promtool
from tools.dashboard import RULES
from tools.dashboard_panels import ROWS

pytestmark = [pytest.mark.timeout(240)]

_FOLDER: Final = RULES.parent
_FOUND_S: Final = 120.0

_CONFIG: Final = """\
global:
  scrape_interval: 1s
  evaluation_interval: 1s
rule_files: [{rules}, {alerts}]
scrape_configs:
  - job_name: driftlog
    static_configs:
      - targets: [{target}]
"""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[DriftlogProcess]:
    """An agent on etcd that compacts, merges and collects soon."""
    promtool()
    folder = tmp_path / "etcd"
    folder.mkdir()
    arguments = ["--dev", "--new-cluster-grace-ms", "5000", "--store", str(tmp_path / "objects")]
    for config in ("log.cleaner.backoff.ms=100", "driftlog.max.topic.seals.per.minute=100000"):
        arguments += ["--config", config]
    with etcd_server.start(etcd_server.newest_version(), folder) as etcd:
        arguments += ["--etcd", ",".join(etcd.endpoints)]
        with DriftlogProcess(tmp_path / "agent", arguments, command=("agent", "run")) as process:
            yield process


def test_every_panel_has_data(agent: DriftlogProcess, tmp_path: Path) -> None:
    """
    Each query of each panel finds series, and numbers in them.
    """
    config = tmp_path / "prometheus.yml"
    rules = tmp_path / "rules.yml"
    rules.write_text(RULES.read_text().replace("[5m]", "[10s]"))  # a rate needs no five minutes
    alerts = shutil.copy(_FOLDER / "alerts.yml", tmp_path)
    target = agent.http.removeprefix("http://")
    config.write_text(_CONFIG.format(target=target, rules=rules, alerts=alerts))
    topics = [make_topic(agent), make_topic(agent, cleanup_policy="compact")]
    empty = {
        (panel.title, query) for row in ROWS for panel in row.panels for query, _ in panel.queries
    }
    with PrometheusServer(config, tmp_path) as prometheus, _Load(agent, topics) as load:
        deadline = time.monotonic() + _FOUND_S
        while empty and time.monotonic() < deadline:
            load.step()
            empty = {each for each in empty if not _has_data(prometheus, each[1])}
        firing = {
            labels["alertname"] for labels, _ in prometheus.query('ALERTS{alertstate="firing"}')
        }

    assert set() == empty
    assert set() == firing


def _has_data(prometheus: PrometheusServer, query: str) -> bool:
    asked = query.replace("$agent", ".*").replace("$__rate_interval", "10s")
    return any(math.isfinite(value) for _, value in prometheus.query(asked))


class _Load:
    """A producer, and a consumer that commits; each step produces, reads and seals."""

    def __init__(self, agent: DriftlogProcess, topics: list[str]) -> None:
        self._agent = agent
        self._topics = topics
        self._producer = confluent_kafka.Producer({"bootstrap.servers": agent.bootstrap})
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": agent.bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )

    def __enter__(self) -> "_Load":
        self._consumer.subscribe(self._topics)
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def step(self) -> None:
        """One second of work, or somewhat more."""
        for topic in self._topics:
            for number in range(50):
                self._producer.produce(topic, b"value", b"key %d" % (number % 5))
        self._producer.flush(30)
        if self._consumer.consume(100, 1.0):
            self._consumer.commit(asynchronous=False)
        for topic in self._topics:
            seal(self._agent, topic)


@pytest.mark.parametrize(
    ("command", "file"),
    [
        (("check", "config"), "prometheus.yml"),
        (("check", "rules"), "rules.yml"),
        (("check", "rules"), "alerts.yml"),
        (("test", "rules"), "alerts_test.yml"),
    ],
)
def test_promtool_takes_the_files(command: tuple[str, ...], file: str) -> None:
    """
    Syntax, and each alert on series on which it fires and on others.
    """
    ended = subprocess.run(
        [promtool(), *command, file],
        cwd=_FOLDER,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert 0 == ended.returncode, ended.stdout + ended.stderr
