"""`driftlog spark JOB …`: starts the job in a process of its own, with all words after `spark`.

The jobs' package stands above the client, and needs PySpark: it is not imported here.

Root.
"""

import argparse
import importlib.util
import subprocess
import sys
from typing import Final

from driftlog.cli.common.errors import FAILED
from driftlog.cli.common.output import complain
from driftlog.cli.common.parsers import Commands, add_command

JOBS: Final = {
    "audit": "check that no sealed record is lost, there twice, or other than elsewhere",
    "compact": "keep the newest record of each key in compacted topics",
    "convert-checkpoint": "move a query from Spark's Kafka source to the format driftlog",
    "export": "write a range of times to plain Parquet or JSON",
    "merge": "make larger segments of small ones",
    "repartition": "copy a topic by key into a new one with other partitions",
    "stats": "count records, bytes, keys and times of a topic",
}
"""What each job does, as its own help says it."""

_MODULE: Final = "driftlog_spark_reader.jobs"


def add_commands(commands: Commands) -> None:
    """Add the command of this file."""
    width = max(map(len, JOBS)) + 2
    spark = add_command(
        commands,
        "spark",
        _spark,
        help="jobs on Spark",
        description="Run a job on Spark: here, or on the cluster that --master of the job names.  "
        "`driftlog spark JOB --help` lists its options.",
        examples="".join(f"  driftlog spark {job:{width}}{what}\n" for job, what in JOBS.items()),
    )
    spark.add_argument("job", metavar="JOB", choices=list(JOBS), help=", ".join(JOBS))
    spark.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="…", help="options of the job"
    )


def _spark(options: argparse.Namespace) -> int:
    if importlib.util.find_spec("pyspark") is None:
        complain("`driftlog spark` needs PySpark: pip install 'driftlog[spark]'")
        return FAILED
    return subprocess.call([sys.executable, "-m", _MODULE, options.job, *options.arguments])
