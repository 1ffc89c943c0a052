"""An agent that alone cannot reach the bucket: it says so, others take over, it comes back."""

import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.clients.conftest import make_topic
from tests.support import etcd_server
from tests.support.driftlog_process import DriftlogProcess
from tests.support.etcd_server import EtcdCluster
from tests.support.fault_proxy import FaultProxy
from tests.support.s3_servers import S3Server

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("etcd_agents")]

PARTITIONS = 12


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    """One member, of the newest version."""
    folder = tmp_path / "etcd"
    folder.mkdir()
    with etcd_server.start(etcd_server.newest_version(), folder, members=1) as cluster:
        yield cluster


class Load:
    """An idempotent producer, otherwise as it comes, on all partitions all the time."""

    def __init__(self, servers: str, topic: str) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True}
        )
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = 0
        self.acknowledged: Counter[bytes] = Counter()
        self.errors: list[str] = []

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> int:
        """Stop sending; how many were given no answer in a minute."""
        self._stop.set()
        self._thread.join()
        return int(self._producer.flush(60))

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            value = b"%d" % self.sent
            partition = self.sent % PARTITIONS
            self._producer.produce(
                self._topic, value, partition=partition, on_delivery=self._delivered
            )
            self.sent += 1
            self._producer.poll(0)

    def _delivered(self, error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            self.acknowledged[message.value() or b""] += 1
        else:
            self.errors.append(str(error))


def leaders(agent: DriftlogProcess, topic: str) -> Counter[int]:
    """How many partitions each node leads, as *agent* has it."""
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    partitions = admin.list_topics(topic, timeout=20).topics[topic].partitions
    return Counter(partition.leader for partition in partitions.values())


def read(agent: DriftlogProcess, topic: str) -> Counter[bytes]:
    """All partitions, whole."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": agent.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
    values: Counter[bytes] = Counter()
    ends = 0
    while ends < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None
        error = message.error()
        if error is None:
            values[message.value() or b""] += 1
        else:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
            ends += 1
    consumer.close()
    return values


def readyz(agent: DriftlogProcess) -> str:
    try:
        with urllib.request.urlopen(f"{agent.http}/readyz", timeout=5) as answer:
            return str(answer.read(), "utf-8")
    except urllib.error.HTTPError as error:
        return error.read().decode()


def eventually(what: Callable[[], bool], seconds: float) -> float:
    """Wait until it is so; how long that took."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() < began + seconds
        time.sleep(0.2)
    return time.monotonic() - began


def test_an_agent_that_is_cut_off_from_the_bucket_steps_down_and_comes_back(
    etcd: EtcdCluster, tmp_path: Path, moto_s3: S3Server
) -> None:
    """
    Half a minute after the cut the other one leads everything, and what waited is written there;
    a producer's user sees no error, and each record is in the log once.
    """
    with FaultProxy(moto_s3.endpoint_url) as proxy:

        def agent(number: int, endpoint: str) -> DriftlogProcess:
            return DriftlogProcess(
                tmp_path / f"agent-{number}",
                ("--etcd", etcd.endpoints[0], "--store", moto_s3.location),
                environment={**moto_s3.environment, "AWS_ENDPOINT_URL": endpoint},
                command=("agent", "run"),
            )

        with agent(0, proxy.url) as cut, agent(1, moto_s3.endpoint_url) as well:
            topic = make_topic(well, PARTITIONS)
            eventually(lambda: len(leaders(well, topic)) == 2, 20)
            shared = leaders(well, topic)
            with Load(f"{cut.bootstrap},{well.bootstrap}", topic) as load:
                eventually(lambda: len(load.acknowledged) > 50, 30)
                proxy.set_mode("refuse")
                failed = eventually(lambda: "agent_stepped_down" in cut.log, 60)
                moved = eventually(lambda: len(leaders(well, topic)) == 1, 20)
                (left,) = leaders(well, topic)
                said = readyz(cut)
                time.sleep(max(0.0, 40 - failed - moved))
                early = "agent_resumed" in cut.log
                proxy.set_mode("pass")
                eventually(lambda: "agent_resumed" in cut.log, 60)
                eventually(lambda: leaders(well, topic) == shared, 60)
                eventually(lambda: readyz(cut) == "ok\n", 20)
                unanswered = load.end()
            values = read(well, topic)

    assert 2 == len(shared)
    assert 29 <= failed <= 60  # what is tried first may be a moment older than the cut
    assert not early
    assert said.startswith("unfit")
    assert left in shared
    assert ([], 0) == (load.errors, unanswered)
    assert load.sent == len(load.acknowledged)
    assert values == Counter({b"%d" % n: 1 for n in range(load.sent)})
