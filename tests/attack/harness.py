"""One attack on one agent, and what became of it.

    start ─▶ fill ─▶ prepare ─▶ baselines ─▶ attack ─▶ one more healthy round ─▶ measures
                                                                                    │
                        verdict ◀─ again ◀─ everything is read ◀─ start ◀─ kill −9 ◀┘

An agent has a directory of its own for each attack: what one leaves behind excuses no other.

Shell.
"""

import contextlib
import http.client
import random
import re
import shutil
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.attack.attacks import (
    CROWD_BYTES,
    REQUEST_BYTES,
    Attack,
    Budget,
    ImpossibleError,
    MiB,
    Target,
)
from tests.attack.healthy import Healthy, Seen
from tests.attack.legal import Legal
from tests.attack.measures import Memory
from tests.attack.state import VICTIM, fill, unreadable
from tests.attack.wire import GONE, HEALTHY_ADDRESS, Connection
from tests.support.driftlog_process import DriftlogProcess

STALL_MS: Final = 250.0
"""Longer, and sessions of a loaded cluster are in danger."""

_BASELINE_S: Final = 1.5
_LEGAL_S: Final = 5.0
_REFILLED_S: Final = 6.0
"""After the legal clients, until as many connections are accepted at once as before."""
_MOST_P99S: Final = 5
"""So many times what it is beside legal clients, the healthy client's p99 may be."""
_STALL: Final = re.compile(r"^driftlog_event_loop_longest_stall_seconds (\S+)$", re.MULTILINE)
_REQUESTS: Final = re.compile(r"^driftlog_requests_total{.*} (\S+)$", re.MULTILINE)

_BUG: Final = re.compile(r"\b(?:handler|connection)_bug\b")
_ERROR: Final = re.compile(r"[\w.]*(Error|Exception|driftlog): ")


@dataclass(slots=True)
class Outcome:
    """A line of the table."""

    name: str
    sent: int = 0
    grown_bytes: int = 0
    peak_bytes: int = 0
    stall_ms: float = 0.0
    """The smaller of what the prober saw and what the agent says: a crowd in front of the prober is
    no stall of the loop, and a machine that stands still is none of the agent."""
    baseline: Seen | None = None
    legal: Seen | None = None
    """Beside as many clients that do nothing wrong."""
    seen: Seen | None = None
    survived: bool = True
    failures: list[str] = field(default_factory=list)
    impossible: str = ""
    """Why it was not made."""
    seconds: float = 0.0
    most_stall_ms: float = STALL_MS
    alone: bool = True

    @property
    def ok(self) -> bool:
        return not self.failures


def run(
    attack: Attack,
    *,
    seconds: float,
    seed: int,
    parent: Path | None = None,
    most_stall_ms: float = STALL_MS,
    alone: bool = True,
) -> Outcome:
    """Attack an agent of its own with *attack* for up to about so many seconds.

    Not *alone* on the machine: how long the loop stood still, and memory below what the machine
    can give, are measured and fail nothing.
    """
    begun = time.monotonic()
    outcome = Outcome(attack.name, most_stall_ms=most_stall_ms, alone=alone)
    folder = Path(tempfile.mkdtemp(prefix="driftlog-attack-", dir=parent))
    try:
        with attack.around():
            agent = DriftlogProcess(
                folder / "data",
                command=("agent", "run"),
                arguments=(
                    "--config",
                    "group.initial.rebalance.delay.ms=0",
                    *("--config", "log.retention.ms=-1"),  # records are of 1970
                    *attack.arguments,
                ),
                prefix=attack.prefix,
                parent=folder,
            )
            try:
                rng = random.Random(f"{seed}/{attack.name}")
                target = Target(agent, rng, seconds)
                _run(attack, target, outcome)
                outcome.sent = target.sent
                outcome.failures += target.failures
            finally:
                agent.kill()
    except ImpossibleError as error:
        outcome.impossible = str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    outcome.seconds = time.monotonic() - begun
    return outcome


def _run(attack: Attack, target: Target, outcome: Outcome) -> None:
    agent = target.agent
    token = uuid.UUID(int=target.rng.getrandbits(128)).hex[:12]
    target.healthy_topic = f"healthy-{token}"
    if not _started(target, outcome):
        return
    with Connection(agent.port, address=HEALTHY_ADDRESS) as connection:
        fill(connection, target.healthy_topic)
    attack.prepare(target)
    with Healthy(agent.port, agent.pid, target.healthy_topic, token) as healthy:
        healthy.mark()
        if outcome.alone:
            time.sleep(_BASELINE_S)
        else:  # what it is beside others says nothing, but the client must have begun
            healthy.cycle()
        outcome.baseline = healthy.mark()
        if attack.legal_clients:
            outcome.legal = _beside_legal(attack, target, healthy)
        before = _taken(agent)
        with _measured(attack, target, outcome):
            attack.run(target)
            if attack.must_end:
                _expect_end(target, outcome, attack.ends_within_s)
            elif agent.is_alive() and not healthy.cycle():
                outcome.failures.append("the healthy client is not served any more")
        outcome.seen = healthy.mark()
        if attack.counted_by_agent and agent.is_alive():
            own = outcome.seen.operations + outcome.seen.probes
            target.sent = max(0, _taken(agent) - before - own)
        outcome.stall_ms = outcome.seen.stall_ms
        if agent.is_alive() and (inside_ms := _stall_ms(agent)) is not None:
            outcome.stall_ms = min(outcome.stall_ms, inside_ms)
        acknowledged = healthy.stop()
    if not attack.must_end:
        if not agent.is_alive():
            outcome.survived = False
            outcome.failures.append(f"died ({_last_words(agent)})")
        if outcome.alone and outcome.stall_ms > outcome.most_stall_ms:
            outcome.failures.append(f"the event loop stood still for {outcome.stall_ms:.0f} ms")
        if outcome.alone and (why := too_slow(outcome.seen, outcome.legal)) is not None:
            outcome.failures.append(why)
    if attack.readable:
        agent.kill()
        if not _started(target, outcome):
            return
        why = unreadable(agent.port, target.healthy_topic, acknowledged, target.groups)
        if why is not None:
            outcome.failures.append(f"after the restart: {why}")
        with _measured(attack, target, outcome):
            attack.again(target)
        if not agent.is_alive():
            outcome.survived = False
            outcome.failures.append(f"died after the restart ({_last_words(agent)})")
    if bugs := len(_BUG.findall(agent.log)):
        outcome.failures.append(f"{bugs:,} exceptions in answering, such as {_last_error(agent)}")


def _beside_legal(attack: Attack, target: Target, healthy: Healthy) -> Seen:
    with Legal(target.port, VICTIM, attack.legal_clients):
        healthy.mark()
        time.sleep(_LEGAL_S)
        seen = healthy.mark()
    time.sleep(_REFILLED_S)
    healthy.mark()
    return seen


def too_slow(seen: Seen, legal: Seen | None) -> str | None:
    """Why the healthy client waited too long beside a crowd; None: it did not."""
    if legal is None or seen.p99_ms <= _MOST_P99S * legal.p99_ms:
        return None
    p99s = f"{seen.p99_ms:.0f} ms, and {legal.p99_ms:.0f} ms beside as many legal clients"
    return f"the healthy client's p99 is {p99s}"


def _started(target: Target, outcome: Outcome) -> bool:
    """Whether it did; if not, the outcome says so."""
    try:
        target.agent.start()
    except (RuntimeError, TimeoutError) as error:
        outcome.survived = False
        outcome.failures.append(f"does not start: {str(error)[:160]}")
        return False
    return True


@contextlib.contextmanager
def _measured(attack: Attack, target: Target, outcome: Outcome) -> Iterator[None]:
    memory = Memory(target.agent.pid)
    memory.start()
    try:
        yield
    finally:
        memory.look()
        memory.stop()
    outcome.grown_bytes = max(outcome.grown_bytes, memory.grown_bytes)
    outcome.peak_bytes = max(outcome.peak_bytes, memory.peak_bytes)
    why = None
    if outcome.alone:
        why = over_budget(attack.budget, memory.grown_bytes, memory.peak_bytes)
    if memory.killed:
        why = f"took {memory.peak_bytes // MiB:,} MiB and was killed by the harness"
    if why is not None:
        outcome.failures.append(why)


def over_budget(budget: Budget, grown_bytes: int, peak_bytes: int) -> str | None:
    """Why that much memory is too much; None: it is not."""
    if budget is Budget.REQUEST and grown_bytes > REQUEST_BYTES:
        return f"{grown_bytes // MiB:,} MiB more memory for one request"
    if budget is Budget.CROWD and peak_bytes > CROWD_BYTES:
        return f"{peak_bytes // MiB:,} MiB of memory"
    return None


def _expect_end(target: Target, outcome: Outcome, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while target.agent.is_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    outcome.survived = target.agent.is_alive()
    if outcome.survived:
        outcome.failures.append(f"goes on after {within_s:.0f} s, and was to stop and say why")
    elif (code := target.agent.exit_code) != 1:
        outcome.failures.append(f"ended with {code}, not with 1: {_last_words(target.agent)}")


def _stall_ms(agent: DriftlogProcess) -> float | None:
    """As the agent says; None: it does not."""
    found = _metric(agent, _STALL)
    return max(found) * 1000 if found else None


def _taken(agent: DriftlogProcess) -> int:
    """Requests that the agent has taken since its start; 0: it does not say."""
    return int(sum(_metric(agent, _REQUESTS)))


def _metric(agent: DriftlogProcess, series: re.Pattern[str]) -> list[float]:
    try:
        with urllib.request.urlopen(f"{agent.http}/metrics", timeout=20) as answer:
            return [float(value) for value in series.findall(answer.read().decode())]
    except (*GONE, urllib.error.URLError, http.client.HTTPException):
        return []


def _last_words(agent: DriftlogProcess) -> str:
    return f"exit code {agent.exit_code}: {_last_error(agent)}"


def _last_error(agent: DriftlogProcess) -> str:
    """The last line of the log that names an error, or else the last one."""
    lines = [line.strip(" |+-") for line in agent.log.splitlines()]
    lines = [line for line in lines if line]
    named = [line for line in lines if _ERROR.match(line)] or lines or ["nothing in its log"]
    return named[-1][:160]
