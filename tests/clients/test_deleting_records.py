"""Records deleted by an unmodified admin client, of an agent and of Apache Kafka: what consumers
find then, and what a killed agent still knows.

Shell.
"""

import json
import os
import signal
import time
import uuid
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    NewTopic,
    OffsetSpec,
)

from tests.clients.conftest import make_topic, seal
from tests.clients.dev_cluster.test_local_cluster import Cluster, until
from tests.support.driftlog_process import DriftlogProcess

pytestmark = [pytest.mark.timeout(120)]

RECORDS: Final = 20
PARTITIONS: Final = 12
"""So many that each of three agents leads some, however they are placed: five at most."""
_WAIT_S: Final = 30.0


@pytest.fixture
def admin(servers: str) -> AdminClient:
    """Of the agent, then of Apache Kafka."""
    return AdminClient({"bootstrap.servers": servers})


def _filled(admin: AdminClient, bootstrap: str, **configs: str) -> str:
    """A topic with one partition that holds `RECORDS` records."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    admin.create_topics([NewTopic(name, 1, 1, config=configs)])[name].result(_WAIT_S)
    _write(bootstrap, name)
    return name


def _write(bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, b"k", partition=0)
    assert 0 == producer.flush(_WAIT_S)


def _delete(admin: AdminClient, topic: str, offset: int) -> int:
    """The low watermark."""
    asked = TopicPartition(topic, 0, offset)
    (told,) = admin.delete_records([asked]).values()
    return int(told.result(_WAIT_S).low_watermark)


def _earliest(admin: AdminClient, topic: str) -> int:
    earliest: Any = OffsetSpec
    (told,) = admin.list_offsets({TopicPartition(topic, 0): earliest.earliest()}).values()
    return int(told.result(_WAIT_S).offset)


def _read(bootstrap: str, topic: str, start: int, reset: str = "error") -> list[int]:
    """Offsets from *start* to the end.

    Raises:
        KafkaException: what the consumer was told.
    """
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "auto.offset.reset": reset}
    )
    consumer.assign([TopicPartition(topic, 0, start)])
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=_WAIT_S)
    offsets: list[int] = []
    give_up = time.monotonic() + _WAIT_S
    try:
        while (not offsets or offsets[-1] < end - 1) and time.monotonic() < give_up:
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error():
                raise KafkaException(message.error())
            offsets.append(message.offset() or 0)
    finally:
        consumer.close()
    return offsets


def _code(told: Any) -> int:
    with pytest.raises(KafkaException) as refused:
        told.result(_WAIT_S)
    return int(refused.value.args[0].code())


def test_consumers_find_what_is_left(admin: AdminClient, servers: str) -> None:
    """
    Who begins at the earliest offset, or asks for it, begins behind what was deleted; who asks for
    what was deleted is told that it is out of range.
    """
    topic = _filled(admin, servers)

    assert 7 == _delete(admin, topic, 7)
    assert 7 == _delete(admin, topic, 3)

    assert 7 == _earliest(admin, topic)
    assert list(range(7, RECORDS)) == _read(servers, topic, confluent_kafka.OFFSET_BEGINNING)
    assert list(range(7, RECORDS)) == _read(servers, topic, 2, reset="earliest")
    with pytest.raises(KafkaException) as refused:
        _read(servers, topic, 6)
    assert KafkaError._AUTO_OFFSET_RESET == refused.value.args[0].code()
    assert RECORDS == _delete(admin, topic, confluent_kafka.OFFSET_END)
    assert RECORDS == _earliest(admin, topic)
    _write(servers, topic)
    assert list(range(RECORDS, 2 * RECORDS)) == _read(
        servers, topic, confluent_kafka.OFFSET_BEGINNING
    )


def test_what_cannot_be_deleted_is_refused(admin: AdminClient, servers: str) -> None:
    """
    Beyond the end, and of a compacted topic.
    """
    topic = _filled(admin, servers)
    compacted = _filled(admin, servers, **{"cleanup.policy": "compact"})

    def told(name: str, offset: int) -> int:
        asked = TopicPartition(name, 0, offset)
        (answer,) = admin.delete_records([asked]).values()
        return _code(answer)

    assert KafkaError.OFFSET_OUT_OF_RANGE == told(topic, RECORDS + 1)
    assert KafkaError.POLICY_VIOLATION == told(compacted, 1)
    assert 0 == _earliest(admin, topic)
    assert 0 == _earliest(admin, compacted)


def test_there_is_nothing_to_elect_and_nobody_has_credentials(
    admin: AdminClient, servers: str
) -> None:
    """
    Elections and credentials, as confluent-kafka asks for them.
    """
    topic = _filled(admin, servers)
    partition = TopicPartition(topic, 0)

    elected = admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, [partition]).result(
        _WAIT_S
    )
    assert [KafkaError.ELECTION_NOT_NEEDED] == [error.code() for error in elected.values()]
    everybody: Any = admin.describe_user_scram_credentials()
    assert {} == everybody.result(_WAIT_S)
    some: Any = admin.describe_user_scram_credentials(["nobody"])
    (nobody,) = some.values()
    assert KafkaError.RESOURCE_NOT_FOUND == _code(nobody)


@pytest.mark.parametrize("sealed", [False, True])
def test_what_was_deleted_stays_so_when_the_agent_is_killed(
    agent: DriftlogProcess, sealed: bool
) -> None:
    """
    Who is told that records are deleted does not see them again.
    """
    topic = make_topic(agent)
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    _write(agent.bootstrap, topic)
    if sealed:
        assert {0: RECORDS} == seal(agent, topic)
        _write(agent.bootstrap, topic)
    start = RECORDS - 3

    assert start == _delete(admin, topic, start)
    agent.kill()
    agent.start()

    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    assert start == _earliest(admin, topic)
    end = RECORDS * (2 if sealed else 1)
    assert list(range(start, end)) == _read(
        agent.bootstrap, topic, confluent_kafka.OFFSET_BEGINNING
    )


def test_what_was_deleted_stays_so_where_others_lead(tmp_path: Path) -> None:
    """
    Each leader deletes its own; an agent that stands still loses its partitions to others, who
    know where their logs start.
    """
    earliest: Any = OffsetSpec
    with Cluster(tmp_path / "cluster", 3).start() as cluster:
        first, _, _ = cluster.bootstrap.partition(",")
        admin = AdminClient({"bootstrap.servers": first})
        admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(_WAIT_S)
        producer = confluent_kafka.Producer({"bootstrap.servers": first})
        for partition in range(PARTITIONS):
            for number in range(RECORDS):
                producer.produce("t", b"%d" % number, partition=partition)
        assert 0 == producer.flush(_WAIT_S)
        starts = {partition: 1 + partition % RECORDS for partition in range(PARTITIONS)}

        told = admin.delete_records([TopicPartition("t", p, starts[p]) for p in starts])

        assert starts == {at.partition: f.result(_WAIT_S).low_watermark for at, f in told.items()}
        held = json.loads((tmp_path / "cluster/agent-2/node_id.json").read_text())["node_id"]
        assert held in _leaders(first).values()
        os.kill(cluster.pid("agent-2"), signal.SIGSTOP)
        try:
            until(
                lambda: not {held, -1} & set(_leaders(first).values()),
                "nobody takes over",
            )
            # One that was connected to all would ask the agent that stands still, too.
            admin = AdminClient({"bootstrap.servers": first})
            asked = {TopicPartition("t", p): earliest.earliest() for p in starts}
            found: dict[int, int] = {}

            def is_answered() -> bool:
                found.update(_offsets(admin, asked))
                return bool(found)

            until(is_answered, "a partition has no leader")
        finally:
            os.kill(cluster.pid("agent-2"), signal.SIGCONT)

    assert starts == found


def _offsets(admin: AdminClient, asked: dict[TopicPartition, Any]) -> dict[int, int]:
    """By partition; none while one of them has no leader, as when it moves: librdkafka says so."""
    told = admin.list_offsets(asked)
    try:
        return {at.partition: future.result(_WAIT_S).offset for at, future in told.items()}
    except KafkaException as error:
        if error.args[0].code() != KafkaError.LEADER_NOT_AVAILABLE:
            raise
    return {}


def _leaders(bootstrap: str) -> dict[int, int]:
    """As the agent says that is named there."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partitions = admin.list_topics("t", timeout=_WAIT_S).topics["t"].partitions
    return {number: partition.leader for number, partition in partitions.items()}
