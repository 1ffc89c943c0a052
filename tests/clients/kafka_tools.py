"""Kafka's command-line tools, run in one JVM: a start of Java for each would take minutes.

Shell.
"""

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.support.kafka_peer import kafka_jars

_SOURCES: Final = [
    Path(__file__).with_name(f"{name}.java") for name in ("KafkaTools", "UserInterface")
]
_JVM: Final = (
    "-Xmx768m",
    "-XX:TieredStopAtLevel=1",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",  # Hooks that a tool leaves to the JVM itself.
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)

MAIN: Final = {
    "client-compatibility-test": "org.apache.kafka.tools.ClientCompatibilityTest",
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "user-interface": "UserInterface",
}
"""The class behind each script of Kafka's ``bin``, by the script's name; the last one is ours."""


@dataclass(frozen=True, slots=True)
class Said:
    """How a tool ended, and what it printed."""

    status: int
    out: str
    err: str


class KafkaTools:
    """The JVM; runs of several threads go on side by side."""

    def __init__(self) -> None:
        jars = kafka_jars()
        assert jars is not None, "Java or Kafka's jars are missing"
        self._classes = tempfile.TemporaryDirectory(prefix="kafka-tools-")
        # The compiler is part of the java that runs single source files too.
        compiler = ["java", "--module", "jdk.compiler/com.sun.tools.javac.Main"]
        path = os.pathsep.join(str(jar) for jar in sorted(jars.glob("*.jar")))
        options = ["-cp", path, "-d", self._classes.name]
        subprocess.run([*compiler, *options, *map(str, _SOURCES)], check=True, timeout=120)
        where = ["-cp", f"{self._classes.name}{os.pathsep}{jars}/*"]
        self._process: subprocess.Popen[str] = subprocess.Popen(
            ["java", *_JVM, *where, "KafkaTools"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._lock = threading.Lock()
        self._runs: dict[int, Future[Said]] = {}
        self._peeks: dict[int, Future[Said]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._classes.cleanup()

    def run(
        self, tool: str, arguments: Sequence[str], stdin: str = "", timeout_s: float = 60
    ) -> Said:
        """Run it to its end.

        Raises:
            TimeoutError: it goes on; what it has said is in the message.
        """
        running = self.start(tool, arguments, stdin)
        return running.wait(timeout_s)

    def start(self, tool: str, arguments: Sequence[str], stdin: str = "") -> "Running":
        """Run it beside what else runs."""
        with self._lock:
            number = len(self._runs)
            self._runs[number] = Future()
        self._ask(id=number, main=MAIN[tool], args=list(arguments), stdin=stdin)
        return Running(self, number, self._runs[number])

    def _ask(self, **fields: Any) -> None:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(fields) + "\n")
            self._process.stdin.flush()

    def peek(self, number: int) -> Said:
        """What run *number* has printed so far."""
        future: Future[Said] = Future()
        with self._lock:
            self._peeks[number] = future
        self._ask(peek=number)
        return future.result(10)

    def stop(self, number: int) -> None:
        """As SIGTERM does: the tool's shutdown hooks run."""
        self._ask(stop=number)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            if "peeked" in answer:
                said = Said(-1, answer["out"], answer["err"])
                self._peeks.pop(answer["peeked"]).set_result(said)
            else:
                said = Said(answer["status"], answer["out"], answer["err"])
                self._runs[answer["id"]].set_result(said)


@dataclass(frozen=True, slots=True)
class Running:
    """A tool that runs."""

    _tools: KafkaTools
    _number: int
    _ended: Future[Said]

    def said(self) -> Said:
        """What it has printed so far."""
        return self._tools.peek(self._number)

    def stop(self, timeout_s: float = 30) -> Said:
        """End it as SIGTERM does, and what it said."""
        self._tools.stop(self._number)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = 60) -> Said:
        """Return when it has ended.

        Raises:
            TimeoutError: it goes on; what it has said is in the message.
        """
        try:
            return self._ended.result(timeout_s)
        except TimeoutError as error:
            raise TimeoutError(f"it goes on, and has said: {self.said()}") from error
