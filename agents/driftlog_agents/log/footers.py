"""Footers of flush objects, by object: read once, and kept encoded within a budget.

    record ──▶ here? ──no──▶ GET (hedged, a deadline, repeats, few at once) ──▶ decode ──▶ Footer
                                 ╳ not there, or not a footer: is the record?
                                       ──yes──▶ damage, and why
                                       ──no───▶ sealed or consolidated meanwhile: read the records

Encoded they take a tenth of the memory, and who gets one may change its columns (`TailData`
moves positions when an object is rewritten).

Partitions that were claimed wait for what is read here, and nobody else can lead them: `outage`
says since when the bucket does not give it, and an agent for which that lasts is unfit.  Where the
bucket gives other things and not this one, no agent is better off: it is `Unreadable`, for now.

Shell.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import structlog

from driftlog_agents.log.bucket_probe import BucketProbes, Withholding
from driftlog_agents.log.hedged_reads import HedgedReads
from driftlog_agents.log.outage import Outage
from driftlog_agents.log.session import Session
from driftlog_metadata.codec import decode_at, decode_flush_record
from driftlog_metadata.errors import CorruptError, OutcomeUnknownError, UnavailableError
from driftlog_metadata.model import FlushRecord
from driftlog_tiering.flush_object import Footer, decode_footer
from driftlog_tiering.object_store import Buffer, NotFoundError, ObjectStore

_BUDGET_BYTES: Final = 32 * 1024 * 1024
"""Encoded.  Footers of 100 flushes of 1,000 partitions each take 4 MiB."""

_READS_AT_ONCE: Final = 32
"""Ranged GETs in flight: an agent's share of a bucket's request rate, and little memory."""

_DEADLINE_S: Final = 6.0
_LATE_S: Final = 1.0
"""Asked for once more after this: one lost answer in hundreds must not hold up them all for the
deadline, or for a few in a row."""

_RETRY_S: Final = 0.2
_DECODED_HERE_BYTES: Final = 16 * 1024
"""Larger ones are decoded off the event loop: a thousand batches take it a millisecond."""


_UNREADABLE_S: Final = 12.0
"""Refused for so long an object is unreadable, if the bucket answers otherwise: two deadlines.  The
probe and one more ask follow, or one that fails and both again, before the agent would be unfit."""

_UNREADABLE_TOO_S: Final = 5.0
"""The same while another one is: many may be, and all that wait for them wait for the last."""

_TRIED_AGAIN_S: Final = 25.0
"""It is not asked for again before: one takeover asks for each once.  Less than after which what
needs it is claimed again."""


class Unreadable(str):
    """Why there is no footer now, and perhaps is one later: the object may be whole."""

    __slots__ = ()


class _UnreadableError(Exception):
    """The bucket answers, but not with this object."""


class RecordGoneError(Exception):
    """The flush record went while its object was read: what it named is sealed, or named by
    another record by now.  Read the records of its session again."""


async def _inline(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args)


class Footers:
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
        offload: Callable[..., Awaitable[Any]] = _inline,
        budget_bytes: int = _BUDGET_BYTES,
    ) -> None:
        self._session = session
        self._objects = objects
        self._now_ms = now_ms
        self._offload = offload
        self._budget_bytes = budget_bytes
        self._encoded: OrderedDict[str, Buffer] = OrderedDict()
        self._reading: dict[str, asyncio.Event] = {}
        """Objects whose footers somebody reads; set when that is over."""
        self._slots = asyncio.Semaphore(_READS_AT_ONCE)
        self._hedged = HedgedReads(_LATE_S, now_ms)
        self._log = structlog.get_logger()
        self._unreadable: dict[str, tuple[float, str]] = {}
        """Until when these objects are not asked for again, and why."""
        self.probes = BucketProbes(session, objects, now_ms)
        self._failing = 0
        """Reads that have failed and go on."""
        self.outage = Outage()
        """Since when reads have failed, while somebody waits for one."""
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

    def inherit(self, before: "Footers") -> None:
        """Know what another session of this process knew: objects never change."""
        for key, encoded in before._encoded.items():
            self.keep(key, encoded)

    def drop(self, object_key: str) -> None:
        """Forget the footer of an object that nobody names any more."""
        self.size_bytes -= len(self._encoded.pop(object_key, b""))
        self._unreadable.pop(object_key, None)

    async def fetch(self, records: Iterable[FlushRecord]) -> None:
        """Have the footers of *records* here, as far as there is room: for one who is about to get
        them a few at a time, so that none that is late holds up the others."""
        room = self._budget_bytes // 2
        async with asyncio.TaskGroup() as tasks:
            for record in records:
                room -= record.size_bytes - record.footer_start
                if room < 0:
                    break
                tasks.create_task(self._fetch(record))

    async def _fetch(self, record: FlushRecord) -> None:
        with suppress(_UnreadableError):
            await self._get(record)

    async def get(self, record_key: str, record: FlushRecord) -> Footer | str:
        """The footer of the record's object, which is the caller's alone; or why there is none,
        once it is sure that it is damage, or `Unreadable`.

        Raises:
            RecordGoneError: the record went meanwhile; that is no damage.
            FencedError: the session ended first.
        """
        while True:
            try:
                encoded = await self._get(record)
            except _UnreadableError as error:
                return Unreadable(f"flush object {record.object_key} cannot be read: {error}")
            try:
                if encoded is None:
                    raise NotFoundError("not found")
                if len(encoded) <= _DECODED_HERE_BYTES:
                    return decode_footer(encoded)
                footer: Footer = await self._offload(decode_footer, encoded)
            except (NotFoundError, CorruptError) as error:
                self.drop(record.object_key)
                kv = await self._session.read(record_key)
                if kv is None:
                    raise RecordGoneError(record_key) from error
                try:
                    current = decode_at(record_key, kv.value, decode_flush_record)
                except CorruptError as damage:
                    return str(damage)
                if current == record:
                    return f"flush object {record.object_key}: {error}"
                record = current
            else:
                return footer

    async def _get(self, record: FlushRecord) -> Buffer | None:
        """The encoded footer: from here, by another's read, or from the store; None: no object."""
        key = record.object_key
        while True:
            if (encoded := self._encoded.get(key)) is not None:
                self._encoded.move_to_end(key)
                return encoded
            if (another := self._reading.get(key)) is None:
                break
            await another.wait()
        over = self._reading[key] = asyncio.Event()
        try:
            async with self._slots:
                encoded = await self._read(record)
            if encoded is not None:
                self.keep(key, encoded)
            return encoded
        finally:
            del self._reading[key]
            over.set()

    async def _read(self, record: FlushRecord) -> Buffer | None:
        failed = answered = False
        withholding = Withholding(self.probes, self._now_ms)
        began_ms = self._now_ms()
        until_ms, why = self._unreadable.get(record.object_key, (0.0, ""))
        if began_ms < until_ms:
            raise _UnreadableError(why)
        try:
            while True:
                sent_ms = self._now_ms()
                try:
                    encoded = await self._ask(record)
                    answered = True
                    self._unreadable.pop(record.object_key, None)
                    return encoded
                except (UnavailableError, OutcomeUnknownError, TimeoutError) as error:
                    self._failing += not failed
                    failed = True
                    why = str(error) or f"no answer in {_DEADLINE_S:g} s"
                    self._say(record, why, sent_ms)
                now_ms = self._now_ms()
                others = any(now_ms < until_ms for until_ms, _ in self._unreadable.values())
                if await withholding.found(1000 * (_UNREADABLE_TOO_S if others else _UNREADABLE_S)):
                    answered = True  # as far as the bucket goes
                    self._unreadable[record.object_key] = now_ms + _TRIED_AGAIN_S * 1000, why
                    raise _UnreadableError(why)
                await asyncio.sleep(_RETRY_S)
        finally:
            self._failing -= failed
            if answered or not self._failing:  # or nobody waits for it any more
                self.outage.ended(self._now_ms())

    async def _ask(self, record: FlushRecord) -> Buffer | None:
        try:
            async with asyncio.timeout(_DEADLINE_S):
                found = await self._hedged.read(lambda: self._ask_once(record))
        except NotFoundError:
            return None
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
