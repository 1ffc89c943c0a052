"""The cost of consumer groups: a thousand groups of ten members that join, heartbeat and commit.

    python -m benchmarks.groups                       driftlog, and Apache Kafka where its jars are
    python -m benchmarks.groups --groups 20           a test run; not to be quoted
    python -m benchmarks.groups --only ours

Members are asyncio protocols that write the classic protocol's frames themselves, each with a
connection of its own, as consumers have; the leader of a group assigns one partition to each.
All are in one process, which takes more of the machine than the broker does.  The last row kills
the broker with SIGKILL and starts it again: a coordinator that takes over continues the
generation, and no member joins again.

Shell.
"""

import argparse
import asyncio
import contextlib
import random
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks import wire
from benchmarks.peers import KAFKA, OURS, Options, Peer, brokers
from benchmarks.rawclient import connected, parse_bootstrap

_TOPIC: Final = b"t"
_PARTITIONS: Final = 10
_SESSION_MS: Final = 45_000
_HEARTBEAT_S: Final = 3.0
_COMMIT_S: Final = 5.0
_RETRY_S: Final = 0.2
_AS_KAFKA: Final = ("--config", "group.initial.rebalance.delay.ms=3000")
"""The default of `driftlog dev` is 0: each new member would make the others join again."""
_MEMBER_ID_REQUIRED: Final = 79
_AGAIN: Final = frozenset({14, 15, 16})
"""The coordinator loads, is not available, or is another one."""
_REBALANCES: Final = frozenset({22, 25, 27, 79})


class Refused(Exception):
    """An error after which a consumer joins again, or stops."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what}: error {code}")
        self.code = code


@dataclass(slots=True)
class Figures:
    """The figures of all members together."""

    stable: int = 0
    joins: int = 0
    """Rebalances that members have gone through."""
    heartbeats: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    """Seconds of each successful commit."""
    beat_at: dict[int, float] = field(default_factory=dict)
    """Time of each member's last successful heartbeat."""


class _Wire(asyncio.Protocol):
    """One connection with one request in flight."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._waiting: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionResetError("the broker hung up"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < 4:
            return
        size = int.from_bytes(self._received[:4])
        if len(self._received) >= 4 + size and self._waiting is not None:
            frame = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            if not self._waiting.done():
                self._waiting.set_result(frame)

    async def ask(self, api_key: int, version: int, body: bytes) -> wire.Reader:
        """Send a request; returns the answer after its header and throttle time."""
        assert self._transport is not None
        if self._transport.is_closing():
            raise ConnectionResetError("the broker has hung up")
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(wire.request(api_key, version, 1, body))
        return wire.Reader(await self._waiting, 8)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


_NO_INSTANCE: Final = wire.string(None)
_SUBSCRIPTION: Final = struct.pack(">hi", 0, 1) + wire.string(_TOPIC) + _bytes(b"")


def _assignment(partition: int) -> bytes:
    topic = wire.string(_TOPIC) + struct.pack(">ii", 1, partition)
    return struct.pack(">hi", 0, 1) + topic + _bytes(b"")


class Member:
    """A consumer of one group, until it is cancelled."""

    def __init__(
        self, number: int, group: bytes, bootstrap: str, figures: Figures, *, commits: bool
    ) -> None:
        self._number, self._group, self._figures = number, wire.string(group), figures
        self._address = parse_bootstrap(bootstrap)
        self._commits = commits
        self._id = b""
        self._generation = -1
        self._partition = 0
        self._wire = _Wire()
        self._rng = random.Random(number)

    async def run(self) -> None:
        """Join the group, and stay in it."""
        await self._connect()
        stable = False
        while True:
            try:
                if self._generation < 0:
                    await self._join()
                    self._figures.joins += 1
                    if not stable:
                        stable = True
                        self._figures.stable += 1
                await self._stay()
            except Refused as refused:
                if refused.code not in _REBALANCES:
                    if refused.code not in _AGAIN:
                        raise
                    await asyncio.sleep(_RETRY_S)
                    continue
                self._generation = -1
                if refused.code == 25:
                    self._id = b""
            except OSError:
                await self._connect()

    async def _connect(self) -> None:
        self._wire.close()
        loop = asyncio.get_running_loop()
        while True:
            try:
                _, self._wire = await loop.create_connection(_Wire, *self._address)
            except OSError:
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def _join(self) -> None:
        protocol = wire.string(b"range") + _bytes(_SUBSCRIPTION)
        while True:
            body = self._group + struct.pack(">ii", _SESSION_MS, 60_000) + wire.string(self._id)
            body += _NO_INSTANCE + wire.string(b"consumer") + struct.pack(">i", 1) + protocol
            answer = await self._wire.ask(11, 5, body)
            code, generation = answer.i16(), answer.i32()
            answer.string()
            leader, member_id = answer.string(), answer.string() or b""
            if code == _MEMBER_ID_REQUIRED:
                self._id = member_id
            elif code:
                raise Refused("JoinGroup", code)
            else:
                break
        self._id, ids = member_id, [b""] * answer.i32()
        for i in range(len(ids)):
            ids[i] = answer.string() or b""
            answer.string()
            answer.skip(answer.i32())
        assigned = b""
        if leader == self._id:
            for number, member in enumerate(ids):
                assigned += wire.string(member) + _bytes(_assignment(number % _PARTITIONS))
        else:
            ids = []
        head = self._head(generation) + struct.pack(">i", len(ids))
        answer = await self._wire.ask(14, 3, head + assigned)
        if code := answer.i16():
            raise Refused("SyncGroup", code)
        answer.skip(4 + 2 + 4 + 2 + len(_TOPIC) + 4)
        self._partition = answer.i32()
        self._generation = generation

    def _head(self, generation: int) -> bytes:
        return self._group + struct.pack(">i", generation) + wire.string(self._id) + _NO_INSTANCE

    async def _stay(self) -> None:
        """Heartbeat and commit, each at its own interval."""
        now = time.monotonic()
        beat = now + self._rng.uniform(0, _HEARTBEAT_S)
        commit = now + self._rng.uniform(0, _COMMIT_S) if self._commits else float("inf")
        while True:
            await asyncio.sleep(max(0.0, min(beat, commit) - time.monotonic()))
            if beat <= commit:
                beat += _HEARTBEAT_S
                await self._timed("Heartbeat", self._heartbeat, self._figures.heartbeats)
                self._figures.beat_at[self._number] = time.monotonic()
            else:
                commit += _COMMIT_S
                await self._timed("OffsetCommit", self._commit, self._figures.commits)

    async def _timed(
        self, what: str, call: Callable[[], Awaitable[int]], into: list[float]
    ) -> None:
        began = time.monotonic()
        if code := await call():
            raise Refused(what, code)
        into.append(time.monotonic() - began)

    async def _heartbeat(self) -> int:
        return (await self._wire.ask(12, 3, self._head(self._generation))).i16()

    async def _commit(self) -> int:
        partition = struct.pack(">iqi", self._partition, time.monotonic_ns(), 0) + wire.string(b"")
        topics = struct.pack(">i", 1) + wire.string(_TOPIC) + struct.pack(">i", 1) + partition
        answer = await self._wire.ask(8, 7, self._head(self._generation) + topics)
        answer.skip(4 + 2 + len(_TOPIC) + 4 + 4)
        return answer.i16()


# ── Rows ──


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one broker."""

    broker: str
    what: str
    value: str


def _rate(took: Sequence[float], seconds: float) -> str:
    p50, p99 = (sorted(took)[int((len(took) - 1) * share)] * 1000 for share in (0.5, 0.99))
    return f"{len(took) / seconds:,.0f}, {p50:.1f} ms, {p99:.1f} ms"


async def _until(condition: Callable[[], bool], seconds: float, what: str) -> float:
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"{what}: not after {seconds:g} s")
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def measure(
    name: str, peer: Peer, options: argparse.Namespace, again: Callable[[], None] | None
) -> list[Row]:
    """All rows of one broker; *again* kills it and starts it."""
    rows: list[Row] = []
    figures = Figures()
    count = options.groups * options.members
    members = [
        Member(number, b"g%d" % (number % options.groups), peer.bootstrap, figures, commits=True)
        for number in range(count)
    ]
    tasks = [asyncio.create_task(member.run()) for member in members]
    try:
        before = peer.usage().cpu_seconds
        took = await _until(lambda: figures.stable == count, 300, "every member has a partition")
        cpu = peer.usage().cpu_seconds - before
        rows.append(
            Row(
                name,
                f"{options.groups:,} groups of {options.members}: all assigned",
                f"{took:.1f} s, {cpu:.1f} CPU s",
            )
        )
        await asyncio.sleep(_COMMIT_S)
        figures.heartbeats.clear()
        figures.commits.clear()
        joins, before = figures.joins, peer.usage().cpu_seconds
        await asyncio.sleep(options.seconds)
        cpu = peer.usage().cpu_seconds - before
        beats, commits = figures.heartbeats[:], figures.commits[:]
        rows += [
            Row(name, "heartbeats/s, p50, p99", _rate(beats, options.seconds)),
            Row(name, "commits/s, p50, p99", _rate(commits, options.seconds)),
            Row(name, "of a core meanwhile", f"{cpu / options.seconds:.0%}"),
            Row(name, "members that joined again meanwhile", str(figures.joins - joins)),
        ]
        if again is not None:
            joins, at = figures.joins, time.monotonic()
            await asyncio.to_thread(again)
            up = time.monotonic() - at
            await _until(
                lambda: all(figures.beat_at.get(n, 0.0) > at + up for n in range(count)),
                120,
                "every member's heartbeat is answered again",
            )
            took = time.monotonic() - at
            value = f"{took:.1f} s ({up:.1f} s to start), {figures.joins - joins} joined again"
            rows.append(Row(name, "SIGKILL and start: all heartbeats answered", value))
    finally:
        for task in tasks:
            task.cancel()
        failed = [
            e
            for e in await asyncio.gather(*tasks, return_exceptions=True)
            if isinstance(e, Refused)
        ]
    if failed:
        raise RuntimeError(f"{len(failed)} members were refused: {failed[0]}")
    return rows


def main() -> None:
    """Run the command of the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", choices=(OURS, KAFKA))
    options = parser.parse_args()
    names = (options.only,) if options.only else (OURS, KAFKA)
    rows: list[Row] = []
    for name in names:
        given = Options(names=names, driftlog_arguments=_AS_KAFKA)
        with brokers(given, (name,)) as found, contextlib.ExitStack() as stack:
            for peer in found.values():
                with connected(peer.bootstrap) as connection:
                    connection.create_topic(_TOPIC.decode(), _PARTITIONS)
                again = None
                if name == OURS:

                    def again(peer: Peer = peer) -> None:
                        peer.kill()  # type: ignore[attr-defined]
                        peer.start()  # type: ignore[attr-defined]

                rows += asyncio.run(measure(name, peer, options, again))
            stack.close()
    for row in rows:
        print(f"{row.broker:10} {row.what:50} {row.value}")
    sys.exit(0 if rows else 1)


if __name__ == "__main__":
    main()
