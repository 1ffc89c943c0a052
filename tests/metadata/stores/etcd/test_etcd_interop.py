"""What a session writes is read back by another client of etcd."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from driftlog_metadata.schema import codec, keys
from driftlog_metadata.schema.model import (
    Agent,
    AgentRelease,
    FlushRecord,
    Leader,
    Listener,
    LiveSession,
    PartitionState,
    TopicPartition,
)
from driftlog_metadata.stores.etcd.etcd_client import EtcdSettings
from driftlog_metadata.stores.etcd.etcd_store import EtcdMetadataStore
from driftlog_metadata.stores.store import KeyValue
from driftlog_metadata.transactions import session_transactions as transactions
from tests.support import etcd_server
from tests.support.clusters import CLUSTER, in_cluster

CHILD = Path(__file__).with_name("etcd3_child.py")
SESSION_ID = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
TP = TopicPartition(UUID(int=7), 3)


def read_with_etcd3(endpoint: str, prefix: str) -> list[KeyValue]:
    """All keys under *prefix*, as the package `etcd3` sees them."""
    host, _, port = endpoint.removeprefix("http://").partition(":")
    said = subprocess.run(
        [sys.executable, "-W", "ignore", CHILD, host, port, prefix],
        env={**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == said.returncode, said.stderr
    rows = map(json.loads, said.stdout.splitlines())
    return [KeyValue(**{**row, "value": base64.b64decode(row["value"])}) for row in rows]


@pytest.mark.parametrize("version", etcd_server.EACH_VERSION)
async def test_another_client_reads_what_a_session_wrote(version: str, tmp_path: Path) -> None:
    """
    Session, head, agent, flush record, leader and partition: keys, values, revisions and leases;
    and after the session's end, what is on no lease.
    """
    agent = Agent(
        node_id=5,
        session_id=SESSION_ID,
        listeners=(Listener("PLAINTEXT", "127.0.0.1", 9092),),
        http_address="127.0.0.1:8080",
        rack="a",
        started_at_ms=1_700_000_000_000,
    )
    record = FlushRecord(object_key="flush/é.flush", size_bytes=8_388_608, footer_start=8_380_000)
    claimed = transactions.Claim(
        tp=TP, leader=None, leader_revision=0, state=PartitionState(), state_revision=0
    )
    lease_id = transactions.lease_id_of(SESSION_ID)
    with etcd_server.start(version, tmp_path) as cluster:
        store = EtcdMetadataStore(EtcdSettings(endpoints=cluster.endpoints))
        await store.grant_lease(lease_id, 60_000)
        await in_cluster(store)
        revisions = []
        for txn in (
            transactions.open_session(agent, 0, CLUSTER),
            transactions.commit(SESSION_ID, 3, 1, record),
            transactions.claim(SESSION_ID, 3, [claimed], cluster=CLUSTER),
        ):
            result = await store.txn(txn.compares, txn.then, txn.otherwise)
            assert result.succeeded
            revisions.append(result.revision)
        opened, committed, led = revisions
        read = read_with_etcd3(cluster.endpoints[0], f"{keys.ROOT}/")
        await store.revoke_lease(lease_id)
        left = read_with_etcd3(cluster.endpoints[0], f"{keys.ROOT}/")
        await store.close()

    agent_key, session_key = keys.agent_key(5), keys.session_key(SESSION_ID)
    state = PartitionState(sessions=(SESSION_ID,))
    flush, head = keys.flush_key(SESSION_ID, 1), keys.head_key(SESSION_ID)
    leader = codec.encode_leader(Leader(SESSION_ID, 0))
    live = codec.encode_live_session(LiveSession(node_id=5))
    release_key = keys.release_key(SESSION_ID)
    release = codec.encode_agent_release(AgentRelease())
    mark = KeyValue(keys.CLUSTER_KEY, CLUSTER, 2, 2)
    expected = [
        KeyValue(agent_key, codec.encode_agent(agent), opened, opened, lease_id),
        mark,
        KeyValue(flush, codec.encode_flush_record(record), committed, committed),
        KeyValue(head, codec.encode_head(1), opened, committed),
        KeyValue(keys.leader_key(TP), leader, led, led),
        KeyValue(keys.partition_key(TP), codec.encode_partition_state(state), led, led),
        KeyValue(release_key, release, opened, opened, lease_id),
        KeyValue(session_key, live, opened, opened, lease_id),
    ]
    assert expected == read
    assert [kv for kv in expected if not kv.lease_id] == left
