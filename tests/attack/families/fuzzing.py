"""Every API and version with values, lengths and bytes that no honest client sends.

Shell.
"""

import multiprocessing
import random
import select
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final
from uuid import UUID

from driftlog_agents.protocol.api import Api
from driftlog_agents.protocol.requests.registry import API
from driftlog_agents.protocol.schema import Array, Struct, Type, all_fields
from driftlog_agents.protocol.types import Blob, Fixed, encode_varint
from tests.attack.attacks import Attack, Budget, Target
from tests.attack.state import GROUPS, VICTIM
from tests.attack.wire import GONE, Connection
from tests.clients.batches import good
from tests.fuzz.mutation import mutated

_BITS: Final = {"b": 8, "h": 16, "i": 32, "q": 64, "H": 16, "I": 32}
_WAIT_S: Final = 0.03
"""An answer that takes longer is waited for by nobody: the connection goes."""
_SEND_S: Final = 20.0

_CONNECTIONS: Final = 60
_FRAMES: Final = 1_000
_RENEWED: Final = 5
_BLOCK: Final = 16
_MUTATED: Final = 0.05
"""The share of blocks that end with a mutated frame."""
_LOOK_S: Final = 0.005
_SILENT_S: Final = 0.2
"""A connection on which nothing moves for so long waits for a group, say: it goes."""

Call = tuple[Api[Any, Any], int]


def calls() -> list[Call]:
    """Every API and version that an agent answers."""
    return [(api, version) for api in API.values() for version in api.served]


class HostileMaker:
    """Makes requests with some fields at their worst; the names in them are known to the agent."""

    def __init__(self, rng: Any, *, repeated: float = 0.03) -> None:
        self._rng = rng
        self._repeated = repeated
        """The share of arrays whose elements are there thousands of times."""

    def message(self, cls: type[Any], version: int, depth: int = 0) -> Any:
        """One message.  Fields that *version* does not have are at their defaults."""
        made: dict[str, Any] = {}
        for field in all_fields(cls):
            if not field.is_in(version) or (field.tag is not None and self._rng.random() < 0.3):
                continue
            if field.may_be_null(version) and self._rng.random() < 0.2:
                made[field.name] = None
            else:
                made[field.name] = self._value(field.type, version, field.name, depth)
        return cls(**made)

    def _value(self, kind: Type, version: int, name: str, depth: int) -> Any:
        rng = self._rng
        match kind:
            case Fixed(name="bool"):
                return rng.random() < 0.5
            case Fixed(name="uuid"):
                return UUID(int=rng.choice([0, 1, 2**128 - 1, rng.getrandbits(128)]))
            case Fixed(name="float64"):
                return rng.choice([0.0, -1.0, float("inf"), float("nan"), 1e308])
            case Fixed():
                return self._integer(kind)
            case Blob(name="string"):
                return self._string(name)
            case Blob(name="bytes"):
                return rng.randbytes(rng.choice([0, 1, 6, 40, 5_000]))
            case Blob():
                return memoryview(self._records())
            case Array():
                return self._array(kind, version, name, depth)
            case Struct():
                return self.message(kind.cls, version, depth + 1)

    def _integer(self, kind: Fixed) -> int:
        rng = self._rng
        if kind.format in "HI":
            return int(rng.choice([0, 1, (1 << _BITS[kind.format]) - 1]))
        edge = 1 << _BITS[kind.format] - 1
        return int(rng.choice([0, 0, 1, 1, 2, 3, -1, -2, edge - 1, -edge, rng.randrange(-9, 99)]))

    def _string(self, name: str) -> str:
        rng = self._rng
        if rng.random() < 0.6:
            if "group" in name:
                return str(rng.choice(GROUPS))
            return str(
                rng.choice((VICTIM, *GROUPS, "member-1", "range", "uniform", "retention.ms"))
            )
        return str(
            rng.choice(
                [
                    "",
                    "x",
                    "..",
                    "a" * 249,
                    "a" * 250,
                    "\0",
                    "\x1b[2J\x07",
                    "ß日𝄞" * 9,
                    "(" * 200,
                    "(a+)+$",
                    "n" * 32_767,
                    "-9223372036854775808",
                    "999999999999999999999",
                ]
            )
        )

    def _records(self) -> bytes:
        return mutated([bytes(good(b"fuzz" * 9, b"x"))], self._rng)

    def _array(self, kind: Array, version: int, name: str, depth: int) -> list[Any]:
        rng = self._rng
        few = 2 if depth else rng.choice([0, 1, 1, 2, 3])
        made = [self._value(kind.element, version, name, depth) for _ in range(few)]
        if made and rng.random() < self._repeated:
            return made * (2_000 if depth else 5_000)
        return made


class _Fuzz(Attack):
    """One frame after the other, to every API and version in turn."""

    budget = Budget.CROWD

    def frames(self, target: Target, call: Call) -> Iterator[bytes]:
        raise NotImplementedError

    def run(self, target: Target) -> None:
        """Until the time is up; each call gets its turn as often as the others."""
        order = calls()
        target.rng.shuffle(order)
        until = target.deadline
        connection: Connection | None = None
        while target.agent.is_alive():
            for call in order:
                for frame in self.frames(target, call):
                    if time.monotonic() > until:
                        return
                    connection = _sent(target, connection, frame)


def _sent(target: Target, connection: Connection | None, frame: bytes) -> Connection | None:
    """Send it and read what comes; None: that was the connection's end.

    What comes may be the end of an earlier answer: nobody looks at it.
    """
    target.sent += 1
    try:
        connection = connection or target.connect()
        connection.socket.settimeout(_SEND_S)
        connection.send(frame)
        connection.socket.settimeout(_WAIT_S)
        if not connection.socket.recv(1 << 18):
            raise ConnectionError("closed by the agent")
    except GONE:
        if connection is not None:
            connection.close()
        return None
    return connection


def _hostile_frame(target: Target, call: Call) -> Iterator[bytes]:
    """One frame of extreme values; none where its size exceeds the 32 bits of a frame's length."""
    api, version = call
    request = HostileMaker(target.rng).message(api.request, version)
    try:
        frame = api.encode_request(version, 1, "fuzz", request)
    except struct.error:
        return
    yield frame


class HostileValues(_Fuzz):
    """Each API and version with extreme integers, nulls, long, empty and repeated names and arrays,
    batches that are wrong, and names of topics and groups that are there."""

    name = "hostile-values"

    def frames(self, target: Target, call: Call) -> Iterator[bytes]:
        yield from _hostile_frame(target, call)


class MutatedBytes(_Fuzz):
    """The same with bytes changed, cut, repeated and inserted: lengths that lie, names that are not
    UTF-8, arrays that promise more than there is."""

    name = "mutated-bytes"

    def frames(self, target: Target, call: Call) -> Iterator[bytes]:
        for frame in _hostile_frame(target, call):
            for _ in range(3):
                body = mutated([frame[8:]], target.rng)[:1_000_000]
                yield struct.pack(">i", len(body) + 4) + frame[4:8] + body


class TaggedFields(_Fuzz):
    """Flexible versions with 5,000 to 200,000 tagged fields in header and body."""

    name = "tagged-fields"

    def frames(self, target: Target, call: Call) -> Iterator[bytes]:
        api, version = call
        if not api.is_flexible(version):
            return
        count = target.rng.choice([5_000, 20_000, 200_000])
        tags = encode_varint(count) + b"".join(encode_varint(n + 100) + b"\0" for n in range(count))
        header = struct.pack(">hhih", api.key, version, 1, -1)
        body = api.encode_request(version, 1, None, api.request())[4 + len(header) + 1 :]
        yield _framed(header + tags + body)
        yield _framed(header + b"\0" + body[:-1] + tags)


def _framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


class StrangeHeaders(_Fuzz):
    """Client ids of 32,767 bytes, versions and APIs that do not exist, sizes below and above what a
    frame may have."""

    name = "strange-headers"

    def frames(self, target: Target, call: Call) -> Iterator[bytes]:
        api, version = call
        rng = target.rng
        long = rng.choice([b"c" * 32_767, b"\xff" * 32_767, b"\x1b]0;x\x07" * 4_000])
        head = struct.pack(">hhih", api.key, version, 1, len(long)) + long
        yield _framed(head + rng.randbytes(rng.choice([0, 1, 5, 60])))
        yield _framed(struct.pack(">hhih", api.key, rng.choice([-1, 99, 32_767]), 1, -1))
        yield _framed(struct.pack(">hhih", rng.choice([-1, 93, 32_767]), version, 1, -1))
        yield struct.pack(">i", rng.choice([-1, 0, 7, 2**31 - 1, -(2**31)])) + b"\0" * 8


class PipelinedValues(Attack):
    """Thousands of small requests with such values a second, and some mutated ones, on many
    connections that wait for no answer."""

    name = "pipelined-values"
    budget = Budget.CROWD
    arguments = ("--config", "max.connection.creation.rate=2000")
    counted_by_agent = True

    def run(self, target: Target) -> None:
        """Until the time is up, by so many processes."""
        seeds = [target.rng.getrandbits(64) for _ in range(target.attackers)]
        if len(seeds) == 1:
            _pour_values(target.port, seeds[0], target.seconds)
            return
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(len(seeds), spawn) as processes:
            for seed in seeds:
                processes.submit(_pour_values, target.port, seed, target.seconds)


def _pour_values(port: int, seed: int, seconds: float) -> None:
    rng = random.Random(seed)
    frames, pipes = _Frames(rng), list[_Pipe]()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        frames.renew()
        try:
            while len(pipes) < _CONNECTIONS:
                pipes.append(_Pipe(Connection(port)))
        except GONE:
            time.sleep(_LOOK_S)
        select.select([pipe.socket for pipe in pipes], (), (), _LOOK_S)
        pipes = [pipe for pipe in pipes if pipe.goes_on(frames)]
    for pipe in pipes:
        pipe.close()


class _Frames:
    """Requests that are made once and sent many times: to make one takes longer than to answer it.

    A few are replaced each time that the connections are looked at.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._maker, self._calls = HostileMaker(rng, repeated=0.0), calls()
        self._frames = [self._made() for _ in range(_FRAMES)]

    def renew(self) -> None:
        for _ in range(_RENEWED):
            self._frames[self._rng.randrange(_FRAMES)] = self._made()

    def block(self) -> bytes:
        """Some of them.  One that is mutated is the last: the connection may end there."""
        frames = self._rng.choices(self._frames, k=_BLOCK)
        if self._rng.random() < _MUTATED:
            body = mutated([frames[-1][8:]], self._rng)
            frames[-1] = struct.pack(">i", len(body) + 4) + frames[-1][4:8] + body
        return b"".join(frames)

    def _made(self) -> bytes:
        api, version = self._rng.choice(self._calls)
        message = self._maker.message(api.request, version)
        return api.encode_request(version, 1, "fuzz", message)


class _Pipe:
    """One of its connections."""

    def __init__(self, connection: Connection) -> None:
        self.socket = connection.socket
        self.socket.setblocking(False)
        self._unsent = memoryview(b"")
        self._moved_s = time.monotonic()

    def close(self) -> None:
        self.socket.close()

    def goes_on(self, frames: _Frames) -> bool:
        """Read and forget what is there, and send more; False: it is closed, for nothing moves."""
        if self._moves(frames):
            return True
        self.close()
        return False

    def _moves(self, frames: _Frames) -> bool:
        now_s = time.monotonic()
        try:
            if not self.socket.recv(1 << 18):
                return False
            self._moved_s = now_s
        except BlockingIOError:
            pass
        except OSError:
            return False
        if not self._unsent:
            self._unsent = memoryview(frames.block())
        try:
            self._unsent = self._unsent[self.socket.send(self._unsent) :]
            self._moved_s = now_s
        except BlockingIOError:
            pass
        except OSError:
            return False
        return now_s - self._moved_s < _SILENT_S


ATTACKS: Final = (HostileValues, MutatedBytes, TaggedFields, StrangeHeaders, PipelinedValues)
