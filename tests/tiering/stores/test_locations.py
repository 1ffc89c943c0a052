"""The location of a store opens that store, or explains what is wrong with it."""

from pathlib import Path

import pytest

from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.stores.locations import open_object_store
from tests.support.s3_servers import S3Server


@pytest.mark.parametrize("form", ["{}", "file://{}", "file://localhost{}", "file:{}", "{}/"])
async def test_a_directory_has_many_names(tmp_path: Path, form: str) -> None:
    """
    All of them one store.
    """
    store = open_object_store(form.format(tmp_path / "new" / "objects"))

    await store.put("a/b", [b"x"])

    assert b"x" == (tmp_path / "new" / "objects" / "a" / "b").read_bytes()
    await store.close()


async def test_a_file_url_is_unquoted(tmp_path: Path) -> None:
    """
    As browsers and Spark write it.
    """
    store = open_object_store(f"file://{tmp_path}/a%20b")

    await store.put("k", [b"x"])

    assert b"x" == (tmp_path / "a b" / "k").read_bytes()
    await store.close()


@pytest.mark.parametrize(
    ("form", "key"),
    [
        ("s3://{}", "a/b"),
        ("s3://{}/", "a/b"),
        ("s3a://{}/a", "b"),
        ("S3://{}/a/", "b"),
        ("s3://{}//a/", "b"),
    ],
)
async def test_a_bucket_has_many_names(
    moto_s3: S3Server, monkeypatch: pytest.MonkeyPatch, form: str, key: str
) -> None:
    """
    Slashes at a prefix's ends mean nothing; s3a is Spark's word.
    """
    for name, value in moto_s3.environment.items():
        monkeypatch.setenv(name, value)
    store, whole = (
        open_object_store(form.format(moto_s3.bucket)),
        open_object_store(moto_s3.location),
    )

    await store.put(key, [b"x"])

    assert b"x" == await whole.get("a/b")
    await store.close()
    await whole.close()


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("", "write s3://bucket/prefix"),
        ("gs://bucket/x", "no store for gs:"),
        ("s3:/bucket", "names no bucket"),
        ("s3://", "names no bucket"),
        ("s3://a b/x", "names no bucket"),
        ("s3://bucket/../x", "not a prefix"),
        ("s3://bucket/" + "x" * 200, "not a prefix"),
        ("file://host/path", "file:///path"),
        ("file:relative", "file:///path"),
        ("C:\\objects", "no store for c:"),
    ],
)
def test_what_is_no_location_is_told_what_is(location: str, message: str) -> None:
    """
    Before anything is opened.
    """
    with pytest.raises(ValueError, match=message):
        open_object_store(location)


def test_a_directory_that_cannot_be_is_unavailable(tmp_path: Path) -> None:
    """
    The message names it.
    """
    (tmp_path / "file").touch()

    with pytest.raises(UnavailableError, match="file/x"):
        open_object_store(str(tmp_path / "file" / "x"))
