"""One partition whose objects do not answer takes the requests of all others."""

import asyncio

from driftlog_agents.log.reading.ranged_reads import RangedReads
from driftlog_agents.log.reading.read_settings import ReadSettings
from tests.agents.log.tiers import Bucket
from tests.agents.network.serving import eventually

SILENT, OTHER = "topics/t/id/00000", "topics/t/id/00001"
FLUSHES = "flush/session"


async def reads_beside_silence(folder: str) -> tuple[int, bool]:
    """How many GETs wait for objects of *folder* that do not answer, and whether another partition
    is read meanwhile."""
    bucket, settings = Bucket(), ReadSettings()
    await bucket.put(f"{OTHER}/x", [b"bytes"])
    silent = [f"{folder}/{number}" for number in range(settings.requests_at_once)]
    for key in silent:
        await bucket.put(key, [b"bytes"])
        bucket.slow[key] = asyncio.Event()
    reads = RangedReads(bucket, settings, lambda: 0.0, asyncio.to_thread)
    waiting = [asyncio.create_task(reads.get(key, 0, 5)) for key in silent]
    await eventually(lambda: reads.requests >= settings.requests_of_partition)
    for _ in range(10):
        await asyncio.sleep(0)
    asked = reads.requests
    other = asyncio.create_task(reads.get(f"{OTHER}/x", 0, 5))
    await asyncio.wait((other,), timeout=1.0)
    served = other.done()
    for key in silent:
        bucket.slow[key].set()
    assert [b"bytes"] * len(silent) == await asyncio.gather(*waiting)
    assert b"bytes" == await other
    return asked, served


async def test_a_partition_has_its_share_of_the_requests() -> None:
    """
    Others are read beside one that is silent.
    """
    assert (ReadSettings().requests_of_partition, True) == await reads_beside_silence(SILENT)


async def test_flush_objects_count_each_for_itself() -> None:
    """
    A read of the tail fetches many small ones of one session together.
    """
    asked, _ = await reads_beside_silence(FLUSHES)

    assert ReadSettings().requests_at_once == asked
