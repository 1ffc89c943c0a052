"""Whether the bucket takes an object and gives it back.

    a request fails ──▶ repeated ──patience──▶ probe ──succeeds──▶ once more ──▶ unavailable
           ▲                │ "not there", damaged ──patience──▶ unavailable       (`availability`)
           └────────────────┴──────────────────╳ fails: the bucket is away, and not the object

A hand-over (`leadership/handover`) asks as well: nothing moves while the bucket does not answer.

Shell.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

from driftlog_agents.log.objects.availability import LOOKS, PATIENCE_MS
from driftlog_agents.log.session.session import Session
from driftlog_metadata.stores.errors import (
    CorruptError,
    OutcomeUnknownError,
    StoreError,
    UnavailableError,
)
from driftlog_tiering.formats import layout
from driftlog_tiering.stores.object_store import NotFoundError, ObjectStore

_DEADLINE_S: Final = 10.0
_BODY: Final = b"driftlog: can this agent write and read?\n"

ANSWERED: Final = (CorruptError, NotFoundError)
"""The bucket answers: there is no such object, or it is damaged."""
UNANSWERED: Final = (UnavailableError, OutcomeUnknownError, TimeoutError)

_BETWEEN_MS: Final = 1_000.0
"""Between two probes: a store in trouble is not helped by them."""


_SESSION: Final = "probe-"

PROBES_PREFIX: Final = f"{layout.FLUSH_PREFIX}{_SESSION}"
"""Under which probes put objects; no session has such an id."""


async def probe_bucket(objects: ObjectStore, node_id: int, nonce: str) -> str | None:
    """What fails; None: nothing.

    The object is one that no record names: the collector removes it.  *nonce*: 16 hex digits.
    """
    key = layout.flush_key(f"{_SESSION}{node_id}", 0, nonce)
    try:
        async with asyncio.timeout(_DEADLINE_S):
            await objects.put(key, [_BODY])
            found = await objects.get(key)
    except StoreError as error:
        return f"the bucket: {error}"
    except TimeoutError:
        return f"the bucket: no answer in {_DEADLINE_S:g} s"
    if found != _BODY:
        return "the bucket: it does not give back what was put"
    return None


class BucketProbes:
    """The probes of one session, for all that ask: one at a time, and one a second at most."""

    def __init__(self, session: Session, objects: ObjectStore, now_ms: Callable[[], float]) -> None:
        self._session = session
        self._objects = objects
        self._now_ms = now_ms
        self._turn = asyncio.Lock()
        self._probes = 0
        self._began_ms = -math.inf
        self._succeeded_ms = -math.inf
        """When the last one began that succeeded."""

    async def succeeded_since(self, since_ms: float) -> bool:
        """Whether one has succeeded that began since then."""
        async with self._turn:
            if self._succeeded_ms >= since_ms:
                return True
            session, now_ms = self._session, self._now_ms()
            if now_ms - self._began_ms < _BETWEEN_MS:
                return False
            self._began_ms = now_ms
            self._probes += 1  # nothing is ever put twice under one name
            nonce = (int(session.session_id[:16], 16) + self._probes) % 2**64
            if await probe_bucket(self._objects, session.node_id, f"{nonce:016x}") is not None:
                return False
            self._succeeded_ms = now_ms
            return True


class Patience:
    """Of one read that repeats its request: whether its object is unavailable; see the module.

    Args:
        probes: while the bucket gives nothing at all, and does not say that the object is not
            there, the read goes on: no other agent would do better, or `health/write_health` finds
            out.
    """

    __slots__ = ("_alone", "_looks", "_now_ms", "_probes", "_since_ms")

    def __init__(self, probes: BucketProbes, now_ms: Callable[[], float]) -> None:
        self._probes = probes
        self._now_ms = now_ms
        self._since_ms = now_ms()
        self._looks = 0
        self._alone = False
        """A probe has succeeded, and the object was to be asked for once more."""

    async def is_over(self, *, answered: bool) -> bool:
        """A request failed; True: the object is unavailable.

        Args:
            answered: the bucket answered: there is no such object, or the object is damaged.
        """
        self._looks += 1
        over_ms = self._since_ms + PATIENCE_MS
        if self._looks < LOOKS or self._now_ms() < over_ms:
            return False
        if answered or self._alone:
            return True
        self._alone = await self._probes.succeeded_since(over_ms)
        return False
