"""`import_parquet` beside ``df.write.parquet`` of the same rows.

    python -m benchmarks.spark_import [--mib 1024] [--runs 5]

Rows with keys and 1 KiB text values in Parquet files; one session with two threads; the sides in
turns, the first turn not counted: a plain write with zstd (goal: an import is at least 0.8 times as
fast), and one that sorts as an import does, by the column partition and time.  The import is into a
bucket of `driftlog dev`.  Medians of wall time, and of the CPU time of Spark and its workers.

Shell.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.spark import spark_session
from driftlog_spark_reader import import_parquet
from tests.support.driftlog_process import DriftlogProcess

MiB = 1024 * 1024
PARTITIONS = 6
FIELDS = 66
"""In a value: 1 KiB of text, which zstd makes a third of."""


def main() -> None:
    """Make the rows, then measure every side."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    config = {"spark.driver.memory": "4g", "spark.sql.parquet.compression.codec": "zstd"}
    with (
        tempfile.TemporaryDirectory(prefix="spark-import-") as folder,
        spark_session(folder, config) as spark,
    ):
        made = f"{folder}/rows"
        rows(spark, options.mib * 1024).write.parquet(made)
        with DriftlogProcess(Path(folder) / "data") as agent:
            measure(spark.read.parquet(made), Path(folder), agent, options.runs)


def rows(spark: SparkSession, records: int) -> DataFrame:
    """Records in about the order of time."""
    field = (f.hash("id", f.lit(n)) % 100_000 for n in range(FIELDS))
    value = f.concat_ws(" ", *(f.format_string(f"field{n}=%d", one) for n, one in enumerate(field)))
    ms = f.lit(1_700_000_000_000) + f.col("id") * 3 + f.hash("id") % 5_000
    return spark.range(records, numPartitions=8).select(
        f.concat(f.lit("user-"), f.hash("id") % 50_000).cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        f.timestamp_millis(ms).alias("timestamp"),
    )


def measure(made: DataFrame, folder: Path, agent: DriftlogProcess, runs: int) -> None:
    """Print the medians of every side, and the ratios to the import."""
    number = count()

    def write() -> None:
        made.write.parquet(f"{folder}/written-{next(number)}")

    def write_sorted() -> None:
        partition = f.expr(f"pmod(hash(key), {PARTITIONS})")
        ordered = made.withColumn("partition", partition)
        ordered = ordered.repartitionByRange(PARTITIONS, "partition", "timestamp")
        ordered = ordered.sortWithinPartitions("partition", "timestamp")
        ordered.write.parquet(f"{folder}/written-{next(number)}")

    def import_it() -> None:
        import_parquet(
            made,
            str(agent.directory / "objects"),
            f"imported-{next(number)}",
            partitions=PARTITIONS,
            bootstrap_servers=agent.bootstrap,
        )

    sides: dict[str, Callable[[], None]] = {
        "write.parquet": write,
        "sorted write.parquet": write_sorted,
        "import_parquet": import_it,
    }
    walls: dict[str, list[float]] = {name: [] for name in sides}
    cpus: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(runs + 1):
        for name, side in sides.items():
            began_s, used_s = time.perf_counter(), cpu_s(agent.pid)
            side()
            if turn:
                walls[name].append(time.perf_counter() - began_s)
                cpus[name].append(cpu_s(agent.pid) - used_s)
    ours, our_cpu = median(walls["import_parquet"]), median(cpus["import_parquet"])
    for name in sides:
        wall, cpu = median(walls[name]), median(cpus[name])
        print(
            f"{name:22} {wall:7.2f} s, {cpu:7.2f} s of CPU; the import's speed is "
            f"{wall / ours:.2f} of it, by CPU {cpu / our_cpu:.2f}"
        )


def cpu_s(but: int) -> float:
    """CPU time of all processes that this one has started, but of the agent *but*."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            parents[int(name)] = int(fields[1])
            used[int(name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(used[pid] for pid in ours & used.keys() if pid not in (os.getpid(), but))


if __name__ == "__main__":
    main()
