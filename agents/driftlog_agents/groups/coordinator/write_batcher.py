"""Writes of many groups in few transactions, and checks that this agent still coordinates a group.

    group ──wake──▶ waiting ──gather──▶ a transaction of many groups ──▶ stored(revision)
      ▲                                     │ a compare failed
      │                                     ├─▶ the store has its values: it was applied ──▶ stored
      │                                     ├─▶ another agent wrote a key of this group: refused
      └── has more to write ◀───────────────┴─▶ send the others again, without it

A group has one write in flight, and an agent a few transactions; decisions queue meanwhile.  Every
write compares the session's key, the group's own key and each key that it replaces.  A transaction
without an answer is repeated (`Session.transact`) until a compare fails or it succeeds.  Each value
has a nonce: one such value in the store proves that the whole transaction was applied.

1. Each gathered write gets exactly one call of `stored`, `refused` or `too_large`, unless the
   session ends (`FencedError`).
2. `refused` means that a key of the group differs from the write's revisions: another agent
   coordinates the group, and this write will never apply.  (After a lost answer, a late copy of
   the transaction applies only if none of its keys has changed.)
3. The bytes of all writes are limited by the second, together with those of topics and configs
   (`Quota.wait_s`): one client may rewrite a large group at each heartbeat.  Decisions that wait
   meanwhile are combined, so the writes of most groups only wait.

Shell.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.keys import session_key
from driftlog_metadata.stores.errors import FencedError
from driftlog_metadata.stores.quota import Quota
from driftlog_metadata.stores.store import (
    MAX_TXN_BYTES,
    MAX_TXN_OPS,
    Compare,
    CreateRevisionIs,
    Delete,
    DeletePrefix,
    Get,
    KeyValue,
    ModRevisionIs,
    Operation,
    Put,
)
from driftlog_metadata.transactions.session_transactions import Txn

_IN_FLIGHT: Final = 4
"""Concurrent transactions.  More: more groups share the wait for the store's disk, and flushes of
the log wait longer behind them."""

_MAX_KEYS: Final = MAX_TXN_OPS - 2
"""Keys of one transaction without the session's key; a deleted group takes one more operation."""

_GATHER_BYTES: Final = 1_000_000
"""Bytes of one transaction, after which the next begins; a single write may be larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWrite:
    """One write of one group.

    ``revisions``: mod revision by key, 0: no such key; for the group's own key and every key that
    is put or deleted.  ``prefix``: all keys with it are deleted.
    """

    revisions: Mapping[str, int]
    puts: Mapping[str, bytes] = field(default_factory=dict)
    deletes: Sequence[str] = ()
    prefix: str = ""

    @property
    def keys(self) -> int:
        """How many of a transaction's operations it takes."""
        changes = len(self.puts) + len(self.deletes) + bool(self.prefix)
        return max(len(self.revisions), changes)

    @property
    def size_bytes(self) -> int:
        """Its approximate bytes in a transaction."""
        names = 3 * sum(len(key) for key in self.revisions) + 2 * len(self.prefix)
        return names + sum(len(value) for value in self.puts.values())

    @property
    def fits(self) -> bool:
        """Whether it fits a transaction."""
        return self.keys <= _MAX_KEYS and self.size_bytes < MAX_TXN_BYTES - 1000


class Writer(Protocol):
    """A group that writes."""

    async def gather(self) -> GroupWrite | None:
        """The next write, None: nothing to write; called once for each `GroupWrites.wake`."""
        ...

    def stored(self, revision: int) -> None:
        """The gathered write is stored: its keys have this mod revision, or are deleted."""
        ...

    def refused(self) -> None:
        """The gathered write is not stored: another agent coordinates the group."""
        ...

    def too_large(self) -> None:
        """The gathered write is not stored: no transaction can hold it."""
        ...


_Batch = list[tuple[Writer, GroupWrite]]


class GroupWrites:
    """See the module.  `run` while the session lives."""

    def __init__(self, session: Session, counted: Counter[str], quota: Quota) -> None:
        self._session = session
        self._counted = counted
        self._quota = quota
        self._log = structlog.get_logger()
        self._waiting: dict[Writer, None] = {}
        self._awake = asyncio.Event()
        self._held: tuple[Writer, GroupWrite] | None = None
        """A gathered write that did not fit the last transaction."""

    def wake(self, writer: Writer) -> None:
        """Queue *writer*, which has a write and none in flight."""
        self._waiting[writer] = None
        self._awake.set()

    async def run(self) -> None:
        """Send writes, until cancelled.

        Raises:
            FencedError: the session ended; in an exception group.
        """
        limit = asyncio.Semaphore(_IN_FLIGHT)
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._awake.wait()
                await limit.acquire()
                batch = await self._gather()
                if batch:
                    tasks.create_task(self._send(batch)).add_done_callback(
                        lambda _: limit.release()
                    )
                else:
                    limit.release()
                now_s = asyncio.get_running_loop().time()
                self._quota.wrote(sum(write.size_bytes for _, write in batch), now_s)
                del batch  # A reference would keep its groups in memory until the next batch.

                if (wait_s := self._quota.wait_s(now_s)) > 0:
                    await asyncio.sleep(wait_s)

    async def _gather(self) -> _Batch:
        batch: _Batch = []
        keys = size_bytes = 0
        while self._held is not None or self._waiting:
            if self._held is not None:
                writer, write = self._held
                self._held = None
            else:
                writer = next(iter(self._waiting))
                del self._waiting[writer]
                gathered = await writer.gather()
                if gathered is None:
                    continue
                write = gathered
                if not write.fits:
                    self._log.error(
                        "group_write_too_large",
                        keys=write.keys,
                        bytes=write.size_bytes,
                        advice="the group is too large for the metadata store: use fewer members "
                        "in it, or a smaller offset.metadata.max.bytes",
                    )
                    writer.too_large()
                    continue
            keys += write.keys
            size_bytes += write.size_bytes
            if batch and (keys > _MAX_KEYS or size_bytes > _GATHER_BYTES):
                self._held = writer, write
                return batch
            batch.append((writer, write))
        self._awake.clear()
        return batch

    async def _send(self, batch: _Batch) -> None:
        while batch:
            self._counted["driftlog_group_transactions"] += 1
            result = await self._session.transact(_txn(self._session, batch))
            if result.succeeded:
                _stored(batch, result.revision)
                return
            mine, *reads = result.reads
            if not mine or mine[0].create_revision != self._session.revision:
                raise FencedError("the session ended before groups were written")
            there = {kv.key: kv for kvs in reads for kv in kvs}
            revision = _applied_at(batch, there)
            if revision:
                _stored(batch, revision)
                return
            left: _Batch = []
            deletes_only = not any(write.puts for _, write in batch)
            for writer, write in batch:
                if _holds(write, there):
                    left.append((writer, write))
                elif deletes_only and _is_gone(write, there):
                    writer.stored(result.revision)  # Deletions leave no nonce that proves them.
                else:
                    writer.refused()
            batch = left


def _txn(session: Session, batch: _Batch) -> Txn:
    fence = session_key(session.session_id)
    compares: list[Compare] = [CreateRevisionIs(fence, session.revision)]
    then: list[Operation] = []
    otherwise: list[Operation] = [Get(fence)]
    for _, write in batch:
        assert write.puts.keys() <= write.revisions.keys()
        for key, revision in write.revisions.items():
            compares.append(ModRevisionIs(key, revision))
            otherwise.append(Get(key))
        then.extend(Put(key, value) for key, value in write.puts.items())
        then.extend(Delete(key) for key in write.deletes)
        if write.prefix:
            then.append(DeletePrefix(write.prefix))
    return Txn(tuple(compares), tuple(then), tuple(otherwise))


def _stored(batch: _Batch, revision: int) -> None:
    for writer, _ in batch:
        writer.stored(revision)


def _applied_at(batch: _Batch, there: Mapping[str, KeyValue]) -> int:
    """The revision at which *batch* was applied although its answer was lost; 0: it was not."""
    for _, write in batch:
        for key, value in write.puts.items():
            kv = there.get(key)
            if kv is not None and kv.value == value:
                return kv.mod_revision
    return 0


def _holds(write: GroupWrite, there: Mapping[str, KeyValue]) -> bool:
    return all(
        (kv.mod_revision if (kv := there.get(key)) is not None else 0) == revision
        for key, revision in write.revisions.items()
    )


def _is_gone(write: GroupWrite, there: Mapping[str, KeyValue]) -> bool:
    return not any(key in there for key in write.deletes)


class Confirmations:
    """Checks in the store, for many groups at once, that this agent still coordinates them.

    Only this check proves that an answer from memory is current: a claim of another agent needs
    no consent of this one.  `run` while the session lives.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: dict[tuple[str, int], asyncio.Future[bool]] = {}
        self._awake = asyncio.Event()

    async def confirm(self, key: str, revision: int) -> bool:
        """Whether *key* had this mod revision at some time after this call began.

        False, too, if the session ended and it is unknown.
        """
        future = self._waiting.get((key, revision))
        if future is None:
            future = asyncio.get_running_loop().create_future()
            self._waiting[key, revision] = future
            self._awake.set()
        return await asyncio.shield(future)

    async def run(self) -> None:
        """Send checks, until cancelled.

        Raises:
            FencedError: the session ended.
        """
        asked: dict[tuple[str, int], asyncio.Future[bool]] = {}
        try:
            while True:
                await self._awake.wait()
                asked = self._first()
                for wanted in asked:
                    del self._waiting[wanted]
                if not self._waiting:
                    self._awake.clear()
                whole = await self._are(list(asked))
                for wanted, future in asked.items():
                    future.set_result(whole or (len(asked) > 1 and await self._are([wanted])))
        finally:
            for future in (*asked.values(), *self._waiting.values()):
                if not future.done():
                    future.set_result(False)
            self._waiting.clear()

    def _first(self) -> dict[tuple[str, int], asyncio.Future[bool]]:
        """The first checks that fit one transaction: a group's key may be 100 KB long."""
        some: dict[tuple[str, int], asyncio.Future[bool]] = {}
        size_bytes = 0
        for wanted, future in self._waiting.items():
            size_bytes += len(wanted[0])
            if some and (len(some) == _MAX_KEYS or size_bytes > _GATHER_BYTES):
                break
            some[wanted] = future
        return some

    async def _are(self, wanted: Sequence[tuple[str, int]]) -> bool:
        fence = session_key(self._session.session_id)
        # The result of the read is not used.  Without a read, etcd may answer the transaction from
        # a member that is behind (etcdserver: isTxnSerializable).
        result = await self._session.transact(
            Txn(
                compares=tuple(ModRevisionIs(key, revision) for key, revision in wanted),
                then=(Get(fence),),
                otherwise=(Get(fence),),
            )
        )
        return result.succeeded
