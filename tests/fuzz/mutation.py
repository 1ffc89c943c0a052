"""Good bytes made bad.

Pure.
"""

import random
from collections.abc import Callable, Sequence

NUMBERS = (
    b"\x00",
    b"\x01",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\x7f\xff",
    b"\x80\x00",
    b"\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\x00\x01\x00\x00",
    b"\xff\xff\xff\xff\x07",  # the largest int32 as a varint
    b"\xff\xff\xff\xff\x0f",  # the largest 32 bits as a varint
    b"\xff\xff\xff\xff\xff\x01",  # a varint that is too long
    b"\x80\x80\x80\x80\x08",
)
"""Lengths, counts, tags and varints where readers go wrong."""


def mutated(good: Sequence[bytes], rng: random.Random) -> bytes:
    """One of *good*, changed one to four times."""
    data = bytearray(rng.choice(good))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        rng.choice(MUTATIONS)(data, good, rng)
    return bytes(data)


def _flip(data: bytearray, good: Sequence[bytes], rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(data: bytearray, good: Sequence[bytes], rng: random.Random) -> None:
    number = rng.choice(NUMBERS)
    at = rng.randrange(len(data) + 1)
    data[at : at + len(number)] = number


def _insert(data: bytearray, good: Sequence[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice(NUMBERS)


def _remove(data: bytearray, good: Sequence[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 1, 2, 4, 8, rng.randrange(1, 100)))]


def _cut(data: bytearray, good: Sequence[bytes], rng: random.Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _repeat(data: bytearray, good: Sequence[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = data[at : at + rng.randrange(1, 64)] * rng.randrange(1, 5)


def _splice(data: bytearray, good: Sequence[bytes], rng: random.Random) -> None:
    other = rng.choice(good)
    data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]


def _noise(data: bytearray, good: Sequence[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at : at + rng.randrange(8)] = rng.randbytes(rng.randrange(8))


MUTATIONS: tuple[Callable[[bytearray, Sequence[bytes], random.Random], None], ...] = (
    _flip,
    _flip,
    _overwrite,
    _overwrite,
    _insert,
    _remove,
    _cut,
    _repeat,
    _splice,
    _noise,
)
