"""A client that does nothing wrong, in a process of its own, while others attack the agent.

    the harness ──stdin──▶  mark | cycle | stop
                ◀─stdout──  ready, then a line of JSON for each

It produces with acks=all, fetches what it produced, asks for metadata and keeps a member of a group
alive, one after the other, and remembers each record that was acknowledged.  A record is sent once:
what was not acknowledged may be there or not, and nothing may be there twice.

Root.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.messages.heartbeat import HeartbeatRequest
from driftlog_agents.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.attack.measures import Control, Prober, percentile
from tests.attack.members import joined
from tests.attack.produce import fetched, produced
from tests.attack.wire import GONE, HEALTHY_ADDRESS, Connection
from tests.support.components import REPOSITORY

_PAUSE_S: Final = 0.01
_TIMEOUT_S: Final = 30.0
_CYCLE_S: Final = 180.0
"""How long the harness waits for one more round of everything."""

GROUP: Final = "healthy"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a healthy client saw since it was asked last."""

    operations: int
    probes: int
    errors: int
    p99_ms: float
    longest_ms: float
    stall_ms: float
    """Longest that the event loop did not answer; see `measures`."""
    silence_s: float
    """Longest without an acknowledged record."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One record: where it is, and what it says."""

    offset: int
    value: bytes


class Healthy:
    """The process, as the harness has it."""

    def __init__(self, port: int, pid: int, topic: str, token: str) -> None:
        line = [sys.executable, "-m", "tests.attack.healthy", "--port", str(port)]
        self._process = subprocess.Popen(
            [*line, "--pid", str(pid), "--topic", topic, "--token", token],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            text=True,
        )

    def __enter__(self) -> Self:
        self._line()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def mark(self) -> Seen:
        """What it saw since the last mark."""
        return Seen(**json.loads(self._ask("mark")))

    def cycle(self) -> bool:
        """Wait for one more round of everything; False: it did not come in time."""
        return bool(json.loads(self._ask("cycle")))

    def stop(self) -> list[Acknowledged]:
        """End it; all that was acknowledged to it."""
        return [
            Acknowledged(offset, value.encode()) for offset, value in json.loads(self._ask("stop"))
        ]

    def _ask(self, what: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the healthy client ended with {self._process.wait()}")
        return line


class Client:
    """The thread that works."""

    def __init__(self, port: int, topic: str, token: str) -> None:
        self._port, self._topic, self._token = port, topic, token
        self._connection: Connection | None = None
        self._member = "", 0
        self._at = 0
        self.cycles = 0
        self.acknowledged: list[tuple[int, str]] = []
        self.latencies: list[float] = []
        self.errors = 0
        self.silence_s = 0.0
        self._acknowledged_at = time.monotonic()

    def run(self) -> None:
        """For ever."""
        while True:
            for operation in (self._produce, self._fetch, self._metadata, self._heartbeat):
                self._timed(operation)
            self.cycles += 1
            time.sleep(_PAUSE_S)

    def _timed(self, operation: Callable[[Connection], bool]) -> None:
        begun = time.monotonic()
        try:
            if self._connection is None:
                self._connection = Connection(
                    self._port,
                    address=HEALTHY_ADDRESS,
                    timeout_s=_TIMEOUT_S,
                    client_id="healthy",
                )
            good = operation(self._connection)
        except GONE:
            good = False
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            time.sleep(0.1)
        self.errors += not good
        self.latencies.append(time.monotonic() - begun)

    def _produce(self, connection: Connection) -> bool:
        self._at += 1
        value = f"{self._token}-{self._at}"
        code, offset = produced(connection, self._topic, value.encode())
        self.note_silence()
        if code == 0:
            self.acknowledged.append((offset, value))
            self._acknowledged_at = time.monotonic()
        return code == 0

    def note_silence(self) -> None:
        """Also while a request waits."""
        self.silence_s = max(self.silence_s, time.monotonic() - self._acknowledged_at)

    def _fetch(self, connection: Connection) -> bool:
        if not self.acknowledged:
            return True
        offset, value = self.acknowledged[-1]
        code, records = fetched(connection, self._topic, offset)
        return code == 0 and records.get(offset) == value.encode()

    def _metadata(self, connection: Connection) -> bool:
        topics = [MetadataRequestTopic(name=self._topic)]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        answer = connection.ask(ApiKey.METADATA, 9, request)
        return bool(answer.topics[0].error_code == 0)

    def _heartbeat(self, connection: Connection) -> bool:
        member_id, generation = self._member
        if not member_id:
            self._member = joined(connection, GROUP)
            return bool(self._member[0])
        request = HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member_id)
        answer = connection.ask(ApiKey.HEARTBEAT, 3, request)
        if answer.error_code:
            self._member = "", 0
        return bool(answer.error_code == 0)


def main() -> int:
    """Serve the harness until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack.healthy")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--token", required=True)
    options = parser.parse_args()
    control = Control()
    prober = Prober(options.port, options.pid, control)
    client = Client(options.port, options.topic, options.token)
    control.start()
    prober.start()
    threading.Thread(target=client.run, daemon=True).start()
    _until(lambda: client.cycles > 0)
    _say("ready")
    for line in sys.stdin:
        match line.strip():
            case "mark":
                _say(_seen(client, prober))
            case "cycle":
                _say(_once_more(client, prober))
            case "stop":
                _say(list(client.acknowledged))
                return 0
            case unknown:
                raise ValueError(f"not a request of the harness: {unknown!r}")
    return 0


def _once_more(client: Client, prober: Prober) -> bool:
    """What began after this has been answered; False: not in time."""
    cycles, probes = client.cycles + 1, prober.probes + 1
    return _until(lambda: client.cycles > cycles and prober.probes > probes)


def _until(there: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _CYCLE_S
    while not there():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _seen(client: Client, prober: Prober) -> dict[str, Any]:
    latencies, client.latencies = client.latencies, []
    stalls, prober.stalls = prober.stalls, []
    errors, client.errors = client.errors, 0
    client.note_silence()
    silence_s, client.silence_s = client.silence_s, 0.0
    seen = Seen(
        operations=len(latencies),
        probes=len(stalls),
        errors=errors,
        p99_ms=percentile(latencies, 0.99) * 1000,
        longest_ms=max(latencies, default=0.0) * 1000,
        stall_ms=max(stalls, default=0.0) * 1000,
        silence_s=silence_s,
    )
    return dataclasses.asdict(seen)


def _say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
