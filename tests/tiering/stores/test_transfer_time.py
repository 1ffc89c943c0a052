"""A large PUT over a slow uplink is not given up, and a small one is soon."""

from driftlog_tiering.stores.transfer_time import transfer_s


def test_bytes_get_the_time_of_a_slow_uplink() -> None:
    """
    One second for each MiB.
    """
    assert (0.0, 0.5, 32.0) == tuple(map(transfer_s, (0, 512 * 1024, 32 * 1024**2)))
