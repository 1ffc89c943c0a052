"""Produce: bursts, a sustained load, acks=all, one-record requests; raw client and Java.

Four partitions, 1 KiB records, no compression by the client.
Shell.
"""

from collections.abc import Sequence

from benchmarks.batches import Batch
from benchmarks.java_perf import producer_performance
from benchmarks.load import make_batches
from benchmarks.peers import (
    KAFKA,
    OURS,
    GiB,
    MiB,
    Options,
    Peer,
    brokers,
    costed,
    disk_mb_per_second,
    interleaved,
    room_for,
    sink,
)
from benchmarks.rawclient import LoadResult, connected, produce, produce_tiny
from benchmarks.table import Row, Sample, at_least, both, cpu_at_most, medians

PARTITIONS = range(4)
BATCHES = {"1 MB": (1_000_000, 8), "64 KiB": (65_536, 64)}
"""`batch.size`, and how many requests a connection keeps in flight: about 8 and 4 MB."""
_UNSEALED = {"segment.bytes": str((2 << 30) - 1), "segment.ms": str(86_400_000)}
"""Topic configs that keep sealing out of a burst; Kafka rolls its files by them."""


def load(
    peer: Peer, topic: str, batches: Sequence[Batch], value_bytes: int, window: int, acks: int = 1
) -> LoadResult:
    """One load of four connections on a topic of its own, which is not deleted."""
    with connected(peer.bootstrap) as connection:
        connection.create_topic(topic, len(PARTITIONS), _UNSEALED)
    return produce(
        peer.bootstrap, topic, PARTITIONS, batches, value_bytes, acks=acks, window=window
    )


def delete(peer: Peer, topic: str) -> None:
    with connected(peer.bootstrap) as connection:
        connection.delete_topic(topic)


def warm_up(peer: Peer, options: Options) -> None:
    """Send enough to compile a JVM's hot code; the same load for every broker."""
    volume = (128 if options.quick else 1024) * MiB
    load(peer, "warm-up", make_batches("random", 65_536), volume, 64)
    delete(peer, "warm-up")


def bursts(options: Options) -> list[Row]:
    """acks=1, bursts that fit into the buffer, raw client."""
    volume = (256 if options.quick else 2048) * MiB
    rows = []
    for payload in options.payloads:
        for label, (batch_bytes, window) in BATCHES.items():
            batches = make_batches(payload, batch_bytes)

            def burst(
                _: str,
                peer: Peer,
                number: int,
                batches: Sequence[Batch] = batches,
                window: int = window,
            ) -> Sample:
                topic = f"burst-{number}"
                sample = costed(peer, lambda: load(peer, topic, batches, volume, window))
                delete(peer, topic)
                return sample

            with brokers(options) as found:
                for peer in found.values():
                    warm_up(peer, options)
                samples = interleaved(options, found, burst)
            ours, kafka = medians(samples[OURS]), medians(samples[KAFKA])
            rows.append(
                Row(
                    measure=f"produce {label}, acks=1, {payload}, {volume // MiB} MiB burst, raw",
                    unit="MB/s",
                    ours=ours,
                    kafka=kafka,
                    goal="≥ 1.5 × Kafka, ≤ 0.25 × its CPU",
                    reached=both(at_least(ours, 1.5, kafka), cpu_at_most(ours, 0.25, kafka)),
                )
            )
    return rows


def java_bursts(options: Options) -> list[Row]:
    """ProducerPerformance, and the same load into the sink."""
    records = 200_000 if options.quick else 2_000_000
    rows = []
    for payload in options.payloads:
        for label, (batch_bytes, _) in BATCHES.items():

            def run(
                bootstrap: str, topic: str, payload: str = payload, size: int = batch_bytes
            ) -> float:
                result = producer_performance(
                    bootstrap, topic, records, batch_bytes=size, payload=payload
                )
                return result.mb_per_second

            def burst(_: str, peer: Peer, number: int) -> Sample:
                topic = f"java-{number}"
                with connected(peer.bootstrap) as connection:
                    connection.create_topic(topic, len(PARTITIONS), _UNSEALED)
                before = peer.usage()
                rate = run(peer.bootstrap, topic)
                after = peer.usage()
                delete(peer, topic)
                return Sample(
                    value=rate,
                    cpu_seconds_per_gib=(after.cpu_seconds - before.cpu_seconds)
                    / (records * 1024 / GiB),
                    peak_rss_mib=after.peak_rss_bytes / MiB,
                )

            with brokers(options) as found:
                for peer in found.values():
                    warm_up(peer, options)
                samples = interleaved(options, found, burst)
            with sink(len(PARTITIONS)) as address:
                discarded = medians(
                    [Sample(value=run(address, "sink")) for _ in range(options.rounds)]
                )
            assert discarded is not None
            ours = medians(samples[OURS])
            rows.append(
                Row(
                    measure=f"produce {label}, acks=1, {payload}, {records:,} records, Java",
                    unit="MB/s",
                    ours=ours,
                    kafka=medians(samples[KAFKA]),
                    goal="≥ 0.85 × the sink",
                    reached=at_least(ours, 0.85, discarded),
                    note=f"sink {discarded.value:.0f}",
                )
            )
    return rows


def sustained(options: Options) -> list[Row]:
    """acks=1, many times the buffer's size, with flush and sealing until the broker is idle."""
    volume = (1 if options.quick else 20) * GiB
    payload = options.payloads[-1]
    if not room_for(options.directory, int(2.7 * volume)):
        return [_skipped("produce sustained", "no room on the disk")]
    batches = make_batches(payload, 1_000_000)
    samples: dict[str, Sample] = {}
    for name in (OURS, KAFKA):
        # One after the other: both together would not fit on the disk.
        with brokers(options, [name]) as found:
            for peer in found.values():
                warm_up(peer, options)
                with connected(peer.bootstrap) as connection:
                    connection.create_topic("sustained", len(PARTITIONS))
                samples[name] = costed(
                    peer,
                    lambda peer=peer: produce(  # type: ignore[misc]
                        peer.bootstrap, "sustained", PARTITIONS, batches, volume
                    ),
                    settle=True,
                )
                options.progress(f"    {name}: {samples[name].value:,.1f}")
    disk = disk_mb_per_second(options.directory)
    ours, kafka = samples.get(OURS), samples.get(KAFKA)
    reached, note = None, f"disk {disk:.0f} MB/s"
    if ours and kafka and ours.written_per_byte and ours.cpu_seconds_per_gib is not None:
        bound = min(kafka.value, disk / ours.written_per_byte)
        reached = ours.value >= 0.8 * bound and ours.cpu_seconds_per_gib <= 6
    if ours and ours.written_per_byte is not None:
        note += f", {ours.written_per_byte:.2f} B written per B (ours)"
    if kafka and kafka.written_per_byte is not None:
        note += f", {kafka.written_per_byte:.2f} (Kafka)"
    return [
        Row(
            measure=f"produce 1 MB, acks=1, {payload}, {volume // GiB} GiB sustained, all included",
            unit="MB/s",
            ours=ours,
            kafka=kafka,
            goal="≥ 0.8 × min(Kafka, disk ÷ written per byte), ≤ 6 CPU s/GiB",
            reached=reached,
            note=note,
        )
    ]


def acks_all(options: Options) -> list[Row]:
    """acks=all into the directory store, against Kafka's acks=1."""
    volume = (256 if options.quick else 2048) * MiB
    payload = options.payloads[0]
    batches = make_batches(payload, 1_000_000)

    def burst(name: str, peer: Peer, number: int) -> Sample:
        topic, acks = f"all-{number}", -1 if name == OURS else 1
        sample = costed(peer, lambda: load(peer, topic, batches, volume, 8, acks))
        delete(peer, topic)
        return sample

    with brokers(options) as found:
        for peer in found.values():
            warm_up(peer, options)
        samples = interleaved(options, found, burst)
    ours, kafka = medians(samples[OURS]), medians(samples[KAFKA])
    return [
        Row(
            measure=f"produce 1 MB, acks=all (Kafka: acks=1), {payload}, {volume // MiB} MiB",
            unit="MB/s",
            ours=ours,
            kafka=kafka,
            goal="≥ 1.0 × Kafka",
            reached=at_least(ours, 1.0, kafka),
        )
    ]


def tiny(options: Options) -> list[Row]:
    """One record of 100 bytes a request, acks=1, pipelined on two connections."""
    requests = 100_000 if options.quick else 1_000_000
    (batch,) = make_batches("random", 1, 100, count=1)

    def burst(name: str, peer: Peer, number: int) -> Sample:
        topic = f"tiny-{number}"
        with connected(peer.bootstrap) as connection:
            connection.create_topic(topic, len(PARTITIONS), _UNSEALED)
        # Kafka takes ten times as long; a tenth of the requests is enough for its rate.
        wanted = requests if name == OURS else requests // 10
        before = peer.usage()
        result = produce_tiny(peer.bootstrap, topic, PARTITIONS, batch, wanted)
        after = peer.usage()
        return Sample(
            value=result.requests_per_second,
            cpu_seconds_per_gib=(after.cpu_seconds - before.cpu_seconds)
            / (result.value_bytes / GiB),
            peak_rss_mib=after.peak_rss_bytes / MiB,
        )

    with brokers(options) as found:
        for peer in found.values():
            warm_up(peer, options)
        samples = interleaved(options, found, burst)
    ours = medians(samples[OURS])
    return [
        Row(
            measure="one-record requests of 100 B, acks=1, raw",
            unit="requests/s",
            ours=ours,
            kafka=medians(samples[KAFKA]),
            goal="≥ 100,000/s",
            reached=None if ours is None else ours.value >= 100_000,
        )
    ]


def _skipped(measure: str, why: str) -> Row:
    return Row(
        measure=measure, unit="", ours=None, kafka=None, goal="not run", reached=None, note=why
    )
