"""One run: produce, kill the agent and the query at random, and compare the sink with the log.

Shell.
"""

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__

from tests.spark.chaos.query import TOPIC
from tests.support.driftlog_process import DriftlogProcess

PARTITIONS: Final = 4
RECORDS_A_SECOND: Final = 400
_AGENT_LIVES_S: Final = (8.0, 25.0)
_QUERY_LIVES_S: Final = (15.0, 50.0)
_END_S: Final = 240.0


@dataclass
class Report:
    """What a run did, and what is wrong."""

    acknowledged: int = 0
    rows: int = 0
    batches: int = 0
    agent_kills: int = 0
    query_kills: int = 0
    failures: list[str] = field(default_factory=list)


class Run:
    """Records say their number; each is produced once, and acknowledged or in doubt."""

    def __init__(self, folder: Path, *, seed: int, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._random = random.Random(seed)
        self._acknowledged: dict[tuple[int, int], str] = {}
        self._ended = threading.Event()
        self.report = Report()

    def run(self) -> Report:
        """Returns after *seconds*, and the time that the query takes to reach the end."""
        with DriftlogProcess(parent=self._folder) as agent:
            admin = AdminClient({"bootstrap.servers": agent.bootstrap})
            configs = {"segment.ms": "5000", "retention.ms": "-1"}
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, config=configs)])[TOPIC].result(30)
            threads = [
                threading.Thread(target=work, args=(agent,))
                for work in (self._produce, self._kill_agent, self._seal)
            ]
            for thread in threads:
                thread.start()
            try:
                self._kill_queries(agent)
            finally:
                self._ended.set()
                for thread in threads:
                    thread.join()
            if agent.exit_code is not None:
                agent.start()
            self._check(agent)
        return self.report

    def _produce(self, agent: DriftlogProcess) -> None:
        producer = Producer(
            {
                "bootstrap.servers": agent.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 20,
                "delivery.timeout.ms": 120_000,
            }
        )
        number = 0
        while not self._ended.wait(0.05):
            for _ in range(RECORDS_A_SECOND // 20):
                value = str(number)
                number += 1
                producer.produce(
                    TOPIC, value, partition=number % PARTITIONS, on_delivery=self._delivered
                )
            producer.poll(0)
        if producer.flush(120):
            self.report.failures.append("records are neither acknowledged nor refused")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            return  # It may be in the log, once.
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert value is not None
        self._acknowledged[partition, offset] = value.decode()

    def _kill_agent(self, agent: DriftlogProcess) -> None:
        while not self._ended.wait(self._random.uniform(*_AGENT_LIVES_S)):
            agent.kill()
            self.report.agent_kills += 1
            agent.start()

    def _seal(self, agent: DriftlogProcess) -> None:
        """Beside `segment.ms`: the tail is sealed at moments of its own."""
        while not self._ended.wait(self._random.uniform(1, 6)):
            try:
                agent.seal(TOPIC)
            except (AssertionError, OSError, subprocess.CalledProcessError):
                continue  # It was killed.

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
        found: Counter[tuple[int, int, str]] = Counter()
        for file in (self._folder / "sink").glob("*.json"):
            rows = json.loads(file.read_text())
            self.report.batches += bool(rows)
            found.update((partition, offset, value) for partition, offset, value in rows)
        self.report.acknowledged = len(self._acknowledged)
        self.report.rows = found.total()
        twice = [row for row, times in found.items() if times > 1]
        values = Counter(value for _, _, value in found)
        missing = [
            (*place, value)
            for place, value in self._acknowledged.items()
            if (*place, value) not in found
        ]
        if twice:
            self.report.failures.append(f"{len(twice)} rows twice, such as {twice[:3]}")
        if again := [value for value, times in values.items() if times > 1]:
            self.report.failures.append(f"{len(again)} records at two offsets, such as {again[:3]}")
        if missing:
            self.report.failures.append(f"{len(missing)} rows missing, such as {missing[:3]}")


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
