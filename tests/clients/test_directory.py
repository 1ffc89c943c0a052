"""An agent whose directory is removed, moved or full loses nothing, and others cannot read it."""

import contextlib
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.clients.batches import good
from tests.clients.conftest import make_topic
from tests.clients.sockets import Raw
from tests.clients.test_disk_full import fill
from tests.support.driftlog_process import DriftlogProcess
from tests.support.s3_servers import S3Server

pytestmark = pytest.mark.xdist_group("disk_full")


def remove(directory: Path) -> None:
    """As `rm -rf`, also while the agent makes a file in it."""
    deadline = time.monotonic() + 60
    while directory.exists():
        assert time.monotonic() < deadline
        shutil.rmtree(directory, ignore_errors=True)


def ended(agent: DriftlogProcess) -> int | None:
    """The exit code; None: it goes on after two minutes."""
    try:
        return agent.wait(120)
    except subprocess.TimeoutExpired:
        return None
    finally:
        agent.kill()


@pytest.mark.parametrize("replaced", [False, True])
def test_metadata_that_are_removed_stop_the_agent_and_are_saved(replaced: bool) -> None:
    """
    The database is deleted, or another one is put in its place: the agent says so and ends, and
    goes on with all that it had acknowledged when its copy is put back.  (It may have looked before
    the second record came, and refuse it.)
    """
    with DriftlogProcess() as agent:
        topic = make_topic(agent)
        database = agent.directory / "metadata.db"
        with Raw(agent.port) as raw:
            assert raw.produce(topic, {0: good(b"before")}, acks=-1)[0].error_code == 0
            database.unlink()
            if replaced:
                database.write_bytes(b"of somebody")
            acknowledged = False
            with contextlib.suppress(ConnectionError):
                last = raw.produce(topic, {0: good(b"behind")}, acks=-1)[0]
                acknowledged = last.error_code == 0
        code = ended(agent)
        rescued = agent.directory / "metadata.db.rescued"
        assert 1 == code
        assert "directory_lost" in agent.log
        assert f"driftlog: {database} was removed or replaced" in agent.log
        assert not replaced or database.read_bytes() == b"of somebody"
        if not replaced:  # as a supervisor does, which reads nothing
            agent.launch()
            assert 1 == ended(agent)
            assert f"saved all metadata in {rescued}" in agent.log
        command = re.findall(r"`(rm .*)`\)", agent.log)[-1]
        if replaced:
            assert "move away what is there now" in agent.log
            database.unlink()
        subprocess.run(["sh", "-c", command], check=True)
        agent.start()
        with Raw(agent.port) as raw:
            end = raw.offsets(topic, [0], -1)[0]
            read = raw.fetch(topic, {0: 0})[0].records

    assert 1 + acknowledged <= end <= 2
    assert b"before" in read
    assert not acknowledged or b"behind" in read


def test_a_directory_that_is_removed_whole_loses_nothing(tmp_path: Path) -> None:
    """
    `rm -rf DIR`, objects are elsewhere: acks=1 is uploaded, the metadata are saved in a directory
    of that name, and the agent goes on from them.
    """
    arguments = ("--store", str(tmp_path / "objects"))
    with DriftlogProcess(tmp_path / "data", arguments=arguments) as agent:
        topic = make_topic(agent)
        with Raw(agent.port) as raw:
            codes = [
                raw.produce(topic, {0: good(b"kept %d" % acks)}, acks=acks)[0].error_code
                for acks in (-1, 1)
            ]
            remove(agent.directory)
        code = ended(agent)
        said = agent.log
        database = agent.directory / "metadata.db"
        database.with_name("metadata.db.rescued").replace(database)
        agent.start()
        with Raw(agent.port) as raw:
            read = bytes(raw.fetch(topic, {0: 0})[0].records)

    assert [0, 0] == codes
    assert 1 == code
    assert "All metadata are saved in" in said
    assert b"kept -1" in read
    assert b"kept 1" in read


def test_a_directory_that_is_moved_is_moved_back() -> None:
    """
    The command that the agent prints does it, whatever is in the path, and nothing acknowledged is
    missing; nothing is left at the old place that would be in its way.
    """
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent) / "it's a `log`"
        with DriftlogProcess(directory) as agent:
            topic = make_topic(agent)
            with Raw(agent.port) as raw:
                codes = [
                    raw.produce(topic, {0: good(b"kept %d" % acks)}, acks=acks)[0].error_code
                    for acks in (-1, 1)
                ]
                directory.rename(directory.with_name("elsewhere"))
            code = ended(agent)
            said = agent.log.rpartition("driftlog: ")[2]
            command = re.search(r"\(`(mv .*)`\) and start", said)
            assert command is not None, said
            subprocess.run(["sh", "-c", command[1]], check=True)
            agent.start()
            with Raw(agent.port) as raw:
                deadline = time.monotonic() + 60
                while raw.offsets(topic, [0], -1)[0] < 2:  # acks=1 is appended from the buffer
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
                read = b"".join(
                    bytes(raw.fetch(topic, {0: offset})[0].records) for offset in (0, 1)
                )

    assert [0, 0] == codes
    assert 1 == code
    assert f"was moved to {directory.with_name('elsewhere')}" in said
    assert b"kept -1" in read
    assert b"kept 1" in read


@pytest.mark.parametrize("what", ["buffer", "buffer files", "lock"])
def test_a_buffer_that_is_removed_stops_the_agent(what: str) -> None:
    """
    What was acks=1 is uploaded before the agent ends, with exit code 1 and the reason.
    """
    with DriftlogProcess() as agent:
        topic = make_topic(agent)
        with Raw(agent.port) as raw:
            assert raw.produce(topic, {0: good(b"one")}, acks=1)[0].error_code == 0
            if what == "buffer":
                remove(agent.directory / "buffer")
            elif what == "buffer files":
                for file in agent.directory.glob("buffer/*/*.buf"):
                    file.unlink()
            else:
                (agent.directory / "lock").unlink()
        code = ended(agent)
        said = agent.log
        agent.start()
        with Raw(agent.port) as raw:
            read = raw.fetch(topic, {0: 0})[0].records

    assert 1 == code
    assert "was removed or replaced while the agent ran" in said
    assert b"one" in read


def open_to_others(directory: Path) -> list[str]:
    paths = [directory, *directory.rglob("*")]
    return [str(path) for path in paths if stat.S_IMODE(path.lstat().st_mode) & 0o077]


def test_nobody_else_reads_the_directory() -> None:
    """
    Whatever the umask: also files and folders that were there, and objects that are made in it.
    """
    script = 'umask 0; exec "$@"'
    agent = DriftlogProcess(prefix=("sh", "-c", script, "sh"))
    session = agent.directory / "buffer" / ("0" * 32)
    session.mkdir(parents=True)
    (session / "0000000001.buf").write_bytes(b"")
    for path in (agent.directory, *agent.directory.rglob("*")):
        path.chmod(0o777)
    with agent:
        topic = make_topic(agent)
        with Raw(agent.port) as raw:
            for acks in (1, -1):
                assert raw.produce(topic, {0: good(b"secret")}, acks=acks)[0].error_code == 0
        agent.seal(topic)
        found = open_to_others(agent.directory)
        files = sum(path.is_file() for path in agent.directory.rglob("*"))
        said = agent.log
        agent.terminate()
        agent.start()
        again = agent.log[len(said) :]

    assert [] == found
    assert files > 5
    assert "directory_tightened" in said
    assert "directory_tightened" not in again


def test_objects_elsewhere_are_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    """
    Spark may be another user: a --store that is a directory keeps the modes of the umask.
    """
    store = tmp_path / "objects"
    prefix = ("sh", "-c", 'umask 022; exec "$@"', "sh")
    with DriftlogProcess(arguments=("--store", str(store)), prefix=prefix) as agent:
        topic = make_topic(agent)
        with Raw(agent.port) as raw:
            assert raw.produce(topic, {0: good(b"shared")}, acks=-1)[0].error_code == 0
        closed = [p for p in store.rglob("*.flush") if not p.stat().st_mode & stat.S_IROTH]
        found = open_to_others(agent.directory)

    assert [] == closed
    assert [] == found


def lease_end_ms(agent: DriftlogProcess, parent: Path) -> int:
    """Until when the agent's lease lasts, as its database has it.

    Of a copy: who opens the agent's own by its name would leave its mount namespace.
    """
    while True:
        copy = Path(tempfile.mkdtemp(dir=parent)) / "metadata.db"
        for suffix in ("", "-wal"):
            there = Path(f"/proc/{agent.pid}/root{agent.directory}/metadata.db{suffix}")
            copy.with_name(copy.name + suffix).write_bytes(there.read_bytes())
        with (
            contextlib.suppress(sqlite3.Error),  # it was written meanwhile
            contextlib.closing(sqlite3.connect(copy)) as database,
        ):
            (end_ms,) = database.execute("SELECT max(expires_at_ms) FROM lease").fetchone()
            return int(end_ms)


def test_a_full_disk_leaves_reads_and_acks_all(moto_s3: S3Server, tmp_path: Path) -> None:
    """
    DIR takes not one byte more, objects are elsewhere: until the lease was renewed twice on the
    full disk what is there is read and acks=all is taken; acks=1 is refused.
    """
    directory = tmp_path / "disk"
    directory.mkdir()
    script = f'mount -t tmpfs -o size=64m none {directory} || exit 77; exec "$@"'
    prefix = ("unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh")
    ran = subprocess.run([*prefix, "true"], capture_output=True, check=False, text=True)
    if ran.returncode:
        pytest.skip(f"no mount namespaces here: {ran.stderr.strip()}")
    arguments = ("--store", moto_s3.location, "--session-timeout-ms", "15000")
    with DriftlogProcess(
        directory, arguments=arguments, environment=moto_s3.environment, prefix=prefix
    ) as agent:
        topic = make_topic(agent)
        with Raw(agent.port) as raw:
            assert raw.produce(topic, {0: good(b"before")}, acks=-1)[0].error_code == 0
            fill(Path(f"/proc/{agent.pid}/root{agent.directory}/filler"))
            codes, reads = set(), set()
            renewals = {lease_end_ms(agent, tmp_path)}
            deadline = time.monotonic() + 180
            while len(renewals) < 3:
                assert time.monotonic() < deadline, "the lease was not renewed twice"
                renewals.add(lease_end_ms(agent, tmp_path))
                codes.add(raw.produce(topic, {0: good(b"x" * 9_000)}, acks=-1)[0].error_code)
                reads.add(b"before" in bytes(raw.fetch(topic, {0: 0})[0].records))
            one = raw.produce(topic, {0: good(b"x" * 90_000)}, acks=1)[0].error_code
        said = agent.log
        os.unlink(f"/proc/{agent.pid}/root{agent.directory}/filler")

    assert {0} == codes
    assert {True} == reads
    assert one
    assert "session_lost" not in said
