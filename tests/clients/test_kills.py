"""SIGKILL while producers write: what was acknowledged is there, once, in order."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import aiokafka
import confluent_kafka
import pytest

from benchmarks import batches, wire
from tests.clients.batches import good
from tests.clients.conftest import make_topic
from tests.clients.peers import Confluent
from tests.clients.records import Read, Record
from tests.clients.sockets import Produced, Raw
from tests.support.driftlog_process import DriftlogProcess

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("kills")]

KILLS: Final = 3
T: Final = 1_700_000_000_000


@pytest.fixture
def killed(agent: DriftlogProcess) -> Iterator[threading.Thread]:
    """A thread that kills the agent and starts it again, a few times."""

    def kill_and_start() -> None:
        for _ in range(KILLS):
            time.sleep(1.0)
            agent.kill()
            agent.start()

    thread = threading.Thread(target=kill_and_start)
    yield thread
    if thread.ident is not None:
        thread.join()


def test_an_idempotent_librdkafka_producer_loses_and_doubles_nothing(
    agent: DriftlogProcess, killed: threading.Thread
) -> None:
    """
    Every record is acknowledged in the end, at its own offset; each is in the log once, in the
    order of sending.
    """
    topic = make_topic(agent)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": agent.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 2,
            "message.timeout.ms": 60_000,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 50,
            "log_level": 2,
        }
    )
    acknowledged: dict[int, int] = {}
    failed: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(error)
        else:
            acknowledged[int(message.value())] = message.offset()

    killed.start()
    sent = 0
    while killed.is_alive():
        if sent - len(acknowledged) < 20_000:  # its queue holds 100,000
            producer.produce(topic, b"%d" % sent, partition=0, on_delivery=delivered)
            sent += 1
        time.sleep(0.0002)
        producer.poll(0)
    left = producer.flush(60)

    assert (left, failed) == (0, [])
    assert {n: n for n in range(sent)} == acknowledged
    assert [b"%d" % n for n in range(sent)] == values(agent, topic, sent)


async def test_an_idempotent_aiokafka_producer_loses_and_doubles_nothing(
    agent: DriftlogProcess, killed: threading.Thread
) -> None:
    """
    As librdkafka's, with another client's idea of retrying.
    """
    topic = make_topic(agent)
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=agent.bootstrap,
        enable_idempotence=True,
        linger_ms=2,
        request_timeout_ms=60_000,
    )
    await producer.start()
    sent: list[asyncio.Future[Any]] = []
    try:
        killed.start()
        while killed.is_alive():
            sent.append(await producer.send(topic, b"%d" % len(sent), partition=0))
            await asyncio.sleep(0.001)
        acknowledged = [m.offset for m in await asyncio.wait_for(asyncio.gather(*sent), 60)]
    finally:
        await producer.stop()

    assert acknowledged == list(range(len(sent)))
    expected = [b"%d" % n for n in range(len(sent))]
    assert expected == await asyncio.to_thread(values, agent, topic, len(sent))


def values(agent: DriftlogProcess, topic: str, count: int) -> list[bytes | None]:
    """All that is in the topic, which must be *count* records."""
    with Raw(agent.port) as raw:
        assert raw.offsets(topic, [0], -1) == {0: count}
    reads = Confluent().consume(agent.bootstrap, {topic: count})[topic]
    assert [read.offset for read in reads] == list(range(count))
    return [read.record.value for read in reads]


@pytest.mark.parametrize("acks", [1, -1], ids=["acks=1", "acks=all"])
def test_what_is_acknowledged_survives_a_kill_at_its_offset(
    agent: DriftlogProcess, acks: int
) -> None:
    """
    Killed right after the answer, five times: the next process has the record where it was.
    """
    topic = make_topic(agent)
    for n in range(5):
        with Raw(agent.port) as raw:
            answer = raw.produce(topic, {0: good(b"%d" % n, timestamp_ms=T)}, acks=acks)
            assert answer == {0: Produced(0, n)}
            agent.kill()
        agent.start()

    reads = Confluent().consume(agent.bootstrap, {topic: 5})[topic]

    assert reads == [Read(n, Record(None, b"%d" % n, T)) for n in range(5)]


def test_a_repeated_batch_gets_its_first_offset_after_a_kill(agent: DriftlogProcess) -> None:
    """
    The answer was lost with the agent; the retry is a duplicate and says where the original is.
    """
    topic = make_topic(agent)
    producer = Confluent(**{"enable.idempotence": True})
    records = [Record(None, b"%d" % n, T) for n in range(10)]
    assert producer.produce_topic(agent.bootstrap, topic, "none", records) == list(range(10))
    with Raw(agent.port) as raw:
        batch = idempotent(raw)
        first = raw.produce(topic, {0: batch})
        agent.kill()
    agent.start()
    with Raw(agent.port) as raw:
        again = raw.produce(topic, {0: batch})
        ends = raw.offsets(topic, [0], -1)

    assert (first, again, ends) == ({0: Produced(0, 10)}, {0: Produced(0, 10)}, {0: 11})


def idempotent(raw: Raw) -> bytearray:
    """The first batch of a new idempotent producer."""
    raw.send(wire.init_producer_id_request(raw.next_id()))
    producer_id, epoch = wire.init_producer_id_answer(raw.receive())
    batch = good(b"once")
    batches.set_producer(batch, producer_id, epoch, 0)
    return batch
