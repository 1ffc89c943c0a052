"""The look at cluster.json before each delete: without it a collector empties another's bucket."""

import asyncio

import pytest

from driftlog_agents.cluster.cluster_file import ClusterFile
from driftlog_agents.log.garbage.common.garbage_objects import Garbage, GarbageReason
from driftlog_agents.log.garbage.common.request_retry import request_retry
from driftlog_agents.log.garbage.deletions import Deletions
from driftlog_agents.log.ingest.flush_pipeline import FlushSettings
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import Cluster
from driftlog_metadata.stores.errors import CorruptError, FencedError, UnavailableError
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import encode_cluster
from driftlog_tiering.formats.manifests import OtherClusterError
from driftlog_tiering.stores.object_store import NotFoundError
from tests.agents.log.lives import now_ms, on_virtual_time
from tests.support.memory_object_store import MemoryObjectStore

OBJECT = layout.flush_key("s", 1, "a")
GARBAGE = [Garbage(OBJECT, 1, GarbageReason.NO_RECORD)]


async def deletes_with(body: bytes | None) -> tuple[Deletions, MemoryObjectStore]:
    """Deletions of cluster a with the default grace, on a bucket whose file is *body*."""
    bucket = MemoryObjectStore(lambda: 0)
    await bucket.put(OBJECT, [b"x"])
    if body is not None:
        await bucket.put(layout.CLUSTER_KEY, [body])
    confirm = ClusterFile(bucket, "a", Grace(), lambda: 0.0).confirm
    return Deletions(bucket, confirm, request_retry(1_000)), bucket


async def test_the_own_cluster_is_confirmed_before_each_delete() -> None:
    """
    A file of the first releases, which has no grace, means 12 h.
    """
    deletions, bucket = await deletes_with(encode_cluster(Cluster("a")))

    await deletions.delete(GARBAGE)

    assert [layout.CLUSTER_KEY] == [i.key async for p in bucket.list("") for i in p.objects]
    assert {("flush_object", "no_flush_record"): 1} == deletions.objects == deletions.bytes


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (None, FencedError),
        (encode_cluster(Cluster("b")), FencedError),
        (encode_cluster(Cluster("a"), Grace(60_000)), FencedError),
        (b"{", CorruptError),
    ],
    ids=["no file", "another cluster", "another grace", "damaged"],
)
async def test_nothing_is_deleted_in_any_other_bucket(
    body: bytes | None, error: type[Exception]
) -> None:
    """
    Another grace counts, too: agents that read the old one may still name older objects.
    """
    deletions, bucket = await deletes_with(body)

    with pytest.raises(error):
        await deletions.delete(GARBAGE)

    assert b"x" == await bucket.get(OBJECT)
    assert not deletions.objects


async def test_a_key_that_is_not_driftlogs_is_never_deleted() -> None:
    """
    Whatever names it as garbage: the batch that has it is refused.
    """
    deletions, bucket = await deletes_with(encode_cluster(Cluster("a")))

    with pytest.raises(ValueError, match=r"flush/notes\.txt"):
        await deletions.delete([*GARBAGE, Garbage("flush/notes.txt", 1, GarbageReason.NO_RECORD)])

    assert b"x" == await bucket.get(OBJECT)


class Looked(MemoryObjectStore):
    """A bucket of cluster a, which counts reads."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.reads: list[str] = []
        self.answers = asyncio.Event()
        """Cleared: reads are not answered."""
        self.answers.set()
        self.refuses = False

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.reads.append(key)
        if self.refuses:
            raise UnavailableError("slow down")
        answer, error = b"", None
        try:
            answer = await super().get(key, start, end)
        except NotFoundError as missing:
            error = missing
        await self.answers.wait()
        if error is not None:
            raise error
        return answer


async def looked() -> tuple[ClusterFile, Looked]:
    """The look of an agent of cluster a at its bucket."""
    bucket = Looked()
    await bucket.put(layout.CLUSTER_KEY, [encode_cluster(Cluster("a"))])
    return ClusterFile(bucket, "a", Grace(), now_ms), bucket


@on_virtual_time
async def test_a_busy_agent_asks_twice_a_minute_by_one_request() -> None:
    """
    And an idle one does not ask.
    """
    file, bucket = await looked()
    await file.hold()
    bucket.reads.clear()
    for _ in range(600):  # flushes of a minute
        if file.is_due():
            await file.refresh()
        await file.hold()
        await asyncio.sleep(0.1)

    assert [layout.cluster_key(1)] * len(bucket.reads) == bucket.reads
    assert 1 <= len(bucket.reads) <= 2
    await asyncio.sleep(3_000)
    assert not file.holds()
    assert len(bucket.reads) <= 2


@on_virtual_time
async def test_commits_wait_for_a_look_that_fails() -> None:
    """
    They do not fail at once; after a minute the flush looks whether its object is too old.
    """
    file, bucket = await looked()
    bucket.refuses = True
    waiting = asyncio.get_running_loop().create_task(file.hold())
    await asyncio.sleep(30)
    assert not waiting.done()
    bucket.refuses = False
    await asyncio.wait_for(waiting, 5)
    assert file.holds()

    await asyncio.sleep(100)
    bucket.refuses = True
    before = now_ms()
    with pytest.raises(UnavailableError):
        await file.hold()
    assert 60_000 <= now_ms() - before < 70_000


@on_virtual_time
async def test_the_time_of_a_look_is_when_it_was_sent() -> None:
    """
    A restore that creates its file meanwhile is not in the answer.
    """
    file, bucket = await looked()
    bucket.answers.clear()
    look = asyncio.get_running_loop().create_task(file.refresh())
    await asyncio.sleep(1)
    bucket.answers.set()
    await look
    assert file.holds()
    await asyncio.sleep(59.5)
    assert not file.holds()


@on_virtual_time
async def test_a_lost_answer_delays_the_commit_of_an_idle_agent_a_little() -> None:
    """
    As long as a PUT whose answer is lost: then it is sent again.
    """
    file, bucket = await looked()
    await file.hold()
    await asyncio.sleep(100)
    bucket.answers.clear()
    before = now_ms()
    waiting = asyncio.get_running_loop().create_task(file.hold())
    await asyncio.sleep(1)
    lost, bucket.answers = bucket.answers, asyncio.Event()
    bucket.answers.set()
    await waiting

    assert not lost.is_set()
    assert now_ms() - before < 1.5 * FlushSettings().lost_ms


@pytest.mark.parametrize("files", [1, 3])
def test_another_cluster_ends_the_agent(files: int) -> None:
    """
    Also when its file is not the next one: a change of grace, or two restores.
    """

    @on_virtual_time
    async def run() -> None:
        file, bucket = await looked()
        await file.hold()
        lost = asyncio.get_running_loop().create_task(file.until_lost())
        for number in range(1, files):
            await bucket.put(layout.cluster_key(number), [encode_cluster(Cluster("a"))])
        await bucket.put(layout.cluster_key(files), [encode_cluster(Cluster("b"))])
        await file.hold()  # it looked just now
        await asyncio.sleep(61)
        with pytest.raises(OtherClusterError, match="cluster b"):
            await file.hold()
        with pytest.raises(OtherClusterError, match="driftlog restore"):
            await lost
        with pytest.raises(OtherClusterError):
            await file.hold()

    run()


@on_virtual_time
async def test_what_the_collector_finds_counts_for_commits() -> None:
    """
    Another cluster ends the agent, and its own is a look.
    """
    file, bucket = await looked()
    await file.confirm()
    assert file.holds()
    await bucket.put(layout.cluster_key(1), [encode_cluster(Cluster("b"))])
    with pytest.raises(OtherClusterError):
        await file.confirm()
    assert not file.holds()
