"""Whether the bucket takes an object and gives it back.

A read that has no answer asks (`object_retry`): is it the bucket that is away, or this object?  A
hand-over (`leadership/handover`) asks as well: nothing moves while the bucket does not answer.

Shell.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

from driftlog_agents.log.session.session import Session
from driftlog_metadata.stores.errors import StoreError
from driftlog_tiering.formats import layout
from driftlog_tiering.stores.object_store import ObjectStore

_DEADLINE_S: Final = 10.0
_BODY: Final = b"driftlog: can this agent write and read?\n"

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
