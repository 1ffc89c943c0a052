"""Caches footers of flush objects: each is read once, and kept encoded within a budget.

    record ──▶ hit? ──no──▶ GET (hedged, a deadline, repeats, few at once) ──▶ decode ──▶ Footer
                                 ╳ not found, or no footer: does the record exist?
                                       ──yes──▶ again; after 5 s it is unavailable
                                       ──no───▶ sealed or consolidated meanwhile: RecordGoneError

Claimed partitions wait for these reads, and no other agent can lead them:
`foundation/failure_tracker` keeps since when the bucket has not answered, and if that lasts the
agent is unfit.  If the bucket answers but does not return this object, no other agent could read it
either: the claims that need it are released and made again later (`availability`).

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from driftlog_agents.foundation.failure_tracker import FailureTracker
from driftlog_agents.foundation.offload import inline
from driftlog_agents.foundation.single_flight import SingleFlight
from driftlog_agents.log.objects.availability import READ_DEADLINE_MS, ObjectUnavailableError
from driftlog_agents.log.objects.bucket_probe import BucketProbes
from driftlog_agents.log.objects.encoded_footers import EncodedFooters
from driftlog_agents.log.objects.hedged_reads import HedgedReads
from driftlog_agents.log.objects.object_retry import ANSWERED, ObjectRetry
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.codec import decode_at, decode_flush_record
from driftlog_metadata.schema.model import FlushRecord
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.formats.flush_object import Footer, decode_footer
from driftlog_tiering.foundation.types import Buffer, Offload
from driftlog_tiering.stores.object_store import ObjectStore

T = TypeVar("T")

_BUDGET_BYTES: Final = 32 * 1024 * 1024
"""Size of the encoded footers.  Footers of 100 flushes of 1,000 partitions each take 4 MiB."""

_READS_AT_ONCE: Final = 32
"""Ranged GETs in flight: an agent's share of a bucket's request rate, and little memory."""

_DECODED_HERE_BYTES: Final = 16 * 1024
"""Larger footers are decoded off the event loop: a thousand batches take a millisecond."""


class RecordGoneError(Exception):
    """The flush record was deleted while its object was read: its batches are sealed, or another
    record names them by now.  Read the records of its session again."""


class FooterCache:
    """See the module.

    Args:
        offload: ``await offload(fn, *args)`` runs *fn* off the event loop.
        now_ms: a monotonic clock.
        read_deadline_ms: as `BucketProbes`'.
    """

    def __init__(
        self,
        *,
        session: Session,
        objects: ObjectStore,
        now_ms: Callable[[], float],
        offload: Offload = inline,
        budget_bytes: int = _BUDGET_BYTES,
        outage: FailureTracker | None = None,
        read_deadline_ms: float = READ_DEADLINE_MS,
    ) -> None:
        self._session = session
        self._objects = objects
        self._offload = offload
        self.encoded = EncodedFooters(budget_bytes)
        self._reading = SingleFlight[str, Buffer]()
        self._slots = asyncio.Semaphore(_READS_AT_ONCE)
        self._hedged = HedgedReads(now_ms)
        self.probes = BucketProbes(session, objects, now_ms, read_deadline_ms)
        self.outage = outage or FailureTracker()
        """Since when the bucket has not answered, while something waits for a footer."""
        self._retry = ObjectRetry(
            self.probes,
            now_ms,
            self.outage,
            event="footer_read_repeated",
            advice="retrying; the claimed partitions are led when the footer is read",
        )
        self.reads = 0

    @property
    def size_bytes(self) -> int:
        """Size of the cached footers, encoded."""
        return self.encoded.size_bytes

    def keep(self, object_key: str, encoded: Buffer) -> None:
        """Adds a footer that was just written."""
        self.encoded.keep(object_key, encoded)

    def inherit(self, before: "FooterCache") -> None:
        """Adds the footers of an earlier session of this process: objects never change."""
        self.encoded.inherit(before.encoded)

    def drop(self, object_key: str) -> None:
        """Removes the footer of an object that no flush record names any more."""
        self.encoded.drop(object_key)

    async def fetch(
        self, records: Iterable[tuple[str, FlushRecord]]
    ) -> dict[str, ObjectUnavailableError]:
        """Reads the footers of *records* concurrently into half of the budget, so that one late
        read does not delay a caller that then gets a few at a time.

        Returns the errors of unavailable ones, by object key: the caller need not request these
        again.

        Raises:
            FencedError: the session ended first; perhaps in a group.
        """
        room = self.encoded.budget_bytes // 2
        unavailable: dict[str, ObjectUnavailableError] = {}

        async def fetch(record_key: str, record: FlushRecord) -> None:
            try:
                await self._read(record_key, record, self._request)
            except ObjectUnavailableError as error:
                unavailable[record.object_key] = error
            except RecordGoneError:
                return  # `get` raises it again

        async with asyncio.TaskGroup() as tasks:
            for record_key, record in records:
                if record.object_key in self.encoded:
                    continue
                room -= record.size_bytes - record.footer_start
                if room < 0:
                    break
                tasks.create_task(fetch(record_key, record))
        return unavailable

    def known(self, record: FlushRecord) -> Footer | None:
        """The footer of the record's object, as `get`, if it is in memory, small and sound."""
        encoded = self.encoded.get(record.object_key)
        if encoded is None or len(encoded) > _DECODED_HERE_BYTES:
            return None
        try:
            return decode_footer(encoded)
        except CorruptError:
            return None  # `get` reads it again

    async def get(self, record_key: str, record: FlushRecord) -> Footer:
        """The footer of the record's object; a fresh copy, which the caller may change.

        Raises:
            ObjectUnavailableError: the bucket answers but does not return it: missing, withheld or
                damaged.  Try again later.
            RecordGoneError: the record was deleted meanwhile.
            FencedError: the session ended first.
        """
        return await self._read(record_key, record, self._decoded)

    async def _read(
        self, record_key: str, record: FlushRecord, read: Callable[[FlushRecord], Awaitable[T]]
    ) -> T:
        """The result of *read*, which is repeated while that may help."""

        async def ask() -> T:
            nonlocal record
            try:
                return await read(record)
            except ANSWERED as error:
                self.drop(record.object_key)
                record = await self._as_it_is_now(record_key, record, error)
                raise

        return await self._retry.read(record.object_key, ask)

    async def _as_it_is_now(
        self, record_key: str, record: FlushRecord, error: Exception
    ) -> FlushRecord:
        """
        Raises:
            RecordGoneError, FencedError: see `get`.
            ObjectUnavailableError: the record cannot be decoded.
        """
        kv = await self._session.read(record_key)
        if kv is None:
            raise RecordGoneError(record_key) from error
        try:
            return decode_at(record_key, kv.value, decode_flush_record)
        except CorruptError as damage:
            raise ObjectUnavailableError(record.object_key, str(damage)) from damage

    async def _decoded(self, record: FlushRecord) -> Footer:
        encoded = await self._request(record)
        if len(encoded) <= _DECODED_HERE_BYTES:
            return decode_footer(encoded)
        footer: Footer = await self._offload(decode_footer, encoded)
        return footer

    async def _request(self, record: FlushRecord) -> Buffer:
        """The encoded footer: from the cache, by a request in flight, or by a new request."""
        key = record.object_key
        if (encoded := self.encoded.get(key)) is not None:
            return encoded
        return await self._reading.do(key, lambda: self._ask(record))

    async def _ask(self, record: FlushRecord) -> Buffer:
        async with self._slots:
            found = await self._hedged.read(lambda: self._ask_once(record))
        encoded = bytes(found)  # copied: a view would keep the buffer of the whole answer
        self.keep(record.object_key, encoded)
        return encoded

    async def _ask_once(self, record: FlushRecord) -> Buffer:
        self.reads += 1
        return await self._objects.get(record.object_key, record.footer_start, record.size_bytes)
