"""The table that a run prints.

Pure.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tests.attack.harness import Outcome
from tests.attack.healthy import Seen

_HEAD: Final = (
    "attack",
    "requests",
    "memory",
    "stall",
    "healthy p99",
    "before",
    "beside legal",
    "errors",
    "survived",
    "verdict",
)
_MiB: Final = 1 << 20


def table(outcomes: Sequence[Outcome]) -> str:
    """What a person reads: a line for each attack, then why those failed that did."""
    rows = [_HEAD, *map(_row, outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = [_line(row, widths) for row in rows]
    for outcome in outcomes:
        lines += [f"FAILED {outcome.name}: {reason}" for reason in outcome.failures]
    return "\n".join(lines)


def merged(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """One for each attack: the sum of its requests and errors, and the worst of everything else."""
    by_name: dict[str, Outcome] = {}
    for outcome in outcomes:
        known = by_name.setdefault(outcome.name, outcome)
        if known is not outcome:
            by_name[outcome.name] = _both(known, outcome)
    return list(by_name.values())


def _both(one: Outcome, other: Outcome) -> Outcome:
    return replace(
        one,
        sent=one.sent + other.sent,
        grown_bytes=max(one.grown_bytes, other.grown_bytes),
        peak_bytes=max(one.peak_bytes, other.peak_bytes),
        stall_ms=max(one.stall_ms, other.stall_ms),
        baseline=_worse(one.baseline, other.baseline),
        legal=_worse(one.legal, other.legal),
        seen=_worse(one.seen, other.seen),
        survived=one.survived and other.survived,
        failures=[*one.failures, *other.failures],
        impossible=one.impossible or other.impossible,
        seconds=one.seconds + other.seconds,
    )


def _worse(one: Seen | None, other: Seen | None) -> Seen | None:
    if one is None or other is None:
        return one or other
    worse = max(one, other, key=lambda seen: seen.p99_ms)
    return replace(worse, errors=one.errors + other.errors)


def _row(outcome: Outcome) -> tuple[str, ...]:
    seen, before, legal = outcome.seen, outcome.baseline, outcome.legal
    return (
        outcome.name,
        f"{outcome.sent:,}",
        f"+{outcome.grown_bytes // _MiB:,} MiB",
        f"{outcome.stall_ms:,.0f} ms",
        f"{seen.p99_ms:,.0f} ms" if seen else "",
        f"{before.p99_ms:,.0f} ms" if before else "",
        f"{legal.p99_ms:,.0f} ms" if legal else "",
        f"{seen.errors}" if seen else "",
        "yes" if outcome.survived else "NO",
        _verdict(outcome),
    )


def _verdict(outcome: Outcome) -> str:
    if outcome.impossible:
        return f"not made: {outcome.impossible}"
    return "ok" if outcome.ok else "FAILED"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [row[0].ljust(widths[0])]
    cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return "  ".join(cells).rstrip()
