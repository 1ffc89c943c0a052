"""Footers of flush objects, by object: read once, and kept encoded within a budget.

    record ──▶ here? ──no──▶ GET (a deadline, repeats, few at once) ──▶ decode ──▶ Footer
                                 ╳ not there, or not a footer: is the record?
                                       ──yes──▶ damage, and why
                                       ──no───▶ sealed or consolidated meanwhile: read the records

Encoded they take a tenth of the memory, and who gets one may change its columns (`TailData`
moves positions when an object is rewritten).

Partitions that were claimed wait for what is read here, and nobody else can lead them: `outage`
says since when the bucket does not give it, and an agent for which that lasts is unfit.

Shell.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from driftlog_agents.log.outage import Outage
from driftlog_agents.log.session import Session
from driftlog_metadata.codec import decode_at, decode_flush_record
from driftlog_metadata.errors import CorruptError, OutcomeUnknownError, UnavailableError
from driftlog_metadata.model import FlushRecord
from driftlog_tiering.flush_object import Footer, decode_footer
from driftlog_tiering.object_store import Buffer, NotFoundError, ObjectStore

_BUDGET_BYTES: Final = 32 * 1024 * 1024
"""Encoded.  Footers of 100 flushes of 1,000 partitions each take 4 MiB."""

_READS_AT_ONCE: Final = 16
"""Ranged GETs in flight: an agent's share of a bucket's request rate, and little memory."""

_DEADLINE_S: Final = 10.0
_RETRY_S: Final = 0.2
_DECODED_HERE_BYTES: Final = 16 * 1024
"""Larger ones are decoded off the event loop: a thousand batches take it a millisecond."""


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
        self._log = structlog.get_logger()
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

    async def get(self, record_key: str, record: FlushRecord) -> Footer | str:
        """The footer of the record's object, which is the caller's alone; or why there is none,
        once it is sure that it is damage.

        Raises:
            RecordGoneError: the record went meanwhile; that is no damage.
            FencedError: the session ended first.
        """
        while True:
            encoded = await self._get(record)
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
        try:
            while True:
                sent_ms = self._now_ms()
                try:
                    encoded = await self._ask(record)
                    answered = True
                    return encoded
                except (UnavailableError, OutcomeUnknownError, TimeoutError) as error:
                    self._failing += not failed
                    failed = True
                    self._say(record, str(error) or f"no answer in {_DEADLINE_S:g} s", sent_ms)
                await asyncio.sleep(_RETRY_S)
        finally:
            self._failing -= failed
            if answered or not self._failing:  # or nobody waits for it any more
                self.outage.ended(self._now_ms())

    async def _ask(self, record: FlushRecord) -> Buffer | None:
        self.reads += 1
        try:
            async with asyncio.timeout(_DEADLINE_S):
                found = await self._objects.get(
                    record.object_key, record.footer_start, record.size_bytes
                )
        except NotFoundError:
            return None
        return bytes(found)  # copied: a view would keep the buffer of the whole answer

    def _say(self, record: FlushRecord, error: str, sent_ms: float) -> None:
        if self.outage.failed(error, sent_ms, self._now_ms()):
            self._log.warning(
                "footer_read_repeated",
                object=record.object_key,
                error=error,
                failures=self.outage.failures,
                advice="tried again; partitions that were taken over are led when it is read",
            )
