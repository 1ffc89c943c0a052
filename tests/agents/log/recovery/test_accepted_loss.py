"""An operator accepts a loss: what is there is kept, what is lost gets no other record.

Real engines on memory stores; the command is in `tests/clients/cli/cluster/test_partition_loss.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from driftlog_agents.cluster.cluster_file import ClusterFile
from driftlog_agents.log.engine_settings import EngineSettings
from driftlog_agents.log.partition.partition import State
from driftlog_agents.log.reading.reader import LogReader
from driftlog_agents.log.recovery.accepted_loss_plan import UNKNOWN_RECORDS
from driftlog_agents.log.recovery.lost_partition import LedElsewhereError, NotLostError
from driftlog_agents.log.sealing.policy import SealSettings
from driftlog_metadata.schema.codec import (
    decode_flush_record,
    decode_leader,
    decode_partition_state,
)
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.keys import FLUSHES_PREFIX, leader_key, partition_key
from driftlog_metadata.schema.model import Cluster, TopicPartition
from driftlog_metadata.stores.errors import CorruptError, UnavailableError
from driftlog_metadata.stores.store import Delete, Put
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.accepted_loss import decode_accepted_loss
from driftlog_tiering.formats.bucket_files import encode_cluster
from driftlog_tiering.formats.manifests import OtherClusterError
from driftlog_tiering.stores.object_store import NotFoundError
from tests.agents.log.lives import ONE, SETTINGS, Life, World, now_ms, on_virtual_time, values_of
from tests.agents.log.recovery.test_recovery import left_behind
from tests.agents.log.test_missing_keys import Key, started, take_away
from tests.agents.log.test_older_metadata import sealed_after_the_backup
from tests.support.clusters import AUTHOR

TP = TopicPartition(UUID(int=1), 0)
"""t-0."""


async def accepted(life: Life) -> list[tuple[int, int]]:
    """Accept what is lost of t-0; the ranges."""
    plan = await life.engine.losses.examine(TP)
    loss = await life.engine.losses.accept(TP, plan.as_json(), 1_234)
    await life.ready()
    record = decode_accepted_loss(await life.world.bucket.get(loss.key))
    assert record == loss
    assert (1_234, life.session_id) == (record.accepted_at_ms, record.session_id)
    return list(plan.lost)


async def everything(life: Life) -> dict[int, bytes]:
    """What a consumer reads of t-0, from its start to its end."""
    log, found = life.log(), dict[int, bytes]()

    async def offload(fn: Callable[..., object], *args: object) -> object:
        return fn(*args)

    reader = LogReader(
        store=life.world.bucket,
        offload=offload,
        manifests=life.engine,
        now_ms=now_ms,
    )
    offset = log.log_start
    while offset < log.high_watermark:
        batches = await reader.read(log, offset, 1_000_000, zstd=True)
        assert batches
        for batch in batches:
            found |= {at: value for at, _, value in values_of(batch)}
            offset = int.from_bytes(batch[:8], "big") + 1 + int.from_bytes(batch[23:27], "big")
    return found


async def admitted(life: Life, value: bytes = b"new") -> int:
    """The offset of a new record, once it is committed."""
    admission, request = life.admit(value)
    await request.answer()
    return admission.base_offset


async def flush_records(world: World) -> list[tuple[str, str]]:
    """(key, object) of each flush record."""
    _, kvs = await world.metadata.get_prefix(FLUSHES_PREFIX)
    return [(kv.key, decode_flush_record(kv.value).object_key) for kv in kvs]


def counted(world: World) -> list[tuple[str, int]]:
    """(object, bytes) of each read from now on."""
    get, reads = world.bucket.get, list[tuple[str, int]]()

    async def noted(key: str, start: int = 0, end: int | None = None) -> bytes:
        found = await get(key, start, end)
        reads.append((key, len(found)))
        return found

    world.bucket.get = noted  # type: ignore[method-assign]
    return reads


async def written(world: World, count: int = 3, *, seal: int = 0) -> None:
    """*count* flushes of one record each, the first *seal* of them sealed."""
    life = await world.start()
    for n in range(count):
        await life.produce(b"%d" % n).answer()
        if n + 1 == seal:
            await life.seal()
    await life.stop()


@pytest.mark.parametrize("seal", [0, 1])
@on_virtual_time
async def test_a_missing_flush_record_leaves_an_empty_range(seal: int) -> None:
    """
    What is on both sides of the gap is read as before, and again after a restart.
    """
    world = World(t=1)
    await written(world, 4, seal=seal)
    records = await flush_records(world)
    await world.metadata.txn((), [Delete(records[1][0])])
    gap = seal + 1
    life = await world.start()
    assert State.OFFLINE is life.log().state

    lost = await accepted(life)
    offset = await admitted(life)
    first = await everything(life)
    await life.stop()
    life = await world.start()

    assert [(gap, gap + 1)] == lost
    assert 4 == offset
    expected = {n: b"%d" % n for n in range(4) if n != gap} | {4: b"new"}
    assert expected == first == await everything(life)


@pytest.mark.parametrize("number", [0, 1, 2])
@on_virtual_time
async def test_a_flush_object_that_is_gone_is_given_up_with_its_offsets(number: int) -> None:
    """
    Its records may have stood anywhere: new offsets begin above all that it can have held, also
    where a gap seems to show its range.
    """
    world = World(t=1)
    await written(world)
    (_, key) = (await flush_records(world))[number]
    await world.bucket.delete([key])
    life = await world.start(ready=False)
    await life.engine.ready.wait()
    while TP not in life.engine.offline():  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    assert life.engine.log("t", 0) is None
    assert key in life.engine.offline()[TP]

    lost = await accepted(life)
    offset = await admitted(life)
    assert {} == life.engine.offline()
    await life.stop()
    life = await world.start()

    end = (3 if number < 2 else 2) + UNKNOWN_RECORDS
    above = (3, end) if number < 2 else (2, end)
    assert [(number, number + 1), above][number == 2 :] == lost
    assert end == offset
    expected = {n: b"%d" % n for n in range(3) if n != number} | {end: b"new"}
    assert expected == await everything(life)


@on_virtual_time
async def test_a_flush_object_whose_footer_is_damaged_counts_as_gone() -> None:
    """
    Where its records are nothing says; a footer of a later release is none that is damaged.
    """
    world = World(t=1)
    await written(world)
    (_, key) = (await flush_records(world))[1]
    whole = await world.bucket.get(key)
    newer = whole.replace(b"DLFF\0\4", b"DLFF\x7f\4")
    assert newer != whole
    await world.bucket.delete([key])
    await world.bucket.put(key, [newer])
    life = await started(world)
    with pytest.raises(CorruptError, match="upgrade"):
        await life.engine.losses.examine(TP)
    await world.bucket.delete([key])
    await world.bucket.put(key, [whole[:-1] + bytes([whole[-1] ^ 1])])

    lost = await accepted(life)

    assert [(1, 2), (3, 3 + UNKNOWN_RECORDS)] == lost
    assert {0: b"0", 2: b"2"} == await everything(life)


@on_virtual_time
async def test_what_a_leader_that_serves_has_lost_can_be_given_up() -> None:
    """
    It runs when an object of its tail is lost, and cannot seal any more.  More is written between
    what is shown and what is accepted; that is kept.
    """
    world = World(t=1)
    seal = SealSettings(segment_ms=5_000, small_ms=5_000)
    await written(world)
    life = await world.start(EngineSettings(buffer=SETTINGS.buffer, seal=seal))
    with pytest.raises(NotLostError, match="served"):
        await life.engine.losses.examine(TP)
    await world.bucket.delete([(await flush_records(world))[1][1]])
    while not life.log().damage:  # noqa: ASYNC110
        await asyncio.sleep(1)

    plan = await life.engine.losses.examine(TP)
    with capture_logs() as lines, pytest.raises(NotLostError, match="changed"):
        await life.engine.losses.accept(TP, plan.as_json() | {"objects": []}, 0)
    refused = [line["partition"] for line in lines if line["event"] == "loss_not_accepted"]
    assert ["t-0"] == refused
    assert State.ONLINE is life.log().state
    assert 3 == await admitted(life, b"3")
    loss = await life.engine.losses.accept(TP, plan.as_json(), 0)
    await life.ready()

    assert ((1, 2), (4, 4 + UNKNOWN_RECORDS)) == loss.lost
    assert {0: b"0", 2: b"2", 3: b"3"} == await everything(life)
    assert 4 + UNKNOWN_RECORDS == await admitted(life)


@on_virtual_time
async def test_what_is_accepted_is_done_though_nobody_waits_for_it() -> None:
    """
    Its operator has gone while the leader could not flush: it is led again once it can.
    """
    world = World(t=1)
    await written(world)
    seal = SealSettings(segment_ms=5_000, small_ms=5_000)
    life = await world.start(EngineSettings(buffer=SETTINGS.buffer, seal=seal))
    await world.bucket.delete([(await flush_records(world))[1][1]])
    while not life.log().damage:  # noqa: ASYNC110
        await asyncio.sleep(1)
    plan = await life.engine.losses.examine(TP)
    world.bucket.away = True
    request = life.produce(b"3")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await life.engine.losses.accept(TP, plan.as_json(), 0)
    with pytest.raises(UnavailableError):
        await life.engine.losses.accept(TP, plan.as_json(), 0)

    world.bucket.away = False
    assert "committed" == await request.answer()
    await asyncio.sleep(30)

    assert State.ONLINE is life.log().state
    assert 4 + UNKNOWN_RECORDS == await admitted(life)
    assert {0: b"0", 2: b"2", 3: b"3", 4 + UNKNOWN_RECORDS: b"new"} == await everything(life)


@on_virtual_time
async def test_an_agent_that_stops_accepts_nothing_more() -> None:
    """
    What it was about to give up is offline for the next one, which does it.
    """
    world = World(t=1)
    await written(world)
    await world.metadata.txn((), [Delete((await flush_records(world))[1][0])])
    life = await world.start()
    plan = await life.engine.losses.examine(TP)
    world.bucket.silent.add((await flush_records(world))[0][1])
    accepting = asyncio.create_task(life.engine.losses.accept(TP, plan.as_json(), 0))
    await asyncio.sleep(1)
    async with asyncio.timeout(5):
        await life.stop()
    with pytest.raises(UnavailableError):
        await accepting
    world.bucket.silent.clear()

    life = await world.start()
    assert [(1, 2)] == await accepted(life)


@on_virtual_time
async def test_the_order_of_sequence_numbers_says_nothing_of_what_is_lost() -> None:
    """
    Without the partition's key no session is known to be the last one: the newest object, with a
    smaller sequence number than others, had the newest records.
    """
    world = World(t=1)
    await written(world)
    older = set(await flush_records(world))
    await written(world, 1)
    (newest,) = set(await flush_records(world)) - older
    await world.bucket.delete([newest[1]])
    await take_away(world, partition_key)
    life = await started(world)

    lost = await accepted(life)

    assert [(3, 3 + UNKNOWN_RECORDS)] == lost
    assert 3 + UNKNOWN_RECORDS == await admitted(life)


@on_virtual_time
async def test_a_log_goes_on_at_the_manifest_that_its_metadata_do_not_know() -> None:
    """
    What is sealed is kept, also what was committed behind it is given out to nobody again.
    """
    world = World(t=1)
    backup = await sealed_after_the_backup(world)
    for n in range(2):
        for _ in range(5):  # leader epochs that the backup does not know
            await (await world.start()).stop()
        life = await world.start()
        await life.produce(b"unsealed %d" % n).answer()
        await life.stop()
    epoch = 13
    world.metadata = backup
    life = await world.start()

    lost = await accepted(life)
    offset = await admitted(life)
    assert epoch < life.log().leader_epoch
    await life.seal()
    await life.stop()
    life = await world.start()

    assert ([(8, 10)], 10) == (lost, offset)
    values = [b"before %d" % n for n in range(3)] + [b"after %d" % n for n in range(5)]
    assert dict(enumerate(values)) | {10: b"new"} == await everything(life)


@on_virtual_time
async def test_footers_are_read_once_for_what_is_accepted() -> None:
    """
    Nothing leads the partition while it is looked at again under its claim.
    """
    world = World(t=1)
    await written(world, 9)
    _, kvs = await world.metadata.get_prefix(FLUSHES_PREFIX)
    await world.metadata.txn((), [Delete(kvs[4].key)])
    records = [decode_flush_record(kv.value) for kv in kvs if kv is not kvs[4]]
    footers = [(record.object_key, record.size_bytes - record.footer_start) for record in records]
    life = await world.start()
    plan = await life.engine.losses.examine(TP)
    reads = counted(world)

    await life.engine.losses.accept(TP, plan.as_json(), 0)

    assert dict.fromkeys(footers, 1) == {footer: reads.count(footer) for footer in footers}


@on_virtual_time
async def test_what_no_record_names_is_read_once_and_no_more_of_it_than_its_end() -> None:
    """
    Also where a read fails meanwhile, or nobody waits any more: what was read is kept.
    """
    world = World(t=1)
    backup = await sealed_after_the_backup(world)
    named = {object_key for _, object_key in await flush_records(world)}
    life = await world.start()
    for n in range(9):
        await life.produce(b"%d" % n * 100_000).answer()
    await life.stop()
    unnamed = [key for _, key in await flush_records(world) if key not in named]
    world.metadata = backup
    life = await world.start()
    reads = counted(world)
    world.bucket.withheld.add(unnamed[0])
    with pytest.raises(UnavailableError):
        await life.engine.losses.examine(TP)
    world.bucket.withheld.clear()
    lost = await accepted(life)

    assert [(8, 17)] == lost
    read = [(key, size) for key, size in reads if key in unnamed]
    assert sorted(unnamed) == sorted(key for key, _ in read)
    assert max(size for _, size in read) <= 16 * 1024


@pytest.mark.parametrize("key", [leader_key, partition_key])
@pytest.mark.parametrize("seal", [0, 2, 3])
@on_virtual_time
async def test_a_missing_key_is_made_again_from_what_there_is(key: Key, seal: int) -> None:
    """
    Nothing is lost with it: all records are there, and neither offsets nor epochs go back.
    """
    world = World(t=2)
    await written(world, seal=seal)
    before = decode_leader((await world.metadata.get(leader_key(TP))).value)  # type: ignore[union-attr]
    gone = await take_away(world, key)
    life = await started(world)
    assert gone.key in str(life.engine.offline())

    lost = await accepted(life)
    epoch = life.log().leader_epoch
    offset = await admitted(life)

    assert ([], 3) == (lost, offset)
    assert epoch > before.leader_epoch
    assert {0: b"0", 1: b"1", 2: b"2", 3: b"new"} == await everything(life)


async def lose_an_object(world: World) -> None:
    await world.bucket.delete([(await flush_records(world))[0][1]])


async def lose_a_record(world: World) -> None:
    await world.metadata.txn((), [Delete((await flush_records(world))[1][0])])


async def lose_a_key(world: World) -> None:
    await take_away(world, leader_key)


async def damage_a_key(world: World) -> None:
    await world.metadata.txn((), [Put(leader_key(TP), b"?")])


@pytest.mark.parametrize(
    ("hurt", "way_out", "accepted"),
    [
        (lose_an_object, "restore the missing object", True),
        (lose_a_record, "restore the newer metadata store", True),
        (lose_a_key, "restore the key", True),
        (damage_a_key, "restore that key", False),
    ],
)
@on_virtual_time
async def test_each_reason_ends_with_the_way_out(
    hurt: Callable[[World], Awaitable[None]], way_out: str, accepted: bool
) -> None:
    """
    What to put back, and whether it can be gone on without: as the command and the agent have it.
    """
    world = World(t=1)
    await written(world)
    await hurt(world)
    life = await world.start(ready=False)
    await life.engine.ready.wait()
    while TP not in life.engine.offline():  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    reason = life.engine.offline()[TP]
    try:
        found = bool((await life.engine.losses.examine(TP)).reasons)
    except CorruptError:
        found = False

    assert way_out in reason
    assert "`driftlog partitions accept-loss" in reason
    assert accepted is found is ("not an unreadable key" not in reason)


@on_virtual_time
async def test_what_is_served_or_has_changed_is_not_given_up() -> None:
    """
    Nothing is done but what was shown; an object that cannot be read now is not lost.
    """
    world = World(t=1)
    await written(world)
    records = await flush_records(world)
    life = await world.start()
    with pytest.raises(NotLostError, match="served"):
        await life.engine.losses.examine(TP)
    await life.stop()
    await world.metadata.txn((), [Delete(records[1][0])])
    life = await world.start()
    plan = (await life.engine.losses.examine(TP)).as_json()
    with pytest.raises(NotLostError, match="changed"):
        await life.engine.losses.accept(TP, plan | {"goes_on_at": 7}, 0)
    await life.ready()
    world.bucket.withheld.add(records[0][1])
    with pytest.raises(UnavailableError):
        await life.engine.losses.examine(TP)
    world.bucket.withheld.clear()
    audits = [info.key async for page in world.bucket.list("audit/") for info in page.objects]

    assert [] == audits
    assert State.OFFLINE is life.log().state


@on_virtual_time
async def test_what_is_left_is_sealed_in_few_segments() -> None:
    """
    Not in one for each flush; a gap is one of its own.
    """
    world = World(t=1)
    await written(world, 9)
    await world.metadata.txn((), [Delete((await flush_records(world))[4][0])])
    life = await world.start()

    await accepted(life)

    segments = [info.key async for page in world.bucket.list("topics/") for info in page.objects]
    assert 2 == sum(key.endswith(".parquet") for key in segments), segments
    assert {n: b"%d" % n for n in range(9) if n != 4} == await everything(life)


@on_virtual_time
async def test_what_another_agent_leads_is_that_agents_to_give_up() -> None:
    """
    What is offline stays with its leader, also where it is placed on an agent that joined later.
    Once the leader has given it back to accept the loss, the other one may have claimed it: the
    operator is sent there, and the loss is accepted there.
    """
    world = World(t=8)
    life = await world.start()
    for partition in range(8):
        for n in range(3):
            await life.produce(b"%d" % n, partition=partition).answer()
    await life.stop()
    for key, _ in (await flush_records(world))[1::3]:
        await world.metadata.txn((), [Delete(key)])
    life = await world.start()
    other = await world.other_disk().start(ready=False)
    await other.engine.ready.wait()
    await asyncio.sleep(10)
    offline = life.engine.offline()
    tp = next(tp for tp in offline if other.engine.assignments.is_placed_here(tp))

    with pytest.raises(LedElsewhereError):
        await other.engine.losses.examine(tp)
    shown = (await life.engine.losses.examine(tp)).as_json()
    try:
        await life.engine.losses.accept(tp, shown, 0)
    except LedElsewhereError:
        await asyncio.sleep(2)
        assert shown == (await other.engine.losses.examine(tp)).as_json()
        await other.engine.losses.accept(tp, shown, 0)
    await asyncio.sleep(5)

    log = other.engine.find(tp)
    assert log is not None
    assert (State.ONLINE, 3) == (log.state, log.high_watermark)


@on_virtual_time
async def test_what_a_disk_has_for_offsets_that_are_given_up_is_set_aside() -> None:
    """
    It was promised and is not in the log: it is not taken for something that the lost range had.
    """
    world = World(t=1)
    old = await left_behind(world, ONE)
    world.bucket.away = False
    records = await flush_records(world)
    await world.bucket.delete([key for _, key in records])
    life = await world.start(ready=False)
    await life.engine.ready.wait()
    while TP not in life.engine.offline():  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    assert old.session_id in world.directories

    lost = await accepted(life)
    life.kill()
    life = await world.start()
    await asyncio.sleep(60)

    assert [(0, UNKNOWN_RECORDS)] == lost
    assert {} == await everything(life)
    assert [(2, 0, b"mine")] == world.set_aside()
    assert [life.session_id] == world.directories


@pytest.mark.parametrize("shown", [0, 1])
@on_virtual_time
async def test_a_manifest_that_no_listing_shows_is_found_without_the_partitions_key(
    shown: int,
) -> None:
    """
    A listing that is behind shows an older manifest, or none: what the newest one has sealed is
    neither lost nor given out again.
    """
    world = World(t=1)
    life = await world.start()
    for n in range(3):
        await life.produce(b"%d" % n).answer()
        await life.seal()
    await life.stop()
    await take_away(world, partition_key)
    newest = world.bucket.keys("/manifest/")
    life = await started(world)
    world.bucket.hidden_keys.update(newest[: 3 - shown])

    plan = await life.engine.losses.examine(TP)
    lost = await accepted(life)

    assert (3, ()) == (plan.goes_on_at, plan.lost)
    assert [] == lost
    assert {n: b"%d" % n for n in range(3)} == await everything(life)


def not_found_for(world: World, key: str, seconds: float) -> None:
    """The bucket says for *seconds* that it has no object *key*."""
    get, until_ms = world.bucket.get, now_ms() + seconds * 1000

    async def behind(wanted: str, start: int = 0, end: int | None = None) -> bytes:
        if wanted == key and now_ms() < until_ms:
            raise NotFoundError(wanted)
        return await get(wanted, start, end)

    world.bucket.get = behind  # type: ignore[assignment,method-assign]


@on_virtual_time
async def test_an_object_that_is_back_after_half_a_minute_is_not_lost() -> None:
    """
    A node of the store that is behind says that it is gone; an operator is not told so.
    """
    world = World(t=1)
    await written(world)
    (_, key) = (await flush_records(world))[1]
    not_found_for(world, key, 27)
    life = await started(world)
    with pytest.raises(NotLostError, match="nothing is lost"):
        await accepted(life)
    await life.ready()

    assert {n: b"%d" % n for n in range(3)} == await everything(life)


@on_virtual_time
async def test_many_objects_that_are_gone_are_looked_for_at_once() -> None:
    """
    Looking for them takes as long as for one of them, and accepting their loss little longer.
    """
    world = World(t=1)
    await written(world, 80)
    await world.bucket.delete([key for _, key in await flush_records(world)])
    life = await started(world)
    start_ms = now_ms()
    plan = await life.engine.losses.examine(TP)
    examined_ms = now_ms()
    await life.engine.losses.accept(TP, plan.as_json(), 0)

    assert len(plan.objects) > 1
    assert 30_000 <= examined_ms - start_ms <= 45_000
    assert now_ms() - examined_ms <= 10_000


@pytest.mark.parametrize("elsewhere", [False, True])
@on_virtual_time
async def test_a_partition_that_stays_offline_does_not_remember_who_tried(elsewhere: bool) -> None:
    """
    However often agents start, on one disk or on others; who has flushed something of it stays in
    the list, so that it is whole when the record is put back.
    """
    world = World(t=1)
    await written(world)
    key, _ = (await flush_records(world))[1]
    record = await world.metadata.get(key)
    assert record is not None
    await world.metadata.txn((), [Delete(key)])
    lists = []
    for _ in range(12):
        life = await world.start()
        assert State.OFFLINE is life.log().state
        await life.stop()
        kv = await world.metadata.get(partition_key(TP))
        assert kv is not None
        lists.append(decode_partition_state(kv.value).sessions)
        world = world.other_disk() if elsewhere else world
    await world.metadata.txn((), [Put(record.key, record.value)])
    life = await world.start()

    assert {lists[0]} == set(lists)
    assert {n: b"%d" % n for n in range(3)} == await everything(life)
    assert 3 == await admitted(life)
    await life.stop()
    life = await world.start()
    assert 4 == life.log().high_watermark


def segments_of(world: World) -> list[str]:
    return world.bucket.keys(".parquet")


async def sealed_one_by_one(world: World) -> Life:
    """Three segments of one record each, and a record that is not sealed."""
    life = await world.start()
    for n in range(3):
        await life.produce(b"%d" % n).answer()
        await life.seal()
    await life.produce(b"3").answer()
    return life


@pytest.mark.parametrize("gone", [[0], [1], [2], [0, 1, 2]])
@on_virtual_time
async def test_segments_that_are_gone_become_an_empty_range(gone: list[int]) -> None:
    """
    The partition is served before and after it, with all that is sealed beside it and all that is
    not sealed, after a restart too; sealing goes on.
    """
    world = World(t=1)
    life = await sealed_one_by_one(world)
    await world.bucket.delete([segments_of(world)[n] for n in gone])

    lost = await accepted(life)
    first = await everything(life)
    assert 4 == await admitted(life)
    await life.seal()
    await life.stop()
    life = await world.start()
    await life.engine.loaded(life.log())

    assert [(n, n + 1) for n in gone] == lost
    expected = {n: b"%d" % n for n in range(4) if n not in gone}
    assert expected == first
    assert expected | {4: b"new"} == await everything(life)
    with pytest.raises(NotLostError, match="nothing is lost"):
        await life.engine.losses.examine(TP)


@on_virtual_time
async def test_a_segment_that_is_cut_off_is_damaged_and_its_way_out_is_named() -> None:
    """
    Only what is gone may become empty: the operator restores it, or deletes it first.
    """
    world = World(t=1)
    life = await sealed_one_by_one(world)
    key = segments_of(world)[1]
    whole = await world.bucket.get(key)
    await world.bucket.delete([key])
    await world.bucket.put(key, [whole[:-7]])
    with pytest.raises(NotLostError, match=r"Damaged: .*run accept-loss again") as error:
        await life.engine.losses.examine(TP)
    assert f"{key} has {len(whole) - 7} bytes, and {len(whole)} in" in str(error.value)

    await world.bucket.delete([segments_of(world)[2]])
    assert [(2, 3)] == await accepted(life)

    await world.bucket.delete([key])
    assert [(1, 2)] == await accepted(life)
    assert {0: b"0", 3: b"3"} == await everything(life)


@on_virtual_time
async def test_a_segment_that_is_back_after_half_a_minute_is_not_lost() -> None:
    """
    Listings and reads that lack it are no loss.
    """
    world = World(t=1)
    life = await sealed_one_by_one(world)
    key = segments_of(world)[1]
    world.bucket.hidden_keys.add(key)
    not_found_for(world, key, 27)
    with pytest.raises(NotLostError, match="nothing is lost"):
        await life.engine.losses.examine(TP)

    assert {n: b"%d" % n for n in range(4)} == await everything(life)


@on_virtual_time
async def test_a_segment_that_is_gone_is_accepted_though_sealing_goes_on() -> None:
    """
    A seal between the look and the answer loses nothing more.
    """
    world = World(t=1)
    life = await sealed_one_by_one(world)
    await world.bucket.delete([segments_of(world)[1]])

    plan = await life.engine.losses.examine(TP)
    await life.produce(b"4").answer()
    await life.seal()
    loss = await life.engine.losses.accept(TP, plan.as_json(), 1)
    await life.ready()
    await life.engine.loaded(life.log())

    assert ((1, 2),) == loss.lost
    assert {0: b"0", 2: b"2", 3: b"3", 4: b"4"} == await everything(life)


@on_virtual_time
async def test_segments_that_are_gone_side_by_side_take_one_manifest() -> None:
    """
    Nothing leads the partition while they are written.
    """
    world = World(t=1)
    life = await sealed_one_by_one(world)
    await world.bucket.delete([segments_of(world)[0], segments_of(world)[1]])
    before = life.log().manifest_version

    lost = await accepted(life)

    assert [(0, 1), (1, 2)] == lost
    assert before + 1 == life.log().manifest_version


@on_virtual_time
async def test_a_manifest_that_is_gone_must_be_put_back() -> None:
    """
    The refusal says so: nothing else has what it said.
    """
    world = World(t=1)
    life = await sealed_one_by_one(world)
    await life.stop()
    manifests = world.bucket.keys("/manifest/")
    await world.bucket.delete(manifests[:1])
    life = await started(world)

    with pytest.raises(CorruptError, match=r"manifest.* must be put back"):
        await life.engine.losses.examine(TP)


@on_virtual_time
async def test_an_agent_of_a_restored_cluster_accepts_nothing() -> None:
    """
    An audit record of its own would explain holes in the restored log.
    """
    world = World(t=1)
    await world.bucket.put(layout.CLUSTER_KEY, [encode_cluster(AUTHOR)])
    world.ownership = lambda: ClusterFile(world.bucket, AUTHOR.cluster_id, Grace(), now_ms)
    life = await sealed_one_by_one(world)
    await world.bucket.delete([segments_of(world)[0]])
    plan = await life.engine.losses.examine(TP)
    await world.bucket.put(layout.cluster_key(1), [encode_cluster(Cluster("restored"))])
    await asyncio.sleep(61)

    with pytest.raises(OtherClusterError):
        await life.engine.losses.accept(TP, plan.as_json(), 1_234)

    assert [] == world.bucket.keys(layout.AUDIT_PREFIX)
