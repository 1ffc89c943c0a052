"""A disk that takes no more: what needs it is refused, what does not goes on, nothing is lost."""

import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from benchmarks.batches import Growing
from tests.clients.batches import good
from tests.clients.conftest import make_topic
from tests.clients.peers import Confluent
from tests.clients.sockets import (
    KAFKA_STORAGE_ERROR,
    NOT_LEADER_OR_FOLLOWER,
    REQUEST_TIMED_OUT,
    Produced,
    Raw,
)
from tests.support.driftlog_process import DriftlogProcess
from tests.support.s3_servers import S3Server

pytestmark = pytest.mark.xdist_group("disk_full")

T: Final = 1_700_000_000_000
MIB: Final = 1 << 20


def test_acks_1_is_refused_and_acks_all_goes_on(moto_s3: S3Server) -> None:
    """
    The buffer file takes no more bytes, and objects are elsewhere: acks=1 gets a retriable
    error, acks=all is committed from memory and read; with room again acks=1 is taken.
    """
    with DriftlogProcess(
        arguments=("--store", moto_s3.location), environment=moto_s3.environment
    ) as agent:
        topic = make_topic(agent)
        batch = Growing(b"x" * 1_000, 500, T).first(500)
        with Raw(agent.port) as raw:
            assert raw.produce(topic, {0: batch}, acks=1)[0].error_code == 0
            limit_files(agent.pid, 2 * MIB)
            refused = 0
            for _ in range(10):
                refused += raw.produce(topic, {0: batch}, acks=1)[0].error_code != 0
            one = raw.produce(topic, {0: good(b"acks=1")}, acks=1)[0]
            all_ = raw.produce(topic, {0: good(b"acks=all")}, acks=-1)[0]
            read = raw.fetch(topic, {0: all_.base_offset})[0].records
            limit_files(agent.pid, resource.RLIM_INFINITY)
            deadline = time.monotonic() + 20
            again = raw.produce(topic, {0: good(b"acks=1 again")}, acks=1)[0]
            while again.error_code and time.monotonic() < deadline:
                time.sleep(0.2)
                again = raw.produce(topic, {0: good(b"acks=1 again")}, acks=1)[0]
            end = raw.offsets(topic, [0], -1)[0]

    assert refused >= 1
    assert one == Produced(KAFKA_STORAGE_ERROR, -1)
    assert all_.error_code == 0
    assert b"acks=all" in read
    assert again.error_code == 0
    assert end in (again.base_offset, again.base_offset + 1)  # it may not be committed yet


def limit_files(pid: int, size_bytes: int) -> None:
    """Writes beyond that size of any file fail, as on a full disk (EFBIG instead of ENOSPC)."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[DriftlogProcess]:
    """An agent whose directory, objects and metadata too, is a disk of 24 MiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    script = f'mount -t tmpfs -o size=24m none {directory} || exit 77; exec "$@"'
    prefix = ("unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh")
    ran = subprocess.run([*prefix, "true"], capture_output=True, check=False, text=True)
    if ran.returncode:
        pytest.skip(f"no mount namespaces here: {ran.stderr.strip()}")
    with DriftlogProcess(directory, prefix=prefix) as agent:
        yield agent


def test_a_disk_that_is_full_of_everything_loses_nothing_acknowledged(
    small_disk: DriftlogProcess,
) -> None:
    """
    Buffer, objects and metadata all get ENOSPC: producers get retriable errors, what was
    acknowledged is read, the process lives, and goes on when there is room again.
    """
    agent = small_disk
    topic = make_topic(agent)
    filler = Path(f"/proc/{agent.pid}/root{agent.directory}/filler")
    pid = agent.pid
    acknowledged: list[tuple[int, bytes]] = []

    def produce(raw: Raw, value: bytes, acks: int, timeout_ms: int = 15_000) -> int:
        batch = {0: good(value * 200, timestamp_ms=T)}
        answer = raw.produce(topic, batch, acks=acks, timeout_ms=timeout_ms)[0]
        if answer.error_code == 0:
            acknowledged.append((answer.base_offset, value * 200))
        return answer.error_code

    with Raw(agent.port) as raw:
        codes = {produce(raw, b"before %d," % n, acks) for n in range(5) for acks in (1, -1)}
        assert codes == {0}
        fill(filler)
        full = [produce(raw, b"full %d," % n, acks, 1_000) for n in range(3) for acks in (1, -1)]
        filler.unlink()
        deadline = time.monotonic() + 30
        while produce(raw, b"after,", -1) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert produce(raw, b"last all,", -1) == 0
        assert produce(raw, b"last one,", 1) == 0
        produce(raw, b"committed behind it,", -1)
        end = raw.offsets(topic, [0], -1)[0]
    reads = Confluent().consume(agent.bootstrap, {topic: end})[topic]

    found = {read.offset: read.record.value for read in reads}
    assert set(full) <= {0, REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER}
    assert any(full)
    assert dict(acknowledged).items() <= found.items()
    assert agent.pid == pid


def fill(file: Path) -> None:
    """Until the disk takes not one byte more."""
    with file.open("wb", buffering=0) as out:
        for size in (MIB, 4096, 1):
            try:
                while True:
                    out.write(b"\xff" * size)
            except OSError:
                continue
