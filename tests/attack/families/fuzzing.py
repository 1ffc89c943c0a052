"""Every API and version with values, lengths and bytes that no honest client sends.

Shell.
"""

import random
import select
import struct
import time
from collections import deque
from collections.abc import Iterator
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
_ADDRESSES: Final = [f"127.0.0.{last}" for last in range(2, 34)]
"""The agent finds out late that a client which it does not read has left: until then the connection
counts for its address, and one address has 1,000."""
_FRAMES: Final = 1_000
_BLOCK: Final = 16
_UNANSWERED: Final = 2 * _BLOCK
_RENEWED: Final = 0.02
"""The share of frames that are made for the time they are sent."""
_MUTATED: Final = 0.2
"""The share of blocks that end with a mutated frame."""
_LOOK_S: Final = 0.005
_SILENT_S: Final = 1.0
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
        """Until the time is up."""
        frames, pipes = _Frames(target.rng), list[_Pipe]()
        until = target.deadline
        while time.monotonic() < until and target.agent.is_alive():
            try:
                while len(pipes) < _CONNECTIONS:
                    address = target.rng.choice(_ADDRESSES)
                    pipes.append(_Pipe(Connection(target.port, address=address)))
            except GONE:
                time.sleep(_LOOK_S)
            select.select([pipe.socket for pipe in pipes], (), (), _LOOK_S)
            pipes = [pipe for pipe in pipes if pipe.goes_on(frames)]
        for pipe in pipes:
            pipe.close()


class _Frames:
    """Requests that are made once and sent many times: to make one takes longer than to answer it.

    A few are replaced with each block, and each one that was not answered: it has had its effect,
    and would hold up all that follow it on its connection.  A frame's correlation id is its number
    here.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._maker, self._calls = HostileMaker(rng, repeated=0.0), calls()
        self._frames = [self._made(number) for number in range(_FRAMES)]

    def replace(self, number: int) -> None:
        self._frames[number] = self._made(number)

    def block(self) -> tuple[list[int], bytes]:
        """The numbers of some, and their bytes.

        One that is mutated is the last: the connection may end there.
        """
        numbers = self._rng.choices(range(_FRAMES), k=_BLOCK)
        if self._rng.random() < _RENEWED * _BLOCK:
            self.replace(numbers[0])
        frames = [self._frames[number] for number in numbers]
        if self._rng.random() < _MUTATED:
            body = mutated([frames[-1][12:]], self._rng)
            frames[-1] = struct.pack(">i", len(body) + 8) + frames[-1][4:12] + body
        return numbers, b"".join(frames)

    def _made(self, number: int) -> bytes:
        api, version = self._rng.choice(self._calls)
        message = self._maker.message(api.request, version)
        return api.encode_request(version, number, "fuzz", message)


class _Pipe:
    """One of its connections."""

    def __init__(self, connection: Connection) -> None:
        self.socket = connection.socket
        self.socket.setblocking(False)
        self._unsent = memoryview(b"")
        self._unanswered: deque[int] = deque()
        self._head, self._skipped_bytes = b"", 0
        """Of the answer that is read: its first bytes, and what is left of it behind them."""
        self._moved_s = time.monotonic()

    def close(self) -> None:
        self.socket.close()

    def goes_on(self, frames: _Frames) -> bool:
        """Read what is there, and send more; False: it is closed, for nothing moves."""
        if self._moves(frames):
            return True
        if self._unanswered:
            frames.replace(self._unanswered[0])
        self.close()
        return False

    def _moves(self, frames: _Frames) -> bool:
        now_s = time.monotonic()
        try:
            if not (data := self.socket.recv(1 << 18)):
                return False
            self._read(data)
            self._moved_s = now_s
        except BlockingIOError:
            pass
        except OSError:
            return False
        if not self._unsent and len(self._unanswered) < _UNANSWERED:
            numbers, data = frames.block()
            self._unanswered.extend(numbers)
            self._unsent = memoryview(data)
        try:
            if self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
                self._moved_s = now_s
        except BlockingIOError:
            pass
        except OSError:
            return False
        return now_s - self._moved_s < _SILENT_S

    def _read(self, data: bytes) -> None:
        """Take from the unanswered what is answered, and what is before it: Produce with `acks=0`
        has no answer."""
        at = 0
        while True:
            skipped = min(self._skipped_bytes, len(data) - at)
            self._skipped_bytes -= skipped
            at += skipped
            self._head += (more := data[at : at + 8 - len(self._head)])
            at += len(more)
            if len(self._head) < 8:
                return
            size, number = struct.unpack(">ii", self._head)
            self._head, self._skipped_bytes = b"", size - 4
            while self._unanswered and self._unanswered.popleft() != number:
                pass


ATTACKS: Final = (HostileValues, MutatedBytes, TaggedFields, StrangeHeaders, PipelinedValues)
