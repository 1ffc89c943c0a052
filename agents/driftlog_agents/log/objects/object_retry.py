"""One retry policy for all reads of objects that the bucket does not return.

    a request fails ──▶ sent again ──5 s──▶ probe ──succeeds──▶ once more ──▶ ObjectUnavailableError
           ▲                │ "not found", damaged ──5 s──────────────────▶ ObjectUnavailableError
           └────────────────┴──────────────────╳ fails: the whole bucket is unavailable

`ObjectUnavailableError` means: the bucket may return the object later.  Its reader waits or
releases its claim, and `availability` decides when it tries again.  An object that is missing or
damaged at each try for `LOST_MS` is a `DamagedObjectError`: an operator has to act.

Shell.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from driftlog_agents.foundation.failure_tracker import FailureTracker
from driftlog_agents.foundation.retry import NO_ANSWER, Retry
from driftlog_agents.log.objects.availability import (
    FailedRequests,
    ObjectUnavailableError,
    ReadVerdict,
)
from driftlog_agents.log.objects.bucket_probe import BucketProbes
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.stores.object_store import NotFoundError

T = TypeVar("T")

ANSWERED: Final = (CorruptError, NotFoundError)
"""Errors that are answers of the bucket: no such object, or a damaged one."""

_RETRY: Final = Retry(wait_s=0.2, longest_wait_s=1.6, errors=(*NO_ANSWER, *ANSWERED))


class ReadDeadline:
    """Decides for one read whether its object is unavailable; see the module.

    Args:
        probes: while the bucket answers neither the read nor a probe, the read continues: no other
            agent could read it either, or `health/write_health` detects that one can.
    """

    __slots__ = ("_failed", "_now_ms", "_probes")

    def __init__(self, probes: BucketProbes, now_ms: Callable[[], float]) -> None:
        self._probes = probes
        self._now_ms = now_ms
        self._failed = FailedRequests(probes.read_deadline_ms)

    async def has_passed(self, *, answered: bool) -> bool:
        """Notes a failed request; True: the object is unavailable.

        Args:
            answered: the bucket answered: there is no such object, or the object is damaged.
        """
        verdict = self._failed.failed(self._now_ms(), answered=answered)
        if verdict is ReadVerdict.PROBE:
            since_ms = self._failed.due_ms
            self._failed.bucket_answers = await self._probes.succeeded_since(since_ms)
        return verdict is ReadVerdict.UNAVAILABLE


class ObjectRetry:
    """Reads of one kind, with their retries.

    Args:
        outage: since when the bucket has not answered, while such a read waits.
        event: name of the log event about a repeated request.
    """

    def __init__(
        self,
        probes: BucketProbes,
        now_ms: Callable[[], float],
        outage: FailureTracker,
        *,
        event: str,
        advice: str,
    ) -> None:
        self._probes = probes
        self._now_ms = now_ms
        self.outage = outage
        self._event = event
        self._advice = advice
        self._unanswered = 0
        """Number of reads in progress that have had a request without an answer."""
        self._log = structlog.get_logger()

    async def read(self, key: str, ask: Callable[[], Awaitable[T]], *, once: bool = False) -> T:
        """Returns the result of *ask*, which reads the object *key*; *once*: send one request only,
        for the object is known to be unavailable.

        Raises:
            ObjectUnavailableError: the bucket does not return the object now.
        """
        deadline = ReadDeadline(self._probes, self._now_ms)
        unanswered, sent_ms = False, 0.0

        async def attempt() -> T:
            nonlocal sent_ms
            sent_ms = self._now_ms()
            return await ask()

        async def failed(error: Exception) -> None:
            nonlocal unanswered
            if isinstance(error, ObjectUnavailableError):
                raise error
            answered = isinstance(error, ANSWERED)
            why = "not found" if isinstance(error, NotFoundError) else str(error)
            why = why or "no answer in time"
            if answered:
                self.outage.ended(self._now_ms())
            else:
                self._unanswered += not unanswered
                unanswered = True
                self._note(key, why, sent_ms)
            if once or await deadline.has_passed(answered=answered):
                self.outage.ended(self._now_ms())  # the bucket itself is available
                raise ObjectUnavailableError(key, why) from error

        try:
            found = await _RETRY.run(attempt, failed)
            self.outage.ended(self._now_ms())
            return found
        finally:
            self._unanswered -= unanswered
            if not self._unanswered:  # also if the reads were cancelled
                self.outage.ended(self._now_ms())

    def _note(self, key: str, error: str, sent_ms: float) -> None:
        if self.outage.failed(error, sent_ms, self._now_ms()):
            self._log.warning(
                self._event,
                object=key,
                error=error,
                failures=self.outage.failures,
                advice=self._advice,
            )
