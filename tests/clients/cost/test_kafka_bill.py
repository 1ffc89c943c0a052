"""Kafka's bill for the same workload, computed by hand, with the tuning that its users have.

If it failed: driftlog would look cheaper or dearer beside Kafka than it is.
"""

from dataclasses import replace
from importlib.resources import files

import pytest

from driftlog.cost.bill import GIB, MIB, BillGroup
from driftlog.cost.kafka_bill import kafka_bill, machines
from driftlog.cost.prices import read_prices
from driftlog.cost.workload import Workload

PRICES = read_prices(files("driftlog.cost").joinpath("prices.json").read_text())
LOAD = Workload(write_bytes_per_s=10 * MIB, fan_out=3)
MONTH_GIB = 10 * 2_628_000 / 1024


def test_a_tiered_cluster_in_three_zones() -> None:
    """
    Consumers cross no zone; producers do for two thirds, and replication twice.
    """
    found = kafka_bill(LOAD, PRICES)

    assert pytest.approx(MONTH_GIB * (2 / 3 + 2) * 0.02) == found.of_group(BillGroup.CROSS_ZONE)
    # six hours on three disks that are 70 % full, and a week in the remote tier
    disks = 10 * 21_600 * 3 / 0.7 / 1024
    remote = 10 * 604_800 / 1024
    assert pytest.approx(disks * 0.08 + remote * 0.023) == found.of_group(BillGroup.STORAGE)
    # 25 MiB parts, and four requests for each segment of 1 GiB
    uploads = 10 * 2_628_000 / 25 + 4 * MONTH_GIB
    assert pytest.approx(uploads * 0.005 / 1000) == found.of_group(BillGroup.REQUESTS)
    assert pytest.approx(3 * 730 * 0.0816) == found.of_group(BillGroup.MACHINES)


def test_old_records_come_from_the_remote_tier() -> None:
    """
    In chunks of 4 MiB.
    """
    cold = kafka_bill(replace(LOAD, cold_share=0.5), PRICES).of_group(BillGroup.REQUESTS)
    warm = kafka_bill(LOAD, PRICES).of_group(BillGroup.REQUESTS)

    assert pytest.approx(0.5 * 30 * 2_628_000 / 4 * 0.0004 / 1000) == cold - warm


def test_short_retention_needs_no_remote_tier() -> None:
    """
    All is on disks for as long as it stays.
    """
    found = kafka_bill(replace(LOAD, retention_s=3_600), PRICES)

    assert 0 == found.of_group(BillGroup.REQUESTS)
    assert pytest.approx(10 * 3_600 * 3 / 0.7 / 1024 * 0.08) == found.of_group(BillGroup.STORAGE)


def test_brokers_follow_the_network() -> None:
    """
    1 GiB/s with three readers: 2 + 3 + 1 GiB/s sent, at a half of 111 MiB/s each.
    """
    load = replace(LOAD, write_bytes_per_s=GIB)
    assert 111 == machines(load, PRICES)
    # 3 GiB/s on disks, of which 111 brokers include 119 MiB/s each
    assert not [one for one in kafka_bill(load, PRICES).lines if "throughput" in one.what]
