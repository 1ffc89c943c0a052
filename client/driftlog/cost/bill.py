"""A bill of one month: lines with a quantity and a price, in five groups.

Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

HOURS: Final = 730
"""Of a month."""

MONTH_S: Final = HOURS * 3600

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB


class BillGroup(StrEnum):
    """What a line is for."""

    REQUESTS = "requests"
    STORAGE = "storage"
    METADATA = "metadata store"
    MACHINES = "machines"
    CROSS_ZONE = "cross-zone traffic"


@dataclass(frozen=True, slots=True)
class Line:
    """``dollars = quantity × price`` a month."""

    group: BillGroup
    what: str
    quantity: float
    unit: str
    price: float

    @property
    def dollars(self) -> float:
        """A month."""
        return self.quantity * self.price


@dataclass(frozen=True, slots=True)
class Bill:
    """The lines; those of nothing are left out."""

    of: str
    lines: tuple[Line, ...]

    @property
    def dollars(self) -> float:
        """A month, in all."""
        return sum(line.dollars for line in self.lines)

    def of_group(self, group: BillGroup) -> float:
        """Dollars a month of one group."""
        return sum(line.dollars for line in self.lines if line.group is group)


def bill(of: str, lines: Iterable[Line]) -> Bill:
    """The bill of *lines*."""
    return Bill(of, tuple(line for line in lines if line.quantity))


def crossing(zones: int) -> float:
    """The share of bytes that goes to another zone where the zone is not chosen."""
    return (zones - 1) / zones
