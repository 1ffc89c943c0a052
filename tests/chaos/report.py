"""The table that a run prints.

Pure.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from tests.chaos.oracle import Fault, Promise
from tests.chaos.run import Report

_SHOWN: Final = 8
"""Violations of each kind that are printed; story.log has all."""


def table(report: Report) -> str:
    """What a person reads."""
    lines = list(_lines(report))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in lines)


def _lines(report: Report) -> Iterator[tuple[str, str]]:
    verdict = report.verdict
    yield f"seed {report.seed}, {report.seconds:.0f} s of faults", ""
    yield "faults", f"{report.troubles.total()}"
    for kind, count in sorted(report.troubles.items()):
        yield f"  {kind}", f"{count}"
    for fate, count in sorted(report.s3.items()):
        if fate != "passed":
            yield f"  requests to S3: {fate}", f"{count}"
    yield "acknowledged", f"{verdict.acknowledged.total():,}"
    for promise in Promise:
        yield f"  {promise}", f"{verdict.acknowledged[promise]:,}"
    yield "records in the log", f"{verdict.records:,}"
    yield "records shown to consumers", f"{verdict.shown:,}"
    yield "lost", f"{verdict.count(Fault.LOST)}"
    yield "duplicated (idempotent)", f"{verdict.count(Fault.DUPLICATED)}"
    for fault in (Fault.OUT_OF_ORDER, Fault.CHANGED, Fault.NOT_ASCENDING, Fault.GAP, Fault.ALIEN):
        yield f"{fault}", f"{verdict.count(fault)}"
    yield f"{Fault.LOST_ONE}", f"{verdict.count(Fault.LOST_ONE)}"
    yield "acks=1 lost with a disk that was emptied", f"{len(verdict.excused)}"
    if verdict.excused:
        yield "  the oldest of them, when it went", f"{verdict.excused_age_s:.1f} s"
    yield "acks=1 at another offset than was told", f"{verdict.moved}"
    yield "sent again by clients that are not idempotent", f"{verdict.repeated}"
    yield "one in flight, behind later ones at a change of leader", f"{verdict.reordered}"
    yield "delivery errors that users saw", f"{verdict.failed.total()}"
    for error, count in verdict.failed.most_common():
        yield f"  {error}", f"{count}"
    yield f"{Fault.UNANSWERED}", f"{verdict.count(Fault.UNANSWERED)}"
    yield "longest gap", f"{verdict.longest_gap_s:.1f} s, from {verdict.gap_from_s:.1f} s on"
    gap = (
        f"{verdict.longest_partition_gap_s:.1f} s, {verdict.partition_of_gap}, "
        f"from {verdict.partition_gap_from_s:.1f} s on"
    )
    yield "longest gap of a partition", gap
    yield "healed, to an acknowledgement of every partition", f"{report.recovered_s:.1f} s"
    if report.collected_s:
        yield "then, to a bucket of nothing but live data", f"{report.collected_s:.0f} s"
    yield "partitions that went to another agent", f"{report.leader_changes}"
    yield "agents that led partitions at the end", f"{report.leaders}"
    if report.drains_s:
        yield "longest stop", f"{max(report.drains_s):.1f} s"
    yield "starts that were refused", f"{report.refused_starts}"
    yield "errors that agents logged", f"{report.logged.total()}"
    for event, count in report.logged.most_common():
        yield f"  {event}", f"{count}"
    for failure in report.failures:
        yield "FAILED", failure
    for fault in Fault:
        broken = (violation for violation in verdict.violations if violation.fault is fault)
        for violation in islice(broken, _SHOWN):
            yield "BROKEN", f"{violation}"
        if verdict.count(fault) > _SHOWN:
            yield "BROKEN", f"{fault}: {verdict.count(fault) - _SHOWN} more are in story.log"
