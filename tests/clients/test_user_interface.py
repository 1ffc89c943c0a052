"""kaskade, a user interface for Kafka, shows of driftlog what it shows of Apache Kafka.

kaskade, a terminal's: its keys are pressed, and what its tables show of Apache Kafka and of
driftlog is the same, but for what is named here with its reason.  kafka-ui and AKHQ, a browser's:
the calls that their admin clients make (kafbat's ReactiveAdminClient, AKHQ's AbstractKafkaWrapper)
are made, and records read in their manner, and all is answered the same.
Shell.
"""

import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__

from tests.clients.kafka_tools import Said
from tests.clients.peers import run_java
from tests.clients.tool_comparison import Difference, Pair, different, step
from tests.support import etcd_server
from tests.support.components import kaskade_python
from tests.support.driftlog_process import DriftlogProcess
from tests.support.kafka_peer import kafka_jars

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("kafka_tools"),
]

TOPIC: Final = "orders"
PARTITIONS: Final = 3
AGENTS: Final = 3
RECORDS: Final = 12
TOMBSTONE: Final = 5
COMMITTED: Final = 3
"""Of each partition, by a group that lives on: of 4 records."""
GROUPS: Final = ("ui-classic", "ui-consumer", "ui-left")
LEFT: Final = {0: 4, 1: 1}
"""What a group had committed that nobody is in any more."""

_CALLS: Final = Path(__file__).with_name("JavaInterfaces.java")
_SCREENS: Final = Path(__file__).with_name("kaskade_screens.py")
_SCREENS_S: Final = 120.0

CONFIGS_OF_SEGMENTS: Final = {
    # Parquet files of 128 MiB as received, sealed after an hour, so that Spark sees what is new.
    "segment.bytes": ("1073741824", "134217728"),
    "segment.ms": ("604800000", "3600000"),
}
"""Configs that have other defaults here: Kafka's, ours."""


class Member(threading.Thread):
    """A consumer that reads all, commits `COMMITTED`, and stays."""

    def __init__(self, bootstrap: str, group_id: str, protocol: str) -> None:
        super().__init__(daemon=True)
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group_id,
                "group.protocol": protocol,
                "client.id": f"{group_id}-client",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 2,
            }
        )
        self.settled = threading.Event()
        self._stopping = threading.Event()

    def run(self) -> None:
        self._consumer.subscribe([TOPIC])
        left = RECORDS
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            assert message.error() is None, message.error()
            left -= 1
            if left == 0:
                offsets = [TopicPartition(TOPIC, n, COMMITTED) for n in range(PARTITIONS)]
                self._consumer.commit(offsets=offsets, asynchronous=False)
                self.settled.set()
        self._consumer.close()

    def stop(self) -> None:
        """Leave the group."""
        self._stopping.set()
        self.join(30)


def fill(bootstrap: str, now_ms: int, replicas: int) -> None:
    """The topic, its records, and a group that was left."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    new = NewTopic(TOPIC, PARTITIONS, replicas, config={"retention.ms": "86400000"})
    admin.create_topics([new])[TOPIC].result(60)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "log_level": 2})
    for n in range(RECORDS):
        producer.produce(
            TOPIC,
            None if n == TOMBSTONE else b"value %d" % n,
            b"key %d" % n,
            n % PARTITIONS,
            timestamp=now_ms + n,
            headers=[("source", b"test"), ("null", None)],
        )
    assert producer.flush(60) == 0
    left = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "ui-left"})
    offsets = [TopicPartition(TOPIC, partition, offset) for partition, offset in LEFT.items()]
    left.commit(offsets=offsets, asynchronous=False)
    left.close()


@contextmanager
def filled(bootstrap: str, now_ms: int, replicas: int = 1) -> Iterator[None]:
    """The above, and members of a group of each protocol; nothing of it stays."""
    fill(bootstrap, now_ms, replicas)
    members = [
        Member(bootstrap, "ui-classic", "classic"),
        Member(bootstrap, "ui-consumer", "consumer"),
    ]
    try:
        for member in members:
            member.start()
        for member in members:
            assert member.settled.wait(60), "a member does not read"
        yield
    finally:
        for member in members:
            member.stop()
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
        admin.delete_topics([TOPIC])[TOPIC].result(60)
        for group in admin.delete_consumer_groups([*GROUPS]).values():
            group.result(60)


@pytest.fixture(scope="module")
def now_ms() -> int:
    """The timestamp of the first record; one of long ago would be deleted."""
    return int(time.time() * 1_000)


@pytest.fixture(scope="module")
def filled_pair(pair: Pair, now_ms: int) -> Iterator[Pair]:
    """Both, with the same in them."""
    with filled(pair.kafka.bootstrap, now_ms), filled(pair.driftlog.bootstrap, now_ms):
        yield pair


@pytest.fixture(scope="module")
def three_agents(tmp_path_factory: pytest.TempPathFactory, now_ms: int) -> Iterator[str]:
    """The bootstrap address of three agents on one etcd, with the same in them."""
    folder = tmp_path_factory.mktemp("interface")
    (folder / "etcd").mkdir()
    with ExitStack() as stack:
        etcd = stack.enter_context(
            etcd_server.start(etcd_server.newest_version(), folder / "etcd", members=1)
        )
        options = ["--etcd", ",".join(etcd.endpoints), "--store", str(folder / "objects"), "--dev"]
        agents = []
        for number in range(AGENTS):
            agents.append(DriftlogProcess(folder / f"{number}", options, command=("agent", "run")))
            stack.callback(agents[-1].close)
            agents[-1].launch()
        for agent in agents:
            agent.wait_until_ready()
        bootstrap = ",".join(agent.bootstrap for agent in agents)
        stack.enter_context(filled(bootstrap, now_ms, AGENTS))
        yield bootstrap


# ── kaskade ──


def screens(bootstrap: str, what: str, more: str) -> Any:
    """What kaskade shows, without what differs between any two clusters."""
    done = subprocess.run(
        [str(kaskade_python()), str(_SCREENS), what, bootstrap, TOPIC, more],
        capture_output=True,
        check=False,
        timeout=_SCREENS_S,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    said = re.sub(r"127\.0\.0\.1:\d+/\d+", "<coordinator>", done.stdout.decode())
    said = re.sub(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "-<uuid>", said)
    return json.loads(re.sub(r'"[\w+/-]{22}"', '"<uuid>"', said))


def shown(bootstrap: str) -> Any:
    """All of it."""
    return {
        "admin": screens(bootstrap, "admin", "made"),
        "records": screens(bootstrap, "records", str(RECORDS)),
    }


def expected(replicas: Sequence[int], now_ms: int) -> Any:
    """What must be shown where each partition of the topic is on *replicas*; without configs."""
    n, all_of_them = str(len(replicas)), str(list(replicas))
    groups = [["ui-classic", "range"], ["ui-consumer", "uniform"]]
    host = ["/127.0.0.1", "[0, 1, 2]"]
    return {
        "admin": {
            "topics": [[TOPIC, "3", n, n, "3", "2", "≈12", "≈9"]],
            "cells": {
                "topic-partitions": "3",
                "topic-replicas": n,
                "topic-isrs": n,
                "topic-groups": "3",
                "topic-members": "2",
                "topic-records": "≈12",
                "topic-lag": "≈9",
            },
            "tables": {
                "partitions-table": [
                    [str(p), "<leader>", "0", "4", "4", all_of_them, all_of_them] for p in range(3)
                ],
                "groups-table": [
                    *(
                        [group, "<coordinator>", "stable", assignor, "3", "1", "3"]
                        for group, assignor in groups
                    ),
                    ["ui-left", "<coordinator>", "empty", "", "2", "0", "3"],
                ],
                "group-offsets-table": [
                    *([group, str(p), "3", "4", "1"] for group, _ in groups for p in range(3)),
                    ["ui-left", "0", "4", "4", "0"],
                    ["ui-left", "1", "1", "4", "3"],
                ],
                "group-members-table": [
                    ["ui-classic", "ui-classic-client", "ui-classic-client-<uuid>", *host],
                    ["ui-consumer", "ui-consumer-client", "<uuid>", *host],
                ],
            },
            "created": [["made", "1", "1", "1", "0", "0", "≈0", "≈0"]],
            "extended": [["made", "3", "1", "1", "0", "0", "≈0", "≈0"]],
            "notices": [
                "Topic Created: Created topic 'made'",
                "Topic Updated: Updated topic 'made'",
                "Topic Deleted: Deleted topic 'made'",
            ],
        },
        "records": {
            "records": [
                row_of_record(n, now_ms) for p in range(3) for n in range(p, RECORDS, PARTITIONS)
            ],
            "cells": {
                "record-total-size": "0.03 KB",
                "record-partition": "0",
                "record-offset": "0",
                "record-timestamp": row_of_record(0, now_ms)[3],
            },
            "headers": [["0", "source"], ["1", "null"]],
            "notices": [],
        },
    }


def row_of_record(n: int, now_ms: int) -> list[str]:
    """As kaskade prints it."""
    value = "null" if n == TOMBSTONE else f"value {n}"
    size = "0.02 KB" if n == TOMBSTONE else "0.03 KB"
    at = datetime.fromtimestamp((now_ms + n) / 1_000, UTC).astimezone()
    timestamp = at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    return [f"key {n}", value, size, timestamp, str(n % PARTITIONS), str(n // PARTITIONS), "2"]


def without_configs(seen: Any) -> dict[str, str]:
    """Take out the configs, and how replicas are placed; the configs."""
    tables = seen["admin"]["tables"]
    for row in tables["partitions-table"]:
        assert row[1] in row[5], "the leader is not in sync"
        row[1], *row[5:] = ("<leader>", *(str(sorted(json.loads(ids))) for ids in row[5:]))
    return dict(tables.pop("configurations-table"))


@pytest.mark.skipif(kafka_jars() is None, reason="Java or Kafka's jars are missing")
def test_kaskade_shows_what_it_shows_of_kafka(filled_pair: Pair, now_ms: int) -> None:
    """
    Topics, partitions, configs, records, groups of both protocols, their members and their lag;
    and a topic is made, extended and deleted with its forms.
    """
    kaskade_python()
    both = [filled_pair.kafka.bootstrap, filled_pair.driftlog.bootstrap]
    with ThreadPoolExecutor(2) as threads:
        kafka, driftlog = threads.map(shown, both)
    theirs, ours = without_configs(kafka), without_configs(driftlog)
    differ = {name: (theirs.get(name), ours.get(name)) for name in theirs.keys() | ours.keys()}

    assert CONFIGS_OF_SEGMENTS == {n: (k, d) for n, (k, d) in differ.items() if k != d}
    assert ours["retention.ms"] == "86400000"
    assert kafka == driftlog
    assert expected([1], now_ms) == driftlog


def test_kaskade_shows_three_agents(three_agents: str, now_ms: int) -> None:
    """
    Whoever leads a partition and whoever coordinates a group, all figures are there.
    """
    seen = shown(three_agents)
    without_configs(seen)

    assert expected([1, 2, 3], now_ms) == seen


# ── kafbat's kafka-ui and AKHQ, whose jars no registry has: their calls ──

DIFFERENCES: Final = (
    Difference(
        "directory",
        "the bucket has no size: a total and what is left of it are unknown",
        "^directory\tnull\ttrue\ttrue$",
        "^directory\tnull\tfalse\tfalse$",
    ),
    Difference(
        "the repair",
        "what both refuse is refused with the option that an agent takes at its start",
        "^(SET of a broker num\\.partitions\tInvalidRequestException\t.*: \\[num\\.partitions\\])$",
        "^(SET of a broker num\\.partitions\tInvalidRequestException\t.*: \\[num\\.partitions\\])"
        "\\. Agents take them at their start: --config num\\.partitions=\\d+$",
    ),
    Difference(
        "protocol",
        "interfaces read from it what a cluster can do; Kafka 4 has dropped it, and they guess 1.0",
        "^broker config\tinter\\.broker\\.protocol\\.version\tnull$",
        "^broker config\tinter\\.broker\\.protocol\\.version\t4\\.3-IV0$",
    ),
    Difference("segment.bytes", "Parquet files of 128 MiB as received", "1073741824", "134217728"),
    Difference(
        "segment.ms",
        "which are sealed after an hour, so that Spark sees what is new",
        "^config\tsegment\\.ms\t604800000",
        "^config\tsegment\\.ms\t3600000",
    ),
    Difference(
        "min.insync.replicas",
        "Kafka's feature eligible.leader.replicas sets it; here nobody does",
        "min\\.insync\\.replicas\t1\tDYNAMIC_DEFAULT_BROKER_CONFIG\tINT\tfalse\tfalse\tfalse",
        "min\\.insync\\.replicas\t1\tDEFAULT_CONFIG\tINT\tfalse\tfalse\ttrue",
    ),
)


@pytest.mark.skipif(kafka_jars() is None, reason="Java or Kafka's jars are missing")
def test_calls_of_web_interfaces_are_answered_as_kafka_does(filled_pair: Pair) -> None:
    """
    What kafka-ui and AKHQ ask through the Java admin client, and what their buttons do.
    """
    both = [filled_pair.kafka.bootstrap, filled_pair.driftlog.bootstrap]
    with ThreadPoolExecutor(2) as threads:
        kafka, driftlog = threads.map(answers, both)

    calls = step("kafka-ui and AKHQ", *DIFFERENCES, unordered=True)
    found = different(calls, kafka, driftlog)
    assert not found, found
    assert "offsets\tui-left\torders-1\tOffsetAndMetadata{offset=1" in driftlog.out


def answers(bootstrap: str) -> Said:
    """What is answered."""
    return Said(0, run_java(str(_CALLS), bootstrap, TOPIC, "made-by-calls", "ui-reset"), "")
