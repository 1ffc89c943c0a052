"""One partition whose objects do not answer takes the requests of all others."""

import asyncio
from collections.abc import Sequence

from driftlog_agents.log.reading.ranged_reads import RangedReads
from driftlog_agents.log.reading.read_settings import ReadSettings
from tests.agents.log.tiers import Bucket
from tests.agents.network.serving import eventually

SILENT, OTHER = "topics/t/id/00000", "topics/t/id/00001"
FLUSHES = [f"flush/session-{number}" for number in range(4)]


async def reads_beside_silence(folders: Sequence[str], owner: str = "") -> tuple[int, bool]:
    """How many GETs wait for objects of *folders* that do not answer, and whether another partition
    is read meanwhile."""
    bucket, settings = Bucket(), ReadSettings()
    await bucket.put(f"{OTHER}/x", [b"bytes"])
    each = settings.requests_at_once // len(folders)
    silent = [f"{folder}/{number}" for folder in folders for number in range(each)]
    for key in silent:
        await bucket.put(key, [b"bytes"])
        bucket.slow[key] = asyncio.Event()
    reads = RangedReads(bucket, settings, lambda: 0.0, asyncio.to_thread)
    waiting = [asyncio.create_task(reads.get(key, 0, 5, owner=owner)) for key in silent]
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
    assert (ReadSettings().requests_of_partition, True) == await reads_beside_silence([SILENT])


async def test_an_object_of_many_partitions_counts_for_the_one_that_is_read() -> None:
    """
    A consumer behind the local disk asks for many flush objects, of one session or of several.
    """
    share = ReadSettings().requests_of_partition
    assert (share, True) == await reads_beside_silence(FLUSHES, owner=SILENT)
