"""One agent for the tests of a file, and topics on it.

Shell.
"""

import json
import os
import urllib.request
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__

from tests.clients.tool_comparison import Pair
from tests.support.driftlog_process import DriftlogProcess
from tests.support.kafka_peer import KafkaPeer, kafka_jars


@pytest.fixture(scope="module")
def agent() -> Iterator[DriftlogProcess]:
    """A real `driftlog dev`, killed at the end of the file if need be.

    It says whatever a test provokes, however often in a second.
    """
    lines = ("--config", "driftlog.log.lines.per.second=10000")
    with DriftlogProcess(arguments=lines) as process:
        yield process


@pytest.fixture(scope="module")
def kafka_bootstrap() -> Iterator[str]:
    """An Apache Kafka; DRIFTLOG_TEST_KAFKA: the address of one that runs already."""
    if given := os.environ.get("DRIFTLOG_TEST_KAFKA"):
        yield given
        return
    with KafkaPeer() as peer:
        yield peer.bootstrap


_KAFKA = pytest.param(
    "kafka", marks=pytest.mark.skipif(kafka_jars() is None, reason="Kafka's jars are missing")
)


@pytest.fixture(params=["driftlog", _KAFKA])
def servers(request: pytest.FixtureRequest) -> str:
    """The bootstrap address of an agent, then of an Apache Kafka."""
    if request.param == "driftlog":
        agent: DriftlogProcess = request.getfixturevalue("agent")
        return agent.bootstrap
    address: str = request.getfixturevalue("kafka_bootstrap")
    return address


@pytest.fixture
def topic(agent: DriftlogProcess) -> str:
    """A new topic with one partition."""
    return make_topic(agent)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Apache Kafka and driftlog for Kafka's tools; tests leave no topic behind."""
    with Pair(tmp_path_factory.mktemp("tools")) as both:
        yield both


def make_topic(agent: DriftlogProcess, partitions: int = 1, **configs: str) -> str:
    """A topic that nobody else uses; `_` in the names of *configs* stands for a dot."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    make_topics(agent, {name: partitions}, **configs)
    return name


def make_topics(agent: DriftlogProcess, topics: dict[str, int], **configs: str) -> None:
    """Create *topics* with so many partitions each."""
    admin = AdminClient({"bootstrap.servers": agent.bootstrap, "log_level": 2})
    dotted = {key.replace("_", "."): value for key, value in configs.items()}
    new = [NewTopic(name, count, config=dotted) for name, count in topics.items()]
    for future in admin.create_topics(new, operation_timeout=30, request_timeout=60).values():
        future.result(60)


def seal(agent: DriftlogProcess, topic: str) -> dict[int, int]:
    """As `driftlog segments seal`, without a process for each; the sealed end by partition.

    Raises:
        HTTPError: it was refused.
    """
    url, headers = f"{agent.http}/topics/{topic}/seal", {"X-Driftlog": "test"}
    request = urllib.request.Request(url, headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        body = json.load(answer)
    return {int(partition): end for partition, end in body["sealed_end"].items()}


def metrics(agent: DriftlogProcess) -> dict[str, float]:
    """What `/metrics` says, by name and labels."""
    with urllib.request.urlopen(f"{agent.http}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}
