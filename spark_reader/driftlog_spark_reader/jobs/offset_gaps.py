"""Gaps between the offsets of a partition, from bitmaps of what is there.

    log start           first      ░ no record               last            end
       │░░░░░░░░░░░░░░░░░│████████████░░░░░██████████████████░░█│░░░░░░░░░░░░░│
             gap                       gap                    gap     gap

Pure.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

BITS: Final = 32 * 1024
"""Offsets of one bitmap: all bits that Spark's ``bitmap_construct_agg`` has."""


class Gap(NamedTuple):
    """Offsets without a record: ``[start, end)``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Block:
    """`BITS` offsets, some of which may have no record; bit n of byte m is offset 8m + n."""

    number: int
    previous: int | None
    """The block before it that has records."""
    bitmap: bytes


def gaps(
    log_start: int, end: int, first: int | None, last: int | None, blocks: Iterable[Block]
) -> list[Gap]:
    """All gaps of a partition, ascending.

    Args:
        log_start, end: of the offsets that are looked at.
        first, last: the offsets of the first and the last record; None: there is none.
        blocks: at least those that are not full, and those whose neighbour before is missing.
    """
    if first is None or last is None:
        return [Gap(log_start, end)] if log_start < end else []
    found = [Gap(log_start, first)]
    for block in blocks:
        base = block.number * BITS
        if block.previous is not None:
            found.append(Gap((block.previous + 1) * BITS, base))
        found += (
            Gap(max(first, base + gap.start), min(last, base + gap.end))
            for gap in missing_bits(block.bitmap)
        )
    found.append(Gap(last + 1, end))
    return _merged(gap for gap in found if gap.start < gap.end)


def missing_bits(bitmap: bytes) -> Iterator[Gap]:
    """Runs of bits that are not set, ascending."""
    whole = (1 << 8 * len(bitmap)) - 1
    missing = int.from_bytes(bitmap, "little") ^ whole
    at = 0
    while missing:
        zeros = (missing & -missing).bit_length() - 1
        at, missing = at + zeros, missing >> zeros
        ones = (~missing & (missing + 1)).bit_length() - 1
        yield Gap(at, at + ones)
        at, missing = at + ones, missing >> ones


def _merged(gaps_: Iterable[Gap]) -> list[Gap]:
    found: list[Gap] = []
    for gap in sorted(gaps_):
        if found and gap.start <= found[-1].end:
            found[-1] = Gap(found[-1].start, max(found[-1].end, gap.end))
        else:
            found.append(gap)
    return found
