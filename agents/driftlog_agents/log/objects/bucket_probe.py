"""Probes the bucket: PUT an object, and GET it back.

A read without an answer uses the probe (`object_retry`): is the bucket unavailable, or only this
object?  A hand-over (`leadership/handover`) uses it as well: no partition moves while the bucket
does not answer.

Shell.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

from driftlog_agents.log.objects.availability import READ_DEADLINE_MS
from driftlog_agents.log.session.session import Session
from driftlog_metadata.stores.errors import StoreError
from driftlog_tiering.formats import layout
from driftlog_tiering.stores.object_store import ObjectStore

_DEADLINE_S: Final = 10.0
_BODY: Final = b"driftlog: can this agent write and read?\n"

_BETWEEN_MS: Final = 1_000.0
"""Least time between two probes: they add load to a store in trouble."""


_SESSION: Final = "probe-"

PROBES_PREFIX: Final = f"{layout.FLUSH_PREFIX}{_SESSION}"
"""The key prefix of probe objects; no session has such an id."""


async def probe_bucket(objects: ObjectStore, node_id: int, nonce: str) -> str | None:
    """Probes the bucket once; returns the failure, or None.

    No flush record names the object: the garbage collector deletes it.  *nonce*: 16 hex digits.
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
        return "the bucket: GET returns other bytes than PUT wrote"
    return None


class BucketProbes:
    """The probes of one session, shared by all callers: one at a time, and at most one a second.

    Args:
        read_deadline_ms: how long a caller repeats a failed request before it probes.
    """

    def __init__(
        self,
        session: Session,
        objects: ObjectStore,
        now_ms: Callable[[], float],
        read_deadline_ms: float = READ_DEADLINE_MS,
    ) -> None:
        self.read_deadline_ms = read_deadline_ms
        self._session = session
        self._objects = objects
        self._now_ms = now_ms
        self._turn = asyncio.Lock()
        self._probes = 0
        self._began_ms = -math.inf
        self._succeeded_ms = -math.inf
        """When the last successful probe began."""

    async def succeeded_since(self, since_ms: float) -> bool:
        """Whether a probe that began at *since_ms* or later has succeeded."""
        async with self._turn:
            if self._succeeded_ms >= since_ms:
                return True
            session, now_ms = self._session, self._now_ms()
            if now_ms - self._began_ms < _BETWEEN_MS:
                return False
            self._began_ms = now_ms
            self._probes += 1  # no object name is ever used twice
            nonce = (int(session.session_id[:16], 16) + self._probes) % 2**64
            if await probe_bucket(self._objects, session.node_id, f"{nonce:016x}") is not None:
                return False
            self._succeeded_ms = now_ms
            return True
