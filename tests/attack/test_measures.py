"""The harness measures what it says: an agent that dies, one that stands still, one that grows."""

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from benchmarks import wire
from driftlog_agents.health.event_loop_monitor import EventLoopMonitor
from driftlog_agents.protocol.requests.registry import API
from tests.attack.attacks import Attack, Budget, MiB, Target
from tests.attack.families import ALL
from tests.attack.families.batches import header_bomb
from tests.attack.families.fuzzing import HostileValues, MutatedBytes, TaggedFields, calls
from tests.attack.harness import STALL_MS, Outcome, over_budget, run, too_slow
from tests.attack.healthy import Acknowledged, Seen
from tests.attack.measures import Control, CoreWaits, Memory, percentile, stalled_s
from tests.attack.report import merged, table
from tests.attack.state import record_faults
from tests.support.driftlog_process import DriftlogProcess


class _Killed(Attack):
    """The agent is killed."""

    name = "planted-death"

    def run(self, target: Target) -> None:
        target.agent.signal(signal.SIGKILL)
        target.agent.wait(60)


class _Pipelined(Attack):
    """500 requests on one connection, of which the attack counts none."""

    name = "planted-requests"
    counted_by_agent = True
    legal_clients = 20

    def run(self, target: Target) -> None:
        with target.connect() as connection:
            connection.send(wire.request(wire.API_VERSIONS, 0, 1, b"") * 500)
            for _ in range(500):
                connection.receive()


class _Stopped(Attack):
    """The agent's process stands still for four seconds, and no core is what it lacks."""

    name = "planted-stall"

    def run(self, target: Target) -> None:
        target.agent.pause()
        time.sleep(4)
        target.agent.resume()


class _Ends(Attack):
    """An agent that is to stop goes on."""

    name = "planted-survivor"
    must_end = True
    ends_within_s = 1.0
    readable = False

    def run(self, target: Target) -> None:
        target.sent += 1


class _Nothing(Attack):
    """Nothing is done to the agent."""

    name = "nothing"

    def run(self, target: Target) -> None:
        target.sent += 1


@pytest.mark.timeout(240)
@pytest.mark.xdist_group("attack")
def test_an_agent_that_dies_is_noticed_and_its_records_are_read_afterwards(tmp_path: Path) -> None:
    """
    The verdict names the signal; nothing else is wrong, for the restarted agent has all records.
    """
    outcome = run(_Killed(), seconds=1, seed=1, parent=tmp_path)

    assert not outcome.survived
    assert len(outcome.failures) == 1, outcome.failures
    assert "died (exit code -9" in outcome.failures[0]


@pytest.mark.timeout(240)
@pytest.mark.xdist_group("attack")
def test_a_stall_is_noticed_by_the_prober_and_by_the_agent(tmp_path: Path) -> None:
    """
    Four seconds: both see most of it, so the smaller figure is over the bound by far, also where
    this machine lacks a core for a part of it.
    """
    outcome = run(_Stopped(), seconds=1, seed=1, parent=tmp_path)

    assert outcome.survived
    assert outcome.stall_ms > 2 * STALL_MS
    assert [each for each in outcome.failures if "stood still" in each]


@pytest.mark.timeout(240)
@pytest.mark.xdist_group("attack")
def test_an_agent_that_should_have_stopped_and_did_not_is_noticed(tmp_path: Path) -> None:
    """
    It is alive, and that is what is wrong.
    """
    outcome = run(_Ends(), seconds=1, seed=1, parent=tmp_path)

    assert outcome.survived
    assert [each for each in outcome.failures if "was to stop" in each]


@pytest.mark.timeout(240)
@pytest.mark.xdist_group("attack")
def test_an_agent_that_is_left_alone_passes(tmp_path: Path) -> None:
    """
    It lives, its healthy client is served, and all that was acknowledged is read after a kill.
    (How long its loop stood still, and what it answered too late, depends on the machine.)
    """
    outcome = run(_Nothing(), seconds=1, seed=1, parent=tmp_path, alone=False)

    assert outcome.seen is not None
    assert outcome.seen.operations > outcome.seen.errors
    assert [] == outcome.failures


# ── Parts ──


def test_what_the_machine_took_is_not_the_agents() -> None:
    """
    A wait is shortened by what the main thread lacked a core, and by what overlaps with a late
    control thread; never below nothing.
    """
    assert stalled_s((10.0, 11.0), 0.0, []) == pytest.approx(1.0)
    assert stalled_s((10.0, 11.0), 0.3, []) == pytest.approx(0.7)
    assert stalled_s((10.0, 11.0), 0.0, [(9.0, 10.25), (10.9, 12.0)]) == pytest.approx(0.65)
    assert stalled_s((10.0, 11.0), 0.0, [(8.0, 9.0), (11.0, 12.0)]) == pytest.approx(1.0)
    assert stalled_s((10.0, 11.0), 0.9, [(10.0, 10.5)]) == 0.0


def test_a_process_without_a_core_is_seen_to_wait_for_one() -> None:
    """
    Several busy processes on one core: each of them waits.
    """
    busy = "import os, time\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile 1: pass"
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel does not count it")
    processes = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(3)]
    waits = [CoreWaits(each.pid) for each in processes]
    try:
        deadline = time.monotonic() + 60
        while min(each.total_s() for each in waits) < 0.3:
            assert time.monotonic() < deadline, "nobody waited"
            time.sleep(0.05)
    finally:
        for process, wait in zip(processes, waits, strict=True):
            process.kill()
            process.wait()
            wait.close()


def test_a_control_thread_that_is_held_up_says_when() -> None:
    """
    The interpreter is held for 300 ms, until that meets a control thread that has begun to sleep:
    lateness that overlaps with it.
    """
    control = Control()
    control.start()
    longest_s, deadline = 0.0, time.monotonic() + 60
    while longest_s <= 0.1:
        assert time.monotonic() < deadline, "it was never late"
        begun = time.monotonic()
        _hold_the_interpreter(begun + 0.3)
        time.sleep(0.05)
        longest_s = max((end - start for start, end in control.late(begun)), default=0.0)
    control.stop()


def _hold_the_interpreter(until: float) -> None:
    previous = sys.getswitchinterval()
    sys.setswitchinterval(10)
    try:
        while time.monotonic() < until:
            pass
    finally:
        sys.setswitchinterval(previous)


_GROWS: Final = "import sys; sys.stdin.readline(); x = b'1' * (200 << 20); del x; sys.stdin.read()"
"""When it is told to, and then it waits to be ended."""


@pytest.fixture
def growing() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", _GROWS], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_peak_between_two_looks_is_seen(growing: subprocess.Popen[bytes]) -> None:
    """
    The kernel's high-water mark: memory that was given back counts.
    """
    memory = Memory(growing.pid)
    assert growing.stdin is not None
    growing.stdin.write(b"now\n")
    growing.stdin.flush()
    deadline = time.monotonic() + 60
    while memory.grown_bytes < 150 * MiB and time.monotonic() < deadline:
        time.sleep(0.2)
        memory.look()

    assert memory.grown_bytes >= 150 * MiB
    assert not memory.killed


def test_a_process_that_takes_more_than_the_machine_can_give_is_killed(
    growing: subprocess.Popen[bytes],
) -> None:
    """
    And that is said.
    """
    memory = Memory(growing.pid, most_bytes=1)
    memory.look()

    assert memory.killed
    assert growing.wait(60) == -signal.SIGKILL


def test_budgets() -> None:
    """
    A request is held to what it adds, a crowd to what there is.
    """
    assert over_budget(Budget.REQUEST, 256 * MiB, 900 * MiB) is None
    assert over_budget(Budget.REQUEST, 257 * MiB, 400 * MiB) is not None
    assert over_budget(Budget.CROWD, 900 * MiB, 1_024 * MiB) is None
    assert over_budget(Budget.CROWD, 100 * MiB, 1_025 * MiB) is not None


def test_percentiles() -> None:
    """
    Of none, of one, of a hundred.
    """
    assert percentile([], 0.99) == 0
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([float(n) for n in range(100)], 0.5) == 50.0


def test_records_that_are_lost_moved_or_doubled_are_told() -> None:
    """
    What was not acknowledged may be there or not.
    """
    told = [Acknowledged(0, b"a"), Acknowledged(2, b"b")]

    assert record_faults({0: b"a", 2: b"b"}, told) is None
    assert record_faults({0: b"a", 1: b"unknown", 2: b"b"}, told) is None
    assert "lost" in str(record_faults({0: b"a"}, told))
    assert "lost" in str(record_faults({0: b"a", 1: b"b"}, told))
    assert "doubled" in str(record_faults({0: b"a", 2: b"b", 3: b"b"}, told))


def test_the_loops_watch_remembers_the_longest_for_a_minute_or_two() -> None:
    """
    Longer than anybody waits to ask, and not for ever.
    """
    watch = EventLoopMonitor()
    seen = []
    for late_s, now_s in ((0.001, 1_000), (0.5, 1_010), (0.002, 1_030), (0.003, 1_061)):
        watch.woke(late_s, now_s)
        seen.append(watch.longest_stall_s)
    watch.woke(0.004, 1_122)
    seen.append(watch.longest_stall_s)

    assert seen == [0.001, 0.5, 0.5, 0.5, 0.004]


def test_every_api_and_version_is_fuzzed_with_what_can_be_encoded() -> None:
    """
    A maker that raises would fuzz nothing behind it.
    """
    target = Target(DriftlogProcess(), random.Random(1), 1.0)
    try:
        for attack in (HostileValues(), MutatedBytes(), TaggedFields()):
            made = {call: list(attack.frames(target, call)) for call in calls()}
            assert {call for call, frames in made.items() if frames} >= {
                call for call in calls() if call[0].is_flexible(call[1])
            }
    finally:
        target.agent.close()
    assert {api.key for api, _ in calls()} == {key for key, api in API.items() if api.served}


def test_a_header_bomb_is_small() -> None:
    """
    Ten thousand times smaller than what it unpacks to.
    """
    assert len(header_bomb(1_000_000)) < 2_000


def test_names_are_unique_and_told() -> None:
    """
    `--only` finds one attack by its name, and `--list` has a line for each.
    """
    attacks = [attack for family in ALL.values() for attack in family]

    assert len({attack.name for attack in attacks} | set(ALL)) == len(attacks) + len(ALL)
    assert all(attack.__doc__ for attack in attacks)


def test_the_table_has_a_line_for_each_and_every_reason() -> None:
    """
    A person sees at once what failed, and why.
    """
    good, bad = Outcome("good"), Outcome("bad", survived=False, failures=["died", "lost"])

    lines = table([good, bad]).splitlines()

    assert len(lines) == 5
    assert lines[1].endswith("ok")
    assert lines[2].endswith("FAILED")
    assert lines[3:] == ["FAILED bad: died", "FAILED bad: lost"]


def test_no_thread_is_left_behind() -> None:
    """
    A control that was stopped has ended.
    """
    before = set(threading.enumerate())
    control = Control()
    control.start()
    control.stop()

    assert set(threading.enumerate()) <= before


def test_the_agent_counts_the_requests_of_an_attack(tmp_path: Path) -> None:
    """
    Those of the healthy client, of the prober and of the legal clients are not among them.
    """
    outcome = run(_Pipelined(), seconds=1, seed=1, parent=tmp_path, alone=False)

    assert [] == outcome.failures
    assert abs(500 - outcome.sent) <= 20  # what the healthy client did while the marks were made
    assert outcome.legal is not None
    assert outcome.legal.operations > 0


def test_a_healthy_client_beside_a_crowd_is_compared_with_one_beside_legal_clients() -> None:
    """
    Five times as long is allowed; without legal clients there is nothing to compare with.
    """
    assert too_slow(_seen(100), _seen(20)) is None
    assert too_slow(_seen(1_000), None) is None
    assert too_slow(_seen(101), _seen(20)) == (
        "the healthy client's p99 is 101 ms, and 20 ms beside as many legal clients"
    )


def _seen(p99_ms: float, errors: int = 0) -> Seen:
    return Seen(
        operations=1,
        probes=1,
        errors=errors,
        p99_ms=p99_ms,
        longest_ms=0,
        stall_ms=0,
        silence_s=0,
    )


def test_outcomes_of_one_attack_are_one_line() -> None:
    """
    Requests and errors are added up, the worst of the other measures is shown, and no failure is
    lost.
    """
    first = Outcome("a", sent=3, grown_bytes=5, stall_ms=1, seen=_seen(7, errors=1))
    again = Outcome("a", sent=4, grown_bytes=2, stall_ms=9, seen=_seen(6, errors=2))
    again.failures, again.survived = ["died"], False
    [one, other] = merged([first, Outcome("b"), again])

    assert ("a", 7, 5, 9) == (one.name, one.sent, one.grown_bytes, one.stall_ms)
    assert _seen(7, errors=3) == one.seen
    assert (False, ["died"]) == (one.survived, one.failures)
    assert Outcome("b") == other
