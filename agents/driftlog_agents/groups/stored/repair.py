"""Deletes unreadable groups and pages of offsets when an administrator requests it.

    DeleteGroups of a group that `group_loader` cannot read ──▶ all formats known?
                                                                  └──▶ delete its key and all below
    OffsetDelete of such a group ──▶ delete unreadable pages that hold the named partitions

An unreadable value is damage: driftlog stores no value that it cannot read again.  Values in a
newer format are never deleted.

Shell.
"""

from collections.abc import Callable, Collection
from functools import partial

import structlog

from driftlog_agents.groups.classic.stored_value import decode_value
from driftlog_agents.groups.consumer.stored_value import decode_head
from driftlog_agents.groups.consumer.stored_value import decode_page as decode_members
from driftlog_agents.groups.offsets import PageId
from driftlog_agents.groups.storage_format import (
    CLASSIC,
    CONSUMER,
    decode_group,
    decode_member,
    decode_page,
)
from driftlog_agents.log.session.session import Session
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.keys import group_key, group_prefix, parse_group_key, session_key
from driftlog_metadata.stores.errors import CorruptError, FencedError, UnsupportedFormatError
from driftlog_metadata.stores.store import (
    Compare,
    CreateRevisionIs,
    Delete,
    DeletePrefix,
    Get,
    KeyValue,
    ModRevisionIs,
    Operation,
)
from driftlog_metadata.transactions.session_transactions import Txn

_log = structlog.get_logger()


class UnreadableGroupError(RefusedError):
    """The stored values of a group cannot be read."""

    def __init__(self, why: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, why)


async def remove_group(session: Session, group_id: str) -> ErrorCode:
    """Delete all keys of an unreadable group.

    Raises:
        RefusedError: NOT_COORDINATOR: another agent wrote it; UNKNOWN_SERVER_ERROR: a value has a
            newer format.
        FencedError: the session ended first.
    """
    key = group_key(group_id)
    kv = await session.read(key)
    if kv is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    below = await session.read_prefix(group_prefix(group_id))
    _refuse_newer(kv, _decode_own)
    for one in below:
        _refuse_newer(one, _decode_member if "/members/" in one.key else decode_group)
    await _delete(session, [kv], [Delete(key), DeletePrefix(group_prefix(group_id))])
    _log.warning("unreadable_group_removed", group=group_id, keys=1 + len(below))
    return ErrorCode.NONE


async def remove_pages(session: Session, group_id: str, wanted: Collection[PageId]) -> int:
    """Delete the unreadable pages among *wanted*; return how many.

    Raises:
        RefusedError, FencedError: as `remove_group`.
    """
    kv = await session.read(group_key(group_id))
    if kv is None:
        return 0
    bad: list[KeyValue] = []
    for one in await session.read_prefix(group_prefix(group_id)):
        try:
            key = parse_group_key(one.key)
        except ValueError:
            continue  # An unrecognised key.
        if key.topic_id is None or PageId(key.topic_id, key.page) not in wanted:
            continue
        decode = partial(decode_page, page=key.page)
        _refuse_newer(one, decode)
        if not _is_readable(one, decode):
            bad.append(one)
    if bad:
        await _delete(session, [kv, *bad], [Delete(one.key) for one in bad])
        _log.warning("unreadable_offsets_removed", group=group_id, keys=[one.key for one in bad])
    return len(bad)


def _decode_own(data: bytes) -> None:
    stored = decode_group(data)
    if stored.kind == CLASSIC:
        decode_value(stored.body)
    elif stored.kind == CONSUMER:
        decode_head(stored.body)
    else:
        raise UnsupportedFormatError(f"a group of kind {stored.kind!r}")


def _decode_member(data: bytes) -> None:
    decode_members(decode_member(data))


def _is_readable(kv: KeyValue, decode: Callable[[bytes], object]) -> bool:
    try:
        decode(kv.value)
    except CorruptError:
        return False
    return True


def _refuse_newer(kv: KeyValue, decode: Callable[[bytes], object]) -> None:
    try:
        decode(kv.value)
    except UnsupportedFormatError as error:
        raise UnreadableGroupError(f"{kv.key}: {error}") from error
    except CorruptError:
        pass


async def _delete(session: Session, kvs: list[KeyValue], then: list[Operation]) -> None:
    """Apply *then* if *kvs* are unchanged."""
    fence = session_key(session.session_id)
    compares: list[Compare] = [CreateRevisionIs(fence, session.revision)]
    compares += [ModRevisionIs(kv.key, kv.mod_revision) for kv in kvs]
    keys = [kv.key for kv in kvs]
    result = await session.transact(
        Txn(tuple(compares), tuple(then), (Get(fence), *map(Get, keys)))
    )
    if result.succeeded:
        return
    mine, *now = result.reads
    if not mine or mine[0].create_revision != session.revision:
        raise FencedError("the session ended before a group was repaired")
    if any(now[keys.index(op.key)] for op in then if isinstance(op, Delete)):
        raise RefusedError(ErrorCode.NOT_COORDINATOR)  # Else an earlier attempt succeeded.
