"""An etcd that fills up: producers wait, sealing goes on, and the log says how to go on."""

import base64
import re
import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.clients.batches import good
from tests.clients.conftest import make_topic, metrics, seal
from tests.clients.sockets import Produced, Raw
from tests.support import etcd_server
from tests.support.driftlog_process import DriftlogProcess
from tests.support.etcd_server import EtcdCluster

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("etcd_agents")]

NOT_ENOUGH_REPLICAS = 19
QUOTA_BYTES = 2**23


@pytest.fixture
def etcd(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[EtcdCluster]:
    """One member with a small quota."""
    folder = tmp_path / "etcd"
    folder.mkdir()
    arguments = ["--quota-backend-bytes", str(QUOTA_BYTES)]
    with etcd_server.start(request.param, folder, arguments=arguments) as cluster:
        yield cluster


def size(etcd: EtcdCluster) -> int:
    return int(etcd.members[0].post("/v3/maintenance/status", {})["dbSize"])


def write(etcd: EtcdCluster, size_bytes: int = 100_000) -> bool:
    """History of one key that is not the agent's; False: it is refused."""
    value = base64.b64encode(bytes(size_bytes)).decode()
    key = base64.b64encode(b"/filler").decode()
    try:
        etcd.members[0].post("/v3/kv/put", {"key": key, "value": value})
        time.sleep(0.11)  # it commits every 100 ms, and its size is that of what is committed
    except urllib.error.HTTPError:
        return False
    return True


def flush_records(etcd: EtcdCluster) -> int:
    key, end = (
        base64.b64encode(text).decode()
        for text in (b"/driftlog/v1/flushes/", b"/driftlog/v1/flushes0")
    )
    found = etcd.members[0].post("/v3/kv/range", {"key": key, "range_end": end, "count_only": True})
    return int(found.get("count", 0))


def eventually(what: Callable[[], bool], seconds: float = 40) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.2)


def set_config(agent: DriftlogProcess, value: str | None) -> None:
    """A dynamic config of the broker; None: deleted."""
    kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry("log.retention.ms", value, incremental_operation=kind)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": agent.bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)


def line(agent: DriftlogProcess, event: str) -> str:
    """The last of that name."""
    found: list[str] = re.findall(rf".*\b{event}\b.*", agent.log)
    assert found, agent.log
    return found[-1]


def do_as_it_says(etcd: EtcdCluster, said: str) -> None:
    """Compact, defragment, disarm: as etcdctl would, which is not there."""
    url = re.escape(etcd.endpoints[0])
    revision = re.search(rf"etcdctl --endpoints={url} compact (\d+);", said)
    assert revision is not None, said
    assert re.search(rf"etcdctl --endpoints={url} defrag --cluster;", said)
    assert re.search(rf"etcdctl --endpoints={url} alarm disarm ", said)
    etcd.make_room(int(revision[1]))


@pytest.mark.parametrize("etcd", etcd_server.EACH_VERSION, indirect=True)
def test_an_etcd_that_fills_up_stops_producers_only_until_there_is_room(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    """
    Said at 60 %, refused at 80 %, where sealing and forgetting go on; a client's user sees no
    error; after what the log says to do everything goes on, from a full one as well.  No topic is
    created from 80 % on.  A full etcd deletes configs.
    """
    agent = DriftlogProcess(
        tmp_path / "agent",
        ("--etcd", etcd.endpoints[0], "--store", str(tmp_path / "objects")),
        command=("agent", "run"),
    )
    with agent, Raw(agent.port) as raw:
        topic = make_topic(agent)
        first = raw.produce(topic, {0: good(b"first")}, acks=-1)[0]
        set_config(agent, "86400000")

        while size(etcd) < QUOTA_BYTES * 0.65:
            assert write(etcd)
        eventually(lambda: "etcd_quota_low" in agent.log)
        warned = raw.produce(topic, {0: good(b"warned")}, acks=-1)[0]

        while size(etcd) < QUOTA_BYTES * 0.85:
            assert write(etcd)
        eventually(lambda: "etcd_quota_almost_exhausted" in agent.log)
        eventually(lambda: metrics(agent)["driftlog_etcd_quota_share"] >= 0.85)
        refused = [raw.produce(topic, {0: good(b"no")}, acks=acks)[0] for acks in (-1, 1)]
        with pytest.raises(KafkaException, match="no topic is created"):
            make_topic(agent)
        said = metrics(agent)
        errors: list[str] = []
        offsets: list[int] = []

        def delivered(error: object, message: confluent_kafka.Message) -> None:
            if error is not None:
                errors.append(str(error))
            else:
                offsets.append(message.offset() or 0)

        waiting = confluent_kafka.Producer({"bootstrap.servers": agent.bootstrap})
        waiting.produce(topic, b"waits", partition=0, on_delivery=delivered)
        waiting.flush(2)
        sealed_end = seal(agent, topic)
        eventually(lambda: flush_records(etcd) == 0)
        held_back = list(offsets)

        do_as_it_says(etcd, line(agent, "etcd_quota_almost_exhausted"))
        left = waiting.flush(60)
        assert "etcd_quota_recovered" in agent.log

        # Full before anybody looks: etcd refuses the commit, and says so by its alarm.  A few
        # large writes, each of which takes a multiple of its size: 15 s after the last look is one.
        while write(etcd, 1_000_000):
            pass
        waiting.produce(topic, b"full", partition=0, on_delivery=delivered)
        eventually(lambda: "etcd_quota_exhausted" in agent.log)
        when_full = list(offsets)
        set_config(agent, None)
        do_as_it_says(etcd, line(agent, "etcd_quota_exhausted"))
        left += waiting.flush(60)
        eventually(lambda: agent.log.count("etcd_quota_recovered") == 2)
        last = raw.produce(topic, {0: good(b"last")}, acks=-1)[0]
        sessions = metrics(agent)["driftlog_sessions_total"]

    assert [Produced(0, 0), Produced(0, 1)] == [first, warned]
    assert [Produced(NOT_ENOUGH_REPLICAS, -1)] * 2 == refused
    assert 0.85 <= said["driftlog_etcd_quota_share"] < 1
    assert (QUOTA_BYTES, 1) == (
        said["driftlog_etcd_quota_bytes"],
        said["driftlog_etcd_refusing_produce"],
    )
    assert {0: 2} == sealed_end
    assert ([], [2]) == (held_back, when_full)
    assert ([], 0, [2, 3]) == (errors, left, offsets)
    assert (Produced(0, 4), 1) == (last, sessions)
