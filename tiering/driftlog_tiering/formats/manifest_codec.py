"""Manifests and their lists as stored: JSON, so that any tool can read them.

    {"format":"driftlog.manifest","format_version":1,
     "version":7,"nonce":"5b1c","topic":"flights","topic_id":"…","partition":3,
     "end":400,"log_start":0,"leader_epochs":[[0,0],[2,310]],
     "producers":{"offset":400,"key":"topics/…/producers/….snapshot"},     or null
     "lists":[LIST, …],"segments":[SEGMENT, …],"crc32":"1c291ca3"}

    {"format":"driftlog.manifest-list","format_version":1,"level":1,
     "topic":…,"topic_id":…,"partition":3,"lists":[],"segments":[SEGMENT, …],"crc32":…}

    SEGMENT {"key":…,"kind":"parquet","base":0,"end":100,"size_bytes":…,"records":…,"raw_bytes":…,
             "min_timestamp_ms":…,"max_timestamp_ms":…,"max_timestamp_offset":…,
             "codec":"zstd","format_version":1}
    LIST    {"key":…,"level":1,"base":0,"end":100,"segments":500,"size_bytes":…,"records":…,
             "raw_bytes":…,"min_timestamp_ms":…,"max_timestamp_ms":…}

Ranges are half-open; timestamps are epoch milliseconds, −1 where there is none; leader epochs are
``[epoch, first offset]``.  Keys are relative to the bucket's prefix.

Pure.
"""

from operator import attrgetter
from typing import Any, Final
from uuid import UUID

from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.batches.batch import Buffer
from driftlog_tiering.formats.layout import SegmentKind, is_topic_name
from driftlog_tiering.formats.manifest import (
    LeaderEpoch,
    Manifest,
    ProducerSnapshotRef,
    SegmentList,
    SegmentListRef,
    SegmentRef,
    entries_problem,
    problem,
)
from driftlog_tiering.formats.stored_json import (
    array,
    decode_json,
    encode_json,
    integer,
    members,
    string,
)

MANIFEST_FORMAT: Final = 1
_MANIFEST: Final = "driftlog.manifest"
_LIST: Final = "driftlog.manifest-list"

_SEGMENT_FIELDS: Final = (
    *("key", "kind", "base", "end", "size_bytes", "records", "raw_bytes"),
    *("min_timestamp_ms", "max_timestamp_ms", "max_timestamp_offset", "codec", "format_version"),
)
_LIST_FIELDS: Final = (
    *("key", "level", "base", "end", "segments", "size_bytes", "records", "raw_bytes"),
    *("min_timestamp_ms", "max_timestamp_ms"),
)
_segment_values: Final = attrgetter(*_SEGMENT_FIELDS)
_list_values: Final = attrgetter(*_LIST_FIELDS)


class CorruptManifestError(CorruptError):
    """A manifest, or a list that belongs to one, is damaged or of a newer format."""


def encode_manifest(manifest: Manifest) -> bytes:
    """The stored bytes of a manifest."""
    producers = manifest.producers
    return encode_json(
        _MANIFEST,
        MANIFEST_FORMAT,
        {
            "version": manifest.version,
            "nonce": manifest.nonce,
            "topic": manifest.topic,
            "topic_id": str(manifest.tp.topic_id),
            "partition": manifest.tp.partition,
            "end": manifest.end,
            "log_start": manifest.log_start,
            "leader_epochs": [[e.epoch, e.start_offset] for e in manifest.leader_epochs],
            "producers": producers and {"offset": producers.offset, "key": producers.key},
            "lists": [_list_fields(ref) for ref in manifest.lists],
            "segments": [_segment_fields(ref) for ref in manifest.segments],
        },
    )


def decode_manifest(body: Buffer) -> Manifest:
    """Invert :func:`encode_manifest`.

    Raises:
        CorruptManifestError: damaged, of a newer format, or contradicting itself.
    """
    try:
        fields = decode_json(_MANIFEST, MANIFEST_FORMAT, body)
        topic, tp = _topic_partition(fields)
        manifest = Manifest(
            version=integer(fields, "version", 1),
            nonce=string(fields, "nonce"),
            topic=topic,
            tp=tp,
            end=integer(fields, "end"),
            log_start=integer(fields, "log_start"),
            leader_epochs=tuple(_leader_epoch(e) for e in array(fields, "leader_epochs")),
            producers=_producers(fields.get("producers")),
            lists=tuple(_list_ref(e) for e in array(fields, "lists")),
            segments=tuple(_segment_ref(e) for e in array(fields, "segments")),
        )
        broken = problem(manifest)
    except ValueError as error:
        raise CorruptManifestError(f"manifest: {error}") from error
    if broken is not None:
        raise CorruptManifestError(f"manifest: {broken}")
    return manifest


def encode_segment_list(topic: str, tp: TopicPartition, content: SegmentList) -> bytes:
    """The stored bytes of a list."""
    return encode_json(
        _LIST,
        MANIFEST_FORMAT,
        {
            "level": content.level,
            "topic": topic,
            "topic_id": str(tp.topic_id),
            "partition": tp.partition,
            "lists": [_list_fields(ref) for ref in content.lists],
            "segments": [_segment_fields(ref) for ref in content.segments],
        },
    )


def decode_segment_list(body: Buffer, ref: SegmentListRef) -> SegmentList:
    """Invert :func:`encode_segment_list` for the list that *ref* names.

    Raises:
        CorruptManifestError: damaged, of a newer format, or not the list that *ref* describes.
    """
    try:
        fields = decode_json(_LIST, MANIFEST_FORMAT, body)
        content = SegmentList(
            integer(fields, "level", 1),
            segments=tuple(_segment_ref(e) for e in array(fields, "segments")),
            lists=tuple(_list_ref(e) for e in array(fields, "lists")),
        )
    except ValueError as error:
        raise CorruptManifestError(f"{ref.key}: {error}") from error
    entries: tuple[SegmentRef | SegmentListRef, ...] = (*content.lists, *content.segments)
    broken = entries_problem(entries, ref.end)
    if broken is not None:
        raise CorruptManifestError(f"{ref.key}: {broken}")
    levels = {below.level for below in content.lists} | ({0} if content.segments else set())
    if content.level != ref.level or levels != {ref.level - 1} or entries[0].base != ref.base:
        raise CorruptManifestError(f"{ref.key}: not the list that its reference describes")
    return content


def _segment_fields(ref: SegmentRef) -> dict[str, Any]:
    return dict(zip(_SEGMENT_FIELDS, _segment_values(ref), strict=True))


def _list_fields(ref: SegmentListRef) -> dict[str, Any]:
    return dict(zip(_LIST_FIELDS, _list_values(ref), strict=True))


def _topic_partition(fields: dict[str, Any]) -> tuple[str, TopicPartition]:
    topic = string(fields, "topic")
    if not is_topic_name(topic):
        raise ValueError(f"not a topic name: {topic!r}")
    return topic, TopicPartition(UUID(string(fields, "topic_id")), integer(fields, "partition"))


def _leader_epoch(value: object) -> LeaderEpoch:
    match value:
        case [int(epoch), int(start_offset)] if epoch >= 0 <= start_offset:
            return LeaderEpoch(epoch, start_offset)
        case _:
            raise ValueError(f"not a leader epoch: {value!r}")


def _producers(value: object) -> ProducerSnapshotRef | None:
    if value is None:
        return None
    fields = members(value, "producers")
    return ProducerSnapshotRef(integer(fields, "offset"), string(fields, "key"))


def _segment_ref(value: object) -> SegmentRef:
    fields = members(value, "a segment")
    return SegmentRef(
        key=string(fields, "key"),
        kind=SegmentKind(string(fields, "kind")),
        base=integer(fields, "base"),
        end=integer(fields, "end"),
        size_bytes=integer(fields, "size_bytes"),
        records=integer(fields, "records"),
        raw_bytes=integer(fields, "raw_bytes"),
        min_timestamp_ms=integer(fields, "min_timestamp_ms", -(2**63)),
        max_timestamp_ms=integer(fields, "max_timestamp_ms", -(2**63)),
        max_timestamp_offset=integer(fields, "max_timestamp_offset", -1),
        codec=string(fields, "codec"),
        format_version=integer(fields, "format_version", 1),
    )


def _list_ref(value: object) -> SegmentListRef:
    fields = members(value, "a list")
    return SegmentListRef(
        key=string(fields, "key"),
        level=integer(fields, "level", 1),
        base=integer(fields, "base"),
        end=integer(fields, "end"),
        segments=integer(fields, "segments"),
        size_bytes=integer(fields, "size_bytes"),
        records=integer(fields, "records"),
        raw_bytes=integer(fields, "raw_bytes"),
        min_timestamp_ms=integer(fields, "min_timestamp_ms", -(2**63)),
        max_timestamp_ms=integer(fields, "max_timestamp_ms", -(2**63)),
    )
