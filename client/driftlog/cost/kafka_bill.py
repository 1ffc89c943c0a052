"""What a workload costs on Apache Kafka as its users tune it.

Three replicas over the zones, KRaft, tiered storage in S3, consumers that read from the replica of
their zone (KIP-392), the producers' compression kept.  Where a figure is open, the better one for
Kafka is taken: the followers' CPU, rebalances, and the copies that a broker's replacement makes are
not counted.

Pure.
"""

import math
from collections.abc import Iterator
from typing import Final

from driftlog.cost.bill import GIB, HOURS, MIB, MONTH_S, Bill, BillGroup, Line, bill, crossing
from driftlog.cost.prices import Prices
from driftlog.cost.workload import Workload
from driftlog.cost.workload_bill import HEADROOM, INCLUDED_DISK_MIB_S

REPLICAS: Final = 3
LOCAL_S: Final = 6 * 3_600.0
"""`local.retention.ms` with tiered storage: consumers that are behind by less read from disks."""
DISK_FILL: Final = 0.7
"""How full a disk may become."""
SEGMENT_BYTES: Final = GIB
SEGMENT_S: Final = 7 * 86_400.0
PART_BYTES: Final = 25 * MIB
"""Of a multipart upload."""
REQUESTS_PER_SEGMENT: Final = 4
"""Begin and end of the upload, the indexes, the manifest."""
CHUNK_BYTES: Final = 4 * MIB
"""Of one GET from the remote tier."""
WRITE_CPU_S: Final = 4.7
"""CPU seconds of a leader for each GiB produced (docs/benchmarks.md)."""
READ_CPU_S: Final = 0.8
CONTROLLERS: Final = 3
CONTROLLER_DISK_GIB: Final = 20


def is_tiered(load: Workload) -> bool:
    """Tiered storage pays where records stay longer than on the disks."""
    return load.retention_s > LOCAL_S


def machines(load: Workload, prices: Prices) -> int:
    """Brokers: three, one a zone, and enough cores and network."""
    write, read = load.write_bytes_per_s, load.read_bytes_per_s
    cores = (write * WRITE_CPU_S + read * READ_CPU_S) / GIB
    sent = write * (REPLICAS - 1) + read + (write if is_tiered(load) else 0)
    return max(
        REPLICAS,
        load.zones,
        math.ceil(cores / (prices.machine_vcpus * HEADROOM)),
        math.ceil(sent / (prices.machine_network_mib_s * MIB * HEADROOM)),
    )


def kafka_bill(load: Workload, prices: Prices) -> Bill:
    """A month on Kafka."""
    brokers = machines(load, prices)
    lines = [
        *_requests(load, prices),
        *_storage(load, prices, brokers),
        Line(
            BillGroup.METADATA,
            f"controllers: {CONTROLLERS} {prices.metadata_machine}",
            CONTROLLERS * HOURS,
            "hours",
            prices.metadata_machine_hour,
        ),
        Line(
            BillGroup.METADATA,
            "controllers' disks",
            CONTROLLERS * CONTROLLER_DISK_GIB,
            "GiB months",
            prices.disk_gib_month,
        ),
        Line(
            BillGroup.MACHINES,
            f"brokers: {brokers} {prices.machine}",
            brokers * HOURS,
            "hours",
            prices.machine_hour,
        ),
        *_cross_zone(load, prices),
    ]
    return bill("Kafka", lines)


def _requests(load: Workload, prices: Prices) -> Iterator[Line]:
    write = load.write_bytes_per_s
    if not is_tiered(load) or not write:
        return
    put, get = prices.put_per_1000 / 1000, prices.get_per_1000 / 1000
    segments = max(write / SEGMENT_BYTES, load.partitions / SEGMENT_S) * MONTH_S
    uploads = write * MONTH_S / PART_BYTES + REQUESTS_PER_SEGMENT * segments
    yield Line(BillGroup.REQUESTS, "uploads to the remote tier", uploads, "PUT or LIST", put)
    chunks = load.cold_bytes_per_s * MONTH_S / CHUNK_BYTES
    yield Line(BillGroup.REQUESTS, "reads of the remote tier", chunks, "GET", get)


def _storage(load: Workload, prices: Prices, brokers: int) -> Iterator[Line]:
    write = load.write_bytes_per_s
    local_s = min(load.retention_s, LOCAL_S)
    disks = write * local_s * REPLICAS / DISK_FILL / GIB
    yield Line(BillGroup.STORAGE, "brokers' disks", disks, "GiB months", prices.disk_gib_month)
    more = max(0.0, REPLICAS * write / MIB - INCLUDED_DISK_MIB_S * brokers)
    yield Line(
        BillGroup.STORAGE, "disks' throughput", more, "MiB/s months", prices.disk_mib_s_month
    )
    if is_tiered(load):
        remote = write * load.retention_s / GIB
        yield Line(BillGroup.STORAGE, "remote tier", remote, "GiB months", prices.object_gib_month)


def _cross_zone(load: Workload, prices: Prices) -> Iterator[Line]:
    """Consumers read in their zone; producers must reach the leader."""
    price = prices.cross_zone_gib
    produced = load.write_bytes_per_s * crossing(load.zones) * MONTH_S / GIB
    yield Line(BillGroup.CROSS_ZONE, "producers to leaders", produced, "GiB", price)
    copies = min(REPLICAS, load.zones) - 1
    replicated = load.write_bytes_per_s * copies * MONTH_S / GIB
    yield Line(BillGroup.CROSS_ZONE, "replication", replicated, "GiB", price)
