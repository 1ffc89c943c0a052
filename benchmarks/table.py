"""One table for all measurements.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run of one measure against one broker; None where it was not measured."""

    value: float
    cpu_seconds_per_gib: float | None = None
    peak_rss_mib: float | None = None
    written_per_byte: float | None = None


def medians(samples: Sequence[Sample]) -> Sample | None:
    """The median of each field by itself; None without samples."""
    if not samples:
        return None

    def middle(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return median(known) if known else None

    return Sample(
        value=median(sample.value for sample in samples),
        cpu_seconds_per_gib=middle([sample.cpu_seconds_per_gib for sample in samples]),
        peak_rss_mib=middle([sample.peak_rss_mib for sample in samples]),
        written_per_byte=middle([sample.written_per_byte for sample in samples]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measurement, its goal, and whether it reached the goal (None: not known)."""

    measure: str
    unit: str
    ours: Sample | None
    kafka: Sample | None
    goal: str
    reached: bool | None
    note: str = ""


def ratio(ours: Sample | None, other: Sample | None) -> float | None:
    return ours.value / other.value if ours and other and other.value else None


def at_least(ours: Sample | None, factor: float, other: Sample | None) -> bool | None:
    """Whether *ours* reaches *factor* times *other*."""
    return None if ours is None or other is None else ours.value >= factor * other.value


def cpu_at_most(ours: Sample | None, factor: float, other: Sample | None) -> bool | None:
    if ours is None or other is None:
        return None
    if ours.cpu_seconds_per_gib is None or other.cpu_seconds_per_gib is None:
        return None
    return ours.cpu_seconds_per_gib <= factor * other.cpu_seconds_per_gib


def both(*facts: bool | None) -> bool | None:
    """False if one is false, None if one is unknown, else true."""
    if any(fact is False for fact in facts):
        return False
    return None if any(fact is None for fact in facts) else True


_HEADINGS = (
    "measure", "unit", "ours", "Kafka", "ratio", "CPU s/GiB", "Kafka's", "RSS MiB", "Kafka's",
    "goal", "reached", "note",
)  # fmt: skip


def render(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, padded so that it also reads as text."""
    cells = [_HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADINGS))]

    def line(texts: Sequence[str]) -> str:
        padded = (text.ljust(width) for text, width in zip(texts, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return "\n".join([line(_HEADINGS), rule, *(line(texts) for texts in cells[1:])])


def _cells(row: Row) -> tuple[str, ...]:
    reached = {True: "yes", False: "no", None: "?"}[row.reached]
    ours, kafka = row.ours, row.kafka
    return (
        row.measure,
        row.unit,
        _number(ours.value if ours else None),
        _number(kafka.value if kafka else None),
        _number(ratio(ours, kafka)),
        _number(ours.cpu_seconds_per_gib if ours else None),
        _number(kafka.cpu_seconds_per_gib if kafka else None),
        _number(ours.peak_rss_mib if ours else None),
        _number(kafka.peak_rss_mib if kafka else None),
        row.goal,
        reached if row.goal else "",
        row.note,
    )


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
