"""Kafka Connect, distributed: connectors, their offsets and states, in three compacted topics.

    lines.txt ──FileStreamSource──▶ topic `lines` ──FileStreamSink──▶ copy.txt

A temporary connector is made and deleted again and again, and the sink's config changes.

Shell.
"""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import confluent_kafka

from tests.long_topics.programs import JVM, JavaProgram, repeated, rest, wait_for
from tests.support.components import java, kafka_application_jars
from tests.support.process_usage import free_port

_TOPICS: Final = {
    "config": "connect-configs",
    "offset": "connect-offsets",
    "status": "connect-status",
}
_LINES: Final = "lines"
_START_S: Final = 120.0
_TICK_S: Final = 0.05
_STRINGS: Final = "org.apache.kafka.connect.storage.StringConverter"
_FILE: Final = "org.apache.kafka.connect.file.FileStream"


class _Lines(threading.Thread):
    """Appends numbered lines to a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path = path
        self._ended = threading.Event()
        self.written = 0
        path.touch()

    def run(self) -> None:
        while not self._ended.wait(_TICK_S):
            self.append()

    def append(self) -> None:
        with self._path.open("a") as file:
            file.write(f"line {self.written}\n")
        self.written += 1

    def end(self) -> None:
        self._ended.set()
        self.join()


class ConnectWorker:
    """See the module.

    Args:
        configs: of its three topics.
    """

    name = "Kafka Connect"
    topics: tuple[str, ...] = tuple(_TOPICS.values())
    inputs: tuple[str, ...] = (_LINES,)

    def __init__(self, bootstrap: str, folder: Path, configs: Mapping[str, str]) -> None:
        folder.mkdir()
        self._bootstrap = bootstrap
        self._source, self._copy = folder / "lines.txt", folder / "copy.txt"
        self._lines = _Lines(self._source)
        port = free_port()
        self._url = f"http://127.0.0.1:{port}/connectors"
        properties = {
            "bootstrap.servers": bootstrap,
            "group.id": "connect",
            "listeners": f"http://127.0.0.1:{port}",
            "key.converter": _STRINGS,
            "value.converter": _STRINGS,
            "offset.flush.interval.ms": "1000",
            # A task that is given up on a busy machine goes on beside the next one, and stores its
            # older offsets last.
            "task.shutdown.graceful.timeout.ms": "30000",
            "scheduled.rebalance.max.delay.ms": "0",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            # Of the sink: the consumer of a killed worker holds its partition for so long.
            "consumer.session.timeout.ms": "6000",
            "consumer.heartbeat.interval.ms": "1000",
            "offset.storage.partitions": "3",
            "status.storage.partitions": "3",
        }
        for kind, topic in _TOPICS.items():
            properties[f"{kind}.storage.topic"] = topic
            properties[f"{kind}.storage.replication.factor"] = "1"
            for name, value in configs.items():
                properties[f"{kind}.storage.{name}"] = value
        file = folder / "worker.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        jars = ":".join(map(str, kafka_application_jars()))
        command = [
            *(str(java()), *JVM, "-cp", jars, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
            *("org.apache.kafka.connect.cli.ConnectDistributed", str(file)),
        ]
        self._program = JavaProgram(command, folder)
        self._configs: dict[str, dict[str, str]] = {}
        """Of each connector that must be there."""
        self._rounds = 0

    def start(self) -> None:
        self._program.start()
        self._wait_until_up()
        source = {"connector.class": f"{_FILE}SourceConnector", "file": str(self._source)}
        self._put("source", source | {"topic": _LINES, "tasks.max": "1"})
        sink = {"connector.class": f"{_FILE}SinkConnector", "file": str(self._copy)}
        self._put("sink", sink | {"topics": _LINES, "tasks.max": "1"})
        self._lines.start()
        self._wait_until_running()

    def work(self) -> None:
        """Change a config, make a connector, delete one."""
        self._rounds += 1
        sink = self._configs["sink"] | {"consumer.override.max.poll.records": f"{self._rounds}"}
        if self._rounds % 5 == 0:
            self._put("sink", sink)
        name = f"temporary-{self._rounds % 3}"
        if name in self._configs:
            repeated("DELETE", f"{self._url}/{name}")
            del self._configs[name]
        else:
            other = self._source.with_name("other.txt")
            other.touch()
            source = {"connector.class": f"{_FILE}SourceConnector", "file": str(other)}
            self._put(name, source | {"topic": _LINES, "tasks.max": "1"})

    def restart(self) -> None:
        """Kill it: connectors, configs and offsets come back from the topics.

        Raises:
            TimeoutError: they do not.
        """
        position = self._position()
        self._program.kill()
        self._program.start()
        self._check(position)

    def finish(self) -> None:
        """As `restart`, after a stop: nothing is read twice; then stop for good.

        Raises:
            TimeoutError: the state did not come back, or a line did not arrive.
            RuntimeError: lines were read twice after a stop that had stored all offsets.
        """
        self._lines.end()
        size = self._source.stat().st_size
        wait_for("all lines are read", lambda: self._position() == size, _START_S, self._program)
        self._wait_for_lines()
        self._program.stop()
        before = self._end_offset()
        self._program.start()
        self._check(size)
        self._lines.append()
        self._wait_for_lines()
        size = self._source.stat().st_size
        wait_for("the offset is stored", lambda: self._position() == size, _START_S, self._program)
        if self._end_offset() != before + 1:
            raise RuntimeError(f"lines read twice: {before} and 1 became {self._end_offset()}")
        self._program.stop()

    def close(self) -> None:
        self._program.kill()

    def check_bucket(
        self, rows: Mapping[str, Mapping[bytes, tuple[bytes | None, ...]]]
    ) -> list[str]:
        """Failures of the configs and offsets as they stand in the bucket."""
        found = {
            key.decode().removeprefix("connector-"): json.loads(values[-1])["properties"]
            for key, values in rows[_TOPICS["config"]].items()
            if key.startswith(b"connector-") and values[-1] is not None
        }
        for name, config in found.items():
            config.pop("name", name)
        wanted = {name: dict(config) for name, config in self._configs.items()}
        failures = [] if found == wanted else [f"connectors are {found}, not {wanted}"]
        size = self._source.stat().st_size
        positions = {
            json.loads(values[-1]).get("position")
            for key, values in rows[_TOPICS["offset"]].items()
            if b"lines.txt" in key and values[-1] is not None
        }
        if positions != {size}:
            failures.append(f"the source's stored offset is {positions}, not {size}")
        return failures

    @property
    def done(self) -> str:
        return f"{self._lines.written} lines, {self._rounds} changes of connectors"

    def _put(self, name: str, config: dict[str, str]) -> None:
        repeated("PUT", f"{self._url}/{name}/config", config)
        self._configs[name] = config

    def _check(self, position: int) -> None:
        """
        Raises:
            TimeoutError: connectors, their configs or the source's offset are not what they were.
        """
        self._wait_until_up()
        found: Any = None

        def same() -> bool:
            nonlocal found
            names = repeated("GET", self._url)
            found = {name: self._config(name) for name in names}
            return bool(found == self._configs)

        try:
            wait_for("the connectors", same, _START_S, self._program)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {found}, not {self._configs}") from error
        wait_for(
            f"the source goes on at {position}",
            lambda: self._position() >= position,
            _START_S,
            self._program,
        )
        self._wait_until_running()

    def _config(self, name: str) -> dict[str, str] | None:
        config = rest("GET", f"{self._url}/{name}/config")
        return config and {key: value for key, value in config.items() if key != "name"}

    def _position(self) -> int:
        """Where the source goes on, by the topic of offsets; -1: it has none."""
        said = repeated("GET", f"{self._url}/source/offsets")
        positions = [one["offset"]["position"] for one in (said or {}).get("offsets", ())]
        return int(positions[0]) if positions else -1

    def _wait_until_up(self) -> None:
        def is_up() -> bool:
            try:
                return rest("GET", self._url, timeout_s=5) is not None
            except OSError:
                return False

        wait_for("Kafka Connect answers", is_up, _START_S, self._program)

    def _wait_until_running(self) -> None:
        def is_running() -> bool:
            try:
                said = [rest("GET", f"{self._url}/{name}/status") for name in self._configs]
            except OSError:
                return False
            states = [
                part["state"] for one in said if one for part in (one["connector"], *one["tasks"])
            ]
            return states == ["RUNNING"] * 2 * len(self._configs)

        wait_for("all connectors run", is_running, _START_S, self._program)

    def _wait_for_lines(self) -> None:
        wanted = {f"line {number}" for number in range(self._lines.written)}
        wait_for(
            "all lines arrive",
            lambda: set(self._copy.read_text().splitlines()) == wanted,
            _START_S,
            self._program,
        )

    def _end_offset(self) -> int:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "unused", "log_level": 2}
        )
        try:
            partition = confluent_kafka.TopicPartition(_LINES, 0)
            return int(consumer.get_watermark_offsets(partition, timeout=30)[1])
        finally:
            consumer.close()
