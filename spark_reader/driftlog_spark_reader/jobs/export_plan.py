"""The plan of an export: what it reads, in which units, and where each unit is written.

    TARGET/_driftlog/export.json           the plan; written once, before the first unit
    TARGET/_driftlog/run                   the run that writes: a later one stops it
    TARGET/_driftlog/part/RUN/UNIT/        the unit that is being written
    TARGET/_driftlog/done/UNIT.json        the unit is whole
    TARGET/date=2023-11-14/partition=0/…   a unit of a day
    TARGET/date=2023-11-14/hour=22/…       a unit of an hour

A unit is the records whose timestamp is in one day or hour of UTC.  The plan names offsets, so each
run of the export reads the same records.

Pure.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from driftlog_spark_reader.common.errors import JobError

PLAN_KEY: Final = "_driftlog/export.json"
DONE_PREFIX: Final = "_driftlog/done/"
RUN_KEY: Final = "_driftlog/run"
PART_PREFIX: Final = "_driftlog/part/"
_VERSION: Final = 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Unit(StrEnum):
    """How long the times of one unit are."""

    DAY = "day"
    HOUR = "hour"

    @property
    def ms(self) -> int:
        """Its length."""
        return 86_400_000 if self is Unit.DAY else 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user asks for: the same in each run."""

    location: str
    topic: str
    format: str
    unit: Unit
    since_ms: int | None
    until_ms: int | None
    partitions: tuple[int, ...] | None
    text: bool
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is read; fixed by the first run."""

    request: Request
    topic_id: UUID
    offsets: Mapping[int, tuple[int, int]]
    """By partition, ``[start, end)``."""
    units: Mapping[int, int]
    """Records by unit, which is its number since 1970."""

    def times(self, unit: int) -> tuple[int, int]:
        """The timestamps of a unit, ``[since, until)``."""
        since, until = unit * self.request.unit.ms, (unit + 1) * self.request.unit.ms
        if self.request.since_ms is not None:
            since = max(since, self.request.since_ms)
        if self.request.until_ms is not None:
            until = min(until, self.request.until_ms)
        return since, until

    def folder(self, unit: int) -> str:
        """Where a unit is, below the target."""
        since_ms = unit * self.request.unit.ms
        start = _EPOCH + timedelta(milliseconds=since_ms)
        day = f"date={start:%Y-%m-%d}"
        return day if self.request.unit is Unit.DAY else f"{day}/hour={start:%H}"

    def part(self, unit: int, run: str) -> str:
        """Where a unit is while a run writes it."""
        return f"{PART_PREFIX}{run}/{self.name(unit)}"

    def done_key(self, unit: int) -> str:
        """The file that says that a unit is whole."""
        return f"{DONE_PREFIX}{self.name(unit)}.json"

    def name(self, unit: int) -> str:
        """One word for a unit."""
        return self.folder(unit).replace("date=", "").replace("/hour=", "T")


def encode_plan(plan: Plan) -> bytes:
    """As JSON."""
    document = {
        "version": _VERSION,
        "request": asdict(plan.request),
        "topic_id": str(plan.topic_id),
        "offsets": plan.offsets,
        "units": plan.units,
    }
    return json.dumps(document, indent=2).encode()


def decode_plan(body: bytes) -> Plan | None:
    """Invert `encode_plan`; None: it is not whole, as a run leaves it that is killed meanwhile.

    Raises:
        JobError: a newer driftlog wrote it.
    """
    try:
        document: dict[str, Any] = json.loads(body)
    except ValueError:
        return None
    if document["version"] != _VERSION:
        raise JobError(f"{PLAN_KEY} is of version {document['version']}: upgrade driftlog")
    request = document["request"]
    partitions = request["partitions"]
    return Plan(
        Request(
            **{
                **request,
                "unit": Unit(request["unit"]),
                "partitions": None if partitions is None else tuple(partitions),
            }
        ),
        UUID(document["topic_id"]),
        {int(p): (start, end) for p, (start, end) in document["offsets"].items()},
        {int(unit): records for unit, records in document["units"].items()},
    )


def check_same(asked: Request, planned: Request) -> None:
    """
    Raises:
        JobError: the target is of another export.
    """
    ours, theirs = (json.loads(json.dumps(asdict(each))) for each in (asked, planned))
    if changed := [name for name in ours if ours[name] != theirs[name]]:
        said = ", ".join(f"{name} {theirs[name]!r}, not {ours[name]!r}" for name in changed)
        raise JobError(f"the target is of an export with {said}: give another target")
