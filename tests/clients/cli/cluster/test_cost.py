"""`driftlog cost` prints the bills, and refuses wrong prices; a real agent's requests are in it.

If it failed: an operator would see another bill than the formulas and the counters make.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from driftlog import cli
from tests.clients.conftest import seal
from tests.support.driftlog_process import DriftlogProcess


def test_a_workload_beside_kafka(capsys: pytest.CaptureFixture[str]) -> None:
    """
    As a table, and as JSON with each line.
    """
    assert 0 == cli.main(["cost", "workload", "--write", "10", "--fan-out", "3"])
    printed = capsys.readouterr()
    header = printed.out.splitlines()[0].split()
    assert ["$", "a", "month", "driftlog", "Kafka"] == header
    assert "aws.amazon.com" in printed.err
    assert 0 == cli.main(["cost", "workload", "--write", "10", "--fan-out", "3", "--json"])
    document = json.loads(capsys.readouterr().out)
    ours, kafka = document["bills"]
    assert ("driftlog", "Kafka") == (ours["of"], kafka["of"])
    assert pytest.approx(ours["dollars"]) == sum(one["dollars"] for one in ours["lines"])
    assert pytest.approx(12 * 2_628_000) == next(
        one["quantity"] for one in ours["lines"] if one["what"] == "flushes"
    )


def test_prices_are_overridden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """
    By a file, and by options, which win.
    """
    file = tmp_path / "prices.json"
    file.write_text('{"machine_hour": 1, "put_per_1000": 1}')

    line = ["cost", "workload", "--write", "1", "--prices", str(file)]
    assert 0 == cli.main([*line, "--price", "machine_hour=2", "--json"])

    document = json.loads(capsys.readouterr().out)
    assert (2.0, 1.0) == (document["prices"]["machine_hour"], document["prices"]["put_per_1000"])
    assert 3 * 730 * 2 == document["bills"][0]["groups"]["machines"]


@pytest.mark.parametrize(
    "wrong",
    [
        ["cost", "workload"],
        ["cost", "workload", "--write", "-1"],
        ["cost", "workload", "--write", "1", "--cold-share", "2"],
        ["cost", "workload", "--write", "1", "--price", "put=1"],
        ["cost", "workload", "--write", "1", "--prices", "/no/such/file"],
    ],
)
def test_wrong_use(wrong: list[str]) -> None:
    """
    Exit status 2.
    """
    try:
        assert 2 == cli.main(wrong)
    except SystemExit as error:
        assert 2 == error.code  # noqa: PT017  # argparse exits


@pytest.fixture(scope="module")
def agent() -> Iterator[DriftlogProcess]:
    """One that has sealed a topic."""
    with DriftlogProcess() as process:
        producer = confluent_kafka.Producer({"bootstrap.servers": process.bootstrap})
        producer.produce("t", b"v", partition=0)
        assert 0 == producer.flush(30)
        seal(process, "t")
        yield process


def test_a_cluster_by_its_own_counters(
    agent: DriftlogProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Its requests since its start, and the size of its bucket.
    """
    where = ["--bootstrap-server", agent.bootstrap, "--dir", str(agent.directory)]

    assert 0 == cli.main(["cost", "cluster", *where, "--json"])

    (found,) = json.loads(capsys.readouterr().out)["bills"]
    lines = {one["what"]: one for one in found["lines"]}
    assert lines["PUT"]["quantity"] > 0
    assert lines["LIST"]["price"] == lines["PUT"]["price"] == 0.005 / 1000
    files = [f for f in (agent.directory / "objects").rglob("*") if f.is_file()]
    stored = sum(f.stat().st_size for f in files if ".tmp" not in f.parts)
    assert pytest.approx(stored / 2**30, rel=0.5) == lines["all objects"]["quantity"]
    assert "metadata store" not in {one["group"] for one in found["lines"]}


@pytest.mark.parametrize(
    ("where", "status"), [(["--store", "/no/such"], 1), (["--store", "x://y"], 2)]
)
def test_a_location_without_a_bucket(
    agent: DriftlogProcess, capsys: pytest.CaptureFixture[str], where: list[str], status: int
) -> None:
    """
    One line says what is wrong with it.
    """
    assert status == cli.main(["cost", "cluster", "-b", agent.bootstrap, *where])

    (line,) = capsys.readouterr().err.splitlines()
    assert where[1] in line


def test_a_cluster_in_the_next_seconds(
    agent: DriftlogProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    An idle agent sends no PUT.  The window is no wait for an answer, and a short one is named.
    """
    where = ["--bootstrap-server", agent.bootstrap, "--seconds", "6"]

    assert 0 == cli.main(["cost", "cluster", *where])

    printed = capsys.readouterr()
    assert "PUT" not in printed.out
    assert "1 agent over 6 s" in printed.err
    assert "the window is short" in printed.err
    assert "still waiting" not in printed.err
