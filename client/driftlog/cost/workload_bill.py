"""What a workload costs on driftlog: formulas of docs/cost.md.

The limits are the agents' defaults; a test compares them with the agents' settings.  Not counted:
hedges (at most 5 % of flush PUTs), compaction, merging of small segments, idle topics.

Pure.
"""

import math
from collections.abc import Iterator
from typing import Final

from driftlog.cost.bill import GIB, HOURS, KIB, MIB, MONTH_S, Bill, BillGroup, Line, bill, crossing
from driftlog.cost.prices import Prices
from driftlog.cost.workload import Workload

# ── Limits of the agents ──

FLUSH_BYTES: Final = 8 * MIB
FLUSHES_BY_AGE: Final = 4.0
"""A second: a flush is cut after 250 ms."""
SMALL_FLUSH_BYTES: Final = MIB
"""Smaller ones are consolidated."""
CONSOLIDATED: Final = 100
"""Flushes of one rewrite; sixty of these make the next."""
CONSOLIDATED_AGAIN: Final = 60
SEAL_BYTES: Final = 128 * MIB
SEAL_S: Final = 3_600.0
SEAL_LEAST_BYTES: Final = MIB
"""A partition with less is sealed once a day."""
SEAL_SMALL_S: Final = 86_400.0
GRACE_S: Final = 12 * 3_600.0
LOOKS_PER_HOUR: Final = 4.0
"""At flush objects, by the collector."""
VERIFIED_S: Final = 7 * 86_400.0
ROW_GROUP_BYTES: Final = 16 * MIB
VERIFIED_BYTES: Final = 4 * MIB
"""Of one GET of verification."""
LISTED: Final = 1_000
"""Objects of one LIST."""

# ── Measured (docs/benchmarks.md) ──

WRITE_CPU_S: Final = 7.9
"""CPU seconds for each GiB produced, sealing included."""
READ_CPU_S: Final = 1.0

# ── Assumed ──

HEADROOM: Final = 0.5
"""Share of a machine's cores and network that the even load takes."""
DISK_GIB: Final = 30
"""Of each agent: 1 GiB of cache, 8 GiB not sealed, the spool, the system."""
INCLUDED_DISK_MIB_S: Final = 119
"""125 MB/s of gp3."""
METADATA_MACHINES: Final = 3
METADATA_DISK_GIB: Final = 20
COMMIT_BYTES: Final = KIB
"""Of a commit on the wire, to etcd's leader and to each follower."""


def machines(load: Workload, prices: Prices) -> int:
    """Agents: one a zone at least, and enough cores and network."""
    write, read = load.write_bytes_per_s, load.read_bytes_per_s
    cores = (write * WRITE_CPU_S + read * READ_CPU_S) / GIB
    sent = write + write * load.sealed_ratio + read
    return max(
        load.zones,
        math.ceil(cores / (prices.machine_vcpus * HEADROOM)),
        math.ceil(sent / (prices.machine_network_mib_s * MIB * HEADROOM)),
    )


def flushes_per_s(load: Workload, agents: int) -> float:
    """Of all agents: by age below 32 MiB/s, by size above."""
    if not load.write_bytes_per_s:
        return 0.0
    return max(agents * FLUSHES_BY_AGE, load.write_bytes_per_s / FLUSH_BYTES)


def is_consolidated(load: Workload, agents: int) -> bool:
    """Whether flushes are so small that they are copied into larger objects."""
    return load.write_bytes_per_s < flushes_per_s(load, agents) * SMALL_FLUSH_BYTES


def seal_interval_s(load: Workload) -> float:
    """Between two seals of a partition."""
    rate = load.write_bytes_per_s / load.partitions
    if rate * SEAL_S < SEAL_LEAST_BYTES:
        return min(SEAL_SMALL_S, load.retention_s)
    return min(SEAL_S, SEAL_BYTES / rate, load.retention_s)


def driftlog_bill(load: Workload, prices: Prices) -> Bill:
    """A month on driftlog."""
    agents = machines(load, prices)
    lines = [
        *_requests(load, prices, agents),
        *_storage(load, prices, agents),
        *_metadata(prices),
        Line(
            BillGroup.MACHINES,
            f"agents: {agents} {prices.machine}",
            agents * HOURS,
            "hours",
            prices.machine_hour,
        ),
        *_cross_zone(load, prices, agents),
    ]
    return bill("driftlog", lines)


def _requests(load: Workload, prices: Prices, agents: int) -> Iterator[Line]:
    put, get = prices.put_per_1000 / 1000, prices.get_per_1000 / 1000
    flushes = flushes_per_s(load, agents) * MONTH_S
    seal_s = seal_interval_s(load)
    written = load.write_bytes_per_s > 0
    seals = load.partitions * MONTH_S / seal_s if written else 0.0
    small = flushes if is_consolidated(load, agents) else 0.0
    stored = load.write_bytes_per_s * load.retention_s * load.sealed_ratio
    segments = load.partitions * load.retention_s / seal_s if written else 0.0
    in_grace = flushes / MONTH_S * (GRACE_S + seal_s)
    passes = MONTH_S / VERIFIED_S

    def puts(what: str, quantity: float) -> Line:
        return Line(BillGroup.REQUESTS, what, quantity, "PUT or LIST", put)

    def gets(what: str, quantity: float) -> Line:
        return Line(BillGroup.REQUESTS, what, quantity, "GET", get)

    yield puts("flushes", flushes)
    yield puts("consolidation", small / CONSOLIDATED * (1 + 1 / CONSOLIDATED_AGAIN))
    yield gets("consolidation", small)
    yield puts("sealing: segment, manifest, snapshot, 2 LIST", 5 * seals)
    yield gets("sealing: manifest", seals)
    yield puts(
        "collector: listings of flush objects",
        max(1.0, in_grace / LISTED) * LOOKS_PER_HOUR * HOURS,
    )
    yield puts("collector: daily listing of sealed objects", 2 * segments / LISTED * HOURS / 24)
    yield puts("collector: edited partitions", min(seals, float(load.partitions * HOURS)))
    yield gets("collector: superseded manifests", 2 * seals)
    cold = load.cold_bytes_per_s * MONTH_S
    per_segment = load.write_bytes_per_s / load.partitions * seal_s
    yield gets(
        "reads of old records", cold / ROW_GROUP_BYTES + (cold / per_segment if written else 0.0)
    )
    yield gets("weekly verification", max(stored / VERIFIED_BYTES, segments) * passes)
    yield puts("weekly verification: manifests", load.partitions * passes)


def _storage(load: Workload, prices: Prices, agents: int) -> Iterator[Line]:
    write = load.write_bytes_per_s
    price = prices.object_gib_month
    sealed = write * load.retention_s * load.sealed_ratio / GIB
    yield Line(BillGroup.STORAGE, "segments", sealed, "GiB months", price)
    flushed = write * (GRACE_S + seal_interval_s(load)) / GIB
    yield Line(
        BillGroup.STORAGE, "flush objects: until sealed, and 12 h", flushed, "GiB months", price
    )
    copied = flushed if is_consolidated(load, agents) else 0.0
    yield Line(
        BillGroup.STORAGE,
        "consolidated copies: until sealed, and 12 h",
        copied,
        "GiB months",
        price,
    )
    disks = agents * DISK_GIB
    yield Line(BillGroup.STORAGE, "agents' disks", disks, "GiB months", prices.disk_gib_month)
    # Each byte is written to a buffer file, and to the spool when it is sealed.
    more = max(0.0, write * (1 + load.sealed_ratio) / MIB - INCLUDED_DISK_MIB_S * agents)
    yield Line(
        BillGroup.STORAGE, "disks' throughput", more, "MiB/s months", prices.disk_mib_s_month
    )


def _metadata(prices: Prices) -> Iterator[Line]:
    yield Line(
        BillGroup.METADATA,
        f"etcd: {METADATA_MACHINES} {prices.metadata_machine}",
        METADATA_MACHINES * HOURS,
        "hours",
        prices.metadata_machine_hour,
    )
    disks = METADATA_MACHINES * METADATA_DISK_GIB
    yield Line(BillGroup.METADATA, "etcd's disks", disks, "GiB months", prices.disk_gib_month)


def _cross_zone(load: Workload, prices: Prices, agents: int) -> Iterator[Line]:
    """A partition has one leader, and no followers: a consumer of another zone reads across."""
    share = crossing(load.zones)
    price = prices.cross_zone_gib
    produced = load.write_bytes_per_s * share * MONTH_S / GIB
    yield Line(BillGroup.CROSS_ZONE, "producers to leaders", produced, "GiB", price)
    read = load.read_bytes_per_s * share * MONTH_S / GIB
    yield Line(BillGroup.CROSS_ZONE, "leaders to consumers", read, "GiB", price)
    followers = min(METADATA_MACHINES, load.zones) - 1
    commits = flushes_per_s(load, agents) * COMMIT_BYTES * (share + followers) * MONTH_S / GIB
    yield Line(BillGroup.CROSS_ZONE, "commits to and in etcd", commits, "GiB", price)
