"""Refused connections are logged at once, and then counted by address."""

from driftlog_agents.network.limits.refused_connections import OTHERS, Refused, RefusedConnections

_PER_IP = "max.connections.per.ip"


def test_the_first_of_an_address_is_told_at_once_and_the_others_a_second_later() -> None:
    """
    Another address, and another limit, have lines of their own; after a silent second an address
    is told of at once again.
    """
    refused = RefusedConnections()
    one, other = Refused("10.0.0.1", _PER_IP), Refused("10.0.0.2", _PER_IP)
    total = Refused("10.0.0.1", "max.connections")
    told = [refused.count(which) for which in (one, one, one, other, total)]
    dues = [refused.due() for _ in range(3)]
    again = refused.count(one)

    assert [True, False, False, True, True] == told
    assert [[(one, 2)], [], None] == dues
    assert again


def test_addresses_without_end_are_counted_together() -> None:
    """
    256 are remembered at most.
    """
    refused = RefusedConnections()
    told = sum(refused.count(Refused(f"10.0.{n // 256}.{n % 256}", _PER_IP)) for n in range(1000))

    assert 256 == told
    assert [(Refused(OTHERS, _PER_IP), 744)] == refused.due()
