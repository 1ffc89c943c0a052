"""Connections are taken within their limits: in number, by address, and in rate."""

import pytest

from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.definitions import InvalidConfigError
from driftlog_agents.configs.start_configs import with_configs
from driftlog_agents.network.limits.connection_limits import ConnectionLimits


def limits(**changes: float) -> ConnectionLimits[str]:
    """Of 10 connections, 3 of an address but for 10.0.0.9, one a second."""
    settings = {"most": 10, "per_address": 3, "rate": 1.0, **changes}
    return ConnectionLimits(
        most=int(settings["most"]),
        per_address=int(settings["per_address"]),
        overrides={"10.0.0.9": 5},
        rate=settings["rate"],
    )


def take(counted: ConnectionLimits[str], now_ms: float) -> list[str]:
    """All whose turn it is."""
    taken = []
    while (name := counted.next(now_ms, lambda name: name.startswith("gone"))) is not None:
        taken.append(name)
    return taken


def test_an_address_has_its_share_and_all_have_the_total() -> None:
    """
    An override is in place of the share, up to the total; what refuses is named; one that leaves
    makes room.
    """
    counted = limits()
    refused = [counted.refused_by("10.0.0.1") for _ in range(4)]
    more = [counted.refused_by("10.0.0.9") for _ in range(6)]
    others = [counted.refused_by(f"10.0.1.{n}") for n in range(3)]
    counted.left("10.0.0.1")
    again = counted.refused_by("10.0.0.1")

    per_ip = "max.connections.per.ip"
    assert [None] * 3 + [per_ip] == refused
    assert [None] * 5 + ["max.connections.per.ip.overrides"] == more
    assert [None, None, "max.connections"] == others
    assert again is None


def test_those_over_the_rate_wait_and_addresses_take_turns() -> None:
    """
    Five come at once after a quiet time; of a hundred of one address and one of another, that one
    is next.
    """
    counted = limits()
    for n in range(100):
        counted.wait("flood", f"flood {n}")
    burst = take(counted, 10_000)
    counted.wait("other", "other")
    ready = counted.ready_at_ms(10_000)
    assert ready is not None
    later = take(counted, ready), take(counted, ready + 1_000)

    assert [f"flood {n}" for n in range(5)] == burst
    assert 10_900 <= ready <= 11_001
    assert (["flood 5"], ["other"]) == later


def test_those_that_are_gone_take_no_turn() -> None:
    """
    They are counted no more, and whoever waits behind them does so no longer for them.
    """
    counted = limits(per_address=100, most=100)
    for n in range(50):
        assert counted.refused_by("a") is None
        counted.wait("a", f"gone {n}")
    assert counted.refused_by("a") is None
    counted.wait("a", "there")
    taken = take(counted, 0)
    for _ in range(99):
        assert counted.refused_by("a") is None

    assert ["there"] == taken
    assert counted.refused_by("a") is not None


def test_overrides_are_addresses_and_numbers() -> None:
    """
    IPv6 in brackets or without; anything else is refused at the start, and the config named.
    """
    name = "max.connections.per.ip.overrides"
    text = "10.0.0.7:5000, [::1]:7,fe80:0:0::1:8"
    found = with_configs(BrokerSettings(), [f"{name}={text}"]).limits

    assert {"10.0.0.7": 5000, "::1": 7, "fe80::1": 8} == found.connections_by_address
    for wrong in ("10.0.0.7", "10.0.0.7:many", "client.lan:5", "10.0.0.7:-1"):
        with pytest.raises(InvalidConfigError, match=f"(?s){name}.*ADDRESS:CONNECTIONS"):
            with_configs(BrokerSettings(), [f"{name}={wrong}"])
