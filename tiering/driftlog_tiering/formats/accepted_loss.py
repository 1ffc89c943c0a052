"""The record of a range without records: an accepted loss, or one that a restore left empty.

    {"format":"driftlog.accepted-loss","format_version":1,"topic":"t","topic_id":"…","partition":0,
     "leader_epoch":3,"session_id":"…","accepted_at_ms":1700000000000,"reasons":["…"],
     "lost":[[base,end],…],"objects":["flush/…"],"sealed_end":10,"manifest_version":2,
     "goes_on_at":20,"crc32":"…"}

``lost``: ranges ``[base, end)`` of offsets whose records are gone; no record gets these offsets.
``reasons`` is ``["restore"]`` and ``session_id`` is empty where a restore wrote it: some of the
offsets in ``lost`` may never have had a record.
``objects``: objects that flush records or the manifest name and that are not in the bucket.
``sealed_end`` and ``manifest_version``: the values of the partition's key before, -1 where the key
was missing.
It is written before the loss takes effect; if the agent dies in between, the partition is still
offline, and the next attempt writes another record, under its own leader epoch.
`formats/layout.audit_key` is its key, `formats/stored_json` the envelope.

A stored format: add a version, never edit one in place.
Pure.
"""

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats.bucket_files import CorruptFileError
from driftlog_tiering.formats.layout import audit_key
from driftlog_tiering.formats.stored_json import decode_json, encode_json, integer, string
from driftlog_tiering.foundation.types import Buffer

_FORMAT: Final = 1
_KIND: Final = "driftlog.accepted-loss"

RESTORE_REASON: Final = "restore"
"""The only reason of a range that a restore left empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedLoss:
    """One accepted loss; the module documents the fields."""

    topic: str
    tp: TopicPartition
    leader_epoch: int
    session_id: str
    accepted_at_ms: int
    reasons: tuple[str, ...]
    lost: tuple[tuple[int, int], ...]
    objects: tuple[str, ...]
    sealed_end: int
    manifest_version: int
    goes_on_at: int

    @property
    def key(self) -> str:
        """Its object's key."""
        return audit_key(self.topic, self.tp, self.leader_epoch)


def encode_accepted_loss(loss: AcceptedLoss) -> bytes:
    """The stored bytes."""
    return encode_json(
        _KIND,
        _FORMAT,
        {
            "topic": loss.topic,
            "topic_id": str(loss.tp.topic_id),
            "partition": loss.tp.partition,
            "leader_epoch": loss.leader_epoch,
            "session_id": loss.session_id,
            "accepted_at_ms": loss.accepted_at_ms,
            "reasons": list(loss.reasons),
            "lost": [list(lost) for lost in loss.lost],
            "objects": list(loss.objects),
            "sealed_end": loss.sealed_end,
            "manifest_version": loss.manifest_version,
            "goes_on_at": loss.goes_on_at,
        },
    )


def decode_accepted_loss(body: Buffer) -> AcceptedLoss:
    """Invert :func:`encode_accepted_loss`.

    Raises:
        CorruptFileError: damaged, or of a newer format.
    """
    try:
        fields = decode_json(_KIND, _FORMAT, body)
        return AcceptedLoss(
            topic=string(fields, "topic"),
            tp=TopicPartition(UUID(string(fields, "topic_id")), integer(fields, "partition")),
            leader_epoch=integer(fields, "leader_epoch"),
            session_id=string(fields, "session_id"),
            accepted_at_ms=integer(fields, "accepted_at_ms"),
            reasons=_strings(fields, "reasons"),
            lost=tuple(_range(lost) for lost in _list(fields, "lost")),
            objects=_strings(fields, "objects"),
            sealed_end=integer(fields, "sealed_end", -1),
            manifest_version=integer(fields, "manifest_version", -1),
            goes_on_at=integer(fields, "goes_on_at"),
        )
    except ValueError as error:
        raise CorruptFileError(f"accepted loss: {error}") from error


def _list(fields: dict[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    if type(value) is not list:
        raise ValueError(f"{name} is {value!r}, not a list")
    return value


def _strings(fields: dict[str, Any], name: str) -> tuple[str, ...]:
    found = _list(fields, name)
    if not all(type(value) is str for value in found):
        raise ValueError(f"{name} is {found!r}, not strings")
    return tuple(found)


def _range(value: object) -> tuple[int, int]:
    match value:
        case [int(base), int(end)] if 0 <= base < end < 2**63:
            return base, end
        case _:
            raise ValueError(f"{value!r} is no range")
