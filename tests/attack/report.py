"""The table that a run prints.

Pure.
"""

from collections.abc import Sequence
from typing import Final

from tests.attack.harness import Outcome

_HEAD: Final = (
    "attack",
    "requests",
    "memory",
    "stall",
    "healthy p99",
    "before",
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


def _row(outcome: Outcome) -> tuple[str, ...]:
    seen, before = outcome.seen, outcome.baseline
    return (
        outcome.name,
        f"{outcome.sent:,}",
        f"+{outcome.grown_bytes // _MiB:,} MiB",
        f"{outcome.stall_ms:,.0f} ms",
        f"{seen.p99_ms:,.0f} ms" if seen else "",
        f"{before.p99_ms:,.0f} ms" if before else "",
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
