"""Whether the bucket takes an object and gives it back: asked by who has trouble with one.

Shell.
"""

import asyncio
from typing import Final

from driftlog_metadata.errors import StoreError
from driftlog_tiering import layout
from driftlog_tiering.object_store import ObjectStore

_DEADLINE_S: Final = 10.0
_BODY: Final = b"driftlog: can this agent write and read?\n"


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
