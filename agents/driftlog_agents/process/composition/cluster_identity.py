"""The identity of an agent, and whether metadata store and bucket belong together.

    metadata store      bucket's cluster.json     start?
    none                none, and no objects      yes: a new cluster
    id, no node id      none, and no objects      yes: the first start was interrupted
    none; or no node id none, and objects         no: a cluster may have lost its mark
    id, node ids        none                      no: the location is not this cluster's
    none                id                        no: the cluster has another metadata store
    id                  the same id               yes
    id                  another id                no: two clusters on one prefix
    id, old revision    the same id, newer ones   no: the store is an old backup

Node ids are allocated after the bucket has its mark.  An agent that finds a cluster without a mark
waits for a moment: the agent that made the cluster may be about to mark its bucket.  So agents that
start together, each with a location of its own, detect that.

A request to a store that fails is retried for a while (`foundation/start_retry`); every request
here may be repeated.

Shell.
"""

import asyncio
import json
from contextlib import suppress
from functools import partial
from random import Random, SystemRandom
from typing import Final, Protocol

import structlog

from driftlog_agents.cluster.newer_objects import newer_final_head, newer_group_snapshot
from driftlog_agents.foundation.start_retry import patiently
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.objects.bucket_probe import PROBES_PREFIX
from driftlog_agents.log.recovery.flush_object_ends import READS_AT_ONCE, do_all
from driftlog_agents.log.session.unknown_keys import UnknownKeys, head_of
from driftlog_metadata.schema.codec import (
    decode_agent,
    decode_cluster,
    decode_node_id_use,
    encode_cluster,
    encode_node_id_use,
)
from driftlog_metadata.schema.grace import DEFAULT_GRACE_MS, Grace
from driftlog_metadata.schema.keys import (
    CLUSTER_KEY,
    HEADS_PREFIX,
    NODE_IDS_PREFIX,
    TOPICS_PREFIX,
    agent_key,
    node_id_key,
    parse_node_id_key,
    parse_topic_key,
    session_key,
)
from driftlog_metadata.schema.model import (
    ALL_ROLES,
    FORMAT_VERSION,
    ROLES_LEVEL,
    Cluster,
    NodeIdUse,
    Role,
)
from driftlog_metadata.schema.random_ids import kafka_text, random_uuid
from driftlog_metadata.stores.errors import CorruptError, FencedError, UnavailableError
from driftlog_metadata.stores.store import CreateRevisionIs, Get, MetadataStore, ModRevisionIs, Put
from driftlog_tiering.formats import bucket_files, layout
from driftlog_tiering.formats.cluster_files import newest_cluster_file
from driftlog_tiering.stores.object_store import AlreadyExistsError, NotFoundError, ObjectStore

_METADATA: Final = "the metadata store"

_COPY_S: Final = 20.0
"""Longer than a session lasts, by default, after its agent has ended."""

_LOOK_S: Final = 0.5

_MARKED_S: Final = 5.0
"""How long the agent that made a cluster may take to mark its bucket, before others continue."""


class WrongClusterError(FencedError):
    """Metadata store, bucket and data directory do not belong together, or the directory is a copy
    of one that is in use; the message says what to do."""


class Identity(Protocol):
    """The identity of an agent."""

    async def join(
        self, metadata: MetadataStore, unknown_keys: UnknownKeys
    ) -> tuple[Cluster, int, Grace]:
        """The cluster that the stores belong to, this agent's node id, and the cluster's grace.

        *unknown_keys*: the foreign keys that this agent has logged.

        Raises:
            WrongClusterError, CorruptError, StoreError: the agent cannot start.
        """
        ...


class ClusterIdentity:
    """The identity that the stores and the directory give; see the module.

    Args:
        location: of the objects, for messages.
        session_ms: how long a session lives after its agent has ended.
        grace: of a cluster that this agent makes.
    """

    def __init__(
        self,
        *,
        objects: ObjectStore,
        disk: AgentDisk,
        location: str,
        session_ms: float,
        rng: Random,
        grace: Grace | None = None,
    ) -> None:
        self._objects = objects
        self._disk = disk
        self._location = location
        self._session_ms = session_ms
        self._rng = rng
        self._grace = grace

    async def join(
        self, metadata: MetadataStore, unknown_keys: UnknownKeys
    ) -> tuple[Cluster, int, Grace]:
        cluster = await join_cluster(
            metadata, self._objects, self._location, self._rng, unknown_keys, self._grace
        )
        await self._check_not_older(metadata, cluster.cluster_id, unknown_keys)
        number = await node_id(
            metadata, self._disk, cluster, self._session_ms, self._rng, unknown_keys
        )
        _, body = await patiently(partial(newest_cluster_file, self._objects), self._location)
        found = bucket_files.decode_grace(body)
        if self._grace is not None and self._grace.ms not in (DEFAULT_GRACE_MS, found.ms):
            structlog.get_logger().warning(
                "new_cluster_grace_ignored",
                grace_ms=found.ms,
                option_ms=self._grace.ms,
                advice="the cluster exists, and keeps its grace: leave --new-cluster-grace-ms out. "
                "driftlog cluster grace --set changes the grace while no agent runs",
            )
        return cluster, number, found

    async def _check_not_older(
        self, metadata: MetadataStore, cluster_id: str, unknown_keys: UnknownKeys
    ) -> None:
        """Raises WrongClusterError: the bucket has newer objects than the metadata store."""
        objects, location = self._objects, self._location
        wrong = await patiently(
            partial(newer_group_snapshot, objects, metadata, cluster_id), location
        )
        if wrong:
            raise WrongClusterError(wrong)
        _, heads = await patiently(
            partial(metadata.get_prefix, HEADS_PREFIX, keys_only=True), _METADATA
        )
        limit = asyncio.Semaphore(READS_AT_ONCE)

        async def check(session_id: str) -> None:
            async with limit:
                with suppress(CorruptError):  # a damaged object is no evidence
                    found = await patiently(
                        partial(newer_final_head, objects, metadata, session_id), location
                    )
                    if found:
                        raise WrongClusterError(found)

        ids = [unknown_keys.parsed(kv.key, head_of) for kv in heads]
        await do_all(check(session_id) for session_id in ids if session_id is not None)


async def look_first(objects: ObjectStore, location: str, *, has_metadata: bool) -> None:
    """Check, before anything is written, that the bucket answers and may be used.

    Raises:
        WrongClusterError: the bucket has a mark, or objects, and no metadata store is given.
        CorruptError: the bucket's mark cannot be read.
        StoreError: the bucket does not answer.
    """
    in_bucket = await _read_bucket(objects, location)
    if has_metadata:
        return
    if in_bucket is not None:
        raise _not_known(location, in_bucket)
    await _check_empty(objects, location)


def check_level(cluster: Cluster) -> None:
    """Check that this release knows the cluster's format level.

    Raises:
        WrongClusterError: it does not.
    """
    if cluster.format_version > FORMAT_VERSION:
        raise WrongClusterError(
            f"the cluster's format level is {cluster.format_version}, and this release of driftlog "
            f"knows levels up to {FORMAT_VERSION}: the level needs release "
            f"{cluster.needs_release} or later, so upgrade driftlog on this machine"
        )


def check_roles_known(cluster: Cluster, roles: frozenset[Role]) -> None:
    """Check that every agent of the cluster understands an agent with *roles*.

    Raises:
        WrongClusterError: an older release may be there, which would take it for one that serves.
    """
    if roles != ALL_ROLES and cluster.format_version < ROLES_LEVEL:
        raise WrongClusterError(
            f"--roles {','.join(role for role in Role if role in roles)}: agents with one role "
            f"need format level {ROLES_LEVEL}, and the cluster has {cluster.format_version}.  "
            "Upgrade all agents, run driftlog cluster upgrade --finalize, and start this one "
            "again; or start it without --roles"
        )


async def join_cluster(
    metadata: MetadataStore,
    objects: ObjectStore,
    location: str,
    rng: Random,
    unknown_keys: UnknownKeys | None = None,
    grace: Grace | None = None,
) -> Cluster:
    """The cluster of both stores; makes one, with *grace*, when neither has any.

    *unknown_keys*: the foreign keys that this agent has logged.

    Raises:
        WrongClusterError: see the table above.
        StoreError: a store does not answer.
    """
    unknown_keys = unknown_keys or UnknownKeys()
    in_bucket = await _read_bucket(objects, location)
    kv = await patiently(partial(metadata.get, CLUSTER_KEY), _METADATA)
    if kv is None and in_bucket is not None:
        raise _not_known(location, in_bucket)
    if kv is None:
        await _check_empty(objects, location)
    value, made = (kv.value, False) if kv is not None else await _create(metadata, rng)
    cluster = decode_cluster(value)
    check_level(cluster)
    if in_bucket is None and not made:
        in_bucket = await _marked_by_another(metadata, objects, location, unknown_keys)
    if in_bucket is None:
        if await _has_agents(metadata, unknown_keys):
            raise WrongClusterError(
                f"{location} has no cluster.json, but cluster {cluster.cluster_id} has had "
                "agents: check the location.  All agents of a cluster need the same --store.  If "
                "the location is right, and its cluster.json is lost, restore it; if the "
                "cluster's grace was not 12 h, run `driftlog cluster grace --set MS` before an "
                "agent starts.  Restore cluster.json with exactly this in it: "
                f"{bucket_files.encode_cluster(cluster).decode().strip()}"
            )
        if not made:
            await _check_empty(objects, location)
        in_bucket = await _mark_bucket(objects, location, cluster, grace)
    if in_bucket.cluster_id != cluster.cluster_id:
        raise WrongClusterError(
            f"{location} belongs to cluster {in_bucket.cluster_id}, and this metadata store to "
            f"{cluster.cluster_id}: two clusters cannot share a prefix, or `driftlog restore` made "
            f"the first one of the second.  Choose another location, or the metadata store of "
            f"{in_bucket.cluster_id} (its --dir, or its --etcd)"
        )
    return cluster


def _not_known(location: str, cluster: Cluster) -> WrongClusterError:
    return WrongClusterError(
        f"{location} belongs to cluster {cluster.cluster_id}, which this metadata store does not "
        "know.  Start with that cluster's metadata store (its --dir, or its --etcd), or choose "
        "another location.  If that store is lost, `driftlog restore` brings the cluster back from "
        "the bucket"
    )


async def _check_empty(objects: ObjectStore, location: str) -> None:
    """Refuse to make a cluster where there are objects: they may be the rest of another one."""
    found = await patiently(partial(_first_object, objects), location)
    if found is None or await _read_bucket(objects, location) is not None:
        return  # another agent that starts now has marked it
    raise WrongClusterError(
        f"{location} has no cluster.json, but has objects (such as {found!r}), which may be those "
        "of a cluster that lost its cluster.json: the agent creates no cluster there.  If they "
        "are, start with that cluster's metadata store (its --dir, or its --etcd): the refusal "
        "of that start says what to put into cluster.json.  If not, choose an empty location"
    )


async def _first_object(objects: ObjectStore) -> str | None:
    """A key that is neither a folder marker nor an agent's probe; None: there is none."""
    async for page in objects.list(""):
        for info in page.objects:
            is_marker = not info.size_bytes and (not info.key or info.key.endswith("/"))
            if not is_marker and not info.key.startswith(PROBES_PREFIX):
                return info.key
    return None


async def _read_bucket(objects: ObjectStore, location: str) -> Cluster | None:
    try:
        _, found = await patiently(partial(newest_cluster_file, objects), location)
        return bucket_files.decode_cluster(found)
    except NotFoundError:
        return None


async def _has_agents(metadata: MetadataStore, unknown_keys: UnknownKeys) -> bool:
    """Whether there are node ids or topics: then some bucket has this cluster's mark."""
    for prefix, parse in ((NODE_IDS_PREFIX, parse_node_id_key), (TOPICS_PREFIX, parse_topic_key)):
        _, kvs = await patiently(partial(metadata.get_prefix, prefix), _METADATA)
        if any(unknown_keys.is_ours(kv.key, parse) for kv in kvs):
            return True
    return False


async def _marked_by_another(
    metadata: MetadataStore, objects: ObjectStore, location: str, unknown_keys: UnknownKeys
) -> Cluster | None:
    """The mark that another agent, which starts as well, writes; None: it wrote none in time."""
    until = asyncio.get_running_loop().time() + _MARKED_S
    while True:
        has_agents = await _has_agents(metadata, unknown_keys)
        found = await _read_bucket(objects, location)
        if found is not None or has_agents or asyncio.get_running_loop().time() >= until:
            return found
        await asyncio.sleep(_LOOK_S)


async def _create(metadata: MetadataStore, rng: Random) -> tuple[bytes, bool]:
    """The cluster's value, and whether this agent made it, as far as it knows."""
    value = encode_cluster(Cluster(kafka_text(random_uuid(rng))))
    compares, then = [CreateRevisionIs(CLUSTER_KEY, 0)], [Put(CLUSTER_KEY, value)]
    result = await patiently(partial(metadata.txn, compares, then, [Get(CLUSTER_KEY)]), _METADATA)
    found = value if result.succeeded else result.reads[0][0].value
    return found, found == value


async def _mark_bucket(
    objects: ObjectStore, location: str, cluster: Cluster, grace: Grace | None
) -> Cluster:
    body = [bucket_files.encode_cluster(cluster, grace)]
    try:
        await patiently(partial(objects.create, layout.CLUSTER_KEY, body), location)
    except AlreadyExistsError:
        return await patiently(partial(_read_mark, objects), location)
    return cluster


async def _read_mark(objects: ObjectStore) -> Cluster:
    """The mark, which exists; where a node of the store does not find it yet, this is retried."""
    try:
        return bucket_files.decode_cluster(await objects.get(layout.CLUSTER_KEY))
    except NotFoundError as error:
        raise UnavailableError(
            f"{layout.CLUSTER_KEY} exists, but a read does not find it"
        ) from error


async def node_id(
    metadata: MetadataStore,
    disk: AgentDisk,
    cluster: Cluster,
    session_ms: float = 0.0,
    rng: Random | None = None,
    unknown_keys: UnknownKeys | None = None,
) -> int:
    """This directory's node id: kept on the disk, allocated in the metadata store.

    An id without a live agent for a week may be given to another directory (`node_ids`).

    *session_ms*: how long a session lives after its agent has ended.  *rng*: makes the id of the
    directory.  *unknown_keys*: as `join_cluster`.

    Raises:
        CorruptError: the file on the disk is damaged.
        WrongClusterError: it is another cluster's, or an agent on a copy of the directory runs.
        StoreError: a store does not answer.
    """
    stored = disk.load("node_id.json")
    directory = f"{(rng or SystemRandom()).getrandbits(128):032x}"
    if stored is not None:
        try:
            found = json.loads(stored)
            number, of = int(found["node_id"]), str(found["cluster_id"])
            known = None if found.get("directory") is None else str(found["directory"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptError(
                "node_id.json in the data directory is damaged: remove it to get a new node id"
            ) from error
        if of != cluster.cluster_id:
            raise WrongClusterError(
                f"the data directory belongs to cluster {of}, and the metadata store to "
                f"{cluster.cluster_id}: start it with the --etcd and the --store that it had "
                f"before, or as another agent with an empty --dir"
            )
        if await _is_ours(metadata, number, known):
            await _wait_until_alone(metadata, disk, number, max(_COPY_S, session_ms / 1000 + 5))
            return number
        structlog.get_logger().warning(
            "node_id_given_up",
            node_id=number,
            advice="no agent of this directory ran for a week, or its metadata store is an "
            "older one, so another agent may have the id: this agent gets a new one",
        )
        directory = known or directory
    _, kvs = await patiently(partial(metadata.get_prefix, NODE_IDS_PREFIX), _METADATA)
    unknown_keys = unknown_keys or UnknownKeys()
    taken = {unknown_keys.parsed(kv.key, parse_node_id_key) for kv in kvs}
    number = 1
    while True:
        while number in taken:
            number += 1
        key = node_id_key(number)
        # An id whose allocation got no answer stays unused for a week: there are enough ids.
        put = Put(key, encode_node_id_use(NodeIdUse(directory)))
        result = await patiently(
            partial(metadata.txn, [CreateRevisionIs(key, 0)], [put]), _METADATA
        )
        if result.succeeded:
            break
        number += 1
    kept = {"node_id": number, "cluster_id": cluster.cluster_id, "directory": directory}
    await disk.save("node_id.json", json.dumps(kept).encode())
    return number


async def _is_ours(metadata: MetadataStore, number: int, directory: str | None) -> bool:
    """Whether the node id is still this directory's; if so, its key names it, without a mark.

    The mark of an unused id is removed before the agent's session begins: so the id is not deleted
    meanwhile.
    """
    key = node_id_key(number)
    while True:
        kv = await patiently(partial(metadata.get, key), _METADATA)
        if kv is None:
            return False
        try:
            use = decode_node_id_use(kv.value)
        except CorruptError:
            return True  # unreadable, but it exists: no agent takes it
        if use.directory not in (None, directory):
            return False
        if use == NodeIdUse(directory):
            return True
        compares = [ModRevisionIs(key, kv.mod_revision)]
        put = Put(key, encode_node_id_use(NodeIdUse(directory)))
        result = await patiently(partial(metadata.txn, compares, [put]), _METADATA)
        if result.succeeded:
            return True


async def _wait_until_alone(
    metadata: MetadataStore, disk: AgentDisk, number: int, longest_s: float
) -> None:
    """Wait until no session has the node id: two agents would hide each other's partitions."""
    found = await patiently(partial(metadata.get, agent_key(number)), _METADATA)
    if found is None:
        return
    try:
        session_id = decode_agent(found.value).session_id
        if session_id in disk.sessions():
            return  # it was on this disk, which is locked: it has ended
    except (CorruptError, UnavailableError):
        return  # sessions handle both
    clock = asyncio.get_running_loop().time
    until_s, told = clock() + longest_s, False
    while await patiently(partial(metadata.get, session_key(session_id)), _METADATA) is not None:
        if clock() >= until_s:
            raise WrongClusterError(
                f"an agent with this data directory's node id, {number}, is running "
                "elsewhere, perhaps on a copy of it: start with an empty --dir, or with "
                "this one after that agent has ended"
            )
        if not told:
            told = True
            structlog.get_logger().warning(
                "node_id_in_use",
                node_id=number,
                advice=f"waits up to {longest_s:g} s until that agent's session is over",
            )
        await asyncio.sleep(_LOOK_S)
