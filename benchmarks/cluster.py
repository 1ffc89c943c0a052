"""Costs and gaps of a cluster: agents on one etcd that are killed, join and leave.

    python -m benchmarks.cluster                         every row
    python -m benchmarks.cluster failover move return    some
    python -m benchmarks.cluster --quick                 a test run; not to be quoted

Agents keep their objects in one directory (`scale`: and in S3), etcd syncs to the disk; client,
agents and etcd share the cores.  Gaps are those of a client that follows leaders at once
(`following`).

Shell.
"""

import argparse
import asyncio
import itertools
import re
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from confluent_kafka import Producer

from benchmarks import wire
from benchmarks.following import Address, Following
from benchmarks.peers import Options, slow_s3
from benchmarks.rawclient import connected, parse_bootstrap
from tests.support import etcd_server
from tests.support.driftlog_process import DriftlogProcess

GiB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Line:
    """A figure, its goal, and whether it reached the goal."""

    measure: str
    value: str
    goal: str
    reached: bool | None


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of work."""

    load_s: float = 10.0
    records: int = 2_000
    """Flush records of an agent that may not consolidate, before it is killed."""
    partitions: int = 10_000
    gib: float = 2.0
    rounds: int = 3


QUICK: Final = Scale(load_s=2.0, records=60, partitions=300, gib=0.05, rounds=1)

_PUT_MS: Final = 20.0
"""How long a PUT of the S3 server takes at least."""

_WARM_UP_GIB: Final = 1.25
"""Per agent, before measuring: then it writes over its buffer files instead of making new ones."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The location of objects outside a directory, and the environment of an agent that uses it."""

    location: str
    environment: Mapping[str, str]


class Cluster:
    """etcd and agents on one directory or bucket of objects."""

    def __init__(
        self, stack: ExitStack, arguments: Sequence[str] = (), bucket: Bucket | None = None
    ) -> None:
        self._stack = stack
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        (self.folder / "etcd").mkdir()
        etcd = etcd_server.start(
            etcd_server.newest_version(),
            self.folder / "etcd",
            durable=True,
            arguments=("--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1m"),
        )
        stack.callback(etcd.stop)
        location = bucket.location if bucket else str(self.folder / "objects")
        self._environment = bucket.environment if bucket else {}
        self._arguments = (
            *("--etcd", ",".join(etcd.endpoints), "--store", location),
            *arguments,
        )
        self.agents: list[DriftlogProcess] = []

    def add(
        self, *, wait: bool = True, prefix: Sequence[str] = (), arguments: Sequence[str] = ()
    ) -> DriftlogProcess:
        """One more agent, run by *prefix*, with more *arguments*."""
        agent = DriftlogProcess(
            self.folder / f"agent-{len(self.agents)}",
            (*self._arguments, *arguments),
            prefix=prefix,
            command=("agent", "run"),
            environment=self._environment,
        )
        self._stack.callback(agent.close)
        self.agents.append(agent)
        agent.launch()
        if wait:
            agent.wait_until_ready()
        return agent

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic and wait until every partition has a leader."""
        with connected(self.agents[0].bootstrap) as connection:
            answer = connection.ask(
                lambda id_: wire.create_topic_request(topic.encode(), partitions, {}, id_)
            )
            if code := wire.create_topic_error(answer):
                raise wire.KafkaError(f"CreateTopics {topic}", code)
            while len(connection.led(topic)) < partitions:
                time.sleep(0.05)

    @property
    def addresses(self) -> list[Address]:
        """The addresses of the agents."""
        return [parse_bootstrap(agent.bootstrap) for agent in self.agents]


@contextmanager
def cluster(
    agents: int,
    arguments: Sequence[str] = (),
    first: Sequence[str] = (),
    bucket: Bucket | None = None,
) -> Iterator[Cluster]:
    """*agents* on one etcd, the first of them run by *first*."""
    with ExitStack() as stack:
        made = Cluster(stack, arguments, bucket)
        for number in range(agents):
            made.add(wait=False, prefix=() if number else first)
        for agent in made.agents:
            agent.wait_until_ready()
        yield made


def metric(agent: DriftlogProcess, name: str) -> float:
    """One of the agent's metrics, without labels."""
    with urllib.request.urlopen(f"{agent.http}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def histogram(agents: Iterable[DriftlogProcess], name: str) -> list[tuple[float, float]]:
    """(upper bound, cumulative count), over all *agents*."""
    total: dict[float, float] = {}
    for agent in agents:
        with urllib.request.urlopen(f"{agent.http}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        for bound, count in re.findall(rf'^{name}_bucket{{le="(\S+)"}} (\S+)$', text, re.MULTILINE):
            total[float(bound)] = total.get(float(bound), 0.0) + float(count)
    return sorted(total.items())


def quantile(buckets: Sequence[tuple[float, float]], share: float) -> float:
    """The upper bound, in seconds, of the bucket that holds the quantile *share*."""
    wanted = buckets[-1][1] * share
    return next(bound for bound, count in buckets if count >= wanted)


# ── Rows ──


def failover(scale: Scale) -> Iterator[Line]:
    """From kill -9 of a leader to the next acknowledged produce to its partitions."""
    unconsolidated = (sys.executable, "-m", "benchmarks.unconsolidated")
    for ttl_ms, many_records, extra in (
        (6_000, False, 1.0),
        (6_000, True, 3.0),
        (3_000, False, 1.0),
    ):
        first = unconsolidated if many_records else ()
        with cluster(3, ("--session-timeout-ms", str(ttl_ms)), first) as made:
            made.create("t", 12)
            following = Following(b"t", 12, made.addresses)
            records = scale.records if many_records else 0
            took, found = asyncio.run(_killed(made, following, scale.load_s, records))
        goal = ttl_ms / 1000 + extra
        yield Line(
            f"failover, TTL {ttl_ms / 1000:g} s, {found} unsealed flush records",
            f"{took:.2f} s",
            f"≤ {goal:g} s",
            took <= goal,
        )


async def _killed(
    made: Cluster, following: Following, seconds: float, wanted: int
) -> tuple[float, int]:
    """Seconds from the kill until all partitions of the agent are acknowledged again, and its flush
    records at the kill, which are *wanted* at least."""
    task = asyncio.create_task(following.run())
    await asyncio.sleep(seconds)
    records = -1
    while records < wanted:
        await asyncio.sleep(0.2)
        records = int(metric(made.agents[0], "driftlog_flush_records"))
    victim = parse_bootstrap(made.agents[0].bootstrap)
    led = [p for p, at in (await following.leaders()).items() if at == victim]
    at = time.monotonic()
    made.agents[0].kill()
    await _until(lambda: all(following.acks[p].next_after(at + 0.5) for p in led), 30)
    task.cancel()
    return max((following.acks[p].next_after(at + 0.5) or at + 99) - at for p in led), records


def move(scale: Scale) -> Iterator[Line]:
    """A planned move under load: one agent joins, one leaves."""
    with cluster(3) as made:
        made.create("t", 24)
        following = Following(b"t", 24, made.addresses)

        async def run() -> tuple[float, float, int, int, float]:
            task = asyncio.create_task(following.run())
            await asyncio.sleep(scale.load_s)
            joined = time.monotonic()
            await asyncio.to_thread(made.add)
            following.bootstrap[:] = made.addresses
            await asyncio.sleep(4)
            left = time.monotonic()
            await asyncio.to_thread(made.agents[0].terminate)
            leaving = time.monotonic() - left
            await asyncio.sleep(4)
            end = time.monotonic()
            task.cancel()
            joins = [a.gap(joined, left) for a in following.acks if a.moved(joined, left)]
            leaves = [a.gap(left, end) for a in following.acks if a.moved(left, end)]
            return max(joins), max(leaves), len(joins), len(leaves), leaving

        join, leave, joins, leaves, leaving = asyncio.run(run())
    yield Line(
        f"planned move, an agent joins: longest of {joins} that moved",
        f"{join * 1000:.0f} ms",
        "< 500 ms",
        join < 0.5,
    )
    yield Line(
        f"planned move, SIGTERM: longest of {leaves}",
        f"{leave * 1000:.0f} ms",
        "< 500 ms",
        leave < 0.5,
    )
    yield Line(
        "SIGTERM to the end of the process, under load", f"{leaving:.2f} s", "< 2 s", leaving < 2
    )


def refresh(scale: Scale) -> Iterator[Line]:
    """Three agents are replaced one after the other, as an autoscaling group's instance refresh
    does it: a new one joins, then SIGTERM to an old one.  A stock idempotent client produces."""
    with cluster(3) as made:
        made.create("t", 24)
        made.create("stock", 12)
        following = Following(b"t", 24, made.addresses)
        client = _StockProducer([agent.bootstrap for agent in made.agents])

        async def run() -> list[float]:
            task = asyncio.create_task(following.run())
            producing = asyncio.create_task(asyncio.to_thread(client.run))
            await asyncio.sleep(scale.load_s)
            steps = [time.monotonic()]
            for old in list(made.agents):
                await asyncio.to_thread(made.add)
                following.bootstrap[:] = made.addresses
                await asyncio.sleep(_SETTLED_S)
                steps.append(time.monotonic())
                await asyncio.to_thread(old.terminate)
                await asyncio.sleep(_SETTLED_S)
                steps.append(time.monotonic())
            task.cancel()
            client.stop()
            await producing
            return steps

        steps = asyncio.run(run())
    gaps = [
        max(acks.gap(began, ended) for acks in following.acks)
        for began, ended in itertools.pairwise(steps)
    ]
    yield Line(
        f"refresh of 3 agents in {steps[-1] - steps[0]:.0f} s: longest time of one of "
        f"{len(following.acks)} partitions without an acknowledgement; at each join and leave",
        f"{max(gaps) * 1000:.0f} ms; " + ", ".join(f"{gap * 1000:.0f}" for gap in gaps),
        "≤ 500 ms",
        max(gaps) <= 0.5,
    )
    yield Line(
        f"the same: errors of {client.delivered:,} records of a stock idempotent client",
        f"{len(client.errors)}" + "".join(f", {each}" for each in sorted(client.errors)[:3]),
        "0",
        not client.errors,
    )


_SETTLED_S: Final = 3.0
"""After a join or a leave, before the next."""

_STOCK_BYTES_PER_S: Final = 4 * 1024 * 1024


class _StockProducer:
    """confluent-kafka's idempotent producer, at a steady rate."""

    def __init__(self, bootstrap: Sequence[str]) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": ",".join(bootstrap),
                "enable.idempotence": True,
                "linger.ms": 5,
                "error_cb": lambda error: self.errors.append(str(error)) if error.fatal() else None,
            }
        )
        self._stopped = threading.Event()
        self.delivered = 0
        self.errors: list[str] = []
        """Of deliveries, and fatal ones; librdkafka tells each closed connection, too."""

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        """Produce until `stop`, and wait for all deliveries."""
        value = bytes(range(256)) * 4
        sent, began = 0, time.monotonic()
        while not self._stopped.is_set():
            while sent * len(value) < (time.monotonic() - began) * _STOCK_BYTES_PER_S:
                self._producer.produce(
                    "stock", value, partition=sent % 12, on_delivery=self._delivered
                )
                sent += 1
            self._producer.poll(0.005)
        left = self._producer.flush(60)
        if left:
            self.errors.append(f"{left} records without an answer")

    def _delivered(self, error: object, _message: object) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.errors.append(str(error))


def many(scale: Scale) -> Iterator[Line]:
    """Thousands of partitions over five agents."""
    count = scale.partitions
    with cluster(5) as made:
        began = time.monotonic()
        made.create("t", count)
        asyncio.run(_all_led(made, "t", count, made.addresses))
        yield Line(
            f"{count:,} partitions created over 5 agents, all led",
            f"{time.monotonic() - began:.1f} s",
            "",
            None,
        )
        for agent in made.agents:
            agent.terminate()
        began = time.monotonic()
        for agent in made.agents:
            agent.launch()
        for agent in made.agents:
            agent.wait_until_ready()
        asyncio.run(_all_led(made, "t", count, made.addresses))
        took = time.monotonic() - began
        yield Line(
            f"{count:,} partitions, start of 5 agents to all led",
            f"{took:.1f} s",
            "≤ 15 s",
            took <= 15,
        )
        time.sleep(3)
        began = time.monotonic()
        made.agents[0].kill()
        asyncio.run(_all_led(made, "t", count, made.addresses[1:], without=made.addresses[0]))
        took = time.monotonic() - began
        yield Line("one of them dies, to all led", f"{took:.1f} s", "≤ 11 s", took <= 11)


def back(scale: Scale) -> Iterator[Line]:
    """kill -9, and a restart on the same disk after a second."""
    with cluster(3) as made:
        made.create("t", 12)
        following = Following(b"t", 12, made.addresses)

        async def run() -> tuple[float, bool]:
            task = asyncio.create_task(following.run())
            await asyncio.sleep(scale.load_s)
            victim = made.agents[0]
            address = parse_bootstrap(victim.bootstrap)
            led = [p for p, at in (await following.leaders()).items() if at == address]
            at = time.monotonic()
            victim.kill()
            await asyncio.sleep(1)
            victim.launch()
            await _until(lambda: all(following.acks[p].next_after(at + 0.9) for p in led), 30)
            task.cancel()
            stayed = all(following.acks[p].leaders[-1] == address for p in led)
            return max((following.acks[p].next_after(at + 0.9) or 99) - at for p in led), stayed

        took, stayed = asyncio.run(run())
    kept = "kept its partitions" if stayed else "lost its partitions"
    yield Line(
        f"kill −9, started again after 1 s ({kept})", f"{took:.2f} s", "≤ 3 s", took <= 3 and stayed
    )


def etcd(scale: Scale) -> Iterator[Line]:
    """Cost of commits at four flushes per second and agent."""
    with cluster(3) as made:
        made.create("t", 12)
        following = Following(b"t", 12, made.addresses)

        async def run() -> None:
            producers = asyncio.create_task(following.run())
            await asyncio.sleep(scale.load_s)
            producers.cancel()

        asyncio.run(run())
        buckets = histogram(made.agents, "driftlog_commit_seconds")
    p50, p99 = quantile(buckets, 0.5), quantile(buckets, 0.99)
    rate = buckets[-1][1] / scale.load_s / 3
    yield Line(
        f"commit transaction, {rate:.0f} flushes/s and agent: p50 (p99)",
        f"≤ {p50 * 1000:g} ms (≤ {p99 * 1000:g} ms)",
        "≤ 10 ms p50",
        p50 <= 0.01,
    )


def two(scale: Scale) -> Iterator[Line]:
    """The same work on one agent and on two, in turns: in a bucket, where each agent flushes 20
    times a second at most, and in a directory, where it may flush 200 times."""
    with slow_s3(Options(), _PUT_MS) as (_, environment):
        names = (f"s3://bench/{number}" for number in itertools.count())
        yield from _two(scale, f"S3, {_PUT_MS:g} ms", lambda: Bucket(next(names), environment))
    yield from _two(scale, "a directory", lambda: None)


def _two(scale: Scale, where: str, bucket: Callable[[], Bucket | None]) -> Iterator[Line]:
    costs: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    for _ in range(scale.rounds):
        for agents, found in costs.items():
            with cluster(agents, bucket=bucket()) as made:
                made.create("t", 8)
                _produce(made, min(_WARM_UP_GIB, scale.gib) * agents)
                _when_idle(made)
                before = sum(agent.usage().cpu_seconds for agent in made.agents)
                began = time.monotonic()
                size = _produce(made, scale.gib)
                seconds = time.monotonic() - began
                cpu = _when_idle(made) - before  # sealing continues for a while
            found.append((cpu / (size / GiB), size / 1e6 / seconds))
    (one_cpu, one_mb), (two_cpu, two_mb) = (
        [median(values) for values in zip(*found, strict=True)] for found in costs.values()
    )
    each = ", ".join(
        f"{two / one:.2f}" for (one, _), (two, _) in zip(costs[1], costs[2], strict=True)
    )
    yield Line(
        f"agent CPU s/GiB of 2 agents against 1, {where}, acks=all, 1 KiB records; each round",
        f"{two_cpu:.2f} / {one_cpu:.2f} = {two_cpu / one_cpu:.2f} ×; {each}",
        "≤ 1.1 ×",
        two_cpu <= 1.1 * one_cpu,
    )
    yield Line(f"throughput of the two, {where}", f"{two_mb:.0f} / {one_mb:.0f} MB/s", "", None)


ROWS: Final[dict[str, Callable[[Scale], Iterator[Line]]]] = {
    "failover": failover,
    "move": move,
    "refresh": refresh,
    "many": many,
    "return": back,
    "etcd": etcd,
    "scale": two,
}


# ── Parts ──


async def _until(holds: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:  # noqa: ASYNC110  # of what tasks note
        await asyncio.sleep(0.01)


async def _all_led(
    made: Cluster,
    topic: str,
    count: int,
    addresses: Sequence[Address],
    without: Address | None = None,
) -> None:
    """Return when every agent names a live leader of every partition."""
    del made
    for address in addresses:
        while True:
            leaders = await Following(topic.encode(), 0, [address]).leaders()
            if len(leaders) == count and without not in leaders.values():
                break
            await asyncio.sleep(0.1)


def _when_idle(made: Cluster) -> float:
    """CPU seconds of all agents, once they are idle."""
    seconds = sum(agent.usage().cpu_seconds for agent in made.agents)
    while True:
        time.sleep(2)
        now = sum(agent.usage().cpu_seconds for agent in made.agents)
        if now - seconds < 0.1 * len(made.agents):
            return now
        seconds = now


def _produce(made: Cluster, gib: float) -> int:
    """Produce with a stock client; returns the bytes of values."""
    producer = Producer(
        {
            "bootstrap.servers": ",".join(agent.bootstrap for agent in made.agents),
            "acks": "all",
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "queue.buffering.max.kbytes": 256 * 1024,
        }
    )
    errors: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            errors.append(error)

    value = bytes(range(256)) * 4
    count = int(gib * GiB / len(value))
    for number in range(count):
        while True:
            try:
                producer.produce("t", value, partition=number // 500 % 8, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
        if not number % 1000:
            producer.poll(0)
    producer.flush(120)
    if errors:
        raise RuntimeError(f"{len(errors)} records were not taken: {errors[0]}")
    return count * len(value)


def main() -> None:
    """Run the command of the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    scale = QUICK if options.quick else replace(Scale())
    print("| measure | measured | goal | reached |\n|---|---|---|---|", flush=True)
    for name in options.rows or ROWS:
        for line in ROWS[name](scale):
            reached = {True: "yes", False: "no", None: ""}[line.reached]
            print(f"| {line.measure} | {line.value} | {line.goal} | {reached} |", flush=True)


if __name__ == "__main__":
    main()
