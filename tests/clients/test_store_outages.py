"""S3 down, silent or throttling: producers wait, cached data is read, nothing is restarted."""

import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest

from benchmarks.batches import Growing
from tests.clients.batches import good
from tests.clients.conftest import make_topic, metrics, seal
from tests.clients.peers import Confluent
from tests.clients.records import Record, at_offsets
from tests.clients.sockets import KAFKA_STORAGE_ERROR, REQUEST_TIMED_OUT, Produced, Raw
from tests.support.driftlog_process import DriftlogProcess
from tests.support.fault_proxy import FaultProxy, Mode
from tests.support.process_usage import free_port, stop_process, wait_until

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("store_outages")]

T: Final = 1_700_000_000_000
MODES: Final[tuple[Mode, ...]] = ("refuse", "throttle", "hang")


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultProxy]:
    """A proxy in front of an S3 server that keeps its objects in files."""
    folder, port = tmp_path_factory.mktemp("s3"), free_port()
    out = folder / "out"
    with out.open("wb") as log:
        arguments = ("--port", str(port), "--put-delay-ms", "0", "--dir", str(folder))
        server = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.slow_s3", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=Path(__file__).resolve().parents[2],
        )
    try:
        wait_until(lambda: b"s3 " in out.read_bytes(), server, 30, out)
        with FaultProxy(f"http://127.0.0.1:{port}") as running:
            yield running
    finally:
        stop_process(server, 10)


@pytest.fixture(scope="module")
def agent(proxy: FaultProxy) -> Iterator[DriftlogProcess]:
    """An agent whose store is behind the proxy."""
    environment = {
        "AWS_ENDPOINT_URL": proxy.url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with DriftlogProcess(
        arguments=("--store", "s3://bucket/prefix"), environment=environment
    ) as process:
        # An agent that has given out an id has a thousand: the bucket marks none in an outage.
        first = confluent_kafka.Producer(
            {"bootstrap.servers": process.bootstrap, "enable.idempotence": True}
        )
        first.produce(make_topic(process), b"first")
        assert first.flush(60) == 0
        yield process
        proxy.set_mode("pass")


@pytest.mark.parametrize("mode", MODES)
def test_producers_wait_and_recover_without_a_restart(
    agent: DriftlogProcess, proxy: FaultProxy, mode: Mode
) -> None:
    """
    While S3 fails: acks=all is not answered, a request times out with a retriable error, what
    is cached is read, and acks=1 is taken.  Afterwards all of it is in the log, once, in order.
    """
    topic = make_topic(agent)
    before = [Record(None, b"before %d" % n, T) for n in range(50)]
    during = [Record(None, b"during %d" % n, T) for n in range(50)]
    Confluent().produce_topic(agent.bootstrap, topic, "none", before)
    pid = agent.pid
    one_batch = {"batch.num.messages": len(during), "linger.ms": 60_000}
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": agent.bootstrap, "enable.idempotence": True, "log_level": 2}
        | one_batch
    )
    delivered: list[Any] = []
    proxy.set_mode(mode)
    try:
        for record in during:
            producer.produce(
                topic,
                record.value,
                partition=0,
                timestamp=T,
                on_delivery=lambda error, message: delivered.append(error or message.offset()),
            )
        deadline = time.monotonic() + 30
        while not metrics(agent)["driftlog_pending_bytes"]:  # "late" comes behind it
            assert time.monotonic() < deadline, "nothing arrived"
            time.sleep(0.05)
        producer.flush(1.5)
        waiting = list(delivered)
        with Raw(agent.port) as raw:
            timed_out = raw.produce(topic, {0: good(b"late", timestamp_ms=T)}, timeout_ms=500)
            synced = raw.produce(topic, {0: good(b"synced", timestamp_ms=T)}, acks=1)
        cached = Confluent().consume(agent.bootstrap, {topic: 50})[topic]
        assert proxy.refused > 0
    finally:
        proxy.set_mode("pass")
    assert producer.flush(60) == 0
    after = Confluent().consume(agent.bootstrap, {topic: 102})[topic]

    assert waiting == []
    assert timed_out == {0: Produced(REQUEST_TIMED_OUT, -1)}
    assert synced == {0: Produced(0, 101)}
    assert cached == at_offsets(before)
    assert delivered == list(range(50, 100))
    expected = [*before, *during, Record(None, b"late", T), Record(None, b"synced", T)]
    assert after == at_offsets(expected)
    assert agent.pid == pid


def test_what_is_only_in_the_bucket_is_a_storage_error_while_it_is_away(
    agent: DriftlogProcess, proxy: FaultProxy
) -> None:
    """
    Sealed records that no cache holds: a retriable error, not a hang and not an empty answer;
    and the records when it is back.  A client that asks again and again is one line in the log.
    """
    topic = make_topic(agent)
    records = [Record(None, b"%d" % n, T) for n in range(50)]
    Confluent().produce_topic(agent.bootstrap, topic, "none", records)
    seal(agent, topic)
    agent.kill()
    agent.start()
    before = agent.log.count("cold_read_failed")
    proxy.set_mode("refuse")
    try:
        with Raw(agent.port) as raw:
            away = [raw.fetch(topic, {0: 0}, max_wait_ms=500)[0] for _ in range(5)]
    finally:
        proxy.set_mode("pass")
    back = Confluent().consume(agent.bootstrap, {topic: 50})[topic]

    assert [(a.error_code, a.records) for a in away] == [(KAFKA_STORAGE_ERROR, b"")] * 5
    assert agent.log.count("cold_read_failed") == before + 1
    assert back == at_offsets(records)


def test_memory_is_bounded_while_the_store_is_away(
    agent: DriftlogProcess, proxy: FaultProxy
) -> None:
    """
    360 MB of acks=1 while nothing can be uploaded are on disk, not in memory; the process is
    as small as ever, and empties its buffer when the store is back.
    """
    topic = make_topic(agent, 4)
    batch = Growing(b"x" * 1_000, 900, T).first(900)
    agent.reset_peak()
    before = agent.usage().rss_bytes
    proxy.set_mode("refuse")
    try:
        with Raw(agent.port) as raw:
            for n in range(400):
                assert raw.produce(topic, {n % 4: batch}, acks=1)[n % 4].error_code == 0
        peak = agent.usage().peak_rss_bytes
        pending = metrics(agent)["driftlog_pending_bytes"]
    finally:
        proxy.set_mode("pass")
    deadline = time.monotonic() + 60
    while metrics(agent)["driftlog_pending_bytes"] and time.monotonic() < deadline:
        time.sleep(0.2)
    with Raw(agent.port) as raw:
        ends = raw.offsets(topic, range(4), -1)

    assert pending > 340 << 20
    assert peak - before < 256 << 20, f"{(peak - before) >> 20} MiB"
    assert ends == dict.fromkeys(range(4), 100 * 900)


def readiness(agent: DriftlogProcess, path: str = "readyz") -> tuple[int, str]:
    """What a supervisor is told."""
    try:
        with urllib.request.urlopen(f"{agent.http}/{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def becomes_ready(agent: DriftlogProcess, wanted: int, seconds: float) -> str:
    """Wait until `/readyz` says so; its text."""
    deadline = time.monotonic() + seconds
    while (told := readiness(agent))[0] != wanted:
        assert time.monotonic() < deadline, told
        time.sleep(0.2)
    return told[1]


def test_an_agent_that_cannot_commit_says_that_it_is_not_ready(
    agent: DriftlogProcess, proxy: FaultProxy
) -> None:
    """
    503 and why once it has failed for 5 s, ok when it commits again; it is alive all the time.
    """
    topic = make_topic(agent)
    proxy.set_mode("refuse")
    try:
        with Raw(agent.port) as raw:
            raw.produce(topic, {0: good(b"synced", timestamp_ms=T)}, acks=1)
        at_once = readiness(agent)
        reason = becomes_ready(agent, 503, 60)
        failing = metrics(agent)["driftlog_commits_failing_seconds"]
        alive = readiness(agent, "healthz")
    finally:
        proxy.set_mode("pass")
    after = becomes_ready(agent, 200, 60)

    assert at_once == alive == (200, "ok\n")
    said = re.match(r"nothing was committed for (\d+) s: put s3://bucket/prefix/flush/", reason)
    assert said is not None, reason
    assert int(said[1]) >= 5
    assert failing >= 5
    assert after == "ok\n"


def test_a_stop_during_an_outage_ends_and_loses_nothing(
    agent: DriftlogProcess, proxy: FaultProxy
) -> None:
    """
    SIGTERM: a store that has failed for long is given up (after 5 s: `agents/log/test_outage.py`);
    what was acks=1 stays on the disk, the log says so, and the next process appends it.
    """
    topic = make_topic(agent)
    proxy.set_mode("refuse")
    try:
        with Raw(agent.port) as raw:
            for n in range(20):
                answer = raw.produce(topic, {0: good(b"%d" % n, timestamp_ms=T)}, acks=1)
                assert answer == {0: Produced(0, n)}
        becomes_ready(agent, 503, 60)
        assert agent.terminate() == 0
    finally:
        proxy.set_mode("pass")
    left = [line for line in agent.log.splitlines() if "drain_incomplete" in line]
    agent.start()
    reads = Confluent().consume(agent.bootstrap, {topic: 20})[topic]

    assert "DIR/buffer" in left[-1]
    assert reads == at_offsets([Record(None, b"%d" % n, T) for n in range(20)])


def test_an_agent_that_is_killed_during_an_outage_has_what_was_synced(
    agent: DriftlogProcess, proxy: FaultProxy
) -> None:
    """
    acks=1 records that no store had are appended by the next process.
    """
    topic = make_topic(agent)
    proxy.set_mode("refuse")
    try:
        with Raw(agent.port) as raw:
            for n in range(20):
                answer = raw.produce(topic, {0: good(b"%d" % n, timestamp_ms=T)}, acks=1)
                assert answer == {0: Produced(0, n)}
        agent.kill()
        back = threading.Timer(1.0, lambda: proxy.set_mode("pass"))
        back.start()
        back.join()
        agent.start()
    finally:
        proxy.set_mode("pass")
    reads = Confluent().consume(agent.bootstrap, {topic: 20})[topic]

    assert reads == at_offsets([Record(None, b"%d" % n, T) for n in range(20)])
