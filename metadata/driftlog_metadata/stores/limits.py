"""The limits that every metadata store checks before it does anything, as etcd v3 does.

Adapters call these first, so that a call that works embedded works on etcd, and a
mistake is a ValueError at its caller.  Source: etcd's api/v3rpc/key.go
(checkTxnRequest, checkIntervals) and its ``--max-txn-ops``, ``--max-request-bytes``.

The half of an adapter that all of them share.
Adapter.
"""

from collections.abc import Sequence
from typing import Final

from driftlog_metadata.stores.store import (
    MAX_TXN_BYTES,
    MAX_TXN_OPS,
    Compare,
    CreateRevisionIs,
    Delete,
    DeletePrefix,
    Get,
    GetPrefix,
    ModRevisionIs,
    NotWrittenSince,
    Operation,
    Put,
    ValueIs,
)

_INT64_MAX: Final = 2**63 - 1


def check_txn(
    compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]
) -> None:
    """Refuse a transaction that is over a limit of `driftlog_metadata.stores.store`.

    Raises:
        ValueError: it is over one, a key or prefix is empty, or a lease id is out of range.
    """
    if max(len(compares), len(then), len(otherwise)) > MAX_TXN_OPS:
        raise ValueError(
            f"{len(compares)} compares, {len(then)} and {len(otherwise)} operations: "
            f"more than {MAX_TXN_OPS}"
        )
    size_bytes = sum(map(_compare_bytes, compares))
    size_bytes += sum(map(_operation_bytes, then)) + sum(map(_operation_bytes, otherwise))
    if size_bytes > MAX_TXN_BYTES:
        raise ValueError(f"a transaction of {size_bytes} bytes: more than {MAX_TXN_BYTES}")
    _check_overlaps(then)
    _check_overlaps(otherwise)


def check_key(key: str) -> None:
    """Raises ValueError: the key or prefix is empty (etcd has no range for an empty prefix)."""
    if not key:
        raise ValueError("an empty key or prefix")


def check_lease_id(lease_id: int) -> None:
    """Raises ValueError: not an id that a lease can have."""
    if not 1 <= lease_id <= _INT64_MAX:
        raise ValueError(f"not a lease id: {lease_id}")


def check_ttl_ms(ttl_ms: int) -> None:
    """Raises ValueError: not a time to live."""
    if ttl_ms < 1:
        raise ValueError(f"not a time to live: {ttl_ms} ms")


def check_start_revision(revision: int) -> None:
    """Raises ValueError: not a revision (0 means *now* to etcd, which this port does not have)."""
    if revision < 1:
        raise ValueError(f"not a revision to watch from: {revision}")


def _compare_bytes(compare: Compare) -> int:
    check_key(compare.key)
    match compare:
        case ValueIs():
            return len(compare.key.encode()) + len(compare.value)
        case CreateRevisionIs() | ModRevisionIs():
            return len(compare.key.encode())
        case NotWrittenSince():
            return 2 * len(compare.key.encode())  # a range has two ends


def _operation_bytes(operation: Operation) -> int:
    match operation:
        case Put():
            check_key(operation.key)
            if operation.lease_id:
                check_lease_id(operation.lease_id)
            return len(operation.key.encode()) + len(operation.value)
        case Delete() | Get():
            check_key(operation.key)
            return len(operation.key.encode())
        case DeletePrefix() | GetPrefix():
            check_key(operation.prefix)
            return 2 * len(operation.prefix.encode())  # a range has two ends


def _check_overlaps(operations: Sequence[Operation]) -> None:
    put = [op.key for op in operations if isinstance(op, Put)]
    deleted = {op.key for op in operations if isinstance(op, Delete)}
    prefixes = tuple(op.prefix for op in operations if isinstance(op, DeletePrefix))
    if len(set(put)) < len(put):
        raise ValueError("two puts of one key in one transaction")
    for key in put:
        if key in deleted or key.startswith(prefixes):
            raise ValueError(f"{key!r} is put and deleted by one transaction")
