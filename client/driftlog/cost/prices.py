"""Prices, from one data file (`prices.json`) and what overrides it.

A GiB is 2^30 bytes.  `cross_zone_gib` is for bytes that leave one zone and enter another: both
directions are billed.

Pure.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


class PriceError(ValueError):
    """A price is unknown, or no number; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars, and what a machine bears."""

    source: str
    date: str
    put_per_1000: float
    """Of PUT and LIST requests."""
    get_per_1000: float
    """Of GET and HEAD requests.  DELETE is free."""
    object_gib_month: float
    disk_gib_month: float
    disk_mib_s_month: float
    """Throughput of a disk above what is included (`INCLUDED_DISK_MIB_S`)."""
    cross_zone_gib: float
    machine: str
    machine_hour: float
    machine_vcpus: float
    machine_network_mib_s: float
    """What the machine sends for hours, without burst credits."""
    metadata_machine: str
    """Of etcd, and of Kafka's controllers: three of each."""
    metadata_machine_hour: float


_TEXTS = frozenset({"source", "date", "machine", "metadata_machine"})


def read_prices(text: str, *overrides: Mapping[str, Any]) -> Prices:
    """The prices of a file's *text*; later *overrides* win.

    Raises:
        PriceError: a price is missing or unknown, or no number that is 0 or more.
    """
    try:
        stated = json.loads(text)
    except ValueError as error:
        raise PriceError(f"no JSON: {error}") from error
    if not isinstance(stated, dict):
        raise PriceError("no JSON object")
    values: dict[str, Any] = stated
    for override in overrides:
        values = values | dict(override)
    names = {field.name for field in fields(Prices)}
    for name in values.keys() - names:
        prices = ", ".join(sorted(names - _TEXTS))
        raise PriceError(f"unknown price {name!r}: there are {prices}")
    for name in names - values.keys():
        raise PriceError(f"the price {name} is missing")
    found: dict[str, Any] = {}
    for name, value in values.items():
        found[name] = str(value) if name in _TEXTS else _number(name, value)
    return Prices(**found)


def _number(name: str, value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise PriceError(f"the price {name} is no number: {value!r}") from None
    if not 0 <= found < float("inf"):
        raise PriceError(f"the price {name} is {value}")
    return found
