"""``leftovers.json``: records that were acknowledged with acks=1 and have no place in the log.

    DIR/buffer/{session_id}/leftovers.json   partitions with batches that have no place at their
                                             offsets: no later start appends them there
    DIR/kept/{session_id}/leftovers.json     what was set aside of the session, and why; beside it
                                             buffer files that have those batches and no others

An object of `stored_json`, version 2:

    session_id
    set_aside_at_ms   Unix time; null in DIR/buffer
    partitions
        topic_id, partition
        topic         the name that the topic had; null: not known
        reason        why its batches have no place at their offsets
        first_offsets [[leader epoch, base offset], …]: the first such batch of each leader epoch;
                      in DIR/buffer some later ones may be in the log all the same
        batches, records, size_bytes    what was set aside; 0 in DIR/buffer

A stored format: add a version, never edit one in place.
Pure.
"""

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.formats.stored_json import (
    array,
    decode_json,
    encode_json,
    integer,
    members,
    string,
)

_KIND: Final = "driftlog.leftovers"
_VERSION: Final = 2


@dataclass(slots=True)
class PartitionLeftovers:
    """The batches of one partition in one session's buffer that have no place in the log."""

    reason: str
    topic: str | None = None
    first_offsets: dict[int, int] = field(default_factory=dict)
    batches: int = 0
    records: int = 0
    size_bytes: int = 0

    def covers(self, leader_epoch: int, base_offset: int) -> bool:
        """Whether the batch is the first one of its leader epoch, or comes after it."""
        first = self.first_offsets.get(leader_epoch)
        return first is not None and base_offset >= first


@dataclass(slots=True)
class Leftovers:
    """See the module."""

    session_id: str
    set_aside_at_ms: int | None = None
    partitions: dict[TopicPartition, PartitionLeftovers] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Number of records of all partitions."""
        return sum(of.records for of in self.partitions.values())

    @property
    def size_bytes(self) -> int:
        """Bytes of the batches of all partitions."""
        return sum(of.size_bytes for of in self.partitions.values())

    def encode(self) -> bytes:
        """The stored bytes."""
        partitions = [
            {
                "topic_id": str(tp.topic_id),
                "partition": tp.partition,
                "topic": of.topic,
                "reason": of.reason,
                "first_offsets": sorted(of.first_offsets.items()),
                "batches": of.batches,
                "records": of.records,
                "size_bytes": of.size_bytes,
            }
            for tp, of in sorted(self.partitions.items())
        ]
        fields = {
            "session_id": self.session_id,
            "set_aside_at_ms": self.set_aside_at_ms,
            "partitions": partitions,
        }
        return encode_json(_KIND, _VERSION, fields)


def decode_leftovers(data: bytes) -> Leftovers:
    """Inverts `Leftovers.encode`.

    Raises:
        CorruptError: the file is damaged, or of another release.
    """
    try:
        fields = decode_json(_KIND, _VERSION, data)
        if fields["format_version"] != _VERSION:
            raise ValueError("an earlier release wrote it: stop that one with SIGTERM before this")
        at = None if fields["set_aside_at_ms"] is None else integer(fields, "set_aside_at_ms")
        found = Leftovers(string(fields, "session_id"), at)
        for each in array(fields, "partitions"):
            of = members(each, "a partition")
            tp = TopicPartition(UUID(string(of, "topic_id")), integer(of, "partition"))
            found.partitions[tp] = PartitionLeftovers(
                string(of, "reason"),
                None if of["topic"] is None else string(of, "topic"),
                dict(_pair(entry) for entry in array(of, "first_offsets")),
                integer(of, "batches"),
                integer(of, "records"),
                integer(of, "size_bytes"),
            )
    except (ValueError, KeyError) as error:
        raise CorruptError(f"leftovers.json: {error}") from error
    return found


def _pair(stored: object) -> tuple[int, int]:
    match stored:
        case [int() as leader_epoch, int() as base_offset]:
            return leader_epoch, base_offset
        case _:
            raise ValueError(f"{stored!r} is no leader epoch with an offset")
