"""Names and small files of a location read the same from a directory and through S3A."""

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from driftlog_spark_reader.errors import StorageError
from driftlog_spark_reader.files import Files
from driftlog_spark_reader.hadoop import HadoopFiles
from driftlog_tiering.stores.locations import open_object_store

# One Spark for all workers of pytest-xdist; on a busy machine it takes a minute to start.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

CONTENT = {"a/b/one.json": b"1", "a/b/two.json": bytes(range(256)) * 500, "a/c/three.json": b""}


@pytest.fixture(params=["directory", "s3a"])
def files(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Files:
    """A location that holds `CONTENT`."""
    location = str(tmp_path / "a b, c; [d]")
    if request.param == "s3a":
        location = f"s3://{request.getfixturevalue('s3a').bucket}/some/prefix"

    async def fill() -> None:
        store = open_object_store(location)
        for key, body in CONTENT.items():
            await store.put(key, [body])
        await store.close()

    asyncio.run(fill())
    return HadoopFiles(spark, location)


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


def test_paths_are_under_the_root(files: Files) -> None:
    """
    A path names the file system too.
    """
    assert f"{files.root}/a/b/one.json" == files.path("a/b/one.json")
    assert files.root.startswith(("file:/", "s3a://"))


@pytest.mark.parametrize("location", ["", "gopher://bucket/prefix"])
def test_a_location_that_cannot_be_is_refused(spark: SparkSession, location: str) -> None:
    """
    A StorageError, whatever the JVM calls it.
    """
    with pytest.raises(StorageError):
        HadoopFiles(spark, location)
