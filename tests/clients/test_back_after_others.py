"""Batches that only a killed agent's disk has are kept when another agent leads."""

import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.clients.command import said
from tests.clients.conftest import make_topic
from tests.support import etcd_server
from tests.support.driftlog_process import DriftlogProcess
from tests.support.fault_proxy import FaultProxy
from tests.support.s3_servers import S3Server

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("etcd_agents")]

PARTITIONS = 8
PROMISED = 150
"""Records to each partition: several batches."""


@pytest.fixture
def endpoints(tmp_path: Path) -> Iterator[str]:
    """Of one etcd member."""
    folder = tmp_path / "etcd"
    folder.mkdir()
    with etcd_server.start(etcd_server.newest_version(), folder, members=1) as cluster:
        yield ",".join(cluster.endpoints)


def until(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Look five times a second."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.2)


def leaders(agent: DriftlogProcess, topic: str) -> dict[int, int]:
    """Node id by partition, as *agent* says."""
    found = AdminClient({"bootstrap.servers": agent.bootstrap}).list_topics(topic, timeout=30)
    return {n: partition.leader for n, partition in found.topics[topic].partitions.items()}


def produce(agent: DriftlogProcess, topic: str, values: dict[int, list[str]], **how: Any) -> None:
    """To partitions; all of it is acknowledged when this returns."""
    failed: list[str] = []

    def told(error: confluent_kafka.KafkaError | None, _: Any) -> None:
        if error is not None:
            failed.append(str(error))

    settings = {"bootstrap.servers": agent.bootstrap, "batch.num.messages": 10, **how}
    producer = confluent_kafka.Producer(settings)
    for partition, its in values.items():
        for value in its:
            producer.produce(topic, value, partition=partition, on_delivery=told)
    assert 0 == producer.flush(60)
    assert [] == failed


def read(agent: DriftlogProcess, topic: str) -> dict[int, list[str]]:
    """Every partition, in order, to its end."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": agent.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
    values: dict[int, list[str]] = {n: [] for n in range(PARTITIONS)}
    ended: set[int] = set()
    try:
        while len(ended) < PARTITIONS:
            message = consumer.poll(30)
            assert message is not None, "nothing comes"
            partition, error = message.partition(), message.error()
            assert partition is not None
            if error is None:
                values[partition].append((message.value() or b"").decode())
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended.add(partition)
            else:
                assert error.retriable(), str(error)
    finally:
        consumer.close()
    return values


def test_what_a_killed_agent_promised_is_set_aside_and_replayed_once(
    endpoints: str, moto_s3: S3Server, tmp_path: Path
) -> None:
    """
    The bucket hangs for an agent, which acknowledges with acks=1 and is killed before any of it is
    committed; another leads what it led, and takes new records.  Back on its disk, it sets those
    records aside, says so with the command that produces them, and its old directory is gone.  The
    command produces each of them once, in order, through the other agent.
    """
    store = ("--etcd", endpoints, "--store", f"{moto_s3.location}/prefix")
    with FaultProxy(moto_s3.endpoint_url) as proxy:
        behind = {**moto_s3.environment, "AWS_ENDPOINT_URL": proxy.url}
        first = DriftlogProcess(tmp_path / "1", store, behind, command=("agent", "run"))
        second = DriftlogProcess(
            tmp_path / "2", store, moto_s3.environment, command=("agent", "run")
        )
        try:
            first.start()
            topic = make_topic(first, PARTITIONS)
            produce(first, topic, {n: [f"{n}"] for n in range(PARTITIONS)}, acks="all")
            proxy.set_mode("hang")
            promised = {n: [f"{n}.{i}" for i in range(PROMISED)] for n in range(PARTITIONS)}
            produce(first, topic, promised, acks=1)
            (mine,) = set(leaders(first, topic).values())
            first.kill()
            second.start()
            until(lambda: not {mine, -1} & set(leaders(second, topic).values()))
            produce(second, topic, {n: ["other"] for n in range(0, PARTITIONS, 2)}, acks="all")
            proxy.set_mode("pass")

            first.start()

            until(lambda: "leftovers_directory_removed" in first.log)
            assert 1 == len(list((first.directory / "buffer").iterdir()))
            (kept,) = (first.directory / "kept").iterdir()
            (line,) = [x for x in first.log.splitlines() if "records_set_aside" in x]
            assert f"records={PARTITIONS * PROMISED} " in line
            assert f"driftlog buffer replay {kept}" in line
            assert 1 == gauge(first)
            before = {n: [f"{n}", *["other"][: 1 - n % 2]] for n in range(PARTITIONS)}
            assert before == read(second, topic)

            said(second.bootstrap, "buffer", "replay", str(first.directory))

            assert 0 == gauge(first)
            found = read(second, topic)
            assert {n: [*values, *promised[n]] for n, values in before.items()} == found
            assert 0 == first.terminate()
            assert found == read(second, topic)
        finally:
            first.close()
            second.close()


def gauge(agent: DriftlogProcess) -> float:
    """How many directories of its disk are set aside, by its metrics."""
    with urllib.request.urlopen(f"{agent.http}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    (value,) = re.findall(r"^driftlog_buffer_directories_set_aside (\S+)$", text, re.MULTILINE)
    return float(value)
