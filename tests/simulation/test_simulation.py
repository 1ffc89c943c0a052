"""Agents keep their promises under schedules of 1,000 seeds; planted bugs are caught.

A seed takes two seconds of a core, so only the first `PART` of each twenty run, unless
`DRIFTLOG_SEEDS` says how many: what a seed has differs most from hundred to hundred.  `make sim`
runs them all.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tests.simulation.plants import PLANTED, SEEN_AT, Planted
from tests.simulation.runner import Result, run_seed, run_seeds, silence
from tests.simulation.seal_agents import FIRST as SEAL_AGENTS
from tests.simulation.seal_agents import has_seal_agent
from tests.simulation.world import World, is_cluster
from tests.support.time_left import skip_without_time

SEEDS = int(os.environ.get("DRIFTLOG_SEEDS", "1000"))
CHUNK = 20
PART = CHUNK if "DRIFTLOG_SEEDS" in os.environ else 8
"""Seeds of each chunk that run."""

SHORT = (0, 20, 80, 500)
"""The chunks in `make test`: plain schedules, restarts under clocks that jump, aimed ones."""

FOUND = (1, 341, 74, 68, 938, 1_200_608, 5_004_212, 402, 9_000_342)
"""Seeds that found something in the schedules of their time: a cache that forgot who waited behind
loads alone, so that nothing sealed was read any more; a folder that could not be listed for a
moment and ended the agent: that of all sessions, and that of one; agents that were woken in the
order of a set, and so in another one in every process; a session that ended between two looks at
who coordinates a group, and was told as a bug of the agent; one that ended in the very turn of the
event loop in which its first claim was answered, which ended the agent; a partition that was placed
here again while it was handed over, whose release was seen before it was answered: nobody claimed
it until something else changed; a session's key that was made before the session was open, without
its head, because the one before had asked who could commit; an agent that could read nothing and
sealed nothing, whose producers waited for ever.

With other schedules, before consumers read through the agent's reader, seeds 13, 16, 58, 236, 840,
1140, 1833 and 2444 found: a timer that spun, acks=1 behind a hole, a session that was opened for
ever, a claim refused for the own session taken for a partition led elsewhere, a torn entry that
hid what later files had, a retry judged by half of its producer's window, a crash in place of the
end of a session.  Acks=1 behind a hole is planted; the others are not found again so cheaply.

Seed 649 (of the range above): a batch that a user had deleted was taken for a hole before the
batches after it."""


def in_verify(*seeds: int) -> list[ParameterSet]:
    """Seeds that `make test` leaves to `make verify`."""
    return [pytest.param(seed, marks=pytest.mark.verify) for seed in seeds]


@pytest.fixture(autouse=True)
def _silence() -> None:
    silence()


@pytest.fixture
def _time_left() -> None:
    skip_without_time("make sim, or python -m tests.simulation --planted all")


@pytest.mark.usefixtures("_time_left")
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "start",
    [
        pytest.param(start, marks=[] if start in SHORT else [pytest.mark.verify])
        for start in range(0, SEEDS, CHUNK)
    ],
)
def test_promises_hold_under_every_schedule(start: int) -> None:
    """
    Kills, power loss, lost sessions, full disks, stores that refuse and answers that are lost
    break none of the promises that `world` lists.
    """
    result = run_seeds(range(start, start + PART))

    assert {} == result.failed


@pytest.mark.verify
@pytest.mark.timeout(200)
def test_a_restore_has_what_agents_of_the_old_cluster_acknowledge() -> None:
    """
    They run on beside it with their metadata store, and end; seed 20,002 found that an object by
    which an agent had tested the bucket ended the restore.
    """
    assert {} == run_seeds(range(20_000, 20_010)).failed


@pytest.mark.verify
@pytest.mark.timeout(200)
def test_a_restored_topic_has_every_change_that_was_answered() -> None:
    """
    Agents of the old cluster alter it beside the restore; seed 25,004 found that a writer took the
    number of a version that was deleted, by a listing that lacked all newer ones.
    """
    result = run_seeds(range(25_000, 25_010))

    assert {} == result.failed
    assert result.counts["topics altered beside a restore"] > 100


@pytest.mark.usefixtures("_time_left")
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "start",
    [
        pytest.param(start, marks=[] if start == SEAL_AGENTS else [pytest.mark.verify])
        for start in range(SEAL_AGENTS, SEAL_AGENTS + 120, 20)
    ],
)
def test_an_agent_that_only_seals_leads_nothing_and_breaks_nothing(start: int) -> None:
    """
    Beside agents that only serve, whose partitions it compacts and merges, and which do that while
    there is none; seeds 70,082 and 70,088 found that a read of a manifest whose answer was lost
    waited for ever.
    """
    seeds = [seed for seed in range(start, start + 20) if is_cluster(seed)]
    total = Result()
    for seed in filter(has_seal_agent, seeds):
        total.add(run_seed(seed))

    assert {} == total.failed
    assert total.counts["rewrites by an agent that only seals"] > 0
    assert total.counts["segments written elsewhere"] > 0


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_stays_found(seed: int) -> None:
    """
    The schedules that once broke a promise are kept.
    """
    assert {} == run_seed(seed).failed


@pytest.mark.parametrize("seed", [7, 8, *in_verify(18, 335)])
def test_one_seed_gives_one_trace(seed: int) -> None:
    """
    A seed that failed can be replayed, one agent or several: a run of it is the same in every
    process, request for request, in whatever order sets have their strings there.
    """
    script = f"""if True:
        from tests.simulation.runner import silence
        from tests.simulation.world import World
        silence()
        print(World({seed}).run().trace_hash)
    """

    traces = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONHASHSEED": number},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for number in ("1", "2")
    }

    assert {World(seed).run().trace_hash} == traces


@pytest.mark.usefixtures("_time_left")
@pytest.mark.verify
@pytest.mark.timeout(400)
@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_planted_bugs_are_caught(bug: Planted) -> None:
    """
    Each clause is there because leaving it out breaks a promise: the simulation notices.
    """
    told = f"{bug.plant.__doc__} Seeds: python -m tests.simulation --planted {bug.name} --seeds 100"

    assert bug.found() is not None, told


def test_seeds_are_pinned_for_bugs_that_are_there() -> None:
    """
    Each has seeds of its own, and none is left of a bug that is gone.
    """
    assert {bug.name for bug in PLANTED} == set(SEEN_AT)


@pytest.mark.parametrize("seed", [10_001, *in_verify(10_003, 10_005)])
def test_the_collector_deletes_nothing_that_may_be_read_or_named(seed: int) -> None:
    """
    With a grace of minutes, while records are deleted, agents end and begin, and superseded
    versions are not found for a while; of one agent and of several.
    """
    assert {} == run_seed(seed).failed


@pytest.mark.parametrize("seed", [600, 608, *in_verify(705, 708)])
def test_what_is_not_shown_and_a_bucket_that_hangs_break_no_promise(seed: int) -> None:
    """
    Of one agent and of several; these seeds notice the bugs that are planted for it.
    """
    assert {} == run_seed(seed).failed
