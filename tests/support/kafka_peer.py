"""Apache Kafka as a peer: one KRaft node from its Maven jars, in a directory of its own.

The jars come from `mvn dependency:copy-dependencies` on `tools/kafka-peer/pom.xml` into
`.cache/kafka-jars`; DRIFTLOG_KAFKA_JARS names another folder.  Heap and collector are
those of Kafka's own `kafka-server-start.sh`, so that a comparison is with the Kafka that
people run.  By hand: `python -m tests.support.kafka_peer` serves until it is interrupted.
Shell.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.process_usage import (
    Usage,
    free_port,
    reset_peak,
    stop_process,
    usage,
    wait_until,
)
from tests.support.quick_jvm import QUICK

_REPOSITORY = Path(__file__).resolve().parents[2]
_READY = "Kafka Server started"
_START_TIMEOUT_SECONDS = 90.0
_STOP_TIMEOUT_SECONDS = 30.0

_TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
}

# kafka-server-start.sh and kafka-run-class.sh of Apache Kafka 4.3.
_SERVER_JVM = (
    "-Xms1G",
    "-Xmx1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)


def kafka_jars() -> Path | None:
    """The folder of Kafka's jars, or None where there is no Java or nobody fetched them."""
    folder = Path(os.environ.get("DRIFTLOG_KAFKA_JARS", _REPOSITORY / ".cache" / "kafka-jars"))
    there = any(folder.glob("kafka_2.13-*.jar")) and any(folder.glob("kafka-tools-4*.jar"))
    return folder if there and shutil.which("java") else None


def java_command(main_class: str, *arguments: str, jvm: tuple[str, ...] = ()) -> list[str]:
    """The command line of a class in Kafka's jars.

    Raises:
        FileNotFoundError: no Java, or no jars.
    """
    folder = kafka_jars()
    if folder is None:
        raise FileNotFoundError("Kafka's jars or java are missing: see tools/kafka-peer/pom.xml")
    return ["java", *jvm, "-cp", f"{folder}/*", main_class, *arguments]


def install_tools(folder: Path) -> None:
    """Kafka's scripts that pages name, in *folder*, which belongs on PATH."""
    for name, main_class in _TOOLS.items():
        script = folder / name
        command = shlex.join(java_command(main_class, jvm=(QUICK,)))
        script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        script.chmod(0o755)


class KafkaPeer:
    """One broker and controller in one process, on free ports of 127.0.0.1.

    Args:
        parent: where its temporary directory is made; the system's place if None.
        properties: set over the defaults below, by Kafka's names.
        jvm: more options of Java.
    """

    def __init__(
        self,
        parent: Path | None = None,
        properties: Mapping[str, str] | None = None,
        jvm: tuple[str, ...] = (QUICK,),
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="kafka-peer-", dir=parent))
        self._port, self._controller_port = free_port(), free_port()
        self._log = self.directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._jvm = (*_SERVER_JVM, *jvm)
        self._properties = self._defaults() | dict(properties or {})

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def usage(self) -> Usage:
        return usage(self.pid)

    def reset_peak(self) -> None:
        reset_peak(self.pid)

    def start(self) -> Self:
        """Format the log directory once, start, and return when requests are served.

        Raises:
            FileNotFoundError: no Java, or no jars.
            RuntimeError: it ended instead; the message holds the end of its log.
            TimeoutError: it is not ready after 90 s.
        """
        assert self._process is None, "started twice"
        file = self.directory / "server.properties"
        if not file.exists():
            lines = (f"{name}={value}\n" for name, value in self._properties.items())
            file.write_text("".join(lines))
            self._format(file)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                java_command("kafka.Kafka", str(file), jvm=self._jvm),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
            )
        try:
            wait_until(self._is_ready, self._process, _START_TIMEOUT_SECONDS, self._log)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Shut down as SIGTERM does it; the directory stays."""
        if self._process is not None:
            stop_process(self._process, _STOP_TIMEOUT_SECONDS)
            self._process = None

    def close(self) -> None:
        """Stop it and remove everything that it wrote."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _is_ready(self) -> bool:
        return _READY in self._log.read_text(errors="replace")

    def _format(self, file: Path) -> None:
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "a")
        arguments = ("format", "--standalone", "-t", cluster_id, "-c", str(file))
        done = subprocess.run(
            java_command("kafka.tools.StorageTool", *arguments, jvm=(QUICK,)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_START_TIMEOUT_SECONDS,
            cwd=self.directory,
        )
        if done.returncode:
            raise RuntimeError(f"StorageTool: {done.stdout!r} {done.stderr!r}")

    def _defaults(self) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self._controller_port}",
            "log.dirs": str(self.directory / "logs"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with KafkaPeer(jvm=()) as peer:
        print(f"kafka {peer.bootstrap} pid {peer.pid} in {peer.directory}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
