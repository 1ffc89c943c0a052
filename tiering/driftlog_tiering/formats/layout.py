"""The layout of the bucket: the key of every object, and nothing else.

    cluster.json                                                               the cluster's id
    cluster/{number:020d}.json                                                 … since a restore
    flush/{session_id}/{seq:020d}-{nonce}.flush                                a flush object
    flush/{session_id}/{seq:020d}.{level}.{index}-{nonce}.flush                … of other flushes
    flush/{session_id}/final-{head:020d}.json                                  its last flush
    audit/{topic}/{topic_id}/{partition:05d}-{leader_epoch:010d}.json          an accepted loss
    producer-ids/{first:020d}.json                                             ids were given out
    groups/{cluster_id}/{countdown:020d}.json                                  groups, at a revision
    topics/{topic}/{topic_id}/topic/{version:020d}.json                        name, configs, …
    topics/{topic}/{topic_id}/topic/deleted.json                               the topic is deleted
    topics/{topic}/{topic_id}/topic/import.json                                an import began it
    {partition}/manifest/{countdown:020d}.json                                 one version each
    {partition}/manifest-lists/{version:020d}-{level}-{base:020d}-{end:020d}-{nonce}.json
    {partition}/producers/{offset:020d}-{nonce}.snapshot                       producer snapshot
    {partition}/{base:020d}-{end:020d}-{nonce}.parquet | .raw                  a sealed segment

where ``{partition}`` is ``topics/{topic}/{topic_id}/{partition:05d}``.  Keys are relative to the
store's prefix.  Topic ids are canonical lower-case UUIDs; topics have names that Kafka allows
(``org.apache.kafka.common.internals.Topic``), so they need no escape.

``countdown`` is 10^20 − 1 − version: the newest manifest is the first key of its prefix, and a
``LIST`` of one key finds it.

``manifest-lists`` is an addition to design.md, which names the lists and no place for them.
The version is that of the manifest that first refers to the list: with the edit's nonce it makes
the name unique for each attempt to commit, and the content of the list a function of the name.
``audit`` and ``producer-ids`` are additions, too: driftlog never deletes objects under them.

A key format is a stored format: add a version, never edit one in place.

Pure.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from driftlog_metadata.schema.model import TopicPartition

CLUSTER_KEY: Final = "cluster.json"
CLUSTER_PREFIX: Final = "cluster/"
GROUPS_PREFIX: Final = "groups/"
FLUSH_PREFIX: Final = "flush/"
TOPICS_PREFIX: Final = "topics/"
AUDIT_PREFIX: Final = "audit/"
PRODUCER_IDS_PREFIX: Final = "producer-ids/"
LISTS_FOLDER: Final = "/manifest-lists/"
"""In the keys of segment lists, and in no other key."""

MAX_VERSION: Final = 10**20 - 1
"""Largest version of a manifest: a larger one has a negative countdown."""

MAX_TOPIC_CHARS: Final = 249
"""``Topic.MAX_NAME_LENGTH``: a name and its partition fit a file name of 255 bytes."""

_TOPIC: Final = r"(?P<topic>[a-zA-Z0-9._-]{1,249})"
_TOPIC_ID: Final = r"(?P<topic_id>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
_PARTITION: Final = rf"topics/{_TOPIC}/{_TOPIC_ID}/(?P<partition>[0-9]{{5,10}})"
_NONCE: Final = r"(?P<nonce>[0-9A-Za-z]{1,64})"
_RANGE: Final = r"(?P<base>[0-9]{20})-(?P<end>[0-9]{20})"

_TOPIC_RE: Final = re.compile(_TOPIC, re.ASCII)
_SESSION_RE: Final = re.compile(r"[0-9A-Za-z_-]{1,64}", re.ASCII)
_NONCE_RE: Final = re.compile(_NONCE, re.ASCII)
_FLUSH_KEY_RE: Final = re.compile(
    rf"flush/(?P<session_id>[0-9A-Za-z_-]{{1,64}})/(?P<seq>[0-9]{{20}})"
    rf"(?:\.(?P<level>[1-9][0-9]{{0,9}})\.(?P<index>0|[1-9][0-9]{{0,9}}))?-{_NONCE}\.flush",
    re.ASCII,
)
_FINAL_HEAD_KEY_RE: Final = re.compile(
    r"flush/(?P<session_id>[0-9A-Za-z_-]{1,64})/final-(?P<head>[0-9]{20})\.json", re.ASCII
)
_TOPIC_KEY_RE: Final = re.compile(
    rf"topics/{_TOPIC}/{_TOPIC_ID}/topic/(?P<version>[0-9]{{20}})\.json", re.ASCII
)
_DELETED_KEY_RE: Final = re.compile(rf"topics/{_TOPIC}/{_TOPIC_ID}/topic/deleted\.json", re.ASCII)
_IMPORT_KEY_RE: Final = re.compile(rf"topics/{_TOPIC}/{_TOPIC_ID}/topic/import\.json", re.ASCII)
_MANIFEST_KEY_RE: Final = re.compile(
    rf"{_PARTITION}/manifest/(?P<countdown>[0-9]{{20}})\.json", re.ASCII
)
_SEGMENT_LIST_KEY_RE: Final = re.compile(
    rf"{_PARTITION}/manifest-lists/"
    rf"(?P<version>[0-9]{{20}})-(?P<level>[1-9][0-9]?)-{_RANGE}-{_NONCE}\.json",
    re.ASCII,
)
_SNAPSHOT_KEY_RE: Final = re.compile(
    rf"{_PARTITION}/producers/(?P<offset>[0-9]{{20}})-{_NONCE}\.snapshot", re.ASCII
)
_SEGMENT_KEY_RE: Final = re.compile(
    rf"{_PARTITION}/{_RANGE}-{_NONCE}\.(?P<kind>parquet|raw)", re.ASCII
)

_AUDIT_KEY_RE: Final = re.compile(
    rf"audit/{_TOPIC}/{_TOPIC_ID}/(?P<partition>[0-9]{{5,10}})-(?P<epoch>[0-9]{{10}})\.json",
    re.ASCII,
)

_PRODUCER_IDS_KEY_RE: Final = re.compile(r"producer-ids/(?P<first>[0-9]{20})\.json", re.ASCII)


_CLUSTER_FILE_RE: Final = re.compile(r"cluster/(?P<number>[0-9]{20})\.json", re.ASCII)

_GROUPS_KEY_RE: Final = re.compile(
    r"groups/(?P<cluster_id>[0-9A-Za-z_-]{1,64})/(?P<countdown>[0-9]{20})\.json", re.ASCII
)


class SegmentKind(StrEnum):
    """The format of a segment, and its key's suffix."""

    PARQUET = "parquet"
    RAW = "raw"
    """Record batches verbatim, as received: they could not be decoded."""


# ── Parsed keys ──


@dataclass(frozen=True, slots=True)
class ClusterKey:
    """``cluster.json`` (number 0), or the file of a restore or a change of grace; the largest
    number is valid."""

    number: int = 0


@dataclass(frozen=True, slots=True)
class FlushObjectKey:
    """Key of a flush object."""

    session_id: str
    seq: int
    nonce: str
    level: int = 0
    index: int = 0


@dataclass(frozen=True, slots=True)
class FinalHeadKey:
    """Key of the last flush that an ended session has committed."""

    session_id: str
    head: int


@dataclass(frozen=True, slots=True)
class TopicKey:
    """One version of a topic's file."""

    topic: str
    topic_id: UUID
    version: int


@dataclass(frozen=True, slots=True)
class DeletedKey:
    """The mark of a deleted topic."""

    topic: str
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class ImportKey:
    """The mark of a topic that a bulk import began: while there is no version of its file, it is no
    topic."""

    topic: str
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class AuditKey:
    """The record of a loss that an operator accepted, and that the leader of an epoch carried
    out."""

    topic: str
    tp: TopicPartition
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ProducerIdsKey:
    """The mark that a block of producer ids was given out."""

    first_producer_id: int


@dataclass(frozen=True, slots=True)
class GroupSnapshotKey:
    """The groups of a cluster, as its metadata store had them at a revision."""

    cluster_id: str
    revision: int


@dataclass(frozen=True, slots=True)
class ManifestKey:
    """Key of one manifest version."""

    topic: str
    tp: TopicPartition
    version: int


@dataclass(frozen=True, slots=True)
class SegmentListKey:
    """An immutable list of older segments (level 1), or of such lists (one level more)."""

    topic: str
    tp: TopicPartition
    version: int
    level: int
    base: int
    end: int
    nonce: str


@dataclass(frozen=True, slots=True)
class ProducerSnapshotKey:
    """The state of a partition's producers at exactly *offset*."""

    topic: str
    tp: TopicPartition
    offset: int
    nonce: str


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """A sealed segment of offsets ``[base, end)``."""

    topic: str
    tp: TopicPartition
    base: int
    end: int
    nonce: str
    kind: SegmentKind


Key = (
    ClusterKey
    | FlushObjectKey
    | FinalHeadKey
    | TopicKey
    | DeletedKey
    | ImportKey
    | AuditKey
    | ProducerIdsKey
    | GroupSnapshotKey
    | ManifestKey
    | SegmentListKey
    | ProducerSnapshotKey
    | SegmentKey
)


def is_of_agent(key: Key) -> bool:
    """Whether an agent wrote this sealed object: a bulk import writes one manifest version of a
    partition, and no producer snapshot."""
    match key:
        case ManifestKey():
            return key.version > 1
        case ProducerSnapshotKey():
            return True
        case _:
            return False


# ── Prefixes ──


def session_prefix(session_id: str) -> str:
    """Prefix of a session's flush objects."""
    assert _SESSION_RE.fullmatch(session_id), f"not a session id: {session_id!r}"
    return f"{FLUSH_PREFIX}{session_id}/"


def topic_name_prefix(topic: str) -> str:
    """Prefix of everything of every topic, live or deleted, that has or had this name."""
    assert is_topic_name(topic), f"not a topic name: {topic!r}"
    return f"{TOPICS_PREFIX}{topic}/"


def topic_prefix(topic: str, topic_id: UUID) -> str:
    """Prefix of everything of one topic."""
    return f"{topic_name_prefix(topic)}{topic_id}/"


def topic_file_prefix(topic: str, topic_id: UUID) -> str:
    """Prefix of a topic's files: its versions in ascending order, then the marks."""
    return f"{topic_prefix(topic, topic_id)}topic/"


def partition_prefix(topic: str, tp: TopicPartition) -> str:
    """Prefix of everything of one partition."""
    assert 0 <= tp.partition < 2**31
    return f"{topic_prefix(topic, tp.topic_id)}{tp.partition:05d}/"


def manifest_prefix(topic: str, tp: TopicPartition) -> str:
    """Prefix of a partition's manifests; the newest is the first key under it."""
    return f"{partition_prefix(topic, tp)}manifest/"


def audit_topic_prefix(topic: str, topic_id: UUID) -> str:
    """Prefix of the records of the losses that were accepted in one topic."""
    assert is_topic_name(topic), f"not a topic name: {topic!r}"
    return f"{AUDIT_PREFIX}{topic}/{topic_id}/"


def is_topic_name(topic: str) -> bool:
    """Whether Kafka allows the name (``Topic.validate``)."""
    return topic not in (".", "..") and _TOPIC_RE.fullmatch(topic) is not None


# ── Keys ──


def flush_key(session_id: str, seq: int, nonce: str, level: int = 0, index: int = 0) -> str:
    """Key of a flush object; *nonce* is new for every attempt to put it.

    *level* ≥ 1: of a rewrite, as in its record's key (from the cluster's format level 2 on)."""
    place = f".{level}.{index}" if level else ""
    return f"{session_prefix(session_id)}{_twenty(seq)}{place}-{_checked(nonce)}.flush"


def final_head_key(session_id: str, head: int) -> str:
    """Key of the final head of a session; it sorts behind the session's flush objects."""
    return f"{session_prefix(session_id)}final-{_twenty(head)}.json"


def topic_key(topic: str, topic_id: UUID, version: int) -> str:
    """Key of a version of the topic's file."""
    return f"{topic_file_prefix(topic, topic_id)}{_twenty(version)}.json"


def deleted_key(topic: str, topic_id: UUID) -> str:
    """Key of the mark that the topic is deleted."""
    return f"{topic_file_prefix(topic, topic_id)}deleted.json"


def import_key(topic: str, topic_id: UUID) -> str:
    """Key of the mark that a bulk import began the topic."""
    return f"{topic_file_prefix(topic, topic_id)}import.json"


def audit_key(topic: str, tp: TopicPartition, leader_epoch: int) -> str:
    """Key of the record of a loss that was accepted by the leader of *leader_epoch*."""
    assert is_topic_name(topic), f"not a topic name: {topic!r}"
    assert 0 <= leader_epoch < 2**31
    return f"{AUDIT_PREFIX}{topic}/{tp.topic_id}/{tp.partition:05d}-{leader_epoch:010d}.json"


def producer_ids_key(first_producer_id: int) -> str:
    """Key of the mark that the block which begins at *first_producer_id* was given out."""
    return f"{PRODUCER_IDS_PREFIX}{_twenty(first_producer_id)}.json"


def cluster_key(number: int) -> str:
    """Key of the cluster's file: 0 as it was made, then one for each restore or change of grace,
    created once."""
    return f"{CLUSTER_PREFIX}{_twenty(number)}.json" if number else CLUSTER_KEY


def groups_prefix(cluster_id: str) -> str:
    """Prefix of a cluster's group snapshots; the newest is the first key under it."""
    assert _SESSION_RE.fullmatch(cluster_id), f"not a cluster id: {cluster_id!r}"
    return f"{GROUPS_PREFIX}{cluster_id}/"


def group_snapshot_key(cluster_id: str, revision: int) -> str:
    """Key of the groups as the metadata store had them at *revision*."""
    return f"{groups_prefix(cluster_id)}{_twenty(MAX_VERSION - revision)}.json"


def manifest_key(topic: str, tp: TopicPartition, version: int) -> str:
    """Key of a manifest version."""
    return f"{manifest_prefix(topic, tp)}{_twenty(MAX_VERSION - version)}.json"


def segment_list_key(
    topic: str, tp: TopicPartition, version: int, level: int, base: int, end: int, nonce: str
) -> str:
    """Key of a list of segments (level 1) or of lists, first named by manifest *version*."""
    assert 1 <= level < 100
    return (
        f"{partition_prefix(topic, tp)}manifest-lists/"
        f"{_twenty(version)}-{level}-{_twenty(base)}-{_twenty(end)}-{_checked(nonce)}.json"
    )


def producer_snapshot_key(topic: str, tp: TopicPartition, offset: int, nonce: str) -> str:
    """Key of the producer snapshot at exactly *offset*."""
    return f"{partition_prefix(topic, tp)}producers/{_twenty(offset)}-{_checked(nonce)}.snapshot"


def segment_key(
    topic: str,
    tp: TopicPartition,
    base: int,
    end: int,
    nonce: str,
    kind: SegmentKind = SegmentKind.PARQUET,
) -> str:
    """Key of the segment of offsets ``[base, end)``; *nonce* is new for every attempt."""
    assert base < end
    return f"{partition_prefix(topic, tp)}{_twenty(base)}-{_twenty(end)}-{_checked(nonce)}.{kind}"


# ── Back ──


def parse_flush_key(key: str) -> FlushObjectKey:
    """Invert :func:`flush_key`.

    Raises:
        ValueError: *key* is not a flush object's.

    """
    match = _match(_FLUSH_KEY_RE, key, "a flush object")
    level, index = int(match["level"] or 0), int(match["index"] or 0)
    return FlushObjectKey(match["session_id"], int(match["seq"]), match["nonce"], level, index)


def parse_final_head_key(key: str) -> FinalHeadKey:
    """Invert :func:`final_head_key`.

    Raises:
        ValueError: *key* is not a final head's.

    """
    match = _match(_FINAL_HEAD_KEY_RE, key, "a final head")
    return FinalHeadKey(match["session_id"], int(match["head"]))


def parse_topic_key(key: str) -> TopicKey:
    """Invert :func:`topic_key`.

    Raises:
        ValueError: *key* is not a topic file's.

    """
    match = _match(_TOPIC_KEY_RE, key, "a topic's file")
    return TopicKey(match["topic"], UUID(match["topic_id"]), int(match["version"]))


def parse_deleted_key(key: str) -> DeletedKey:
    """Invert :func:`deleted_key`.

    Raises:
        ValueError: *key* is not such a mark's.

    """
    match = _match(_DELETED_KEY_RE, key, "a deleted topic's mark")
    return DeletedKey(match["topic"], UUID(match["topic_id"]))


def parse_import_key(key: str) -> ImportKey:
    """Invert :func:`import_key`.

    Raises:
        ValueError: *key* is not such a mark's.

    """
    match = _match(_IMPORT_KEY_RE, key, "a bulk import's mark")
    return ImportKey(match["topic"], UUID(match["topic_id"]))


def parse_audit_key(key: str) -> AuditKey:
    """Invert :func:`audit_key`.

    Raises:
        ValueError: *key* is not such a record's.

    """
    match = _match(_AUDIT_KEY_RE, key, "a loss that was accepted")
    return AuditKey(match["topic"], _tp(match), int(match["epoch"]))


def parse_producer_ids_key(key: str) -> ProducerIdsKey:
    """Invert :func:`producer_ids_key`.

    Raises:
        ValueError: *key* is not such a mark's.

    """
    match = _match(_PRODUCER_IDS_KEY_RE, key, "a block of producer ids")
    return ProducerIdsKey(int(match["first"]))


def parse_cluster_key(key: str) -> ClusterKey:
    """Invert :func:`cluster_key`, for numbers above 0.

    Raises:
        ValueError: *key* is no such file's.

    """
    match = _match(_CLUSTER_FILE_RE, key, "a cluster's file")
    return ClusterKey(int(match["number"]))


def parse_group_snapshot_key(key: str) -> GroupSnapshotKey:
    """Invert :func:`group_snapshot_key`.

    Raises:
        ValueError: *key* is not a group snapshot's.

    """
    match = _match(_GROUPS_KEY_RE, key, "a snapshot of groups")
    return GroupSnapshotKey(match["cluster_id"], MAX_VERSION - int(match["countdown"]))


def parse_manifest_key(key: str) -> ManifestKey:
    """Invert :func:`manifest_key`.

    Raises:
        ValueError: *key* is not a manifest's.

    """
    match = _match(_MANIFEST_KEY_RE, key, "a manifest")
    return ManifestKey(match["topic"], _tp(match), MAX_VERSION - int(match["countdown"]))


def parse_segment_list_key(key: str) -> SegmentListKey:
    """Invert :func:`segment_list_key`.

    Raises:
        ValueError: *key* is not a segment list's.

    """
    match = _match(_SEGMENT_LIST_KEY_RE, key, "a segment list")
    return SegmentListKey(
        match["topic"],
        _tp(match),
        int(match["version"]),
        int(match["level"]),
        int(match["base"]),
        int(match["end"]),
        match["nonce"],
    )


def parse_producer_snapshot_key(key: str) -> ProducerSnapshotKey:
    """Invert :func:`producer_snapshot_key`.

    Raises:
        ValueError: *key* is not a producer snapshot's.

    """
    match = _match(_SNAPSHOT_KEY_RE, key, "a producer snapshot")
    return ProducerSnapshotKey(match["topic"], _tp(match), int(match["offset"]), match["nonce"])


def parse_segment_key(key: str) -> SegmentKey:
    """Invert :func:`segment_key`.

    Raises:
        ValueError: *key* is not a segment's.

    """
    match = _match(_SEGMENT_KEY_RE, key, "a segment")
    base, end = int(match["base"]), int(match["end"])
    if base >= end:
        raise ValueError(f"not the key of a segment, its range is empty: {key!r}")
    return SegmentKey(
        match["topic"], _tp(match), base, end, match["nonce"], SegmentKind(match["kind"])
    )


def parse_key(key: str) -> Key:
    """Parse any key of the bucket, for the collector and for listings.

    Raises:
        ValueError: no object of driftlog has such a key.

    """
    if key == CLUSTER_KEY:
        return ClusterKey()
    if key.startswith(FLUSH_PREFIX):
        return parse_final_head_key(key) if "/final-" in key else parse_flush_key(key)
    if key.startswith(AUDIT_PREFIX):
        return parse_audit_key(key)
    if key.startswith(PRODUCER_IDS_PREFIX):
        return parse_producer_ids_key(key)
    if key.startswith(CLUSTER_PREFIX):
        return parse_cluster_key(key)
    if key.startswith(GROUPS_PREFIX):
        return parse_group_snapshot_key(key)
    if key.endswith(".snapshot"):
        return parse_producer_snapshot_key(key)
    if key.endswith("/topic/deleted.json"):
        return parse_deleted_key(key)
    if key.endswith("/topic/import.json"):
        return parse_import_key(key)
    match key.rsplit("/", 2)[-2:]:
        case ["topic", _]:
            return parse_topic_key(key)
        case ["manifest", _]:
            return parse_manifest_key(key)
        case ["manifest-lists", _]:
            return parse_segment_list_key(key)
        case _:
            return parse_segment_key(key)


def _match(pattern: re.Pattern[str], key: str, what: str) -> re.Match[str]:
    match = pattern.fullmatch(key)
    if match is None or match.groupdict().get("topic") in (".", ".."):
        raise ValueError(f"not the key of {what}: {key!r}")
    return match


def _tp(match: re.Match[str]) -> TopicPartition:
    partition = int(match["partition"])
    if match["partition"] != f"{partition:05d}" or partition >= 2**31:
        raise ValueError(f"not a partition: {match['partition']!r} in {match.string!r}")
    return TopicPartition(UUID(match["topic_id"]), partition)


def _twenty(number: int) -> str:
    assert 0 <= number <= MAX_VERSION
    return f"{number:020d}"


def _checked(nonce: str) -> str:
    assert _NONCE_RE.fullmatch(nonce), f"not a nonce: {nonce!r}"
    return nonce
