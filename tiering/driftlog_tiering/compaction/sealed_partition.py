"""The sealed log of one partition, for a job: a process without a metadata store.

    newest manifest ──▶ another's `Busy`? ──▶ `Busy` of this job ──▶ GETs, PUTs, edits ──▶ no `Busy`
                                    every third of its time: a later end ──┘

1. Cluster, format level and grace are those of the bucket's newest cluster file.  An edit needs a
   look at it of the last minute that found the same cluster and grace: otherwise the work ends.
2. Each edit goes through `commit_edit`, on a manifest that was read a short time ago.  No key of
   the metadata store is written: the partition's leader reads the edit from the bucket.
3. `Busy` ends at most grace / 2 after it was put, by the store's clock.  That of a job that was
   killed lapses: agents and other jobs go on then.
4. A read that fails is repeated a few times.  After a PUT that fails the work is begun again: no
   key is used twice.

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import (
    COMPACTION_LEVEL,
    FORMAT_VERSION,
    Cluster,
    Topic,
    TopicPartition,
)
from driftlog_metadata.stores.errors import (
    CorruptError,
    DeclinedError,
    FencedError,
    OutcomeUnknownError,
    UnavailableError,
)
from driftlog_tiering.compaction.broker_defaults import BrokerDefaults, broker_defaults
from driftlog_tiering.compaction.bucket_requests import (
    REQUEST_DEADLINE_S,
    put_in_time,
    store_now_ms,
)
from driftlog_tiering.compaction.newest_topic import newest_topic
from driftlog_tiering.compaction.policy import PartitionBusyError, busy_ms
from driftlog_tiering.compaction.segment_rows import EDIT_MS, RewriteEnvironment
from driftlog_tiering.formats.bucket_files import decode_cluster, decode_grace
from driftlog_tiering.formats.cluster_files import newest_cluster_file
from driftlog_tiering.formats.manifest import (
    Busy,
    Edit,
    Manifest,
    ReplaceSegments,
    SegmentRef,
    SetBusy,
)
from driftlog_tiering.formats.manifests import commit_edit, load_newest
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_store import NotFoundError, ObjectStore

T = TypeVar("T")

BUSY_MS: Final = 600_000
"""How long `Busy` lasts unless it is renewed.  Longer: fewer edits; agents and other jobs wait
longer for one that was killed."""

LOOK_MS: Final = 60_000.0
"""How long a look at the cluster file counts.  Longer: a job goes on longer after a restore, which
waits a minute, and after a change of grace."""

_RENEWALS: Final = 3
_TRIES: Final = 5
_FIRST_PAUSE_S: Final = 0.2


class ClusterLevelError(Exception):
    """The cluster's format level is not one that a rewrite may write; the message says what to
    do."""


async def read_cluster(store: ObjectStore) -> tuple[Cluster, Grace]:
    """The cluster of the bucket, whose level allows rewrites, and its grace.

    Raises:
        NotFoundError: there is no cluster file: it is no driftlog bucket.
        CorruptError: the file is damaged.
        ClusterLevelError: the level is too low, or a newer release's.
    """
    _, body = await newest_cluster_file(store)
    cluster, grace = decode_cluster(body), decode_grace(body)
    if cluster.format_version < COMPACTION_LEVEL:
        raise ClusterLevelError(
            f"the cluster has format level {cluster.format_version}, and compaction and merging "
            f"need {COMPACTION_LEVEL}: upgrade all agents, then run driftlog cluster upgrade "
            "--finalize"
        )
    if cluster.format_version > FORMAT_VERSION:
        raise ClusterLevelError(
            f"the cluster has format level {cluster.format_version}, and this release knows "
            f"{FORMAT_VERSION}: upgrade driftlog where the job and its executors run"
        )
    return cluster, grace


class SealedPartition:
    """See the module; a `Bucket` of one partition.

    Args:
        by: the name of what rewrites it, as others are told; the same for each attempt of one job.
        busy_ms: how long `Busy` lasts unless it is renewed.
    """

    def __init__(
        self,
        store: ObjectStore,
        topic: str,
        tp: TopicPartition,
        cluster: tuple[Cluster, Grace],
        environment: RewriteEnvironment,
        by: str,
        busy_ms: int = BUSY_MS,
    ) -> None:
        self.store = store
        self.environment = environment
        self.edits = 0
        """Committed pieces."""
        self._unanswered: ReplaceSegments | None = None
        """The piece whose commit ended without an answer."""
        self._topic = topic
        self._tp = tp
        self._author, self._grace = cluster
        self._now_ms = environment.now_ms
        self._looked_ms = self._now_ms()
        self._by = by
        self._busy_ms = min(busy_ms, self._grace.named_within_ms)
        self._manifest: Manifest | None = None
        self._read_at_ms = 0.0
        self._marked_ms = 0.0

    @property
    def manifest(self) -> Manifest:
        """The newest known manifest, after `newest`."""
        assert self._manifest is not None
        return self._manifest

    @property
    def grace(self) -> Grace:
        """The cluster's."""
        return self._grace

    async def newest(self) -> Manifest | None:
        """Read the newest manifest; None: nothing is sealed.

        Raises:
            CorruptError: it is damaged or missing.
            UnavailableError, OutcomeUnknownError, TimeoutError: the store.
        """
        began_ms = self._now_ms()
        found = await _repeated(lambda: load_newest(self.store, self._topic, self._tp))
        if found is not None:
            self._manifest, self._read_at_ms = found, began_ms
        return found

    async def topic(self) -> Topic | None:
        """The topic as its newest file has it; None: it is deleted.

        Raises: as `newest`.
        """
        return await _repeated(lambda: newest_topic(self.store, self._topic, self._tp.topic_id))

    async def defaults(self, known: BrokerDefaults) -> BrokerDefaults:
        """What its topic inherits from all brokers; *known*, if no snapshot is newer.

        Raises: as `newest`.
        """
        cluster_id = self._author.cluster_id
        return await _repeated(lambda: broker_defaults(self.store, cluster_id, known))

    # ── Busy ──

    async def begin(self) -> None:
        """Put `Busy`.

        Raises:
            PartitionBusyError: another rewrites the partition.
            VoidEditError: another was faster.
            OtherClusterError: the partition is another cluster's.
            UnavailableError, OutcomeUnknownError, TimeoutError: the store.
        """
        store_ms = await self.store_now_ms()
        there = self.manifest.busy
        if there is not None and there.by != self._by:
            left_ms = busy_ms(self.manifest, store_ms, self._grace.named_within_ms)
            if left_ms > 0:
                raise PartitionBusyError(left_ms, there.by)
        began_ms = self._now_ms()
        await self._commit(SetBusy(there, Busy(self._by, store_ms + self._busy_ms)), began_ms)
        self._marked_ms = began_ms

    async def end(self) -> None:
        """Take `Busy` away; if that fails, it lapses."""
        there = None if self._manifest is None else self._manifest.busy
        if there is not None and there.by == self._by:
            # It may be another's by now, or no longer there.
            with suppress(
                FencedError, UnavailableError, OutcomeUnknownError, TimeoutError, CorruptError
            ):
                await self._commit(SetBusy(there, None), self._now_ms())

    async def _renew(self) -> None:
        if self._now_ms() - self._marked_ms > self._busy_ms / _RENEWALS:
            await self.begin()

    # ── As `Bucket` ──

    async def get(self, key: str, start: int, end: int) -> Buffer:
        """As `Bucket.get`.

        Raises:
            CorruptError: the object is missing.
        """
        await self._renew()

        try:
            found = await _repeated(lambda: self.store.get(key, start, end))
        except NotFoundError as error:
            raise CorruptError(f"{key}: missing") from error
        if len(found) != end - start:
            raise CorruptError(f"{key}: it ends before {end}")
        return found

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        """As `Bucket.put`."""
        await self._renew()
        await put_in_time(self.store, key, body)

    async def store_now_ms(self) -> int:
        """As `Bucket.store_now_ms`."""
        return await _repeated(lambda: store_now_ms(self.store, self._topic, self._tp))

    async def commit(self, edit: ReplaceSegments, began_ms: float, deadline_ms: float) -> None:
        """As `Bucket.commit`."""
        try:
            await self._commit(edit, began_ms, deadline_ms)
        except (OutcomeUnknownError, TimeoutError):
            self._unanswered = edit
            raise
        self.edits += 1

    def count_unanswered(self, segments: Sequence[SegmentRef]) -> None:
        """Count the piece whose commit had no answer, if it is part of *segments*, the newest
        manifest's: no other edit adds the same segments."""
        piece, self._unanswered = self._unanswered, None
        if piece is not None and ({*piece.added} - {*piece.replaced}) & {*segments}:
            self.edits += 1

    async def decode(self, size_bytes: int, work: Callable[..., Any], *args: Any) -> Any:
        """As `Bucket.decode`."""
        return await self.environment.offload(work, *args)

    async def _commit(self, edit: Edit, began_ms: float, deadline_ms: float | None = None) -> None:
        await self._look()
        sent_ms = self._now_ms()
        if sent_ms - self._read_at_ms > self._grace.short_ms:
            await self.newest()
        self._manifest = await commit_edit(
            self.store,
            self.manifest,
            edit,
            self.environment.nonce(),
            author=self._author,
            # The objects that it adds are not older than the manifest may be.
            read_at_ms=int(min(began_ms, self._read_at_ms)),
            deadline_ms=int(sent_ms + EDIT_MS if deadline_ms is None else deadline_ms),
            now_ms=lambda: int(self._now_ms()),
            grace=self._grace,
        )
        self._read_at_ms = sent_ms

    async def _look(self) -> None:
        """Look at the cluster file, unless that was done a short time ago.

        Raises:
            FencedError: another cluster has the bucket, or grace was changed.
        """
        sent_ms = self._now_ms()
        if sent_ms - self._looked_ms <= LOOK_MS:
            return
        try:
            _, body = await _repeated(lambda: newest_cluster_file(self.store))
        except NotFoundError as error:
            raise FencedError("the bucket's cluster file is not there any more") from error
        there, grace = decode_cluster(body).cluster_id, decode_grace(body)
        if there != self._author.cluster_id:
            raise FencedError(
                f"the bucket became that of cluster {there} while the job ran (a restore)"
            )
        if grace != self._grace:
            raise FencedError(
                f"the cluster's grace is {grace.ms} ms, and was {self._grace.ms} ms when the job "
                "began on the partition"
            )
        self._looked_ms = sent_ms


async def _repeated(request: Callable[[], Awaitable[T]]) -> T:
    """What the request, which may be repeated, answers; each try has its deadline."""

    async def in_time() -> T:
        async with asyncio.timeout(REQUEST_DEADLINE_S):
            return await request()

    pause_s = _FIRST_PAUSE_S
    for _ in range(_TRIES - 1):
        try:
            return await in_time()
        except DeclinedError:
            raise
        except (UnavailableError, OutcomeUnknownError, NotFoundError, TimeoutError):
            await asyncio.sleep(pause_s)
            pause_s *= 2
    return await in_time()
