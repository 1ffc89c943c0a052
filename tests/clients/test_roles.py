"""Two real agents, one that serves and one that only seals: who does what, as others see it.

Broken: an agent for upkeep would do none, or clients would be sent to it; or upkeep would end with
it.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.error import HTTPError

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    NewTopic,
)

from tests.clients.conftest import metrics, seal
from tests.support import etcd_server
from tests.support.driftlog_process import DriftlogProcess
from tests.support.etcd_server import EtcdCluster
from tests.support.live_objects import live_keys, stored_keys

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("etcd_agents")]

_WAIT_S: Final = 60.0
_GRACE_MS: Final = 5_000
_KEYS: Final = 20
_REWRITES: Final = ("driftlog_compactions_total", "driftlog_merges_total")


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    """One member, of the newest version."""
    folder = tmp_path / "etcd"
    folder.mkdir()
    with etcd_server.start(etcd_server.newest_version(), folder, members=1) as cluster:
        yield cluster


def _agent(etcd: EtcdCluster, folder: Path, roles: str) -> DriftlogProcess:
    arguments = ["--etcd", ",".join(etcd.endpoints), "--store", str(folder / "objects")]
    arguments += ["--new-cluster-grace-ms", str(_GRACE_MS), "--roles", roles]
    for config in ("log.cleaner.backoff.ms=100", "driftlog.max.topic.seals.per.minute=100000"):
        arguments += ["--config", config]
    return DriftlogProcess(folder / roles, arguments, command=("agent", "run"))


def _topics(agent: DriftlogProcess) -> None:
    """One that is compacted, and one whose small segments are merged."""
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    new = [
        NewTopic("compacted", 2, 3, config=compacted),
        NewTopic("small", 1, 3),
    ]
    for made in admin.create_topics(new).values():
        made.result(_WAIT_S)


def _write_until(agent: DriftlogProcess, holds: Callable[[], bool]) -> None:
    """Write and seal values of few keys, a little all the time; *agent* leads them."""
    producer = Producer({"bootstrap.servers": agent.bootstrap, "linger.ms": 1, "log_level": 2})
    end, number = time.monotonic() + _WAIT_S, 0
    while not holds():
        assert time.monotonic() < end, "never"
        for _ in range(20):
            for topic in ("compacted", "small"):
                producer.produce(topic, b"%d" % number, b"k%d" % (number % _KEYS))
            number += 1
        assert 0 == producer.flush(30)
        for topic in ("compacted", "small"):
            _seal(agent, topic)


def _seal(agent: DriftlogProcess, topic: str) -> None:
    """Seal the topic, unless the agent is between two sessions, or slow."""
    try:
        seal(agent, topic)
    except HTTPError as error:
        if error.code != 503:
            raise


def _wait(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + _WAIT_S
    while not holds():
        assert time.monotonic() < end, "never"
        time.sleep(0.2)


def _done(agent: DriftlogProcess) -> list[float]:
    """Compactions and merges of an agent."""
    found = metrics(agent)
    return [found[name] for name in _REWRITES]


def test_an_agent_that_only_seals_does_the_upkeep_and_the_leader_goes_on_without_it(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    """
    Clients see one broker.  What replaced segments were is collected; when that agent is killed,
    the leader compacts, merges and collects, and it is relieved when it is back.
    """
    with _agent(etcd, tmp_path, "serve") as serve, _agent(etcd, tmp_path, "seal") as other:
        _topics(other)  # any agent carries out admin requests
        told = [
            AdminClient({"bootstrap.servers": a.bootstrap}).list_topics() for a in (serve, other)
        ]
        assert [1, 1] == [len(each.brokers) for each in told]
        assert told[0].brokers.keys() == told[1].brokers.keys()
        assert {told[0].controller_id} == told[1].brokers.keys()
        partition = told[1].topics["compacted"].partitions[0]
        assert (told[0].controller_id, [told[0].controller_id]) == (
            partition.leader,
            partition.replicas,
        )
        assert [3, 0] == [metrics(agent)["driftlog_partitions"] for agent in (serve, other)]

        _write_until(serve, lambda: min(_done(other)) >= 1)
        objects = tmp_path / "objects"
        _wait(lambda: stored_keys(objects) == live_keys(objects))
        assert [0, 0] == _done(serve)
        sealed = [metrics(agent)["driftlog_sealed_bytes_total"] for agent in (serve, other)]
        assert sealed[0] == 0 < sealed[1], "the leader wrote segments"
        assert "partition_compacted" in other.log
        assert "partition_compacted" not in serve.log

        other.kill()
        _write_until(serve, lambda: min(_done(serve)) >= 1)
        _wait(lambda: stored_keys(objects) == live_keys(objects))

        other.start()
        _wait(lambda: 1 == metrics(other)["driftlog_sessions_total"])
        before = _done(serve)
        _write_until(serve, lambda: min(_done(other)) >= 1)
        assert before == _done(serve)
        assert 0 == other.terminate() == serve.terminate()
        assert "partition_offline" not in serve.log
