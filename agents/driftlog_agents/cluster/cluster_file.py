"""Looks at the bucket's newest cluster file: whose the bucket is.

    an agent flushes ──every 30 s──▶ one GET of the next cluster file: there is none ──▶ commit
    objects are to be deleted ─────▶ the newest cluster file, whole ──────────────────▶ delete
                                     ╳ another cluster's ──▶ the agent ends, and starts no more

Another id: the prefix was given to another cluster, or the cluster was restored.  Another grace: an
operator has changed it, and agents that read the old one may still name older objects: nothing is
deleted.  Cluster files are numbered without a gap, so the look of a flush asks for the next one.

A look that is not answered is repeated, and commits wait for it (`bucket_ownership`).

Shell.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from driftlog_agents.cluster.bucket_ownership import BucketOwnership
from driftlog_agents.foundation.failure_tracker import FailureTracker
from driftlog_agents.foundation.retry import NO_ANSWER, GrowingTimeout, Waits
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.stores.errors import CorruptError, FencedError, UnavailableError
from driftlog_tiering.formats import bucket_files, layout
from driftlog_tiering.formats.cluster_files import newest_cluster_file
from driftlog_tiering.formats.manifests import OtherClusterError
from driftlog_tiering.stores.object_store import NotFoundError, ObjectStore

_TIMEOUT_S: Final = (2.0, 30.0)
"""Of one look: of the first, and the longest after several without an answer.  The first longer: a
lost answer delays the commit of an agent that was idle longer than a lost PUT does."""

_WAITS_S: Final = (0.1, 2.0)
"""Between two looks without an answer."""

_HOLD_MS: Final = 60_000.0
"""How long an edit waits for a look.  Longer: it is given up later; shorter: what it has put into
the bucket is put again more often."""


class Ownership(Protocol):
    """Whether the agent's cluster has the bucket, for what names objects in it."""

    def holds(self) -> bool:
        """Whether a look is young enough."""
        ...

    def is_due(self) -> bool:
        """Whether `refresh` is to be called beside a PUT."""
        ...

    async def refresh(self) -> None:
        """Look once, where a look is due; a failure is logged, not raised."""
        ...

    async def hold(self, patience_ms: float = _HOLD_MS) -> None:
        """Return when the agent may commit or edit at once.

        Raises:
            OtherClusterError: the bucket is another cluster's.
            UnavailableError: the bucket does not answer, for *patience_ms*.
        """
        ...

    def lose(self, reason: str) -> None:
        """End the agent: the metadata store is not the one that the bucket's objects are of."""
        ...


class Believed:
    """An `Ownership` where no other cluster can get the bucket: tests and measurements."""

    def holds(self) -> bool:
        return True

    def is_due(self) -> bool:
        return False

    async def refresh(self) -> None:
        """Nothing to look at."""

    async def hold(self, patience_ms: float = _HOLD_MS) -> None:
        """At once."""

    def lose(self, reason: str) -> None:
        """The session ends by the error of the caller."""


class ClusterFile:
    """An `Ownership`, and the collector's confirmation; one for all sessions of a process.

    Args:
        grace: as the agent read it at its start.
        now_ms: a clock that counts suspended time.
        deadline_ms: of `confirm`.
    """

    def __init__(
        self,
        objects: ObjectStore,
        cluster_id: str,
        grace: Grace,
        now_ms: Callable[[], float],
        *,
        deadline_ms: float = 30_000.0,
    ) -> None:
        self._objects = objects
        self._cluster_id = cluster_id
        self._grace = grace
        self._now_ms = now_ms
        self._deadline_ms = deadline_ms
        self._ownership = BucketOwnership()
        self._number: int | None = None
        """Of the newest cluster file that was found; None: none was read yet."""
        self._turn = asyncio.Lock()
        self._timeout = GrowingTimeout(*_TIMEOUT_S)
        self._outage = FailureTracker()
        self._other = asyncio.Event()
        self._log = structlog.get_logger()

    # ── Commits and edits ──

    def holds(self) -> bool:
        """See `Ownership`."""
        return self._ownership.holds(self._now_ms())

    def is_due(self) -> bool:
        """See `Ownership`; False while a look is under way."""
        return self._ownership.is_due(self._now_ms()) and not self._turn.locked()

    async def refresh(self) -> None:
        """See `Ownership`."""
        async with self._turn:
            if self._ownership.is_due(self._now_ms()):
                await self._look()

    async def hold(self, patience_ms: float = _HOLD_MS) -> None:
        """See `Ownership`."""
        until_ms = self._now_ms() + patience_ms
        waits = Waits(*_WAITS_S)
        while not self.holds():
            self.check()
            async with self._turn:
                if self.holds() or await self._look():
                    continue
            self.check()
            if self._now_ms() >= until_ms:
                raise UnavailableError("the bucket does not give its newest cluster file")
            await waits.wait()

    def lose(self, reason: str) -> None:
        """See `Ownership`."""
        self._ownership.found_other(reason)
        self._other.set()

    async def until_lost(self) -> None:
        """Wait until a look finds another cluster, or `lose`.

        Raises:
            OtherClusterError: it did.
        """
        await self._other.wait()
        self.check()

    def check(self) -> None:
        """Raises OtherClusterError: a look has found another cluster."""
        if self._ownership.other:
            raise OtherClusterError(self._ownership.other)

    async def _look(self) -> bool:
        """Look once; whether the answer is the own cluster."""
        sent_ms = self._now_ms()
        try:
            number, body = await self._timeout.of(self._newest())
            there = (
                self._cluster_id if body is None else bucket_files.decode_cluster(body).cluster_id
            )
        except (NotFoundError, CorruptError, *NO_ANSWER) as error:
            text = str(error) or "no answer in time"
            if self._outage.failed(text, sent_ms, self._now_ms()):
                self._log.warning(
                    "cluster_file_unread",
                    error=text,
                    failures=self._outage.failures,
                    advice="retrying; commits wait until the newest cluster file says that the "
                    "bucket is still this cluster's",
                )
            return False
        self._outage.ended(self._now_ms())
        self._found(number, there, sent_ms)
        return not self._ownership.other

    async def _newest(self) -> tuple[int, bytes | None]:
        """The newest cluster file, and its bytes; None: it is still the one that was found last."""
        if self._number is None:
            return await newest_cluster_file(self._objects)
        number, body = self._number, None
        while True:
            try:
                body = bytes(await self._objects.get(layout.cluster_key(number + 1)))
            except NotFoundError:
                return number, body
            number += 1

    def _found(self, number: int, there: str, sent_ms: float) -> None:
        if there == self._cluster_id:
            self._number = max(number, self._number or 0)
            self._ownership.found_own(sent_ms)
            return
        if not self._ownership.other:
            key = layout.cluster_key(number)
            self._ownership.found_other(
                f"{key} is of cluster {there}, and not of {self._cluster_id}: `driftlog restore` "
                "made that cluster of this one"
            )
            self._log.error(
                "other_cluster_found",
                reason=self._ownership.other,
                advice="this agent ends, and a start of it is refused; start agents on the "
                "restored cluster's metadata store, with new directories",
            )
        self._other.set()

    # ── Deletes ──

    async def confirm(self) -> None:
        """Check now that the bucket is the cluster's.

        Raises:
            FencedError: it is not, or its grace has changed.
            CorruptError: the file is damaged.
            UnavailableError, OutcomeUnknownError, TimeoutError: the bucket did not answer.
        """
        sent_ms = self._now_ms()
        try:
            async with asyncio.timeout(self._deadline_ms / 1000):
                number, body = await newest_cluster_file(self._objects)
        except NotFoundError as error:
            raise FencedError(f"{layout.CLUSTER_KEY} is not there any more") from error
        self._found(number, bucket_files.decode_cluster(body).cluster_id, sent_ms)
        self.check()
        grace = bucket_files.decode_grace(body)
        if grace != self._grace:
            raise FencedError(
                f"the cluster's grace is {grace.ms} ms, and was {self._grace.ms} ms when this "
                "agent started: stop all agents, then start them again"
            )
