"""One run: a cluster under load, the troubles of a seed, then the truth.

    start ──▶ load ──▶ troubles … ──▶ heal ──▶ everyone is answered ──▶ read all
                 └─ etcd is copied ┘    └─ etcd loses data and gets them back, if asked for
    ──▶ the bucket is the live data ──▶ Report

Shell.
"""

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # no __all__

from tests.chaos.cluster import MEMBERS, Cluster
from tests.chaos.dump import dump
from tests.chaos.leaders import LeaderWatch
from tests.chaos.load import CONFLUENT_LOG, Load, read_whole
from tests.chaos.oracle import Oracle, Verdict
from tests.chaos.records import TopicPartition
from tests.chaos.schedule import Kind, schedule
from tests.chaos.stores import Loss, Stores
from tests.chaos.troubles import Troubles
from tests.support.bucket_account import COLLECTED_GRACES, by_kind

PARTITIONS: Final = 4
TOPICS: Final[dict[str, dict[str, str]]] = {
    "plain": {},
    "sealed": {"segment.ms": "15000"},
    "recompressed": {"compression.type": "zstd"},
}

GRACE_S: Final = 40.0
"""Of garbage.  Half of it is longer than the longest trouble, which would end sessions."""

_QUIET_S: Final = 5.0
"""Load without troubles, before and after."""

_ANSWERED_S: Final = 120.0
"""After the troubles, every partition has acknowledged something new, and every open record is
answered, in this time each."""

_READ_S: Final = 120.0
_ERROR: Final = re.compile(r"\[(?:error|critical) +\] (\S+)|^(Traceback)", re.MULTILINE)


@dataclass(slots=True)
class Report:
    """What the table is made of."""

    seed: int
    seconds: float
    folder: Path
    verdict: Verdict = field(default_factory=Verdict)
    troubles: Counter[Kind | Loss] = field(default_factory=Counter)
    s3: Counter[str] = field(default_factory=Counter)
    drains_s: list[float] = field(default_factory=list)
    recovered_s: float = 0.0
    """From healing to an acknowledgement of every partition."""
    collected_s: float = 0.0
    """From the end of it all until nothing was left in the bucket that nothing names."""
    leader_changes: int = 0
    leaders: int = 0
    """How many agents led partitions at the end."""
    refused_starts: int = 0
    logged: Counter[str] = field(default_factory=Counter)
    """Errors and tracebacks in the agents' logs."""
    failures: list[str] = field(default_factory=list)
    """What went wrong beside records: agents that ended by themselves, partitions that stayed."""

    @property
    def ok(self) -> bool:
        return not self.failures and not self.verdict.violations


class Run:
    """See the module.

    Args:
        folder: of all data and logs, empty; who calls removes it.
        stores: etcd is restored from an older copy and wiped, and put right, after the troubles.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        seconds: float,
        agents: int,
        rate: float,
        stores: bool = False,
    ) -> None:
        self._seed = seed
        self._seconds = seconds
        self._agents = agents
        self._rate = rate
        self._loses_stores = stores
        self._report = Report(seed, seconds, folder)
        self._began = time.monotonic()
        self._story = (folder / "story.log").open("w", buffering=1)
        self._lock = threading.Lock()

    def run(self) -> Report:
        """All of it: the troubles, and about a minute more."""
        report = self._report
        partitions = [TopicPartition(t, p) for t in TOPICS for p in range(PARTITIONS)]
        oracle = Oracle(partitions)
        with (
            self._story,
            _logged("aiokafka", report.folder, logging.WARNING),
            _logged(CONFLUENT_LOG, report.folder, logging.DEBUG),
            Cluster(
                report.folder,
                self._agents,
                self._seed,
                self._note,
                durable=self._loses_stores,
                grace_s=None if self._loses_stores else GRACE_S,
            ) as cluster,
        ):
            self._note(f"{self._agents} agents are up at {cluster.bootstrap}")
            _make_topics(cluster.bootstrap)
            with LeaderWatch(cluster.etcd, oracle, self._now, self._note) as leaders:
                self._under_load(cluster, oracle)
                self._wait_for_leftovers(cluster)
                self._replay(cluster)
                logs = self._read(cluster, partitions)
            if not self._loses_stores:  # an older etcd names objects that are gone
                self._wait_for_the_collector(cluster)
            dump(cluster, report.folder)
            report.leader_changes = leaders.changes.total()
            report.leaders = len(set(leaders.last.values()))
            report.s3 = cluster.s3.done
            report.failures += cluster.ended_by_themselves()
            report.refused_starts = sum(agent.refused_starts for agent in cluster.agents)
            for agent in cluster.agents:
                report.logged.update("".join(found) for found in _ERROR.findall(agent.log))
            report.verdict = oracle.judge(logs)
            for violation in report.verdict.violations:
                self._note(str(violation))
            for excused in report.verdict.excused:
                self._note(f"excused: {excused}")
        return report

    def _under_load(self, cluster: Cluster, oracle: Oracle) -> None:
        """Load before, while and after things go wrong, until all of it is answered."""
        load = Load(
            cluster.bootstrap,
            oracle,
            now=self._now,
            rate=self._rate,
            seed=self._seed,
            note=self._note,
        )
        load.start()
        self._wait_for_acknowledgements(oracle, "before the troubles")
        time.sleep(_QUIET_S)
        stores = Stores(cluster, cluster.etcd_folder, self._note, self._fail)
        if self._loses_stores:
            stores.copy()
            self._wait_for_acknowledgements(oracle, "after etcd was copied")
        oracle.watch_gaps(self._now())
        troubles = Troubles(
            cluster, now=self._now, note=self._note, fail=self._fail, emptied=oracle.emptied
        )
        troubles.run(schedule(self._seed, self._seconds, self._agents, MEMBERS), self._seconds)
        self._report.troubles.update(troubles.counts)
        self._report.drains_s += troubles.drains_s
        cluster.heal()
        self._note("healed")
        if self._loses_stores:
            self._lose_stores(stores, oracle)
        healed = time.monotonic()
        self._wait_for_acknowledgements(oracle, "after the troubles")
        self._report.recovered_s = time.monotonic() - healed
        oracle.end_gaps(self._now())
        time.sleep(_QUIET_S)
        load.stop(_ANSWERED_S)
        self._note(f"load has ended; {oracle.open_records} records are not answered")

    def _lose_stores(self, stores: Stores, oracle: Oracle) -> None:
        for loss in Loss:
            self._wait_for_acknowledgements(oracle, f"before {loss}")
            self._report.troubles[loss] += 1
            stores.lose(loss)

    def _read(
        self, cluster: Cluster, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, list[tuple[int, bytes | None]]]:
        """A partition that cannot be read has lost what it had: the verdict says so."""
        logs, missing = read_whole(cluster.bootstrap, partitions, _READ_S)
        if missing:
            self._fail(f"the log could not be read: {missing}")
        return logs

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

    def _wait_for_acknowledgements(self, oracle: Oracle, when: str) -> None:
        """Until every partition has acknowledged something more."""
        before = oracle.acknowledgements
        deadline = time.monotonic() + _ANSWERED_S
        waiting = before.keys()
        while waiting and time.monotonic() < deadline:
            time.sleep(0.05)
            now = oracle.acknowledgements
            waiting = {at: 0 for at in before if now[at] == before[at]}.keys()
        if waiting:
            self._fail(f"{when}, {', '.join(map(str, waiting))} acknowledged nothing")

    def _wait_for_leftovers(self, cluster: Cluster) -> None:
        """Until what only acks=1 had promised is in the log, or set aside."""
        deadline = time.monotonic() + _ANSWERED_S
        while waiting := [a.number for a in cluster.agents if a.has_leftovers()]:
            if time.monotonic() > deadline:
                self._fail(f"agents {waiting} still have buffers of earlier sessions")
                return
            time.sleep(0.2)
        self._note("nothing is left over")

    def _wait_for_the_collector(self, cluster: Cluster) -> None:
        """Until the bucket is exactly what metadata name: nothing is missing, nothing is left."""
        began = time.monotonic()
        while True:
            found = cluster.account()
            waited_s = time.monotonic() - began
            if found.missing:
                self._fail(f"objects are missing: {sorted(found.missing)[:5]}")
                return
            if not found.unnamed:
                self._note(f"the bucket is the live data after {waited_s:.0f} s")
                self._report.collected_s = waited_s
                return
            if waited_s > COLLECTED_GRACES * GRACE_S:
                some = f"{by_kind(found.unnamed)}, such as {sorted(found.unnamed)[:5]}"
                self._fail(f"{len(found.unnamed)} objects that nothing names are left: {some}")
                return
            time.sleep(GRACE_S / 12)

    def _replay(self, cluster: Cluster) -> None:
        """Produce what the agents have set aside: then all of it is in the log."""
        for agent in cluster.agents:
            status, said = agent.replay(cluster.bootstrap)
            self._note(f"agent {agent.number} replayed: {said}")
            if status:
                self._fail(f"agent {agent.number}: driftlog buffer replay ended with {status}")


@contextmanager
def _logged(library: str, folder: Path, level: int) -> Iterator[None]:
    """What a client's library logs goes into a file, and nowhere else."""
    logger, file = logging.getLogger(library), logging.FileHandler(folder / f"{library}.log")
    logger.addHandler(file)
    logger.setLevel(level)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(file)
        file.close()


def _make_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    new = [NewTopic(name, PARTITIONS, config=configs) for name, configs in TOPICS.items()]
    for future in admin.create_topics(new, operation_timeout=30, request_timeout=60).values():
        future.result(60)
