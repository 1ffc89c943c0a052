"""The sums and the histogram of a topic are those of its records.

If it failed: `driftlog spark stats` would count wrongly.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from driftlog.cli.common.parsers import commands_of
from driftlog.cli.spark.spark import JOBS
from driftlog_spark_reader.common.errors import JobError
from driftlog_spark_reader.jobs.chart_png import write_png
from driftlog_spark_reader.jobs.command_line import parser
from driftlog_spark_reader.jobs.stats import PartitionStats, topic_stats
from tests.support.sealed_topics import Message, SealedTopic

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

T0 = 1_700_000_000_000


def flights(location: str) -> SealedTopic:
    """Three partitions: 40 records with keys of both, 10 of them without key or value; empty."""
    topic = SealedTopic(location, "flights", partitions=3).create()
    topic.seal(0, 0, *([message(n) for n in range(base, base + 20)] for base in (0, 20)))
    topic.seal(1, 0, [message(n) if n % 2 else Message(T0 + n * 1000) for n in range(20)])
    return topic


def message(number: int) -> Message:
    """A record a second; seven keys."""
    return Message(T0 + number * 1000, f"k{number % 7}".encode(), b"v" * 10)


@pytest.mark.parametrize("exact", [False, True])
def test_every_record_is_counted_where_it_is(
    spark: SparkSession, tmp_path: Path, exact: bool
) -> None:
    """
    A key in two partitions is one key of the topic; a partition without records is there.
    """
    flights(str(tmp_path))

    found = topic_stats(spark, str(tmp_path), "flights", exact_keys=exact, buckets=4)

    assert (
        PartitionStats(0, 40, 80, 400, 7, 0, 0, 0, 39, T0, T0 + 39_000),
        PartitionStats(1, 20, 20, 100, 7, 10, 10, 0, 19, T0, T0 + 19_000),
        PartitionStats(2, 0, 0, 0, 0, 0, 0, None, None, None, None),
    ) == found.partitions
    assert (60, 7, exact, 3) == (
        found.records,
        found.distinct_keys,
        found.keys_are_exact,
        found.files,
    )
    assert found.histogram is not None
    assert (T0, 9_751) == (found.histogram.start_ms, found.histogram.bucket_ms)
    assert {0: [10, 10, 10, 10], 1: [10, 10, 0, 0], 2: [0, 0, 0, 0]} == found.histogram.counts


def test_a_range_of_times_and_partitions(spark: SparkSession, tmp_path: Path) -> None:
    """
    What is outside is not counted.
    """
    flights(str(tmp_path))

    found = topic_stats(
        spark, str(tmp_path), "flights", partitions=[1], since=T0 + 5_000, until=T0 + 8_000
    )

    assert [(1, 3)] == [(each.partition, each.records) for each in found.partitions]
    with pytest.raises(JobError, match="partitions 0 to 2"):
        topic_stats(spark, str(tmp_path), "flights", partitions=[3])


def test_an_empty_topic_has_no_histogram(spark: SparkSession, tmp_path: Path) -> None:
    """
    And no error.
    """
    SealedTopic(str(tmp_path), "none").create()

    found = topic_stats(spark, str(tmp_path), "none")

    assert (0, 0, None) == (found.records, found.distinct_keys, found.histogram)


def test_the_chart_is_a_png(spark: SparkSession, tmp_path: Path) -> None:
    """
    Where matplotlib is; elsewhere the error says how to install it.
    """
    flights(str(tmp_path / "log"))
    histogram = topic_stats(spark, str(tmp_path / "log"), "flights").histogram
    assert histogram is not None
    target = tmp_path / "chart.png"

    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(JobError, match="pip install matplotlib"):
            write_png(histogram, "flights", str(target))
        return
    write_png(histogram, "flights", str(target))

    assert target.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(JobError, match="cannot write"):
        write_png(histogram, "flights", str(tmp_path / "no" / "chart.png"))


def test_the_command_has_the_jobs_of_the_package() -> None:
    """
    The client names them without an import: their names and what they do are the same.
    """
    whole = parser().format_help()

    assert set(JOBS) == set(commands_of(parser()))
    assert all(what in " ".join(whole.split()) for what in JOBS.values())


def test_the_command_runs_a_job_in_a_process_of_its_own(tmp_path: Path) -> None:
    """
    A session of its own; JSON is all that is on standard output; a failure is one line.
    """
    flights(str(tmp_path / "log"))

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        line = [sys.executable, "-m", "driftlog.cli", "spark", *words, "--dir", str(tmp_path)]
        conf = ["--master", "local[1]", "--conf", "spark.driver.bindAddress=127.0.0.1"]
        return subprocess.run([*line, *conf], capture_output=True, text=True, check=False)

    (tmp_path / "log").rename(tmp_path / "objects")
    done = run("stats", "flights", "--json")
    wrong = run("stats", "flihgts")

    assert 0 == done.returncode, done.stderr
    assert 60 == json.loads(done.stdout)["records"]
    assert 1 == wrong.returncode
    assert "driftlog: no topic flihgts" in wrong.stderr
    assert "Traceback" not in wrong.stderr
