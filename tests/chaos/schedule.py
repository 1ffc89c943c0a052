"""What goes wrong, when, and for how long: drawn from a seed before anything happens.

At any time one agent is left alone, and has been for a while; at most one member of etcd is away,
S3 has one trouble, and no more than three things go on at once.  So somebody can go on, sooner or
later; that is what bounds the longest gap.
Pure.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

AT_ONCE: Final = 3
FIRST_S: Final = 3.0
_PAUSE_S: Final = 2.0
"""Between the beginnings of two, on average."""

_ROLLING_S: Final = 150.0
"""In so long all agents are restarted in turn once, with nothing else done to them meanwhile."""

_REDRAW_S: Final = 0.3
"""After what was drawn and is not allowed now."""

_SETTLE_S: Final = 8.0
"""Between two troubles of one agent, of etcd, of S3: a lease, a start, and what partitions need to
come back, roughly."""


class Kind(StrEnum):
    """The values are the table's words."""

    KILL = "agent killed, started on its disk"
    KILL_EMPTY = "agent killed, started on an empty disk"
    FREEZE = "agent frozen"
    STOP = "agent stopped with SIGTERM, started"
    ROLLING = "all agents restarted in turn"
    CUT_MEMBER = "agent cut from one etcd member"
    CUT_ETCD = "agent cut from etcd"
    CUT_S3 = "agent cut from S3"
    CUT_CLIENTS = "agent cut from clients"
    CUT_ALL = "agent cut from everything"
    MEMBER_KILL = "etcd member killed"
    MEMBER_FREEZE = "etcd member frozen"
    S3_SLOW = "S3 slow"
    S3_503 = "S3 503 storm"
    S3_RESETS = "S3 resets"
    S3_LOST = "S3 answers lost"


_WEIGHTS: Final = {
    Kind.KILL: 6,
    Kind.KILL_EMPTY: 2,
    Kind.FREEZE: 5,
    Kind.STOP: 3,
    Kind.CUT_MEMBER: 3,
    Kind.CUT_ETCD: 4,
    Kind.CUT_S3: 3,
    Kind.CUT_CLIENTS: 3,
    Kind.CUT_ALL: 3,
    Kind.MEMBER_KILL: 1,
    Kind.MEMBER_FREEZE: 1,
    Kind.S3_SLOW: 3,
    Kind.S3_503: 2,
    Kind.S3_RESETS: 3,
    Kind.S3_LOST: 3,
}

CUTS: Final = frozenset(
    {Kind.CUT_MEMBER, Kind.CUT_ETCD, Kind.CUT_S3, Kind.CUT_CLIENTS, Kind.CUT_ALL}
)
MEMBERS: Final = frozenset({Kind.MEMBER_KILL, Kind.MEMBER_FREEZE})
S3: Final = frozenset({Kind.S3_SLOW, Kind.S3_503, Kind.S3_RESETS, Kind.S3_LOST})

_STYLES: Final = ("refuse", "stall", "stall", "stall_requests", "stall_answers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One thing that goes wrong."""

    kind: Kind
    at_s: float
    for_s: float
    agent: int = -1
    """Which, or -1: none of them, or all."""
    member: int = -1
    style: str = ""
    """Of a cut: a mode of `tests.support.links`."""
    deliver_late: bool = False
    """What a cut held arrives when it ends."""
    share: float = 0.0
    """Of requests to S3."""

    def __str__(self) -> str:
        what = [f"{self.kind}, {self.for_s:.1f} s"]
        what += [f"agent {self.agent}"] if self.agent >= 0 else []
        what += [f"member {self.member}"] if self.member >= 0 else []
        what += [f"{self.style}, held bytes {self.held}"] if self.style else []
        what += [f"{self.share:.0%} of requests"] if self.share else []
        return ", ".join(what)

    @property
    def held(self) -> str:
        return "late" if self.deliver_late else "lost"


def schedule(seed: int, seconds: float, agents: int, members: int) -> list[Trouble]:
    """The troubles of *seconds*, by their beginnings; all have ended then, but for restarts."""
    dice = random.Random(seed)
    made = [
        Trouble(kind=Kind.ROLLING, at_s=(turn + dice.uniform(0.1, 0.7)) * _ROLLING_S, for_s=0.0)
        for turn in range(round(seconds / _ROLLING_S))
    ]
    at_s = FIRST_S
    while at_s < seconds - 1:
        kind = dice.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        drawn = _draw(kind, dice, at_s, seconds, agents, members)
        end_s = _end_s(drawn, agents)
        beside = [o for o in made if _end_s(o, agents) > at_s and o.at_s < end_s]
        if _allowed(drawn, beside, agents):
            made.append(drawn)
            at_s += dice.expovariate(1 / _PAUSE_S)
        else:
            at_s += _REDRAW_S
    return sorted(made, key=lambda trouble: trouble.at_s)


def _draw(
    kind: Kind, dice: random.Random, at_s: float, seconds: float, agents: int, members: int
) -> Trouble:
    if kind in (Kind.KILL, Kind.KILL_EMPTY, Kind.STOP):
        for_s = dice.uniform(0.2, 8)
    elif kind is Kind.FREEZE:
        for_s = dice.uniform(0.5, 12)
    elif kind is Kind.S3_503:
        for_s = dice.uniform(1, 10)
    else:
        for_s = dice.uniform(1, 15)
    of_agent = kind in CUTS or kind in (Kind.KILL, Kind.KILL_EMPTY, Kind.FREEZE, Kind.STOP)
    of_member = kind in MEMBERS or kind is Kind.CUT_MEMBER
    share = {Kind.S3_503: dice.choice((0.3, 0.7, 1.0)), Kind.S3_RESETS: dice.uniform(0.1, 0.6)}
    share[Kind.S3_LOST] = dice.uniform(0.03, 0.15)
    return Trouble(
        kind=kind,
        at_s=at_s,
        for_s=min(for_s, seconds - at_s),
        agent=dice.randrange(agents) if of_agent else -1,
        member=dice.randrange(members) if of_member else -1,
        style=dice.choice(_STYLES) if kind in CUTS else "",
        deliver_late=dice.random() < 0.5,
        share=share.get(kind, 0.0),
    )


def _end_s(trouble: Trouble, agents: int) -> float:
    """When its subjects are as before, roughly."""
    if trouble.kind is Kind.ROLLING:
        return trouble.at_s + _SETTLE_S * agents
    return trouble.at_s + trouble.for_s + _SETTLE_S


def _allowed(drawn: Trouble, beside: list[Trouble], agents: int) -> bool:
    if sum(other.at_s + other.for_s > drawn.at_s for other in beside) >= AT_ONCE:
        return False
    subjects = set(_subjects(drawn, agents))
    busy = {subject for other in beside for subject in _subjects(other, agents)}
    if subjects & busy or not drawn.for_s:
        return False
    return len({agent for kind, agent in busy | subjects if kind == "agent"}) < agents or (
        drawn.agent < 0
    )


def _subjects(trouble: Trouble, agents: int) -> Iterator[tuple[str, int]]:
    """What must not have two troubles at once: an agent, etcd's minority, S3."""
    if trouble.kind is Kind.ROLLING:
        yield from (("agent", agent) for agent in range(agents))
    if trouble.agent >= 0:
        yield "agent", trouble.agent
    if trouble.kind in MEMBERS:
        yield "etcd", 0
    if trouble.kind in S3:
        yield "s3", 0
