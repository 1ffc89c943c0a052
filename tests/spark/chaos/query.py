"""The query under test, in a process of its own that is killed.

    python -m tests.spark.chaos.query LOCATION BOOTSTRAP FOLDER [--to-the-end]

Each micro-batch becomes one file of the sink, named by its id: a batch that runs again replaces
what it wrote.

Root.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

TOPIC = "watched"


def main() -> None:
    """Run until killed, or to the end of the log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("location")
    parser.add_argument("bootstrap")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to-the-end", action="store_true")
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.warehouse.dir", str(given.folder / "warehouse"))
        .getOrCreate()
    )
    sink: Path = given.folder / "sink"
    sink.mkdir(exist_ok=True)

    def write(df: DataFrame, batch: int) -> None:
        rows = df.select("partition", "offset", "value").collect()
        text = json.dumps([[r[0], r[1], bytes(r[2]).decode()] for r in rows])
        part = sink / f".{batch}.part"
        part.write_text(text)
        part.replace(sink / f"{batch}.json")

    reader = spark.readStream.format("driftlog").options(
        **{
            "location": given.location,
            "subscribe": TOPIC,
            "startingOffsets": "earliest",
            "includeTail": "true",
            "kafka.bootstrap.servers": given.bootstrap,
            "maxOffsetsPerTrigger": "20000",
        }
    )
    writer = reader.load().writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(given.folder / "checkpoint"))
    if given.to_the_end:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime="500 milliseconds")
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
