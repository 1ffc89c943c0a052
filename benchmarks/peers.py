"""The brokers under test: started side by side, runs interleaved, costs from /proc.

Brokers and clients share all cores, without pinning.  Every row starts its own brokers in
directories that are deleted after it, so that the disk holds one row's data at most.
Shell.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.rawclient import LoadResult
from benchmarks.rawfetch import FetchResult
from benchmarks.table import Sample
from tests.support.driftlog_process import DriftlogProcess, driftlog_command
from tests.support.kafka_peer import KafkaPeer, kafka_jars
from tests.support.process_usage import Usage, free_port, stop_process

MiB = 1 << 20
GiB = 1 << 30
OURS, KAFKA = "ours", "kafka"
_KAFKA_BENCH = {
    # Deleted topics leave the disk soon; all other configs are Kafka's defaults.
    "log.segment.delete.delay.ms": "1000",
}


class Peer(Protocol):
    """A broker in a process of its own."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def usage(self) -> Usage: ...
    def reset_peak(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one call of the benchmarks.

    quick: volumes that end within minutes and one round; good for finding errors, not
        for quoting.
    """

    names: tuple[str, ...] = (OURS, KAFKA)
    quick: bool = False
    rounds: int = 3
    directory: Path | None = None
    payloads: tuple[str, ...] = ("random", "json")
    driftlog_arguments: tuple[str, ...] = ()
    progress: Callable[[str], None] = field(default=lambda line: print(line, file=sys.stderr))

    def wants(self, name: str) -> bool:
        """Whether this broker is requested and installed."""
        there = driftlog_command() if name == OURS else kafka_jars()
        return name in self.names and there is not None


@contextlib.contextmanager
def brokers(
    options: Options,
    names: Sequence[str] = (OURS, KAFKA),
    *,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[dict[str, Peer]]:
    """Run the requested brokers of *names*; they are deleted with their data afterwards.

    *arguments* and *environment* are for `driftlog dev`.
    """
    with contextlib.ExitStack() as stack:
        found: dict[str, Peer] = {}
        if OURS in names and options.wants(OURS):
            found[OURS] = stack.enter_context(
                DriftlogProcess(
                    arguments=(*options.driftlog_arguments, *arguments),
                    environment=environment,
                    parent=options.directory,
                )
            )
        if KAFKA in names and options.wants(KAFKA):
            found[KAFKA] = stack.enter_context(KafkaPeer(options.directory, _KAFKA_BENCH, jvm=()))
        yield found


@contextlib.contextmanager
def helper_process(*command: str) -> Iterator[tuple[int, str]]:
    """Run a helper that prints ``name address`` when it is ready: its pid and address."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode().split()
        if len(line) != 2:
            raise RuntimeError(f"{command[0]} did not start: {line}")
        yield process.pid, line[1]
    finally:
        stop_process(process, 10.0)


@contextlib.contextmanager
def sink(partitions: int) -> Iterator[str]:
    """`benchmarks.sink` on a free port: its bootstrap address."""
    with helper_process("benchmarks.sink", "--partitions", str(partitions)) as (_, address):
        yield address


@contextlib.contextmanager
def slow_s3(
    options: Options, put_delay_ms: float, *, hollow: bool = False
) -> Iterator[tuple[str, dict[str, str]]]:
    """`benchmarks.slow_s3`: its address, and the environment in which an agent uses it."""
    command = ["benchmarks.slow_s3", "--port", str(free_port()), "--put-delay-ms"]
    command += [str(put_delay_ms), *(["--hollow"] if hollow else [])]
    if options.directory:
        command += ["--dir", str(options.directory)]
    with helper_process(*command) as (_, address):
        environment = {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        yield address, environment


def interleaved(
    options: Options, found: Mapping[str, Peer], body: Callable[[str, Peer, int], Sample]
) -> dict[str, list[Sample]]:
    """Run *body* for every broker in every round (A B A B), with the round's number."""
    samples: dict[str, list[Sample]] = {name: [] for name in (OURS, KAFKA)}
    for number in range(options.rounds):
        for name, peer in found.items():
            sample = body(name, peer, number)
            options.progress(f"    {name} round {number + 1}: {sample.value:,.1f}")
            samples[name].append(sample)
    return samples


def costed(
    peer: Peer, work: Callable[[], LoadResult | FetchResult], *, settle: bool = False
) -> Sample:
    """Run *work* and charge it with the CPU and memory of *peer* meanwhile.

    Dirty pages of earlier runs are written back before.  With *settle* the costs, but not the
    rate, include the time until the broker is idle again.
    """
    os.sync()
    peer.reset_peak()
    before = peer.usage()
    result = work()
    if settle:
        wait_idle(peer)
    after = peer.usage()
    moved = result.value_bytes if isinstance(result, LoadResult) else result.log_bytes
    return Sample(
        value=result.mb_per_second,
        cpu_seconds_per_gib=(after.cpu_seconds - before.cpu_seconds) / (moved / GiB),
        peak_rss_mib=after.peak_rss_bytes / MiB,
        written_per_byte=(after.written_bytes - before.written_bytes) / moved,
    )


def wait_idle(peer: Peer, timeout_seconds: float = 300.0) -> float:
    """Wait until the broker used less than 5 % of a core for two seconds; returns how long."""
    began = time.monotonic()
    quiet_since, cpu = began, peer.usage().cpu_seconds
    while time.monotonic() - quiet_since < 2.0 and time.monotonic() - began < timeout_seconds:
        time.sleep(0.5)
        used = peer.usage().cpu_seconds
        if used - cpu > 0.025:
            quiet_since = time.monotonic()
        cpu = used
    return time.monotonic() - began


def disk_mb_per_second(directory: Path | None, volume_bytes: int = GiB) -> float:
    """The rate that dd prints: 8 MiB writes of random bytes, then one fdatasync; in 10^6 bytes."""
    folder = directory or Path(tempfile.gettempdir())
    path = folder / f"disk-probe-{os.getpid()}"
    block = os.urandom(8 * MiB)
    os.sync()
    try:
        with path.open("wb", buffering=0) as file:
            began = time.perf_counter()
            for _ in range(volume_bytes // len(block)):
                file.write(block)
            os.fdatasync(file.fileno())
            return volume_bytes / (time.perf_counter() - began) / 1e6
    finally:
        path.unlink(missing_ok=True)


def room_for(directory: Path | None, wanted_bytes: int) -> bool:
    """Whether the disk takes *wanted_bytes* and keeps 5 GiB free."""
    folder = directory or Path(tempfile.gettempdir())
    return shutil.disk_usage(folder).free > wanted_bytes + 5 * GiB
