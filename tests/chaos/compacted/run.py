"""One run: compacted topics under load, the troubles of a seed, then one value of each key.

    start ──▶ load ──▶ troubles … ──▶ heal ──▶ every write is answered ──▶ one record of each key
                                                                       ──▶ verdict

Shell.
"""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    NewTopic,
)

from tests.chaos.cluster import MEMBERS, Cluster
from tests.chaos.compacted.load import Load, read_partition
from tests.chaos.compacted.oracle import Reading, Retention, TableOracle, Verdict
from tests.chaos.records import TopicPartition
from tests.chaos.schedule import Kind, schedule
from tests.chaos.troubles import Troubles

_PARTITIONS: Final = 2
_RETENTION_S: Final = 20.0
_TOMBSTONES_S: Final = 5.0
_OFTEN: Final = {"segment.ms": "1000", "delete.retention.ms": f"{_TOMBSTONES_S * 1000:.0f}"}
_TOPICS: Final[dict[str, tuple[Retention, dict[str, str]]]] = {
    "table": (
        Retention(_TOMBSTONES_S),
        {**_OFTEN, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"},
    ),
    "table-and-log": (
        Retention(_TOMBSTONES_S, _RETENTION_S),
        {
            **_OFTEN,
            "cleanup.policy": "compact,delete",
            "retention.ms": f"{_RETENTION_S * 1000:.0f}",
            "min.cleanable.dirty.ratio": "0.3",
        },
    ),
}
_CONFIGS: Final = ("log.cleaner.backoff.ms=200", "log.retention.check.interval.ms=1000")
_QUIET_S: Final = 3.0
_ANSWERED_S: Final = 120.0
_COMPACTED_S: Final = 120.0
_LOOK_S: Final = 1.0
_ERROR: Final = re.compile(r"\[(?:error|critical) +\] (\S+)|^(Traceback)", re.MULTILINE)
_COMPACTION: Final = re.compile(r"partition_compacted|compaction_failed|compaction_void")


@dataclass(slots=True)
class Report:
    """What came of a run."""

    seed: int
    seconds: float
    folder: Path
    verdict: Verdict = field(default_factory=Verdict)
    troubles: Counter[Kind] = field(default_factory=Counter)
    logged: Counter[str] = field(default_factory=Counter)
    """Lines about compaction, errors and tracebacks in the agents' logs."""
    given_up: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failures and not self.verdict.violations


class CompactedRun:
    """See the module.

    Args:
        folder: of all data and logs, empty; it is kept.
    """

    def __init__(
        self, folder: Path, *, seed: int, seconds: float, agents: int, rate: float
    ) -> None:
        self._seed = seed
        self._seconds = seconds
        self._agents = agents
        self._rate = rate
        self._report = Report(seed, seconds, folder)
        self._began = time.monotonic()
        self._story = (folder / "story.log").open("w", buffering=1)
        self._lock = threading.Lock()

    def run(self) -> Report:
        """All of it: the troubles, and a minute or two more."""
        report = self._report
        retention = {
            TopicPartition(topic, partition): kept
            for topic, (kept, _) in _TOPICS.items()
            for partition in range(_PARTITIONS)
        }
        oracle = TableOracle(retention)
        with (
            self._story,
            Cluster(
                report.folder, self._agents, self._seed, self._note, configs=_CONFIGS
            ) as cluster,
        ):
            _make_topics(cluster.bootstrap)
            load = Load(cluster.bootstrap, oracle, now=self._now, rate=self._rate, seed=self._seed)
            load.start()
            self._wait_for_acknowledgements(oracle, "before the troubles")
            time.sleep(_QUIET_S)
            self._trouble(cluster)
            self._wait_for_acknowledgements(oracle, "after the troubles")
            time.sleep(_QUIET_S)
            load.stop(_ANSWERED_S)
            report.given_up = load.given_up
            self._note(f"load has ended; {oracle.open_writes} writes are not answered")
            self._wait_until_compacted(cluster, oracle)
            report.failures += cluster.ended_by_themselves()
            for agent in cluster.agents:
                report.logged.update("".join(found) for found in _ERROR.findall(agent.log))
                report.logged.update(_COMPACTION.findall(agent.log))
        report.verdict = oracle.judge()
        if not report.logged["partition_compacted"]:
            report.failures.append("no partition was compacted")
        (report.folder / "violations").write_text("\n".join(report.verdict.violations))
        return report

    def _trouble(self, cluster: Cluster) -> None:
        troubles = Troubles(
            cluster,
            now=self._now,
            note=self._note,
            fail=self._fail,
            emptied=lambda node_id, at_s: None,  # of acks=all nothing goes with a disk
        )
        troubles.run(schedule(self._seed, self._seconds, self._agents, MEMBERS), self._seconds)
        self._report.troubles = troubles.counts
        cluster.heal()
        self._note("healed")

    def _wait_for_acknowledgements(self, oracle: TableOracle, when: str) -> None:
        """Until every partition has acknowledged something more."""
        before = oracle.acknowledgements

        def answered() -> bool:
            now = oracle.acknowledgements
            return all(now[at] > before[at] for at in before)

        if not _happens(answered, _ANSWERED_S):
            self._fail(f"{when}, a partition acknowledged nothing: {before}")

    def _wait_until_compacted(self, cluster: Cluster, oracle: TableOracle) -> None:
        """Until a reader of everything gets one record of each key; its reading is judged."""
        for at in oracle.partitions:
            left = 0

            def compacted(at: TopicPartition = at) -> bool:
                nonlocal left
                reading = read_partition(cluster.bootstrap, "final", at, self._now)
                if not isinstance(reading, Reading):
                    return False
                oracle.read(reading)
                left = len(reading.records)
                return left == len({record.key for record in reading.records})

            if not _happens(compacted, _COMPACTED_S):
                self._fail(f"{at} is not compacted: {left} records")
            self._note(f"{at} is compacted: {left} records")

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _note(self, line: str) -> None:
        """Into story.log, with the run's time and the wall clock of the agents' logs."""
        wall = time.strftime("%H:%M:%S", time.gmtime())
        with self._lock, suppress(ValueError):
            self._story.write(f"{self._now():8.3f} {wall} {line}\n")

    def _fail(self, line: str) -> None:
        self._note(line)
        self._report.failures.append(line)


def _happens(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def _make_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    new = [NewTopic(name, _PARTITIONS, config=configs) for name, (_, configs) in _TOPICS.items()]
    for future in admin.create_topics(new, operation_timeout=30, request_timeout=60).values():
        future.result(60)
