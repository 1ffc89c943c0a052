"""Clients are told the address of the listener that they came by, as the two options say."""

import socket
from pathlib import Path

import pytest

from driftlog_agents.handlers.api.describe_configs import broker_settings
from driftlog_agents.network.listeners import (
    AddressTakenError,
    ListenAt,
    ListenError,
    http_address,
    read_listeners,
    take_all,
)
from driftlog_agents.protocol.messages import describe_cluster, metadata
from driftlog_metadata.schema.model import Listener
from tests.agents.network.serving import Client, Serving


@pytest.mark.parametrize(
    ("listening", "advertised", "told"),
    [
        (["127.0.0.1:9092"], [], [Listener("PLAINTEXT", "127.0.0.1", 9092)]),
        (["127.0.0.1:0"], [], [Listener("PLAINTEXT", "127.0.0.1", 50_000)]),
        (["0.0.0.0:0"], ["a.lan:0"], [Listener("PLAINTEXT", "a.lan", 50_000)]),
        (["PLAINTEXT://0.0.0.0:9092"], ["a.lan:19092"], [Listener("PLAINTEXT", "a.lan", 19_092)]),
        (["zone-1.x_2://[::1]:9092"], [], [Listener("ZONE-1.X_2", "::1", 9092)]),
        (["INSIDE://0.0.0.0:9092"], ["a.lan:1"], [Listener("INSIDE", "a.lan", 1)]),
        (
            ["INSIDE://0.0.0.0:9092", "0.0.0.0:9093", "OUT://127.0.0.1:0"],
            ["plaintext://b.lan:2", "INSIDE://a.lan:1"],
            [
                Listener("INSIDE", "a.lan", 1),
                Listener("PLAINTEXT", "b.lan", 2),
                Listener("OUT", "127.0.0.1", 50_000),
            ],
        ),
    ],
)
def test_listeners_are_advertised_by_name(
    listening: list[str], advertised: list[str], told: list[Listener]
) -> None:
    """
    Who has no name is PLAINTEXT, or the only one; names are upper case, as in Kafka; what is not
    advertised is told as it is, with the port that it got.
    """
    listeners = read_listeners(listening, advertised)

    assert told == [at.advertised(at.port or 50_000) for at in listeners]


@pytest.mark.parametrize(
    ("listening", "advertised", "advice"),
    [
        (["localhost:1", "localhost:2"], [], "--listener EXTERNAL://localhost:2"),
        (["A://h:1", "a://h:2"], [], "listener A exists already"),
        (["A://h:1", "B://g:1"], [], "give each listener a port of its own"),
        (["A://h:1,B://h:2"], [], "give --listener once for each"),
        (["B C://h:1"], [], "EXTERNAL://h:1"),
        (["://h:1"], [], "not a valid listener name"),
        (["SSL://h:1"], [], "no TLS and no SASL yet"),
        (["sasl_plaintext://h:1"], [], "every listener is plaintext"),
        (["A://h"], [], "is not HOST:PORT"),
        (["A://h:1"], ["B://h:2"], "listener B does not exist"),
        (["A://h:1", "B://h:2"], ["h:3"], "listener PLAINTEXT does not exist"),
        (["A://h:1"], ["A://h:2", "h:3"], "advertised twice"),
        (["A://h:1"], ["0.0.0.0:3"], "cannot connect to 0.0.0.0"),
        (["A://h:1", "B://[::]:2"], ["A://h:1"], "--advertised-listener B://HOST:PORT"),
        (["A://h:1"], ["SASL_SSL://h:3"], "--advertised-listener 'SASL_SSL://h:3'"),
    ],
)
def test_what_cannot_be_listened_on_or_told_is_refused_with_advice(
    listening: list[str], advertised: list[str], advice: str
) -> None:
    """
    The message names the option, what was wrong with it, and what to say.
    """
    with pytest.raises(ListenError, match=r"^--(advertised-)?listener") as raised:
        read_listeners(listening, advertised)

    assert advice in str(raised.value)


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        ("10.0.0.7", "10.0.0.7:9644"),
        ("fd00::7", "[fd00::7]:9644"),
        ("0.0.0.0", "a.example.com:9644"),  # compared, not bound
        ("::", "a.example.com:9644"),
    ],
)
def test_an_http_port_on_any_address_is_told_by_the_name_that_clients_reach(
    bound: str, told: str
) -> None:
    """
    `driftlog segments seal` and imports ask each agent at that address.
    """
    listeners = read_listeners(["0.0.0.0:9092"], ["a.example.com:443"])

    assert told == http_address(bound, 9644, listeners)


async def test_of_listeners_of_which_one_is_taken_none_is_kept() -> None:
    """
    The first one is free again when the second is refused.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            free = probe.getsockname()[1]
        with pytest.raises(AddressTakenError):
            await take_all(
                [ListenAt(name="A", port=free), ListenAt(name="B", port=taken.getsockname()[1])]
            )
        with socket.socket() as again:  # without SO_REUSEADDR, which shares what is only bound
            again.bind(("127.0.0.1", free))
            assert free == again.getsockname()[1]


async def test_each_client_is_told_of_the_listener_that_it_came_in_through(tmp_path: Path) -> None:
    """
    Inside and outside are two addresses of one agent; what Metadata and DescribeCluster say goes
    by the connection, and tools are told that both are plaintext.
    """
    listeners = (
        ListenAt(name="INSIDE", port=0),
        ListenAt(name="OUTSIDE", port=0, advertised_host="a.example.com", advertised_port=443),
    )
    told: list[tuple[str, int]] = []
    async with Serving(tmp_path, listeners=listeners) as agent:
        ports = agent.ports
        for port in ports:
            async with Client(port) as client:
                seen = await client.call(metadata.API, 12, metadata.MetadataRequest())
                also = await client.call(
                    describe_cluster.API, 0, describe_cluster.DescribeClusterRequest()
                )
                told += [(at.host, at.port) for at in seen.brokers]
                told += [(at.host, at.port) for at in also.brokers]
        protocols = broker_settings(agent.process.broker)["listener.security.protocol.map"]

    assert [("127.0.0.1", ports[0])] * 2 + [("a.example.com", 443)] * 2 == told
    assert "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT" == protocols
