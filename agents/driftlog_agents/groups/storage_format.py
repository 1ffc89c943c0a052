"""Stored format of groups: the value of each key of a group (`driftlog_metadata.schema.keys`).

    the group    {"v":1,"nonce":s,"session_id":s,"kind":s,"group":{…}}
    a member     {"v":1,"nonce":s,"member":{…}}
    a page       {"v":1,"nonce":s,"offsets":{"partition":[offset,leader epoch,committed ms,
                  metadata] or, if the client set an expiry, […,expires ms],…}}

Compact JSON in UTF-8.  A value of more than 4 KiB is one zstd frame: the first byte is ``{`` or
the first of zstd's magic.  The machine of the *kind* defines ``group`` and ``member``
(``classic``: `classic/stored_value`; ``consumer``: `consumer/stored_value`), with a version of its
own.

``session_id`` is the session of the agent that coordinates the group.  ``nonce`` differs in every
write, so a writer whose answer is lost can see whether its transaction was applied.

A value format is a stored format: add a version, never edit one in place.
Pure.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import zstandard

from driftlog_agents.groups.offsets import PAGE_PARTITIONS, Committed, Page, as_int64, is_int64
from driftlog_metadata.schema.keys import INT32_MAX
from driftlog_metadata.stores.errors import CorruptError, UnsupportedFormatError

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
"""Kinds of groups, as the store and ListGroups name them."""

COMPRESSED_BYTES: Final = 4096
"""Larger values are compressed."""

MAX_BYTES: Final = 64 * 1024 * 1024
"""Largest value; a group of 100,000 members with their assignments is smaller."""

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """The value of a group's own key; *body*: the machine's value, a JSON object in UTF-8."""

    session_id: str
    kind: str
    body: bytes


def encode_group(group: StoredGroup, nonce: str) -> bytes:
    """Encode the value of a group's own key."""
    head = {"v": 1, "nonce": nonce, "session_id": group.session_id, "kind": group.kind}
    return _packed(_with(head, "group", group.body))


def decode_group(data: bytes) -> StoredGroup:
    """Invert :func:`encode_group`.

    Raises:
        UnsupportedFormatError: *data* has a newer format.
        CorruptError: *data* is not a group.
    """
    fields = _fields("group", data, {"nonce", "session_id", "kind", "group"})
    session_id, kind = fields["session_id"], fields["kind"]
    if not isinstance(session_id, str) or not isinstance(kind, str):
        raise _corrupt("group", data, "no session or no kind")
    return StoredGroup(session_id=session_id, kind=kind, body=_body("group", data, fields))


def encode_member(body: bytes, nonce: str) -> bytes:
    """Encode the value of a member's key; *body*: a JSON object in UTF-8."""
    return _packed(_with({"v": 1, "nonce": nonce}, "member", body))


def decode_member(data: bytes) -> bytes:
    """Invert :func:`encode_member`.

    Raises:
        UnsupportedFormatError: *data* has a newer format.
        CorruptError: *data* is not a member.
    """
    return _body("member", data, _fields("member", data, {"nonce", "member"}))


def encode_page(page: Page, nonce: str) -> bytes:
    """Encode a page of committed offsets."""
    offsets = {str(partition): _item(committed) for partition, committed in sorted(page.items())}
    return _packed(_json({"v": 1, "nonce": nonce, "offsets": offsets}))


def decode_page(data: bytes, page: int) -> dict[int, Committed]:
    """Invert :func:`encode_page`; *page*: its number, which determines its partitions.

    Raises:
        UnsupportedFormatError: *data* has a newer format.
        CorruptError: *data* is not that page of offsets.
    """
    offsets = _fields("page of offsets", data, {"nonce", "offsets"})["offsets"]
    if not isinstance(offsets, dict):
        raise _corrupt("page of offsets", data, "no offsets")
    found: dict[int, Committed] = {}
    for text, item in offsets.items():
        committed = _committed(item)
        partition = int(text) if text.isascii() and text.isdecimal() else -1
        if committed is None or partition // PAGE_PARTITIONS != page or str(partition) != text:
            raise _corrupt("page of offsets", data, f"no offset: {text!r}: {item!r}")
        found[partition] = committed
    return found


def _item(committed: Committed) -> list[int | str]:
    item: list[int | str] = [
        committed.offset,
        committed.leader_epoch,
        committed.commit_ms,
        committed.metadata,
    ]
    return item if committed.expire_ms is None else [*item, committed.expire_ms]


def _committed(item: object) -> Committed | None:
    if not isinstance(item, list) or len(item) not in (4, 5) or not isinstance(item[3], str):
        return None
    offset, epoch, commit_ms, metadata, *expires = item
    if not all(type(n) is int for n in (offset, epoch, commit_ms, *expires)):
        return None
    if not -1 <= epoch <= INT32_MAX or not is_int64(offset) or not is_int64(commit_ms):
        return None
    return Committed(
        offset=offset,
        leader_epoch=epoch,
        metadata=metadata,
        commit_ms=commit_ms,
        # Agents before release 0.1.0 stored sums that do not fit an int64.
        expire_ms=as_int64(expires[0]) if expires else None,
    )


# ── JSON, packed ──


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _with(head: Mapping[str, Any], name: str, body: bytes) -> bytes:
    """*head* as JSON with one more field, which is encoded already."""
    assert body[:1] == b"{"
    return b'%b,"%b":%b}' % (_json(head)[:-1], name.encode(), body)


def _packed(data: bytes) -> bytes:
    """Compress large values.  One above `MAX_BYTES` stays as it is: no transaction takes it."""
    if len(data) <= COMPRESSED_BYTES or len(data) > MAX_BYTES:
        return data
    return zstandard.ZstdCompressor(level=3).compress(data)


def _unpacked(what: str, data: bytes) -> bytes:
    if data[:4] != _ZSTD_MAGIC:
        return data
    try:
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=MAX_BYTES)
    except zstandard.ZstdError as error:
        raise _corrupt(what, data, str(error)) from error


def _fields(what: str, data: bytes, names: set[str]) -> dict[str, Any]:
    try:
        fields = json.loads(_unpacked(what, data).decode())
        json.dumps(fields, ensure_ascii=False).encode()  # no lone surrogates from \uXXXX
    except (ValueError, RecursionError) as error:
        raise _corrupt(what, data, str(error)) from error
    if not isinstance(fields, dict) or type(fields.get("v")) is not int:
        raise _corrupt(what, data, "no JSON object with a version")
    if fields["v"] > 1:
        raise UnsupportedFormatError(
            f"this {what} has format version {fields['v']}, and this driftlog reads up to 1: "
            f"upgrade it: {data[:200]!r}"
        )
    if fields["v"] != 1 or fields.keys() != {"v", *names}:
        raise _corrupt(what, data, f"fields {sorted(fields)}, not {sorted(names)}")
    return fields


def _body(name: str, data: bytes, fields: Mapping[str, Any]) -> bytes:
    if not isinstance(fields[name], dict):
        raise _corrupt(name, data, "it is empty")
    return _json(fields[name])


def _corrupt(what: str, data: bytes, why: str) -> CorruptError:
    return CorruptError(f"not a {what} ({why}): {data[:200]!r}")
