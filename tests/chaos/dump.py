"""What etcd and the agents say at the end of a run, in files beside the logs: for who looks.

    etcd.txt             keys and values
    batches.txt          the header of each batch, as its leader serves it
    agent-N/metadata.txt who leads what, as that agent tells it
    agent-N/metrics, agent-N/readyz

Shell.
"""

import struct
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.chaos.cluster import Cluster, keys_under
from tests.clients.sockets import Raw

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_TIMEOUT_S: Final = 5.0


def dump(cluster: Cluster, folder: Path) -> None:
    """Write them; what does not answer is left out."""
    with (folder / "etcd.txt").open("w") as out:
        for key, value in keys_under(cluster.etcd, "/driftlog/"):
            out.write(f"{key} {value.decode(errors='replace')}\n")
    for agent in cluster.agents:
        for path in ("readyz", "metrics"):
            url = f"{agent.http}/{path}"
            with suppress(OSError), urllib.request.urlopen(url, timeout=_TIMEOUT_S) as said:
                (agent.folder / path).write_bytes(said.read())
        with (agent.folder / "metadata.txt").open("w") as out, suppress(KafkaException):
            _metadata(f"127.0.0.1:{agent.clients.port}", out)
    with (folder / "batches.txt").open("w") as out, suppress(KafkaException, OSError):
        _batches(cluster.bootstrap, out)


def _metadata(bootstrap: str, out: TextIO) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    for topic in admin.list_topics(timeout=_TIMEOUT_S).topics.values():
        for partition in topic.partitions.values():
            out.write(f"{topic.topic}-{partition.id} {partition.leader} {partition.error}\n")


def _batches(bootstrap: str, out: TextIO) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    told = admin.list_topics(timeout=_TIMEOUT_S)
    for topic in told.topics.values():
        for partition in topic.partitions.values():
            if partition.leader in told.brokers:
                port = told.brokers[partition.leader].port
                with Raw(port) as leader:
                    _partition(leader, str(topic.topic), partition.id, out)


def _partition(leader: Raw, topic: str, partition: int, out: TextIO) -> None:
    offset = 0
    while True:
        fetched = leader.fetch(topic, {partition: offset})[partition]
        data, at = fetched.records, 0
        while at + _HEADER.size <= len(data):
            base, size, epoch, _, _, attributes, delta, *_, pid, pepoch, sequence, count = (
                _HEADER.unpack_from(data, at)
            )
            at += 12 + size
            if at > len(data):
                break
            out.write(
                f"{topic}-{partition} [{base}, {base + delta + 1}) records {count} epoch {epoch} "
                f"attributes {attributes:#x} producer {pid}/{pepoch} sequence {sequence}\n"
            )
            offset = base + delta + 1
        if fetched.error_code or not data or offset >= fetched.high_watermark:
            return
