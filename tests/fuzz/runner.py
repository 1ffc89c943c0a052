"""Runs a target over mutated inputs, reproducibly, and watches time and memory.

The work is cut into chunks; a chunk's inputs depend on the seed, the target and its number
and on nothing else, so that any number of processes makes the same inputs.
"""

import contextlib
import random
import resource
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from tests.fuzz.mutation import mutated
from tests.fuzz.targets import TARGETS

CHUNK_FRAMES = 10_000
CHUNK_SECONDS = 120
"""A chunk takes a second; one that takes this long hangs."""

GROWTH_BYTES = 64 << 20
"""How far the peak memory of a process may rise: a bad count that is believed shows here."""


class FuzzError(Exception):
    """A target broke its promise; the text says with what, and how to see it again."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some inputs of one target."""

    target: str
    seed: int
    number: int
    frames: int = CHUNK_FRAMES


def run_chunk(chunk: Chunk) -> int:
    """Run one chunk; returns how many bytes were fed.

    Raises:
        FuzzError: the target raised, hung, or took memory.
    """
    target = TARGETS[chunk.target]
    rng = random.Random(f"{chunk.seed}/{chunk.target}/{chunk.number}")
    good = target.good()
    before = peak_bytes()
    fed = 0
    data = b""
    with _limit(CHUNK_SECONDS):
        for index in range(chunk.frames):
            data = mutated(good, rng)
            fed += len(data)
            try:
                target.run(data)
            except Exception as error:
                raise FuzzError(_report(chunk, index, data, repr(error))) from error
    grown = peak_bytes() - before
    if grown > GROWTH_BYTES:
        raise FuzzError(_report(chunk, chunk.frames, b"", f"peak memory rose by {grown} bytes"))
    return fed


def peak_bytes() -> int:
    """The largest resident size this process has had (Linux: KiB in ru_maxrss)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _report(chunk: Chunk, index: int, data: bytes, what: str) -> str:
    return (
        f"{chunk.target}: {what}\n  frame {index} of chunk {chunk.number}: {data.hex()}\n"
        f"  again: python -m tests.fuzz --target {chunk.target} --seed {chunk.seed}"
        f" --chunk {chunk.number}"
    )


@contextlib.contextmanager
def _limit(seconds: int) -> Iterator[None]:
    def hung(_signal: int, frame: FrameType | None) -> None:
        at = "" if frame is None else f" in {frame.f_code.co_name}"
        raise TimeoutError(f"still busy after {seconds} s{at}")

    previous = signal.signal(signal.SIGALRM, hung)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
