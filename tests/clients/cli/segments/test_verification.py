"""`driftlog verify` says what is damaged and in which object; its exit status 1 means damage alone.

If it failed: a cron job would call a damaged bucket right, or one that does not answer damaged.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from driftlog import cli
from driftlog_tiering.formats import layout
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.directory_store import DirectoryObjectStore
from tests.support.s3_servers import S3Server, moto_endpoint, moto_s3
from tests.support.sealed_topics import Message, SealedTopic

__all__ = ["moto_endpoint", "moto_s3"]


@pytest.fixture
def topic(tmp_path: Path) -> SealedTopic:
    """Two partitions: one has two segments, nothing of the other is sealed."""
    topic = SealedTopic(str(tmp_path / "objects"), "flights", partitions=2).create()
    topic.seal(0, 0, *[[Message(n, value=b"v") for n in range(3)] for _ in range(2)])
    return topic


def _segment(topic: SealedTopic) -> Path:
    return min((Path(topic.location) / "topics").rglob("*.parquet"))


def test_a_log_that_is_right(topic: SealedTopic, capsys: pytest.CaptureFixture[str]) -> None:
    """
    Also with --dir, of all topics, of some partitions; each partition is listed.
    """
    assert 0 == cli.main(["verify", "--dir", str(Path(topic.location).parent), "--deep"])

    printed = capsys.readouterr()
    first, second = printed.out.splitlines()[-2:]
    assert ["flights-0", "0", "6", "2", "6"] == first.split()[:5]
    assert first.endswith("right")
    assert second.endswith("nothing is sealed")
    assert "2 partitions" in printed.err
    assert printed.err.rstrip().endswith("no damage")
    assert 0 == cli.main(["verify", "flights", "-p", "1", "--store", topic.location])
    assert 2 == len(capsys.readouterr().out.splitlines())


def test_damage_names_its_range_and_object(
    topic: SealedTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    For people, and as JSON.
    """
    segment = _segment(topic)
    segment.unlink()

    assert 1 == cli.main(["verify", "--store", topic.location])
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].startswith("what to do: missing: bring the object back")
    key = str(segment.relative_to(topic.location))
    assert f"flights-0: [0, 3) missing: {key}: a segment" in printed.out.splitlines()
    assert printed.err.rstrip().endswith("1 damaged range")
    assert 1 == cli.main(["verify", "--store", topic.location, "--json"])
    document = json.loads(capsys.readouterr().out)
    found, empty = document["partitions"]
    (damage,) = found["damage"]
    assert "accept-loss" in damage.pop("advice")
    expected = {"kind": "missing", "base": 0, "end": 3, "object": key, "detail": "a segment"}
    assert (1, expected, 3) == (document["damaged"], damage, found["records"])
    assert (None, []) == (empty["manifest"], empty["damage"])


def test_nothing_is_known_of_a_partition_whose_manifest_is_damaged(
    topic: SealedTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Its counts are unknown, and not 0; those of a partition without a manifest are 0.
    """
    (manifest,) = (Path(topic.location) / "topics").rglob("manifest/*.json")
    manifest.write_bytes(manifest.read_bytes().replace(b'"end"', b'"enx"'))

    assert 1 == cli.main(["verify", "--store", topic.location])
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if line.startswith("flights-0 "))
    assert ["flights-0", *"------", "1"] == row.split()[:8]
    assert "b'" not in printed
    assert 1 == cli.main(["verify", "--store", topic.location, "--json"])
    unknown, empty = json.loads(capsys.readouterr().out)["partitions"]
    assert {None} == {unknown[name] for name in ("sealed_end", "segments", "records", "log_start")}
    assert (0, 0) == (empty["sealed_end"], empty["segments"])


def test_a_lost_manifest_is_damage(topic: SealedTopic, capsys: pytest.CaptureFixture[str]) -> None:
    """
    Its segments are there, and nothing names them.
    """
    (manifest,) = Path(topic.location).glob("topics/*/*/00000/manifest/*")
    manifest.unlink()

    status = cli.main(["verify", "--dir", str(Path(topic.location).parent)])

    captured = capsys.readouterr()
    assert 1 == status
    assert "1 damaged range" in captured.err
    assert "and no flush object has these records" in captured.out
    assert "what to do: missing: bring the object back under its key" in captured.out


def test_a_lost_file_of_an_imported_topic_is_damage(
    topic: SealedTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    An import that did not end has none either, and no agent has sealed records of it.
    """
    (file,) = Path(topic.location).glob("topics/*/*/topic/*")
    file.rename(file.with_name("import.json"))
    assert 0 == cli.main(["verify", "--store", topic.location])
    capsys.readouterr()
    topic.seal(1, 0, [Message(1, value=b"v")])
    topic.seal(1, 1, [Message(2, value=b"v")])

    assert 1 == cli.main(["verify", "--store", topic.location])

    assert f"{file.name}: it is missing" in capsys.readouterr().out


def test_a_damaged_topic_file_is_damage(
    topic: SealedTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    It stops no other topic, and hides no partition that has objects.
    """
    other = SealedTopic(topic.location, "other").create()
    key = layout.topic_key("flights", topic.topic_id, 1)
    (Path(topic.location) / key).write_bytes(b"?")

    assert 1 == cli.main(["verify", "--store", topic.location, "--json"])

    document = json.loads(capsys.readouterr().out)
    assert [key] == [one["object"] for one in document["topic_files"]]
    found = [(one["topic"], one["partition"]) for one in document["partitions"]]
    assert [("flights", 0), (other.name, 0)] == found


def test_a_topic_file_that_names_too_few_partitions_is_damage(
    topic: SealedTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The partitions behind them are verified; so are those of a topic whose file is gone.
    """
    (first,) = topic.seal(5, 0, [Message(1, value=b"v")])
    key = layout.topic_key("flights", topic.topic_id, 1)

    assert 1 == cli.main(["verify", "--store", topic.location, "--json"])
    document = json.loads(capsys.readouterr().out)
    (lost,) = document["topic_files"]
    assert (key, "it has 2 partitions, and there are objects of 6") == (
        lost["object"],
        lost["detail"],
    )
    assert [0, 1, 2, 3, 4, 5] == [one["partition"] for one in document["partitions"]]
    (Path(topic.location) / key).unlink()
    (Path(topic.location) / first.key).unlink()

    assert 1 == cli.main(["verify", "flights", "--store", topic.location, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert ["it is missing, and there are objects of 6"] == [
        one["detail"] for one in document["topic_files"]
    ]
    assert [first.key] == [one["object"] for one in document["partitions"][5]["damage"]]


@pytest.mark.parametrize(
    "wrong",
    [
        ["verify"],
        ["verify", "--store", "{}/nothing-there"],
        ["verify", "--store", "gs://bucket"],
        ["verify", "missing", "--store", "{}"],
        ["verify", "flights", "-p", "7", "--store", "{}"],
    ],
)
def test_what_keeps_it_from_looking_is_no_damage(
    topic: SealedTopic, monkeypatch: pytest.MonkeyPatch, wrong: list[str]
) -> None:
    """
    Exit status 2.
    """
    monkeypatch.delenv("DRIFTLOG_STORE", raising=False)
    assert 2 == cli.main([word.format(topic.location) for word in wrong])


def test_in_s3(
    moto_s3: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    The same, through requests.
    """
    for name, value in moto_s3.environment.items():
        monkeypatch.setenv(name, value)
    topic = SealedTopic(f"{moto_s3.location}/some/prefix", "flights").create()
    first, second = topic.seal(0, 0, [Message(1, value=b"v")], [Message(2, value=b"v")])
    assert 0 == cli.main(["verify", "flights", "--deep", "--store", topic.location])
    topic.with_store(lambda store: store.delete([second.key]))
    capsys.readouterr()

    assert 1 == cli.main(["verify", "flights", "--store", topic.location])

    out = capsys.readouterr().out
    assert f"flights-0: [1, 2) missing: {second.key}: a segment" in out
    assert first.key not in out


@pytest.mark.parametrize("command", [("verify",), ("segments", "list")])
def test_a_topic_that_is_altered_meanwhile_is_not_damaged(
    topic: SealedTopic,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    """
    Agents write newer versions of its file, and delete old ones behind the listing.
    """
    listed = Path(topic.location) / layout.topic_key("flights", topic.topic_id, 1)
    get = DirectoryObjectStore.get

    async def altered(self: DirectoryObjectStore, key: str, *which: Any) -> Buffer:
        if listed.exists() and listed.match(f"*/{key}"):
            listed.rename(Path(topic.location) / layout.topic_key("flights", topic.topic_id, 2))
        return await get(self, key, *which)

    monkeypatch.setattr(DirectoryObjectStore, "get", altered)

    assert 0 == cli.main([*command, "flights", "--store", topic.location])
    assert "flights" in capsys.readouterr().out
    assert not listed.exists()
