"""One run: real agents that are killed, a workload that makes garbage, and an account at the end.

    start ──▶ workload, kills, samples … ──▶ stop ──▶ wait for some graces ──▶ Report

Agent 0 is never killed: its memory and files are what leaks show in.

Shell.
"""

import asyncio
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final, TypeVar

from driftlog_metadata.stores.etcd.etcd_client import EtcdSettings
from driftlog_metadata.stores.etcd.etcd_store import EtcdMetadataStore
from driftlog_metadata.stores.store import MetadataStore
from driftlog_tiering.stores.directory_store import DirectoryObjectStore
from driftlog_tiering.stores.object_store import ObjectStore
from tests.churn.workload import TOPICS, Workload
from tests.support import etcd_server
from tests.support.bucket_account import COLLECTED_GRACES, Account, account, by_kind
from tests.support.driftlog_process import DriftlogProcess
from tests.support.etcd_server import EtcdCluster

T = TypeVar("T")

EXCESS: Final = 0.05
"""The bucket's size over the live data's, at the end."""

_ROOT: Final = "/driftlog/v1/"
_HEADS: Final = "heads"
_MEMORY_RATIO, _MEMORY_BYTES = 1.25, 32 << 20
_FILES: Final = 24


@dataclass(frozen=True, slots=True)
class Sample:
    """What there is at one time."""

    at_s: float
    named_bytes: int
    total_bytes: int
    objects: int
    unnamed: int
    keys: Counter[str]
    """In etcd, by the first part of their names."""
    rss_bytes: int
    files: int

    def __str__(self) -> str:
        return (
            f"{self.at_s:7.0f} s  live {self.named_bytes / 1e6:8.2f} MB  bucket "
            f"{self.total_bytes / 1e6:8.2f} MB  objects {self.objects:6} ({self.unnamed} unnamed)  "
            f"keys {self.keys.total():5}  RSS {self.rss_bytes / 1e6:6.1f} MB  files {self.files}"
        )


@dataclass(slots=True)
class Report:
    """What a run has found."""

    samples: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    kills: int = 0
    settled_s: float = 0.0
    facts: dict[str, object] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.failures


class Run:
    """See the module.

    Args:
        folder: of all data and logs.
        seconds: of churn.
        grace_s: in the cluster file.
        rate: records a second.
        kill_s: between two kills, on average.
    """

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        seconds: float,
        grace_s: float,
        rate: float,
        kill_s: float,
        agents: int,
    ) -> None:
        self._folder = folder
        self._dice = random.Random(seed)
        self._seed = seed
        self._seconds = seconds
        self._grace_s = grace_s
        self._rate = rate
        self._kill_s = kill_s
        self._count = agents
        self._report = Report()
        self._began = time.monotonic()
        self._agents: list[DriftlogProcess] = []
        self._objects = folder / "objects"

    def run(self) -> Report:
        """All of it."""
        with ExitStack() as stack:
            (self._folder / "etcd").mkdir()
            etcd = stack.enter_context(
                etcd_server.start(etcd_server.newest_version(), self._folder / "etcd")
            )
            for number in range(self._count):
                agent = DriftlogProcess(
                    self._folder / f"agent-{number}",
                    self._arguments(etcd),
                    parent=self._folder,
                    command=("agent", "run"),
                )
                stack.callback(agent.kill)
                self._agents.append(agent.start())
            bootstrap = ",".join(agent.bootstrap for agent in self._agents)
            load = Workload(bootstrap, rate=self._rate, seed=self._seed, fail=self._fail)
            load.start()
            self._began = time.monotonic()
            self._under_load(etcd)
            load.stop()
            settled = self._settle(etcd)
            self._judge(settled, load)
        return self._report

    def _arguments(self, etcd: EtcdCluster) -> tuple[str, ...]:
        return (
            *("--etcd", ",".join(etcd.endpoints)),
            *("--store", str(self._objects)),
            *("--new-cluster-grace-ms", str(int(self._grace_s * 1000))),
            # A producer of a deleted topic asks for it again.
            *("--config", "auto.create.topics.enable=false"),
            *("--config", "log.retention.check.interval.ms=2000"),
            *("--config", "log.cleaner.backoff.ms=1000"),
        )

    def _fail(self, line: str) -> None:
        print(f"FAILED: {line}", flush=True)
        self._report.failures.append(line)

    # ── While it runs ──

    def _under_load(self, etcd: EtcdCluster) -> None:
        ended = threading.Event()
        killer = threading.Thread(target=self._kill, args=(ended,), daemon=True)
        killer.start()
        every_s = max(5.0, self._seconds / 30)
        while self._now() < self._seconds:
            time.sleep(min(every_s, max(0.1, self._seconds - self._now())))
            self._sample(etcd)
        ended.set()
        killer.join()

    def _kill(self, ended: threading.Event) -> None:
        while not ended.wait(self._dice.uniform(0.5, 1.5) * self._kill_s):
            agent = self._dice.choice(self._agents[1:])
            how = self._dice.choice(("kill", "kill", "drain"))
            if how == "kill":
                agent.kill()
            else:
                agent.terminate()
            self._report.kills += 1
            ended.wait(self._dice.uniform(0.2, 5.0))
            try:
                agent.start()
            except (RuntimeError, TimeoutError) as error:
                self._fail(f"an agent did not start after a {how}: {error}")

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _sample(self, etcd: EtcdCluster) -> Account:
        found, keys = asyncio.run(self._look(etcd))
        pid = self._agents[0].pid
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        sample = Sample(
            at_s=self._now(),
            named_bytes=found.named_bytes,
            total_bytes=found.total_bytes,
            objects=len(found.named) + len(found.unnamed),
            unnamed=len(found.unnamed),
            keys=keys,
            rss_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
            files=len(list(Path(f"/proc/{pid}/fd").iterdir())),
        )
        self._report.samples.append(sample)
        print(sample, flush=True)
        if found.missing:
            self._fail(f"at {sample.at_s:.0f} s objects are missing: {sorted(found.missing)[:5]}")
        return found

    async def _look(self, etcd: EtcdCluster) -> tuple[Account, Counter[str]]:
        metadata: MetadataStore = EtcdMetadataStore(EtcdSettings(endpoints=etcd.endpoints))
        objects: ObjectStore = DirectoryObjectStore(str(self._objects))
        try:
            found = await account(metadata, objects)
            _, kvs = await metadata.get_prefix(_ROOT)
        finally:
            await metadata.close()
            await objects.close()
        return found, Counter(kv.key.removeprefix(_ROOT).partition("/")[0] for kv in kvs)

    # ── At the end ──

    def _settle(self, etcd: EtcdCluster) -> Account:
        """The account once nothing is left to collect, or after some graces."""
        began = time.monotonic()
        deadline = began + (COLLECTED_GRACES + 2) * self._grace_s + 20
        while True:
            found = self._sample(etcd)
            tombstones = self._report.samples[-1].keys["deleted"]
            if not (found.unnamed or tombstones) or time.monotonic() > deadline:
                self._report.settled_s = time.monotonic() - began
                return found
            time.sleep(max(2.0, self._grace_s / 6))

    def _judge(self, settled: Account, load: Workload) -> None:
        report = self._report
        report.facts |= {
            "kills": report.kills,
            "acknowledged": load.acknowledged,
            "records read": load.records_read,
            "DeleteRecords": load.trims,
            "topics deleted": load.topics_deleted,
            "live bytes": settled.named_bytes,
            "bucket's bytes": settled.total_bytes,
            "excess": f"{settled.excess:.2%}",
            "unnamed at the end": by_kind(settled.unnamed),
            "settled after": f"{report.settled_s:.0f} s",
        }
        if settled.excess > EXCESS:
            self._fail(f"the bucket is {settled.excess:.1%} larger than the live data")
        if settled.unnamed:
            self._fail(
                f"{len(settled.unnamed)} objects are left that nothing names: "
                f"{by_kind(settled.unnamed)}, such as {sorted(settled.unnamed)[:5]}"
            )
        self._judge_leaks()
        self._judge_records(load)

    def _judge_leaks(self) -> None:
        samples = self._report.samples
        early = samples[len(samples) // 3 : 2 * len(samples) // 3]
        last = samples[-5:]

        def value(of: Callable[[Sample], float], among: list[Sample]) -> float:
            return median(of(sample) for sample in among)

        before, after = (value(lambda s: s.rss_bytes, some) for some in (early, last))
        if after > before * _MEMORY_RATIO + _MEMORY_BYTES:
            self._fail(f"agent 0 grew from {before / 1e6:.0f} to {after / 1e6:.0f} MB")
        before, after = (value(lambda s: s.files, some) for some in (early, last))
        if after > before + _FILES:
            self._fail(f"agent 0 had {before:.0f} files open, and has {after:.0f}")
        keys = samples[-1].keys
        self._report.facts["keys in etcd"] = dict(keys)
        some = samples[:: len(samples) // 8 or 1]
        self._report.facts["RSS, MB"] = [round(s.rss_bytes / 1e6) for s in some]
        self._report.facts["files"] = [s.files for s in some]
        partitions = sum(n for n, _ in TOPICS.values())
        if keys["deleted"] or keys["topics"] != len(TOPICS) or keys["partitions"] != partitions:
            self._fail(f"etcd has keys of topics that are gone: {dict(keys)}")

    def _judge_records(self, load: Workload) -> None:
        for name, (partitions, _) in TOPICS.items():
            latest: dict[bytes, int] = {}
            for partition in range(partitions):
                for key, number in load.read(name, partition):
                    latest[key] = number
            if name == "compacted" and latest != load.latest:
                lost = [key for key, n in load.latest.items() if latest.get(key) != n]
                self._fail(f"compacted: {len(lost)} keys have another value, such as {lost[:3]}")
