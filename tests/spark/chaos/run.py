"""One run: produce, kill the agent and the query at random, and compare the sink with the log.

    watched   gets more partitions            every record once
    keyed     is compacted                    the newest of each key, and none twice
    short     its records expire in seconds   those that had not expired before they were read

Shell.
"""

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from tests.spark.chaos.query import KEYED, SHORT, TOPICS, WATCHED
from tests.support.driftlog_process import DriftlogProcess

PARTITIONS: Final = 2
MOST_PARTITIONS: Final = 5
"""Of `WATCHED` in the end, of a run that is long enough."""
RECORDS_A_SECOND: Final = 400
KEYS: Final = 40
_CONFIGS: Final = {
    WATCHED: {"retention.ms": "-1"},
    KEYED: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"},
    SHORT: {"retention.ms": "8000"},
}
_AGENT: Final = ("log.cleaner.backoff.ms=1000", "log.retention.check.interval.ms=1000")
_AGENT_LIVES_S: Final = (8.0, 25.0)
_QUERY_LIVES_S: Final = (15.0, 50.0)
_END_S: Final = 240.0
_LOOK_S: Final = 0.5
_LATE_S: Final = 5.0
"""A log start is seen so late at most."""

_OFFSETS: Final[Any] = OffsetSpec  # its methods have no types

Place = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass
class Report:
    """What a run did, and what is wrong."""

    acknowledged: int = 0
    rows: int = 0
    batches: int = 0
    compacted: int = 0
    expired: int = 0
    """Records that were compacted, or had expired, before they were read."""
    partitions: int = PARTITIONS
    agent_kills: int = 0
    query_kills: int = 0
    failures: list[str] = field(default_factory=list)


class Run:
    """Records say their number; each is produced once, and acknowledged or in doubt."""

    def __init__(self, folder: Path, *, seed: int, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._random = random.Random(seed)
        self._values = random.Random(f"values {seed}")
        self._acknowledged: dict[Place, tuple[str | None, str | None]] = {}
        """Key and value."""
        self._starts: list[tuple[float, dict[int, int]]] = []
        """Of `SHORT`: when its log starts were seen, by partition."""
        self._ended = threading.Event()
        self._checked = threading.Event()
        self.report = Report()

    def run(self) -> Report:
        """Returns after *seconds*, and the time that the query takes to reach the end."""
        arguments = [part for config in _AGENT for part in ("--config", config)]
        with DriftlogProcess(parent=self._folder, arguments=arguments) as agent:
            admin = AdminClient({"bootstrap.servers": agent.bootstrap})
            for name, configs in _CONFIGS.items():
                configs = {"segment.ms": "5000", **configs}
                admin.create_topics([NewTopic(name, PARTITIONS, config=configs)])[name].result(30)
            threads = [
                threading.Thread(target=work, args=(agent,))
                for work in (self._produce, self._kill_agent, self._seal, self._extend)
            ]
            watch = threading.Thread(target=self._watch, args=(agent,))
            for thread in (*threads, watch):
                thread.start()
            try:
                try:
                    self._kill_queries(agent)
                finally:
                    self._ended.set()
                    for thread in threads:
                        thread.join()
                if agent.exit_code is not None:
                    agent.start()
                self._check(agent)
            finally:
                self._checked.set()
                watch.join()
        return self.report

    def _produce(self, agent: DriftlogProcess) -> None:
        producer = Producer(
            {
                "bootstrap.servers": agent.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 20,
                "delivery.timeout.ms": 120_000,
                "topic.metadata.refresh.interval.ms": 1_000,  # of new partitions
            }
        )
        number = 0
        while not self._ended.wait(0.05):
            for _ in range(RECORDS_A_SECOND // 20):
                topic = TOPICS[number % len(TOPICS)]
                key: str | None = None
                value: str | None = str(number)
                if topic == KEYED:
                    key = str(self._values.randrange(KEYS))
                    value = None if self._values.random() < 0.1 else value
                partitions = self.report.partitions if topic == WATCHED else PARTITIONS
                number += 1
                with contextlib.suppress(KafkaException):  # of a partition it has not heard of yet
                    producer.produce(
                        topic,
                        value,
                        key,
                        partition=self._values.randrange(partitions),
                        on_delivery=self._delivered,
                    )
            producer.poll(0)
        if producer.flush(120):
            self.report.failures.append("records are neither acknowledged nor refused")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            return  # It may be in the log, once.
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        key, value = message.key(), message.value()
        self._acknowledged[topic, partition, offset] = (
            None if key is None else bytes(key).decode(),
            None if value is None else bytes(value).decode(),
        )

    def _kill_agent(self, agent: DriftlogProcess) -> None:
        while not self._ended.wait(self._random.uniform(*_AGENT_LIVES_S)):
            agent.kill()
            self.report.agent_kills += 1
            agent.start()

    def _seal(self, agent: DriftlogProcess) -> None:
        """Beside `segment.ms`: the tail is sealed at moments of its own."""
        while not self._ended.wait(self._random.uniform(1, 6)):
            try:
                agent.seal(self._random.choice(TOPICS))
            except (AssertionError, OSError, subprocess.CalledProcessError):
                continue  # It was killed.

    def _extend(self, agent: DriftlogProcess) -> None:
        """New partitions of `WATCHED`, which are produced to at once."""
        admin = AdminClient({"bootstrap.servers": agent.bootstrap})
        while not self._ended.wait(self._seconds / (2 * MOST_PARTITIONS)):
            try:
                there = len(admin.list_topics(WATCHED, timeout=10).topics[WATCHED].partitions)
                if there < MOST_PARTITIONS:
                    there += 1
                    admin.create_partitions([NewPartitions(WATCHED, there)])[WATCHED].result(30)
            except KafkaException:
                continue  # The agent was killed; perhaps they are there.
            self.report.partitions = there

    def _watch(self, agent: DriftlogProcess) -> None:
        """Where the logs of `SHORT` start."""
        admin = AdminClient({"bootstrap.servers": agent.bootstrap})
        earliest = {TopicPartition(SHORT, p): _OFFSETS.earliest() for p in range(PARTITIONS)}
        while not self._checked.wait(_LOOK_S):
            try:
                found = admin.list_offsets(earliest, request_timeout=5)
                starts = {tp.partition: answer.result().offset for tp, answer in found.items()}
            except KafkaException:
                continue
            self._starts.append((time.time(), starts))

    def _query(self, agent: DriftlogProcess, *more: str) -> "subprocess.Popen[bytes]":
        location = str(agent.directory / "objects")
        command = [sys.executable, "-m", "tests.spark.chaos.query", location, agent.bootstrap]
        with (self._folder / "query.log").open("ab") as log:
            return subprocess.Popen([*command, str(self._folder), *more], stdout=log, stderr=log)

    def _kill_queries(self, agent: DriftlogProcess) -> None:
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            query = self._query(agent)
            life_s = self._random.uniform(*_QUERY_LIVES_S)
            try:
                query.wait(min(life_s, max(1.0, until - time.monotonic())))
                self.report.failures.append("the query ended by itself: see query.log")
                return
            except subprocess.TimeoutExpired:
                _end_with_children(query)
                self.report.query_kills += 1

    def _check(self, agent: DriftlogProcess) -> None:
        query = self._query(agent, "--to-the-end")
        try:
            code = query.wait(_END_S)
        except subprocess.TimeoutExpired:
            _end_with_children(query)
            code = -1
        if code:
            self.report.failures.append(f"the last query ended with {code}: see query.log")
        found: dict[Place, str | None] = {}
        written_s: dict[int, float] = {}
        twice: list[Place] = []
        for file in (self._folder / "sink").glob("*.json"):
            rows = json.loads(file.read_text())
            written_s[int(file.stem)] = file.stat().st_mtime
            self.report.batches += bool(rows)
            self.report.rows += len(rows)
            for topic, partition, offset, value in rows:
                twice += [(topic, partition, offset)] * ((topic, partition, offset) in found)
                found[topic, partition, offset] = value
        self.report.acknowledged = len(self._acknowledged)
        wrong = [
            (place, told, found[place])
            for place, (_, told) in self._acknowledged.items()
            if place in found and found[place] != told
        ]
        values = Counter((place[0], value) for place, value in found.items() if value is not None)
        again = [value for value, times in values.items() if times > 1]
        excused = self._excused(found, written_s)
        missing = [
            (place, told)
            for place, told in self._acknowledged.items()
            if place not in found and place not in excused
        ]
        for what, places in (
            ("rows twice", twice),
            ("rows with another value", wrong),
            ("records at two offsets", again),
            ("rows missing", missing),
        ):
            if places:
                self.report.failures.append(f"{len(places)} {what}, such as {places[:3]}")

    def _excused(self, found: dict[Place, str | None], written_s: dict[int, float]) -> set[Place]:
        """Records that are not in the sink for a reason: compacted, or expired, in time."""
        gone = {place for place in self._acknowledged if place not in found}
        newest: dict[tuple[int, str | None], int] = {}
        for (topic, partition, offset), (key, _) in self._acknowledged.items():
            if topic == KEYED:
                newest[partition, key] = max(offset, newest.get((partition, key), -1))
        compacted = {
            place
            for place in gone
            if place[0] == KEYED
            for key, value in (self._acknowledged[place],)
            if value is None or place[2] < newest[place[1], key]
        }
        ends = [_ends(self._folder / "checkpoint" / "offsets" / str(n)) for n in sorted(written_s)]
        expired = set()
        for place in gone:
            if place[0] != SHORT:
                continue
            number = next(n for n, end in enumerate(ends) if end.get(place[:2], 0) > place[2])
            latest_s = written_s[number] + _LATE_S
            seen = (starts for at_s, starts in self._starts if at_s <= latest_s)
            if any(starts[place[1]] > place[2] for starts in seen):
                expired.add(place)
        self.report.compacted, self.report.expired = len(compacted), len(expired)
        return compacted | expired


def _ends(file: Path) -> dict[tuple[str, int], int]:
    """Where a batch ends, by the query's checkpoint: its third line is the source's."""
    offsets = json.loads(file.read_text().splitlines()[2])
    return {
        (topic, int(partition)): offset
        for topic, partitions in offsets.items()
        if topic in TOPICS
        for partition, offset in partitions.items()
    }


def _end_with_children(query: "subprocess.Popen[bytes]") -> None:
    """SIGKILL for the driver, its JVM and its Python workers, as a machine that goes away."""
    children = [query.pid]
    for pid in children:
        listed = Path(f"/proc/{pid}/task/{pid}/children")
        if listed.exists():
            children += [int(child) for child in listed.read_text().split()]
    query.kill()
    for pid in children[1:]:
        subprocess.run(["kill", "-9", str(pid)], check=False, capture_output=True)
    query.wait()
