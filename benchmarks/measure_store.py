"""Figures on a store whose PUTs take 60 ms: a lockstep producer, latency, PUTs and their price.

The store is `benchmarks.slow_s3`; a PUT costs $5 a million (S3 Standard, us-east-1, list price).
Kafka's figures beside them are on its local disk, acks=all.
Shell.
"""

import json
import time
import urllib.request
from collections.abc import Mapping

from confluent_kafka import Producer

from benchmarks.latency import measure_latency
from benchmarks.load import make_batches
from benchmarks.measure_produce import PARTITIONS
from benchmarks.peers import (
    KAFKA,
    OURS,
    GiB,
    MiB,
    Options,
    Peer,
    brokers,
    interleaved,
    slow_s3,
    wait_idle,
)
from benchmarks.rawclient import connected, produce
from benchmarks.table import Row, Sample, at_least, both, medians
from tests.support.driftlog_process import DriftlogProcess

PUT_DELAY_MS = 60.0
DOLLARS_PER_PUT = 5e-6
_SECONDS_PER_MONTH = 30 * 86_400
_LIBRDKAFKA_BATCH_BYTES = 1_000_000
"""librdkafka's default `batch.size`: the most that one of its Produce requests carries."""


def puts(address: str) -> dict[str, int]:
    """The server's counters."""
    with urllib.request.urlopen(f"{address}/_stats", timeout=10) as answer:
        found: dict[str, int] = json.load(answer)
    return {"PUT": 0, "put_bytes": 0} | found


def idempotent(options: Options) -> list[Row]:
    """confluent-kafka with nothing set but idempotence, one partition, 1 KiB records."""
    seconds = 5.0 if options.quick else 20.0
    with (
        slow_s3(options, PUT_DELAY_MS) as (_, environment),
        brokers(options, arguments=_store("idempotent"), environment=environment) as found,
    ):
        samples = interleaved(
            options, found, lambda _, peer, number: _lockstep(peer, f"one-{number}", seconds)
        )
    ours = medians(samples[OURS])
    bound = _LIBRDKAFKA_BATCH_BYTES / (PUT_DELAY_MS / 1e3) / 1e6
    return [
        Row(
            measure="confluent-kafka, enable.idempotence, 1 partition, 60 ms PUTs",
            unit="MB/s",
            ours=ours,
            kafka=medians(samples[KAFKA]),
            goal=f"≥ 0.8 × batch.size / 60 ms = {0.8 * bound:.1f}",
            reached=at_least(ours, 0.8, Sample(value=bound)),
            note="Kafka without a store",
        )
    ]


def _lockstep(peer: Peer, topic: str, seconds: float) -> Sample:
    """Keep the producer's queue full for *seconds*, then flush; acknowledged bytes a second.

    `produce_batch` queues a thousand records in compiled code.
    """
    with connected(peer.bootstrap) as connection:
        connection.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": peer.bootstrap, "enable.idempotence": True})
    value = make_batches("random", 1, 1024, count=1)[0].data[-1025:-1]
    messages = [{"value": bytes(value)}] * 1000
    queued = 0
    before, began = peer.usage(), time.perf_counter()
    while time.perf_counter() - began < seconds:
        if len(producer) < 90_000:
            queued += producer.produce_batch(topic, messages, partition=0)
        producer.poll(0.01)
    if producer.flush(120):
        raise TimeoutError(f"{len(producer)} records were not delivered")
    took = time.perf_counter() - began
    after = peer.usage()
    with connected(peer.bootstrap) as connection:
        stored = connection.end_offsets(topic, [0])[0]
    if stored != queued:
        raise AssertionError(f"{queued} records were sent and {stored} are there")
    return Sample(
        value=queued * 1024 / took / 1e6,
        cpu_seconds_per_gib=(after.cpu_seconds - before.cpu_seconds) / (queued * 1024 / GiB),
        peak_rss_mib=after.peak_rss_bytes / MiB,
    )


def latency(options: Options) -> list[Row]:
    """1,000 records/s of 1 KiB, acks=all, while a consumer reads; and the price of the PUTs."""
    seconds = 8.0 if options.quick else 30.0
    rows = []
    with (
        slow_s3(options, PUT_DELAY_MS) as (address, environment),
        brokers(options, arguments=_store("latency"), environment=environment) as found,
    ):
        for pipelined, p50, p99 in ((False, 150, 400), (True, 200, 400)):
            mode = "pipelined" if pipelined else "one in flight"
            acknowledged: dict[str, tuple[float, float]] = {}
            read: dict[str, tuple[float, float]] = {}
            rate = 0.0
            for name, peer in found.items():
                topic = f"latency-{pipelined}"
                with connected(peer.bootstrap) as connection:
                    connection.create_topic(topic, 1)
                before = puts(address)["PUT"]
                began = time.monotonic()
                result = measure_latency(
                    peer.bootstrap, topic, pipelined=pipelined, seconds=seconds
                )
                if name == OURS:
                    rate = (puts(address)["PUT"] - before) / (time.monotonic() - began)
                acknowledged[name] = result.acknowledged.p50_ms, result.acknowledged.p99_ms
                read[name] = result.end_to_end.p50_ms, result.end_to_end.p99_ms
                options.progress(f"    {name} {mode}: {result.acknowledged}, {result.end_to_end}")
            rows += _latency_rows(f"produce {mode}", acknowledged, p50, p99)
            rows += _latency_rows(f"end to end, {mode}", read, 250, 500)
            if OURS in found:
                rows.append(_put_rate(f"PUTs, {mode} at 1,000 records/s", rate, 16))
    return rows


def _latency_rows(
    what: str, found: Mapping[str, tuple[float, float]], p50: float, p99: float
) -> list[Row]:
    rows = []
    for at, (percentile, goal) in enumerate((("p50", p50), ("p99", p99))):
        samples = {name: Sample(value=values[at]) for name, values in found.items()}
        ours = samples.get(OURS)
        rows.append(
            Row(
                measure=f"{what} {percentile}, 1,000 records/s, acks=all, 60 ms PUTs",
                unit="ms",
                ours=ours,
                kafka=samples.get(KAFKA),
                goal=f"≤ {goal:.0f} ms",
                reached=None if ours is None else ours.value <= goal,
                note="Kafka without a store",
            )
        )
    return rows


def put_counts(options: Options) -> list[Row]:
    """PUTs per GiB under load (sealing included) and of an idle agent."""
    volume = (512 if options.quick else 4096) * MiB
    idle_seconds = 10.0 if options.quick else 60.0
    with (
        slow_s3(options, PUT_DELAY_MS) as (address, environment),
        brokers(options, [OURS], arguments=_store("puts"), environment=environment) as found,
    ):
        if OURS not in found:
            return []
        peer = found[OURS]
        with connected(peer.bootstrap) as connection:
            connection.create_topic("puts", len(PARTITIONS))
        before = puts(address)
        result = produce(
            peer.bootstrap,
            "puts",
            PARTITIONS,
            make_batches(options.payloads[0], 65_536),
            volume,
            acks=-1,
            window=64,
        )
        wait_idle(peer)
        assert isinstance(peer, DriftlogProcess)
        peer.seal("puts")  # otherwise sealing would run in the idle minute
        after = puts(address)
        time.sleep(5.0)
        idle_before = puts(address)["PUT"]
        time.sleep(idle_seconds)
        idle = puts(address)["PUT"] - idle_before
    count = after["PUT"] - before["PUT"]
    per_gib = count / (result.value_bytes / GiB)
    fast = result.value_bytes / result.seconds >= 32 * MiB
    return [
        Row(
            measure=f"PUTs per GiB, {volume // MiB} MiB at {result.mb_per_second:.0f} MB/s",
            unit="PUTs/GiB",
            ours=Sample(value=per_gib),
            kafka=None,
            goal="≤ 200 at ≥ 32 MiB/s",
            reached=both(per_gib <= 200, True if fast else None),
            note=f"${per_gib * DOLLARS_PER_PUT:.5f} per GiB",
        ),
        Row(
            measure=f"PUTs of an idle agent in {idle_seconds:.0f} s",
            unit="PUTs",
            ours=Sample(value=idle),
            kafka=None,
            goal="0",
            reached=idle == 0,
        ),
    ]


def _put_rate(measure: str, rate: float, most: float) -> Row:
    return Row(
        measure=measure,
        unit="PUTs/s",
        ours=Sample(value=rate),
        kafka=None,
        goal=f"≤ {most:.0f}/s",
        reached=rate <= most,
        note=f"${rate * DOLLARS_PER_PUT * _SECONDS_PER_MONTH:.0f} a month",
    )


def _store(prefix: str) -> tuple[str, ...]:
    return ("--store", f"s3://bench/{prefix}")
