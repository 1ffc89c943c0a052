"""`driftlog partitions accept-loss` gives up what is gone of a partition, and nothing else."""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from driftlog_agents.log.recovery.accepted_loss_plan import UNKNOWN_RECORDS
from driftlog_metadata.schema.codec import decode_flush_record
from driftlog_metadata.schema.keys import FLUSHES_PREFIX, LEADERS_PREFIX, PARTITIONS_PREFIX
from driftlog_metadata.stores.sqlite_store import SqliteMetadataStore
from driftlog_metadata.stores.store import Delete, KeyValue
from driftlog_tiering.formats.accepted_loss import decode_accepted_loss
from tests.clients.command import read, refused, said
from tests.clients.conftest import make_topic, metrics, seal
from tests.support.driftlog_process import DriftlogProcess

# What is gone is looked for during half a minute, and each step is a process of its own.
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("accept-loss"),
]


@pytest.fixture
def agent() -> Iterator[DriftlogProcess]:
    """One that a test may damage."""
    with DriftlogProcess() as process:
        yield process


def delete(agent: DriftlogProcess, prefix: str, which: Callable[[KeyValue], bool]) -> None:
    """Delete keys of an agent that is not there."""

    async def edit() -> None:
        store = await SqliteMetadataStore.open(agent.directory / "metadata.db", lambda: 0)
        _, kvs = await store.get_prefix(prefix)
        gone = [Delete(kv.key) for kv in kvs if which(kv)]
        assert gone
        await store.txn((), gone)
        await store.close()

    asyncio.run(edit())


def produce(agent: DriftlogProcess, topic: str, *values: str) -> None:
    """One flush for each."""
    for value in values:
        said(agent.bootstrap, "produce", topic, stdin=value.encode() + b"\n")


def consumed(agent: DriftlogProcess, topic: str) -> dict[int, str]:
    """All that a consumer gets, by offset."""
    lines = said(agent.bootstrap, "consume", topic, "--from-beginning", "-e", "-f", "%o %s\\n")
    found = (line.split(" ", 1) for line in lines.splitlines())
    return {int(offset): value for offset, value in found}


def accept(agent: DriftlogProcess, topic: str) -> tuple[list[list[int]], int]:
    """See what is lost, accept that, and have it served, without a start; what was said of it."""
    (offline,) = read(agent.bootstrap, "partitions", "offline")
    assert (topic, 0) == (offline["topic"], offline["partition"])
    assert "`driftlog partitions accept-loss" in offline["reason"]
    assert 1 == metrics(agent)["driftlog_offline_partitions"]
    line = ("partitions", "accept-loss", topic)
    (dry,) = read(agent.bootstrap, *line, "--dry-run")
    unasked = said(agent.bootstrap, *line, "--dry-run")
    assert "nothing was changed" in refused(agent.bootstrap, *line)
    (done,) = read(agent.bootstrap, *line, "--yes")
    assert (False, True) == (dry["accepted"], done["accepted"])
    assert dry["lost"] == done["lost"]
    assert str(dry["goes_on_at"]) in unasked
    audit = decode_accepted_loss((agent.directory / "objects" / done["audit"]).read_bytes())
    assert (topic, done["goes_on_at"]) == (audit.topic, audit.goes_on_at)
    deadline = time.monotonic() + 60
    while metrics(agent)["driftlog_offline_partitions"]:
        assert time.monotonic() < deadline, "it is offline still"
        time.sleep(0.05)
    return done["lost"], done["goes_on_at"]


def objects(agent: DriftlogProcess) -> list[Path]:
    """Flush objects, oldest first."""
    found = (agent.directory / "objects" / "flush").glob("*/*.flush")
    return sorted(found, key=lambda path: path.name)


def test_a_flush_object_is_gone(agent: DriftlogProcess) -> None:
    """
    The last one: what it held is not known, so new offsets begin far above it.
    """
    topic = make_topic(agent)
    produce(agent, topic, "0", "1", "lost")
    agent.kill()
    objects(agent)[-1].unlink()
    agent.start()

    lost, goes_on_at = accept(agent, topic)
    produce(agent, topic, "new")
    before = consumed(agent, topic)
    agent.terminate()
    agent.start()

    assert ([[2, 2 + UNKNOWN_RECORDS]], 2 + UNKNOWN_RECORDS) == (lost, goes_on_at)
    assert {0: "0", 1: "1", goes_on_at: "new"} == before == consumed(agent, topic)


def test_a_flush_record_is_gone(agent: DriftlogProcess) -> None:
    """
    A gap becomes an empty range; it is accepted for the partition that has it, and for no other.
    """
    topic, other = make_topic(agent), make_topic(agent)
    produce(agent, topic, "0", "lost", "2")
    produce(agent, other, "0")
    agent.kill()
    gone = objects(agent)[1].name
    delete(agent, FLUSHES_PREFIX, lambda kv: gone in decode_flush_record(kv.value).object_key)
    agent.start()

    lost, goes_on_at = accept(agent, topic)
    produce(agent, topic, "new")
    nothing = refused(agent.bootstrap, "partitions", "accept-loss", f"{other}:0", "--yes")

    assert ([[1, 2]], 3) == (lost, goes_on_at)
    assert {0: "0", 2: "2", 3: "new"} == consumed(agent, topic)
    assert "the partition is served" in nothing


def test_the_metadata_are_older_than_the_bucket(agent: DriftlogProcess, tmp_path: Path) -> None:
    """
    The manifest's data are kept; what was committed behind it is gone with the newer store, and its
    offsets are given to nothing else.
    """
    topic = make_topic(agent)
    produce(agent, topic, "0")
    agent.terminate()
    shutil.copy(agent.directory / "metadata.db", tmp_path / "backup.db")
    agent.start()
    produce(agent, topic, "1", "2")
    seal(agent, topic)
    produce(agent, topic, "unsealed")
    agent.terminate()
    for file in agent.directory.glob("metadata.db*"):
        file.unlink()
    shutil.copy(tmp_path / "backup.db", agent.directory / "metadata.db")
    agent.start()

    lost, goes_on_at = accept(agent, topic)
    produce(agent, topic, "new")
    seal(agent, topic)

    assert ([[3, 4]], 4) == (lost, goes_on_at)
    assert {0: "0", 1: "1", 2: "2", 4: "new"} == consumed(agent, topic)


@pytest.mark.parametrize("prefix", [LEADERS_PREFIX, PARTITIONS_PREFIX])
def test_one_key_of_a_partition_is_gone(agent: DriftlogProcess, prefix: str) -> None:
    """
    It is made again from what the bucket and the flush records have: no record is lost.
    """
    topic = make_topic(agent)
    produce(agent, topic, "0")
    seal(agent, topic)
    produce(agent, topic, "1", "2")
    agent.kill()
    delete(agent, prefix, lambda _: True)
    agent.start()

    lost, goes_on_at = accept(agent, topic)
    produce(agent, topic, "new")

    assert ([], 3) == (lost, goes_on_at)
    assert {0: "0", 1: "1", 2: "2", 3: "new"} == consumed(agent, topic)


def test_a_segment_is_gone(agent: DriftlogProcess) -> None:
    """
    The partition is served all the while; the command names the range, and it reads as empty.
    """
    topic = make_topic(agent)
    for value in ("0", "lost", "2"):
        produce(agent, topic, value)
        seal(agent, topic)
    produce(agent, topic, "3")
    agent.kill()
    (gone,) = (agent.directory / "objects").glob(f"topics/{topic}/*/00000/*1-*2-*.parquet")
    gone.unlink()
    agent.start()
    line = ("partitions", "accept-loss", f"{topic}:0")

    shown = said(agent.bootstrap, *line, "--dry-run")
    (done,) = read(agent.bootstrap, *line, "--yes")
    audit = decode_accepted_loss((agent.directory / "objects" / done["audit"]).read_bytes())
    produce(agent, topic, "new")

    assert gone.name in shown
    assert "all other records are kept" in shown
    assert ([[1, 2]], True) == (done["lost"], done["accepted"])
    assert ((1, 2),) == audit.lost
    assert {0: "0", 2: "2", 3: "3", 4: "new"} == consumed(agent, topic)
