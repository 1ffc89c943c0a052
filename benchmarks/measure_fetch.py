"""Fetch: recent data against Kafka's page cache, and sealed segments; raw client and Java's.

Shell.
"""

from benchmarks.java_perf import assigned_consumer, consumer_performance
from benchmarks.load import make_batches
from benchmarks.measure_produce import PARTITIONS, load
from benchmarks.peers import (
    KAFKA,
    OURS,
    GiB,
    MiB,
    Options,
    Peer,
    brokers,
    costed,
    interleaved,
    wait_idle,
)
from benchmarks.rawclient import connected, produce
from benchmarks.rawfetch import Fetcher, fetch_all
from benchmarks.table import Row, Sample, at_least, both, cpu_at_most, medians
from tests.support.driftlog_process import DriftlogProcess

_TOPIC = "to-fetch"


def recent(options: Options) -> list[Row]:
    """The raw client reads 1 MB and 64 KiB batches that were just written, again and again."""
    volume = (256 if options.quick else 2048) * MiB
    rows = []
    for label, batch_bytes, window in (("1 MB", 1_000_000, 8), ("64 KiB", 65_536, 64)):
        batches = make_batches(options.payloads[0], batch_bytes)

        def read(_: str, peer: Peer, __: int) -> Sample:
            return costed(peer, lambda: fetch_all(peer.bootstrap, _TOPIC, PARTITIONS))

        with brokers(options) as found:
            for peer in found.values():
                load(peer, _TOPIC, batches, volume, window)
                wait_idle(peer)
                fetch_all(peer.bootstrap, _TOPIC, PARTITIONS, verify=True)
            samples = interleaved(options, found, read)
        ours, kafka = medians(samples[OURS]), medians(samples[KAFKA])
        rows.append(
            Row(
                measure=f"fetch recent, {label} batches, {volume // MiB} MiB, raw",
                unit="MB/s",
                ours=ours,
                kafka=kafka,
                goal="≥ 1.0 × Kafka, ≤ 0.8 × its CPU",
                reached=both(at_least(ours, 1.0, kafka), cpu_at_most(ours, 0.8, kafka)),
            )
        )
    return rows


def idle(options: Options) -> list[Row]:
    """CPU of the broker for one poll of a consumer of very many partitions without new records: in
    a fetch session, and as a full fetch."""
    count = 2_000
    polls = 300 if options.quick else 2_000
    notes: dict[str, str] = {}

    def poll(name: str, peer: Peer, _: int) -> Sample:
        fetcher = Fetcher(peer.bootstrap, _TOPIC, dict.fromkeys(range(count), 0), max_wait_ms=1)
        session, found = fetcher.poll((0, 0), everything=True)
        if not session or found != count:
            raise ValueError(f"no session, or {found} partitions instead of {count}")
        fetcher.poll((session, 1), everything=False)

        def cost(times: int, *, everything: bool) -> float:
            before = peer.usage().cpu_seconds
            for number in range(times):
                fetcher.poll(
                    (0, -1) if everything else (session, 2 + number), everything=everything
                )
            return (peer.usage().cpu_seconds - before) / times * 1000

        value = cost(polls, everything=False)
        notes[name] = f"{name} without a session {cost(polls // 20, everything=True):.1f}"
        fetcher.close()
        return Sample(value=value)

    with brokers(options) as found:
        for peer in found.values():
            with connected(peer.bootstrap) as connection:
                connection.create_topic(_TOPIC, count)
            wait_idle(peer)
        samples = interleaved(options, found, poll)
    ours = medians(samples[OURS])
    return [
        Row(
            measure=f"a poll of {count:,} idle partitions, raw",
            unit="ms of CPU",
            ours=ours,
            kafka=medians(samples[KAFKA]),
            goal="≤ 1 ms",
            reached=None if ours is None else ours.value <= 1,
            note="; ".join(notes.values()),
        )
    ]


def java_recent(options: Options) -> list[Row]:
    """Java's consumer with assigned partitions; ConsumerPerformance (a group) against Kafka."""
    volume = (256 if options.quick else 2048) * MiB
    batches = make_batches(options.payloads[0], 65_536)
    records: dict[str, int] = {}

    def read(name: str, peer: Peer, _: int) -> Sample:
        before = peer.usage()
        result = assigned_consumer(peer.bootstrap, _TOPIC, records[name])
        after = peer.usage()
        return Sample(
            value=result.mb_per_second,
            cpu_seconds_per_gib=(after.cpu_seconds - before.cpu_seconds)
            / (result.records * 1024 / GiB),
            peak_rss_mib=after.peak_rss_bytes / MiB,
        )

    note = ""
    with brokers(options) as found:
        for name, peer in found.items():
            records[name] = load(peer, _TOPIC, batches, volume, 64).records
            wait_idle(peer)
        samples = interleaved(options, found, read)
        if kafka_peer := found.get(KAFKA):
            tool = consumer_performance(kafka_peer.bootstrap, _TOPIC, records[KAFKA])
            note = f"ConsumerPerformance on Kafka {tool.mb_per_second:.0f}"
    ours, kafka = medians(samples[OURS]), medians(samples[KAFKA])
    return [
        Row(
            measure=f"fetch recent, 64 KiB batches, {volume // MiB} MiB, Java, assigned",
            unit="MB/s",
            ours=ours,
            kafka=kafka,
            goal="≥ 1.0 × Kafka",
            reached=at_least(ours, 1.0, kafka),
            note=note,
        )
    ]


def sealed(options: Options) -> list[Row]:
    """After `segments seal` and a restart, which leaves no buffer files of sealed ranges."""
    volume = (256 if options.quick else 2048) * MiB
    rows = []
    for payload in options.payloads:
        samples: list[Sample] = []
        with brokers(options, [OURS]) as found:
            for peer in found.values():
                assert isinstance(peer, DriftlogProcess)
                with connected(peer.bootstrap) as connection:
                    connection.create_topic(_TOPIC, len(PARTITIONS))
                batches = make_batches(payload, 1_000_000)
                produce(peer.bootstrap, _TOPIC, PARTITIONS, batches, volume, acks=-1)
                peer.seal(_TOPIC)
                for _ in range(options.rounds):
                    peer.terminate()
                    peer.start()
                    samples.append(
                        costed(
                            peer,
                            lambda peer=peer: fetch_all(  # type: ignore[misc]
                                peer.bootstrap, _TOPIC, PARTITIONS, verify=True
                            ),
                        )
                    )
        ours = medians(samples)
        rows.append(
            Row(
                measure=f"fetch sealed, {payload}, {volume // MiB} MiB, raw, CRCs checked",
                unit="MB/s",
                ours=ours,
                kafka=None,
                goal="≥ 300 MB/s",
                reached=None if ours is None else ours.value >= 300,
            )
        )
    return rows
