"""Snapshots of groups in the bucket: their keys in the metadata store, as they are at one revision.

    {"format":"driftlog.groups","format_version":1,"cluster_id":"…","revision":4711,
     "keys":{"billing":"eyJ2…","billing/offsets/7fe759ed-…/0":"KLUv…"},
     "configs":{"brokers":"eyJ2…","groups/billing":"eyJ2…"},"crc32":"…"}

``keys``: what follows ``/driftlog/v1/groups/`` ──▶ the value in base64.  ``configs``: the same of
``/driftlog/v1/configs/``; not there if no broker and no group has configs.  A restore from the
bucket alone puts them back.  Snapshots are named by the revision: with a name by an agent's clock,
an older one could win.  `formats/layout` has their keys, `formats/stored_json` the envelope.

Pure.
"""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.formats.stored_json import decode_json, encode_json, integer, members, string
from driftlog_tiering.foundation.types import Buffer

FORMAT: Final = 1
_KIND: Final = "driftlog.groups"


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
    fields: dict[str, object] = {
        "cluster_id": snapshot.cluster_id,
        "revision": snapshot.revision,
        "keys": _encoded(snapshot.values),
    }
    if snapshot.configs:
        fields["configs"] = _encoded(snapshot.configs)
    return encode_json(_KIND, FORMAT, fields)


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


def _encoded(values: Mapping[str, bytes]) -> dict[str, str]:
    return {key: b64encode(value).decode() for key, value in values.items()}


def _decoded(fields: dict[str, Any]) -> dict[str, bytes]:
    return {key: b64decode(string(fields, key), validate=True) for key in fields}
