"""`driftlog segments list --paths` and `driftlog.segment_files`: what other Parquet readers read.

Broken: polars or DuckDB over a glob count records that were deleted, or count records twice.
"""

import asyncio
import json
import time
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from driftlog import segment_files
from driftlog.errors import DriftlogError, UnknownTopicError
from driftlog_tiering.formats.manifest import SetLogStart
from tests.clients.command import read, refused, run, said
from tests.clients.conftest import make_topic
from tests.support.driftlog_process import DriftlogProcess
from tests.support.s3_servers import S3Server, moto_endpoint, moto_s3
from tests.support.sealed_topics import Message, SealedTopic

__all__ = ["moto_endpoint", "moto_s3"]

pytestmark = pytest.mark.xdist_group("command")


def test_files_and_log_start_are_those_of_one_manifest_version(
    agent: DriftlogProcess,
) -> None:
    """
    After DeleteRecords, a reader of the named files that leaves out offsets below the log start
    has the records that a consumer has.
    """
    at, topic, objects = agent.bootstrap, make_topic(agent), agent.directory / "objects"
    for batch in (b"a\nb\nc\n", b"d\ne\nf\n", b"g\nh\n"):
        said(at, "produce", topic, "-q", stdin=batch)
        said(at, "segments", "seal", topic)
    said(at, "topics", "delete-records", topic, "--before-offset", "4", "--execute")
    line = ("segments", "list", topic, "--store", str(objects), "--paths")
    deadline = time.monotonic() + 60
    while (found := read(at, *line))[0]["log_start"] < 4 and time.monotonic() < deadline:
        time.sleep(0.2)

    (partition,) = found
    done = run(*line, bootstrap=at)
    table = ds.dataset(done.stdout.decode().split()).to_table()
    kept = table.filter(pc.greater_equal(table["offset"], partition["log_start"]))
    values = [value.as_py() for value in kept.sort_by("offset")["value"]]
    files = segment_files(str(objects), topic)

    assert said(at, "consume", topic, "-e").encode().split() == values
    assert (4, 8) == (partition["log_start"], partition["sealed_end"])
    assert partition["paths"] == done.stdout.decode().split() == [file.path for file in files]
    assert [(4, 3, 6), (4, 6, 8)] == [(file.log_start, file.base, file.end) for file in files]
    assert {partition["manifest"]} == {str(objects / file.manifest) for file in files}
    assert b"begins at offset 4: its first file has deleted records" in done.stderr


@pytest.mark.parametrize("kind", ["directory", "s3"])
def test_full_locations_are_of_the_store_that_is_named(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """
    A glob finds the file of deleted records, the manifest does not; partitions without segments
    have no file; what is no Parquet is said.
    """
    location = str(tmp_path / "objects")
    environment = {}
    if kind == "s3":
        server: S3Server = request.getfixturevalue("moto_s3")
        environment = dict(server.environment)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        location = f"{server.location}/some/prefix"
    topic = SealedTopic(location, "flights", partitions=3).create()
    gone, kept = topic.seal(1, 0, [Message(n) for n in range(3)], [Message(n) for n in range(2)])
    topic.edit(1, SetLogStart(log_start=3))
    raw = topic.seal_raw(2, 0, 4)

    files = segment_files(f"{location}/" if kind == "s3" else location, "flights")
    line = ("segments", "list", "flights", "--store", location, "--paths")
    done = run(*line, environment=environment)

    paths = [f"{location}/{ref.key}" for ref in (kept, raw)]
    assert paths == [file.path for file in files] == done.stdout.decode().split()
    assert f"{location}/{gone.key}" not in done.stdout.decode()
    assert [("parquet", 1, 3), ("raw", 2, 0)] == [(f.kind, f.partition, f.log_start) for f in files]
    assert b"partition 2: 1 file named *.raw are no Parquet" in done.stderr


def test_a_bucket_of_upper_case_letters_has_a_hint(
    moto_s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It may exist on other servers than Amazon's: it is looked for.
    """
    for name, value in moto_s3.environment.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(DriftlogError, match="S3's have no upper-case letters"):
        segment_files("s3://Bucket/prefix", "flights")


def test_a_notebook_may_call_it_with_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its event loop runs already.
    """
    monkeypatch.chdir(tmp_path)
    (ref,) = SealedTopic("objects", "flights").create().seal(0, 0, [Message(1)])

    async def cell() -> list[str]:
        return [file.path for file in segment_files("objects", "flights")]

    assert [str(tmp_path / "objects" / ref.key)] == asyncio.run(cell())


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    """
    By the function as by the command.
    """
    objects = str(tmp_path / "objects")
    SealedTopic(objects, "flights").create()

    with pytest.raises(UnknownTopicError, match="topic 'flight' does not exist"):
        segment_files(objects, "flight")
    with pytest.raises(DriftlogError, match="does not exist"):
        segment_files(str(tmp_path / "nowhere"), "flights")
    with pytest.raises(ValueError, match="names no bucket: write s3://bucket/prefix"):
        segment_files("s3:/bucket/prefix", "flights")
    with pytest.raises(ValueError, match="there is no store for gs"):
        segment_files("gs://bucket", "flights")
    errors = refused("", "segments", "list", "flight", "--store", objects)
    assert "topic 'flight' does not exist" in errors
    assert "did you mean 'flights'" in errors
    assert [] == json.loads(said("", "segments", "list", "flights", "--store", objects, "--json"))
