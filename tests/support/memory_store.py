"""The metadata store as plain state of one process, for the simulator and for tests.

Several simulated agents share one store.  It has no latency and no faults (the
simulator puts them around it), never waits except in a watch, and knows the time only
from *now_ms*: leases end when a call finds them expired, or when
`expire` is called at `next_expiry_ms`.  The same calls at the same times give the same
revisions, and the same as those of a fresh `driftlog_metadata.stores.sqlite_store`.

Adapter.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from driftlog_metadata.stores.errors import UnavailableError
from driftlog_metadata.stores.limits import check_key, check_lease_id, check_ttl_ms, check_txn
from driftlog_metadata.stores.store import (
    Compare,
    CreateRevisionIs,
    Delete,
    DeleteEvent,
    DeletePrefix,
    Get,
    GetPrefix,
    KeyValue,
    LeaseNotFoundError,
    ModRevisionIs,
    NotWrittenSince,
    Operation,
    Put,
    PutEvent,
    TxnResult,
    ValueIs,
    Watch,
    WatchEvent,
)
from driftlog_metadata.stores.watches import History

_FIRST_REVISION = 1
"""Revision of an empty store, as etcd's: the first change is at 2."""


@dataclass(slots=True)
class _Lease:
    ttl_ms: int
    expires_at_ms: int
    keys: set[str] = field(default_factory=set)


class MemoryMetadataStore:
    """A `driftlog_metadata.stores.store.MetadataStore` without a disk.

    Args:
        now_ms: the clock of leases; it may stand still, and should not go back.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._history = History(
            _FIRST_REVISION, compacted_revision=0, max_events=None, max_bytes=None
        )
        self._kvs: dict[str, KeyValue] = {}
        self._keys: list[str] = []
        self._leases: dict[int, _Lease] = {}

    # ── The port ──

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        """See `driftlog_metadata.stores.store.MetadataStore.txn`."""
        check_txn(compares, then, otherwise)
        self._begin()
        succeeded = all(map(self._holds, compares))
        operations = then if succeeded else otherwise
        self._check_leases(operations)
        events: list[WatchEvent] = []
        reads = tuple(self._apply(operation, events) for operation in operations)
        self._end(events)
        return TxnResult(succeeded, self._history.revision, reads)

    async def get(self, key: str) -> KeyValue | None:
        """See `driftlog_metadata.stores.store.MetadataStore.get`."""
        check_key(key)
        self._begin()
        return self._kvs.get(key)

    async def get_prefix(
        self, prefix: str, *, keys_only: bool = False
    ) -> tuple[int, list[KeyValue]]:
        """See `driftlog_metadata.stores.store.MetadataStore.get_prefix`."""
        check_key(prefix)
        self._begin()
        found = [self._kvs[key] for key in self._keys_under(prefix)]
        if keys_only:
            found = [replace(kv, value=b"") for kv in found]
        return self._history.revision, found

    async def grant_lease(self, lease_id: int, ttl_ms: int) -> None:
        """See `driftlog_metadata.stores.store.MetadataStore.grant_lease`."""
        check_lease_id(lease_id)
        check_ttl_ms(ttl_ms)
        self._begin()
        if lease_id not in self._leases:
            self._leases[lease_id] = _Lease(ttl_ms, self._now_ms() + ttl_ms)

    async def keep_alive(self, lease_id: int) -> None:
        """See `driftlog_metadata.stores.store.MetadataStore.keep_alive`."""
        check_lease_id(lease_id)
        self._begin()
        lease = self._leases.get(lease_id)
        if lease is None:
            raise LeaseNotFoundError(f"lease {lease_id} is gone")
        lease.expires_at_ms = self._now_ms() + lease.ttl_ms

    async def revoke_lease(self, lease_id: int) -> None:
        """See `driftlog_metadata.stores.store.MetadataStore.revoke_lease`."""
        check_lease_id(lease_id)
        self._begin()
        self._end_lease(lease_id)

    def watch(self, prefix: str, start_revision: int) -> Watch:
        """See `driftlog_metadata.stores.store.MetadataStore.watch`."""
        return self._history.watch(prefix, start_revision)

    async def close(self) -> None:
        """End the watches and refuse every later call."""
        self._history.close()

    # ── For the simulator ──

    @property
    def revision(self) -> int:
        """Revision of the last change.  Reading it expires no lease."""
        return self._history.revision

    @property
    def next_expiry_ms(self) -> int | None:
        """When to call `expire` next; None: there is no lease."""
        return min((lease.expires_at_ms for lease in self._leases.values()), default=None)

    def expire(self) -> None:
        """End every expired lease, the first to expire first.  Harmless at any time."""
        now_ms = self._now_ms()
        due = [(at.expires_at_ms, id_) for id_, at in self._leases.items()]
        for expires_at_ms, lease_id in sorted(due):
            if expires_at_ms <= now_ms:
                self._end_lease(lease_id)

    def compact(self, revision: int) -> None:
        """Forget the history up to and with *revision*: watches from there get CompactedError.

        Raises:
            ValueError: *revision* is in the future.
        """
        self._history.compact(revision)

    def copy(self) -> "MemoryMetadataStore":
        """A backup of this store: everything except the history."""
        other = MemoryMetadataStore(self._now_ms)
        other._history = History(
            self.revision, compacted_revision=self.revision, max_events=None, max_bytes=None
        )
        other._kvs, other._keys = dict(self._kvs), list(self._keys)
        other._leases = {i: _Lease(at.ttl_ms, 0, set(at.keys)) for i, at in self._leases.items()}
        return other

    def become(self, other: "MemoryMetadataStore", *, revision: int | None = None) -> None:
        """Take *other*'s state, like an etcd that was restored under the same addresses.

        Watches continue there from their revisions, and leases begin anew.

        Args:
            revision: the revision afterwards (etcdutl's ``--bump-revision``); None: *other*'s.
        """
        now = other.copy()
        at = now.revision if revision is None else revision
        history = History(at, compacted_revision=at, max_events=None, max_bytes=None)
        before, self._history = self._history, history
        self._kvs, self._keys, self._leases = now._kvs, now._keys, now._leases
        for lease in self._leases.values():
            lease.expires_at_ms = self._now_ms() + lease.ttl_ms
        before.move(history)

    def snapshot(self, prefix: str = "") -> list[KeyValue]:
        """All keys under *prefix*, for a test's oracle; expires no lease."""
        return [self._kvs[key] for key in self._keys_under(prefix)]

    # ── State ──

    def _begin(self) -> None:
        if self._history.closed:
            raise UnavailableError("this metadata store is closed")
        self.expire()

    def _end(self, events: Sequence[WatchEvent]) -> None:
        if events:
            self._history.record(self._history.revision + 1, events)

    def _holds(self, compare: Compare) -> bool:
        kv = self._kvs.get(compare.key)
        match compare:
            case NotWrittenSince():
                under = (self._kvs[key] for key in self._keys_under(compare.key))
                return all(kv.mod_revision <= compare.revision for kv in under)
            case CreateRevisionIs():
                return compare.revision == (0 if kv is None else kv.create_revision)
            case ModRevisionIs():
                return compare.revision == (0 if kv is None else kv.mod_revision)
            case ValueIs():
                return kv is not None and compare.value == kv.value

    def _check_leases(self, operations: Sequence[Operation]) -> None:
        for op in operations:
            if isinstance(op, Put) and op.lease_id and op.lease_id not in self._leases:
                raise LeaseNotFoundError(f"lease {op.lease_id} is gone; {op.key} was not put")

    def _apply(self, operation: Operation, events: list[WatchEvent]) -> tuple[KeyValue, ...]:
        match operation:
            case Put():
                self._put(operation, events)
                return ()
            case Delete():
                self._delete(operation.key, events)
                return ()
            case DeletePrefix():
                for key in self._keys_under(operation.prefix):
                    self._delete(key, events)
                return ()
            case Get():
                kv = self._kvs.get(operation.key)
                return () if kv is None else (kv,)
            case GetPrefix():
                return tuple(self._kvs[key] for key in self._keys_under(operation.prefix))

    def _put(self, put: Put, events: list[WatchEvent]) -> None:
        revision = self._history.revision + 1
        old = self._kvs.get(put.key)
        if old is None:
            insort(self._keys, put.key)
        elif old.lease_id:
            self._leases[old.lease_id].keys.discard(put.key)
        if put.lease_id:
            self._leases[put.lease_id].keys.add(put.key)
        kv = KeyValue(
            put.key,
            put.value,
            create_revision=revision if old is None else old.create_revision,
            mod_revision=revision,
            lease_id=put.lease_id,
        )
        self._kvs[put.key] = kv
        events.append(PutEvent(kv))

    def _delete(self, key: str, events: list[WatchEvent]) -> None:
        old = self._kvs.pop(key, None)
        if old is None:
            return
        del self._keys[bisect_left(self._keys, key)]
        if old.lease_id:
            self._leases[old.lease_id].keys.discard(key)
        events.append(DeleteEvent(key, self._history.revision + 1))

    def _end_lease(self, lease_id: int) -> None:
        lease = self._leases.get(lease_id)
        if lease is None:
            return
        events: list[WatchEvent] = []
        for key in sorted(lease.keys):
            self._delete(key, events)
        del self._leases[lease_id]
        self._end(events)

    def _keys_under(self, prefix: str) -> list[str]:
        """In code point order, which for UTF-8 is the order of the bytes."""
        start = end = bisect_left(self._keys, prefix)
        while end < len(self._keys) and self._keys[end].startswith(prefix):
            end += 1
        return self._keys[start:end]
