"""The bill of a workload, computed by hand; the limits behind it are those of the agents.

If it failed: `driftlog cost` would promise another bill than the one that comes.
"""

from dataclasses import replace
from importlib.resources import files

import pytest

from driftlog.cost import workload_bill as formulas
from driftlog.cost.bill import GIB, MIB, Bill, BillGroup
from driftlog.cost.prices import read_prices
from driftlog.cost.workload import Workload
from driftlog.cost.workload_bill import driftlog_bill
from driftlog_agents.log.consolidation.policy import ConsolidationSettings
from driftlog_agents.log.garbage.unreferenced_objects import CollectorSettings
from driftlog_agents.log.ingest.flush_pipeline import FlushSettings
from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_agents.log.verification.schedule import VerificationSettings
from driftlog_metadata.schema.grace import DEFAULT_GRACE_MS
from driftlog_tiering.segments.segment import ROW_GROUP_BYTES
from driftlog_tiering.verification.object_reads import RANGE_BYTES

PRICES = read_prices(files("driftlog.cost").joinpath("prices.json").read_text())
SMALL = Workload(write_bytes_per_s=3 * MIB, partitions=10)
"""Three agents with 1 MiB/s each; a day of it is 253.125 GiB, a month 7,699.21875 GiB."""


def quantity(bill: Bill, what: str, unit: str) -> float:
    (line,) = [one for one in bill.lines if one.what.startswith(what) and one.unit == unit]
    return line.quantity


def test_a_small_workload() -> None:
    """
    Three agents flush four times a second each; a partition of 0.3 MiB/s is sealed when it has
    128 MiB: every 426.67 s.
    """
    found = driftlog_bill(SMALL, PRICES)

    flushes = 3 * 4 * 2_628_000
    assert flushes == quantity(found, "flushes", "PUT or LIST")
    assert flushes == quantity(found, "consolidation", "GET")  # 256 KiB each: small
    assert pytest.approx(flushes / 100 + flushes / 6000) == quantity(
        found, "consolidation", "PUT or LIST"
    )
    seals = 2_628_000 * 3 / 128  # of all partitions: 3 MiB/s in pieces of 128 MiB
    assert pytest.approx(5 * seals) == quantity(found, "sealing", "PUT or LIST")
    assert pytest.approx(seals) == quantity(found, "sealing", "GET")
    # 12/s × (43,200 s + 426.67 s) = 523,520 flush objects: 523.52 LIST, four times an hour
    assert pytest.approx(523.52 * 4 * 730) == quantity(found, "collector: listings", "PUT or LIST")
    # a week of 3 MiB/s in pieces of 4 MiB, 730 / 168 times a month
    assert pytest.approx(604_800 * 3 / 4 * 730 / 168) == quantity(found, "weekly verif", "GET")
    # a week: 3 × 604,800 MiB = 1,771.875 GiB
    assert pytest.approx(1_771.875) == quantity(found, "segments", "GiB months")
    # 3 MiB/s × 43,626.67 s = 127.8125 GiB, and the copies of small flushes as long
    for stored in ("flush objects", "consolidated copies"):
        assert pytest.approx(127.8125) == quantity(found, stored, "GiB months")
    assert pytest.approx(1_771.875 * 0.023) == sum(
        one.dollars for one in found.lines if one.what == "segments"
    )
    assert pytest.approx(3 * 730 * 0.0816) == found.of_group(BillGroup.MACHINES)
    assert pytest.approx(3 * 730 * 0.0408 + 60 * 0.08) == found.of_group(BillGroup.METADATA)
    # 7,699.21875 GiB produced and as much read, two thirds across zones at two cents; and commits
    commits = 12 * 1024 * (2 / 3 + 2) * 2_628_000 / GIB
    assert pytest.approx((2 * 7_699.21875 * 2 / 3 + commits) * 0.02) == found.of_group(
        BillGroup.CROSS_ZONE
    )
    assert pytest.approx(sum(found.of_group(group) for group in BillGroup)) == found.dollars


def test_a_large_workload_flushes_by_size() -> None:
    """
    1 GiB/s is 128 PUTs/s: $1,681.92 a month; large flushes are not consolidated.

    Cores for 7.9 + 1 CPU s/s at a half of two cores each: 9 agents; network for 3 GiB/s at a half
    of 111 MiB/s each: 56.
    """
    load = Workload(write_bytes_per_s=GIB)

    found = driftlog_bill(load, PRICES)

    assert 56 == formulas.machines(load, PRICES)
    assert pytest.approx(8 * MIB) == GIB / formulas.flushes_per_s(replace(load, zones=1), 1)
    # 56 agents with 18.3 MiB/s each flush by age, though: 224 a second
    assert pytest.approx(224 * 2_628_000) == quantity(found, "flushes", "PUT or LIST")
    assert not [one for one in found.lines if one.what.startswith("consolidat")]


def test_nothing_is_written() -> None:
    """
    Machines, disks, etcd, and the looks of the collector: an idle agent sends no PUT.
    """
    found = driftlog_bill(replace(SMALL, write_bytes_per_s=0), PRICES)

    assert {"collector: listings of flush objects", "weekly verification: manifests"} == {
        one.what for one in found.lines if one.group is BillGroup.REQUESTS
    }
    assert 0 == found.of_group(BillGroup.CROSS_ZONE)


def test_seals_of_slow_partitions() -> None:
    """
    Once an hour from 1 MiB an hour on, else once a day; never later than retention.
    """
    hourly = Workload(write_bytes_per_s=MIB, partitions=3_600)
    assert 3_600 == formulas.seal_interval_s(hourly)
    daily = replace(hourly, partitions=3_601)
    assert 86_400 == formulas.seal_interval_s(daily)
    assert 7_200 == formulas.seal_interval_s(replace(daily, retention_s=7_200))


def test_reads_of_old_records() -> None:
    """
    A GET for each row group of 16 MiB, and one for the footer of each segment of 128 MiB.
    """
    found = driftlog_bill(replace(SMALL, cold_share=1.0), PRICES)

    read_mib = 3 * 2_628_000
    assert pytest.approx(read_mib / 16 + read_mib / 128) == quantity(found, "reads of old", "GET")


def test_in_one_zone_no_byte_crosses() -> None:
    """
    And two agents are enough for what two machines bear.
    """
    assert 0 == driftlog_bill(replace(SMALL, zones=1), PRICES).of_group(BillGroup.CROSS_ZONE)


def test_the_limits_are_those_of_the_agents() -> None:
    """
    A changed setting changes the bill.
    """
    flush, seal, rewrite = FlushSettings(), SealSettings(), ConsolidationSettings()
    assert flush.flush_bytes == formulas.FLUSH_BYTES
    assert 1000 / flush.flush_interval_ms == formulas.FLUSHES_BY_AGE
    assert seal.segment_bytes == formulas.SEAL_BYTES
    assert (seal.segment_ms, seal.small_ms) == (
        formulas.SEAL_S * 1000,
        formulas.SEAL_SMALL_S * 1000,
    )
    assert seal.small_bytes == formulas.SEAL_LEAST_BYTES
    assert rewrite.level_one_records == formulas.CONSOLIDATED_AGAIN
    assert DEFAULT_GRACE_MS == formulas.GRACE_S * 1000
    assert 3_600_000 / CollectorSettings().interval_ms == formulas.LOOKS_PER_HOUR
    assert VerificationSettings().interval_ms == formulas.VERIFIED_S * 1000
    assert (ROW_GROUP_BYTES, RANGE_BYTES) == (formulas.ROW_GROUP_BYTES, formulas.VERIFIED_BYTES)
