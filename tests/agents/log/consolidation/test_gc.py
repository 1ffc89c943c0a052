"""Flush records are merged, and deleted when no longer needed, and the log stays what it was."""

import asyncio
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from driftlog_agents.log.partition.partition import PartitionLog
from driftlog_agents.log.partition.tail import FlushBatches
from driftlog_metadata.schema.codec import encode_partition_state
from driftlog_metadata.schema.keys import (
    PARTITIONS_PREFIX,
    partition_key,
)
from driftlog_metadata.schema.model import PartitionState, TopicPartition
from driftlog_metadata.stores.store import Delete, Get, Put, TxnResult
from tests.agents.log.flush_records import (
    NEVER,
    SMALL,
    drop_unnamed,
    flushes,
    footers,
    forget_memory,
    levels,
    log_of,
    records,
    settled,
    values,
)
from tests.agents.log.lives import Life, World, now_ms, on_virtual_time

# ── Few records ──


@on_virtual_time
async def test_flushes_become_one_object_sorted_by_partition() -> None:
    """
    When so many wait: one record in their place, under the last sequence, with every batch.
    """
    world = World(t=2)
    life = await world.start(SMALL)
    await flushes(life, 9)
    before = await log_of(world)
    assert 9 == len(await records(world))

    await flushes(life, 1, first=9)
    await settled()

    (key,) = await records(world)
    assert (life.session_id, 10, 1, 0) == key
    assert 0 == life.engine.footers.reads  # they were kept when they were written
    (footer,) = await footers(world)
    assert (life.session_id, 10, 10) == (footer.session_id, footer.seq, footer.committed_seq)
    assert [(0, 0, 10), (1, 0, 10)] == [(s.partition, s.base, s.end) for s in footer.slices()]
    assert before == {place: batches[:9] for place, batches in (await log_of(world)).items()}


@on_virtual_time
async def test_flushes_that_are_a_minute_old_do_not_wait_for_more() -> None:
    """
    Two are enough then.
    """
    world = World(t=2)
    life = await world.start(SMALL)
    await flushes(life, 2)
    await asyncio.sleep(55)
    assert [0, 0] == await levels(world)

    await asyncio.sleep(10)

    assert [1] == await levels(world)


@on_virtual_time
async def test_what_was_consolidated_becomes_objects_cut_between_partitions() -> None:
    """
    As many objects as it takes; each goes by itself when its partitions are sealed.
    """
    world = World(t=2)
    life = await world.start(SMALL)
    for n in range(4):
        await flushes(life, 10, first=10 * n)
        await settled()

    keys = list(await records(world))
    assert [(40, 2, n) for n in range(len(keys))] == [key[1:] for key in keys]
    partitions = [{s.partition for s in footer.slices()} for footer in await footers(world)]
    assert len(partitions) > 2
    assert [{0}, {1}] == [partitions[0], partitions[-1]]
    assert {(1, 0): 40, (1, 1): 40} == {
        place: len(batches) for place, batches in (await log_of(world)).items()
    }

    assert 40 == await life.seal(0)
    await settled()
    left = [{s.partition for s in footer.slices()} for footer in await footers(world)]
    assert [p for p in partitions if p != {0}] == left


async def listened(world: World, settings: Any, waiting_records: int) -> tuple[Life, list[bool]]:
    """An agent with that bound, and what its consolidation says of producers: True, they wait."""
    few = replace(settings.consolidation, waiting_records=waiting_records)
    life = await world.start(replace(settings, consolidation=few))
    return life, world.pressure


@on_virtual_time
async def test_producers_wait_while_too_much_waits_to_be_consolidated() -> None:
    """
    And go on as soon as a rewrite has made it less; what is behind is said once, and so is its end.
    """
    world = World(t=2)
    life, told = await listened(world, SMALL, 8)
    with capture_logs() as lines:
        await flushes(life, 7)
        await asyncio.sleep(3)
        assert [] == told
        await flushes(life, 1, first=7)
        await asyncio.sleep(3)
        assert [True] == told
        await flushes(life, 2, first=8)  # on their way before
        await settled()
        await asyncio.sleep(3)

    assert [True, False] == told
    assert [1] == await levels(world)
    events = [line["event"] for line in lines if line["event"].startswith("consolidation")]
    assert ["consolidation_behind", "consolidation_caught_up"] == events


@on_virtual_time
async def test_what_cannot_be_read_holds_no_producers() -> None:
    """
    Nothing is rewritten of it until it can be read, however long producers wait.
    """
    world = World(t=2)
    life, told = await listened(world, NEVER, 8)
    managed = life.engine.flush_records.state
    await flushes(life, 10)
    for known in list(managed.own.index)[:3]:
        managed.unreadable(known.key, now_ms())

    await asyncio.sleep(3)

    assert [] == told


class Everything(set[str]):
    """Has whatever is asked for."""

    def __contains__(self, key: object) -> bool:
        return True


@pytest.mark.parametrize("withheld", ["one", "all"])
@on_virtual_time
async def test_while_nothing_can_be_rewritten_producers_go_on(withheld: str) -> None:
    """
    A bucket that withholds what was flushed: to hold them would make nothing better.  One object
    that it withholds costs itself: the others are rewritten without it.
    """
    world = World(t=2)
    life, told = await listened(world, SMALL, 20)
    await flushes(life, 2)
    first = world.bucket.puts[0]
    world.bucket.withheld = {first} if withheld == "one" else Everything()
    with capture_logs() as lines:
        await flushes(life, 28, first=2)
        await asyncio.sleep(60)
        held, kept = list(told), len(await records(world))
        world.bucket.withheld = set()
        await asyncio.sleep(760)

    assert held in ([], [True, False])  # it takes a failure to know
    assert kept < 10 if withheld == "one" else kept >= 20
    assert len(await records(world)) < 10
    await flushes(life, 1, first=30)
    await settled()
    assert first not in {record.object_key for record in (await records(world)).values()}
    wanted = {"consolidation_failed", "consolidation_resumed"}
    if withheld == "one":
        wanted = {"flush_object_unavailable"}
    assert wanted <= {line["event"] for line in lines}


@on_virtual_time
async def test_records_stay_few_however_much_is_written() -> None:
    """
    Ten times 10, 4 and 2 of each level's bound, with seals of one of two partitions.
    """
    world = World(t=2)
    life = await world.start(SMALL)
    most = 0
    for n in range(60):
        await flushes(life, 10, first=10 * n)
        await settled()
        if n % 7 == 6:
            await life.seal(0)
        if n % 20 == 18:
            await life.seal(1)
        most = max(most, len(await records(world)))

    unsealed = sum(log.unsealed_bytes for log in life.engine.logs())
    assert unsealed < 200 * 150
    assert most < 10 + 4 + 4 * 200 * 150 / 2_500 + 2
    assert most < 40
    assert (await life.committed(1))[-1][0] == 599


@on_virtual_time
async def test_objects_of_which_little_is_left_become_one_and_none_takes_anothers_place() -> None:
    """
    A second time as well: what was made of the same flushes before has a key of its own.
    """
    world = World(t=20)
    bounds = replace(SMALL.consolidation, object_bytes=17_000)
    life = await world.start(replace(SMALL, consolidation=bounds))
    for n in range(4):
        await flushes(life, 10, partitions=range(20), first=10 * n)
        await settled()
    before = await log_of(world)
    held = [{s.partition for s in footer.slices()} for footer in await footers(world)]
    assert [(40, 2, n) for n in range(len(held))] == [key[1:] for key in await records(world)]
    assert {5} == {len(partitions) for partitions in held}

    for pair in (held[:2], held[2:]):
        for partitions in pair:
            for partition in sorted(partitions)[1:]:
                await life.seal(partition)
        await settled()

    left = {(1, min(partitions)) for partitions in held}
    assert [(40, 3, 0), (40, 3, 1)] == [key[1:] for key in await records(world)]
    assert {place: before[place] for place in left} == await log_of(world)


# ── The log stays what it was ──


@on_virtual_time
async def test_the_tail_reads_from_the_new_objects() -> None:
    """
    The old ones are gone, memory and local disk too: through levels 1 and 2 everything is there.
    """
    world = World(t=2)
    life = await world.start(SMALL)
    for n in range(5):
        await flushes(life, 10, first=10 * n)
        await settled()
        forget_memory(life)
        assert await drop_unnamed(world)
        for partition in (0, 1):
            expected = [b"%d-%d" % (partition, i) for i in range(10 * n + 10)]
            assert expected == values(await life.committed(partition))

    assert 50 == await life.seal(0)  # from the new objects
    assert 50 == await life.seal(1)


@on_virtual_time
async def test_what_is_in_memory_is_read_there_all_the_same() -> None:
    """
    A rewrite takes nothing from memory and from buffer files.
    """
    world = World(t=2)
    life = await world.start(SMALL)
    await flushes(life, 10)
    before = [[tail.data.read_local(tail.first) for tail in log.slices] for log in tails(life)]
    await settled()

    after = [[tail.data.read_local(tail.first) for tail in log.slices] for log in tails(life)]

    assert [1] == await levels(world)
    assert before == after
    assert None not in after[0]


def tails(life: Life) -> list[Any]:
    """The logs, for who looks into their slices."""
    return cast(list[Any], life.engine.logs())


def state_of(log: PartitionLog) -> tuple[Any, ...]:
    """What a takeover restores."""
    batches = []
    for tail in log.slices:
        data = cast(FlushBatches, tail.data)
        for i in range(tail.first, tail.first + tail.count):
            batches.append((data.base_offsets[i], data.lengths[i], data.max_timestamps_ms[i]))
    return (
        log.partition,
        log.sealed_end,
        log.high_watermark,
        log.log_end,
        log.epochs,
        list(log.producers.items()),
        batches,
        log.unsealed_bytes,
        log.unsealed_batches,
    )


async def started(world: World, settings: Any) -> Life:
    """An agent that knows what is sealed."""
    life = await world.start(settings)
    for log in life.engine.logs():
        await life.engine.loaded(log)
    return life


async def lives_of(world: World, settings: Any) -> list[tuple[Any, ...]]:
    """Three sessions, one after the other, and what a fourth one finds."""
    for n in range(3):
        life = await started(world, settings)
        await flushes(life, 23, first=23 * n)
        if n == 1:
            await life.seal(0)
            assert "committed" == await life.produce(b"nobody's", partition=1).answer()
        await settled()
        await life.stop()
        await asyncio.sleep(200)
    last = await started(world, settings)
    return [state_of(log) for log in last.engine.logs()]


@on_virtual_time
async def test_a_takeover_finds_the_same_log_whether_or_not_it_was_consolidated() -> None:
    """
    Epochs, producers, offsets, batches: nobody can tell.
    """
    consolidated, plain = World(t=2), World(t=2)

    found = await lives_of(consolidated, SMALL)

    assert found == await lives_of(plain, NEVER)
    assert max(await levels(consolidated)) >= 1
    assert 0 == max(await levels(plain))
    assert [3, 3] == [len(epochs) - 1 for *_, epochs, _, _, _, _ in found]


# ── Forgotten ──


@on_virtual_time
async def test_a_record_goes_when_all_of_it_is_sealed_and_its_object_stays() -> None:
    """
    Not when one partition is; what names objects goes first, they have a grace period.
    """
    world = World(t=2)
    life = await world.start(NEVER)
    await flushes(life, 3)
    objects = [record.object_key for record in (await records(world)).values()]

    await life.seal(0)
    await settled()
    assert 3 == len(await records(world))

    await life.seal(1)
    await settled()
    assert {} == await records(world)
    for key in objects:
        assert await world.bucket.get(key)


@on_virtual_time
async def test_a_rewrite_leaves_out_what_is_sealed() -> None:
    """
    And nothing else.
    """
    world = World(t=2)
    life = await world.start(SMALL)
    await flushes(life, 5)
    assert 5 == await life.seal(0)
    await flushes(life, 5, first=5)
    await settled()

    (footer,) = await footers(world)

    assert [(0, 5, 10), (1, 0, 10)] == [(s.partition, s.base, s.end) for s in footer.slices()]


@on_virtual_time
async def test_dead_sessions_are_kept_by_who_is_left() -> None:
    """
    Their records become few, and go when their partitions are sealed, whoever leads them.
    """
    world = World(t=2)
    first = await world.start(SMALL)
    await flushes(first, 5)
    first.kill()
    second = await world.start(SMALL)
    before = await log_of(world)
    await asyncio.sleep(SMALL.session.ttl_ms / 1000 + 12)

    (key,) = await records(world)
    assert (first.session_id, 5, 1, 0) == key
    assert before == await log_of(world)

    await second.seal(0)
    await second.seal(1)
    await asyncio.sleep(60)
    assert {} == await records(world)


@on_virtual_time
async def test_who_lives_looks_when_a_session_ends() -> None:
    """
    Not when its time to look has come.
    """
    world = World(t=2)
    first = await world.start(NEVER)
    await flushes(first, 5)
    await world.other_disk().start(SMALL, ready=False)
    await asyncio.sleep(2)
    first.kill()

    await asyncio.sleep(SMALL.session.ttl_ms / 1000 + 17)

    (key,) = await records(world)
    assert (first.session_id, 5, 1, 0) == key


@on_virtual_time
async def test_what_a_dead_session_has_sealed_is_not_rewritten() -> None:
    """
    Whoever keeps it looks at that first.
    """
    world = World(t=2)
    first = await world.start(NEVER)
    await flushes(first, 5)
    await first.seal(0)
    first.kill()
    await world.start(SMALL)
    await asyncio.sleep(20)

    (footer,) = await footers(world)

    assert [(1, 0, 5)] == [(s.partition, s.base, s.end) for s in footer.slices()]


@on_virtual_time
async def test_a_dead_sessions_object_that_is_withheld_is_looked_for_again() -> None:
    """
    The others are rewritten meanwhile, and it with them once it is given.
    """
    world = World(t=2)
    first = await world.start(NEVER)
    await flushes(first, 5)
    second = await world.other_disk().start(SMALL, ready=False)
    await asyncio.sleep(2)
    world.bucket.withheld = {world.bucket.puts[0]}
    first.kill()
    await asyncio.sleep(90)
    assert world.bucket.withheld <= {r.object_key for r in (await records(world)).values()}
    assert len(await records(world)) < 5
    world.bucket.withheld = set()
    await asyncio.sleep(700)

    assert world.bucket.puts[0] not in {r.object_key for r in (await records(world)).values()}
    assert 2 == len(second.engine.logs())


@on_virtual_time
async def test_topics_that_come_and_go_do_not_keep_it_from_looking() -> None:
    """
    However often somebody says that one may be gone, what others have sealed is read.
    """
    world = World(t=2)
    first = await world.start(NEVER)
    await flushes(first, 5)
    first.kill()
    second = await world.start(NEVER)
    await asyncio.sleep(20)
    second.engine.sealed = lambda tp, end: None  # type: ignore[method-assign]  # as if others had sealed it
    await second.seal(0)
    await second.seal(1)
    assert 5 == len(await records(world))

    for _ in range(3):
        await asyncio.sleep(20)
        second.engine.flush_records.topic_gone(UUID(int=99))

    assert {} == await records(world)


@on_virtual_time
async def test_who_does_not_win_the_hash_leaves_dead_sessions_alone() -> None:
    """
    Another agent keeps their records.
    """
    world = World(t=2)
    first = await world.start(NEVER)
    await flushes(first, 5)
    first.kill()
    second = await world.start(SMALL)
    second.engine.is_managed = lambda session_id: False  # type: ignore[method-assign]
    await second.seal(0)
    await second.seal(1)
    await asyncio.sleep(200)
    assert 5 == len(await records(world))

    managed = first.session_id
    second.engine.is_managed = lambda session_id: session_id == managed  # type: ignore[method-assign]
    await asyncio.sleep(60)

    assert {} == await records(world)


@on_virtual_time
async def test_records_of_a_topic_that_is_gone_go() -> None:
    """
    Who told of it is believed once a read of the topics lacks it.
    """
    world = World(t=1, u=1)
    life = await world.start(NEVER)
    await life.produce(b"1").answer()
    await life.produce(b"1", topic="u").answer()
    assert 2 == len(await records(world))

    await world.delete("u")
    await settled()

    assert 1 == len(await records(world))


@on_virtual_time
async def test_a_topic_that_is_led_elsewhere_and_goes_is_found_out() -> None:
    """
    Nobody tells: its partition has no key any more, and that is reason enough to read the topics.
    """
    world = World(t=1, u=1)
    life = await world.start(NEVER)
    life.cluster.watch_topics(lambda *_: None)
    await life.produce(b"1").answer()
    await life.produce(b"1", topic="u").answer()
    life.engine.topics["u"].logs[0] = None
    tp = TopicPartition(world.topics["u"].topic_id, 0)
    await world.metadata.txn((), [Delete(partition_key(tp))])
    await asyncio.sleep(100)
    assert 2 == len(await records(world))  # the topic is there

    await world.delete("u")
    await asyncio.sleep(40)

    assert 1 == len(await records(world))


@on_virtual_time
async def test_a_topic_that_is_said_to_be_gone_and_is_not_keeps_its_records() -> None:
    """
    Its deletion has failed, or is on its way: a linearizable read of the topics decides.
    """
    world = World(t=1)
    life = await world.start(NEVER)
    await life.produce(b"1").answer()

    life.engine.flush_records.topic_gone(world.topics["t"].topic_id)
    await asyncio.sleep(100)
    await life.produce(b"2").answer()
    await settled()

    assert 2 == len(await records(world))


@on_virtual_time
async def test_what_others_have_sealed_is_read_from_the_keys_of_partitions() -> None:
    """
    A session lives, and its partitions are led by another agent that sealed them.
    """
    world = World(t=2)
    first = await world.start(NEVER)
    await flushes(first, 3)
    for log in first.engine.logs():
        first.engine.topics["t"].logs[log.partition] = None  # led elsewhere
    sealed = [0, 0]

    async def write(partition: int, end: int) -> None:
        sealed[partition] = end
        for n, value in enumerate(sealed):
            tp = TopicPartition(world.topics["t"].topic_id, n)
            state = PartitionState(sealed_end=value, manifest_version=1)
            await world.metadata.txn((), [Put(partition_key(tp), encode_partition_state(state))])
        await asyncio.sleep(40)

    await write(0, 3)
    assert 3 == len(await records(world))
    await write(1, 2)
    assert 1 == len(await records(world))
    await write(1, 3)
    assert {} == await records(world)


@on_virtual_time
async def test_the_partitions_of_a_large_topic_are_read_as_one_range() -> None:
    """
    And of a small one together, 128 in a request.
    """
    world = World(t=200, u=3)
    life = await world.start(NEVER)
    asked = [life.produce(b"1", partition=p) for p in range(200)]
    asked += [life.produce(b"1", partition=p, topic="u") for p in range(3)]
    for request in asked:
        await request.answer()
    for topic in life.engine.topics.values():
        for log in topic.logs:
            assert log is not None
            log.sealed_end = log.high_watermark  # by others: it is not led here
        topic.logs = [None] * len(topic.logs)
    for name, count in (("t", 200), ("u", 3)):
        for p in range(count):
            tp = TopicPartition(world.topics[name].topic_id, p)
            state = PartitionState(sealed_end=1, manifest_version=1)
            await world.metadata.txn((), [Put(partition_key(tp), encode_partition_state(state))])
    ranges: list[str] = []
    gets: list[int] = []
    get_prefix, txn = world.metadata.get_prefix, world.metadata.txn

    async def counted(prefix: str, **how: Any) -> Any:
        ranges.append(prefix)
        return await get_prefix(prefix, **how)

    async def counted_txn(compares: Any, then: Any, otherwise: Any = ()) -> TxnResult:
        gets.append(sum(isinstance(op, Get) for op in then))
        return await txn(compares, then, otherwise)

    world.metadata.get_prefix = counted  # type: ignore[method-assign]
    world.metadata.txn = counted_txn  # type: ignore[method-assign]
    await life.engine.flush_records.look()
    await settled()

    assert {} == await records(world)
    assert [f"{PARTITIONS_PREFIX}{world.topics['t'].topic_id}/"] == [
        prefix for prefix in ranges if prefix.startswith(PARTITIONS_PREFIX)
    ]
    assert [3] == [count for count in gets if count]
