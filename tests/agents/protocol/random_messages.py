"""Random messages of any API and version.

Pure.
"""

import random
import struct
from typing import Any
from uuid import UUID

from driftlog_agents.protocol.schema import Array, Struct, Type, all_fields
from driftlog_agents.protocol.types import Blob, Fixed

LETTERS = "abcXYZ019._-äß€日𝄞\0"
BITS = {"b": 8, "h": 16, "i": 32, "q": 64}


class MessageMaker:
    """Makes messages from a seed.

    Args:
        seed: two makers of one seed make the same messages.
        tame: only what kio can hold too: error codes that exist, times that a datetime
            has, and no zero UUID inside arrays.
        error_codes: those that exist, for *tame*.
    """

    def __init__(self, seed: int, *, tame: bool = False, error_codes: tuple[int, ...] = ()) -> None:
        self._random = random.Random(seed)
        self._tame = tame
        self._error_codes = error_codes

    def message(self, cls: type[Any], version: int) -> Any:
        """One message.  Fields that *version* does not have are at their defaults."""
        values: dict[str, Any] = {}
        for field in all_fields(cls):
            if not field.is_in(version):
                continue
            if field.tag is not None and self._random.random() < 0.3:
                continue
            if field.may_be_null(version) and self._random.random() < 0.2:
                values[field.name] = None
                continue
            values[field.name] = self._value(field.type, version, field.name)
        return cls(**values)

    def _value(self, kind: Type, version: int, name: str) -> Any:
        rng = self._random
        match kind:
            case Fixed(name="bool"):
                return rng.random() < 0.5
            case Fixed(name="uuid"):
                return UUID(int=rng.choice([0, rng.getrandbits(128), rng.getrandbits(128)]))
            case Fixed(name="float64"):
                return struct.unpack(">d", struct.pack(">d", rng.uniform(-1e9, 1e9)))[0]
            case Fixed():
                return self._integer(kind, name)
            case Blob(name="string"):
                return self._string()
            case Blob(name="bytes"):
                return rng.randbytes(self._length())
            case Blob():
                return memoryview(rng.randbytes(self._length() * 7))
            case Array():
                return [self._value(kind.element, version, name) for _ in range(self._count())]
            case Struct():
                return self.message(kind.cls, version)

    def _integer(self, kind: Fixed, name: str) -> int:
        rng = self._random
        if self._tame and name.endswith("error_code"):
            return rng.choice(self._error_codes)
        if self._tame and name.endswith(("_ms", "timestamp")):
            return rng.choice([-1, 0, rng.randrange(1_700_000_000)])
        if kind.format in "HI":
            return rng.randrange(1 << 8 * kind.size)
        if name.endswith("authorized_operations"):
            return rng.choice([-(1 << 31), 0, rng.randrange(1 << 31)])  # a set of bits, or unknown
        bits = BITS[kind.format]
        edge = 1 << bits - 1
        return rng.choice(
            [0, -1, 1, edge - 1, -edge, rng.randrange(-edge, edge), rng.randrange(99)]
        )

    def _string(self) -> str:
        return "".join(self._random.choices(LETTERS, k=self._length()))

    def _length(self) -> int:
        """Mostly short; around 127 and 16,383, where compact lengths grow, at times."""
        return self._random.choice(
            [0, 1, self._random.randrange(2, 40), self._random.randrange(40)]
            + ([self._random.choice([126, 127, 128, 200])] if self._random.random() < 0.1 else [])
            + ([16_383, 16_384] if self._random.random() < 0.002 else [])
        )

    def _count(self) -> int:
        return self._random.choice([0, 1, 1, 2, self._random.randrange(4)])
