"""Consolidation loses nothing through lost answers, killed agents and damaged objects."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from driftlog_agents.log.reading.reader import LogReader
from driftlog_agents.log.session.lease import SessionSettings
from driftlog_metadata.schema.codec import encode_leader
from driftlog_metadata.schema.keys import (
    FLUSHES_PREFIX,
    flushes_prefix,
    parse_flush_key,
)
from driftlog_metadata.schema.model import Leader
from driftlog_metadata.stores.errors import FencedError, OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.store import Delete, MetadataStore, Operation, Put
from driftlog_tiering.stores.object_store import NotFoundError
from tests.agents.log.flush_records import (
    NEVER,
    SMALL,
    drop_unnamed,
    flushes,
    forget_memory,
    levels,
    log_of,
    records,
    settled,
    values,
)
from tests.agents.log.leadership.test_handover import joined
from tests.agents.log.lives import SETTINGS, World, now_ms, on_virtual_time, values_of
from tests.support.lossy import Lossy

QUICK = replace(SMALL, consolidation=replace(SMALL.consolidation, named_within_ms=60_000))
"""One hour for a rewrite to be named is a minute here."""

# ── Faults ──


class LossyConsolidations(Lossy):
    """Consolidations get lost."""

    def matters(self, then: Sequence[Operation]) -> bool:
        return _consolidates(then)


def _consolidates(then: Sequence[Operation]) -> bool:
    puts = [op.key for op in then if isinstance(op, Put) and op.key.startswith(FLUSHES_PREFIX)]
    return any(parse_flush_key(key).level for key in puts)


def lossy(
    fates: Sequence[str],
) -> tuple[list[LossyConsolidations], Callable[[MetadataStore], MetadataStore]]:
    """What wraps a store, and the wrapped one once there is one."""
    made: list[LossyConsolidations] = []

    def wrap(store: MetadataStore) -> MetadataStore:
        made.append(LossyConsolidations(store, fates))
        return cast(MetadataStore, made[-1])

    return made, wrap


@pytest.mark.parametrize(
    "fates",
    [
        ["after"],
        ["after"] * 5,
        ["before", "after"],
        ["refused", "before", "refused", "after"],
        ["late"],
        ["late", "after"],
        ["late", "late", "late"],
        ["", "after", "late", "before"],
    ],
)
@on_virtual_time
async def test_a_consolidation_without_an_answer_has_happened_once_or_not_at_all(
    fates: list[str],
) -> None:
    """
    Repeated, and recognised by the new record; a copy that arrives late changes nothing.
    """
    world = World(t=2)
    made, wrap = lossy(fates)
    life = await world.start(SMALL, metadata=wrap)
    for n in range(5):
        await flushes(life, 10, first=10 * n)
        await asyncio.sleep(8)
        assert {(1, 0): 10 * n + 10, (1, 1): 10 * n + 10} == {
            place: len(batches) for place, batches in (await log_of(world)).items()
        }
        forget_memory(life)
        await drop_unnamed(world)
        assert 10 * n + 10 == len(await life.committed(0))

    assert [] == made[0].fates
    assert life.engine.flush_records.records == len(await records(world))
    assert 0 not in await levels(world)


@on_virtual_time
async def test_a_consolidation_without_an_answer_is_given_up_in_time() -> None:
    """
    Nobody names an object long after its PUT; what has become of it, the records say, and the
    next attempt has objects of its own.
    """
    world = World(t=2)
    made, wrap = lossy(["never"] * 60_000)
    life = await world.start(QUICK, metadata=wrap)
    await flushes(life, 10)
    began, puts = now_ms(), len(world.bucket.puts)
    with capture_logs() as logs:
        await asyncio.sleep(300)
        assert [0] * 10 == await levels(world)
        assert 4 <= len(world.bucket.puts) - puts <= 5
        made[0].fates = ["late"]  # it may come after it was given up
        await asyncio.sleep(100)

    assert [1] == await levels(world)
    (record,) = (await records(world)).values()
    stat = await world.bucket.stat(record.object_key)
    assert stat.modified_ms > began + 200_000
    assert 1 == life.engine.flush_records.records
    failed = [event for event in logs if event["event"] == "consolidation_failed"]
    assert failed
    assert {(1, 0): 10, (1, 1): 10} == {p: len(b) for p, b in (await log_of(world)).items()}


@on_virtual_time
async def test_a_consolidation_that_happens_after_it_was_given_up_is_found_in_the_records() -> None:
    """
    A copy travelled for two seconds: the next attempt finds its records gone, and what is there.
    """
    world = World(t=2)
    made, wrap = lossy(["never"] * 60 + ["late", "never", "never"])
    # Four times as long after some lost answers: shorter than the copy travels.
    settings = replace(QUICK, session=SessionSettings(request_deadline_ms=250))
    life = await world.start(settings, metadata=wrap)
    await flushes(life, 10)
    with capture_logs() as logs:
        await asyncio.sleep(120)

    assert [1] == await levels(world)
    assert 1 == life.engine.flush_records.records
    assert ([], 64) == (made[0].fates, made[0].asked)  # one more, for nothing
    assert 2 == len([e for e in logs if e["event"] == "flush_records_changed"])
    assert [] == [e for e in logs if e["event"] == "flushes_consolidated"]
    forget_memory(life)
    assert 10 == await life.seal(0)


@pytest.mark.parametrize("when", ["before", "after"])
@on_virtual_time
async def test_an_agent_that_is_killed_around_the_transaction_leaves_a_whole_log(when: str) -> None:
    """
    Objects are there, and named or not: nothing is lost, and whoever keeps the session goes on.
    """
    world = World(t=2)
    made, wrap = lossy([])
    life = await world.start(SMALL, metadata=wrap)
    await flushes(life, 9)

    async def kill() -> None:
        life.kill()
        if when == "before":
            raise OutcomeUnknownError("it was killed")

    made[0].meddle = kill
    await flushes(life, 1, first=9)
    await settled()
    assert 1 == made[0].asked
    assert ([0] * 10 if when == "before" else [1]) == await levels(world)

    second = await world.start(SMALL)
    for partition in (0, 1):
        expected = [b"%d-%d" % (partition, n) for n in range(10)]
        assert expected == values(await second.committed(partition))
    await asyncio.sleep(100)
    assert [1] == await levels(world)
    await drop_unnamed(world)
    assert [10, 10] == [await second.seal(0), await second.seal(1)]
    await asyncio.sleep(60)
    assert {} == await records(world)


@on_virtual_time
async def test_records_that_others_changed_are_read_again() -> None:
    """
    A dead session's are managed elsewhere for a moment: what was written for nothing is not named.
    """
    world = World(t=2)
    first = await world.start(NEVER)
    await flushes(first, 9)
    first.kill()
    made, wrap = lossy([])
    second = await world.start(SMALL, metadata=wrap)
    key = next(kv.key for kv in (await world.metadata.get_prefix(FLUSHES_PREFIX))[1])
    kv = await world.metadata.get(key)
    assert kv is not None

    async def meddle() -> None:
        other = key + ".1.0"
        await world.metadata.txn((), [Delete(key), Put(other, kv.value)])

    made[0].meddle = meddle
    before = await log_of(world)
    await asyncio.sleep(300)

    assert before == await log_of(world)
    assert 3 == made[0].asked  # the first for nothing; the rest; both together
    assert [2] == await levels(world)
    assert [9, 9] == [await second.seal(0), await second.seal(1)]


@on_virtual_time
async def test_what_is_sealed_while_it_is_rewritten_is_not_deleted_under_the_rewrite() -> None:
    """
    The old records go with it, and the new one at once: nothing is written for nothing again.
    """
    world = World(t=2)
    made, wrap = lossy([])
    life = await world.start(SMALL, metadata=wrap)
    await flushes(life, 9)

    async def seal() -> None:
        await life.seal(0)
        await life.seal(1)
        await asyncio.sleep(0.5)  # others have their turn

    made[0].meddle = seal
    await flushes(life, 1, first=9)
    with capture_logs() as logs:
        await asyncio.sleep(60)

    assert {} == await records(world)
    assert 0 == life.engine.flush_records.records
    assert 1 == made[0].asked
    assert [1] == [e["objects"] for e in logs if e["event"] == "flushes_consolidated"]


@on_virtual_time
async def test_a_session_that_was_lost_consolidates_nothing() -> None:
    """
    Its records are another's to keep by then; the engine begins a new session.
    """
    world = World(t=2)
    made, wrap = lossy([])
    life = await world.start(SMALL, metadata=wrap)
    await flushes(life, 9)

    async def lose() -> None:
        await world.metadata.revoke_lease(life.engine.session.lease_id)

    made[0].meddle = lose
    await flushes(life, 1, first=9)
    with pytest.raises(FencedError):
        await life.task

    assert [0] * 10 == await levels(world)


@on_virtual_time
async def test_while_flushes_fail_nothing_is_rewritten() -> None:
    """
    The store has more important things to do.
    """
    world = World(t=2)
    life = await world.start(SMALL)
    await flushes(life, 9)
    life.engine.flusher.outage.since_ms = now_ms()
    await flushes(life, 1, first=9)
    life.engine.flusher.outage.since_ms = now_ms()
    await settled()
    assert 10 == len(await records(world))

    life.engine.flusher.outage.since_ms = None
    await settled()

    assert [1] == await levels(world)


@pytest.mark.parametrize(
    "fates",
    [
        [UnavailableError("slow down")],
        [OutcomeUnknownError("reset")],
        [OutcomeUnknownError("reset")] * 2,
        [UnavailableError("slow down")] * 7,
    ],
)
@on_virtual_time
async def test_a_put_that_fails_is_tried_again_under_another_name(fates: list[Exception]) -> None:
    """
    A few times at once, and then again later.
    """
    world = World(t=2)
    life = await world.start(SMALL)
    await flushes(life, 9)
    asked = life.produce(b"last", partition=0)
    assert "committed" == await asked.answer()
    world.bucket.puts.clear()
    world.bucket.fates = list(fates)
    await asyncio.sleep(60)

    assert [1] == await levels(world)
    assert len(fates) + 1 == len(set(world.bucket.puts))
    assert {(1, 0): 10, (1, 1): 9} == {p: len(b) for p, b in (await log_of(world)).items()}


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "moved"])
@on_virtual_time
async def test_an_object_that_cannot_be_read_is_looked_for_again_and_the_others_go_on(
    damage: str,
) -> None:
    """
    It is left as it is, and said with its name, once a minute at most; the others become few.  When
    it is put back it is rewritten as well.
    """
    world = World(t=2)
    life = await world.start(SMALL)
    await flushes(life, 4)
    third = sorted((await records(world)).items())[2][1]
    whole = await world.bucket.get(third.object_key)
    body = bytearray(whole)
    await world.bucket.delete([third.object_key])
    if damage == "cut":
        await world.bucket.put(third.object_key, [body[:50]])
    elif damage == "flipped":
        body[70] ^= 1
        await world.bucket.put(third.object_key, [body])
    elif damage == "moved":
        body[7] += 1  # base offset: the CRC does not cover it
        await world.bucket.put(third.object_key, [body])
    with capture_logs() as logs:
        await asyncio.sleep(200)

    assert [0, 1] == sorted(await levels(world))
    assert third in (await records(world)).values()
    said = [event for event in logs if event["event"] == "flush_object_unavailable"]
    assert {life.session_id} == {event["session"] for event in said}
    assert 1 <= len(said) <= 4
    assert all(third.object_key in event["reason"] for event in said)

    await world.bucket.delete([third.object_key])
    await world.bucket.put(third.object_key, [whole])
    await asyncio.sleep(700)
    await flushes(life, 6, first=4)
    await asyncio.sleep(60)
    assert third not in (await records(world)).values()


# ── Led elsewhere ──


@on_virtual_time
async def test_a_tail_that_was_not_told_finds_its_batches_by_the_records() -> None:
    """
    Its flushes are another agent's, which rewrites them: when an object is gone, what reads and
    what seals looks the records up, and goes on.
    """
    world = World(t=8)
    first = await world.start(NEVER)
    await flushes(first, 10, partitions=range(8))
    second = await joined(first, settings=NEVER)
    engine = second.engine
    while not engine.logs():  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    log = engine.logs()[0]
    first.engine.flush_records.state.settings = SMALL.consolidation
    await settled()
    assert 10 < await drop_unnamed(world)  # ten flushes, and probes of the hand-over
    reader = LogReader(
        store=world.bucket,
        offload=engine.ports.offload,
        manifests=engine,
        now_ms=now_ms,
    )

    read = [b for n in range(10) for b in await reader.read(log, n, 1, zstd=True)]

    assert [(n, b"%d-%d" % (log.partition, n)) for n in range(10)] == [
        (offset, value) for batch in read for offset, _, value in values_of(batch)
    ]
    assert 10 == await second.seal(log.partition)


@on_virtual_time
async def test_an_object_that_no_record_replaces_is_damage() -> None:
    """
    Its record names it, and it is not there.
    """
    world = World(t=2)
    life = await world.start(NEVER)
    await flushes(life, 2)
    forget_memory(life)
    (first, _) = (await records(world)).values()
    await world.bucket.delete([first.object_key])

    with pytest.raises(NotFoundError):
        await life.seal(0)


@on_virtual_time
async def test_a_slice_that_was_sealed_in_part_goes_on_with_its_rest() -> None:
    """
    A takeover finds long slices; what was sealed of one is left out when it is rewritten.
    """
    world = World(t=2)
    first = await world.start(SMALL)
    await flushes(first, 10)
    await settled()
    await first.stop()
    second = await world.start(NEVER)
    assert [10] == [tail.count for tail in second.log(0).slices]
    assert 4 == await second.engine.sealer.seal(second.log(0), 4)
    await second.stop()
    third = await world.start(SMALL)
    log = third.log(0)
    assert [(0, 10)] == [(tail.base, tail.end) for tail in log.slices]
    before = log.unsealed_bytes
    untold_record, *_ = await records(world)

    kept = third.engine.flush_records.state.sessions()
    third.engine.flush_records.state.settings = replace(
        SMALL.consolidation, level_one_records=1, sealed_interval_ms=1_000
    )
    await asyncio.sleep(120)
    assert untold_record not in await records(world), kept
    forget_memory(third)
    await drop_unnamed(world)

    assert [(4, 10)] == [(tail.base, tail.end) for tail in log.slices]
    assert (6, before * 6 // 10) == (log.unsealed_batches, log.unsealed_bytes)
    assert [b"0-%d" % n for n in range(4, 10)] == values(await third.committed(0))
    assert 10 == await third.seal(0)


@on_virtual_time
async def test_keys_of_somebody_else_under_our_prefixes_end_no_session() -> None:
    """
    Each agent reads them when it takes over, and when it looks for dead sessions and for topics;
    when it is back on its own disk, too.
    """
    world = World(t=2)
    strange = ("heads/test", "heads/%zz", "sessions/%zz", "sessions/a/b", "topics/a/b", "leaders/x")
    await world.metadata.txn((), [Put(f"/driftlog/v1/{name}", b"x") for name in strange])
    life = await world.start()
    assert await life.produce(b"v").answer() == "committed"
    alike = encode_leader(Leader(session_id=life.session_id, leader_epoch=0))
    backups = [f"/driftlog/v1/leaders/{life.log().topic_id}", f"{flushes_prefix(life.session_id)}1"]
    await world.metadata.txn((), [Put(backups[0], alike), Put(backups[1], b"x")])
    life.kill()

    life = await world.start()  # on its own disk
    life.kill()
    life = await world.other_disk().start()
    life.engine.flush_records.topic_gone(UUID(int=77))
    with capture_logs() as lines:
        await asyncio.sleep(SETTINGS.consolidation.sealed_interval_ms / 1000)

    assert 1 == life.log().high_watermark
    assert not life.task.done()
    assert [] == [line["event"] for line in lines if line["log_level"] == "error"]
