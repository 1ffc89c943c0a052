"""If it failed: a job that edits a manifest early would put the partition offline."""

import asyncio
from dataclasses import replace

import pytest

from driftlog_agents.log.partition.partition import State
from driftlog_metadata.stores.errors import OutcomeUnknownError
from driftlog_tiering.formats.manifests import load_version
from tests.agents.log.job_edits import fetched, merge, newest
from tests.agents.log.lives import SETTINGS, Life, World, on_virtual_time


async def put(life: Life, *values: bytes) -> None:
    """Commit and seal."""
    assert "committed" == await life.produce(*values).answer()
    await life.seal()


@on_virtual_time
async def test_a_seal_without_an_answer_is_known_again_under_what_a_job_made_of_it() -> None:
    """
    The key is written and the partition is served: the job has replaced the leader's last segment
    before the leader learned of its own edit.
    """
    life = await World(t=1).start()
    await put(life, b"a")
    bucket = life.world.bucket
    assert "committed" == await life.produce(b"b").answer()
    bucket.lost_creates = 1_000_000
    with pytest.raises(OutcomeUnknownError):
        await life.seal()
    bucket.lost_creates = 0
    assert (2, 1) == ((await newest(life)).end, life.log().sealed_end)
    await merge(life)

    await put(life, b"c")
    await life.seal()
    assert (3, 3, State.ONLINE) == (
        (await newest(life)).end,
        life.log().sealed_end,
        life.log().state,
    )
    assert [b"a", b"b", b"c"] == await fetched(life)


@on_virtual_time
async def test_records_that_are_deleted_unsealed_are_below_log_start_at_once() -> None:
    """
    No version of the manifest has their range without its log start: a stream of Spark would take
    it for one without records, and not say that it lost them.
    """
    life = await World(t=1).start()
    await put(life, b"a")
    assert "committed" == await life.produce(b"b", b"c").answer()
    await life.engine.deletion.delete_to(life.log(), 3)
    await life.seal()

    last = await newest(life)
    versions = [
        await load_version(life.world.bucket, "t", last.tp, n + 1) for n in range(last.version)
    ]
    assert [(1, 0), (3, 3)] == [(v.end, v.log_start) for v in versions if v is not None]


@pytest.mark.parametrize("restarts", [False, True])
@on_virtual_time
async def test_a_seal_with_too_much_to_decode_goes_on_in_the_middle_of_a_flush(
    restarts: bool,
) -> None:
    """
    Each attempt commits what it decoded, so that the next one, or the next leader, has less to do.
    """
    small = replace(SETTINGS, seal=replace(SETTINGS.seal, segment_work_bytes=1))
    life = await World(t=1).start(small)
    values = [b"%d" % n for n in range(4)]
    sent = [life.produce(value) for value in values]
    assert {"committed"} == {await produced.answer() for produced in sent}
    assert 1 == len(life.log().slices)
    for end in (1, 2):
        assert end == await life.seal() == (await newest(life)).end
    assert values == [(await fetched(life, offset))[0] for offset in range(4)]
    if restarts:
        life.kill()
        life = await life.world.start(small)
    assert 2 == life.log().sealed_end
    assert "committed" == await life.produce(b"4").answer()
    assert [3, 4, 5] == [await life.seal() for _ in range(3)]
    for offset, value in enumerate([*values, b"4"]):
        assert value == (await fetched(life, offset))[0]
    assert 5 == len((await newest(life)).segments)
    assert not life.log().slices


@pytest.mark.parametrize("sealed_before", [0, 1])
@on_virtual_time
async def test_a_seal_whose_leader_died_before_its_key_is_adopted_without_another_seal(
    sealed_before: int,
) -> None:
    """
    A job may compact it: the next leader would give out local copies of it for ever.  Also the
    first seal of a partition, whose key names no manifest.
    """
    life = await World(t=1).start()
    for _ in range(sealed_before):
        await put(life, b"a")
    assert "committed" == await life.produce(b"b").answer()
    life.world.bucket.lost_creates = 1_000_000
    with pytest.raises(OutcomeUnknownError):
        await life.seal()
    life.kill()
    life.world.bucket.lost_creates = 0

    life = await life.world.start()
    assert sealed_before == life.log().sealed_end
    await asyncio.sleep(60)
    end = sealed_before + 1
    assert (end, end) == ((await newest(life)).end, life.log().sealed_end)
