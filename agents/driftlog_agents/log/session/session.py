"""One session: its lease, its fencing key, its commits.

    open ──▶ alive ──▶ closed (revoked by us)
               │
               └─▶ lost: the lease ran out, by the store's clock or by our own

`lease` says how long the session is valid and when it is renewed; its clock counts the time during
which the machine was suspended.  A thread may send the keep-alives (`keep_alive`).

Shell.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from driftlog_agents.cluster.cluster_file import Believed, Ownership
from driftlog_agents.cluster.newer_objects import newer_final_head
from driftlog_agents.foundation.failure_tracker import FailureTracker
from driftlog_agents.log.session.commit_outcome import (
    CommitOutcome,
    is_closed,
    outcome_of,
    outcome_of_open,
)
from driftlog_agents.log.session.keep_alive import KeepAlive
from driftlog_agents.log.session.lease import SessionLease, SessionSettings
from driftlog_metadata.schema.codec import decode_cluster
from driftlog_metadata.schema.keys import CLUSTER_KEY, agent_key, head_key, session_key
from driftlog_metadata.schema.model import FORMAT_VERSION, Agent, Cluster, FlushRecord
from driftlog_metadata.stores.errors import (
    AnswerTooLargeError,
    CorruptError,
    FencedError,
    OutcomeUnknownError,
    UnavailableError,
)
from driftlog_metadata.stores.store import (
    Get,
    KeyValue,
    LeaseNotFoundError,
    MetadataStore,
    TxnResult,
)
from driftlog_metadata.transactions import session_transactions as transactions
from driftlog_metadata.witness.witness import OwnSession
from driftlog_metadata.witness.witnessed_store import WitnessedStore
from driftlog_tiering.stores.object_store import ObjectStore

_T = TypeVar("_T")


class Session:
    """See the module.  `open` it once; then `keep_alive` runs until the session is over.

    Args:
        keep_alive: sends keep-alives from another loop; None: they are a task on the agent's event
            loop.
        ownership: whether the cluster has the bucket; None: no other cluster can get it.
        secret: what requests of other agents to this session repeat; None: it takes none.
    """

    def __init__(
        self,
        *,
        store: WitnessedStore,
        agent: Agent,
        settings: SessionSettings,
        now_ms: Callable[[], float],
        keep_alive: KeepAlive | None = None,
        outage: FailureTracker | None = None,
        ownership: Ownership | None = None,
        secret: str | None = None,
    ) -> None:
        self._store = store
        self._witness = store.witness
        self._agent = agent
        self._settings = settings
        self._now_ms = now_ms
        self._keep_alive = keep_alive
        self._log = structlog.get_logger()
        self.session_id = agent.session_id
        self.secret = secret
        self.lease_id = transactions.lease_id_of(agent.session_id)
        self.revision = 0
        """Create revision of the session's key: the fence."""
        self._lease = SessionLease(settings, store.witness)
        self.ownership = ownership or Believed()
        """Asked before each commit and each edit."""
        self.outage = outage or FailureTracker()
        """Since when the metadata store has not answered; keep-alives have a tracker of their own,
        for another thread may send them."""
        self._renewal_outage = FailureTracker()
        self._committed = OwnSession(agent.session_id)
        """The state of this session that the witness keeps when the session is over."""

    @property
    def valid_until_ms(self) -> float:
        """Until then the store gives no other session the partitions of this one; 0: it is over."""
        return self._lease.valid_until_ms

    @property
    def alive(self) -> bool:
        """Whether, by our own clock, no other session can have the partitions of this one."""
        return self._now_ms() < self.valid_until_ms

    def end(self, why: str) -> None:
        """End the session: it serves nothing more, whatever its lease.  From any thread."""
        self._lease.end(why)

    @property
    def node_id(self) -> int:
        """The node id of the session's agent."""
        return self._agent.node_id

    async def open(self) -> None:
        """Grant the lease and create the session's keys; repeats until the store answers.

        Raises:
            FencedError: the lease ended meanwhile (begin another session), or the store is not the
                one that this process has seen.
        """
        agent_kv = await self._look()
        sent = self._now_ms()
        await self._repeat(lambda: self._store.grant_lease(self.lease_id, self._settings.ttl_ms))
        while self._lease.must_repeat(sent, self._now_ms()):
            sent = self._now_ms()
            await self._repeat(lambda: self._store.keep_alive(self.lease_id))
        self._lease.renewed(sent)
        while not self.revision:
            txn = transactions.open_session(
                self._agent,
                agent_kv.mod_revision if agent_kv else 0,
                self.cluster,
                self._settings.knows,
                self.secret,
            )
            result = await self._repeat(lambda txn=txn: self._txn(txn))  # type: ignore[misc]
            if not result.succeeded:
                self.check_cluster(result.reads[-1])
            outcome = outcome_of_open(session_key(self.session_id), result)
            self.revision, agent_kv = outcome.revision, outcome.agent
        self._committed.valid_until_ms = self._lease.renewed_until_ms
        self._witness.session = self._committed

    async def _look(self) -> KeyValue | None:
        """Read the agent's key; check that the store has the head of this process's last session.

        Raises:
            FencedError: the store is not the one that this process has seen.
        """
        before = self._witness.head_there
        reads = [Get(agent_key(self._agent.node_id)), Get(CLUSTER_KEY)]
        if before is not None:
            reads.append(Get(head_key(before.session_id)))
        result = await self._repeat(lambda: self._store.txn((), reads))
        agent_kvs, cluster, *head = result.reads
        self.check_cluster(cluster)
        if before is not None:
            try:
                self._witness.read_head(head[0], before, before.committed)
            except CorruptError as error:
                # The head is there; its number is not known, so it is evidence of nothing.
                self._say_unreadable(head_key(before.session_id), error)
            self._witness.check()
        return agent_kvs[0] if agent_kvs else None

    @property
    def cluster(self) -> bytes:
        """The value of the cluster's key, which every claim requires."""
        assert self._witness.cluster is not None, "a session before the cluster was joined"
        return self._witness.cluster

    @property
    def author(self) -> Cluster:
        """The cluster, at its present format level: what this session stores is of it."""
        return decode_cluster(self.cluster)

    def check_cluster(self, kvs: Sequence[KeyValue]) -> None:
        """Check *kvs*, a linearizable read of the cluster's key.

        Raises:
            FencedError: the store is not of our cluster, or the cluster's format level has risen
                above what this release knows.
        """
        self._witness.read_cluster(kvs)
        self._witness.check()
        level = self.author.format_version
        if level > FORMAT_VERSION:
            raise FencedError(f"the cluster's format level is {level}")

    async def keep_alive(self) -> None:
        """Renew the lease every TTL/3 until the session is lost.

        Raises:
            FencedError: the lease is gone, or has expired by our own clock, or the event loop stood
                still for a whole TTL.
        """
        if self._keep_alive is None:
            await self._renewing(self._store)
        else:
            self._lease.ticked(self._now_ms())
            await self._keep_alive(self._renewing, self._tick)

    def _tick(self) -> None:
        """Note that the event loop runs, and check the lease: the keep-alives may have ended."""
        now_ms = self._now_ms()
        self._lease.ticked(now_ms)
        self._lease.check(now_ms)

    # ── Keep-alives: on the event loop, or on the loop of `keep_alive` ──

    async def _renewing(self, store: MetadataStore) -> None:
        while True:
            await asyncio.sleep(self._lease.renewal_in_ms(self._now_ms()) / 1000)
            await self._renew(store)

    async def _renew(self, store: MetadataStore) -> None:
        while True:
            sent = self._now_ms()
            self._lease.check(sent)
            if stood_still_ms := self._lease.stood_still_ms(sent):
                await self._stop_for_a_loop_that_stands_still(store, stood_still_ms)
            in_thread = self._keep_alive is not None
            deadline_ms = self._lease.keep_alive_deadline_ms(sent, in_thread=in_thread)
            try:
                async with asyncio.timeout(deadline_ms / 1000):
                    await store.keep_alive(self.lease_id)
            except LeaseNotFoundError as error:
                self.end(str(error))
                raise
            except (UnavailableError, OutcomeUnknownError, TimeoutError) as error:
                if not in_thread and isinstance(error, TimeoutError):
                    self._lease.timed_out()
                text = str(error) or "no answer in time"
                if self._renewal_outage.failed(text, sent, self._now_ms()):
                    self._log.warning("keep_alive_failed", session=self.session_id, error=text)
                await asyncio.sleep(self._settings.retry_ms / 1000)
            else:
                self._lease.renewed(sent)
                self._committed.valid_until_ms = self._lease.renewed_until_ms
                self._renewal_outage.ended(self._now_ms())
                return

    async def _stop_for_a_loop_that_stands_still(
        self, store: MetadataStore, since_ms: float
    ) -> None:
        why = "the event loop stood still for the session's whole time to live"
        self.end(why)  # before another session can claim a partition
        self._log.error(
            "event_loop_stood_still",
            session=self.session_id,
            seconds=round(since_ms / 1000, 1),
            advice="the session ends, and other agents take over; if the machine was not suspended "
            "or starved of CPU, please report this",
        )
        with contextlib.suppress(UnavailableError, OutcomeUnknownError, TimeoutError):
            async with asyncio.timeout(self._settings.request_deadline_ms / 1000):
                await store.revoke_lease(self.lease_id)
        raise FencedError(why)

    async def commit(self, seq: int, record: FlushRecord) -> CommitOutcome:
        """Send the commit of flush *seq* once; returns its outcome."""
        txn = transactions.commit(self.session_id, self.revision, seq, record)
        sent = self._now_ms()
        try:
            result = await self._txn(txn)
        except (UnavailableError, OutcomeUnknownError, TimeoutError) as error:
            self._lease.end_if_store_changed()
            if not self._lease.is_over:
                self._is_away(error, sent)
            return CommitOutcome.UNKNOWN
        self._is_there()
        try:
            outcome = outcome_of(seq, result)
        except CorruptError as error:
            # Every commit compares the head: no later one succeeds.
            self._say_unreadable(head_key(self.session_id), error)
            self.end("its head cannot be read")
            return CommitOutcome.DEAD
        if outcome is CommitOutcome.COMMITTED:
            self._committed.committed = max(self._committed.committed, seq)
            return outcome
        _, head = result.reads
        if head or sent < self.valid_until_ms:
            self._witness.read_head(head, self._committed, self._committed.committed)
            self._lease.end_if_store_changed()
        self.end("one of its commits was refused")
        return outcome

    def _say_unreadable(self, key: str, error: CorruptError) -> None:
        self._log.error(
            "head_unreadable",
            session=self.session_id,
            error=f"{key}: {error}",
            advice="the agent continues with another session; find out what wrote that key: no "
            "driftlog of this release does",
        )

    async def close(self) -> None:
        """Revoke the lease, so that other agents may claim the partitions at once."""
        self.end("it was closed here")
        try:
            # No longer, however slow the store is: stop() waits for this, and the lease expires
            # anyway.
            async with asyncio.timeout(self._settings.request_deadline_ms / 1000):
                await self._store.revoke_lease(self.lease_id)
        except (UnavailableError, OutcomeUnknownError, TimeoutError) as error:
            self._log.warning(
                "lease_not_revoked", error=repr(error), advice="no action needed; the lease expires"
            )

    # ── Requests that are repeated until they are answered ──

    async def transact(self, txn: transactions.Txn) -> TxnResult:
        """Send a guarded transaction until it is answered, while the session lives.

        Raises:
            FencedError: the session ended first, also because the store is not the one that this
                process has seen; whether it was applied is not known.
        """
        return await self._repeat(lambda: self._txn(txn), while_alive=True)

    async def read_prefix(self, prefix: str, *, keys_only: bool = False) -> list[KeyValue]:
        """Every key under *prefix*, repeated until it is answered; *keys_only*: with empty values.

        Raises:
            FencedError: the session ended first.
        """
        _, kvs = await self._repeat(
            lambda: self._store.get_prefix(prefix, keys_only=keys_only),
            while_alive=True,
            larger=True,
        )
        return kvs

    async def check_newer(self, session_id: str, objects: ObjectStore) -> None:
        """Check that the final heads of a session are not newer than the metadata store.

        Raises:
            FencedError: one is: the store is an old backup, and the agent ends.
            CorruptError, StoreError, TimeoutError: that is not known.
        """
        wrong = await newer_final_head(objects, self._store, session_id)
        if wrong:
            self._log.error("old_metadata_store_found", reason=wrong, advice="the agent ends")
            self.ownership.lose(wrong)
            raise FencedError(wrong)

    async def read(self, key: str) -> KeyValue | None:
        """One key; as `read_prefix`."""
        return await self._repeat(lambda: self._store.get(key), while_alive=True)

    async def revoke(self, lease_id: int) -> None:
        """End the lease of a session that is known to be dead; as `read_prefix`."""
        await self._repeat(lambda: self._store.revoke_lease(lease_id), while_alive=True)

    async def _txn(self, txn: transactions.Txn) -> TxnResult:
        return await self._store.txn(txn.compares, txn.then, txn.otherwise)

    async def _repeat(
        self,
        request: Callable[[], Awaitable[_T]],
        *,
        while_alive: bool = False,
        larger: bool = False,
    ) -> _T:
        """*larger*: the answer may be large, so each deadline is twice the last."""
        size = 1
        while True:
            sent = self._now_ms()
            try:
                async with asyncio.timeout(self._lease.deadline_ms * size / 1000):
                    answer = await request()
                self._is_there()
                self._lease.answered(self._now_ms() - sent)
                return answer
            except AnswerTooLargeError:
                raise  # and so would be the next one
            except (UnavailableError, OutcomeUnknownError, TimeoutError) as error:
                self._witness.check()
                self._is_away(error, sent)
                if isinstance(error, TimeoutError):
                    self._lease.timed_out()
                    size *= 2 if larger else 1
            if while_alive and not self.alive:
                raise FencedError("the session ended while the metadata store did not answer")
            await asyncio.sleep(self._settings.retry_ms / 1000)

    def _is_away(self, error: Exception, sent_ms: float) -> None:
        text = str(error) or "no answer in time"
        if self.outage.failed(text, sent_ms, self._now_ms()):
            self._log.warning(
                "metadata_store_unreachable",
                error=text,
                failures=self.outage.failures,
                seconds=round(self.outage.lasted_ms(self._now_ms()) / 1000, 1),
                advice="retrying; nothing is committed until the store answers, and this agent "
                "leads nothing once its session expires",
            )

    def _is_there(self) -> None:
        now_ms = self._now_ms()
        lasted_ms = self.outage.lasted_ms(now_ms)
        if self.outage.ended(now_ms):
            self._log.info("metadata_store_recovered", seconds=round(lasted_ms / 1000, 1))


async def close_head(session: Session, old_session_id: str) -> tuple[int, KeyValue | None]:
    """Mark an old session's head *closed*, so that none of its commits succeeds any more.

    Returns the revision at which the session was opened, which orders sessions, 0: it has no head;
    and the head that was closed, None: another life has closed it.

    Raises:
        FencedError: the present session ended first.
    """
    kv = await session.read(head_key(old_session_id))
    opened = kv.create_revision if kv is not None else 0
    last = None
    while kv is not None and not is_closed(kv):
        last = kv
        result = await session.transact(transactions.close_head(old_session_id, kv.mod_revision))
        if result.succeeded:
            break
        kv = result.reads[0][0] if result.reads[0] else None
    return opened, last
