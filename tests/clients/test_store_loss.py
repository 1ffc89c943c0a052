"""Running agents stop and say so when etcd comes back empty, or as it was a minute ago."""

import asyncio
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from driftlog_agents.health.metadata_store_monitor import MetadataStoreMonitor
from driftlog_agents.log.garbage.collector import Collector
from driftlog_agents.log.garbage.deletions import ConfirmedStores
from driftlog_agents.log.garbage.unreferenced_objects import HOUR_MS
from driftlog_agents.log.local.posix_disk import PosixDisk
from driftlog_metadata.schema.keys import CLUSTER_KEY
from driftlog_metadata.stores.errors import FencedError, StoreNotOursError
from driftlog_metadata.stores.etcd.etcd_client import EtcdSettings
from driftlog_metadata.stores.etcd.etcd_store import EtcdMetadataStore
from driftlog_metadata.witness.witness import StoreWitness
from driftlog_metadata.witness.witnessed_store import WitnessedStore
from driftlog_tiering.stores.directory_store import DirectoryObjectStore
from driftlog_tiering.stores.object_store import Listing
from tests.clients.conftest import make_topic
from tests.clients.test_etcd_agents import Agents, Told
from tests.support import etcd_server
from tests.support.driftlog_process import DriftlogProcess
from tests.support.etcd_server import EtcdCluster

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("etcd_agents")]

Loss = Callable[[Path, Path], None]


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    """One member, which syncs what it answers: it is killed, and what it answered is there."""
    folder = tmp_path / "etcd"
    folder.mkdir()
    version = etcd_server.newest_version()
    with etcd_server.start(version, folder, members=1, durable=True) as cluster:
        yield cluster


def emptied(data: Path, backup: Path) -> None:
    """A new etcd under the same addresses."""
    shutil.rmtree(data)


def restored(data: Path, backup: Path) -> None:
    """The files of a while ago."""
    shutil.rmtree(data)
    shutil.copytree(backup, data)


@pytest.mark.parametrize("loss", [emptied, restored])
def test_an_agent_does_not_go_on_with_an_etcd_that_lost_what_it_has_seen(
    etcd: EtcdCluster, tmp_path: Path, loss: Loss
) -> None:
    """
    It says so in /readyz, in the log and as a metric; nothing is acknowledged, no record's offset
    is used again, and nothing is deleted, also when a collector looks for 13 hours.
    """
    (member,) = etcd.members
    data, backup = tmp_path / "etcd" / "m0", tmp_path / "backup"
    with Agents(etcd, tmp_path, 1) as (agent,):
        agent.start()
        topic = make_topic(agent)
        assert {(0, b"before"): 0} == _told(agent, topic, b"before")
        member.kill()
        shutil.copytree(data, backup)
        member.start()
        etcd.wait_until_healthy()
        assert {(0, b"after"): 1} == _told(agent, topic, b"after")
        for _ in range(5):  # leases that end raise the revision of the store that is put back
            make_topic(agent)
        witness = asyncio.run(_witness(etcd))
        objects = _objects(tmp_path)

        member.kill()
        loss(data, backup)
        member.start()
        etcd.wait_until_healthy()

        assert "metadata store" in _not_ready(agent)
        assert {} == _told(agent, topic, b"not acknowledged", seconds=5)
        _wait_for_log(agent, "metadata_store_")
        with urllib.request.urlopen(f"{agent.http}/metrics", timeout=60) as answer:
            assert b"driftlog_metadata_store_distrusted 1.0" in answer.read()
        asyncio.run(_look_for_hours(etcd, tmp_path, witness))
        assert objects == _objects(tmp_path)


@pytest.mark.parametrize(("bump", "agents"), [(1_000, 1), (1_000_000_000, 2)])
def test_idle_agents_do_not_go_on_with_an_etcd_that_was_restored_with_bump_revision(
    etcd: EtcdCluster, tmp_path: Path, bump: int, agents: int
) -> None:
    """
    Restored by etcdutl, as etcd's manual advises: the revisions go on, and so do the cluster's id
    and the leases.  After a small bump its head tells the agent that committed after the snapshot;
    after the advised one the leap tells both agents, of which one at least has committed nothing.
    """
    (member,) = etcd.members
    member.etcdutl()  # or a skip
    snapshot = tmp_path / "snapshot.db"
    with Agents(etcd, tmp_path, agents) as running:
        for agent in running:
            agent.start()
        topic = make_topic(running[0])
        assert {(0, b"before"): 0} == _told(running[0], topic, b"before")
        member.snapshot(snapshot)
        assert {(0, b"after"): 1} == _told(running[0], topic, b"after")
        objects = _objects(tmp_path)

        member.kill()
        member.restore(snapshot, bump)
        member.start()
        etcd.wait_until_healthy()

        for agent in running:
            assert "metadata store" in _not_ready(agent)
            _wait_for_log(agent, "metadata_store_went_back")
        assert {} == _told(running[0], topic, b"not acknowledged", seconds=5)
        assert objects <= _objects(tmp_path)


def _told(
    agent: DriftlogProcess, topic: str, value: bytes, seconds: float = 100
) -> dict[tuple[int, bytes], int]:
    told = Told([agent], **{"message.timeout.ms": int(seconds * 1000)})
    told.send(topic, value)
    told.flush_for(seconds + 5)
    return told.offsets


def _objects(folder: Path) -> set[str]:
    return {str(path) for path in (folder / "objects" / "flush").rglob("*.flush")}


def _wait_for_log(agent: DriftlogProcess, event: str) -> None:
    """It is said by another task than what /readyz answers."""
    deadline = time.monotonic() + 60
    while event not in agent.log:
        assert time.monotonic() < deadline, agent.log
        time.sleep(0.05)


def _not_ready(agent: DriftlogProcess) -> str:
    """What /readyz says once it is sure."""
    said = ""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{agent.http}/readyz", timeout=30) as answer:
                said = answer.read().decode()
        except urllib.error.HTTPError as error:
            said = error.read().decode()
            if "restart every agent" in said:
                return said
        time.sleep(0.1)
    return said


async def _witness(etcd: EtcdCluster) -> StoreWitness:
    """Of a process that has just read something."""
    store = EtcdMetadataStore(EtcdSettings(endpoints=etcd.endpoints))
    revision, (kv,) = await store.get_prefix(CLUSTER_KEY)
    await store.close()
    witness = StoreWitness(lambda: time.monotonic() * 1000, kv.value)
    witness.saw(revision)
    return witness


class _Later:
    """The same bucket, hours later."""

    def __init__(self, behind: DirectoryObjectStore) -> None:
        self._behind = behind
        self.hours = 0.0

    def __getattr__(self, name: str) -> object:
        return getattr(self._behind, name)

    async def list(self, prefix: str, **options: object) -> AsyncIterator[Listing]:
        async for page in self._behind.list(prefix):
            yield Listing(page.objects, page.store_now_ms + int(self.hours * HOUR_MS))


async def _look_for_hours(etcd: EtcdCluster, folder: Path, witness: StoreWitness) -> None:
    """As the collector of an agent that has not found out yet."""
    store = WitnessedStore(EtcdMetadataStore(EtcdSettings(endpoints=etcd.endpoints)), witness)
    later = _Later(DirectoryObjectStore(folder / "objects"))
    disk = PosixDisk(folder / "collector")
    collector = Collector(
        stores=ConfirmedStores(
            store,
            later,  # type: ignore[arg-type]
            MetadataStoreMonitor(store).confirm,
        ),
        disk=disk,
        offload=asyncio.to_thread,
    )
    for quarter in range(53):
        later.hours = quarter / 4
        with pytest.raises((FencedError, StoreNotOursError)):
            await collector.collect()
    assert 0 == collector.deleted_objects
    disk.close()
    await store.close()
