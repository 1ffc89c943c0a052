"""Kafka Streams: a table whose changelog is compacted; a restart without local state restores it.

Shell.
"""

import random
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import confluent_kafka

from tests.long_topics.programs import JVM, JavaProgram, wait_for
from tests.support.components import java, kafka_application_jars

_SOURCE: Final = Path(__file__).with_name("StreamsTable.java")
_INPUT: Final = "numbers"
_APPLICATION: Final = "table"
_KEYS: Final = 500
_TOMBSTONES: Final = 0.1
_RATE: Final = 400
"""Records a second."""

_TICK_S: Final = 0.05
_ANSWER_S: Final = 120.0


class _Writer(threading.Thread):
    """Writes random values and deletions; knows the table that they make."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._dice = random.Random(seed)
        self._ended = threading.Event()
        self._turn = threading.Lock()
        self._failed: list[str] = []
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 300_000,
                "log_level": 2,
            }
        )
        self.table: dict[str, str] = {}
        self.written = 0

    def run(self) -> None:
        while not self._ended.wait(_TICK_S):
            with self._turn:
                for _ in range(round(_RATE * _TICK_S)):
                    self._write()
                self._producer.poll(0)

    def _write(self) -> None:
        key = f"k{self._dice.randrange(_KEYS)}"
        self.written += 1
        if self._dice.random() < _TOMBSTONES:
            value = "-"
            self.table.pop(key, None)
        else:
            self.table[key] = value = f"{self.written}"
        self._producer.produce(_INPUT, value, key, on_delivery=self._told)

    def _told(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failed.append(str(error))

    def pause(self) -> dict[str, str]:
        """Write nothing until `go_on`; the table when all is acknowledged.

        Raises:
            RuntimeError: a record failed.
        """
        self._turn.acquire()
        left = self._producer.flush(_ANSWER_S)
        if left or self._failed:
            raise RuntimeError(f"{left} records are not acknowledged; failed: {self._failed[:3]}")
        return dict(self.table)

    def go_on(self) -> None:
        self._turn.release()

    def end(self) -> None:
        self._ended.set()
        self.join()


class StreamsTable:
    """See the module.

    Args:
        configs: of its changelog's topic.
    """

    name = "Kafka Streams"
    topics: tuple[str, ...] = (f"{_APPLICATION}-latest-changelog",)
    inputs: tuple[str, ...] = (_INPUT,)

    def __init__(self, bootstrap: str, folder: Path, configs: Mapping[str, str], seed: int) -> None:
        self._state = folder / "state"
        jars = ":".join(map(str, kafka_application_jars()))
        command = [
            *(str(java()), *JVM, "-cp", jars, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
            *(str(_SOURCE), bootstrap, _APPLICATION, _INPUT, str(self._state)),
            *(f"{name}={value}" for name, value in configs.items()),
        ]
        self._program = JavaProgram(command, folder, asked=True)
        self._writer = _Writer(bootstrap, seed)
        self.expected: dict[str, str] = {}

    def start(self) -> None:
        self._program.start()
        self._writer.start()
        self._wait_until_running()

    def work(self) -> None:
        """Its writer works by itself."""

    def restart(self) -> None:
        """Kill it and remove its state: the table comes back from the changelog.

        Raises:
            TimeoutError: the table is not what was written, before or after.
        """
        table = self._writer.pause()
        try:
            self._wait_for_table(table, "before the restart")
            self._program.kill()
            self._restore(table)
        finally:
            self._writer.go_on()

    def finish(self) -> None:
        """As `restart`, after a stop; then stop for good."""
        self.expected = self._writer.pause()
        self._writer.go_on()
        self._writer.end()
        self.expected = dict(self._writer.table)
        self._wait_for_table(self.expected, "at the end")
        self._program.stop()
        self._restore(self.expected)
        self._program.stop()

    def close(self) -> None:
        self._program.kill()

    def check_bucket(
        self, rows: Mapping[str, Mapping[bytes, tuple[bytes | None, ...]]]
    ) -> list[str]:
        """Failures of the changelog as it stands in the bucket."""
        (topic,) = self.topics
        newest = {key: values[-1] for key, values in rows[topic].items()}
        found = {key.decode(): value.decode() for key, value in newest.items() if value is not None}
        return [] if found == self.expected else [_difference(topic, found, self.expected)]

    @property
    def done(self) -> str:
        return f"{self._writer.written} records of {_KEYS} keys"

    def _restore(self, table: dict[str, str]) -> None:
        shutil.rmtree(self._state, ignore_errors=True)
        self._program.start()
        self._wait_until_running()
        self._wait_for_table(table, "restored from the changelog")

    def _wait_until_running(self) -> None:
        wait_for("Kafka Streams runs", lambda: self._table() is not None, _ANSWER_S, self._program)

    def _wait_for_table(self, table: dict[str, str], when: str) -> None:
        give_up = time.monotonic() + _ANSWER_S
        while (found := self._table()) != table:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{when}: {_difference('the table', found or {}, table)}")
            time.sleep(0.2)

    def _table(self) -> dict[str, str] | None:
        *lines, last = self._program.ask("table", (".", "!"))
        return dict(line.split(" ", 1) for line in lines) if last == "." else None


def _difference(what: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    wrong = [key for key in {*found, *wanted} if found.get(key) != wanted.get(key)]
    some = {key: (found.get(key), wanted.get(key)) for key in wrong[:5]}
    return f"{what} has {len(found)} keys, {len(wanted)} are expected; {len(wrong)} differ: {some}"
