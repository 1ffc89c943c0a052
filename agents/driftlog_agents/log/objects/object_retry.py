"""What is done about an object that the bucket does not give: one policy for all that read.

    a request fails ──▶ sent again ──5 s──▶ probe ──succeeds──▶ once more ──▶ ObjectUnavailableError
           ▲                │ "not there", damaged ──5 s──────────────────▶ ObjectUnavailableError
           └────────────────┴──────────────────╳ fails: the bucket is away, and not the object

`ObjectUnavailableError` means: the object may be given later.  What needs it waits or is given
back, and `availability` says when it is looked for again.  What is missing or damaged at each look
for `LOST_MS` is `DamagedObjectError`: an operator has to act.

Shell.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from driftlog_agents.foundation.failure_tracker import FailureTracker
from driftlog_agents.foundation.retry import NO_ANSWER, Retry
from driftlog_agents.log.objects.availability import ObjectUnavailableError
from driftlog_agents.log.objects.bucket_probe import BucketProbes
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.stores.object_store import NotFoundError

T = TypeVar("T")

READ_DEADLINE_MS: Final = 5_000.0
"""How long one read repeats its request before the object counts as unavailable.  Longer: what
waits for the read waits longer; shorter: a short fault of the store moves partitions."""

LEAST_REQUESTS: Final = 2
"""Of one read: one request that had no answer says little."""

LOST_MS: Final = 30_000.0
"""How long an object must be missing or damaged before it counts as lost.  Longer: consumers and
operators learn of a loss later; shorter: a node of the store that is behind ends consumers, and
makes an operator give up what is there."""

ANSWERED: Final = (CorruptError, NotFoundError)
"""The bucket answers: there is no such object, or it is damaged."""

_RETRY: Final = Retry(wait_s=0.2, longest_wait_s=1.6, errors=(*NO_ANSWER, *ANSWERED))


class ReadDeadline:
    """Of one read that repeats its request: whether its object is unavailable; see the module.

    Args:
        probes: while the bucket gives nothing at all, and does not say that the object is not
            there, the read goes on: no other agent would do better, or `health/write_health` finds
            out.
    """

    __slots__ = ("_alone", "_now_ms", "_probes", "_requests", "_since_ms")

    def __init__(self, probes: BucketProbes, now_ms: Callable[[], float]) -> None:
        self._probes = probes
        self._now_ms = now_ms
        self._since_ms = now_ms()
        self._requests = 0
        self._alone = False
        """A probe has succeeded, and the object was to be asked for once more."""

    async def has_passed(self, *, answered: bool) -> bool:
        """A request failed; True: the object is unavailable.

        Args:
            answered: the bucket answered: there is no such object, or the object is damaged.
        """
        self._requests += 1
        over_ms = self._since_ms + READ_DEADLINE_MS
        if self._requests < LEAST_REQUESTS or self._now_ms() < over_ms:
            return False
        if answered or self._alone:
            return True
        self._alone = await self._probes.succeeded_since(over_ms)
        return False


class ObjectRetry:
    """The reads of one kind.

    Args:
        outage: since when the bucket has not answered, while such a read waits.
        event: of the log line about a request that is repeated.
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
        """Reads of which a request had no answer, and that go on."""
        self._log = structlog.get_logger()

    async def read(self, key: str, ask: Callable[[], Awaitable[T]], *, once: bool = False) -> T:
        """What *ask* returns of the object *key*; *once*: it is known to be unavailable, and one
        request is a look.

        Raises:
            ObjectUnavailableError: the bucket does not give the object now.
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
                self.outage.ended(self._now_ms())  # as far as the bucket goes
                raise ObjectUnavailableError(key, why) from error

        try:
            found = await _RETRY.run(attempt, failed)
            self.outage.ended(self._now_ms())
            return found
        finally:
            self._unanswered -= unanswered
            if not self._unanswered:  # or nothing waits for it any more
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
