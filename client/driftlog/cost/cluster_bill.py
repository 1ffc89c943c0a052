"""What a cluster spends, from the counters of its agents' metrics.

    counters of each agent, over the time that they cover ──▶ a month at the same rate ──▶ bill

Pure.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from driftlog.cost.bill import GIB, HOURS, MONTH_S, Bill, BillGroup, Line, bill, crossing
from driftlog.cost.prices import Prices
from driftlog.cost.workload_bill import DISK_GIB, METADATA_DISK_GIB, METADATA_MACHINES

_SAMPLE: Final = re.compile(r'^(\w+)(?:\{(?:request="(\w+)")?[^}]*\})? (\S+)$', re.MULTILINE)
_REQUESTS: Final = "driftlog_store_requests_total"
_UPTIME: Final = "driftlog_uptime_seconds"
_PRODUCED: Final = "driftlog_produced_bytes_total"
_FETCHED: Final = "driftlog_fetched_bytes_total"
_ETCD: Final = "driftlog_etcd_size_bytes"

_PUTS: Final = frozenset({"put", "list"})
_GETS: Final = frozenset({"get", "head"})


class NoCountersError(ValueError):
    """The metrics have no counters of requests: an agent of an older release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What one agent has counted in *seconds*."""

    seconds: float
    requests: dict[str, float] = field(default_factory=dict)
    """By kind."""
    produced_bytes: float = 0.0
    fetched_bytes: float = 0.0
    has_etcd: bool = False

    def since(self, before: "Counters") -> "Counters":
        """What was counted after *before*; all of it if the agent has started again meanwhile."""
        if self.seconds < before.seconds:
            return self
        return Counters(
            seconds=self.seconds - before.seconds,
            requests={
                kind: count - before.requests.get(kind, 0.0)
                for kind, count in self.requests.items()
            },
            produced_bytes=self.produced_bytes - before.produced_bytes,
            fetched_bytes=self.fetched_bytes - before.fetched_bytes,
            has_etcd=self.has_etcd,
        )


def read_counters(metrics: str) -> Counters:
    """The counters in the text of an agent's ``/metrics``.

    Raises:
        NoCountersError: they are not there.
    """
    requests: dict[str, float] = {}
    plain: dict[str, float] = {}
    for name, kind, value in _SAMPLE.findall(metrics):
        if name == _REQUESTS:
            requests[kind] = float(value)
        elif not kind:
            plain[name] = float(value)
    if not requests or _UPTIME not in plain:
        raise NoCountersError(f"no {_REQUESTS}: the agent's release is older than this command's")
    return Counters(
        seconds=plain[_UPTIME],
        requests=requests,
        produced_bytes=plain.get(_PRODUCED, 0.0),
        fetched_bytes=plain.get(_FETCHED, 0.0),
        has_etcd=_ETCD in plain,
    )


def cluster_bill(
    agents: Sequence[Counters], prices: Prices, *, zones: int, stored_bytes: float | None = None
) -> Bill:
    """A month at the rate of *agents*.

    *stored_bytes*: of the bucket; None: not known, and left out.
    """
    return bill("this cluster", _lines(agents, prices, zones, stored_bytes))


def _lines(
    agents: Sequence[Counters], prices: Prices, zones: int, stored_bytes: float | None
) -> Iterator[Line]:
    kinds = sorted({kind for agent in agents for kind in agent.requests})
    for kind in kinds:
        sent = sum(_month(agent, agent.requests.get(kind, 0.0)) for agent in agents)
        yield Line(BillGroup.REQUESTS, kind.upper(), sent, "requests", _price(kind, prices))
    if stored_bytes is not None:
        size, price = stored_bytes / GIB, prices.object_gib_month
        yield Line(BillGroup.STORAGE, "all objects", size, "GiB months", price)
    disks = len(agents) * DISK_GIB
    yield Line(
        BillGroup.STORAGE,
        f"agents' disks, of {DISK_GIB} GiB each",
        disks,
        "GiB months",
        prices.disk_gib_month,
    )
    if any(agent.has_etcd for agent in agents):
        yield Line(
            BillGroup.METADATA,
            f"etcd: {METADATA_MACHINES} {prices.metadata_machine}",
            METADATA_MACHINES * HOURS,
            "hours",
            prices.metadata_machine_hour,
        )
        disks = METADATA_MACHINES * METADATA_DISK_GIB
        yield Line(BillGroup.METADATA, "etcd's disks", disks, "GiB months", prices.disk_gib_month)
    yield Line(
        BillGroup.MACHINES,
        f"agents: {len(agents)} {prices.machine}",
        len(agents) * HOURS,
        "hours",
        prices.machine_hour,
    )
    moved = sum(_month(agent, agent.produced_bytes + agent.fetched_bytes) for agent in agents)
    yield Line(
        BillGroup.CROSS_ZONE,
        f"clients spread over {zones} zones, at most",
        moved * crossing(zones) / GIB,
        "GiB",
        prices.cross_zone_gib,
    )


def _month(agent: Counters, count: float) -> float:
    return count / agent.seconds * MONTH_S if agent.seconds > 0 else 0.0


def _price(kind: str, prices: Prices) -> float:
    if kind in _PUTS:
        return prices.put_per_1000 / 1000
    return prices.get_per_1000 / 1000 if kind in _GETS else 0.0
