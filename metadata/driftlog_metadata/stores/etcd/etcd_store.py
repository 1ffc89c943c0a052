"""The metadata store on etcd: the port on a cluster of members that may fail.

    txn, get, leases ──▶ EtcdClient ──▶ a member
    get_prefix       ──▶ page, page, … at the revision of the first
    watch            ──▶ EtcdWatch, a stream of its own

etcd 3.4 or newer.  A lost answer of a transaction is reported and never hidden: the caller
repeats the transaction under its compares.  The adapter itself repeats requests that change
nothing, or the same again (reads, grants under an own id, keep-alives, revokes), at the next
endpoint, each endpoint once.

Non-obvious:

* A key under driftlog's prefixes that is not UTF-8 is foreign; it is returned with its
  bytes escaped, and no parser accepts it.
* etcd counts all keys of a range for every page, so pages are large, and limited by bytes.  The
  bytes of the next page are a guess from the last one.  One over `EtcdSettings.max_answer_bytes`
  is not received, and is read again in smaller pages.

Adapter.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from driftlog_metadata.stores.errors import AnswerTooLargeError, UnavailableError
from driftlog_metadata.stores.etcd import etcd_messages as messages
from driftlog_metadata.stores.etcd.etcd_client import (
    Endpoint,
    EtcdClient,
    EtcdSettings,
    Metadata,
    Repeat,
    first_answer,
)
from driftlog_metadata.stores.etcd.etcd_errors import LeaseExistsError
from driftlog_metadata.stores.etcd.etcd_messages import key_value, prefix_end
from driftlog_metadata.stores.etcd.etcd_quota import quota_from_metrics
from driftlog_metadata.stores.etcd.etcd_watches import EtcdWatch
from driftlog_metadata.stores.limits import check_key, check_lease_id, check_ttl_ms, check_txn
from driftlog_metadata.stores.store import (
    CompactedError,
    Compare,
    CreateRevisionIs,
    Delete,
    DeletePrefix,
    Get,
    GetPrefix,
    KeyValue,
    LeaseNotFoundError,
    ModRevisionIs,
    NotWrittenSince,
    Operation,
    Put,
    TxnResult,
    ValueIs,
    Watch,
)

_FIRST_PAGE_KEYS: Final = 100
_MAX_PAGE_KEYS: Final = 20_000
_MAX_PAGE_VALUES: Final = 1_000
"""Most keys of a page with values: values of 80 KB may follow those of 100 bytes, and etcd makes
the whole page.  More: fewer requests; less: a smaller such page."""

_SMALLER: Final = 8
"""A page that is too large has so many times less keys when it is read again."""

_PAGE_BYTES: Final = 4 * 1024 * 1024
"""Size of a page, which parses in some 10 ms, and has a few values of 1 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdStatus:
    """How full one member is."""

    endpoint: str
    version: str
    revision: int
    db_size_bytes: int
    """What the quota counts; compaction does not shrink it, defragmentation does."""
    db_size_in_use_bytes: int
    quota_bytes: int | None
    """None: etcd does not report it; before 3.6 only `EtcdMetadataStore.each_status` has it."""
    errors: tuple[str, ...]
    """Alarms (``NOSPACE``) and the lack of a leader, in etcd's words."""


class EtcdMetadataStore:
    """A `driftlog_metadata.stores.store.MetadataStore` on etcd, for one event loop.

    It connects with its first request.

    Raises:
        ValueError: the settings do not fit together, or a file of them cannot be read.
    """

    def __init__(self, settings: EtcdSettings) -> None:
        self._client = EtcdClient(settings)
        self._watches: set[EtcdWatch] = set()
        self._slow = False
        """The last keep-alive took longer than the time for one endpoint."""

    # ── The port ──

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        """See `driftlog_metadata.stores.store.MetadataStore.txn`."""
        check_txn(compares, then, otherwise)
        request = messages.TxnRequest()
        for compare in compares:
            _add_compare(request.compare, compare)
        for operation in then:
            _add_operation(request.success, operation)
        for operation in otherwise:
            _add_operation(request.failure, operation)
        writes = any(isinstance(op, Put | Delete | DeletePrefix) for op in (*then, *otherwise))
        repeat = Repeat.NEVER if writes else Repeat.READS
        answer = await self._client.ask(messages.TXN, request, repeat)
        return TxnResult(
            bool(answer.succeeded), answer.header.revision, tuple(map(_read, answer.responses))
        )

    async def get(self, key: str) -> KeyValue | None:
        """See `driftlog_metadata.stores.store.MetadataStore.get`."""
        check_key(key)
        request = messages.RangeRequest(key=key.encode())
        answer = await self._client.ask(messages.RANGE, request, Repeat.READS)
        return key_value(answer.kvs[0]) if answer.kvs else None

    async def get_prefix(
        self, prefix: str, *, keys_only: bool = False
    ) -> tuple[int, list[KeyValue]]:
        """See `driftlog_metadata.stores.store.MetadataStore.get_prefix`."""
        check_key(prefix)
        request = messages.RangeRequest(
            key=prefix.encode(),
            range_end=prefix_end(prefix),
            limit=_FIRST_PAGE_KEYS,
            keys_only=keys_only,
        )
        found: list[KeyValue] = []
        while True:
            try:
                page = await self._client.ask(messages.RANGE, request, Repeat.READS)
            except CompactedError as error:
                raise UnavailableError(
                    f"{prefix!r} was compacted while it was read; read it again: {error}"
                ) from error
            except AnswerTooLargeError:
                if request.limit == 1:
                    raise
                request.limit = max(1, request.limit // _SMALLER)
                continue
            found += map(key_value, page.kvs)
            if not request.revision:
                request.revision = page.header.revision
            if not page.more:
                return request.revision, found
            request.key = page.kvs[-1].key + b"\0"
            most = _MAX_PAGE_KEYS if keys_only else _MAX_PAGE_VALUES
            request.limit = _next_limit(request.limit, page.ByteSize(), most)

    async def grant_lease(self, lease_id: int, ttl_ms: int) -> None:
        """See `driftlog_metadata.stores.store.MetadataStore.grant_lease`."""
        check_lease_id(lease_id)
        check_ttl_ms(ttl_ms)
        request = messages.LeaseGrantRequest(ID=lease_id, TTL=-(-ttl_ms // 1000))
        with contextlib.suppress(LeaseExistsError):  # by an earlier attempt, or the caller
            await self._client.ask(messages.LEASE_GRANT, request, Repeat.HARMLESS)

    async def keep_alive(self, lease_id: int) -> None:
        """See `driftlog_metadata.stores.store.MetadataStore.keep_alive`."""
        check_lease_id(lease_id)
        request = messages.LeaseKeepAliveRequest(ID=lease_id)
        patience_s = self._client.settings.keep_alive_timeout_ms / 1000
        timeout_s = patience_s * (2 if self._slow else 1)
        began_s = time.monotonic()

        async def attempt(endpoint: Endpoint, metadata: Metadata) -> int:
            stream = endpoint.stream(messages.LEASE_KEEP_ALIVE, metadata, timeout_s)
            try:
                answer = await first_answer(stream, request)
            finally:
                stream.cancel()
            return cast("int", answer.TTL)

        try:
            ttl_s = await self._client.run(attempt, Repeat.HARMLESS, connect_timeout_s=timeout_s)
        finally:
            # Otherwise a member that always needs a little longer never succeeds.
            self._slow = time.monotonic() - began_s >= patience_s
        if ttl_s <= 0:
            raise LeaseNotFoundError(f"lease {lease_id:x} is over: expired or revoked")

    async def revoke_lease(self, lease_id: int) -> None:
        """See `driftlog_metadata.stores.store.MetadataStore.revoke_lease`."""
        check_lease_id(lease_id)
        request = messages.LeaseRevokeRequest(ID=lease_id)
        with contextlib.suppress(LeaseNotFoundError):
            await self._client.ask(messages.LEASE_REVOKE, request, Repeat.HARMLESS)

    def watch(self, prefix: str, start_revision: int) -> Watch:
        """See `driftlog_metadata.stores.store.MetadataStore.watch`."""
        watch = EtcdWatch(self._client, prefix, start_revision, self._watches.discard)
        self._watches.add(watch)
        return watch

    async def close(self) -> None:
        """End the watches, hang up.  A repeat is harmless."""
        async with asyncio.TaskGroup() as tasks:
            for watch in list(self._watches):
                tasks.create_task(watch.aclose())
        await self._client.close()

    # ── Beside the port ──

    async def status(self) -> EtcdStatus:
        """The status of the member in use."""
        return await self._client.run(self._status, Repeat.READS)

    async def each_status(self) -> list[EtcdStatus]:
        """The status of every endpoint that answers, with the quota of etcd before 3.6 too."""
        found = await self._client.each(self._status)
        for i, status in enumerate(found):
            if status.quota_bytes is None:
                quota_bytes = await asyncio.to_thread(
                    quota_from_metrics, self._client.settings, status.endpoint
                )
                found[i] = replace(status, quota_bytes=quota_bytes)
        return found

    async def _status(self, endpoint: Endpoint, metadata: Metadata) -> EtcdStatus:
        timeout_s = self._client.settings.try_timeout_ms / 1000
        answer = await endpoint.ask(messages.STATUS, messages.StatusRequest(), metadata, timeout_s)
        return EtcdStatus(
            endpoint=endpoint.url,
            version=answer.version,
            revision=answer.header.revision,
            db_size_bytes=answer.db_size,
            db_size_in_use_bytes=answer.db_size_in_use,
            quota_bytes=answer.db_size_quota or None,
            errors=tuple(answer.errors),
        )


def _add_compare(compares: Any, compare: Compare) -> None:
    message = compares.add(result=messages.COMPARE_EQUAL, key=compare.key.encode())
    match compare:
        case CreateRevisionIs(_, revision):
            message.target = messages.COMPARE_CREATE_REVISION
            message.create_revision = revision
        case ModRevisionIs(_, revision):
            message.target = messages.COMPARE_MOD_REVISION
            message.mod_revision = revision
        case ValueIs(_, value):
            message.target = messages.COMPARE_VALUE
            message.value = value
        case NotWrittenSince(prefix, revision):
            message.target = messages.COMPARE_MOD_REVISION
            message.result = messages.COMPARE_LESS
            message.mod_revision = revision + 1
            message.range_end = prefix_end(prefix)


def _add_operation(operations: Any, operation: Operation) -> None:
    message = operations.add()
    match operation:
        case Put(key, value, lease_id):
            put = message.request_put
            put.key, put.value, put.lease = key.encode(), value, lease_id
        case Delete(key):
            message.request_delete_range.key = key.encode()
        case DeletePrefix(prefix):
            delete = message.request_delete_range
            delete.key, delete.range_end = prefix.encode(), prefix_end(prefix)
        case Get(key):
            message.request_range.key = key.encode()
        case GetPrefix(prefix):
            read = message.request_range
            read.key, read.range_end = prefix.encode(), prefix_end(prefix)


def _read(response: Any) -> tuple[KeyValue, ...]:
    kvs: Iterable[Any] = response.response_range.kvs
    return tuple(map(key_value, kvs))


def _next_limit(limit: int, page_bytes: int, most: int) -> int:
    """Number of keys for the next page, by the last page's bytes per key."""
    return max(1, min(limit * _PAGE_BYTES // max(page_bytes, 1), most))
