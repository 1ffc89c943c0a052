"""Whether the bucket takes an object and gives it back: asked by who has trouble with one.

    an object is refused ──patience──▶ probe ──succeeds──▶ asked once more ──refused──▶ withheld
           ▲                             ╳ fails: the bucket is away, and not the object
           └─────────────────────────────┘

Shell.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

from driftlog_agents.log.session import Session
from driftlog_metadata.errors import StoreError
from driftlog_tiering import layout
from driftlog_tiering.object_store import ObjectStore

_DEADLINE_S: Final = 10.0
_BODY: Final = b"driftlog: can this agent write and read?\n"

_BETWEEN_MS: Final = 1_000.0
"""Between two probes: a store in trouble is not helped by them."""


async def probe_bucket(objects: ObjectStore, node_id: int, nonce: str) -> str | None:
    """What fails; None: nothing.

    The object is one that no record names: the collector removes it.  *nonce*: 16 hex digits.
    """
    key = layout.flush_key(f"probe-{node_id}", 0, nonce)
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
    """The probes of one session, for all who ask: one at a time."""

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


class Withholding:
    """Of one object that is asked for again and again: whether it is withheld; see the module."""

    __slots__ = ("_alone", "_now_ms", "_probes", "_since_ms")

    def __init__(self, probes: BucketProbes, now_ms: Callable[[], float]) -> None:
        self._probes = probes
        self._now_ms = now_ms
        self._since_ms = now_ms()
        self._alone = False
        """A probe has succeeded, and the object was to be asked for once more."""

    async def found(self, patience_ms: float) -> bool:
        """The object was refused once more; True: it is withheld, after so long at least."""
        if self._alone:
            return True
        over_ms = self._since_ms + patience_ms
        if self._now_ms() >= over_ms:
            self._alone = await self._probes.succeeded_since(over_ms)
        return False
