"""A hand-over while the bucket hangs: what can be served is served."""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import pytest

from driftlog_agents.log.partition.partition import State
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_metadata.schema.model import TopicPartition
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_metadata.stores.store import MetadataStore
from driftlog_tiering.foundation.types import Buffer
from tests.agents.log.leadership.test_handover import Load, LossyReleases, joined
from tests.agents.log.lives import ONE, Bucket, Life, Request, World, now_ms, on_virtual_time
from tests.agents.log.test_claims import led_by_all
from tests.support.memory_object_store import MemoryObjectStore

PARTITIONS = 60


class OnlyProbes(Bucket):
    """While it is away it still takes probes: as if it had begun to hang right behind one."""

    def __init__(self) -> None:
        super().__init__()
        self.probes: list[float] = []

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        if "/probe-" in key:
            self.probes.append(now_ms())
            await MemoryObjectStore.put(self, key, body)
        else:
            await super().put(key, body)


def led(life: Life) -> list[int]:
    """Partitions that take a record there."""
    return [
        log.partition
        for log in life.engine.logs()
        if log.state is not State.CLOSED and not log.paused
    ]


async def written_once(bucket: Bucket | None = None) -> tuple[World, Life]:
    """One agent that leads all, each with a record."""
    world = World(t=PARTITIONS)
    world.bucket = bucket or world.bucket
    first = await world.start()
    asked = [first.produce(b"v", partition=partition) for partition in range(PARTITIONS)]
    assert {"committed"} == {await request.answer() for request in asked}
    return world, first


@on_virtual_time
async def test_while_the_bucket_hangs_each_partition_stays_where_it_is_served() -> None:
    """
    An agent joins in the moment in which PUTs get no answer; half of the partitions have something
    in flight.  The other agent leads all of them for the whole outage, and then its share moves.
    """
    world, first = await written_once()
    world.bucket.away = True
    waiting = [first.produce(b"w", partition=partition) for partition in range(0, PARTITIONS, 2)]
    await asyncio.sleep(0.6)
    second = await joined(first)
    found = Counter[tuple[int, int]]()
    for _ in range(1_800):
        await asyncio.sleep(1)
        found[len(led(first)), len(led(second))] += 1
    world.bucket.away = False
    await led_by_all(world, first, second)

    assert {(PARTITIONS, 0)} == found.keys()
    assert 20 <= len(led(second)) <= 40
    assert {"committed"} == {await request.answer() for request in waiting}


@on_virtual_time
async def test_a_bucket_that_hangs_behind_the_probe_keeps_no_partition_from_being_served() -> None:
    """
    Idle ones move at once; the others are led on, and move when what they had in flight is
    committed.
    """
    bucket = OnlyProbes()
    world, first = await written_once(bucket)
    bucket.away = True
    busy = set(range(0, PARTITIONS, 2))
    waiting = [first.produce(b"w", partition=partition) for partition in busy]
    second = await joined(first)
    await asyncio.sleep(5)
    moved, stayed = set(led(second)), set(led(first))
    for partition in busy:
        waiting.append(first.produce(b"x", partition=partition))
    await asyncio.sleep(600)
    later = set(led(second)), set(led(first))
    bucket.away = False
    await led_by_all(world, first, second)

    assert moved
    assert not moved & busy
    assert busy <= stayed
    assert set(range(PARTITIONS)) == moved | stayed
    assert (moved, stayed) == later
    assert {"committed"} == {await request.answer() for request in waiting}
    assert busy & set(led(second))


@on_virtual_time
async def test_busy_and_idle_partitions_of_one_hand_over_are_released_together() -> None:
    """
    Otherwise the receiver takes them one attempt after the other, and the last ones wait for all
    attempts.
    """
    world = World(t=12)
    world.bucket = OnlyProbes()
    stores: list[LossyReleases] = []

    def counting(store: MetadataStore) -> MetadataStore:
        stores.append(LossyReleases(store))
        return cast(MetadataStore, stores[-1])

    first = await world.start(metadata=counting)
    second = await joined(first)
    await second.engine.ready.wait()
    world.bucket.put_s = 0.7  # in flight when the first partitions may move
    busy = [first.produce(b"v", partition=partition) for partition in range(0, 12, 2)]
    await led_by_all(world, first, second)

    assert 1 == stores[0].asked
    assert {"committed"} == {await request.answer() for request in busy}
    assert {n % 2 for n in led(second)} == {0, 1}


class Pipelined(Load):
    """Its producers do not wait for answers: something of each partition is always in flight."""

    async def _produce(self, tp: TopicPartition, producer: int) -> None:
        told = self.told[tp]
        waiting: deque[tuple[int, Request | None]] = deque()
        while not self.stopped or waiting:
            while waiting and ((request := waiting[0][1]) is None or request.told):
                offset, _ = waiting.popleft()
                if request is None or request.told == ["committed"]:
                    told.append(offset)
                else:
                    waiting.clear()  # and all behind it again
            for life, _ in self.leading(tp):
                if self.stopped or len(waiting) == 50:
                    continue
                with contextlib.suppress(RefusedError):
                    sequence = len(told) + len(waiting)
                    admitted, request = life.admit(
                        b"%d" % sequence,
                        partition=tp.partition,
                        producer=producer,
                        epoch=0,
                        sequence=sequence,
                    )
                    offset = admitted.base_offset
                    waiting.append((offset, None if admitted.answered else request))
            await asyncio.sleep(0.02)


async def hang(after_ms: float) -> tuple[bool, set[int]]:
    """A bucket that hangs for four seconds, so long after an agent has joined: whether all had
    moved by then, and which partitions were not served two seconds later, or after that."""
    world = World(t=4)
    first = await world.start()
    world.bucket.put_s = 0.1
    load = Pipelined(world, first)
    async with load.running():
        await asyncio.sleep(1)
        second = await joined(first)
        load.lives.append(second)
        await asyncio.sleep(after_ms / 1000)
        world.bucket.away = True
        moved = len(led(second)) > 0 and not any(first.engine.assignments.to_move())
        unserved: set[int] = set()
        await asyncio.sleep(2)
        for _ in range(8):
            unserved |= set(range(4)) - {*led(first), *led(second)}
            await asyncio.sleep(0.25)
        world.bucket.away = False
        owners = await led_by_all(world, first, second)
        await asyncio.sleep(1)
    assert {first, second} == set(owners.values())
    await load.check()
    for life in (first, second):
        await life.stop()
    return moved, unserved


@on_virtual_time
async def test_whenever_the_bucket_begins_to_hang_in_a_hand_over_each_partition_is_served() -> None:
    """
    Each ten milliseconds from before the first is stopped until all have moved, in a cluster of its
    own, under load: the partitions are served during the outage, and move behind it; nothing is
    lost, doubled or in another order.
    """
    found: dict[int, list[int]] = {}
    moved, after_ms = False, 250
    while not moved:
        moved, unserved = await hang(after_ms)
        if unserved:
            found[after_ms] = sorted(unserved)
        after_ms += 10

    assert {} == found
    assert 500 <= after_ms <= 3_000


@on_virtual_time
async def test_each_partition_is_given_up_as_soon_as_nothing_of_it_is_in_flight() -> None:
    """
    Idle ones at once, however long another's flush takes.  That one's batches wait for a second,
    and then it is served until it can be flushed.
    """
    world, first = await written_once()
    world.bucket.away = True
    waiting = [first.produce(b"w", partition=0)]
    logs = [first.log(partition) for partition in range(10)]
    log = logs[0]
    giving = asyncio.create_task(first.engine.handover.give_up(logs))
    await asyncio.sleep(0.1)
    held = [n for n in range(10) if first.engine.log("t", n) is logs[n]]  # others: claimed again
    with pytest.raises(RefusedError) as refusal:
        first.produce(b"does not wait", partition=0)
    admitting = asyncio.create_task(first.engine.admits(log))
    await asyncio.sleep(0.8)
    paused = log.paused, log.state, admitting.done()
    await asyncio.sleep(0.2)
    for _ in range(100):
        waiting.append(first.produce(b"x", partition=0))
        await asyncio.sleep(1)
    world.bucket.away = False
    await giving

    assert [0] == held
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER is refusal.value.code
    assert (True, State.ONLINE, False) == paused
    assert admitting.done()
    assert {"committed"} == {await request.answer() for request in waiting}
    assert first.engine.log("t", 0) is not log


@on_virtual_time
async def test_what_is_flushed_in_time_is_given_up_though_another_flush_is_late() -> None:
    """
    Under load it would be busy again, and an agent that leaves would keep all for one.
    """
    world, first = await written_once()
    world.bucket.put_s = 0.6
    in_time = first.produce(b"in time", partition=0)
    await asyncio.sleep(0.3)  # its flush is on its way
    world.bucket.put_s = 5.0
    late = first.produce(b"late", partition=1)
    logs = [first.log(partition) for partition in (0, 1)]
    giving = asyncio.create_task(first.engine.handover.give_up(logs))
    await asyncio.sleep(0.1)
    admitting = [asyncio.create_task(first.engine.admits(log)) for log in logs]
    await asyncio.wait(admitting)

    assert [UnavailableError, type(None)] == [type(task.exception()) for task in admitting]
    await giving
    assert {"committed"} == {await in_time.answer(), await late.answer()}


@on_virtual_time
async def test_what_is_loaded_is_not_paused_for_a_hand_over() -> None:
    """
    Its batches would wait for the manifest, too: for the whole outage where that is withheld.
    """
    world = World(t=1)
    life = await world.start()
    await life.produce(b"sealed").answer()
    await life.seal()
    await life.stop()
    world.bucket.manifests.clear()
    life = await world.start()
    log = life.log()
    world.bucket.away = True
    assert await life.produce(b"a", acks=ONE).answer() == "synced"
    move = asyncio.create_task(life.engine.handover.give_up([log]))
    await asyncio.sleep(0.1)

    assert State.LOADING is log.state
    assert await life.produce(b"b", acks=ONE).answer() == "synced"
    assert not move.done()
    move.cancel()


@on_virtual_time
async def test_the_bucket_is_probed_only_for_a_hand_over_and_once_a_second_at_most() -> None:
    """
    An agent that is alone, or whose partitions are where they are placed, makes no request.
    """
    bucket = OnlyProbes()
    world, first = await written_once(bucket)
    await asyncio.sleep(60)
    alone = len(bucket.probes)
    bucket.away = True
    waiting = [first.produce(b"w", partition=partition) for partition in range(PARTITIONS)]
    second = await joined(first)
    await asyncio.sleep(30)
    between = [later - sooner for sooner, later in pairwise(bucket.probes)]
    bucket.away = False
    await led_by_all(world, first, second)
    there = len(bucket.probes)
    await asyncio.sleep(60)

    assert 0 == alone
    assert 2 <= len(between)
    assert min(between) >= 1_000
    assert there == len(bucket.probes)
    assert {"committed"} == {await request.answer() for request in waiting}


@pytest.mark.parametrize("put_s", [0.1, 3.0])
@on_virtual_time
async def test_partitions_under_load_move_however_slow_the_bucket_is(put_s: float) -> None:
    """
    A bucket that takes three seconds for each flush hangs for nobody: patience grows with it.
    """
    world = World(t=20)
    first = await world.start()
    world.bucket.put_s = put_s
    load = Load(world, first)
    async with load.running():
        await asyncio.sleep(8)
        second = await joined(first)
        load.lives.append(second)
        await led_by_all(world, first, second)
        await asyncio.sleep(30)

    assert load.longest_ms < 2_500 + 4_000 * put_s
    await load.check()
