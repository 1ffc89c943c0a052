"""Who this agent is, and whether metadata store and bucket belong together.

    metadata store      bucket's cluster.json     start?
    none                none                      yes: a new cluster
    id, no node id      none                      yes: the first start was cut off
    id, node ids        none                      no: the location is not this cluster's
    none                id                        no: another metadata store is missing
    id                  the same id               yes
    id                  another id                no: two clusters on one prefix

Node ids are given out behind the mark in the bucket.  Who finds a cluster without one waits for a
moment: agents that start together, each with a place of its own, are to find that out, and who
made the cluster is about to mark its bucket.

A store that fails is asked again for a while (`patience`); every request here may be repeated.

Shell.
"""

import asyncio
import base64
import json
from functools import partial
from random import Random
from typing import Final
from uuid import UUID

import structlog

from driftlog_agents.log.disk import AgentDisk
from driftlog_agents.log.strangers import Strangers
from driftlog_agents.patience import patiently
from driftlog_metadata.codec import decode_agent, decode_cluster, encode_cluster
from driftlog_metadata.errors import CorruptError, FencedError, UnavailableError
from driftlog_metadata.keys import (
    CLUSTER_KEY,
    NODE_IDS_PREFIX,
    TOPICS_PREFIX,
    agent_key,
    node_id_key,
    parse_node_id_key,
    parse_topic_key,
    session_key,
)
from driftlog_metadata.model import FORMAT_VERSION, Cluster
from driftlog_metadata.store import CreateRevisionIs, Get, MetadataStore, Put
from driftlog_tiering import bucket_files, layout
from driftlog_tiering.object_store import AlreadyExistsError, NotFoundError, ObjectStore

_METADATA: Final = "the metadata store"

_COPY_S: Final = 20.0
"""More than a session lasts by default whose agent has ended."""

_LOOK_S: Final = 0.5

_MARKED_S: Final = 5.0
"""How long who made a cluster may take to mark its bucket, before others take it for gone."""


class WrongClusterError(FencedError):
    """Metadata store, bucket and data directory do not belong together, or the directory is a copy
    of one that is in use; the message says what to do."""


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
    value, made = (kv.value, False) if kv is not None else await _create(metadata, rng)
    cluster = decode_cluster(value)
    if cluster.format_version > FORMAT_VERSION:
        raise WrongClusterError(
            f"the cluster's format is {cluster.format_version}, this release knows "
            f"{FORMAT_VERSION}: upgrade driftlog"
        )
    if in_bucket is None and not made:
        in_bucket = await _marked_by_another(metadata, objects, location)
    if in_bucket is None:
        if await _has_agents(metadata):
            raise WrongClusterError(
                f"{location} has no cluster.json, but cluster {cluster.cluster_id} has had agents: "
                f"is the location right?  All of them need the one that this cluster was made "
                f"with: give each the same --store"
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


async def _has_agents(metadata: MetadataStore) -> bool:
    """Whether there are node ids or topics: somebody has a bucket with this cluster's mark."""
    for prefix, parse in ((NODE_IDS_PREFIX, parse_node_id_key), (TOPICS_PREFIX, parse_topic_key)):
        _, kvs = await patiently(partial(metadata.get_prefix, prefix), _METADATA)
        strangers = Strangers()
        if any(strangers.is_ours(kv.key, parse) for kv in kvs):
            return True
    return False


async def _marked_by_another(
    metadata: MetadataStore, objects: ObjectStore, location: str
) -> Cluster | None:
    """The mark that somebody else puts there who starts as well; None: nobody did."""
    until = asyncio.get_running_loop().time() + _MARKED_S
    while True:
        has_agents = await _has_agents(metadata)
        found = await _read_bucket(objects, location)
        if found is not None or has_agents or asyncio.get_running_loop().time() >= until:
            return found
        await asyncio.sleep(_LOOK_S)


async def _create(metadata: MetadataStore, rng: Random) -> tuple[bytes, bool]:
    """The cluster's value, and whether it was made here, as far as is known."""
    value = encode_cluster(Cluster(_kafka_id(rng)))
    compares, then = [CreateRevisionIs(CLUSTER_KEY, 0)], [Put(CLUSTER_KEY, value)]
    result = await patiently(partial(metadata.txn, compares, then, [Get(CLUSTER_KEY)]), _METADATA)
    found = value if result.succeeded else result.reads[0][0].value
    return found, found == value


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


async def node_id(
    metadata: MetadataStore, disk: AgentDisk, cluster: Cluster, session_ms: float = 0.0
) -> int:
    """This directory's node id: kept on the disk, allocated once in the metadata store.

    *session_ms*: how long a session lives whose agent has ended.

    Raises:
        CorruptError: the file on the disk is damaged.
        WrongClusterError: it is another cluster's, or an agent on a copy of the directory lives.
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
                f"the data directory belongs to cluster {of}, and the metadata store to "
                f"{cluster.cluster_id}: start it with the --etcd and the --store that it had "
                f"before, or as another agent with an empty --dir"
            )
        await _wait_until_alone(metadata, disk, number, max(_COPY_S, session_ms / 1000 + 5))
        return number
    _, kvs = await patiently(partial(metadata.get_prefix, NODE_IDS_PREFIX), _METADATA)
    strangers = Strangers()
    taken = {strangers.parsed(kv.key, parse_node_id_key) for kv in kvs}
    number = 1
    while True:
        while number in taken:
            number += 1
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


async def _wait_until_alone(
    metadata: MetadataStore, disk: AgentDisk, number: int, longest_s: float
) -> None:
    """Two agents of one node id would each hide the other: its partitions, its address."""
    found = await patiently(partial(metadata.get, agent_key(number)), _METADATA)
    if found is None:
        return
    try:
        session_id = decode_agent(found.value).session_id
        if session_id in disk.sessions():
            return  # it was on this disk, which is locked: it is over
    except (CorruptError, UnavailableError):
        return  # sessions deal with both
    clock = asyncio.get_running_loop().time
    until_s, told = clock() + longest_s, False
    while await patiently(partial(metadata.get, session_key(session_id)), _METADATA) is not None:
        if clock() >= until_s:
            raise WrongClusterError(
                f"an agent with this data directory's node id, {number}, is running elsewhere: "
                "was the directory copied? Start with an empty --dir, or with this one after that "
                "agent has ended"
            )
        if not told:
            told = True
            structlog.get_logger().warning(
                "node_id_in_use",
                node_id=number,
                advice=f"waits up to {longest_s:g} s until that agent's session is over",
            )
        await asyncio.sleep(_LOOK_S)
