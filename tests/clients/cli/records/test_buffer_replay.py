"""`driftlog buffer replay`: what an agent has set aside is in its topics, once and as it was."""

import base64
import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast
from uuid import UUID

import pytest
from confluent_kafka import Consumer, TopicCollection
from confluent_kafka import TopicPartition as At
from confluent_kafka.admin import AdminClient

from driftlog.cli.records.buffer_kept import find, locked
from driftlog_agents.log.local.buffer_format import encode_entry_header, encode_file_header
from driftlog_agents.log.local.leftovers import Leftovers, PartitionLeftovers
from driftlog_agents.log.local.posix_disk import PosixDisk
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.batches.batch import Codec, build_batch, patch_offset_and_epoch
from driftlog_tiering.batches.compression import compress
from driftlog_tiering.batches.kernel_py import Record, encode_record
from tests.clients.command import refused, run, said
from tests.clients.conftest import make_topic
from tests.support.driftlog_process import DriftlogProcess, driftlog_command

pytestmark = pytest.mark.xdist_group("command")

BASE_MS = 1_700_000_000_000
Headers = tuple[tuple[str, bytes | None], ...]


class One(NamedTuple):
    """A record, as it is compared."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = BASE_MS


def batch(records: Sequence[One], offset: int, codec: Codec = Codec.NONE) -> bytes:
    """As an agent keeps it in its buffer."""
    section = b"".join(
        encode_record(Record(r.timestamp_ms - BASE_MS, n, r.key, r.value, r.headers))
        for n, r in enumerate(records)
    )
    if records is UNREADABLE:
        section = b"\xff" * len(section)
    built = build_batch(
        bytes(compress(codec, section)),
        base_offset=0,
        last_offset_delta=len(records) - 1,
        record_count=len(records),
        attributes=codec,
        base_timestamp=BASE_MS,
        max_timestamp=max(r.timestamp_ms for r in records),
    )
    patch_offset_and_epoch(built, offset, 3)
    return bytes(built)


class Aside:
    """A directory in DIR/kept, as an agent makes it."""

    def __init__(self, directory: Path, number: int = 1) -> None:
        self.session_id = f"{number:032x}"
        self.path = directory / "kept" / self.session_id
        self.path.mkdir(parents=True)
        self._leftovers = Leftovers(self.session_id, BASE_MS + number)
        self._bodies: dict[int, list[bytes]] = {}

    def add(
        self, topic: tuple[str, UUID], *batches: Sequence[One], file: int = 1, **how: Any
    ) -> "Aside":
        """Batches of one partition each."""
        body = self._bodies.setdefault(file, [encode_file_header(7, file)])
        for records in batches:
            tp = TopicPartition(topic[1], records[0].partition)
            built = batch(records, 50, **how)
            of = self._leftovers.partitions.setdefault(tp, PartitionLeftovers("why", topic[0]))
            of.batches += 1
            of.records += len(records)
            of.size_bytes += len(built)
            body += [encode_entry_header(7, topic[1].bytes, tp.partition, len(built), True), built]
        return self

    def write(self) -> "Aside":
        """Put it onto the disk."""
        for number, body in self._bodies.items():
            (self.path / f"{number:010d}.buf").write_bytes(b"".join(body))
        (self.path / "leftovers.json").write_bytes(self._leftovers.encode())
        return self

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir())


def noted_in(aside: Aside) -> int:
    """How many records are acknowledged, as the directory says."""
    ranges = json.loads((aside.path / "replayed.json").read_bytes())["files"]
    return sum(end - first for each in ranges.values() for first, end in each)


def topic_of(agent: DriftlogProcess, partitions: int = 1, **configs: str) -> tuple[str, UUID]:
    """A new topic, and its id."""
    name = make_topic(agent, partitions, **configs)
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    (future,) = admin.describe_topics(TopicCollection([name])).values()
    text = str(future.result().topic_id).replace("+", "-").replace("/", "_")
    return name, UUID(bytes=base64.urlsafe_b64decode(text.rstrip("=") + "=="))


def stored(agent: DriftlogProcess, topic: str) -> list[One]:
    """Everything in *topic*, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": agent.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    partitions = sorted(consumer.list_topics(topic, 30).topics[topic].partitions)
    consumer.assign([At(topic, p, 0) for p in partitions])
    found: list[One] = []
    ended = 0
    deadline = time.monotonic() + 60
    while ended < len(partitions) and time.monotonic() < deadline:
        for m in consumer.consume(10_000, 0.2):
            if m.error():
                ended += 1
                continue
            headers = tuple(cast(list[tuple[str, bytes | None]], m.headers() or []))
            found.append(One(m.partition() or 0, m.key(), m.value(), headers, m.timestamp()[1]))
    consumer.close()
    return sorted(found, key=lambda r: r.partition)


UNREADABLE: list[One] = [One(0, None, b"none of it can be decoded")]
"""Records of which `batch` makes a section that is none."""

RECORDS: list[list[One]] = [
    [
        One(0, b"k1", b"v1", (("a", b"1"), ("b", None), ("c", b""), ("a", b"2")), BASE_MS + 5),
        One(0, b"k2", None),
        One(0, b"", b"", (), BASE_MS - 1_000),
    ],
    [One(0, None, None), One(0, b"last", "é\n".encode())],
    [One(1, b"k3", b"of partition 1")],
]


def test_what_is_set_aside_is_produced_as_it_was(agent: DriftlogProcess, tmp_path: Path) -> None:
    """
    Keys, values, headers, timestamps, partitions and order of two directories, with any codec;
    a look changes nothing, and a second run finds nothing.
    """
    topic = topic_of(agent, 2)
    first, second, third = RECORDS
    later = Aside(tmp_path, 2).add(topic, second, codec=Codec.ZSTD).write()
    earlier = Aside(tmp_path, 1).add(topic, first, third, codec=Codec.LZ4).write()

    shown = run("buffer", "replay", str(tmp_path), "--dry-run", bootstrap=agent.bootstrap)
    assert [*earlier.files, *later.files] == ["0000000001.buf", "leftovers.json"] * 2
    done = run("buffer", "replay", str(tmp_path), bootstrap=agent.bootstrap)
    again = run("buffer", "replay", str(tmp_path), bootstrap=agent.bootstrap)

    assert [0, 0, 0] == [each.returncode for each in (shown, done, again)]
    assert topic[0].encode() in shown.stdout
    assert b"2 records, set aside 2023-11-14T22:13:20Z" in shown.stderr
    assert b"4 records replayed" in done.stderr
    assert b"nothing is set aside" in again.stderr
    assert [*first, *second, *third] == stored(agent, topic[0])
    assert [] == list((tmp_path / "kept").iterdir())


def test_a_run_goes_on_where_the_last_one_was_interrupted(
    agent: DriftlogProcess, tmp_path: Path
) -> None:
    """
    Ctrl-C waits for acknowledgements and notes them: each record is there once after the next run.
    """
    topic = topic_of(agent)
    values = [b"%06d" % n for n in range(300_000)]
    batches = [
        [One(0, None, value) for value in values[at : at + 1_000]]
        for at in range(0, len(values), 1_000)
    ]
    aside = Aside(tmp_path).add(topic, *batches[:200]).add(topic, *batches[200:], file=2).write()
    command = driftlog_command()
    assert command is not None
    process = subprocess.Popen(
        [command, "buffer", "replay", str(tmp_path), "-b", agent.bootstrap],
        stderr=subprocess.PIPE,
    )
    while not (aside.path / "replayed.json").exists():
        assert process.poll() is None, "it was over before it could be interrupted"
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, said_first = process.communicate(timeout=60)
    noted = noted_in(aside)

    done = run("buffer", "replay", str(tmp_path), bootstrap=agent.bootstrap)

    assert 0 < noted < len(values), said_first
    assert f"{noted:,} records replayed; interrupted".encode() in said_first
    assert (130, 0) == (process.returncode, done.returncode)
    assert f"{noted:,} were before".encode() in done.stderr
    counts = Counter(r.value for r in stored(agent, topic[0]))
    assert Counter(values) == counts


def test_records_of_deleted_topics_are_left_out_only_when_somebody_says_so(
    agent: DriftlogProcess, tmp_path: Path
) -> None:
    """
    A topic that was made again under the name is another one: it gets nothing.
    """
    stays, goes = topic_of(agent), topic_of(agent)
    kept = [One(0, b"k", b"stays")]
    aside = Aside(tmp_path).add(stays, kept).add(goes, [One(0, b"k", b"goes")]).write()
    said(agent.bootstrap, "topics", "delete", goes[0])
    made = run("topics", "create", goes[0], bootstrap=agent.bootstrap)

    complaint = refused(agent.bootstrap, "buffer", "replay", str(tmp_path))
    assert [] == stored(agent, stays[0])
    runs = [
        run("buffer", "replay", str(tmp_path), "--skip-deleted", bootstrap=agent.bootstrap)
        for _ in range(2)
    ]

    assert 0 == made.returncode, made.stderr
    assert f"{goes[0]} (deleted; another topic has its name)" in complaint
    assert "nothing is produced" in complaint
    assert [0, 0] == [each.returncode for each in runs]
    assert b"1 record of deleted topics" in runs[0].stderr
    assert (kept, []) == (stored(agent, stays[0]), stored(agent, goes[0]))
    assert ["0000000001.buf", "leftovers.json", "replayed.json"] == aside.files


def test_a_record_that_is_refused_stays_and_the_others_do_not_wait(
    agent: DriftlogProcess, tmp_path: Path
) -> None:
    """
    The topic takes less than it did: the reason and the old offset are said, the exit status is
    1, and the next run produces that record alone.
    """
    topic = topic_of(agent, max_message_bytes="1000")
    large = One(0, b"large", Random(1).randbytes(2_000))
    before, behind = One(0, b"1", b"before"), One(0, b"2", b"behind")
    aside = Aside(tmp_path).add(topic, [before], [large], [behind]).write()

    first = run("buffer", "replay", str(tmp_path), bootstrap=agent.bootstrap)
    assert b"1 record not" in first.stderr
    assert f"{topic[0]}-0, offset 50: not acknowledged".encode() in first.stderr
    assert [before, behind] == stored(agent, topic[0])
    limit = ("--add-config", "max.message.bytes=10000")
    said(agent.bootstrap, "configs", "alter", "--topic", topic[0], *limit)
    second = run("buffer", "replay", str(tmp_path), bootstrap=agent.bootstrap)

    assert (1, 0) == (first.returncode, second.returncode), second.stderr
    assert [before, behind, large] == stored(agent, topic[0])
    assert not aside.path.exists()


def test_a_record_without_a_time_gets_the_present_one(
    agent: DriftlogProcess, tmp_path: Path
) -> None:
    """
    librdkafka takes 0 for now: that is said, and the record is not left out.
    """
    topic = topic_of(agent)
    Aside(tmp_path).add(topic, [One(0, b"k", b"v", (), 0)]).write()

    done = run("buffer", "replay", str(tmp_path), bootstrap=agent.bootstrap)

    (found,) = stored(agent, topic[0])
    assert b"1 record had no time" in done.stderr
    assert (b"v", True) == (found.value, found.timestamp_ms > BASE_MS)


def test_what_cannot_be_replayed_says_why(agent: DriftlogProcess, tmp_path: Path) -> None:
    """
    Another directory, one that no agent has decided about, a damaged file, no cluster: nothing is
    removed, and each has its way out.
    """
    topic = topic_of(agent)
    whole, damaged = [One(0, None, b"whole")], [One(0, None, b"damaged")]
    aside = Aside(tmp_path / "agent").add(topic, whole, damaged).write()
    file = aside.path / "0000000001.buf"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    other = tmp_path / "other"
    other.mkdir()
    undecided = tmp_path / "undecided"
    undecided.mkdir()
    (undecided / "leftovers.json").write_bytes(Leftovers("s").encode())
    replay = ("buffer", "replay")

    assert "is no agent's directory" in refused(agent.bootstrap, *replay, str(other))
    assert "is not set aside yet" in refused(agent.bootstrap, *replay, str(undecided))
    assert "nothing listens at" in refused("127.0.0.1:1", *replay, str(tmp_path / "agent"))
    assert "is damaged" in refused(agent.bootstrap, *replay, str(aside.path))
    assert [] == stored(agent, topic[0])
    assert file.exists()
    given_up = run(*replay, str(aside.path), "--skip-damaged", bootstrap=agent.bootstrap)
    assert b"1 record given up" in given_up.stderr
    assert 0 == given_up.returncode
    assert whole == stored(agent, topic[0])
    assert not aside.path.exists()


def test_a_damaged_file_that_is_restored_is_replayed_whole(
    agent: DriftlogProcess, tmp_path: Path
) -> None:
    """
    A batch in the middle is damaged: a run takes nothing of the file, or with --skip-damaged its
    whole batches.  The restored file has other records at the same numbers: none is left out.
    """
    topic = topic_of(agent, max_message_bytes="1000")
    first, second = [One(0, None, b"A1"), One(0, None, b"A2")], [One(0, None, b"B1")]
    third, large = [One(0, None, b"C1")], [One(0, None, Random(1).randbytes(2_000))]
    aside = Aside(tmp_path).add(topic, first, second, third, large).write()
    file = aside.path / "0000000001.buf"
    good = file.read_bytes()
    replay = ("buffer", "replay", str(tmp_path))

    file.write_bytes(good.replace(b"B1", b"?1"))
    assert "5 of 5 records are in no whole file" in refused(agent.bootstrap, *replay)
    assert [] == stored(agent, topic[0])
    assert "1 record given up" in refused(agent.bootstrap, *replay, "--skip-damaged")
    assert [*first, *third] == stored(agent, topic[0])
    file.write_bytes(good)
    limit = ("--add-config", "max.message.bytes=10000")
    said(agent.bootstrap, "configs", "alter", "--topic", topic[0], *limit)
    said(agent.bootstrap, *replay)

    assert [*first, *third, *first, *second, *third, *large] == stored(agent, topic[0])
    assert not aside.path.exists()


def test_records_of_a_missing_file_are_not_taken_for_replayed(
    agent: DriftlogProcess, tmp_path: Path
) -> None:
    """
    The other file is produced; the directory stays until the missing file is back.
    """
    topic = topic_of(agent)
    there, missing = [One(0, None, b"there")], [One(0, None, b"1"), One(0, None, b"2")]
    aside = Aside(tmp_path).add(topic, there).add(topic, missing, file=2).write()
    file = aside.path / "0000000002.buf"
    elsewhere = file.rename(tmp_path / "elsewhere")

    complaint = refused(agent.bootstrap, "buffer", "replay", str(tmp_path))
    assert "2 of 3 records are in no whole file" in complaint
    assert there == stored(agent, topic[0])
    elsewhere.rename(file)
    said(agent.bootstrap, "buffer", "replay", str(tmp_path))

    assert [*there, *missing] == stored(agent, topic[0])
    assert not aside.path.exists()


def test_a_directory_that_cannot_be_read_does_not_block_the_others(
    agent: DriftlogProcess, tmp_path: Path
) -> None:
    """
    It is named, and the exit status is 1.
    """
    topic = topic_of(agent)
    unreadable = Aside(tmp_path, 1).add(topic, [One(0, None, b"unreadable")]).write()
    (unreadable.path / "leftovers.json").write_bytes(b"{")
    other = Aside(tmp_path, 2).add(topic, [One(0, None, b"other")]).write()

    complaint = refused(agent.bootstrap, "buffer", "replay", str(tmp_path))

    assert f"{unreadable.path}: leftovers.json" in complaint
    assert [One(0, None, b"other")] == stored(agent, topic[0])
    assert (True, False) == (unreadable.path.exists(), other.path.exists())


def test_what_the_agent_has_not_finished_to_set_aside_waits_for_its_start(
    agent: DriftlogProcess, tmp_path: Path
) -> None:
    """
    SIGKILL of the agent before or behind the rename into DIR/kept: the session is still in
    DIR/buffer, and the next start would set it aside once more.
    """
    topic = topic_of(agent)
    records = [One(0, None, b"once")]
    aside = Aside(tmp_path).add(topic, records).write()
    buffer = tmp_path / "buffer" / aside.session_id
    buffer.mkdir(parents=True)
    part = aside.path.with_name(f".{aside.session_id}.part")
    replay = ("buffer", "replay", str(tmp_path))

    assert "Start the agent once" in refused(agent.bootstrap, *replay)
    aside.path.rename(part)
    said(agent.bootstrap, *replay)
    assert [] == stored(agent, topic[0])
    part.rename(aside.path)
    buffer.rmdir()
    said(agent.bootstrap, *replay)

    assert records == stored(agent, topic[0])


def test_a_run_reads_what_is_replayed_when_it_has_the_lock(tmp_path: Path) -> None:
    """
    Two runs find a directory.  The first one is interrupted, and the second one goes on behind
    it; a third one that found it too has nothing to do when the second one ends.
    """
    Aside(tmp_path).add(("topic", UUID(int=5)), [One(0, None, b"v")]).write()
    ((found,), _) = find(tmp_path)

    with locked(found.path) as first:
        assert first is not None
        first.done.add("0000000001.buf", 0)
        first.done.save()
    with locked(found.path) as second:
        assert second is not None
        assert second.done.has("0000000001.buf", 0)
        second.remove()
    with locked(found.path) as third:
        assert third is None


def test_what_is_acknowledged_in_the_last_wait_is_noted(
    agent: DriftlogProcess, tmp_path: Path
) -> None:
    """
    One record a request: all records are on their way at once, and the run waits for seconds.
    SIGKILL in that wait repeats the records of a second, not all.
    """
    topic = topic_of(agent)
    records = [One(0, None, b"%06d" % n) for n in range(5_000)]
    aside = Aside(tmp_path).add(topic, records).write()
    command = driftlog_command()
    assert command is not None
    slow = ("-X", "batch.num.messages=1", "-X", "max.in.flight=1")
    process = subprocess.Popen(
        [command, "buffer", "replay", str(tmp_path), "-b", agent.bootstrap, *slow]
    )
    while not (aside.path / "replayed.json").exists():
        assert process.poll() is None, "it was over before anything was noted"
        time.sleep(0.005)
    process.kill()
    process.wait(60)

    noted = noted_in(aside)
    done = run("buffer", "replay", str(tmp_path), bootstrap=agent.bootstrap)

    assert 0 < noted < len(records)
    assert f"{noted:,} were before".encode() in done.stderr
    assert set(records) == set(stored(agent, topic[0]))


def test_a_batch_that_cannot_be_decoded_is_given_up_only_when_somebody_says_so(
    agent: DriftlogProcess, tmp_path: Path
) -> None:
    """
    Its CRC is right, its records are none: each run names it, and one with --skip-damaged
    ends with the directory deleted.
    """
    topic = topic_of(agent)
    before, behind = [One(0, None, b"before")], [One(0, None, b"behind")]
    aside = Aside(tmp_path).add(topic, before).add(topic, UNREADABLE).add(topic, behind).write()
    replay = ("buffer", "replay", str(tmp_path))

    complaint = refused(agent.bootstrap, *replay)
    assert aside.path.exists()
    given_up = run(*replay, "--skip-damaged", bootstrap=agent.bootstrap)

    assert "--skip-damaged gives this batch up" in complaint
    assert (0, True) == (given_up.returncode, b"1 record given up" in given_up.stderr)
    assert [*before, *behind] == stored(agent, topic[0])
    assert not aside.path.exists()


def test_a_kill_while_a_replayed_directory_is_deleted_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its new name is durable before its first file goes; no later run finds it, and the agent's next
    start deletes it.
    """
    aside = Aside(tmp_path).add(("topic", UUID(int=5)), [One(0, None, b"v")]).write()
    ((found,), _) = find(tmp_path)
    part = aside.path.with_name(f".{aside.session_id}.part")
    steps: list[str] = []

    def killed(path: Path, **options: Any) -> None:
        if path.exists():
            steps.append("delete")
            (path / "leftovers.json").unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: steps.append(os.readlink(f"/proc/self/fd/{file}")))
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            found.remove()
    left = part.exists()
    PosixDisk(tmp_path).close()

    assert [str(tmp_path / "kept"), "delete"] == steps
    assert ([], []) == find(tmp_path)
    assert (True, False) == (left, part.exists())
