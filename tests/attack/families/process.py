"""What the process stands on: its log, its disk, and files that change under it.

Shell.
"""

import contextlib
import os
import shutil
import stat
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.batches import encode_batch
from driftlog_agents.protocol.api import ApiKey
from driftlog_agents.protocol.messages.heartbeat import HeartbeatRequest
from driftlog_agents.protocol.messages.metadata import MetadataRequest
from tests.attack.attacks import Attack, ImpossibleError, MiB, Target
from tests.attack.produce import fetched, produced, sent
from tests.attack.state import make_topic
from tests.attack.wire import GONE, Connection
from tests.clients.command import run

_LOG_BYTES: Final = 2 * MiB
_LOG_BYTES_S: Final = 30.0
"""So much at once, and again in so many seconds: the limit is one of lines a second."""
_EVENTS: Final = 400
_AT_ONCE: Final = 50
_BUFFERED: Final = 40


def make_events(target: Target, count: int = _EVENTS) -> None:
    """Requests that cannot be read, cannot be answered or are refused, with ids of 32 KB: a line of
    log each."""
    client_id = b"\x1b[31m\x07" + b"c" * 32_000
    head = struct.pack(">hhih", ApiKey.METADATA, 4, 1, len(client_id)) + client_id
    data = head + struct.pack(">i", 2**31 - 1)  # topics that are not there
    frame = struct.pack(">i", len(data)) + data
    join = b"j" * 32_767
    head = struct.pack(">hhih", ApiKey.JOIN_GROUP, 3, 1, len(join)) + join
    body = struct.pack(">h", 1) + b"g" + struct.pack(">iihh", 10_000, 10_000, 0, 8) + b"consumer"
    body += struct.pack(">ih", 1, 1) + b"r" + struct.pack(">i", 0)
    unencodable = struct.pack(">i", len(head) + len(body)) + head + body
    head = struct.pack(">hhih", ApiKey.INIT_PRODUCER_ID, 1, 1, len(client_id)) + client_id
    body = struct.pack(">h", len(client_id)) + client_id + struct.pack(">i", 1_000)
    refused = struct.pack(">i", len(head) + len(body)) + head + body
    frames = (frame, unencodable, refused, refused)
    for _ in range(0, count, _AT_ONCE):
        if not target.agent.is_alive():
            return
        with target.crowd(_AT_ONCE, timeout_s=0.5) as crowd:
            for number, connection in enumerate(crowd):
                target.sent += 1
                with contextlib.suppress(*GONE):
                    connection.send(frames[number % len(frames)])
            time.sleep(0.1)


class LogFlood(Attack):
    """400 requests with client ids of 32 KB, each of which is an event for the log."""

    name = "log-flood"
    item = "8"

    def run(self, target: Target) -> None:
        """The log is bounded, and nothing in it moves a terminal's cursor."""
        before, begun = len(target.agent.log), time.monotonic()
        make_events(target)
        log = target.agent.log[before:]
        if len(log) > _LOG_BYTES * (1 + (time.monotonic() - begun) / _LOG_BYTES_S):
            target.fail(f"{len(log) / MiB:.1f} MiB of log for {target.sent} requests")
        if "\x1b[31m" in log or "\x07" in log:
            target.fail("a client's control characters are in the log")


class LogFull(Attack):
    """The log goes to a device that is full, and events come."""

    name = "log-full-device"
    item = "8"
    prefix = ("sh", "-c", 'exec "$@" 2>/dev/full', "sh")

    def run(self, target: Target) -> None:
        """It goes on."""
        make_events(target)


class _LogPipe(Attack):
    """A named pipe for the log."""

    item = "8"
    reader_stays: ClassVar[bool]
    readable = False
    """It would be started again on the same pipe; that is what `LogFull` does."""

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        folder = Path(tempfile.mkdtemp(prefix="driftlog-attack-"))
        pipe = folder / "log"
        os.mkfifo(pipe)
        self._reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.prefix = ("sh", "-c", f'exec "$@" 2>{pipe}', "sh")  # type: ignore[misc]  # of this one
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.close(self._reader)
            shutil.rmtree(folder, ignore_errors=True)

    def run(self, target: Target) -> None:
        """It goes on, /healthz too."""
        if not self.reader_stays:
            os.close(self._reader)
        make_events(target)


class LogClosed(_LogPipe):
    """The reader of the log's pipe ends, and events come."""

    name = "log-closed-pipe"
    reader_stays = False


class LogUnread(_LogPipe):
    """The reader of the log's pipe stays and reads nothing, and events come."""

    name = "log-unread-pipe"
    reader_stays = True


class DiskFull(Attack):
    """DIR is a small disk that is full for ten seconds, buffer and metadata on it, and objects
    elsewhere; then there is room again."""

    name = "disk-full"
    item = "12"
    readable = False
    """The disk goes with its process."""

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        ran = subprocess.run(
            [*_NAMESPACE, "mount -t tmpfs none /mnt"], capture_output=True, check=False, text=True
        )
        if ran.returncode:
            raise ImpossibleError(f"no disk of its own: {ran.stderr.strip()[:60]}")
        with tempfile.TemporaryDirectory(prefix="driftlog-attack-") as store:
            self.prefix = (*_NAMESPACE, _SMALL_DISK, "sh")  # type: ignore[misc]  # of this one
            self.arguments = ("--store", store)  # type: ignore[misc]
            yield

    def run(self, target: Target) -> None:
        """Reads and heartbeats go on meanwhile, for longer than a session lives without writes."""
        agent = target.agent
        filler = Path(f"/proc/{agent.pid}/root{agent.directory}/filler")
        with target.connect(timeout_s=60) as connection:
            make_topic(connection, "kept")
            offset = produced(connection, "kept", b"kept")[1]
            _fill(filler)
            self._full(target, connection, offset)
        filler.unlink(missing_ok=True)
        self._recovered(target)

    def _full(self, target: Target, connection: Connection, offset: int) -> None:
        until = time.monotonic() + _FULL_S
        while time.monotonic() < until and target.agent.is_alive():
            target.sent += 3
            try:
                code, found = fetched(connection, "kept", offset)
                heartbeat = HeartbeatRequest(group_id="no-such-group", member_id="m")
                connection.ask(ApiKey.HEARTBEAT, 3, heartbeat)
                request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
                connection.ask(ApiKey.METADATA, 9, request)
            except GONE as error:
                target.fail(f"not served while the disk is full: {type(error).__name__} {error}")
                return
            if code or found.get(offset) != b"kept":
                target.fail(f"a record is not read while the disk is full: error {code}")
                return
            time.sleep(0.2)

    def _recovered(self, target: Target) -> None:
        deadline = time.monotonic() + 90
        code = -1
        while time.monotonic() < deadline and target.agent.is_alive():
            with contextlib.suppress(*GONE), target.connect() as connection:
                code, _ = produced(connection, "kept", b"again")
                if code == 0:
                    return
            time.sleep(0.3)
        target.fail(f"nothing can be written where there is room again: error {code}")


_NAMESPACE: Final = ("unshare", "--map-root-user", "--mount", "sh", "-c")
_SMALL_DISK: Final = (
    'for word in "$@"; do [ "$before" = --dir ] && dir=$word; before=$word; done; '
    'mkdir -p "$dir" && mount -t tmpfs -o size=64m none "$dir" && exec "$@"'
)
_FULL_S: Final = 10.0


def _fill(file: Path) -> None:
    """Until the disk takes not one byte more."""
    with file.open("wb", buffering=0) as out:
        for size in (MiB, 4_096, 1):
            with contextlib.suppress(OSError):
                while True:
                    out.write(b"\xff" * size)


class FlippedBit(Attack):
    """40 records with acks=1 while no object can be written, a kill, and a bit of the first one's
    entry in the buffer file changed.  The agent sets aside what stands behind it."""

    name = "flipped-bit"
    item = "16"

    def run(self, target: Target) -> None:
        """Not while the healthy client is there: the agent is killed."""

    def again(self, target: Target) -> None:
        """The records behind that one are produced by ``driftlog buffer replay``."""
        agent = target.agent
        objects, away = agent.directory / "objects", agent.directory / "away"
        with target.connect() as connection:
            make_topic(connection, "flipped")
            objects.rename(away)
            objects.touch()  # a file: nothing can be put below it
            for number in range(_BUFFERED):
                batch = encode_batch([b"flip-%d" % number], timestamp_ms=1).data
                code, _ = sent(connection, "flipped", batch, acks=1)
                target.sent += 1
                assert code == 0, f"acks=1 while the bucket is away: error {code}"
        agent.kill()
        objects.unlink()
        away.rename(objects)
        _flip(agent.directory / "buffer", b"flip-0")
        agent.start()
        deadline = time.monotonic() + 90
        while not list(agent.directory.glob("kept/*/leftovers.json")):
            if time.monotonic() > deadline:
                target.fail("nothing is set aside of what stands behind the bit")
                return
            time.sleep(0.3)
        replayed = run("buffer", "replay", str(agent.directory), bootstrap=agent.bootstrap)
        if replayed.returncode:
            target.fail(replayed.stderr.decode())
        found = run("consume", "flipped", "-e", bootstrap=agent.bootstrap).stdout.splitlines()
        if sorted(found) != sorted(b"flip-%d" % number for number in range(1, _BUFFERED)):
            target.fail(f"one bit left {len(found)} of {_BUFFERED} records (acks=1): {found!r}")


def _flip(folder: Path, value: bytes) -> None:
    """The lowest bit of the first byte of *value*, which one file of *folder* has once."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (at := path.read_bytes().find(value)) >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes((value[0] ^ 1,)))
            return
    raise AssertionError(f"{value!r} is in no buffer file")


class FilesRemoved(Attack):
    """metadata.db is removed under a running agent."""

    name = "metadata-removed"
    item = "17"
    must_end = True
    readable = False
    """An agent does not start without it, and should not."""
    paths: ClassVar[tuple[str, ...]] = ("metadata.db", "metadata.db-wal", "metadata.db-shm")

    def run(self, target: Target) -> None:
        """It must notice, say so and stop."""
        for name in self.paths:
            target.sent += 1
            path = target.agent.directory / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


class BufferRemoved(FilesRemoved):
    """The folder of buffer files is removed under a running agent."""

    name = "buffer-removed"
    paths = ("buffer",)
    readable = True


class OpenFiles(Attack):
    """Another user of the machine looks into DIR."""

    name = "open-files"
    item = "18"

    def run(self, target: Target) -> None:
        """Nothing there may be read or searched by others."""
        directory = target.agent.directory
        for path in (directory, *sorted(directory.rglob("*"))):
            target.sent += 1
            with contextlib.suppress(FileNotFoundError):
                mode = stat.S_IMODE(path.stat().st_mode)
                if mode & 0o077 and path.parent in (directory, directory.parent):
                    target.fail(f"{path.relative_to(directory.parent)} is {mode:04o}")


ATTACKS: Final = (
    LogFlood,
    LogFull,
    LogClosed,
    LogUnread,
    DiskFull,
    FlippedBit,
    FilesRemoved,
    BufferRemoved,
    OpenFiles,
)
