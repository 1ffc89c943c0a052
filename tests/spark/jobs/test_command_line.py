"""Each job's command gives its options to the job, prints what it found, and ends with its status.

If it failed: `driftlog spark audit`, `export`, `merge` or `convert-checkpoint` would do something
else than the functions that are tested, or a script would take a fault for success.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from driftlog_spark_reader.jobs.command_line import main
from driftlog_spark_reader.sessions import command_session
from driftlog_tiering.formats.manifest import SegmentRef
from tests.spark.jobs.test_export import flights
from tests.support.sealed_topics import SealedTopic

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """Status, standard output and standard error of `driftlog spark …`, in the tests' session: one
    of its own would need a JVM for each test (`test_stats` has that)."""
    monkeypatch.setattr(command_session, "session", lambda *_, **__: spark)

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main([*words, "--dir", str(tmp_path)])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.fixture
def topic(tmp_path: Path) -> SealedTopic:
    """80 records in 8 segments."""
    return flights(str(tmp_path / "objects"))


def test_an_audit_prints_digests_and_ends_with_one_where_there_is_a_fault(
    run: Run, topic: SealedTopic
) -> None:
    """
    `--partitions`, `--require-dense`, `--json`; a wrong combination is a wrong command line.
    """
    topic.seal(0, 40, [None])

    whole, table, _ = run("audit", "flights")
    dense, out, err = run("audit", "flights", "--require-dense", "--partitions", "0", "--json")
    wrong, _, usage = run("audit", "flights", "--compare-topic", "t")

    assert (0, 1, 2) == (whole, dense, wrong)
    assert "dense" in table
    assert "partition 0 has no record at 40-40" in table
    (found,) = json.loads(out)["partitions"]
    assert (0, 40, 1) == (found["partition"], found["records"], found["missing"])
    assert "flights-0: offsets without a record: 1" in err
    assert "--compare-bootstrap" in usage


def test_an_export_writes_its_range_and_says_how_much(
    run: Run, topic: SealedTopic, tmp_path: Path
) -> None:
    """
    `--since`, `--until`, `--unit`, `--format`, `--text`; a second run has nothing to do.
    """
    target = tmp_path / "out"
    line = ["export", "flights", str(target), "--format", "json", "--unit", "hour", "--text"]
    line += ["--since", "2023-11-14T23:00:00Z", "--until", "2023-11-15T00:00:00Z"]

    first, said, progress = run(*line)
    second, again, _ = run(*line, "--json")

    assert (0, 0) == (first, second)
    assert "1 hour at " in said
    assert f"{target}; 8 records written now" in said
    assert "1 of 1" in progress
    assert 0 == json.loads(again)["records"]
    rows = [json.loads(line) for path in target.rglob("part-*.json") for line in _lines(path)]
    assert {"v4", "v5", None, "v7"} == {row["value"] for row in rows}
    assert 8 == len(rows)


def test_a_merge_makes_fewer_segments_of_the_named_topic(
    run: Run, topic: SealedTopic, tmp_path: Path
) -> None:
    """
    `--factor`, `--partitions`, and the report.
    """
    status, out, _ = run("merge", "flights", "--factor", "4", "--partitions", "1", "--json")

    assert 0 == status
    assert [1] == [each["partition"] for each in json.loads(out)["partitions"]]
    segments = [_segments(topic, partition) for partition in range(2)]
    assert [4, 1] == [len(each) for each in segments]
    assert 40 == segments[1][0].end


def test_a_checkpoint_that_is_none_is_one_line(
    run: Run, topic: SealedTopic, tmp_path: Path
) -> None:
    """
    The source is looked at, and nothing is written.
    """
    (tmp_path / "old").mkdir()

    status, out, err = run("convert-checkpoint", str(tmp_path / "old"), str(tmp_path / "new"))

    assert (1, "") == (status, out)
    assert "no checkpoint" in err
    assert not (tmp_path / "new").exists()


def _segments(topic: SealedTopic, partition: int) -> list[SegmentRef]:
    return list(topic.manifest(partition).segments)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
