"""A partition whose metadata are older than the bucket goes offline, and loses no record.

What the bucket has and the metadata store does not know is never replaced, and its offsets are not
given out again: the partition is offline, with the reason, and whole under the right store.
"""

import asyncio

import pytest

from driftlog_agents.log.partition.partition import PartitionLog, State
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.codec import decode_producer_id_block, encode_producer_id_block
from driftlog_metadata.schema.keys import LEADERS_PREFIX, PARTITIONS_PREFIX, PRODUCER_IDS_KEY
from driftlog_metadata.schema.model import PartitionState, ProducerIdBlock, TopicPartition
from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.store import Delete, Put
from driftlog_tiering.formats.manifest import Manifest, SetLogStart
from driftlog_tiering.formats.manifests import commit_edit, load_newest
from driftlog_tiering.stores.object_store import NotFoundError
from tests.agents.log.lives import ONE, Life, World, now_ms, on_virtual_time
from tests.agents.log.recovery.test_recovery import left_behind
from tests.support.clusters import AUTHOR
from tests.support.memory_store import MemoryMetadataStore


async def restored(world: World) -> MemoryMetadataStore:
    """A store with what *world*'s has now: a backup, or the one to which its copy is put back."""
    copy = MemoryMetadataStore(lambda: int(now_ms()))
    for kv in world.metadata.snapshot():
        if not kv.lease_id:
            await copy.txn((), [Put(kv.key, kv.value)])
    return copy


async def sealed_after_the_backup(world: World, records: int = 5) -> MemoryMetadataStore:
    """3 records, a backup, then *records* more; all is sealed, and the agent has stopped.

    Returns the backup.
    """
    life = await world.start()
    for n in range(3):
        await life.produce(b"before %d" % n).answer()
    await life.stop()
    backup = await restored(world)
    life = await world.start()
    for n in range(records):
        await life.produce(b"after %d" % n).answer()
    await life.seal()
    await life.stop()
    return backup


def refusal(life: Life) -> tuple[ErrorCode, str]:
    """What a record is answered."""
    with pytest.raises(RefusedError) as refused:
        life.admit(b"new")
    return refused.value.code, str(refused.value)


@on_virtual_time
async def test_a_manifest_that_ends_above_the_log_puts_the_partition_offline() -> None:
    """
    Nothing is admitted, the reason names the manifest, both ends and what to do; the neighbour is
    served.  Under the right store everything is there.
    """
    world = World(t=2)
    backup = await sealed_after_the_backup(world)
    right, world.metadata = world.metadata, backup
    manifest = world.bucket.keys("/manifest/")[0]

    life = await world.start()
    state, (code, said) = life.log().state, refusal(life)
    neighbour = await life.produce(b"x", partition=1).answer()
    await asyncio.sleep(60)
    lives = not life.task.done()
    await life.stop()
    world.metadata = right
    life = await world.start()
    admitted, request = life.admit(b"new")
    await request.answer()

    assert (State.OFFLINE, ErrorCode.KAFKA_STORAGE_ERROR) == (state, code)
    assert (True, "committed") == (lives, neighbour)
    for fact in (manifest, "ends at 8", "ends at 3", "older than the bucket", "accept-loss"):
        assert fact in said
    assert 8 == admitted.base_offset


@on_virtual_time
async def test_what_a_disk_has_is_not_appended_to_a_log_that_lacks_what_is_sealed() -> None:
    """
    Recovery comes after the comparison: what was promised stays on the disk until its place in the
    right log is known, and is set aside then.
    """
    world = World(t=1)
    old = await left_behind(world, ONE)
    world.bucket.away = False
    backup = await restored(world)
    elsewhere = world.other_disk()
    await asyncio.sleep(10)
    other = await elsewhere.start()
    await other.produce(b"sealed").answer()
    assert 3 == await other.seal()
    await other.stop()
    right, world.metadata = world.metadata, backup

    life = await world.start(ready=False)
    await life.engine.ready.wait()
    found = (life.log().state, life.log().log_end, old.session_id in world.directories)
    life.kill()
    world.metadata = right
    life = await world.start()
    await asyncio.sleep(60)

    assert (State.OFFLINE, 2, True) == found
    assert [] == [value for *_, value in await life.committed()]
    assert [b"mine"] == [value for *_, value in world.set_aside()]


@on_virtual_time
async def test_a_partition_whose_keys_are_both_gone_is_no_fresh_one() -> None:
    """
    The bucket has its segments: offsets do not begin again.
    """
    world = World(t=2)
    await sealed_after_the_backup(world)
    gone = [
        Delete(kv.key)
        for prefix in (LEADERS_PREFIX, PARTITIONS_PREFIX)
        for kv in world.metadata.snapshot(prefix)
    ]
    await world.metadata.txn((), gone)

    life = await world.start()

    assert [State.OFFLINE, State.ONLINE] == [life.log(n).state for n in range(2)]


@on_virtual_time
async def test_a_manifest_that_is_ahead_of_its_key_alone_is_adopted() -> None:
    """
    An agent that dies between manifest and key leaves a log that has all of it.
    """
    world = World(t=1)
    life = await world.start()
    for n in range(3):
        await life.produce(b"%d" % n).answer()

    async def never(*_: object) -> PartitionState:
        await asyncio.Event().wait()
        raise AssertionError

    life.engine.sealer.keys.write = never  # type: ignore[assignment,method-assign]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await life.seal()
    life.kill()
    await asyncio.sleep(10)

    life = await world.start()
    admitted, request = life.admit(b"3")
    await request.answer()

    assert (State.ONLINE, 0, 3) == (life.log().state, life.log().sealed_end, admitted.base_offset)
    assert 4 == await life.seal()


@pytest.mark.parametrize("refused", [True, False])
@on_virtual_time
async def test_a_listing_without_an_answer_is_no_answer(refused: bool) -> None:
    """
    Nothing is served as long as the bucket does not say which manifest is the newest.
    """
    world = World(t=1)
    world.metadata = await sealed_after_the_backup(world)
    world.bucket.lists_fail = refused or None

    life = await world.start(ready=False)
    await asyncio.sleep(5)
    before = [log.state for log in life.engine.logs()]
    world.bucket.lists_fail = False
    await life.ready()

    assert State.ONLINE not in before
    assert [State.OFFLINE] == [log.state for log in life.engine.logs()]


@pytest.mark.parametrize("method", ["list", "get"])
@on_virtual_time
async def test_a_read_that_is_cancelled_from_within_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """
    A client of the store gives a request up, and nobody asked this task to stop: nothing is known,
    and it is asked again.
    """
    world = World(t=1)
    world.metadata = await sealed_after_the_backup(world)
    original = getattr(world.bucket, method)
    cancelled: list[str] = []

    def cancel(key: str, *args: object, **options: object) -> object:
        if "/manifest" in key and len(cancelled) < 2:
            cancelled.append(key)
            raise asyncio.CancelledError
        return original(key, *args, **options)

    monkeypatch.setattr(world.bucket, method, cancel)

    life = await world.start()

    assert 2 == len(cancelled)
    assert [State.OFFLINE] == [log.state for log in life.engine.logs()]


@pytest.mark.parametrize("records", [5, 8])
@on_virtual_time
async def test_sealing_does_not_adopt_what_its_session_has_not_made(records: int) -> None:
    """
    A listing that showed less than there was: a manifest that ends among the records that this
    leader took, or where they end, puts the partition offline, and the agent lives.
    """
    world = World(t=1)
    world.metadata = await sealed_after_the_backup(world)
    world.bucket.hidden = "/manifest/"
    life = await world.start()
    for n in range(records):
        await life.produce(b"new %d" % n).answer()
    world.bucket.hidden = ""
    for _ in range(3):
        with pytest.raises(UnavailableError):
            await life.seal()
    code, said = refusal(life)

    assert not life.task.done()
    assert (State.OFFLINE, ErrorCode.KAFKA_STORAGE_ERROR) == (life.log().state, code)
    assert "older than the bucket" in said
    assert 0 == life.log().sealed_end


@on_virtual_time
async def test_what_its_session_has_made_and_not_heard_of_is_adopted() -> None:
    """
    The answer to a manifest is lost for longer than sealing waits: the next attempt takes it.
    """
    world = World(t=1)
    life = await world.start()
    await life.produce(b"0").answer()
    world.bucket.lost_creates = 1_000
    with pytest.raises(OutcomeUnknownError):
        await life.seal()
    world.bucket.lost_creates = 0
    await life.produce(b"1").answer()
    await life.seal()  # finds that it had been done

    assert 2 == await life.seal()
    assert State.ONLINE is life.log().state


async def moved_by_a_predecessor(world: World) -> None:
    """A former leader's edit of log start arrives late, on top of what is there."""
    tp = TopicPartition(world.topics["t"].topic_id, 0)
    newest = await load_newest(world.bucket, "t", tp)
    assert newest is not None
    at = int(now_ms())
    await commit_edit(
        world.bucket,
        newest,
        SetLogStart(1),
        "late",
        author=AUTHOR,
        read_at_ms=at,
        deadline_ms=at + 1_000,
        now_ms=lambda: int(now_ms()),
    )


@on_virtual_time
async def test_a_predecessors_late_log_start_takes_nothing_offline() -> None:
    """
    It stands on top of our own manifest when that is read back: what is sealed is ours.
    """
    world = World(t=1)
    life = await world.start()
    for n in range(3):
        await life.produce(b"%d" % n).answer()
    manifests = life.engine.manifests
    read_back = manifests.read_back

    async def late(log: PartitionLog, version: int) -> Manifest:
        await moved_by_a_predecessor(world)
        return await read_back(log, version)

    manifests.read_back = late  # type: ignore[method-assign]

    assert 3 == await life.seal()
    assert (State.ONLINE, 1) == (life.log().state, life.log().log_start)


@on_virtual_time
async def test_a_late_log_start_on_what_its_session_has_not_heard_of_is_adopted() -> None:
    """
    The newest manifest is the predecessor's, and it ends where our lost edit does.
    """
    world = World(t=1)
    life = await world.start()
    for n in range(3):
        await life.produce(b"%d" % n).answer()
    world.bucket.lost_creates = 1_000
    with pytest.raises(OutcomeUnknownError):
        await life.seal()
    world.bucket.lost_creates = 0
    await moved_by_a_predecessor(world)
    life.engine.manifests.drop(life.log())

    assert 3 == await life.seal()
    assert State.ONLINE is life.log().state


@on_virtual_time
async def test_a_leader_that_gave_a_partition_up_edits_its_log_start_no_longer() -> None:
    """
    The edit waits for a store that does not answer; the partition is another's before it does.
    """
    world = World(t=1)
    life = await world.start()
    for n in range(3):
        await life.produce(b"%d" % n).answer()
    await life.seal()
    log = life.log()
    log.log_start = 2
    world.bucket.refused_creates = True
    sealing = asyncio.create_task(life.seal())
    await asyncio.sleep(5)
    life.engine.partitions.retire(log)
    world.bucket.refused_creates = False
    with pytest.raises(OutcomeUnknownError):
        await sealing
    newest = await load_newest(world.bucket, "t", TopicPartition(log.topic_id, 0))

    assert newest is not None
    assert 0 == newest.log_start


@pytest.mark.parametrize("seal", [False, True])
@on_virtual_time
async def test_producer_ids_never_go_back(seal: bool) -> None:
    """
    One that the log shows, unsealed or in the producer snapshot, is not given out again.
    """
    world = World(t=1)
    life = await world.start()
    await life.produce(b"0", producer=5_000, epoch=0, sequence=0).answer()
    if seal:
        await life.seal()
    await life.stop()
    block = encode_producer_id_block(
        ProducerIdBlock(first_producer_id=1_000, size=1_000, node_id=1)
    )
    await world.metadata.txn((), [Put(PRODUCER_IDS_KEY, block)])

    life = await world.start()
    await life.engine.loaded(life.log())
    (kv,) = world.metadata.snapshot(PRODUCER_IDS_KEY)
    now = decode_producer_id_block(kv.value)

    assert 5_000 + 2**32 <= now.first_producer_id + now.size


async def _with_a_producer(world: World) -> str:
    """Sealed after the backup by a producer that only the bucket knows, and its snapshot's key."""
    life = await world.start()
    await life.produce(b"before").answer()
    await life.stop()
    backup = await restored(world)
    life = await world.start()
    await life.produce(b"0", producer=5_000, epoch=0, sequence=0).answer()
    await life.seal()
    await life.stop()
    world.metadata = backup
    (key,) = world.bucket.keys("/producers/")
    return key


@pytest.mark.parametrize("gone", [False, True])
@on_virtual_time
async def test_a_snapshot_that_cannot_be_read_does_not_hide_what_the_manifest_says(
    gone: bool,
) -> None:
    """
    The partition is offline with the reason, and ids that it may have are not given out; a snapshot
    that can be read is decoded off the event loop.
    """
    world = World(t=1)
    key = await _with_a_producer(world)
    if gone:
        await world.bucket.delete([key])
    world.offloaded.clear()

    life = await world.start()
    (kv,) = world.metadata.snapshot(PRODUCER_IDS_KEY)
    now = decode_producer_id_block(kv.value)

    assert State.OFFLINE is life.log().state
    assert "older than the bucket" in life.log().offline_reason
    assert 2**32 <= now.first_producer_id + now.size < 2**33
    assert gone or "decode" in world.offloaded


@on_virtual_time
async def test_a_manifest_that_is_not_shown_at_once_is_looked_for_again() -> None:
    """
    One untrue 404 costs a moment, and no claim is given back for it.
    """
    world = World(t=1)
    world.metadata = await sealed_after_the_backup(world)
    get, untrue = world.bucket.get, 1

    async def behind(key: str, start: int = 0, end: int | None = None) -> bytes:
        nonlocal untrue
        if "/manifest/" in key and untrue:
            untrue -= 1
            raise NotFoundError(key)
        return await get(key, start, end)

    world.bucket.get = behind  # type: ignore[method-assign]
    life = await world.start()

    assert (0, State.OFFLINE) == (untrue, life.log().state)
    assert not life.engine.assignments.unreadable
    assert 1 == life.log().leader_epoch  # one claim before the backup, and this one


@on_virtual_time
async def test_a_comparison_that_asks_for_nothing_ends_no_outage() -> None:
    """
    Another one waits for an answer all the while.
    """
    world = World(t=1)
    world.metadata = await sealed_after_the_backup(world)
    world.bucket.lists_fail = True
    life = await world.start(ready=False)
    await asyncio.sleep(3)
    outage = life.engine.health.manifest_checks
    since_ms = outage.since_ms
    await life.engine.manifest_check.newest({}, ())

    assert since_ms is not None
    assert since_ms == outage.since_ms
