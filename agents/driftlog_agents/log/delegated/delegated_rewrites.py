"""The rewrites of partitions that other agents lead: as a Spark job's, with `SealedPartition`.

    turn of the partition ──▶ newest manifest ──▶ `Busy` of this agent ──▶ GETs, PUTs ──▶ the edit
        ──▶ no `Busy`

1. No key of the metadata store is written: the leader reads the edit from the bucket, before it
   edits the manifest itself, or when it reads the partition (`known_manifests`).
2. An agent that dies leaves its `Busy`: the others begin when it has lapsed.  An agent that stops
   leaves it, too: a slow store cannot delay the end.
3. The view has the topic as its key is after the manifest was read: what came after a change of its
   configs was acknowledged is not rewritten by the old ones.
4. A rewrite ends when the rule gives the partition to another agent.

Shell.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from driftlog_agents.foundation.keyed_lock import KeyedLock
from driftlog_agents.log.compaction.rewrite_ports import RewritePorts
from driftlog_agents.log.compaction.rewrites import PartitionRewrite
from driftlog_agents.log.compaction.sealed_log import name_of
from driftlog_agents.log.delegated.delegated_partitions import (
    DelegatedPartition,
    DelegatedPartitions,
)
from driftlog_agents.log.partition.partition import State
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.keys import topic_key
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.compaction.sealed_partition import SealedPartition
from driftlog_tiering.compaction.segment_rows import RewriteEnvironment
from driftlog_tiering.formats.manifest import Manifest, ReplaceSegments
from driftlog_tiering.foundation.types import Buffer

BUSY_MS: Final = 120_000
"""How long `Busy` lasts unless it is renewed.  Longer: fewer edits; after the death of an agent,
another one begins later with what it worked on."""


class DelegatedRewrites:
    """`Rewrites` of delegated partitions; see the module.

    Args:
        grace: the cluster's.
    """

    def __init__(
        self,
        *,
        session: Session,
        partitions: DelegatedPartitions,
        grace: Grace,
        ports: RewritePorts,
    ) -> None:
        self.session = session
        self.ports = ports
        self.partitions = partitions
        self.environment = RewriteEnvironment(
            offload=ports.offload, spool=ports.spool, nonce=ports.nonce, now_ms=ports.now_ms
        )
        self._grace = grace
        self._turns = KeyedLock[DelegatedPartition]()

    @property
    def format_level(self) -> int:
        """As `Rewrites.format_level`."""
        return self.session.author.format_version

    def version(self, log: DelegatedPartition) -> int | None:
        """As `Rewrites.version`: the one that the key names."""
        return log.manifest_version or None

    async def known(self, log: DelegatedPartition) -> Manifest:
        """As `Rewrites.known`."""
        return await self.current(log)

    async def current(self, log: DelegatedPartition) -> Manifest:
        """As `Rewrites.current`; nothing is cached."""
        return await _newest(self._sealed(log), log)

    def may_compact(self, log: DelegatedPartition) -> bool:
        """As `Rewrites.may_compact`: if the topic does not inherit it."""
        return log.has_own_policy

    def is_taken(self, log: DelegatedPartition) -> bool:
        """As `Rewrites.is_taken`."""
        return log in self._turns

    @asynccontextmanager
    async def rewrite(
        self, log: DelegatedPartition, sends: Callable[[ReplaceSegments], None] = lambda _: None
    ) -> AsyncIterator[PartitionRewrite]:
        """As `Rewrites.rewrite`; `Busy` is put before the first read of a segment."""
        async with self._turns.of(log):
            await self.session.ownership.hold()
            sealed = self._sealed(log)
            manifest = await _newest(sealed, log)
            if not log.has_topic(await self.session.read(topic_key(log.topic))):
                # Its configs may have changed before records that the manifest has.
                raise UnavailableError(f"{name_of(log)}: this agent's view of the topic is old")
            try:
                yield PartitionRewrite(manifest, DelegatedBucket(self, log, sealed, sends))
            except Exception:
                await sealed.end()
                raise
            await sealed.end()

    def void(self, log: DelegatedPartition, manifest: Manifest) -> None:
        """As `Rewrites.void`: the next look reads it."""

    def drop(self, log: DelegatedPartition) -> None:
        """As `Rewrites.drop`: nothing is cached."""

    def _sealed(self, log: DelegatedPartition) -> SealedPartition:
        return SealedPartition(
            self.ports.objects,
            log.topic,
            log.tp,
            (self.session.author, self._grace),
            self.environment,
            by=f"agent {self.session.node_id}",
            busy_ms=BUSY_MS,
        )


async def _newest(sealed: SealedPartition, log: DelegatedPartition) -> Manifest:
    found = await sealed.newest()
    if found is None or found.version < log.manifest_version:
        raise UnavailableError(f"{name_of(log)}: a listing shows no manifest that its key names")
    return found


class DelegatedBucket:
    """A `Bucket` of one delegated partition.

    Args:
        sends: called with an edit before it is sent.
    """

    def __init__(
        self,
        rewrites: DelegatedRewrites,
        log: DelegatedPartition,
        sealed: SealedPartition,
        sends: Callable[[ReplaceSegments], None],
    ) -> None:
        self._rewrites = rewrites
        self._log = log
        self._sealed = sealed
        self._sends = sends

    async def get(self, key: str, start: int, end: int) -> Buffer:
        """As `Bucket.get`."""
        self._check_delegated()
        return await self._sealed.get(key, start, end)

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        """As `Bucket.put`."""
        self._check_delegated()
        await self._sealed.put(key, body)

    async def store_now_ms(self) -> int:
        """As `Bucket.store_now_ms`."""
        return await self._sealed.store_now_ms()

    async def decode(self, size_bytes: int, work: Callable[..., Any], *args: Any) -> Any:
        """As `Bucket.decode`."""
        return await self._rewrites.ports.decode(size_bytes, work, *args)

    async def commit(self, edit: ReplaceSegments, began_ms: float, deadline_ms: float) -> None:
        """As `Bucket.commit`."""
        self._check_delegated()
        await self._rewrites.session.ownership.hold()
        self._sends(edit)
        await self._sealed.commit(edit, began_ms, deadline_ms)
        self._rewrites.partitions.edited(self._log)

    def _check_delegated(self) -> None:
        """Raises UnavailableError: another agent does the upkeep, and a rewrite would go on."""
        if self._log.state is not State.ONLINE:
            raise UnavailableError(f"another agent does the upkeep of {name_of(self._log)}")
