"""When objects that cannot be read are tried again, and when that is logged.

    ObjectUnavailableError (`object_retry`) ──▶ the reader of the object waits a second
                                          ▲                        │
                                   twice as long, up               ▼
                                   to a minute ◀──fails──── it tries again ───────read──▶ done

One rule for objects that are missing, withheld or damaged.  A 404 may be untrue for a moment (a
stale node of the store), and a damaged object may be put back.  So a reader never gives up for
ever: it releases its claim or waits, and tries again as long as the object is needed.

`FailedRequests` decides when one read has failed, and `Availability` when the next one begins.

Pure.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

from driftlog_metadata.stores.errors import CorruptError, UnavailableError

FIRST_WAIT_MS: Final = 1_000.0
LONGEST_WAIT_MS: Final = 60_000.0
"""Longest time between two tries.  Longer: the reader resumes later when the object is back;
shorter: more requests for an object that is gone for good."""

READ_DEADLINE_MS: Final = 5_000.0
"""How long one read repeats a failed request before the object counts as unavailable.  Longer:
claims and clients behind the read wait longer; shorter: a short fault of the store moves
partitions."""

LEAST_REQUESTS: Final = 2
"""Least number of requests of one read: a single request without an answer proves little."""

LOST_MS: Final = 30_000.0
"""How long an object must be missing or damaged before it counts as lost.  Longer: consumers and
operators learn of a loss later; shorter: a stale node of the store stops consumers, and makes an
operator give up objects that exist."""

_SAID_MS: Final = 60_000.0
"""Time between two log lines about one unreadable object."""

_OLD_MS: Final = 120_000.0
"""An entry that was not tried for so long after it was due starts again from the first wait."""

K = TypeVar("K")


class ObjectUnavailableError(UnavailableError):
    """The store returns other objects but not this one: it is missing, withheld or damaged.

    *key* names it, *why* is the last answer of the store.  The store may return it later: the
    reader waits, or releases its claim, and tries again.  *known*: no request was made, for it is
    too early.
    """

    def __init__(self, key: str, why: str, *, known: bool = False) -> None:
        super().__init__(f"{key} cannot be read: {why}")
        self.key = key
        self.why = why
        self.known = known


class DamagedObjectError(CorruptError):
    """An object of the log is damaged, or has been missing for long; *key* names it.

    Its data are never skipped: reads of it fail until it is repaired.
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key


class ReadVerdict(Enum):
    """What a read does after a failed request."""

    REPEAT = "repeat"
    PROBE = "probe"
    """Probe the bucket, then repeat the request."""
    UNAVAILABLE = "unavailable"
    """Give up: the bucket answers, but does not return the object."""


class FailedRequests:
    """The failed requests of one read.

    The deadline counts from the first failure and not from the read's start: a read that waited for
    its slot has not asked the bucket yet.
    """

    __slots__ = ("_deadline_ms", "_requests", "bucket_answers", "due_ms")

    def __init__(self, deadline_ms: float = READ_DEADLINE_MS) -> None:
        self._deadline_ms = deadline_ms
        self._requests = 0
        self.due_ms = 0.0
        """Before it no object is unavailable; 0: no request has failed."""
        self.bucket_answers = False
        """A probe that began at `due_ms` or later has succeeded: if the next request fails too, the
        object is unavailable."""

    def failed(self, now_ms: float, *, answered: bool) -> ReadVerdict:
        """A request failed; *answered*: there is no such object, or it is damaged."""
        if not self._requests:
            self.due_ms = now_ms + self._deadline_ms
        self._requests += 1
        if self._requests < LEAST_REQUESTS or now_ms < self.due_ms:
            return ReadVerdict.REPEAT
        return ReadVerdict.UNAVAILABLE if answered or self.bucket_answers else ReadVerdict.PROBE


@dataclass(slots=True)
class _Missed:
    since_ms: float
    said_ms: float
    wait_ms: float
    due_ms: float


class Availability(Generic[K]):
    """The objects that cannot be read now, or the partitions that need one.

    Args:
        jitter: a random number in [0, 1).
    """

    def __init__(
        self,
        jitter: Callable[[], float],
        *,
        first_ms: float = FIRST_WAIT_MS,
        longest_ms: float = LONGEST_WAIT_MS,
    ) -> None:
        self._jitter = jitter
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._missed: dict[K, _Missed] = {}

    def __len__(self) -> int:
        return len(self._missed)

    def __contains__(self, what: object) -> bool:
        return what in self._missed

    def failed(self, what: K, now_ms: float) -> bool:
        """Notes that *what* is unreadable; True: log it, at first and then once a minute."""
        return self._failed(what, now_ms, self._jitter())

    def failed_all(self, them: Iterable[K], now_ms: float) -> list[K]:
        """`failed` of each; they are due at the same time, so one try may serve all.

        Returns those to log.
        """
        jitter = self._jitter()
        return [what for what in them if self._failed(what, now_ms, jitter)]

    def _failed(self, what: K, now_ms: float, jitter: float) -> bool:
        missed = self._missed.get(what)
        if missed is not None and now_ms > missed.due_ms + _OLD_MS:
            missed = None
        says = missed is None or now_ms - missed.said_ms >= _SAID_MS
        if missed is None:
            missed = self._missed[what] = _Missed(now_ms, now_ms, self._first_ms, now_ms)
        if says:
            missed.said_ms = now_ms
        missed.due_ms = now_ms + missed.wait_ms * (1 + jitter) / 2
        missed.wait_ms = min(2 * missed.wait_ms, self._longest_ms)
        return says

    def waits(self, what: K, now_ms: float) -> bool:
        """Whether it is too early to try *what* again."""
        missed = self._missed.get(what)
        return missed is not None and now_ms < missed.due_ms

    def due_ms(self, what: K) -> float:
        """When to try *what* again; its last try failed."""
        return self._missed[what].due_ms

    def lasted_ms(self, what: K, now_ms: float) -> float:
        """Milliseconds since *what* was first unreadable; 0: it is not known to be."""
        missed = self._missed.get(what)
        return 0.0 if missed is None else now_ms - missed.since_ms

    def found(self, what: K) -> bool:
        """Forgets *what*: it was read, or is not needed; True: it was unreadable before."""
        return self._missed.pop(what, None) is not None

    def keep_only(self, wanted: Callable[[K], bool]) -> None:
        """Forgets every entry that is not *wanted*."""
        for what in [what for what in self._missed if not wanted(what)]:
            del self._missed[what]
