"""Footers of flush objects, by object: read once, and kept encoded within a budget.

    record ──▶ here? ──no──▶ GET (hedged, a deadline, repeats, few at once) ──▶ decode ──▶ Footer
                                 ╳ not there, or not a footer: is the record?
                                       ──yes──▶ again; after a while it is unavailable
                                       ──no───▶ sealed or consolidated meanwhile: read the records

Encoded they take a tenth of the memory.

Partitions that were claimed wait for what is read here, and no other agent can lead them:
`foundation/failure_tracker` says since when the bucket does not answer, and an agent for which that
lasts is unfit.  Where the bucket answers, and does not give this object, no agent is better off:
the claims that need it are given back and made again later (`availability`).

Shell.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

import structlog

from driftlog_agents.foundation.failure_tracker import FailureTracker
from driftlog_agents.foundation.offload import Offload, inline
from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.objects.bucket_probe import ANSWERED, UNANSWERED, BucketProbes, Patience
from driftlog_agents.log.objects.hedged_reads import HedgedReads
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.codec import decode_at, decode_flush_record
from driftlog_metadata.schema.model import FlushRecord
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.formats.flush_object import Footer, decode_footer
from driftlog_tiering.stores.object_store import Buffer, NotFoundError, ObjectStore

T = TypeVar("T")

_BUDGET_BYTES: Final = 32 * 1024 * 1024
"""Encoded.  Footers of 100 flushes of 1,000 partitions each take 4 MiB."""

_READS_AT_ONCE: Final = 32
"""Ranged GETs in flight: an agent's share of a bucket's request rate, and little memory."""

_DEADLINE_S: Final = 6.0
_LATE_S: Final = 1.0
"""Asked for once more after this: one lost answer in hundreds must not hold up them all for the
deadline, or for a few in a row."""

_RETRY_S: Final = 0.2
_LONGEST_RETRY_S: Final = 1.6
"""Between two requests of one read: twice as long each time."""

_DECODED_HERE_BYTES: Final = 16 * 1024
"""Larger ones are decoded off the event loop: a thousand batches take it a millisecond."""


class RecordGoneError(Exception):
    """The flush record went while its object was read: what it named is sealed, or named by
    another record by now.  Read the records of its session again."""


class _Request:
    """One that is on its way, and what came of it."""

    __slots__ = ("error", "over")

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.error: Exception | None = None


class FooterCache:
    """See the module.

    Args:
        offload: ``await offload(fn, *args)`` runs *fn* off the event loop.
        now_ms: paces what is said of an outage.
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
    ) -> None:
        self._session = session
        self._objects = objects
        self._now_ms = now_ms
        self._offload = offload
        self._budget_bytes = budget_bytes
        self._encoded: OrderedDict[str, Buffer] = OrderedDict()
        self._reading: dict[str, _Request] = {}
        """Objects whose footers are asked for just now."""
        self._slots = asyncio.Semaphore(_READS_AT_ONCE)
        self._hedged = HedgedReads(_LATE_S, now_ms)
        self._log = structlog.get_logger()
        self.probes = BucketProbes(session, objects, now_ms)
        self._failing = 0
        """Reads whose last request had no answer, and that go on."""
        self.outage = outage or FailureTracker()
        """Since when the bucket has not answered, while something waits for a footer."""
        self.size_bytes = 0
        self.reads = 0

    def keep(self, object_key: str, encoded: Buffer) -> None:
        """Remember a footer that was just written."""
        self.drop(object_key)
        if len(encoded) > self._budget_bytes:
            return
        self._encoded[object_key] = encoded
        self.size_bytes += len(encoded)
        while self.size_bytes > self._budget_bytes:
            self.size_bytes -= len(self._encoded.popitem(last=False)[1])

    def inherit(self, before: "FooterCache") -> None:
        """Know what another session of this process knew: objects never change."""
        for key, encoded in before._encoded.items():
            self.keep(key, encoded)

    def drop(self, object_key: str) -> None:
        """Forget the footer of an object that nobody names any more."""
        self.size_bytes -= len(self._encoded.pop(object_key, b""))

    async def fetch(
        self, records: Iterable[tuple[str, FlushRecord]]
    ) -> dict[str, ObjectUnavailableError]:
        """Have the footers of *records* here, as far as there is room, so that a caller that gets
        them a few at a time waits for none that is late.

        Returns those that are unavailable, by object: they need not be asked for once more.

        Raises:
            FencedError: the session ended first; perhaps in a group.
        """
        room = self._budget_bytes // 2
        unavailable: dict[str, ObjectUnavailableError] = {}

        async def fetch(record_key: str, record: FlushRecord) -> None:
            try:
                await self._patiently(record_key, record, self._request)
            except ObjectUnavailableError as error:
                unavailable[record.object_key] = error
            except RecordGoneError:
                return  # `get` finds out

        async with asyncio.TaskGroup() as tasks:
            for record_key, record in records:
                room -= record.size_bytes - record.footer_start
                if room < 0:
                    break
                tasks.create_task(fetch(record_key, record))
        return unavailable

    async def get(self, record_key: str, record: FlushRecord) -> Footer:
        """The footer of the record's object, which is the caller's alone.

        Raises:
            ObjectUnavailableError: the bucket answers, and does not give it: missing, withheld or
                damaged.  Look again later.
            RecordGoneError: the record went meanwhile.
            FencedError: the session ended first.
        """
        return await self._patiently(record_key, record, self._decoded)

    async def _patiently(
        self, record_key: str, record: FlushRecord, read: Callable[[FlushRecord], Awaitable[T]]
    ) -> T:
        """What *read* gives of the record, which is asked for again while that may help."""
        patience = Patience(self.probes, self._now_ms)
        wait_s = _RETRY_S
        failing = False
        try:
            while True:
                sent_ms = self._now_ms()
                try:
                    found = await read(record)
                except UNANSWERED as error:
                    answered, why = False, str(error) or f"no answer in {_DEADLINE_S:g} s"
                    self._failing += not failing
                    failing = True
                    self._say(record, why, sent_ms)
                except ANSWERED as error:
                    answered, why = True, str(error)
                    self.drop(record.object_key)
                    record = await self._as_it_is_now(record_key, record, error)
                    if isinstance(error, NotFoundError):
                        why = "not found"
                else:
                    self.outage.ended(self._now_ms())
                    return found
                if answered:
                    self.outage.ended(self._now_ms())
                if await patience.is_over(answered=answered):
                    self.outage.ended(self._now_ms())  # as far as the bucket goes
                    raise ObjectUnavailableError(record.object_key, why)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_RETRY_S)
        finally:
            self._failing -= failing
            if not self._failing:  # or nothing waits for it any more
                self.outage.ended(self._now_ms())

    async def _as_it_is_now(
        self, record_key: str, record: FlushRecord, error: Exception
    ) -> FlushRecord:
        """
        Raises:
            RecordGoneError, FencedError: see `get`.
            ObjectUnavailableError: its key has something else now.
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
        """The encoded footer: from here, by another's request, or by one of our own."""
        key = record.object_key
        while True:
            if (encoded := self._encoded.get(key)) is not None:
                self._encoded.move_to_end(key)
                return encoded
            if (another := self._reading.get(key)) is None:
                break
            await another.over.wait()
            if another.error is not None:
                raise another.error
        mine = self._reading[key] = _Request()
        try:
            async with self._slots:
                encoded = await self._ask(record)
            self.keep(key, encoded)
            return encoded
        except Exception as error:
            mine.error = error
            raise
        finally:
            del self._reading[key]
            mine.over.set()

    async def _ask(self, record: FlushRecord) -> Buffer:
        async with asyncio.timeout(_DEADLINE_S):
            found = await self._hedged.read(lambda: self._ask_once(record))
        return bytes(found)  # copied: a view would keep the buffer of the whole answer

    async def _ask_once(self, record: FlushRecord) -> Buffer:
        self.reads += 1
        return await self._objects.get(record.object_key, record.footer_start, record.size_bytes)

    def _say(self, record: FlushRecord, error: str, sent_ms: float) -> None:
        if self.outage.failed(error, sent_ms, self._now_ms()):
            self._log.warning(
                "footer_read_repeated",
                object=record.object_key,
                error=error,
                failures=self.outage.failures,
                advice="tried again; partitions that were taken over are led when it is read",
            )
