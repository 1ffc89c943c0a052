"""Manifests and their lists as stored: JSON, so that any tool can read them.

    {"format":"driftlog.manifest","format_version":2,
     "version":7,"nonce":"5b1c","topic":"flights","topic_id":"…","partition":3,
     "end":400,"log_start":0,"leader_epochs":[[0,0],[2,310]],
     "producers":{"offset":400,"key":"topics/…/producers/….snapshot"},     or null
     "lists":[LIST, …],"segments":[SEGMENT, …],
     "cluster_id":"…","cleaned_end":310,"busy":{"by":"…","until_ms":…},"crc32":"1c291ca3"}

    {"format":"driftlog.manifest-list","format_version":2,"level":1,
     "topic":…,"topic_id":…,"partition":3,"lists":[],"segments":[SEGMENT, …],"crc32":…}

    SEGMENT {"key":…,"kind":"parquet","base":0,"end":100,"size_bytes":…,"records":…,"raw_bytes":…,
             "min_timestamp_ms":…,"max_timestamp_ms":…,"max_timestamp_offset":…,
             "codec":"zstd","format_version":1,"received_bytes":…,"horizons":[[90,…],[100,…]],
             "merges":1,"footer_crc":…}
    LIST    {"key":…,"level":1,"base":0,"end":100,"segments":500,"size_bytes":…,"records":…,
             "raw_bytes":…,"min_timestamp_ms":…,"max_timestamp_ms":…,"received_bytes":…}

Ranges are half-open; timestamps are epoch milliseconds, −1 where there is none; leader epochs are
``[epoch, first offset]``, horizons ``[end offset, ms]``.  ``busy`` may be null.  Keys are relative
to the bucket's prefix.  Format 1 has no ``cluster_id``, ``cleaned_end``, ``busy``,
``received_bytes``, ``horizons``, ``merges`` and ``footer_crc``.  A segment without ``merges`` has
none; the CRC of a footer without ``footer_crc`` is not known.

Pure.
"""

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.formats.layout import SegmentKind, is_topic_name
from driftlog_tiering.formats.manifest import (
    AS_RAW,
    MANIFEST_FORMAT,
    Busy,
    LeaderEpoch,
    Manifest,
    ProducerSnapshotRef,
    SegmentList,
    SegmentListRef,
    SegmentRef,
    TombstoneHorizon,
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
from driftlog_tiering.foundation.types import Buffer

_MANIFEST: Final = "driftlog.manifest"
_LIST: Final = "driftlog.manifest-list"
_SEGMENTS: Final = "driftlog.segments"

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
    """The stored bytes of a manifest, in its format."""
    producers, busy, format_version = manifest.producers, manifest.busy, manifest.format_version
    second = {
        "cluster_id": manifest.cluster_id,
        "cleaned_end": manifest.cleaned_end,
        "busy": busy and {"by": busy.by, "until_ms": busy.until_ms},
    }
    return encode_json(
        _MANIFEST,
        format_version,
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
            "lists": [_list_fields(ref, format_version) for ref in manifest.lists],
            "segments": [_segment_fields(ref, format_version) for ref in manifest.segments],
            **(second if format_version > 1 else {}),
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
        format_version = integer(fields, "format_version")
        second = format_version > 1
        manifest = Manifest(
            version=integer(fields, "version", 1),
            nonce=string(fields, "nonce"),
            topic=topic,
            tp=tp,
            end=integer(fields, "end"),
            log_start=integer(fields, "log_start"),
            leader_epochs=tuple(_leader_epoch(e) for e in array(fields, "leader_epochs")),
            producers=_producers(fields.get("producers")),
            lists=tuple(_list_ref(e, format_version) for e in array(fields, "lists")),
            segments=tuple(_segment_ref(e, format_version) for e in array(fields, "segments")),
            format_version=format_version,
            cluster_id=string(fields, "cluster_id") if second else None,
            cleaned_end=integer(fields, "cleaned_end") if second else 0,
            busy=_busy(fields["busy"]) if second else None,
        )
        broken = problem(manifest)
    except (ValueError, KeyError) as error:
        raise CorruptManifestError(f"manifest: {error}") from error
    if broken is not None:
        raise CorruptManifestError(f"manifest: {broken}")
    return manifest


def encode_segment_list(manifest: Manifest, content: SegmentList) -> bytes:
    """The stored bytes of a list that *manifest* is the first to name, in that one's format."""
    topic, tp, format_version = manifest.topic, manifest.tp, manifest.format_version
    return encode_json(
        _LIST,
        format_version,
        {
            "level": content.level,
            "topic": topic,
            "topic_id": str(tp.topic_id),
            "partition": tp.partition,
            "lists": [_list_fields(ref, format_version) for ref in content.lists],
            "segments": [_segment_fields(ref, format_version) for ref in content.segments],
        },
    )


def decode_segment_list(body: Buffer, ref: SegmentListRef) -> SegmentList:
    """Invert :func:`encode_segment_list` for the list that *ref* names.

    Raises:
        CorruptManifestError: damaged, of a newer format, or not the list that *ref* describes.
    """
    try:
        fields = decode_json(_LIST, MANIFEST_FORMAT, body)
        format_version = integer(fields, "format_version")
        content = SegmentList(
            integer(fields, "level", 1),
            segments=tuple(_segment_ref(e, format_version) for e in array(fields, "segments")),
            lists=tuple(_list_ref(e, format_version) for e in array(fields, "lists")),
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


def encode_segments(segments: Iterable[SegmentRef]) -> bytes:
    """References of segments that no manifest names yet, as one agent sends them to another."""
    fields = [_segment_fields(ref, MANIFEST_FORMAT) for ref in segments]
    return encode_json(_SEGMENTS, MANIFEST_FORMAT, {"segments": fields})


def decode_segments(body: Buffer) -> tuple[SegmentRef, ...]:
    """Invert :func:`encode_segments`.

    Raises:
        CorruptManifestError: damaged, or of a newer format.
    """
    try:
        fields = decode_json(_SEGMENTS, MANIFEST_FORMAT, body)
        format_version = integer(fields, "format_version")
        return tuple(_segment_ref(e, format_version) for e in array(fields, "segments"))
    except ValueError as error:
        raise CorruptManifestError(f"segments: {error}") from error


def _segment_fields(ref: SegmentRef, format_version: int) -> dict[str, Any]:
    fields = dict(zip(_SEGMENT_FIELDS, _segment_values(ref), strict=True))
    if format_version > 1:
        fields["received_bytes"] = ref.received_bytes
        fields["horizons"] = [[horizon.end, horizon.at_ms] for horizon in ref.horizons]
        if ref.merges:
            fields["merges"] = ref.merges
        if ref.footer_crc is not None:
            fields["footer_crc"] = ref.footer_crc
    return fields


def _list_fields(ref: SegmentListRef, format_version: int) -> dict[str, Any]:
    fields = dict(zip(_LIST_FIELDS, _list_values(ref), strict=True))
    if format_version > 1:
        fields["received_bytes"] = ref.received_bytes
    return fields


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


def _busy(value: object) -> Busy | None:
    if value is None:
        return None
    fields = members(value, "busy")
    return Busy(string(fields, "by"), integer(fields, "until_ms"))


def _horizon(value: object) -> TombstoneHorizon:
    match value:
        case [int(end), int(at_ms)] if 0 <= end < 2**63 > at_ms >= 0:
            return TombstoneHorizon(end, at_ms)
        case _:
            raise ValueError(f"not a tombstone horizon: {value!r}")


def _received_bytes(fields: dict[str, Any], format_version: int) -> int:
    return integer(fields, "received_bytes") if format_version > 1 else AS_RAW


def _segment_ref(value: object, format_version: int) -> SegmentRef:
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
        received_bytes=_received_bytes(fields, format_version),
        horizons=tuple(_horizon(e) for e in array(fields, "horizons"))
        if format_version > 1
        else (),
        merges=integer(fields, "merges") if "merges" in fields else 0,
        footer_crc=integer(fields, "footer_crc") if "footer_crc" in fields else None,
    )


def _list_ref(value: object, format_version: int) -> SegmentListRef:
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
        received_bytes=_received_bytes(fields, format_version),
    )
