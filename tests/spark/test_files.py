"""Names and bytes of a location are the same through Hadoop, a directory and an object store."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from driftlog_spark_reader.bucket.files import Files
from driftlog_spark_reader.bucket.hadoop_files import HadoopFiles
from driftlog_spark_reader.bucket.locations import open_files
from driftlog_spark_reader.common.errors import StorageError
from driftlog_tiering.stores.locations import open_object_store

# One Spark for all workers of pytest-xdist; on a busy machine it takes a minute to start.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

CONTENT = {"a/b/one.json": b"1", "a/b/two.json": bytes(range(256)) * 500, "a/c/three.json": b""}


@pytest.fixture(params=["hadoop-directory", "s3a", "directory", "s3"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Files]:
    """A location that holds `CONTENT`."""
    location = str(tmp_path / "a b, c; [d]")
    if request.param in ("s3a", "s3"):
        location = f"s3://{request.getfixturevalue('s3a').bucket}/some/prefix"

    async def fill() -> None:
        store = open_object_store(location)
        for key, body in CONTENT.items():
            await store.put(key, [body])
        await store.close()

    asyncio.run(fill())
    opened: Files
    if request.param in ("s3a", "hadoop-directory"):
        opened = HadoopFiles(request.getfixturevalue("spark"), location)
    else:
        opened = open_files(location)
    yield opened
    opened.close()


def test_names_are_those_directly_in_the_folder(files: Files) -> None:
    """
    Files and folders of one level, with or without a slash at the folder's end.
    """
    assert [["b", "c"], ["one.json", "two.json"], ["three.json"]] == [
        sorted(files.names(prefix)) for prefix in ("a/", "a/b/", "a/c")
    ]


def test_a_folder_that_is_not_there_has_no_names(files: Files) -> None:
    """
    A partition without manifests is no error.
    """
    assert [] == files.names("a/d/")


def test_files_are_read_whole_and_as_they_are(files: Files) -> None:
    """
    Every byte, none for an empty file, None for a missing one.
    """
    assert CONTENT == {key: files.read(key) for key in CONTENT}
    assert files.read("a/d/four.json") is None


def test_ranges_are_what_the_whole_file_has_there(files: Files) -> None:
    """
    As footers and row groups are read; a range past the end is cut.
    """
    whole = CONTENT["a/b/two.json"]

    assert whole[100:1_000] == files.read_range("a/b/two.json", 100, 1_000)
    assert whole[-10:] == files.read_range("a/b/two.json", len(whole) - 10, len(whole) + 10)
    assert files.read_range("a/d/four.json", 0, 1) is None


def test_paths_are_under_the_root(files: Files) -> None:
    """
    A path names the file system too.
    """
    assert f"{files.root}/a/b/one.json" == files.path("a/b/one.json")
    assert files.root.startswith(("file:/", "s3a://", "s3://"))


@pytest.mark.parametrize("location", ["", "gopher://bucket/prefix"])
def test_a_location_that_cannot_be_is_refused(spark: SparkSession, location: str) -> None:
    """
    A StorageError, whatever the JVM calls it.
    """
    with pytest.raises(StorageError):
        HadoopFiles(spark, location)
    with pytest.raises(StorageError):
        open_files(location)
