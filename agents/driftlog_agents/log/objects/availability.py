"""What cannot be read now: when it is looked for again, and when that is said.

    ObjectUnavailableError (`object_retry`) ──▶ what needs the object waits a second
                                          ▲                        │
                                   twice as long, up               ▼
                                   to a minute ◀──fails── it is looked for again ──read──▶ done

One rule for objects that are missing, withheld or damaged.  A 404 may be untrue for a moment (a
node of the store that is behind), and a damaged object may be put back.  So nothing is given up for
ever: what needs the object is given back or waits, and looks again as long as something needs it.

Pure.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from driftlog_metadata.stores.errors import CorruptError, UnavailableError

FIRST_WAIT_MS: Final = 1_000.0
LONGEST_WAIT_MS: Final = 60_000.0
"""Between two looks.  Longer: what needs the object goes on later when the object is back; shorter:
more requests for an object that is gone for good."""

_SAID_MS: Final = 60_000.0
"""Between two log lines about one thing that cannot be read."""

_OLD_MS: Final = 120_000.0
"""What nothing has looked for since it was due, for so long, begins anew."""

K = TypeVar("K")


class ObjectUnavailableError(UnavailableError):
    """The store gave other objects and not this one: it is missing, withheld or damaged.

    *key* names it, *why* is what the store said last.  It may be given later: what needs it waits,
    or is given back, and looks again.  *known*: no request was made, for it is too early.
    """

    def __init__(self, key: str, why: str, *, known: bool = False) -> None:
        super().__init__(f"{key} cannot be read: {why}")
        self.key = key
        self.why = why
        self.known = known


class DamagedObjectError(CorruptError):
    """An object of the log is not what it should be, or was missing for long; *key* names it.

    Nothing is skipped: what needs it fails until it is mended.
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key


@dataclass(slots=True)
class _Missed:
    since_ms: float
    said_ms: float
    wait_ms: float
    due_ms: float


class Availability(Generic[K]):
    """Things that cannot be read now: objects, or partitions that need one.

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
        """*what* could not be read; True: say so, the first time and then once a minute."""
        return self._failed(what, now_ms, self._jitter())

    def failed_all(self, them: Iterable[K], now_ms: float) -> list[K]:
        """`failed` of each, and they are due together: one look may do for all of them.

        Returns those of which to say so.
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
        """Whether it is too early to look for *what* again."""
        missed = self._missed.get(what)
        return missed is not None and now_ms < missed.due_ms

    def due_ms(self, what: K) -> float:
        """When to look for *what* again; it could not be read before."""
        return self._missed[what].due_ms

    def lasted_ms(self, what: K, now_ms: float) -> float:
        """How long *what* could not be read; 0: it can, as far as is known."""
        missed = self._missed.get(what)
        return 0.0 if missed is None else now_ms - missed.since_ms

    def found(self, what: K) -> bool:
        """*what* was read, or nothing needs it any more; True: it could not be read before."""
        return self._missed.pop(what, None) is not None

    def keep_only(self, wanted: Callable[[K], bool]) -> None:
        """Forget what nothing needs any more."""
        for what in [what for what in self._missed if not wanted(what)]:
            del self._missed[what]
