"""Snapshots of groups in the bucket: their keys in the metadata store, as they are at one revision.

    {"format":"driftlog.groups","format_version":1,"cluster_id":"…","revision":4711,
     "keys":{"billing":"eyJ2…","billing/offsets/7fe759ed-…/0":"KLUv…"},
     "configs":{"brokers":"eyJ2…","groups/billing":"eyJ2…"},"crc32":"…"}

``keys``: what follows ``/driftlog/v1/groups/`` ──▶ the value in base64.  ``configs``: the same of
``/driftlog/v1/configs/``, perhaps of a newer revision; not there if no broker and no group has
configs.  A restore from the bucket alone puts them back.  Snapshots are named by the revision: with
a name by an agent's clock, an older one could win.  `formats/layout` has their keys,
`formats/stored_json` the envelope.

Pure.
"""

import binascii
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.formats.stored_json import (
    decode_json,
    encode_value,
    integer,
    members,
    string,
    trailer,
)
from driftlog_tiering.foundation.types import Buffer

FORMAT: Final = 1
_KIND: Final = "driftlog.groups"

PART_BYTES: Final = 1024 * 1024
"""Larger: fewer parts to send; smaller: other threads wait less for the one that encodes."""


class CorruptGroupSnapshotError(CorruptError):
    """The snapshot is damaged, or of a newer format."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """See the module.  ``values``: by the part of the key that follows the prefix of groups."""

    cluster_id: str
    revision: int
    values: Mapping[str, bytes]
    configs: Mapping[str, bytes] = field(default_factory=dict)
    """Configs of brokers and groups, by the part of the key that follows the prefix of configs."""


def encode_group_snapshot(snapshot: GroupSnapshot) -> bytes:
    """The stored bytes."""
    values, configs = snapshot.values.items(), snapshot.configs.items()
    return b"".join(encode_in_parts(snapshot.cluster_id, snapshot.revision, values, configs))


def encode_in_parts(
    cluster_id: str,
    revision: int,
    values: Iterable[tuple[str, bytes]],
    configs: Iterable[tuple[str, bytes]],
) -> Iterator[bytes]:
    """The stored bytes of a snapshot whose *values* and *configs* are taken one by one.

    A part has `PART_BYTES`, or the last value more: no call works longer than for one.
    """
    crc32 = 0
    part = bytearray()
    for piece in _pieces(cluster_id, revision, values, configs):
        part += piece
        if len(part) >= PART_BYTES:
            crc32 = zlib.crc32(part, crc32)
            yield bytes(part)
            part.clear()
    yield bytes(part) + trailer(zlib.crc32(part, crc32))


def _pieces(
    cluster_id: str,
    revision: int,
    values: Iterable[tuple[str, bytes]],
    configs: Iterable[tuple[str, bytes]],
) -> Iterator[bytes]:
    head = {"format": _KIND, "format_version": FORMAT, "cluster_id": cluster_id}
    yield encode_value({**head, "revision": revision})[:-1]
    yield b',"keys":{'
    yield from _members(values)
    yield b"}"
    before = b',"configs":{'
    for member in _members(configs):
        yield before + member
        before = b""
    if not before:
        yield b"}"


def _members(values: Iterable[tuple[str, bytes]]) -> Iterator[bytes]:
    comma = b""
    for key, value in values:
        yield b'%b%b:"%b"' % (comma, encode_value(key), b64encode(value))
        comma = b","


def decode_group_snapshot(body: Buffer) -> GroupSnapshot:
    """Invert :func:`encode_group_snapshot`.

    Raises:
        CorruptGroupSnapshotError: damaged, or of a newer format.
    """
    try:
        fields = decode_json(_KIND, FORMAT, body)
        return GroupSnapshot(
            string(fields, "cluster_id"),
            integer(fields, "revision"),
            _decoded(members(fields.get("keys"), "keys")),
            _decoded(members(fields.get("configs", {}), "configs")),
        )
    except (ValueError, binascii.Error) as error:
        raise CorruptGroupSnapshotError(f"group snapshot: {error}") from error


def _decoded(fields: dict[str, Any]) -> dict[str, bytes]:
    return {key: b64decode(string(fields, key), validate=True) for key in fields}
