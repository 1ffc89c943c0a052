"""What producers send: values that say who sent them, as which one, and whether they are whole.

    {producer} {n} {crc32 of the filling, hex}\\n{filling}

``n`` counts a producer's records of one partition.
Pure.
"""

import random
import zlib
from dataclasses import dataclass
from typing import Final

_LARGE_BYTES: Final = 20_000


@dataclass(frozen=True, slots=True)
class TopicPartition:
    """The oracle's own, for clients of several libraries."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose record it is."""

    producer: str
    n: int

    def __str__(self) -> str:
        return f"{self.producer} #{self.n}"


def make_value(origin: Origin, dice: random.Random) -> bytes:
    """A value of 50 to 400 bytes; one in fifty has 20 kB."""
    large = dice.random() < 0.02
    filling = dice.randbytes(_LARGE_BYTES if large else dice.randrange(20, 370))
    return b"%b %d %08x\n%b" % (origin.producer.encode(), origin.n, zlib.crc32(filling), filling)


def origin_of(value: bytes | None) -> Origin | None:
    """Who sent it; None if no producer of ours did, or not as it is now."""
    head, newline, filling = (value or b"").partition(b"\n")
    fields = head.split(b" ")
    if not newline or len(fields) != 3 or not fields[1].isdigit():
        return None
    if b"%08x" % zlib.crc32(filling) != fields[2]:
        return None
    return Origin(fields[0].decode(errors="replace"), int(fields[1]))
