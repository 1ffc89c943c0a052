"""The bucket's small files: the cluster's identity, a topic's versions, the marks of a deleted one
and of a bulk import.

    {"format":"driftlog.cluster","format_version":2,"cluster_id":"…","release":"…",
     "grace_ms":43200000,"crc32":"…"}          since a restore also "restored_from":["…"]
    {"format":"driftlog.topic","format_version":1,"version":2,"name":"flights","topic_id":"…",
     "partitions":3,"replication_factor":1,"configs":{"retention.ms":"1000"},"crc32":"…"}
    {"format":"driftlog.deleted-topic","format_version":1,"name":"flights","topic_id":"…",
     "deleted_at_ms":1700000000000,"crc32":"…"}
    {"format":"driftlog.import","format_version":1,"name":"flights","topic_id":"…","crc32":"…"}
    {"format":"driftlog.producer-ids","format_version":1,"first_producer_id":5000,"size":1000,
     "node_id":1,"session_id":"…","crc32":"…"}
    {"format":"driftlog.final-head","format_version":1,"session_id":"…","head":7,"revision":4711,
     "crc32":"…"}

They repeat values of the metadata store, so that a bucket alone can be read and restored.
The first one has the level that its cluster was made with, and the first release that knows it
(none at level 1).  A level that is raised later stands in the metadata store, and then in the next
cluster file.
Agents do not read the last one: its name says what they need (`session/producer_id_blocks`).
Topic files of the first releases have no replication factor: it was 1.  Cluster files of the first
releases have no grace: it is 12 h (`schema/grace`).
`formats/layout` has their keys, `formats/stored_json` the envelope.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from driftlog_metadata.schema.grace import DEFAULT_GRACE_MS, MIN_GRACE_MS, Grace
from driftlog_metadata.schema.model import FORMAT_VERSION, RELEASES, Cluster, ProducerIdBlock, Topic
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.formats.layout import is_topic_name
from driftlog_tiering.formats.stored_json import (
    array,
    decode_json,
    encode_json,
    integer,
    members,
    string,
    unedited,
)
from driftlog_tiering.foundation.types import Buffer

FILES_FORMAT: Final = 1
_ANY_LEVEL: Final = 2**31 - 1
_CLUSTER: Final = "driftlog.cluster"
_TOPIC: Final = "driftlog.topic"
_DELETED: Final = "driftlog.deleted-topic"
_IMPORT: Final = "driftlog.import"
_PRODUCER_IDS: Final = "driftlog.producer-ids"
_FINAL_HEAD: Final = "driftlog.final-head"

MAX_PARTITIONS: Final = 2**31 - 1
MAX_REPLICATION_FACTOR: Final = 2**15 - 1


class CorruptFileError(CorruptError):
    """A small file of the bucket is damaged, or of a newer format."""


@dataclass(frozen=True, slots=True)
class TopicFile:
    """One version of a topic's file; versions count from 1, the largest is valid."""

    version: int
    topic: Topic


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """The topic is deleted: its objects are deleted next, and its name is free."""

    name: str
    topic_id: UUID
    deleted_at_ms: int


@dataclass(frozen=True, slots=True)
class FinalHead:
    """The last flush that a session committed, 0: none; the session is over.

    ``revision``: of the metadata store, at which that was so; a store that is behind it is older.
    """

    session_id: str
    head: int
    revision: int


def encode_cluster(
    cluster: Cluster, grace: Grace | None = None, restored_from: Sequence[str] = ()
) -> bytes:
    """The stored bytes of a cluster's file; its format version is the cluster's.

    *restored_from*: the ids of the clusters that the bucket had before, oldest first.
    """
    level = cluster.format_version
    release = {"release": cluster.needs_release or RELEASES[level - 1]} if level > 1 else {}
    grace_ms = DEFAULT_GRACE_MS if grace is None else grace.ms
    fields: dict[str, Any] = {"cluster_id": cluster.cluster_id, "grace_ms": grace_ms, **release}
    if restored_from:
        fields["restored_from"] = list(restored_from)
    return encode_json(_CLUSTER, level, fields)


def decode_cluster(body: Buffer) -> Cluster:
    """Invert :func:`encode_cluster`; an operator may have restored the file with an editor.

    A level that this release does not know is decoded: the agent that joins refuses it.

    Raises:
        CorruptFileError: damaged.
    """
    try:
        fields = _cluster_fields(body)
        level = integer(fields, "format_version", 1)
        needs = string(fields, "release") if level > FORMAT_VERSION else None
        return Cluster(string(fields, "cluster_id"), level, needs)
    except ValueError as error:
        raise CorruptFileError(f"cluster.json: {error}") from error


def decode_grace(body: Buffer) -> Grace:
    """The grace that ``cluster.json`` states.

    Raises:
        CorruptFileError: damaged, or of a newer format.
    """
    try:
        fields = {"grace_ms": DEFAULT_GRACE_MS} | _cluster_fields(body)
        return Grace(integer(fields, "grace_ms", MIN_GRACE_MS))
    except ValueError as error:
        raise CorruptFileError(f"cluster.json: {error}") from error


def with_grace(body: Buffer, grace: Grace) -> bytes:
    """The cluster's file *body* with another grace; everything else in it stays.

    Raises:
        CorruptFileError: damaged.
    """
    return _with(body, None, {"grace_ms": grace.ms})


def with_level(body: Buffer, level: int) -> bytes:
    """The cluster's file *body* with a level that was raised; everything else in it stays.

    Raises:
        CorruptFileError: damaged.
    """
    return _with(body, level, {"release": RELEASES[level - 1]})


def _with(body: Buffer, level: int | None, changed: dict[str, Any]) -> bytes:
    try:
        fields = _cluster_fields(body)
        there = integer(fields, "format_version", 1)
    except ValueError as error:
        raise CorruptFileError(f"cluster.json: {error}") from error
    kept = {k: v for k, v in fields.items() if k not in ("format", "format_version", "crc32")}
    return encode_json(_CLUSTER, level or there, kept | changed)


def decode_restored_from(body: Buffer) -> tuple[str, ...]:
    """The ids of the clusters that the bucket had before, oldest first.

    Raises:
        CorruptFileError: damaged, or of a newer format.
    """
    try:
        ids = array({"restored_from": []} | _cluster_fields(body), "restored_from")
    except ValueError as error:
        raise CorruptFileError(f"cluster.json: {error}") from error
    if not all(type(one) is str for one in ids):
        raise CorruptFileError(f"cluster.json: restored_from is {ids!r}")
    return tuple(ids)


def _cluster_fields(body: Buffer) -> dict[str, Any]:
    try:
        return decode_json(_CLUSTER, _ANY_LEVEL, body)
    except ValueError:
        return decode_json(_CLUSTER, _ANY_LEVEL, unedited(body))


def encode_topic(file: TopicFile) -> bytes:
    """The stored bytes of a version of a topic's file."""
    return encode_json(
        _TOPIC,
        FILES_FORMAT,
        {
            "version": file.version,
            "name": file.topic.name,
            "topic_id": str(file.topic.topic_id),
            "partitions": file.topic.partitions,
            "replication_factor": file.topic.replication_factor,
            "configs": dict(file.topic.configs),
        },
    )


def decode_topic(body: Buffer) -> TopicFile:
    """Invert :func:`encode_topic`.

    Raises:
        CorruptFileError: damaged, or of a newer format.
    """
    try:
        fields = decode_json(_TOPIC, FILES_FORMAT, body)
        configs = members(fields.get("configs"), "configs")
        partitions = integer(fields, "partitions", 1)
        if partitions > MAX_PARTITIONS:
            raise ValueError(f"it has {partitions} partitions")
        replicas = integer({"replication_factor": 1} | fields, "replication_factor", 1)
        if replicas > MAX_REPLICATION_FACTOR:
            raise ValueError(f"it has a replication factor of {replicas}")
        return TopicFile(
            integer(fields, "version", 1),
            Topic(
                name=_topic_name(string(fields, "name")),
                topic_id=UUID(string(fields, "topic_id")),
                partitions=partitions,
                replication_factor=replicas,
                configs={name: string(configs, name) for name in configs},
            ),
        )
    except ValueError as error:
        raise CorruptFileError(f"topic file: {error}") from error


def encode_deleted(deleted: DeletedTopic) -> bytes:
    """The stored bytes of ``deleted.json``."""
    return encode_json(
        _DELETED,
        FILES_FORMAT,
        {
            "name": deleted.name,
            "topic_id": str(deleted.topic_id),
            "deleted_at_ms": deleted.deleted_at_ms,
        },
    )


def encode_import(topic: Topic) -> bytes:
    """The stored bytes of ``import.json``, whose key says what readers need."""
    return encode_json(_IMPORT, FILES_FORMAT, {"name": topic.name, "topic_id": str(topic.topic_id)})


def _topic_name(name: str) -> str:
    if not is_topic_name(name):
        raise ValueError(f"not a topic name: {name!r}")
    return name


def encode_producer_ids(block: ProducerIdBlock, session_id: str) -> bytes:
    """The stored bytes of the mark that *session_id* received *block*."""
    return encode_json(
        _PRODUCER_IDS,
        FILES_FORMAT,
        {
            "first_producer_id": block.first_producer_id,
            "size": block.size,
            "node_id": block.node_id,
            "session_id": session_id,
        },
    )


def encode_final_head(final: FinalHead) -> bytes:
    """The stored bytes of a session's final head."""
    fields = {"session_id": final.session_id, "head": final.head, "revision": final.revision}
    return encode_json(_FINAL_HEAD, FILES_FORMAT, fields)


def decode_final_head(body: Buffer) -> FinalHead:
    """Invert :func:`encode_final_head`.

    Raises:
        CorruptFileError: damaged, or of a newer format.
    """
    try:
        fields = decode_json(_FINAL_HEAD, FILES_FORMAT, body)
        return FinalHead(
            string(fields, "session_id"), integer(fields, "head"), integer(fields, "revision")
        )
    except ValueError as error:
        raise CorruptFileError(f"final head: {error}") from error
