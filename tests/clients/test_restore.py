"""A cluster whose metadata store and disks are gone comes back from its bucket alone.

Broken: a record that was acknowledged with acks=all is gone, or at another offset; a producer id or
an offset is given out twice; a topic or a group's offset does not come back.
"""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    NewTopic,
)

from driftlog_tiering.formats import bucket_files
from tests.clients.command import run
from tests.clients.conftest import seal
from tests.support import etcd_server
from tests.support.driftlog_process import DriftlogProcess

pytestmark = [pytest.mark.timeout(300)]

_WAIT_S: Final = 30.0
_PARTITIONS: Final = 3


class Written:
    """What producers were told: by (topic, partition), the value at each offset."""

    def __init__(self) -> None:
        self.told: dict[tuple[str, int], dict[int, bytes]] = {}
        self._count = 0

    def send(self, agent: DriftlogProcess, topic: str, records: int, **settings: Any) -> None:
        """Produce and wait."""
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": agent.bootstrap, "linger.ms": 1, "acks": "all", **settings}
        )

        def done(error: Any, message: Any) -> None:
            assert error is None, error
            place = self.told.setdefault((message.topic(), message.partition()), {})
            assert message.offset() not in place
            place[message.offset()] = message.value()

        for _ in range(records):
            value = b"%d" % self._count
            producer.produce(topic, value, partition=self._count % _PARTITIONS, on_delivery=done)
            self._count += 1
        assert 0 == producer.flush(_WAIT_S)


def test_what_was_acknowledged_comes_back_at_its_offset(tmp_path: Path) -> None:
    """
    Sealed and unsealed records, idempotent producers, configs; three times in a row.
    """
    written = Written()
    directory, objects = tmp_path / "data", tmp_path / "objects"
    store = ("--store", str(objects))
    with DriftlogProcess(directory, arguments=store) as agent:
        _make(agent, "one", {"retention.ms": "123456789"})
        _make(agent, "empty", {})
        _make(agent, "gone", {})
        written.send(agent, "one", 300)
        seal(agent, "one")
        written.send(agent, "one", 200, **{"enable.idempotence": True})
        written.send(agent, "gone", 10)
        admin = AdminClient({"bootstrap.servers": agent.bootstrap})
        admin.delete_topics(["gone"])["gone"].result(_WAIT_S)
        _commit(agent, "one", 42)
        _wait_for_snapshot(objects)
        del written.told["gone", 0], written.told["gone", 1], written.told["gone", 2]
        agent.kill()
    ids = [_cluster_id(objects)]
    for _ in range(3):
        shutil.rmtree(directory)
        directory.mkdir()
        restore = ("restore", *store, "--dir", str(directory), "--from-cluster", ids[-1])
        looked = json.loads(run(*restore, "--dry-run", "--json").stdout)
        assert not list(directory.iterdir())
        done = run(*restore, "--agents-stopped", "--json")
        assert 0 == done.returncode, done.stderr.decode()
        report = json.loads(done.stdout)
        ids.append(_cluster_id(objects))
        assert [ids[-2], ids[-1]] == [report["from_id"], report["to_id"]]
        assert ids[-2] != ids[-1]
        assert 2 == report["topics"]
        assert looked["joined_records"] == report["joined_records"]
        again = run(*restore, "--agents-stopped", "--json")
        assert 0 == again.returncode, again.stderr.decode()
        with DriftlogProcess(directory, arguments=store) as agent:
            assert written.told == _read(agent, "one")
            assert "123456789" == _config(agent, "one", "retention.ms")
            assert {"one", "empty"} == _topics(agent)
            assert 42 == _committed(agent, "one")
            written.send(agent, "one", 30, **{"enable.idempotence": True})
            assert written.told == _read(agent, "one")
            agent.kill()
    discarded = run("restore", "--dir", str(directory), "--discard")
    assert 0 == discarded.returncode, discarded.stderr.decode()
    assert ids[-2].encode() in discarded.stdout


def test_etcd_and_all_disks_are_destroyed_under_load(tmp_path: Path) -> None:
    """
    Two agents are killed while a producer sends: every record that it was told is at its offset.
    """
    store = ("--store", str(tmp_path / "objects"))
    with _agents_on_etcd(tmp_path / "lost", store) as (agents, _):
        _make(agents[0], "one", {})
        told = _produce_until_killed(agents, "one")
    shutil.rmtree(tmp_path / "lost")
    from_id = _cluster_id(tmp_path / "objects")

    with _agents_on_etcd(tmp_path / "new", store, from_id) as (agents, report):
        found = _read(agents[0], "one")

    assert report["joined_records"] >= 1_000
    assert all(records.items() <= found[place].items() for place, records in told.items())


@contextmanager
def _agents_on_etcd(
    folder: Path, store: tuple[str, str], from_id: str = ""
) -> Iterator[tuple[list[DriftlogProcess], dict[str, Any]]]:
    """Two agents on a new etcd; *from_id*: after a restore of this cluster into it."""
    folder.mkdir()
    with ExitStack() as stack:
        etcd = stack.enter_context(
            etcd_server.start(etcd_server.newest_version(), folder, members=1)
        )
        line = ("--etcd", etcd.endpoints[0], *store)
        report: dict[str, Any] = {}
        if from_id:
            restore = ("restore", *line, "--from-cluster", from_id, "--agents-stopped", "--json")
            done = run(*restore)
            assert 0 == done.returncode, done.stderr.decode()
            report = json.loads(done.stdout)
        agents = [
            DriftlogProcess(folder / f"agent-{n}", line, command=("agent", "run")) for n in range(2)
        ]
        for agent in agents:
            stack.callback(agent.close)
            agent.start()
        yield agents, report


def _produce_until_killed(
    agents: list[DriftlogProcess], topic: str
) -> dict[tuple[str, int], dict[int, bytes]]:
    """Produce, and kill the agents while records are on their way; returns what was told."""
    told: dict[tuple[str, int], dict[int, bytes]] = {}
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": agents[0].bootstrap, "linger.ms": 5, "acks": "all"}
    )

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            place = told.setdefault((message.topic(), message.partition()), {})
            place[message.offset()] = message.value()

    until = time.monotonic() + _WAIT_S
    number = 0
    while sum(map(len, told.values())) < 1_500:
        assert time.monotonic() < until, "the agents acknowledge too little"
        partition = number % _PARTITIONS
        producer.produce(topic, b"%d" % number, partition=partition, on_delivery=delivered)
        producer.poll(0.001)
        number += 1
    for agent in agents:
        agent.kill()
    producer.poll(1.0)
    producer.purge()
    return told


def test_a_restore_refuses_what_it_would_damage(tmp_path: Path) -> None:
    """
    A metadata store in use, another cluster's bucket, and a restore to nowhere.
    """
    directory = tmp_path / "data"
    with DriftlogProcess(directory) as agent:
        _make(agent, "one", {})
        Written().send(agent, "one", 30)
        agent.kill()
    before = _cluster_id(directory / "objects")
    line = ("restore", "--store", str(directory / "objects"), "--from-cluster", before)
    new = ("--dir", str(tmp_path / "new"))
    used = run(*line, "--dir", str(directory), "--agents-stopped")
    other = run(*line[:-1], "other", *new, "--agents-stopped")
    nowhere = run(*line, "--agents-stopped")

    assert [1, 1, 2] == [done.returncode for done in (used, other, nowhere)]
    assert b"the metadata store is not empty" in used.stderr
    assert f"the bucket belongs to cluster {before}".encode() in other.stderr
    assert before == _cluster_id(directory / "objects")


def test_an_agent_of_the_old_cluster_stops_while_the_restore_waits(tmp_path: Path) -> None:
    """
    It is busy all the time: what it acknowledges is restored, and it does not start again.
    """
    objects, new = tmp_path / "objects", tmp_path / "new"
    store = ("--store", str(objects))
    with DriftlogProcess(tmp_path / "data", arguments=store) as old:
        _make(old, "one", {})
        before = _cluster_id(objects)
        told: dict[tuple[str, int], dict[int, bytes]] = {}
        stop = threading.Event()
        producing = threading.Thread(target=_produce_until, args=(old, "one", told, stop))
        producing.start()
        try:
            done = run("restore", *store, "--dir", str(new), "--from-cluster", before, "--json")
            code = old.exit_code
        finally:
            stop.set()
            producing.join()
        assert 0 == done.returncode, done.stderr.decode()
        assert code not in (None, 0)
        assert "other_cluster_found" in old.log
        old.kill()  # it has ended
        with pytest.raises(RuntimeError, match="belongs to cluster"):
            old.start()
    with DriftlogProcess(new, arguments=store) as agent:
        found = _read(agent, "one")
        agent.kill()

    assert sum(map(len, told.values())) >= 100
    assert all(records.items() <= found[place].items() for place, records in told.items())


def _produce_until(
    agent: DriftlogProcess,
    topic: str,
    told: dict[tuple[str, int], dict[int, bytes]],
    stop: threading.Event,
) -> None:
    """Produce a few records a second until *stop*; *told* gets what was acknowledged."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": agent.bootstrap, "acks": "all", "log_level": 0}
    )

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            place = told.setdefault((message.topic(), message.partition()), {})
            place[message.offset()] = message.value()

    number = 0
    while not stop.wait(0.05):
        partition = number % _PARTITIONS
        producer.produce(topic, b"%d" % number, partition=partition, on_delivery=delivered)
        producer.poll(0)
        number += 1
    producer.purge()
    producer.flush(1)


def test_the_command_says_what_is_wrong_and_what_is_next(tmp_path: Path) -> None:
    """
    A damaged flush object, a repeated restore, what to discard, and the files it makes.
    """
    lost, new = tmp_path / "lost", tmp_path / "new"
    objects = lost / "objects"
    with DriftlogProcess(lost) as agent:
        _make(agent, "one", {})
        Written().send(agent, "one", 30)
        agent.kill()
    from_id = _cluster_id(objects)
    store = ("restore", "--store", str(objects))
    look = (*store, "--dry-run", f"--from-cluster={from_id}")
    restore = (*store, "--from-cluster", from_id, "--dir", str(new), "--agents-stopped")
    discard = ("restore", "--discard", "--dir")
    damaged = sorted(objects.glob("flush/*/*.flush"))[0]
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-10])

    def said(*line: str, rc: int) -> str:
        done = run(*line)
        text = (done.stdout + done.stderr).decode()
        assert rc == done.returncode, text
        return text

    assert f"give --from-cluster={from_id}" in said(*store, "--dry-run", rc=2)
    assert "the restore would be refused: 1 flush objects cannot be read" in said(*look, rc=1)
    assert "run the restore again, with the same --etcd or --dir" in said(*restore, rc=1)
    assert "a restore has begun: its own --etcd or --dir goes on with it" in said(*look, rc=1)
    damaged.write_bytes(whole)
    assert json.loads(said(*look, "--dir", str(new), "--json", rc=0))["to_id"]
    assert "next: start the agents" in said(*restore, rc=0)
    assert "is already restored as" in said(*restore, rc=0)
    damaged.write_bytes(whole[:-10])
    assert "is already restored as" in said(*restore, rc=1)
    damaged.write_bytes(whole)
    assert 0o700 == new.stat().st_mode & 0o777
    assert "there is no" in said(*discard, str(tmp_path / "mistyped"), rc=1)
    assert not (tmp_path / "mistyped").exists()
    assert "not both" in said(*discard, str(new), "--dry-run", rc=2)
    assert "discarded: " in said(*discard, str(new), rc=0)
    assert "it is done already" in said(*discard, str(new), rc=0)
    with DriftlogProcess(new, arguments=("--store", str(objects))) as agent:
        assert 30 == sum(map(len, _read(agent, "one").values()))
        assert "another agent" in said(*discard, str(new), rc=1)
        agent.kill()


def test_a_dry_run_names_no_new_cluster(tmp_path: Path) -> None:
    """
    Its id would be another one each time.
    """
    with DriftlogProcess(tmp_path) as agent:
        agent.kill()
    objects = tmp_path / "objects"
    line = ("--store", str(objects), "--from-cluster", _cluster_id(objects), "--json")

    assert json.loads(run("restore", "--dry-run", *line).stdout)["to_id"] is None


def _make(agent: DriftlogProcess, topic: str, config: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    made = admin.create_topics([NewTopic(topic, _PARTITIONS, 1, config=config)])
    made[topic].result(_WAIT_S)


def _cluster_id(objects: Path) -> str:
    """By the newest cluster file."""
    files = sorted((objects / "cluster").glob("*.json")) or [objects / "cluster.json"]
    return bucket_files.decode_cluster(files[-1].read_bytes()).cluster_id


def _group(agent: DriftlogProcess) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer({"bootstrap.servers": agent.bootstrap, "group.id": "g"})


def _commit(agent: DriftlogProcess, topic: str, offset: int) -> None:
    consumer = _group(agent)
    consumer.commit(offsets=[TopicPartition(topic, 1, offset)], asynchronous=False)
    consumer.close()


def _committed(agent: DriftlogProcess, topic: str) -> int:
    consumer = _group(agent)
    (found,) = consumer.committed([TopicPartition(topic, 1)], timeout=_WAIT_S)
    consumer.close()
    return int(found.offset)


def _wait_for_snapshot(objects: Path) -> None:
    """Agents put one a minute while groups change."""
    until = time.monotonic() + 150
    while not list(objects.glob("groups/*/*.json")):
        assert time.monotonic() < until, "no snapshot of groups"
        time.sleep(0.5)


def _topics(agent: DriftlogProcess) -> set[str]:
    return set(AdminClient({"bootstrap.servers": agent.bootstrap}).list_topics(timeout=30).topics)


def _config(agent: DriftlogProcess, topic: str, name: str) -> str:
    described = run("configs", "describe", "--topic", topic, "--json", bootstrap=agent.bootstrap)
    (found,) = json.loads(described.stdout)
    return str(next(one["value"] for one in found["configs"] if one["name"] == name))


def _read(agent: DriftlogProcess, topic: str) -> dict[tuple[str, int], dict[int, bytes]]:
    """Every record, from the earliest offset to the end."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": agent.bootstrap,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    partitions = [TopicPartition(topic, number, 0) for number in range(_PARTITIONS)]
    consumer.assign(partitions)
    found: dict[tuple[str, int], dict[int, bytes]] = {}
    ends = 0
    while ends < _PARTITIONS:
        message: Any = consumer.poll(_WAIT_S)
        assert message is not None, "a record is missing"
        if message.error() is not None:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            ends += 1
            continue
        found.setdefault((topic, message.partition()), {})[message.offset()] = message.value()
    consumer.close()
    return found
