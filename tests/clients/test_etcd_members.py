"""A member of etcd that freezes, under an agent that serves: a pause, not a session."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from tests.clients.conftest import make_topic, metrics
from tests.support import etcd_server
from tests.support.driftlog_process import DriftlogProcess
from tests.support.etcd_server import EtcdCluster

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("etcd-three")]

SESSION_S = 10
"""Longer than two elections take: where votes are split (1 to 6 % of them), there is another."""

FROZEN_S = 12.0
"""Longer than a session lives without a keep-alive."""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    """Three members, of the newest version."""
    folder = tmp_path / "etcd"
    folder.mkdir()
    # etcd's own times: who does not freeze leads on, however busy the machine.
    times = ("--heartbeat-interval", "100", "--election-timeout", "1000")
    with etcd_server.start(
        etcd_server.newest_version(), folder, members=3, arguments=times
    ) as cluster:
        yield cluster


def test_each_member_may_freeze_and_no_session_is_lost(etcd: EtcdCluster, tmp_path: Path) -> None:
    """
    Whichever the agent, its keep-alives and its watches use: commits go on within seconds.
    """
    agent = DriftlogProcess(
        tmp_path / "agent",
        (
            *("--etcd", ",".join(etcd.endpoints), "--store", str(tmp_path / "objects")),
            *("--session-timeout-ms", str(SESSION_S * 1000)),
        ),
        command=("agent", "run"),
    )
    acknowledged: list[float] = []
    errors: list[str] = []

    def delivered(error: object, _: confluent_kafka.Message) -> None:
        if error is None:
            acknowledged.append(time.monotonic())
        else:
            errors.append(str(error))

    with agent:
        topic = make_topic(agent)
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": agent.bootstrap, "enable.idempotence": True}
        )

        def produce(seconds: float) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                producer.produce(topic, b"x", on_delivery=delivered)
                producer.poll(0.05)

        produce(2)
        to_freeze = list(etcd.members)
        while to_freeze:
            # Their leader last, and for good: one that wakes up after a lease's time revokes it as
            # if it led still (seen with etcd 3.6.16).
            leader = etcd.leader()
            member = next((member for member in to_freeze if member is not leader), leader)
            member.freeze()
            if member is not leader and leader is not etcd.leader(
                [other for other in etcd.members if other is not member]
            ):
                member.thaw()  # it has become the leader meanwhile
                etcd.wait_until_healthy()
                continue
            to_freeze.remove(member)
            produce(FROZEN_S)
            if to_freeze:
                member.thaw()
                etcd.wait_until_healthy()
                produce(1)
        left = producer.flush(30)
        sessions = metrics(agent)["driftlog_sessions_total"]
        log = agent.log
    gaps = [after - before for before, after in itertools.pairwise(acknowledged)]

    assert ([], 0) == (errors, left)
    assert sessions == 1
    assert "session_lost" not in log
    assert max(gaps) < SESSION_S - 1
