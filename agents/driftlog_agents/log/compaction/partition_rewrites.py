"""The rewrites of partitions that are led here: one rewrite of a partition at a time.

    turn of the partition ──▶ newest manifest, another's `Busy` ──▶ GETs, PUTs ──▶ the edit
        ──▶ the cached manifest

1. Compaction and merging of one partition take turns: the edit of one would make the work of the
   other void.
2. A rewrite begins with the newest manifest, read past the cache: another agent or job may have
   edited it, or may be at work (`Busy`).
3. Decoding a large row group waits for its turn (`rewrite_ports`): a turn that waits for the thread
   holds up cold reads.
4. A rewrite ends when the partition is not led here any more.

Shell.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from driftlog_agents.foundation.keyed_lock import KeyedLock
from driftlog_agents.log.compaction.rewrite_ports import RewritePorts
from driftlog_agents.log.compaction.rewrites import PartitionRewrite
from driftlog_agents.log.compaction.sealed_log import name_of
from driftlog_agents.log.objects.manifest_cache import ManifestCache
from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.log.reading.ranged_reads import RangedReads
from driftlog_agents.log.reading.read_settings import ReadSettings
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_tiering.compaction.bucket_requests import (
    REQUEST_DEADLINE_S,
    put_in_time,
    store_now_ms,
)
from driftlog_tiering.compaction.policy import PartitionBusyError, busy_ms
from driftlog_tiering.compaction.segment_rows import RewriteEnvironment
from driftlog_tiering.formats.manifest import Manifest, ReplaceSegments
from driftlog_tiering.formats.manifests import commit_edit
from driftlog_tiering.foundation.types import Buffer

SERVED: Final = (State.ONLINE, State.LOADING)

_READS: Final = ReadSettings(requests_at_once=2, request_deadline_ms=REQUEST_DEADLINE_S * 1000)


class PartitionRewrites:
    """See the module.

    Args:
        grace: the cluster's.
    """

    def __init__(
        self, *, session: Session, manifests: ManifestCache, grace: Grace, ports: RewritePorts
    ) -> None:
        self.session = session
        self.manifests = manifests
        self.grace = grace
        self.ports = ports
        self.reads = RangedReads(ports.objects, _READS, ports.now_ms, ports.offload)
        self.environment = RewriteEnvironment(
            offload=ports.offload, spool=ports.spool, nonce=ports.nonce, now_ms=ports.now_ms
        )
        self._turns = KeyedLock[PartitionLog]()

    @property
    def format_level(self) -> int:
        """As `Rewrites.format_level`."""
        return self.session.author.format_version

    def version(self, log: PartitionLog) -> int | None:
        """As `Rewrites.version`: a look takes the manifest that sealing or reading has cached."""
        known = self.manifests.known(log)
        return None if known is None else known.version

    async def known(self, log: PartitionLog) -> Manifest:
        """As `Rewrites.known`."""
        return self.manifests.known(log) or await self.manifests.get(log)

    async def current(self, log: PartitionLog) -> Manifest:
        """As `Rewrites.current`."""
        return await self.manifests.get(log)

    @asynccontextmanager
    async def rewrite(
        self, log: PartitionLog, sends: Callable[[ReplaceSegments], None] = lambda _: None
    ) -> AsyncIterator[PartitionRewrite]:
        """As `Rewrites.rewrite`."""
        async with self.turn(log):
            yield PartitionRewrite(await self.newest(log), PartitionBucket(self, log, sends))

    def void(self, log: PartitionLog, manifest: Manifest) -> None:
        """As `Rewrites.void`."""
        self.manifests.put(log, manifest)

    def drop(self, log: PartitionLog) -> None:
        """As `Rewrites.drop`."""
        self.manifests.drop(log)

    def may_compact(self, log: PartitionLog) -> bool:
        """As `Rewrites.may_compact`: this agent accepts them."""
        return True

    def turn(self, log: PartitionLog) -> AbstractAsyncContextManager[None]:
        """While *log* is rewritten."""
        return self._turns.of(log)

    def is_taken(self, log: PartitionLog) -> bool:
        """Whether *log* is rewritten now."""
        return log in self._turns

    async def newest(self, log: PartitionLog) -> Manifest:
        """The newest manifest of *log*, and its cached one from now on.

        Raises:
            PartitionBusyError: another rewrites the partition.
            CorruptManifestError, UnavailableError, OutcomeUnknownError, TimeoutError: as
                `ManifestCache.get`, which goes on with the cached one meanwhile.
        """
        began_ms = self.ports.now_ms()
        manifest = await self.manifests.read_back(log, log.manifest_version)
        self.manifests.put(log, manifest, began_ms)
        manifest = self.manifests.known(log) or manifest  # an edit of this session was faster
        if manifest.busy is not None:
            store_now_ms = await PartitionBucket(self, log).store_now_ms()
            left_ms = busy_ms(manifest, store_now_ms, self.grace.named_within_ms)
            if left_ms > 0:
                raise PartitionBusyError(left_ms)
        return manifest


class PartitionBucket:
    """A `Bucket` of one led partition.

    Args:
        sends: called with an edit before it is sent.
    """

    def __init__(
        self,
        rewrites: PartitionRewrites,
        log: PartitionLog,
        sends: Callable[[ReplaceSegments], None] = lambda _: None,
    ) -> None:
        self._rewrites = rewrites
        self._ports = rewrites.ports
        self._log = log
        self._sends = sends

    async def get(self, key: str, start: int, end: int) -> Buffer:
        """As `Bucket.get`."""
        self._check_served()
        return await self._rewrites.reads.get(key, start, end)

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        """As `Bucket.put`."""
        self._check_served()
        await put_in_time(self._ports.objects, key, body)

    async def store_now_ms(self) -> int:
        """As `Bucket.store_now_ms`."""
        log = self._log
        tp = TopicPartition(log.topic_id, log.partition)
        return await store_now_ms(self._ports.objects, log.topic, tp)

    async def decode(self, size_bytes: int, work: Callable[..., Any], *args: Any) -> Any:
        """As `Bucket.decode`."""
        return await self._ports.decode(size_bytes, work, *args)

    async def commit(self, edit: ReplaceSegments, began_ms: float, deadline_ms: float) -> None:
        """As `Bucket.commit`: the edit, and the cached manifest."""
        manifests, log, grace = self._rewrites.manifests, self._log, self._rewrites.grace
        await self._rewrites.session.ownership.hold()
        self._sends(edit)
        sent_ms = self._ports.now_ms()
        if sent_ms - manifests.read_at_ms(log) > grace.short_ms:
            manifests.drop(log)
        edited = await commit_edit(
            self._ports.objects,
            await manifests.get(log),
            edit,
            self._ports.nonce(),
            author=self._rewrites.session.author,
            # The objects that it adds are not older than the manifest may be.
            read_at_ms=int(min(began_ms, manifests.read_at_ms(log))),
            deadline_ms=int(deadline_ms),
            now_ms=lambda: int(self._ports.now_ms()),
            wanted=lambda: log.state in SERVED,
            grace=grace,
        )
        manifests.put(log, edited, sent_ms)

    def _check_served(self) -> None:
        """Raises UnavailableError: the partition is closed or moved, and a rewrite would go on."""
        if self._log.state not in SERVED:
            raise UnavailableError(f"{name_of(self._log)} is not led here any more")
