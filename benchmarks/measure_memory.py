"""Memory of an agent under full load: its peak, and whether it grows.

The store is `benchmarks.slow_s3 --hollow`, which keeps only the end of old objects, as ten minutes
of full load are more than the disk; the client sends as fast as the agent takes it, acks=all, and a
raw consumer reads along from the tail.
Shell.
"""

import threading
import time
from statistics import median

from benchmarks.load import make_batches
from benchmarks.measure_produce import PARTITIONS
from benchmarks.peers import KAFKA, OURS, MiB, Options, Peer, brokers, room_for, slow_s3
from benchmarks.rawclient import connected, produce
from benchmarks.rawfetch import Fetcher
from benchmarks.table import Row, Sample

_SLICE_BYTES = 256 * MiB
_FLAT = 1.05
"""The last third's median may be this many times the second third's."""
_GOAL_MIB = 512


def memory(options: Options, seconds: float | None = None) -> list[Row]:
    """Resident memory every second, for 10 minutes (quick: 30 s)."""
    seconds = seconds or (30.0 if options.quick else 600.0)
    found_rss: dict[str, list[float]] = {}
    rates: dict[str, float] = {}
    with slow_s3(options, 20.0, hollow=True) as (_, environment):
        store = ("--store", "s3://bench/memory")
        with brokers(options, [OURS], arguments=store, environment=environment) as found:
            for name, peer in found.items():
                rates[name], found_rss[name] = _load(options, peer, seconds)
    with brokers(options, [KAFKA]) as found:
        for name, peer in found.items():
            # A JVM's heap is limited by -Xmx; half a minute shows its size.
            rates[name], found_rss[name] = _load(options, peer, min(seconds, 30.0))
    samples = {name: Sample(value=max(rss)) for name, rss in found_rss.items()}
    reached, note = None, ""
    if rss := found_rss.get(OURS):
        third = len(rss) // 3
        middle, last = median(rss[third : 2 * third]), median(rss[2 * third :])
        reached = max(rss) <= _GOAL_MIB and last <= _FLAT * middle
        note = f"{middle:.0f} → {last:.0f} MiB (2nd, 3rd third) at {rates[OURS]:.0f} MB/s"
    return [
        Row(
            measure=f"peak RSS under full load, {seconds:.0f} s",
            unit="MiB",
            ours=samples.get(OURS),
            kafka=samples.get(KAFKA),
            goal=f"≤ {_GOAL_MIB} MiB, flat",
            reached=reached,
            note=note,
        )
    ]


def _load(options: Options, peer: Peer, seconds: float) -> tuple[float, list[float]]:
    """MB/s, and the resident MiB second by second; ends early when the disk is nearly full."""
    batches = make_batches(options.payloads[-1], 1_000_000)
    with connected(peer.bootstrap) as connection:
        connection.create_topic("memory", len(PARTITIONS))
    rss: list[float] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(1.0):
            rss.append(peer.usage().rss_bytes / MiB)

    def read() -> None:
        fetcher = Fetcher(peer.bootstrap, "memory", dict.fromkeys(PARTITIONS, 0))
        while not stop.is_set():
            fetcher.fetch()
        fetcher.close()

    threads = [threading.Thread(target=body, daemon=True) for body in (watch, read)]
    for thread in threads:
        thread.start()
    began, sent = time.monotonic(), 0
    try:
        while time.monotonic() - began < seconds and room_for(options.directory, _SLICE_BYTES):
            result = produce(peer.bootstrap, "memory", PARTITIONS, batches, _SLICE_BYTES, acks=-1)
            sent += result.value_bytes
        rate = sent / (time.monotonic() - began) / 1e6
    finally:
        stop.set()
        for thread in threads:
            thread.join(10.0)
    return rate, rss or [peer.usage().rss_bytes / MiB]
