"""An import that died becomes a topic, or one that lives loses its objects.

The importer's steps without Spark, beside a real agent that collects after a grace of some seconds.
"""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from driftlog_spark_reader.bucket.catalog import find_topic
from driftlog_spark_reader.bucket.local_files import LocalFiles
from driftlog_spark_reader.bulk_import.agent_imports import AgentImports, BegunImport, Renewal
from driftlog_spark_reader.bulk_import.object_writes import write_manifests
from driftlog_spark_reader.bulk_import.pieces import Piece
from driftlog_spark_reader.bulk_import.segment_task import LEADER_EPOCH, SegmentTask, segment_ref
from driftlog_spark_reader.common.errors import (
    DamagedTopicError,
    DeletedTopicError,
    ImportTopicError,
    ReadTopicError,
)
from driftlog_tiering.formats.manifest import SegmentRef
from tests.spark.bulk_import.test_segment_task import batch, row
from tests.support.driftlog_process import DriftlogProcess, driftlog_command
from tests.support.s3_servers import S3Server
from tests.support.sealed_topics import Message, SealedTopic

pytestmark = pytest.mark.timeout(300)

GRACE_MS = 3_000
RECORDS = 20
WAIT_S = 60.0


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriftlogProcess]:
    """An agent of a cluster with a short grace."""
    directory = tmp_path_factory.mktemp("agent") / "data"
    with DriftlogProcess(directory) as running:
        running.terminate()
        command = driftlog_command()
        assert command is not None
        line = [command, "cluster", "grace", "--dir", str(directory), "--set", str(GRACE_MS)]
        subprocess.run(line, check=True, timeout=60, capture_output=True)
        running.start()
        yield running


class Importer:
    """An importer that may stop after any step."""

    def __init__(self, agent: DriftlogProcess, topic: str, location: str | None = None) -> None:
        self.location = location or str(agent.directory / "objects")
        self.topic = topic
        self.agents = AgentImports(agent.bootstrap, None)
        self.begun: BegunImport
        self.refs: list[SegmentRef]

    def begin(self) -> None:
        self.begun = self.agents.begin(self.topic, 1, {"retention.ms": "-1"})

    def write(self) -> None:
        pieces = {0: Piece(0, 0, 0, RECORDS, 0)}
        task = SegmentTask(self.location, self.topic, self.begun.topic_id, 1, pieces)
        rows = [batch(row(0, n), row(0, n + 1)) for n in range(0, RECORDS, 2)]
        self.refs = [segment_ref(one) for answer in task(rows) for one in answer.to_pylist()]

    def write_manifests(self) -> None:
        write_manifests(
            self.location,
            self.topic,
            self.begun.topic_id,
            {0: self.refs},
            leader_epoch=LEADER_EPOCH,
            author=self.begun.author,
            grace=self.begun.grace,
        )

    def publish(self) -> None:
        self.agents.publish(self.topic, self.begun.topic_id, [RECORDS])

    @property
    def steps(self) -> tuple[Callable[[], None], ...]:
        """All of an import, in their order."""
        return self.begin, self.write, self.write_manifests, self.publish

    @property
    def folder(self) -> Path:
        return Path(self.location) / "topics" / self.topic / str(self.begun.topic_id)


def values(agent: DriftlogProcess, topic: str) -> list[bytes | None]:
    """All records of a topic."""
    consumer = Consumer({"bootstrap.servers": agent.bootstrap, "group.id": "none"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=WAIT_S)
    found: list[bytes | None] = []
    while len(found) < end:
        message = consumer.poll(WAIT_S)
        assert message is not None, "a record is missing"
        assert message.error() is None
        found.append(message.value())
    consumer.close()
    return found


EXPECTED = [None if n % 2 else b"value of %d" % n for n in range(RECORDS)]


def wait_for(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s, "too late"
        time.sleep(0.05)


@pytest.mark.parametrize("done", [1, 2, 3])
def test_an_importer_that_dies_leaves_no_topic_and_what_it_wrote_is_deleted(
    agent: DriftlogProcess, done: int
) -> None:
    """
    After each step.  A second import of the name works at once, and outlives the collection.
    """
    name = f"dead-{done}"
    dead = Importer(agent, name)
    for step in dead.steps[:done]:
        step()
    with pytest.raises(ReadTopicError):
        find_topic(LocalFiles(dead.location), name, None)
    second = Importer(agent, name)
    for step in second.steps:
        step()

    assert EXPECTED == values(agent, name)
    found = find_topic(LocalFiles(dead.location), name, None)
    assert second.begun.topic_id == found.topic_id
    wait_for(lambda: not any(path.is_file() for path in dead.folder.rglob("*")))
    with pytest.raises(ImportTopicError, match="there is no import"):
        dead.agents.renew(dead.begun.topic_id)
    assert EXPECTED == values(agent, name)


def test_an_import_that_takes_longer_than_grace_is_published_whole(
    agent: DriftlogProcess,
) -> None:
    """
    The collector runs many times meanwhile, and the agent restarts at another HTTP port.
    """
    slow = Importer(agent, "slow")
    slow.begin()
    with Renewal(slow.begun.grace, lambda: slow.agents.renew(slow.begun.topic_id)):
        slow.write()
        dead = Importer(agent, "measure")
        dead.begin()
        dead.write()
        agent.terminate()
        agent.start()
        # As long as it takes to collect another import twice.
        wait_for(lambda: not any(path.is_file() for path in dead.folder.rglob("*")))
        slow.write_manifests()
        slow.publish()

    assert EXPECTED == values(agent, "slow")


def test_an_import_into_s3_is_what_its_agent_serves(
    moto_s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Segments, manifests and the marks go through the same store as the agent's objects.
    """
    for name, value in moto_s3.environment.items():
        monkeypatch.setenv(name, value)
    location = f"{moto_s3.location}/imports"
    arguments = ("--store", location)
    with DriftlogProcess(arguments=arguments, environment=moto_s3.environment) as agent:
        importer = Importer(agent, "t", location)
        for step in importer.steps:
            step()

        assert EXPECTED == values(agent, "t")


def test_an_importer_that_gives_up_is_told_whether_its_topic_may_exist(
    agent: DriftlogProcess,
) -> None:
    """
    The answer to its publication was lost: it is no import any more, and was not deleted.
    """
    importer = Importer(agent, "done")
    for step in importer.steps:
        step()
    topic_id, agents = importer.begun.topic_id, importer.agents

    told = agents.abandon("done", topic_id, is_publication_sent=True)

    assert "may be published" in told
    assert "driftlog topics describe done" in told
    assert EXPECTED == values(agent, "done")
    importer = Importer(agent, "not-done")
    importer.begin()
    topic_id = importer.begun.topic_id
    assert not agents.abandon("not-done", topic_id, is_publication_sent=True)
    told = agents.abandon("not-done", topic_id, is_publication_sent=False)
    assert told.startswith("agents delete what it wrote a grace later")


def test_a_published_import_whose_file_is_lost_is_damaged_and_not_deleted(tmp_path: Path) -> None:
    """
    An agent has sealed records behind the imported ones.
    """
    topic = SealedTopic(str(tmp_path), "t").create()
    topic.seal(0, 0, [Message(1, value=b"imported")])
    (file,) = tmp_path.glob("topics/*/*/topic/*")
    file.rename(file.with_name("import.json"))
    with pytest.raises(DeletedTopicError):
        find_topic(LocalFiles(str(tmp_path)), "t", None)

    topic.seal(0, 1, [Message(2, value=b"produced")])

    with pytest.raises(DamagedTopicError, match="the topic's file is missing"):
        find_topic(LocalFiles(str(tmp_path)), "t", None)


def test_an_importer_without_an_agent_is_told_so() -> None:
    """
    With the argument that it lacks.
    """
    with pytest.raises(ImportTopicError, match="bootstrap_servers="):
        AgentImports("127.0.0.1:1", {"socket.timeout.ms": 1000})
