"""The first contact of the Python client with an address where no broker is.

Without these: a wrong port is a silence of ten seconds and more, and a TLS or HTTP port a riddle.
Shell.
"""

import asyncio
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from driftlog import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer
from driftlog.common.bootstrap_probe import check_bootstrap
from driftlog.common.listener_probe import ForeignProtocol, foreign_protocol
from driftlog.common.settings import ProducerSettings
from driftlog.errors import UnreachableError
from tests.clients.python_client import new_topic, values_of
from tests.support.driftlog_process import DriftlogProcess
from tests.support.process_usage import free_port

pytestmark = [pytest.mark.xdist_group("python_client"), pytest.mark.timeout(240)]


def produce(servers: str) -> None:
    Producer(bootstrap_servers=servers).produce("t", b"x")


def consume(servers: str) -> None:
    Consumer("t", group="g", bootstrap_servers=servers).read()


def administer(servers: str) -> None:
    Admin(bootstrap_servers=servers).topics.list()


def ask_for_offsets(servers: str) -> None:
    Consumer("t", group="g", bootstrap_servers=servers).committed("t", 0)


def produce_in_a_loop(servers: str) -> None:
    async def main() -> None:
        await AsyncProducer(bootstrap_servers=servers).produce("t", b"x")

    asyncio.run(main())


def consume_in_a_loop(servers: str) -> None:
    async def main() -> None:
        async with AsyncConsumer("t", bootstrap_servers=servers) as consumer:
            await anext(consumer)

    asyncio.run(main())


CALLS: Final = [
    produce,
    consume,
    administer,
    ask_for_offsets,
    produce_in_a_loop,
    consume_in_a_loop,
]


@pytest.mark.parametrize("call", CALLS)
def test_a_refused_connection_is_an_error_within_seconds(call: Callable[[str], None]) -> None:
    """
    It names the address and says what to do; each client, at its first call.
    """
    address = f"127.0.0.1:{free_port()}"
    started = time.monotonic()
    with pytest.raises(UnreachableError) as raised:
        call(address)

    assert time.monotonic() - started < 4
    assert f"{address} refuses connections" in str(raised.value)
    assert "driftlog dev --dir" in str(raised.value)
    assert "DRIFTLOG_BOOTSTRAP_SERVERS" in str(raised.value)


def test_all_addresses_are_tried(servers: str) -> None:
    """
    One that answers is enough, wherever it stands; a name that is not known does not hide it.
    """
    refused = f"127.0.0.1:{free_port()}"
    new_topic(servers)
    for addresses in (f"{refused},{servers}", f"PLAINTEXT://{servers},{refused}"):
        with Admin(bootstrap_servers=addresses) as admin:
            assert admin.topics.list()
    with pytest.raises(UnreachableError, match=r"refuses connections; the host name 'no\.invalid'"):
        administer(f"{refused},no.invalid:9092")


def test_a_broker_that_starts_with_its_client_is_waited_for() -> None:
    """
    For a part of a second; an open port without an answer is librdkafka's to wait for.
    """
    port = free_port()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def start() -> None:
            listener.bind(("127.0.0.1", port))
            listener.listen()

        starting = threading.Timer(0.3, start)
        starting.start()
        check_bootstrap(f"127.0.0.1:{port}", {})
        starting.join()


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A listener that answers anything with *answer*, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        connection.recv(1_024)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_http_is_named(agent: DriftlogProcess) -> None:
    """
    The agent's own HTTP port is the likeliest mistake.
    """
    address = agent.http.removeprefix("http://")
    started = time.monotonic()
    with pytest.raises(UnreachableError, match=f"{address} speaks HTTP: give the port of the"):
        administer(address)
    assert time.monotonic() - started < 4


def test_tls_is_named(tmp_path: Path) -> None:
    """
    A real TLS server, which hangs up on what is no handshake.
    """
    port, pem = free_port(), tmp_path / "pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"),
            *("-keyout", str(pem), "-out", str(pem) + ".crt"),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    server = subprocess.Popen(
        [
            *("openssl", "s_server", "-quiet", "-accept", f"127.0.0.1:{port}"),
            *("-key", str(pem), "-cert", str(pem) + ".crt"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        with pytest.raises(UnreachableError, match=r"speaks TLS: give config=.*security\.protocol"):
            administer(f"127.0.0.1:{port}")
        check_bootstrap(f"127.0.0.1:{port}", {"security.protocol": "SSL"})
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize(
    "answer", [b"", b"\x00\x00\x00\x0a", b"\x00\x00\x00\x06\x00\x00\x00\x01\x00\x23"]
)
def test_other_answers_are_left_to_librdkafka(answer: bytes) -> None:
    """
    None, half a one, an error in Kafka's protocol: they may be a broker's.
    """
    with answering(answer) as address:
        check_bootstrap(address, {})


def test_silence_is_no_tls() -> None:
    """
    A plaintext broker at its limit of connections closes the first one and is slow with the second.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        closing = threading.Thread(target=lambda: listener.accept()[0].close())
        closing.start()
        plaintext = foreign_protocol("127.0.0.1", port, tls=False, connect_s=5, answer_s=0.5)
        closing.join(10)
        tls = foreign_protocol("127.0.0.1", port, tls=True, connect_s=5, answer_s=0.5)

    assert (ForeignProtocol.CLOSED, None) == (plaintext, tls)


def test_an_outage_of_a_running_client_is_waited_for(tmp_path: Path) -> None:
    """
    As librdkafka does: a producer and a consumer that have had an answer go on by themselves when
    the agent is back on its port.
    """
    with DriftlogProcess(tmp_path) as agent:
        listener = agent.bootstrap
        topic = new_topic(listener)
        producer = Producer(
            bootstrap_servers=listener, settings=ProducerSettings(delivery_timeout_ms=90_000)
        )
        consumer = Consumer(topic, bootstrap_servers=listener, from_beginning=True)
        producer.produce(topic, b"before")
        producer.flush(60)
        assert [b"before"] == values_of([next(consumer)])
        agent.kill()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(listener.rpartition(":")[2])), 5)
        producer.produce(topic, b"meanwhile")
        assert [] == consumer.read(timeout_s=2)
        agent.start()
        producer.flush(90)
        assert [b"meanwhile"] == values_of([next(consumer)])
        producer.close()
        consumer.close()
