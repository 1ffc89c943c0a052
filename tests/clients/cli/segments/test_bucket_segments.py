"""`driftlog segments` reads a bucket in which others have put things."""

import asyncio
from pathlib import Path

import pytest

from driftlog.bucket.sealed_topics import read_topics
from driftlog_tiering.formats import layout
from driftlog_tiering.stores.object_store import ObjectStore
from tests.support.folder_markers import make_markers
from tests.support.s3_servers import S3Server, moto_endpoint, moto_s3
from tests.support.sealed_topics import Message, SealedTopic

__all__ = ["moto_endpoint", "moto_s3"]


@pytest.mark.parametrize("kind", ["directory", "s3"])
def test_folder_markers_and_strange_objects_hide_no_topic(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """
    In front of topics, topic files and manifests, as consoles, file gateways and people leave them.
    """
    location = str(tmp_path / "objects")
    if kind == "s3":
        server: S3Server = request.getfixturevalue("moto_s3")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        location = f"{server.location}/some/prefix"
    topic = SealedTopic(location, "flights", partitions=2).create()
    topic.seal(1, 0, [Message(n, value=b"v") for n in range(3)])

    async def disturb(store: ObjectStore) -> None:
        name = layout.topic_name_prefix("flights")
        folders = [layout.TOPICS_PREFIX, name, layout.topic_file_prefix("flights", topic.topic_id)]
        folders += [layout.manifest_prefix("flights", topic.tp(n)) for n in range(2)]
        await make_markers(store, "", *folders, f"{layout.TOPICS_PREFIX}-empty/")
        for folder in folders:
            await store.put(f"{folder}.DS_Store", [b"?"])
            await store.put(f"{folder}zz.txt", [b"?"])
        await store.put(f"{name}not-an-id/file", [b"?"])

    topic.with_store(disturb)

    (found,) = asyncio.run(read_topics(location, []))

    assert ("flights", topic.topic_id) == (found.name, found.topic_id)
    assert [0, 3] == [part.sealed_end for part in found.partitions]
    assert [found] == asyncio.run(read_topics(location, ["flights"]))
