"""Spark on a sealed topic, on the same files without the reader, and on Kafka's same records.

Shell.
"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks.load import make_batches
from benchmarks.measure_produce import PARTITIONS
from benchmarks.peers import KAFKA, OURS, MiB, Options, brokers
from benchmarks.rawclient import connected, produce
from benchmarks.table import Row, Sample
from tests.support.driftlog_process import DriftlogProcess

_TOPIC = "to-scan"
_TIMEOUT_SECONDS = 600


def scans(options: Options) -> list[Row]:
    """count() and sum(length(value)) of a million records (quick: a quarter) of 1 KiB."""
    volume = (256 if options.quick else 1024) * MiB
    batches = make_batches(options.payloads[-1], 65_536)
    samples: dict[str, Sample] = {}
    with brokers(options) as found:
        for name, peer in found.items():
            with connected(peer.bootstrap) as connection:
                connection.create_topic(_TOPIC, len(PARTITIONS))
            sent = produce(peer.bootstrap, _TOPIC, PARTITIONS, batches, volume, acks=-1, window=64)
            places = {"kafka": peer.bootstrap}
            if name == OURS:
                assert isinstance(peer, DriftlogProcess)
                peer.seal(_TOPIC)
                location = str(_bucket(peer.directory))
                places = {"segments": location, "parquet": location}
            for source, place in places.items():
                samples[source] = _scan(source, place, sent.records)
                options.progress(f"    {source}: {samples[source].value:.2f} s")
    ours, plain, kafka = (samples.get(name) for name in ("segments", "parquet", KAFKA))
    return [
        Row(
            measure=f"Spark count + sum of lengths, {volume // MiB} MiB, Kafka's source beside",
            unit="s",
            ours=ours,
            kafka=kafka,
            goal="≥ 2 × as fast as Kafka's source",
            reached=None if not (ours and kafka) else 2 * ours.value <= kafka.value,
        ),
        Row(
            measure="the same, spark.read.parquet on the same files beside",
            unit="s",
            ours=ours,
            kafka=None,
            goal="≥ 0.9 × as fast as spark.read.parquet",
            reached=None if not (ours and plain) else 0.9 * ours.value <= plain.value,
            note=f"spark.read.parquet {plain.value:.2f} s" if plain else "",
        ),
    ]


def _bucket(directory: Path) -> Path:
    """The folder of the agent's objects: where `cluster.json` is.

    Raises:
        FileNotFoundError: there is none.
    """
    for path in directory.rglob("cluster.json"):
        return path.parent
    raise FileNotFoundError(f"no cluster.json below {directory}")


def _scan(source: str, location: str, records: int) -> Sample:
    """The median of the runs after the first.

    Raises:
        AssertionError: Spark read another number of records.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.spark_source", source, location, _TOPIC],
        stdout=subprocess.PIPE,
        check=True,
        timeout=_TIMEOUT_SECONDS,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    if found["records"] != records:
        raise AssertionError(f"{source}: {found['records']} of {records} records")
    return Sample(value=median(found["seconds"][1:]))
