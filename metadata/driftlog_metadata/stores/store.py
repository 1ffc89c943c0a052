"""The metadata port: a small, strongly consistent, revisioned key-value store.

It is shaped after etcd v3, because production runs on etcd; SQLite and the
simulator's memory store implement the same port.  One revision counts every
change of the store: all puts and deletes of one transaction share it.

    compares ──all true──▶ then      ops applied atomically, at one new revision
             ──otherwise─▶ otherwise

Operations are applied in their order: a read sees the operations before it.  A
transaction that changes nothing (reads, deletes of missing keys) takes no
revision.  The keys of a lease that ends are deleted at one revision.

Limits (etcd's defaults, so that a call that works embedded works on etcd), checked by
`driftlog_metadata.stores.limits`: 128 operations in a transaction (compares and each
branch counted apart), 1.5 MiB per transaction, no put of a key that the same
branch deletes, nor two puts of one key, and no empty keys or prefixes.

Port: `tests/contract/test_metadata_store.py` is its definition.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from driftlog_metadata.stores.errors import FencedError, StoreError

MAX_TXN_OPS: Final = 128
"""etcd's ``--max-txn-ops`` default."""

MAX_TXN_BYTES: Final = 1_500_000
"""A little under etcd's ``--max-request-bytes`` default of 1.5 MiB."""


class LeaseNotFoundError(FencedError):
    """The lease expired or was revoked: its keys are gone, and its session is over."""


class CompactedError(StoreError):
    """The requested revision is gone; read the prefix again and watch from there."""


class StoreWentBackError(FencedError):
    """The store is behind a revision that the caller has seen: it lost the changes after it.

    It was restored from a backup, or made anew; the caller must not rely on any read of it.
    """

    def __init__(self, seen: int, found: int) -> None:
        super().__init__(f"revision {seen} was seen, and the store is at {found}")
        self.seen = seen
        self.found = found


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key as it was at some revision.  Revisions count from 1; lease 0 is none."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease_id: int = 0


# ── Compares ──


@dataclass(frozen=True, slots=True)
class CreateRevisionIs:
    """The key was created at *revision*; 0: the key is not there."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class ModRevisionIs:
    """The key was last written at *revision*; 0: the key is not there."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class ValueIs:
    """The key is there and has exactly this value."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class NotWrittenSince:
    """No key that starts with *key*, a prefix, was created or written after *revision*; a deletion
    does not count."""

    key: str
    revision: int


Compare = CreateRevisionIs | ModRevisionIs | ValueIs | NotWrittenSince

# ── Operations ──


@dataclass(frozen=True, slots=True)
class Put:
    """Create or overwrite.  On a lease, the key goes when the lease goes."""

    key: str
    value: bytes
    lease_id: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove one key; a missing key is no error."""

    key: str


@dataclass(frozen=True, slots=True)
class DeletePrefix:
    """Remove every key that starts with *prefix* (not empty)."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Get:
    """Read one key."""

    key: str


@dataclass(frozen=True, slots=True)
class GetPrefix:
    """Read every key that starts with *prefix*, in ascending order of the key's bytes."""

    prefix: str


Operation = Put | Delete | DeletePrefix | Get | GetPrefix


@dataclass(frozen=True, slots=True)
class TxnResult:
    """What a transaction did.

    ``revision`` is the store's after it; ``reads`` has one tuple per operation of
    the branch that ran (empty for puts and deletes).
    """

    succeeded: bool
    revision: int
    reads: tuple[tuple[KeyValue, ...], ...]


@dataclass(frozen=True, slots=True)
class PutEvent:
    """A key was written."""

    kv: KeyValue


@dataclass(frozen=True, slots=True)
class DeleteEvent:
    """A key was deleted, or its lease ended."""

    key: str
    mod_revision: int


WatchEvent = PutEvent | DeleteEvent


class Watch(Protocol):
    """An open watch: an async iterator; a cancelled ``anext()`` loses no event."""

    def __aiter__(self) -> AsyncIterator[list[WatchEvent]]:
        """Itself."""
        ...

    async def __anext__(self) -> list[WatchEvent]:
        """The next revision's events; see `MetadataStore.watch`."""
        ...

    async def aclose(self) -> None:
        """End it: an ``anext()`` that waits, and every later one, raises StopAsyncIteration."""
        ...


class MetadataStore(Protocol):
    """Every method may raise `UnavailableError`; those that write, `OutcomeUnknownError`.

    Cancelling a call has the same meaning as losing its answer.  Implementations do not
    retry: the caller owns the request's deadline.
    """

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        """Apply *then* if every compare holds, else *otherwise*; atomically, linearizably.

        Raises:
            LeaseNotFoundError: a put of the branch that would run names a lease that is not
                there; nothing was applied.
            ValueError: over a limit that the module's docstring states; nothing was applied.
        """
        ...

    async def get(self, key: str) -> KeyValue | None:
        """Read one key, linearizably."""
        ...

    async def get_prefix(
        self, prefix: str, *, keys_only: bool = False
    ) -> tuple[int, list[KeyValue]]:
        """Read a prefix at one revision, linearizably: (revision, keys in ascending order).

        With any number of keys: the adapter reads a prefix over the transport's message
        limit in pages at one revision.  *keys_only*: the values are not read, and are empty in
        the result.
        """
        ...

    async def grant_lease(self, lease_id: int, ttl_ms: int) -> None:
        """Create a lease under an id that the caller chooses (1 ≤ id < 2^63).

        It lasts *ttl_ms* at least: etcd counts whole seconds, and two or more of them.
        A repeat is harmless: where the lease exists it changes nothing, not even its deadline.
        """
        ...

    async def keep_alive(self, lease_id: int) -> None:
        """Make the lease last its full time to live from now.

        Raises:
            LeaseNotFoundError: the lease is gone.
        """
        ...

    async def revoke_lease(self, lease_id: int) -> None:
        """End the lease and delete its keys, now.  A lease that is gone already is no error."""
        ...

    def watch(self, prefix: str, start_revision: int) -> Watch:
        """Every change under *prefix* from *start_revision* (≥ 1) on, in order, none twice.

        The caller has seen revision *start_revision* − 1.

        Events of one revision come in one list, in the order of the operations (a prefix's
        deletes in key order).  The iterator is closed with ``aclose()``.

        Raises:
            CompactedError: from the iterator, when that history is gone.
            StoreWentBackError: from the iterator, when the store is behind a revision that the
                caller has seen, or that the watch has returned.
        """
        ...

    async def close(self) -> None:
        """Release connections and files.  The store is not used afterwards."""
        ...
