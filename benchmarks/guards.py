"""What guards against hostile clients cost: CPU a request, of an agent with and without them.

    python -m benchmarks.guards                                  the share of the guards
    python -m benchmarks.guards --other OTHER_CHECKOUT           this checkout beside another one

An agent switches its guards (`benchmarks/unguarded.py`) between two parts of a load, many times; or
agents of two checkouts, each as it is, take turns.  The scheduler counts the CPU of each thread:
the event loop has all guards, and the other threads their own noise.  Printed are medians: of the
costs, and of the differences of neighbouring parts, with their standard error.  The other checkout
needs its kernel compiled.

Root.
"""

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import sqrt
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from benchmarks import wire
from benchmarks.load import make_batches
from benchmarks.rawclient import (
    connected,
    open_socket,
    parse_bootstrap,
    produce_tiny,
    receive_exactly,
    run_together,
)
from tests.support.driftlog_process import DriftlogProcess

_PACKAGES: Final = ("metadata", "tiering", "agents", "spark_reader", "client", "")
_HERE: Final = Path(__file__).resolve().parents[1]
_ON_START: Final = "from benchmarks.unguarded import install\ninstall()\n"
_SWITCH_S: Final = 0.1
_WARM_UPS: Final = 2
_ERROR_OF_MEDIAN: Final = 0.93
"""Of a normal distribution: times its quartiles' distance, by the root of the number."""
_TOPIC: Final = "guarded"
_CONNECTIONS: Final = 4

Load = Callable[[str, int], None]
"""Asks the agent at an address a number of times."""


def produces(size_bytes: int, acks: int, block: int) -> Load:
    """Pipelined Produce requests of one record; *block*: requests written at once."""
    (batch,) = make_batches("random", 1, size_bytes, count=1)

    def load(bootstrap: str, requests: int) -> None:
        produce_tiny(
            bootstrap, _TOPIC, [0, 1], batch, requests, acks=acks, block=block, window_blocks=8
        )

    return load


def fetches(partition: int, size_bytes: int) -> Load:
    """Fetch requests of one batch, one at a time on each connection."""

    def load(bootstrap: str, requests: int) -> None:
        def ask(_: int, start: threading.Barrier) -> None:
            request = wire.fetch_request(
                _TOPIC.encode(),
                {partition: 0},
                1,
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=50 << 20,
                partition_max_bytes=size_bytes + 100,
            )
            with open_socket(parse_bootstrap(bootstrap)) as sock:
                sock.sendall(request)
                head = bytearray(4)
                receive_exactly(sock, memoryview(head))
                answer = memoryview(bytearray(4 + wire.FRAME_SIZE.unpack(head)[0]))
                answer[:4] = head
                receive_exactly(sock, answer[4:])
                (found,) = wire.fetch_answer(answer)
                assert size_bytes <= found.end - found.start < 2 * size_bytes
                start.wait()
                for _ in range(requests // _CONNECTIONS):
                    sock.sendall(request)
                    receive_exactly(sock, answer)

        run_together(ask, _CONNECTIONS)

    return load


LOADS: Final[dict[str, tuple[Load, int]]] = {
    "produce of 1 KB, acks=1": (produces(1_000, 1, 500), 8_000),
    "produce of 1 KB, acks=all": (produces(1_000, -1, 500), 8_000),
    "produce of 16 KB, acks=1": (produces(16_000, 1, 32), 2_048),
    "produce of 1 MB, acks=1": (produces(1_000_000, 1, 1), 64),
    "fetch of 1 KB": (fetches(2, 1_000), 2_000),
    "fetch of 1 MB": (fetches(3, 1_000_000), 200),
}
"""A load, and its requests in one part."""


def cpu_us(pid: int) -> tuple[float, float]:
    """CPU of the event loop, and of all threads that live now."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    found = {t.name: int((t / "schedstat").read_text().split()[0]) / 1_000 for t in tasks}
    return found[str(pid)], sum(found.values())


@contextmanager
def agent(checkout: Path, *, switches: bool) -> Iterator[DriftlogProcess]:
    """An agent of *checkout* with a topic to write to, and one batch in each partition to read."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="driftlog-guards-")))
        path = [str(checkout / package) for package in _PACKAGES]
        if switches:
            (folder / "sitecustomize.py").write_text(_ON_START)
            path.insert(0, str(folder))
        environment = {"PYTHONPATH": ":".join(path)}
        process = stack.enter_context(DriftlogProcess(folder / "data", environment=environment))
        with connected(process.bootstrap) as connection:
            connection.create_topic(_TOPIC, 4)
        for partition, size in ((2, 1_000), (3, 1_000_000)):
            (batch,) = make_batches("random", 1, size, count=1)
            produce_tiny(
                process.bootstrap, _TOPIC, [partition], batch, 1, acks=-1, connections=1, block=1
            )
        yield process


def parts(
    load: Load, requests: int, rounds: int, other: Path | None
) -> dict[str, list[tuple[float, float]]]:
    """Microseconds of CPU a request, of the loop and of all threads, in each part."""
    with ExitStack() as stack:
        here = stack.enter_context(agent(_HERE, switches=other is None))
        agents = {"guarded": here, "without guards": here}
        if other is not None:
            agents = {"here": here, "other": stack.enter_context(agent(other, switches=False))}
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in agents}
        for number in range(-_WARM_UPS, rounds):
            for name, process in agents.items():
                load(process.bootstrap, requests // 4)  # the interpreter adapts to the switch
                before = cpu_us(process.pid)
                load(process.bootstrap, requests)
                after = cpu_us(process.pid)
                if number >= 0:
                    loop, whole = ((a - b) / requests for a, b in zip(after, before, strict=True))
                    found[name].append((loop, whole))
                if other is None:
                    os.kill(process.pid, signal.SIGUSR1)
                    time.sleep(_SWITCH_S)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--other", type=Path, help="a checkout to compare with")
    parser.add_argument("--rounds", type=int, default=40, help="parts of a load on each side")
    parser.add_argument("--starts", type=int, default=1, help="agents that are started for a load")
    parser.add_argument("--only", default="", help="only loads with this in their name")
    options = parser.parse_args()
    for name, (load, requests) in LOADS.items():
        for _ in range(options.starts if options.only in name else 0):
            found = parts(load, requests, options.rounds, options.other)
            (first, a), (second, b) = (
                (side, [loop for loop, _ in costs]) for side, costs in found.items()
            )
            whole = median(whole for _, whole in found[first])
            differences = [left - right for left, right in zip(a, b, strict=True)]
            low, more, high = quantiles(differences)
            error = _ERROR_OF_MEDIAN * (high - low) / sqrt(len(differences))
            print(
                f"{name}: loop {median(a):.1f} µs {first}, {median(b):.1f} {second}: "
                f"{more:+.2f} ± {error:.2f} µs, {more / whole:+.1%} ± {error / whole:.1%} of "
                f"{whole:.1f} µs in all threads",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
