"""What a cluster spends is its agents' counters, at the rate of the time that they cover.

If it failed: the bill would be another than the counters say.
"""

from importlib.resources import files

import pytest

from driftlog.cost.bill import GIB, BillGroup
from driftlog.cost.cluster_bill import Counters, NoCountersError, cluster_bill, read_counters
from driftlog.cost.prices import read_prices

PRICES = read_prices(files("driftlog.cost").joinpath("prices.json").read_text())
METRICS = """# HELP driftlog_store_requests_total Requests
# TYPE driftlog_store_requests_total counter
driftlog_store_requests_total{request="put"} 3600.0
driftlog_store_requests_total{request="get"} 1.8e+03
driftlog_store_requests_total{request="delete"} 7.0
driftlog_requests_total{api="Produce"} 5.0
driftlog_uptime_seconds 3600.0
driftlog_produced_bytes_total 1.073741824e+09
driftlog_fetched_bytes_total 0.0
"""


def test_counters_are_read() -> None:
    """
    Those of other names and labels are left out.
    """
    found = read_counters(METRICS)

    assert {"put": 3600.0, "get": 1800.0, "delete": 7.0} == found.requests
    assert (3600.0, float(GIB), False) == (found.seconds, found.produced_bytes, found.has_etcd)
    assert read_counters(METRICS + "driftlog_etcd_size_bytes 1.0\n").has_etcd
    with pytest.raises(NoCountersError):
        read_counters("driftlog_uptime_seconds 3600.0\n")


def test_a_month_at_the_same_rate() -> None:
    """
    One PUT a second is $13.14, half a GET a second $0.5256, DELETE is free; 730 GiB, two thirds
    of it across zones; 100 GiB of objects.
    """
    found = cluster_bill([read_counters(METRICS)], PRICES, zones=3, stored_bytes=100 * GIB)

    assert pytest.approx(13.14 + 0.5256) == found.of_group(BillGroup.REQUESTS)
    assert pytest.approx(730 * 2 / 3 * 0.02) == found.of_group(BillGroup.CROSS_ZONE)
    assert pytest.approx(100 * 0.023 + 30 * 0.08) == found.of_group(BillGroup.STORAGE)
    assert pytest.approx(730 * 0.0816) == found.of_group(BillGroup.MACHINES)
    assert 0 == found.of_group(BillGroup.METADATA)


def test_agents_of_different_ages_add_their_rates() -> None:
    """
    Not their counts; one that has just started spends nothing yet.
    """
    old = Counters(seconds=100.0, requests={"put": 100.0})
    young = Counters(seconds=10.0, requests={"put": 20.0}, has_etcd=True)

    found = cluster_bill([old, young, Counters(seconds=0.0)], PRICES, zones=1)

    assert pytest.approx(3 * 13.14) == found.of_group(BillGroup.REQUESTS)
    assert pytest.approx(3 * 730 * 0.0408 + 60 * 0.08) == found.of_group(BillGroup.METADATA)


def test_what_is_counted_meanwhile() -> None:
    """
    An agent that has started again counts from its start.
    """
    before = Counters(seconds=100.0, requests={"put": 100.0, "get": 1.0}, produced_bytes=5.0)
    after = Counters(seconds=110.0, requests={"put": 120.0, "get": 1.0}, produced_bytes=7.0)

    found = after.since(before)

    assert (10.0, {"put": 20.0, "get": 0.0}, 2.0) == (
        found.seconds,
        found.requests,
        found.produced_bytes,
    )
    assert before == before.since(after)
