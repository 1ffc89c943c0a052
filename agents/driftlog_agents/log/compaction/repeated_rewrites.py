"""Attempts to rewrite partitions, with one policy for their failures.

    attempt ──▶ done
       ╳ void: another edit was faster ──▶ its manifest is cached ──▶ again after a while
       ╳ busy: another agent or job rewrites the partition ─────────▶ again when that may be over
       ╳ fenced: the keep-alive of the session learns it
       ╳ a store, or damage ──▶ logged; the cached manifest is dropped ──▶ again, ever less often

No manifest names what a failed attempt stored.  `rewrite_attempts` decides how long a partition
waits.

Shell.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, TypeVar

import structlog

from driftlog_agents.foundation.failure_tracker import FailureTracker
from driftlog_agents.foundation.retry import NO_ANSWER
from driftlog_agents.log.compaction.partition_rewrites import SERVED
from driftlog_agents.log.compaction.rewrite_attempts import RewriteAttempts
from driftlog_agents.log.compaction.rewrites import L, Rewrites
from driftlog_agents.log.compaction.sealed_log import name_of
from driftlog_agents.log.objects.object_retry import ANSWERED
from driftlog_agents.log.segments.range_segments import local_errors
from driftlog_metadata.stores.errors import FencedError
from driftlog_tiering.compaction.policy import PartitionBusyError
from driftlog_tiering.formats.manifests import VoidEditError

T = TypeVar("T")

_LOOK_MS: Final = 15_000.0
"""A backoff that becomes shorter holds within this time.  Shorter: more wake-ups."""


class RepeatedRewrites(Generic[L]):
    """Attempts of one kind, for one session.

    Args:
        backoff_ms: see `RewriteAttempts`.
        void: name of the log event about a void edit.
        failed: name of the log event about a failed attempt, with its *advice*.
    """

    def __init__(
        self,
        rewrites: Rewrites[L],
        backoff_ms: Callable[[], float],
        *,
        void: str,
        failed: str,
        advice: str,
    ) -> None:
        self._rewrites = rewrites
        self._now_ms = rewrites.ports.now_ms
        self._void = void
        self._failed = failed
        self._advice = advice
        self._attempts = RewriteAttempts(backoff_ms)
        self._outage = FailureTracker()
        self._log = structlog.get_logger()

    def keep(self, logs: Iterable[L]) -> None:
        """Forgets all partitions but *logs*."""
        self._attempts.keep(logs)

    async def pause(self) -> None:
        """Wait for the backoff, as it is at the end of the wait."""
        waited_ms = 0.0
        while (left_ms := self._attempts.backoff_ms - waited_ms) > 0:
            step_ms = min(left_ms, _LOOK_MS)
            await asyncio.sleep(step_ms / 1000)
            waited_ms += step_ms

    async def attempt(self, log: L, work: Callable[[], Awaitable[T | None]]) -> T | None:
        """What *work* returns; None: the partition waits, or *work* failed and is repeated."""
        began_ms = self._now_ms()
        if log.state not in SERVED or self._attempts.waits(log, began_ms):
            return None
        try:
            with local_errors():
                done = await work()
        except VoidEditError as error:
            # Another compacts or merges the partition: its segments are looked at again.
            self._rewrites.void(log, error.manifest)
            self._log.info(self._void, partition=name_of(log), reason=str(error))
            self._attempts.failed(log, self._now_ms())
        except PartitionBusyError as error:
            self._attempts.busy(log, self._now_ms(), error.left_ms)
        except FencedError:
            # It is led elsewhere, or the session is over: its keep-alive learns that.
            self._attempts.failed(log, self._now_ms())
        except (*NO_ANSWER, *ANSWERED) as error:
            self._tell(log, str(error) or repr(error), began_ms)
            # A damaged segment: each attempt reads and stores much before the damage.
            answered = isinstance(error, ANSWERED)
            self._attempts.failed(log, self._now_ms(), answered=answered)
        else:
            self._outage.ended(self._now_ms())
            return done
        return None

    def succeeded(self, log: L) -> None:
        """*log* was rewritten: it does not wait any more."""
        self._attempts.succeeded(log)

    def _tell(self, log: L, error: str, sent_ms: float) -> None:
        if log.state not in SERVED:
            return
        self._rewrites.drop(log)  # an object may be gone because it was replaced
        if self._outage.failed(error, sent_ms, self._now_ms()):
            self._log.warning(
                self._failed,
                partition=name_of(log),
                error=error,
                failures=self._outage.failures,
                advice=self._advice,
            )
