"""Who this agent is, and whether metadata store and bucket belong together.

    metadata store      bucket's cluster.json     start?
    none                none                      yes: a new cluster
    id, no topics       none                      yes: the last start was cut off
    id, topics          none                      no: the location is not this cluster's
    none                id                        no: another metadata store is missing
    id                  the same id               yes
    id                  another id                no: two clusters on one prefix

A store that fails is asked again for a while (`patience`); every request here may be repeated.

Shell.
"""

import base64
import json
from functools import partial
from random import Random
from typing import Final
from uuid import UUID

from driftlog_agents.log.disk import AgentDisk
from driftlog_agents.log.strangers import Strangers
from driftlog_agents.patience import patiently
from driftlog_metadata.codec import decode_cluster, encode_cluster
from driftlog_metadata.errors import CorruptError, FencedError
from driftlog_metadata.keys import CLUSTER_KEY, TOPICS_PREFIX, node_id_key, parse_topic_key
from driftlog_metadata.model import FORMAT_VERSION, Cluster
from driftlog_metadata.store import CreateRevisionIs, Get, MetadataStore, Put
from driftlog_tiering import bucket_files, layout
from driftlog_tiering.object_store import AlreadyExistsError, NotFoundError, ObjectStore

_METADATA: Final = "the metadata store"


class WrongClusterError(FencedError):
    """Metadata store and bucket are not of one cluster; the message says what to do."""


async def look_first(objects: ObjectStore, location: str, *, has_metadata: bool) -> None:
    """Find out, before anything is written, whether the bucket answers and may be used.

    Raises:
        WrongClusterError: it is somebody's, and there is no metadata store to be of that cluster.
        CorruptError: whose it is cannot be read.
        StoreError: it does not answer.
    """
    in_bucket = await _read_bucket(objects, location)
    if in_bucket is not None and not has_metadata:
        raise _not_known(location, in_bucket)


async def join_cluster(
    metadata: MetadataStore, objects: ObjectStore, location: str, rng: Random
) -> Cluster:
    """The cluster that both stores belong to; makes one where neither knows any.

    Raises:
        WrongClusterError: see the table above.
        StoreError: a store does not answer.
    """
    in_bucket = await _read_bucket(objects, location)
    kv = await patiently(partial(metadata.get, CLUSTER_KEY), _METADATA)
    if kv is None and in_bucket is not None:
        raise _not_known(location, in_bucket)
    cluster = decode_cluster(kv.value if kv is not None else await _create(metadata, rng))
    if cluster.format_version > FORMAT_VERSION:
        raise WrongClusterError(
            f"the cluster's format is {cluster.format_version}, this release knows "
            f"{FORMAT_VERSION}: upgrade driftlog"
        )
    if in_bucket is None:
        _, kvs = await patiently(partial(metadata.get_prefix, TOPICS_PREFIX), _METADATA)
        if any(Strangers().is_ours(kv.key, parse_topic_key) for kv in kvs):
            raise WrongClusterError(
                f"{location} has no cluster.json, but cluster {cluster.cluster_id} has topics: "
                f"is the location right?  It must be the one that this cluster was made with"
            )
        in_bucket = await _mark_bucket(objects, location, cluster)
    if in_bucket.cluster_id != cluster.cluster_id:
        raise WrongClusterError(
            f"{location} belongs to cluster {in_bucket.cluster_id}, and this metadata store to "
            f"{cluster.cluster_id}: two clusters cannot share a prefix.  Choose another location, "
            f"or the metadata store of {in_bucket.cluster_id} (its --dir, or its --etcd)"
        )
    return cluster


def _not_known(location: str, cluster: Cluster) -> WrongClusterError:
    return WrongClusterError(
        f"{location} belongs to cluster {cluster.cluster_id}, which this metadata store does not "
        f"know.  Start with that cluster's metadata store (its --dir, or its --etcd), with a "
        f"backup of it where it is lost, or choose another location"
    )


async def _read_bucket(objects: ObjectStore, location: str) -> Cluster | None:
    try:
        found = await patiently(partial(objects.get, layout.CLUSTER_KEY), location)
        return bucket_files.decode_cluster(found)
    except NotFoundError:
        return None


async def _create(metadata: MetadataStore, rng: Random) -> bytes:
    value = encode_cluster(Cluster(_kafka_id(rng)))
    compares, then = [CreateRevisionIs(CLUSTER_KEY, 0)], [Put(CLUSTER_KEY, value)]
    result = await patiently(partial(metadata.txn, compares, then, [Get(CLUSTER_KEY)]), _METADATA)
    return value if result.succeeded else result.reads[0][0].value


async def _mark_bucket(objects: ObjectStore, location: str, cluster: Cluster) -> Cluster:
    body = [bucket_files.encode_cluster(cluster)]
    try:
        await patiently(partial(objects.create, layout.CLUSTER_KEY, body), location)
    except AlreadyExistsError:
        found = await _read_bucket(objects, location)
        assert found is not None
        return found
    return cluster


def _kafka_id(rng: Random) -> str:
    """A random id as Kafka writes them: base64url of 16 bytes without padding (Uuid#toString)."""
    raw = UUID(int=rng.getrandbits(128), version=4).bytes
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


async def node_id(metadata: MetadataStore, disk: AgentDisk, cluster: Cluster) -> int:
    """This directory's node id: kept on the disk, allocated once in the metadata store.

    Raises:
        CorruptError: the file on the disk is damaged or another cluster's.
        StoreError: a store does not answer.
    """
    stored = disk.load("node_id.json")
    if stored is not None:
        try:
            found = json.loads(stored)
            number, of = int(found["node_id"]), str(found["cluster_id"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(
                "node_id.json in the data directory is damaged: remove it to get a new node id"
            ) from error
        if of != cluster.cluster_id:
            raise WrongClusterError(
                f"the data directory belongs to cluster {of}, not to {cluster.cluster_id}: use "
                f"another --dir"
            )
        return number
    number = 1
    while True:
        key = node_id_key(number)
        # One that was taken without an answer is nobody's for ever: there are enough of them.
        result = await patiently(
            partial(metadata.txn, [CreateRevisionIs(key, 0)], [Put(key, b"{}")]), _METADATA
        )
        if result.succeeded:
            break
        number += 1
    disk.save(
        "node_id.json",
        json.dumps({"node_id": number, "cluster_id": cluster.cluster_id}).encode(),
    )
    return number
