"""One run: an agent, applications with their state in compacted topics, kills, then the bucket.

    start ──▶ each application works; one of them, or the agent, is killed ──▶ … ──▶ each is
    stopped and comes back from its topics ──▶ the bucket has one value of each key

Shell.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    NewTopic,
)

from tests.long_topics.bucket import rows_by_key
from tests.long_topics.connect import ConnectWorker
from tests.long_topics.schema_registry import JOURNAL, SchemaRegistry
from tests.long_topics.streams import StreamsTable
from tests.support.driftlog_process import DriftlogProcess

CONFIGS: Final = {
    "segment.ms": "2000",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1000",
}
_WORK_S: Final = 0.25
_ROUND_S: Final = 5.0
"""Work between two kills."""

_COMPACTED_S: Final = 120.0
_APPLICATIONS: Final = 3

Rows = Mapping[str, Mapping[bytes, tuple[bytes | None, ...]]]


class Application(Protocol):
    """Keeps its state in compacted topics."""

    name: str
    topics: tuple[str, ...]
    """The compacted ones."""
    inputs: tuple[str, ...]
    """Others, which exist before it starts."""

    def start(self) -> None:
        """Return when it works."""

    def work(self) -> None:
        """One change of its state."""

    def restart(self) -> None:
        """Kill it and lose what it had beside its topics; return when the state is back."""

    def finish(self) -> None:
        """As `restart`, after a stop, and with all that was written; then stop for good."""

    def check_bucket(self, rows: Rows) -> list[str]:
        """What is not as it must be in the newest values of its topics."""

    def close(self) -> None:
        """End it, however it is."""

    @property
    def done(self) -> str:
        """What it did, in words."""


@dataclass(slots=True)
class Report:
    """What came of a run."""

    seconds: float
    lines: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


class Run:
    """See the module.

    Args:
        folder: of all data and logs, empty.
    """

    def __init__(self, folder: Path, *, seconds: float, seed: int) -> None:
        self._folder = folder
        self._seconds = seconds
        self._seed = seed
        self._report = Report(seconds)
        self._agent = DriftlogProcess(
            folder / "agent",
            ("--config", "log.cleaner.backoff.ms=500"),
            parent=folder,
        )

    def run(self) -> Report:
        """All of it: *seconds* of work, and about a minute more."""
        with ExitStack() as stack:
            # Its threads stay: a program ends with the thread that has started it.
            threads = stack.enter_context(ThreadPoolExecutor(_APPLICATIONS))
            self._agent.start()
            stack.callback(self._agent.close)
            stack.callback(self._keep_log)
            applications = self._applications()
            self._make_topics(applications)
            for one in applications:
                stack.callback(one.close)
            list(threads.map(self._start, applications))
            self._under_load(applications)
            list(threads.map(self._finish, applications))
            self._check_bucket(applications)
            used = self._agent.usage()
            peak_mib = used.peak_rss_bytes >> 20
            self._note(
                f"the agent since its last start: {used.cpu_seconds:.0f} CPU s, {peak_mib} MiB"
            )
            failed = self._agent.log.count("compaction_failed")
            if failed:
                self._report.failures.append(f"compaction_failed {failed} times in the agent's log")
        return self._report

    def _start(self, one: Application) -> None:
        one.start()
        self._note(f"{one.name} works")

    def _finish(self, one: Application) -> None:
        one.finish()
        self._note(f"{one.name} came back from its topics: {one.done}")

    def _applications(self) -> list[Application]:
        bootstrap, folder = self._agent.bootstrap, self._folder
        makers: dict[str, Callable[[], Application]] = {
            "Kafka Streams": lambda: StreamsTable(
                bootstrap, folder / "streams", CONFIGS, self._seed
            ),
            "Kafka Connect": lambda: ConnectWorker(bootstrap, folder / "connect", CONFIGS),
            "a schema registry": lambda: SchemaRegistry(bootstrap, folder / "registry"),
        }
        applications: list[Application] = []
        for name, make in makers.items():
            try:
                applications.append(make())
            except pytest.skip.Exception as reason:
                self._report.skipped.append(f"{name}: {reason}")
        return applications

    def _make_topics(self, applications: list[Application]) -> None:
        inputs = [topic for one in applications for topic in one.inputs]
        new = [NewTopic(topic, 1) for topic in inputs]
        journal = {"cleanup.policy": "compact", **CONFIGS}
        if any(JOURNAL in one.topics for one in applications):
            new.append(NewTopic(JOURNAL, 1, config=journal))
        admin = AdminClient({"bootstrap.servers": self._agent.bootstrap, "log_level": 2})
        for future in admin.create_topics(new).values():
            future.result(60)

    def _under_load(self, applications: list[Application]) -> None:
        """Work; every few seconds one of them, or the agent, is killed: each at least once."""
        ends = time.monotonic() + self._seconds
        turn = 0
        while time.monotonic() < ends or turn <= len(applications):
            pause = time.monotonic() + _ROUND_S
            while time.monotonic() < pause:
                for one in applications:
                    one.work()
                time.sleep(_WORK_S)
            killed = turn % (len(applications) + 1)
            turn += 1
            began = time.monotonic()
            if killed == len(applications):
                self._agent.kill()
                self._agent.start()
                what = "the agent was killed and serves again"
            else:
                applications[killed].restart()
                what = f"{applications[killed].name} was killed and has its state again"
            self._note(f"{what}, after {time.monotonic() - began:.1f} s")
        self._note(f"{turn} kills")

    def _check_bucket(self, applications: list[Application]) -> None:
        """Until each key of each compacted topic has one value, and these are the right ones."""
        location = str(self._agent.directory / "objects")
        give_up = time.monotonic() + _COMPACTED_S
        while True:
            rows = {t: rows_by_key(location, t) for one in applications for t in one.topics}
            failures = [said for one in applications for said in one.check_bucket(rows)]
            for topic, keys in rows.items():
                most = max(map(len, keys.values()), default=0)
                if most != 1:
                    failures.append(f"{topic} has a key with {most} values")
            if not failures or time.monotonic() > give_up:
                break
            time.sleep(1)
        self._report.failures += failures
        self._note("the bucket is NOT compacted" if failures else "the bucket is compacted")
        for topic, keys in rows.items():
            tombstones = sum(values[-1] is None for values in keys.values())
            count = sum(map(len, keys.values()))
            self._note(f"{topic}: {count} records, {len(keys)} keys, {tombstones} tombstones")

    def _keep_log(self) -> None:
        (self._folder / "agent.log").write_text(self._agent.log)

    def _note(self, line: str) -> None:
        self._report.lines.append(line)
        print(f"{time.strftime('%H:%M:%S', time.gmtime())} {line}", flush=True)
