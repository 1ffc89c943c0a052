"""The collector of a real agent with a short grace: after churn the bucket holds the live data.

Broken: a bucket that grows for ever though records and topics are deleted, or files that are gone
though a consumer or Spark may still read them.
"""

import json
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    NewTopic,
)

from driftlog_metadata.schema.model import TopicPartition as Partition
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest_codec import decode_manifest
from tests.clients.command import run
from tests.clients.conftest import make_topic, metrics, seal
from tests.support import etcd_server
from tests.support.driftlog_process import DriftlogProcess
from tests.support.live_objects import live_keys, stored_keys

pytestmark = [pytest.mark.timeout(240)]

_GRACE_MS: Final = 5_000
_ROUNDS: Final = 12
_RECORDS: Final = 40
_WAIT_S: Final = 30.0


def test_after_churn_the_bucket_is_the_live_datas_size() -> None:
    """
    Small segments, DeleteRecords and topics that come and go, for some graces, while a consumer
    reads: it gets every record that is not deleted, and then nothing is left but live data.
    """
    arguments = ("--new-cluster-grace-ms", str(_GRACE_MS))
    with DriftlogProcess(arguments=arguments) as agent:
        topic = make_topic(agent)
        admin = AdminClient({"bootstrap.servers": agent.bootstrap})
        read: set[int] = set()
        log_start = 0
        for n in range(_ROUNDS):
            _write(agent, topic, n * _RECORDS)
            seal(agent, topic)
            if n % 3 == 2:
                log_start = (n - 1) * _RECORDS + 7
                asked = TopicPartition(topic, 0, log_start)
                (told,) = admin.delete_records([asked]).values()
                told.result(_WAIT_S)
            _churn(agent, admin)
            read = _read(agent, topic, log_start)
            assert set(range(log_start, (n + 1) * _RECORDS)) == read
        report = _waited_for(lambda: _dry_run(agent), lambda found: not found["garbage"])
        objects = agent.directory / "objects"
        left = _waited_for(
            lambda: stored_keys(objects) - live_keys(objects), lambda found: not found
        )
        counted = metrics(agent)
        end = _read(agent, topic, log_start)

    assert set() == left
    assert [] == report["unrecognised"]
    assert {} == report["damaged"]
    assert _GRACE_MS == report["grace_ms"]
    assert set(range(log_start, _ROUNDS * _RECORDS)) == end
    labels = '{kind="segment",reason="replaced"}'
    assert counted[f"driftlog_collected_objects_total{labels}"] >= 7
    assert counted[f"driftlog_collected_bytes_total{labels}"] > 1_000
    for kind in ("flush", "sealed"):
        assert counted[f'driftlog_collector_last_pass_seconds{{objects="{kind}"}}'] > 0


def test_dry_run_says_what_would_go_and_why(tmp_path: Path) -> None:
    """
    With sizes, beside a running agent; a key that driftlog does not write is told and stays; what
    is damaged fails the command.
    """
    with DriftlogProcess(tmp_path / "data") as agent:
        topic = make_topic(agent)
        _write(agent, topic, 0)
        seal(agent, topic)
        objects = agent.directory / "objects"
        (manifest,) = (objects / "topics" / topic).glob("*/00000/manifest/*.json")
        tp = Partition(decode_manifest(manifest.read_bytes()).tp.topic_id, 0)
        failed = layout.segment_key(topic, tp, 40, 50, "left")
        for key in (failed, "topics/index.html"):
            path = objects / key
            path.write_bytes(b"12345678")
            os.utime(path, (time.time() - 2 * 86_400,) * 2)
        line = ("gc", "--dry-run", "--dir", str(agent.directory))
        told = run(*line, "--json")
        table = run(*line)
        hidden = manifest.rename(tmp_path / "manifest")
        damaged = run(*line, "--json")
        hidden.rename(manifest)
        misused = [run("gc"), run("gc", "--dry-run", "--store", "x"), run(*line[:2])]
        nothing = run("gc", "--dry-run", "--dir", str(tmp_path))
        nowhere = run("gc", "--dry-run", "--dir", str(tmp_path / "nosuch"))

    found = json.loads(told.stdout)
    expected = {"key": failed, "kind": "segment", "reason": "never_named", "size_bytes": 8}
    assert [expected] == found["garbage"]
    assert ["topics/index.html"] == found["unrecognised"]
    assert 43_200_000 == found["grace_ms"]
    assert 0 == told.returncode == table.returncode
    assert failed in table.stdout.decode()
    assert b"1 object would go (1 segment), 8 B; grace is 12 h" in table.stderr
    assert b"topics/index.html: not recognised, and never deleted" in table.stderr
    assert 1 == damaged.returncode
    assert [] == json.loads(damaged.stdout)["garbage"]
    assert f"{topic}-0".encode() in damaged.stderr
    assert [2, 2, 2] == [done.returncode for done in misused]
    assert 1 == nothing.returncode
    assert f"there is no directory {tmp_path / 'nosuch'}\n" in nowhere.stderr.decode()


def test_grace_is_changed_while_no_agent_runs(tmp_path: Path) -> None:
    """
    A running agent refuses the change; the next start has the new grace, and collects with it.
    """
    with DriftlogProcess(tmp_path / "data") as agent:
        topic = make_topic(agent)
        line = ("cluster", "grace", "--dir", str(agent.directory))
        before = run(*line)
        refused = run(*line, "--set", str(_GRACE_MS))
        agent.kill()
        told = run(*line, "--set", "90000")
        changed = run(*line, "--set", str(_GRACE_MS), "--json")
        agent.start()
        _write(agent, topic, 0)
        seal(agent, topic)
        objects = agent.directory / "objects"
        gone = _waited_for(
            lambda: list((objects / "flush").rglob("*.flush")), lambda left: not left
        )

    assert b"grace is 12 h\n" == before.stdout
    assert 1 == refused.returncode
    assert b"stop the agent first" in refused.stderr
    assert b"grace is 90 s, and was 12 h\n" == told.stdout
    assert b"start the agents" in told.stderr
    assert {"grace_ms": _GRACE_MS} == json.loads(changed.stdout)
    assert [] == gone


def test_the_directory_of_a_dev_cluster_names_its_etcd(tmp_path: Path) -> None:
    """
    `driftlog dev --agents` keeps its metadata in etcd: DIR is enough, also for a change of grace,
    which waits until no agent has a session.
    """
    directory = tmp_path / "dev"
    directory.mkdir()
    with etcd_server.start(etcd_server.newest_version(), tmp_path) as etcd:
        port = int(etcd.endpoints[0].rpartition(":")[2])
        ports = {"client_port": port, "peer_port": port}
        (directory / "etcd.json").write_text(json.dumps(ports))
        arguments = ("--etcd", etcd.endpoints[0], "--store", str(directory / "objects"))
        place = directory / "agent-1"
        with DriftlogProcess(place, arguments, command=("agent", "run")) as agent:
            told = run("gc", "--dry-run", "--dir", str(directory), "--json")
            line = ("cluster", "grace", "--dir", str(directory), "--set", str(_GRACE_MS))
            refused = run(*line)
            inner = run("gc", "--dry-run", "--dir", str(place))
            agent.terminate()
            changed = _waited_for(lambda: run(*line), lambda done: done.returncode == 0)

    assert [] == json.loads(told.stdout)["garbage"]
    assert 1 == refused.returncode
    assert b"agent 1 has a session: stop every agent first" in refused.stderr
    assert b"give --etcd URL and --store LOCATION" in inner.stderr
    assert b"grace is 5 s" in changed.stdout


def _write(agent: DriftlogProcess, topic: str, first: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": agent.bootstrap, "linger.ms": 0})
    for number in range(first, first + _RECORDS):
        producer.produce(topic, b"%d" % number, b"k", partition=0)
    assert 0 == producer.flush(_WAIT_S)


def _churn(agent: DriftlogProcess, admin: AdminClient) -> None:
    """A topic comes, is sealed, and goes."""
    name = f"churn-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(_WAIT_S)
    _write(agent, name, 0)
    seal(agent, name)
    admin.delete_topics([name])[name].result(_WAIT_S)


def _read(agent: DriftlogProcess, topic: str, start: int) -> set[int]:
    """The numbers of the records from *start* on.

    Raises:
        KafkaException: what the consumer was told.
    """
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": agent.bootstrap, "group.id": "none", "auto.offset.reset": "error"}
    )
    consumer.assign([TopicPartition(topic, 0, start)])
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=_WAIT_S)
    found: set[int] = set()
    while len(found) < end - start:
        message = consumer.poll(_WAIT_S)
        assert message is not None, "a record is missing"
        if message.error():
            raise KafkaException(message.error())
        found.add(int(message.value() or b""))
    consumer.close()
    return found


def _dry_run(agent: DriftlogProcess) -> Any:
    done = run("gc", "--dry-run", "--dir", str(agent.directory), "--json")
    assert 0 == done.returncode, done.stderr.decode()
    return json.loads(done.stdout)


def _waited_for(look: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    """What *look* returns once that *holds*, or after twelve graces."""
    deadline = time.monotonic() + 12 * _GRACE_MS / 1000
    while not holds(found := look()) and time.monotonic() < deadline:
        time.sleep(0.3)
    return found
