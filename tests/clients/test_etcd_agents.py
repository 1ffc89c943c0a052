"""Agents that keep their metadata in etcd: one serves, the next stands by and takes over."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.clients.conftest import make_topic
from tests.support import etcd_server
from tests.support.driftlog_process import DriftlogProcess, driftlog_command
from tests.support.etcd_server import EtcdCluster
from tests.support.process_usage import free_port

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("etcd_agents")]

_TTL_S = 6.0


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    """One member, of the newest version."""
    folder = tmp_path / "etcd"
    folder.mkdir()
    with etcd_server.start(etcd_server.newest_version(), folder, members=1) as cluster:
        yield cluster


class Agents:
    """Processes on one etcd and one folder of objects."""

    def __init__(self, etcd: EtcdCluster, folder: Path, count: int) -> None:
        self._stack = ExitStack()
        self.all = [
            DriftlogProcess(
                folder / f"agent-{n}",
                ("--etcd", ",".join(etcd.endpoints), "--store", str(folder / "objects")),
                command=("agent", "run"),
            )
            for n in range(count)
        ]
        for agent in self.all:
            self._stack.callback(agent.close)

    def __enter__(self) -> list[DriftlogProcess]:
        return self.all

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class Told:
    """A producer of confluent-kafka, and what it was told of each value."""

    def __init__(self, agents: list[DriftlogProcess], **settings: Any) -> None:
        servers = ",".join(agent.bootstrap for agent in agents)
        self._producer = confluent_kafka.Producer({"bootstrap.servers": servers, **settings})
        self.offsets: dict[bytes, int] = {}
        self.errors: list[str] = []

    def send(self, topic: str, value: bytes) -> None:
        self._producer.produce(topic, value, partition=0, on_delivery=self._delivered)
        self._producer.poll(0)

    def flush(self) -> None:
        assert 0 == self._producer.flush(90)

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.offsets[message.value()] = message.offset()


def read(agent: DriftlogProcess, topic: str) -> list[bytes]:
    """The whole partition 0, in order."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": agent.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, f"only {len(values)} records"
            error = message.error()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                return values
            assert message.offset() == len(values)
            values.append(message.value() or b"")
    finally:
        consumer.close()


def test_the_agent_that_stands_by_takes_over_what_the_killed_one_had_acknowledged(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    """
    A topic that is younger than the second agent; an idempotent producer goes on through the kill
    and is told of no error; each record is there once, at the offset that it was told.
    """
    with Agents(etcd, tmp_path, 2) as (first, second):
        first.start()
        second.launch()
        deadline = time.monotonic() + 30
        while "standing_by" not in second.log:
            assert time.monotonic() < deadline, second.log
            time.sleep(0.1)
        topic = make_topic(first)
        told = Told([first, second], acks="all", **{"enable.idempotence": True})
        for n in range(500):
            told.send(topic, b"%d" % n)
            if n == 250:
                told.flush()
                first.kill()
                killed = time.monotonic()
        assert not second.is_ready()
        second.wait_until_ready()
        took_s = time.monotonic() - killed
        told.flush()

        assert [] == told.errors
        values = read(second, topic)
        assert [b"%d" % n for n in range(500)] == values
        assert {value: n for n, value in enumerate(values)} == told.offsets
        assert took_s < _TTL_S + 10
        # Back on its own disk, the first one stands by for the second.
        first.launch()
        assert 0 == second.terminate()
        first.wait_until_ready()
        assert values == read(first, topic)


def test_an_etcd_that_is_away_for_a_while_costs_no_record(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    """
    Longer than a session lives: nothing is acknowledged meanwhile, everything afterwards.
    """
    with Agents(etcd, tmp_path, 1) as (agent,):
        agent.start()
        topic = make_topic(agent)
        told = Told([agent], acks="all", **{"enable.idempotence": True})
        for n in range(300):
            told.send(topic, b"%d" % n)
            if n == 100:
                told.flush()
                etcd.members[0].kill()
        time.sleep(_TTL_S + 4)
        acknowledged = len(told.offsets)
        etcd.members[0].start()
        told.flush()

        assert 101 == acknowledged
        assert [] == told.errors
        assert [b"%d" % n for n in range(300)] == read(agent, topic)
        assert "session_lost" in agent.log


def test_an_etcd_that_does_not_answer_is_named_at_the_start(tmp_path: Path) -> None:
    """
    Before anything is on the disk, and with what to look at; and so are options that make no sense.
    """
    command = driftlog_command()
    assert command is not None
    line = [command, "agent", "run", "--dir", str(tmp_path / "a"), "--listener", "127.0.0.1:0"]
    line += ["--http-listener", "127.0.0.1:0"]

    def refused(*arguments: str) -> str:
        ended = subprocess.run(
            [*line, *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert ended.returncode != 0
        assert "Traceback" not in ended.stderr
        return ended.stderr

    dead = f"127.0.0.1:{free_port()}"
    said = refused("--etcd", f"http://{dead}")
    assert "etcd does not answer" in said
    assert dead in said
    assert "--etcd" in refused("--etcd", "nonsense")
    assert "--etcd" in refused("--etcd-user", "root")
    assert not (tmp_path / "a").exists()
