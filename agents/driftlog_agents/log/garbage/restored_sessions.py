"""What a restore has listed under ``flush/``: it stays until the restore is discarded.

    /restore  ─                      nothing is kept for a restore
              listed at …            every object that was put until then stays
              not finished           every object stays

A partition that the restore could not bring back is restored later, from the same objects.

Shell.
"""

import math

from driftlog_agents.log.garbage.metadata_reads import CollectorReads
from driftlog_metadata.schema.codec import decode_at, decode_restore
from driftlog_metadata.schema.keys import RESTORE_KEY


async def restored_until_ms(reads: CollectorReads) -> float:
    """Flush objects and final heads that were put until then stay, by the object store's clock.

    Raises:
        CorruptError: the key cannot be read.
        UnavailableError, OutcomeUnknownError, TimeoutError: the metadata store.
    """
    (kv,) = await reads.get(RESTORE_KEY)
    if kv is None:
        return -math.inf
    listed_ms = decode_at(kv.key, kv.value, decode_restore).listed_ms
    return math.inf if listed_ms is None else listed_ms
