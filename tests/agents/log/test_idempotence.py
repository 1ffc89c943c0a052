"""Idempotent producers over restarts: judged by their whole window, wherever its halves are.

A partition's producers are in three places at a start: the snapshot of the sealed end, the
footers of the tail, and the leftovers on the disk.  Until the first is loaded a batch that the
others cannot judge waits.
"""

import asyncio
import itertools
from itertools import pairwise

import pytest

from driftlog_agents.foundation.loop_slices import SLICE_S, measure_by
from driftlog_agents.log.ingest.admission_verdict import parks
from driftlog_agents.log.partition.partition import State
from driftlog_agents.protocol.errors import RefusedError
from driftlog_tiering.batches.producers import WINDOW
from tests.agents.log.lives import ONE, Life, World, on_virtual_time

LARGEST = 2**31 - 1


class Arrival:
    """A batch of a producer on its way through admission, as the Produce handler sends it."""

    def __init__(
        self, life: Life, sequence: int, *, producer: int = 7, epoch: int = 0, records: int = 1
    ) -> None:
        self.parked = False
        self.offset: int | None = None
        self.refusal = ""
        log = life.log()

        def admit() -> None:
            try:
                admitted, _ = life.admit(
                    *[b"%d" % sequence] * records, producer=producer, epoch=epoch, sequence=sequence
                )
                self.offset = admitted.base_offset
            except RefusedError as error:
                self.refusal = error.code.name

        if parks(log, producer, epoch, sequence, records):
            self.parked = True
            log.parked.append(admit)
        else:
            admit()

    @property
    def outcome(self) -> int | str | None:
        """Its offset, or Kafka's error; None: it waits."""
        return self.refusal or self.offset


async def wrote(life: Life, sequences: range, *, producer: int = 7, epoch: int = 0) -> None:
    """One committed batch for each."""
    requests = [
        life.produce(b"%d" % n, producer=producer, epoch=epoch, sequence=n) for n in sequences
    ]
    for request in requests:
        assert await request.answer() == "committed"


async def half_loaded(world: World) -> Life:
    """Sequences 0 to 39 are sealed, at their own offsets; 40 to 79 are in the tail; the snapshot
    cannot be read."""
    life = await world.start()
    await wrote(life, range(40))
    assert await life.seal() == 40
    await wrote(life, range(40, 80))
    await life.stop()
    world.bucket.manifests.clear()
    life = await world.start()
    assert State.LOADING is life.log().state
    return life


async def load(world: World, life: Life) -> None:
    """The bucket gives the snapshot."""
    world.bucket.manifests.set()
    await life.engine.loaded(life.log())
    assert State.ONLINE is life.log().state


@pytest.mark.parametrize("sequence, outcome", [(80, 80), (79, 79), (40, 40)])
@on_virtual_time
async def test_what_the_footers_can_judge_does_not_wait(sequence: int, outcome: int) -> None:
    """
    The next batch, and a retry of one that is in the tail.
    """
    world = World()
    life = await half_loaded(world)

    arrival = Arrival(life, sequence)

    assert (False, outcome) == (arrival.parked, arrival.outcome)


@pytest.mark.parametrize(
    "sequence, outcome",
    [
        (39, 39),
        (20, 20),
        (80 - WINDOW, 80 - WINDOW),
        (80 - WINDOW - 1, "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (0, "OUT_OF_ORDER_SEQUENCE_NUMBER"),
        (81, "OUT_OF_ORDER_SEQUENCE_NUMBER"),
    ],
)
@on_virtual_time
async def test_a_retry_is_not_judged_by_half_of_its_producers_window(
    sequence: int, outcome: int | str
) -> None:
    """
    Out of order by the tail alone, it waits for the snapshot: within the last 64 batches it is a
    duplicate, before them and behind the end it is refused.
    """
    world = World()
    life = await half_loaded(world)
    arrival = Arrival(life, sequence)
    await asyncio.sleep(5)
    assert (True, None) == (arrival.parked, arrival.outcome)

    await load(world, life)

    assert outcome == arrival.outcome
    assert life.log().log_end == 80


@on_virtual_time
async def test_a_producer_that_only_the_snapshot_knows_waits_for_it() -> None:
    """
    By the footers alone it would be unknown, and a gap or a retry would be appended.
    """
    world = World()
    life = await world.start()
    await wrote(life, range(10), producer=8)
    await life.seal()
    await life.stop()
    world.bucket.manifests.clear()
    life = await world.start()
    retry, gap = Arrival(life, 4, producer=8), Arrival(life, 11, producer=8)
    after, stranger = Arrival(life, 10, producer=8), Arrival(life, 500, producer=9)
    everybody = (retry, gap, after, stranger)
    assert [True] * 4 == [arrival.parked for arrival in everybody]
    await asyncio.sleep(5)

    await load(world, life)

    expected = [4, "OUT_OF_ORDER_SEQUENCE_NUMBER", 10, 11]
    assert expected == [arrival.outcome for arrival in everybody]


@on_virtual_time
async def test_what_waits_keeps_its_place() -> None:
    """
    Behind a batch that is parked everything parks, also what could be judged, and what has no
    producer; before it such a batch does not wait.
    """
    world = World()
    life = await half_loaded(world)
    first = Arrival(life, -1, producer=-1, epoch=-1)
    waits = Arrival(life, 0, producer=9)
    behind = [Arrival(life, 80), Arrival(life, -1, producer=-1, epoch=-1), Arrival(life, 81)]
    assert (False, 80) == (first.parked, first.outcome)
    assert [True] * 4 == [arrival.parked for arrival in (waits, *behind)]

    await load(world, life)

    assert [81, 82, 83, 84] == [arrival.outcome for arrival in (waits, *behind)]


@on_virtual_time
async def test_many_batches_that_waited_are_admitted_in_slices_and_none_overtakes() -> None:
    """
    What comes between two slices waits behind them: a batch that is judged, and one that another
    thread has rewritten.
    """
    world = World()
    life = await half_loaded(world)
    log = life.log()
    ends: list[int] = []
    rewritten: list[int] = []

    async def rewrite() -> None:
        await life.engine.admits(log)
        rewritten.append(log.log_end)

    async def come_meanwhile() -> None:
        while log.parked:
            ends.append(log.log_end)
            arrivals.append(Arrival(life, -1, producer=-1, epoch=-1))
            await asyncio.sleep(0)

    clock = itertools.count()
    measure_by(asyncio.get_running_loop(), lambda: next(clock) * SLICE_S / 100)
    log.parked.append(lambda: tasks.append(asyncio.create_task(come_meanwhile())))
    arrivals = [Arrival(life, 0, producer=100 + n) for n in range(2_000)]
    tasks = [asyncio.create_task(rewrite())]
    await load(world, life)
    await asyncio.gather(*tasks)

    assert list(range(80, 80 + len(arrivals))) == [arrival.outcome for arrival in arrivals]
    assert len(ends) >= 8
    assert max(after - before for before, after in pairwise([80, *ends])) <= 101
    assert len(arrivals) + 80 == rewritten[0]


@on_virtual_time
async def test_both_halves_and_what_came_meanwhile_make_one_window() -> None:
    """
    40 sealed, 40 in the tail, 10 taken while the snapshot was away: the newest 64 of 90.
    """
    world = World()
    life = await half_loaded(world)
    for n in range(80, 90):
        assert n == Arrival(life, n).outcome
    await load(world, life)

    outcomes = [Arrival(life, n).outcome for n in range(90)]

    assert ["OUT_OF_ORDER_SEQUENCE_NUMBER"] * (90 - WINDOW) + list(
        range(90 - WINDOW, 90)
    ) == outcomes
    assert (90, 90) == (life.log().log_end, Arrival(life, 90).outcome)


@on_virtual_time
async def test_an_epoch_that_was_raised_in_the_tail_ends_the_sealed_one() -> None:
    """
    Retries of the old epoch are refused, sealed or not, and cost the new one nothing.
    """
    world = World()
    life = await world.start()
    await wrote(life, range(3))
    await life.seal()
    await wrote(life, range(2), epoch=1)
    await life.stop()
    world.bucket.manifests.clear()
    life = await world.start()
    arrivals = [Arrival(life, 1, epoch=0), Arrival(life, 1, epoch=1), Arrival(life, 2, epoch=1)]
    assert ["INVALID_PRODUCER_EPOCH", 4, 5] == [arrival.outcome for arrival in arrivals]
    ahead = Arrival(life, 5, epoch=2)
    assert ahead.parked

    await load(world, life)

    assert "OUT_OF_ORDER_SEQUENCE_NUMBER" == ahead.outcome
    arrivals = [Arrival(life, 2, epoch=0), Arrival(life, 0, epoch=1), Arrival(life, 0, epoch=2)]
    assert ["INVALID_PRODUCER_EPOCH", 3, 6] == [arrival.outcome for arrival in arrivals]


@pytest.mark.parametrize("seal_after, kill", [(0, False), (1, False), (2, True), (3, True)])
@pytest.mark.parametrize("inside", [True, False])
@on_virtual_time
async def test_sequences_wrap_wherever_the_log_is_cut(
    inside: bool, seal_after: int, kill: bool
) -> None:
    """
    2^31 − 1 is followed by 0: inside a batch and between two, sealed, in the tail, on the disk.
    """
    world = World()
    life = await world.start()
    batches = [(LARGEST - 4, 5), (0, 2), (2, 1)]
    if inside:
        batches = [(LARGEST - 4, 3), (LARGEST - 1, 4), (2, 1)]
    for n, (sequence, records) in enumerate(batches):
        if n == seal_after:
            await life.seal()
        request = life.produce(*[b"x"] * records, producer=7, epoch=0, sequence=sequence)
        assert await request.answer() == "committed"
    if seal_after == len(batches):
        await life.seal()
    world.bucket.away = kill
    if kill:
        synced = life.produce(b"x", producer=7, epoch=0, sequence=3, acks=ONE)
        assert await synced.answer() == "synced"
        life.power_off()
        world.bucket.away = False
    else:
        await life.stop()
    life = await world.start()
    await life.engine.loaded(life.log())

    outcomes = [Arrival(life, sequence, records=records).outcome for sequence, records in batches]
    outcomes += [Arrival(life, 3).outcome, Arrival(life, 4).outcome]
    outcomes += [Arrival(life, LARGEST - 1).outcome, Arrival(life, LARGEST).outcome]  # cut anew

    assert [0, 3 if inside else 5, 7, 8, 9, *["OUT_OF_ORDER_SEQUENCE_NUMBER"] * 2] == outcomes


@on_virtual_time
async def test_every_batch_of_a_full_window_in_flight_is_a_duplicate_and_none_is_answered() -> None:
    """
    A producer with 64 requests in flight that lost its connection sends all of them again; the
    65th from the end is not known any more.
    """
    world = World()
    life = await world.start()
    world.bucket.away = True
    first = [life.admit(b"x", producer=7, epoch=0, sequence=n) for n in range(WINDOW + 1)]
    again = [life.admit(b"x", producer=7, epoch=0, sequence=n) for n in range(1, WINDOW + 1)]
    with pytest.raises(RefusedError):
        life.admit(b"x", producer=7, epoch=0, sequence=0)
    await asyncio.sleep(10)
    assert [admitted for admitted, _ in first[1:]] == [admitted for admitted, _ in again]
    assert not any(request.told for _, request in (*first, *again))
    world.bucket.away = False

    assert {"committed"} == {await request.answer() for _, request in (*first, *again)}
    assert life.log().log_end == WINDOW + 1


@on_virtual_time
async def test_a_retry_with_acks_1_of_a_leftover_waits_for_a_sync_of_its_copy() -> None:
    """
    Its directory goes one day: the promise is kept by this session's file, through the next
    loss of power.
    """
    world = World()
    life = await world.start()
    world.bucket.away = True
    life.produce(b"a", producer=7, epoch=0, sequence=0)
    await life.produce(b"b", producer=7, epoch=0, sequence=1, acks=ONE).answer()
    life.power_off()
    life = await world.start()
    admitted, retry = life.admit(b"a", producer=7, epoch=0, sequence=0, acks=ONE)
    assert ((0, False), []) == (admitted, retry.told)
    assert await retry.answer() == "synced"
    old = next(name for name in world.directories if name != life.session_id)
    life.power_off()
    del world.platter.sessions[old]
    world.bucket.away = False

    life = await world.start()

    assert [(0, 0, b"a"), (1, 0, b"b")] == await life.committed()


@on_virtual_time
async def test_a_gap_right_behind_a_takeover_is_no_gap_yet() -> None:
    """
    Of two batches on their way, the first came before this leader led: both are sent again, in
    order.  Told of a gap, librdkafka would begin a new epoch and write twice what is in the log.
    """
    world = World()
    life = await world.start()
    await wrote(life, range(10))
    await life.stop()
    life = await world.start()
    early = Arrival(life, 11)
    again = [Arrival(life, n).outcome for n in (9, 10, 11)]
    gap_of_its_own = Arrival(life, 13)
    await life.stop()
    life = await world.start()
    await asyncio.sleep(5)
    late = Arrival(life, 13)

    assert "NOT_LEADER_OR_FOLLOWER" == early.outcome
    assert [9, 10, 11] == again
    assert "OUT_OF_ORDER_SEQUENCE_NUMBER" == gap_of_its_own.outcome == late.outcome


async def test_the_second_batch_of_a_producer_that_nobody_knows_waits_for_the_first() -> None:
    """
    Taken right behind a takeover, it would make the first one, sent away before, the gap: that is
    the end of a librdkafka producer.  Later it begins anywhere, as in Kafka.
    """
    world = World()
    life = await world.start()
    await wrote(life, range(3))
    await life.stop()
    life = await world.start()
    second = Arrival(life, 5, producer=8)
    again = [Arrival(life, 0, producer=8, records=5).outcome, Arrival(life, 5, producer=8).outcome]
    await asyncio.sleep(5)
    old = Arrival(life, 70, producer=9)

    assert "NOT_LEADER_OR_FOLLOWER" == second.outcome
    assert [3, 8] == again
    assert 9 == old.outcome
