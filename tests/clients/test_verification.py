"""`driftlog verify` on a real agent's bucket: right as it is, and each planted damage is named.

If it failed: an operator would trust a damaged log, or be alarmed by a compacted or expired one.
"""

import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    NewTopic,
)

from driftlog import cli
from tests.clients.conftest import metrics, seal
from tests.support.driftlog_process import DriftlogProcess

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("verification")]

_WAIT_S: Final = 60.0
_SMALL_SEGMENTS: Final = 20
"""Sixteen of them are merged."""
_SETTINGS: Final = (
    *("--config", "log.cleaner.backoff.ms=100"),
    *("--config", "log.retention.check.interval.ms=500"),
    *("--config", "driftlog.max.topic.seals.per.minute=100000"),
)
_COMPACTED: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0",
}


@dataclass(frozen=True, slots=True)
class Bucket:
    """The objects that an agent has left, and the names of its topics."""

    objects: Path
    plain: str
    compacted: str
    expired: str
    merged: str


def _create(agent: DriftlogProcess, **configs: str) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    dotted = {key.replace("_", "."): value for key, value in configs.items()}
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1, config=dotted)])[name].result(30)
    return name


def _produce(agent: DriftlogProcess, topic: str, records: int, keys: int = 20) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": agent.bootstrap, "enable.idempotence": True, "log_level": 2}
    )
    for number in range(records):
        producer.produce(topic, b"%d" % number * 20, b"k%d" % (number % keys), partition=0)
    assert 0 == producer.flush(60)


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + _WAIT_S
    while not holds():
        assert time.monotonic() < end, "it never did"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    """What an agent sealed, compacted, expired and merged; meanwhile `verify` found it right."""
    with DriftlogProcess(arguments=_SETTINGS) as agent:
        objects = agent.directory / "objects"
        plain = _create(agent)
        compacted = _create(agent, **{k.replace(".", "_"): v for k, v in _COMPACTED.items()})
        expired = _create(agent, retention_bytes="0")
        for _ in range(3):
            for topic in (plain, compacted, expired):
                _produce(agent, topic, 200)
                seal(agent, topic)
            assert 0 == cli.main(["verify", "--store", str(objects), "--deep"])
        merged = _create(agent)
        for _ in range(_SMALL_SEGMENTS):
            _produce(agent, merged, 5)
            seal(agent, merged)
        _until(lambda: metrics(agent)["driftlog_merges_total"] > 0)
        assert 0 == cli.main(["verify", "--store", str(objects), "--deep"])
        _until(lambda: metrics(agent)["driftlog_compaction_removed_records_total"] > 0)
        _until(lambda: metrics(agent)['driftlog_expired_records_total{reason="size"}'] > 0)
        assert 0 == cli.main(["verify", "--store", str(objects)])
        assert 0 == agent.terminate()
        yield Bucket(objects, plain, compacted, expired, merged)


@pytest.fixture
def copy(bucket: Bucket, tmp_path: Path) -> Bucket:
    """A copy that a test may damage."""
    shutil.copytree(bucket.objects, tmp_path / "objects")
    return replace(bucket, objects=tmp_path / "objects")


def _verify(
    bucket: Bucket, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = cli.main(["verify", "--store", str(bucket.objects), "--json", *more])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, document


@pytest.mark.parametrize("deep", [(), ("--deep",)])
def test_what_an_agent_leaves_is_right(
    bucket: Bucket, capsys: pytest.CaptureFixture[str], deep: tuple[str, ...]
) -> None:
    """
    Also after compaction, retention and merging: gaps and deleted records are no damage.
    """
    status, document = _verify(bucket, capsys, *deep)

    found = {one["topic"]: one for one in document["partitions"]}
    assert (0, 0, []) == (status, document["damaged"], document["topic_files"])
    plain, compacted, expired = (
        found[name] for name in (bucket.plain, bucket.compacted, bucket.expired)
    )
    assert (600, 0, 600) == (plain["records"], plain["gap_offsets"], plain["sealed_end"])
    assert compacted["gap_offsets"] == 600 - compacted["records"] > 0
    assert expired["log_start"] > 0
    merged = found[bucket.merged]
    assert (5 * _SMALL_SEGMENTS, 0) == (merged["records"], merged["gap_offsets"])
    assert merged["segments"] < _SMALL_SEGMENTS
    assert {"get", "list"} == document["requests"].keys()


# ── Damage ──


def _flip(file: Path, at: int) -> None:
    body = bytearray(file.read_bytes())
    body[at] ^= 1
    file.write_bytes(body)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def _flip_first(file: Path) -> None:
    _flip(file, 20)


def _flip_footer(file: Path) -> None:
    body = file.read_bytes()
    file.write_bytes(body[:-60] + b"\xff" * 30 + body[-30:])


def _flip_last(file: Path) -> None:
    _flip(file, -1)


def _swap_with_next(file: Path) -> None:
    other = sorted(file.parent.glob("*.parquet"))[1]
    body, others = file.read_bytes(), other.read_bytes()
    file.write_bytes(others.ljust(len(body), b"\0")[: len(body)])
    other.write_bytes(body.ljust(len(others), b"\0")[: len(others)])


def _remove(file: Path) -> None:
    file.unlink()


_SEGMENT: Final = "*.parquet"


@pytest.mark.parametrize(
    ("pattern", "damage", "kinds", "advice"),
    [
        (_SEGMENT, _remove, {"missing"}, "accept-loss TOPIC:PARTITION"),
        (_SEGMENT, _cut, {"size"}, "delete it from the bucket"),
        (_SEGMENT, _flip_first, {"crc"}, "delete it from the bucket"),
        (_SEGMENT, _flip_footer, {"footer"}, "delete it from the bucket"),
        (_SEGMENT, _swap_with_next, {"content", "footer", "size"}, "an older version"),
        ("manifest/*.json", _flip_first, {"manifest"}, "accept-loss does not cover it"),
        ("producers/*.snapshot", _remove, {"missing"}, "accept-loss does not cover it"),
        ("producers/*.snapshot", _flip_last, {"producers"}, "accept-loss does not cover it"),
    ],
)
def test_each_damage_is_named_with_what_to_do(
    copy: Bucket,
    capsys: pytest.CaptureFixture[str],
    pattern: str,
    damage: Callable[[Path], None],
    kinds: set[str],
    advice: str,
) -> None:
    """
    The object by its key, its range, the advice; the other topics are right.
    """
    (folder,) = (copy.objects / "topics" / copy.plain).glob("*/00000")
    files = sorted(folder.glob(pattern))
    file = files[-1] if "snapshot" in pattern else files[0]  # the newest; a manifest's is first
    damage(file)

    status, document = _verify(copy, capsys)

    found = [(p["topic"], one) for p in document["partitions"] for one in p["damage"]]
    assert 1 == status
    assert {copy.plain} == {topic for topic, _ in found}
    first = found[0][1]
    assert str(file.relative_to(copy.objects)) == first["object"]
    assert first["kind"] in kinds
    assert advice in first["advice"]
    if pattern == _SEGMENT:
        assert (0, 200) == (first["base"], first["end"])


def test_a_missing_topic_file_hides_no_damage(
    copy: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    The file is reported, and the partitions are verified all the same.
    """
    (folder,) = (copy.objects / "topics" / copy.plain).glob("*")
    (file,) = (folder / "topic").iterdir()
    file.unlink()
    segment = min((folder / "00000").glob(_SEGMENT))
    segment.unlink()

    status, document = _verify(copy, capsys, copy.plain)

    (lost,) = document["topic_files"]
    assert (1, 2) == (status, document["damaged"])
    assert str(file.relative_to(copy.objects)) == lost["object"]
    assert "an agent writes a new one" in lost["advice"]
    (damage,) = document["partitions"][0]["damage"]
    assert str(segment.relative_to(copy.objects)) == damage["object"]


def test_the_lines_for_people_say_what_to_do(
    copy: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Each advice once, however many objects are damaged.
    """
    (folder,) = (copy.objects / "topics" / copy.plain).glob("*/00000")
    for segment in folder.glob(_SEGMENT):
        segment.unlink()

    assert 1 == cli.main(["verify", copy.plain, "--store", str(copy.objects)])

    printed = capsys.readouterr()
    lines = [line for line in printed.out.splitlines() if line.startswith("what to do: ")]
    assert 1 == len(lines)
    assert lines[0].startswith("what to do: missing: bring the object back")
    assert " GET, " in printed.err


def test_an_agent_finds_the_damage_by_itself() -> None:
    """
    At the next verification; the log names the object.
    """
    every = ("--config", "driftlog.verification.interval.ms=2000")
    with DriftlogProcess(arguments=every) as agent:
        topic = _create(agent)
        _produce(agent, topic, 100)
        seal(agent, topic)
        _until(lambda: metrics(agent)["driftlog_verified_partitions_total"] >= 1)
        assert 0 == metrics(agent)["driftlog_verification_damaged_ranges"]
        (segment,) = (agent.directory / "objects" / "topics" / topic).rglob(_SEGMENT)
        segment.unlink()

        _until(lambda: metrics(agent)["driftlog_verification_damaged_ranges"] == 1)

        assert "sealed_damage_found" in agent.log
        assert segment.name in agent.log
