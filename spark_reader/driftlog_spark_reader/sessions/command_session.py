"""The options of a job's command that name its Spark session, and the session.

Root.
"""

import argparse
import os
import sys
from collections.abc import Callable
from typing import Final

from pyspark.sql import SparkSession

from driftlog.cli.common.parsers import Commands, Parser, add_command, key_value
from driftlog.cli.segments.bucket_location import add_location_options
from driftlog_spark_reader.sessions.spark_session import session

_SETTINGS: Final = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.speculation": "false",  # two attempts of a task that writes are in each other's way
}


def add_job(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,  # noqa: A002  # argparse's
    description: str,
    examples: str,
) -> Parser:
    """Add the command of a job, with the options of its location and its session."""
    job = add_command(commands, name, run, help=help, description=description, examples=examples)
    add_location_options(job)
    job.add_argument(
        "--master", metavar="URL", help="of the cluster (default: local[*], or what --conf says)"
    )
    job.add_argument(
        "--conf",
        type=key_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark; may be repeated",
    )
    job.add_argument(
        "--jars",
        action="append",
        default=[],
        metavar="PATH",
        help="a jar, or a folder of jars; may be repeated",
    )
    return job


def session_of(options: argparse.Namespace, *locations: str | None) -> SparkSession:
    """A session that reaches the locations: S3A is there if one is in a bucket."""
    given = [location for location in locations if location]
    in_bucket = [location for location in given if location.startswith(("s3://", "s3a://"))]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    progress = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    return session(
        (in_bucket or given)[0],
        master=options.master,
        app_name=f"driftlog {options.parser.prog.rpartition(' ')[2]}",
        jars=options.jars,
        config={**_SETTINGS, **progress, **dict(options.conf)},
    )
