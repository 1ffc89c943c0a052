"""From a producer's send to the sink of a stream: format ``driftlog`` with its tail, and Spark's
Kafka source, both from one agent.

    python -m benchmarks.spark_latency [--rate 10000] [--seconds 60] [--trigger 1]

A producer sends JSON records with keys at a steady rate; a query appends them to Parquet files at
each trigger.  A record's delay ends when the write of its batch has returned.  The sources run one
after the other, each over a topic of its own; the first ten seconds of each are not counted.

Shell.
"""

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.spark import spark_session
from driftlog import Admin, Producer
from tests.support.driftlog_process import DriftlogProcess

PARTITIONS: Final = 4
WARM_S: Final = 10
SOURCES: Final = ("driftlog", "kafka")
_TICK_S: Final = 0.01


def main() -> None:
    """Run both sources, and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=int, default=10_000, help="records per second")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--trigger", type=int, default=1, help="seconds between two batches")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="spark-latency-") as folder, DriftlogProcess() as agent:
        with Admin(bootstrap_servers=agent.bootstrap) as admin:
            for source in SOURCES:
                admin.topics.create(source, partitions=PARTITIONS)
        with spark_session(folder, {"spark.sql.session.timeZone": "UTC"}) as spark:
            for source in SOURCES:
                measure(spark, source, agent, Path(folder), options)


def measure(
    spark: SparkSession,
    source: str,
    agent: DriftlogProcess,
    folder: Path,
    options: argparse.Namespace,
) -> None:
    """Print the percentiles of the delays through *source*."""
    written: dict[int, float] = {}
    sink = str(folder / f"sink-{source}")

    def append(df: DataFrame, batch: int) -> None:
        rows = df.select("timestamp", f.lit(batch).alias("batch"), "value")
        rows.write.mode("append").parquet(sink)
        written[batch] = time.time()

    given = {"subscribe": source, "kafka.bootstrap.servers": agent.bootstrap}
    if source == "driftlog":
        given |= {"location": str(agent.directory / "objects"), "includeTail": "true"}
    query = (
        spark.readStream.format(source)
        .options(**given)
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(append)
        .option("checkpointLocation", str(folder / f"checkpoint-{source}"))
        .trigger(processingTime=f"{options.trigger} seconds")
        .start()
    )
    stop = threading.Event()
    sent = [0]
    load = threading.Thread(target=produce, args=(agent.bootstrap, source, options, stop, sent))
    load.start()
    began = time.time()
    try:
        load.join()
        deadline = time.monotonic() + 60
        while rows_in(spark, sink) < sent[0]:
            if time.monotonic() > deadline:
                raise AssertionError(f"{source}: not all of {sent[0]} records are in the sink")
            time.sleep(1)
    finally:
        stop.set()
        query.stop()
    ends = spark.createDataFrame(list(written.items()), "batch int, written double")
    delay = f.col("written") - f.unix_micros("timestamp") / 1e6
    counted = (
        spark.read.parquet(sink)
        .where(f.unix_micros("timestamp") / 1e6 >= began + WARM_S)
        .join(ends, "batch")
    )
    found = counted.agg(f.percentile(delay, f.array(*map(f.lit, (0.5, 0.99)))), f.max(delay))
    (p50, p99), longest = found.collect()[0]
    print(
        f"{source:10}{sent[0]:>10,} records, {len(written):>4} batches: produced to in the sink "
        f"p50 {p50:.2f} s, p99 {p99:.2f} s, longest {longest:.2f} s",
        flush=True,
    )


def produce(
    bootstrap: str, topic: str, options: argparse.Namespace, stop: threading.Event, sent: list[int]
) -> None:
    """Send at the rate; *sent* counts the records."""
    with Producer(bootstrap_servers=bootstrap) as producer:
        began = time.monotonic()
        end = began + options.seconds
        while (now := time.monotonic()) < end and not stop.is_set():
            while sent[0] < (now - began) * options.rate:
                n = sent[0]
                value = f'{{"id":{n},"user":{n % 997},"path":"/items/{n % 89}","ms":{n % 1009}}}'
                producer.produce(topic, value.encode(), key=f"user-{n % 997}".encode())
                sent[0] += 1
            time.sleep(_TICK_S)
        producer.flush()


def rows_in(spark: SparkSession, sink: str) -> int:
    """The rows of the sink; 0 before the first batch."""
    return spark.read.parquet(sink).count() if list(Path(sink).glob("*.parquet")) else 0


if __name__ == "__main__":
    main()
