"""The payloads and batches of the benchmarks, from one seed.

1 KiB records are values of 1,024 bytes without key or header, as ProducerPerformance's.
A "1 MB" batch has the records that `batch.size=1000000` allows, a "64 KiB" one those of
65,536.  Records carry the time when this process began: a broker counts `retention.ms` by
the records' own time, and would delete older ones during a measurement.
Shell.
"""

import random
import time
from functools import cache

from benchmarks.batches import PAYLOADS, Batch, Codec, encode_batch

_SEED = 20
_OVERHEAD_BYTES = 12
"""At most, a record around a value of up to 16 KiB and without a key."""
TIMESTAMP_MS = time.time_ns() // 1_000_000


@cache
def make_batches(
    payload: str,
    batch_bytes: int,
    record_bytes: int = 1024,
    *,
    codec: str = "none",
    count: int = 0,
    timestamp_ms: int = TIMESTAMP_MS,
) -> tuple[Batch, ...]:
    """*count* different batches of at most *batch_bytes* before compression, one record at least.

    By default as many as make 16 MB: more than a codec's window, so that sealing does not
    find the load to be a repetition.  The same arguments give the same values.
    """
    records = max(1, (batch_bytes - 61) // (record_bytes + _OVERHEAD_BYTES))
    count = count or max(1, 16_000_000 // batch_bytes)
    rng = random.Random(_SEED)
    return tuple(
        encode_batch(
            PAYLOADS[payload](rng, records, record_bytes),
            codec=Codec[codec.upper()],
            timestamp_ms=timestamp_ms,
        )
        for _ in range(count)
    )
