"""Batches that only a killed agent's disk has are kept when another agent leads."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

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


def test_what_a_killed_agent_promised_is_in_the_log_once_when_it_is_back(
    endpoints: str, moto_s3: S3Server, tmp_path: Path
) -> None:
    """
    The bucket hangs for an agent, which acknowledges with acks=1 and is killed before any of it is
    committed; another leads what it led, and takes new records.  Back on its disk, with some of
    the partitions staying where they are, each of those records is in the log once, it says so,
    and its old directory is gone.
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
            (other,) = set(leaders(second, topic).values())
            produce(second, topic, {n: ["other"] for n in range(0, PARTITIONS, 2)}, acks="all")
            proxy.set_mode("pass")

            first.start()

            until(lambda: "leftovers_directory_removed" in first.log)
            assert 1 == len(list((first.directory / "buffer").iterdir()))
            assert not (first.directory / "kept").exists()
            lines = [x for x in first.log.splitlines() if "leftovers_appended_elsewhere" in x]
            said = Counter(x for line in lines for x in re.findall(rf"{topic}-\d+", line))
            assert {f"{topic}-{n}": 1 for n in range(PARTITIONS)} == said
            assert f"leader={other} " in " ".join(lines)
            found = read(second, topic)
            for n, values in found.items():
                assert [f"{n}", *["other"][: 1 - n % 2], *promised[n]] == values
            assert 0 == first.terminate()
            assert found == read(second, topic)
        finally:
            first.close()
            second.close()
