"""`read_topic` beside ``spark.read.parquet`` on the same files: the cost of finding them.

    python -m benchmarks.spark_scan [--mib 1024] [--segment-mib 64] [--runs 5]

A topic of four partitions with 1 KiB JSON records in a temporary directory; one session with
two threads; the two sides in turns, the first turn not counted.  Planning is in the time:
manifests for `read_topic`, schema inference and listing for Spark.  Medians, and the ratio of
plain Spark to `read_topic` (goal: at least 0.9).

Shell.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.sealing import endless, make_batches
from benchmarks.spark import spark_session
from driftlog_spark_reader import read_topic
from driftlog_tiering.batches.batch import Codec, parse_header
from tests.support.sealed_topics import SealedTopic

MiB = 1024 * 1024
PARTITIONS = 4

QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "count": lambda df: df.agg(f.count("*")),
    "sum of lengths": lambda df: df.agg(f.count("*"), f.sum(f.length("value"))),
    "all columns": lambda df: df.agg(f.count("*"), f.sum(f.crc32("value")), f.sum(f.hash("*"))),
}


def main() -> None:
    """Seal, then measure every query."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--segment-mib", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-scan-") as folder:
        records = seal(folder, options.mib, options.segment_mib)
        with spark_session(folder) as spark:
            measure(spark, folder, records, options.runs)


def seal(location: str, mib: int, segment_mib: int) -> int:
    """Fill the topic; return its records."""
    topic = SealedTopic(location, "scanned", PARTITIONS).create()
    batches = make_batches("json", Codec.NONE, 1024)
    per_segment = segment_mib * MiB // len(batches[0][0])
    records = 0
    for partition in range(PARTITIONS):
        source = endless(batches)
        end = 0
        for _ in range(max(1, mib // PARTITIONS // segment_mib)):
            held = [batch for batch, _ in islice(source, per_segment)]
            base, end = end, parse_header(held[-1]).end_offset
            topic.seal_batches(partition, base, [(end, held)])
        records += end
    return records


def measure(spark: SparkSession, location: str, records: int, runs: int) -> None:
    """Print a line for every query; both sides must give the same answer."""
    files = [str(path) for path in Path(location).glob("topics/*/*/*/*.parquet")]
    size = sum(Path(file).stat().st_size for file in files)
    print(f"{records} records in {len(files)} files of {size / MiB:.0f} MiB together")
    sources: dict[str, Callable[[], DataFrame]] = {
        "read_topic": lambda: read_topic(spark, location, "scanned"),
        "spark.read.parquet": lambda: spark.read.parquet(*files),
    }
    began = time.perf_counter()
    sources["read_topic"]()
    print(f"the first read_topic alone: {time.perf_counter() - began:.2f} s", end="; ")
    began = time.perf_counter()
    sources["read_topic"]()
    print(f"the second: {time.perf_counter() - began:.2f} s")
    print(f"{'query':16}" + "".join(f"{name:>20}" for name in sources) + f"{'ratio':>8}")
    for query, build in QUERIES.items():
        seconds: dict[str, list[float]] = {name: [] for name in sources}
        for turn in range(runs + 1):
            answers = set()
            # The second side finds warm code: the sides take turns at that too.
            for name, read in sorted(sources.items(), reverse=turn % 2 == 1):
                began = time.perf_counter()
                answers.add(tuple(build(read()).collect()[0]))
                seconds[name].append(time.perf_counter() - began)
            if len(answers) != 1 or next(iter(answers))[0] != records:
                raise AssertionError(f"{query}: the answers differ: {answers}")
        ours, plain = (median(times[1:]) for times in seconds.values())
        print(f"{query:16}{ours:>18.2f} s{plain:>18.2f} s{plain / ours:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
