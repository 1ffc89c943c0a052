"""The checkpoint of a stream of Spark as files: which offsets its next batch starts at.

    offsets/N      the offsets that end batch N, a line for each source; written before it runs
    commits/N      batch N is in the sink
    sources/S/0    the offsets that source S started at

    N is committed                 batch N+1 starts where offsets/N ends
    N is not, and N > 0            batch N runs again, between offsets/N-1 and offsets/N
    N is not, and N = 0            batch 0 runs again, between sources/S/0 and offsets/0
    there is no offsets/N          batch 0 is planned, from sources/S/0 on

Source: org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqLog; org.apache.spark.sql
.kafka010.KafkaSourceInitialOffsetWriter.

Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from driftlog_spark_reader.common.errors import JobError
from driftlog_spark_reader.options.bounds import NamedPartition, parse_offsets
from driftlog_spark_reader.source.stream_offsets import ByPartition

NO_OFFSET: Final = "-"
"""Of a source that has no offset yet."""

OFFSET_LINES: Final = 2
"""Lines of a file of `offsets` before that of the first source: version and metadata."""


@dataclass(frozen=True, slots=True)
class Restart:
    """The batch that a query runs first on a checkpoint, and what it needs of the log."""

    batch: int
    before: str | None
    """The file of `offsets` with the starts; None: they are in `sources`."""
    planned: str | None
    """The file of `offsets` with the ends; None: they are not planned yet."""


@dataclass(frozen=True, slots=True)
class SourceMove:
    """Where one source goes on."""

    source: int
    start: ByPartition
    end: ByPartition | None
    """Of the batch that runs again; None: the next batch is not planned yet."""
    needs_start: bool
    """The query must be given ``start`` as its option startingOffsets: offsets that a source
    started at are known to that kind of source only."""


def restart(offsets: Collection[str], commits: Collection[str]) -> Restart:
    """What the names in the folders `offsets` and `commits` say.

    Raises:
        JobError: files are missing.
    """
    planned = sorted(int(name) for name in offsets if name.isdecimal())
    committed = max((int(name) for name in commits if name.isdecimal()), default=-1)
    if not planned:
        if committed >= 0:
            raise JobError(f"the checkpoint is damaged: it has commits/{committed} and no offsets")
        return Restart(0, None, None)
    newest = planned[-1]
    if committed > newest:
        raise JobError(
            f"the checkpoint is damaged: it has commits/{committed}, and offsets/{committed} is "
            "missing"
        )
    if committed == newest:
        return Restart(newest + 1, str(newest), None)
    if not newest:
        return Restart(0, None, "0")
    if newest - 1 not in planned:
        raise JobError(
            f"the checkpoint is damaged: batch {newest} is not committed, and offsets/{newest - 1},"
            " where it starts, is missing"
        )
    return Restart(newest, str(newest - 1), str(newest))


def parse_offset_log(name: str, body: bytes) -> list[str | None]:
    """The JSON of each source in a file of `offsets`; None: it has no offset yet.

    Raises:
        JobError: the file has another form.
    """
    lines = body.decode(errors="replace").splitlines()
    version = lines[0].strip() if lines else ""
    if version != "v1":
        raise JobError(
            f"{name} is of version {version!r}, and v1 is known; start the query once with "
            "spark.sql.streaming.offsetLog.formatVersion=1, or upgrade driftlog"
            if version.startswith("v")
            else f"{name} is no offset log of Spark: its first line is {version!r}, not 'v1'"
        )
    if len(lines) <= OFFSET_LINES:
        raise JobError(f"{name} is cut off: it has no offsets")
    return [None if line.strip() == NO_OFFSET else line for line in lines[OFFSET_LINES:]]


def parse_initial_offsets(name: str, body: bytes) -> dict[NamedPartition, int]:
    """The offsets that Spark's Kafka source started at.

    Raises:
        JobError: the file has another form.
    """
    text = body.decode(errors="replace").lstrip("\0")
    first, newline, rest = text.partition("\n")
    if first.startswith("v"):
        if first.strip() != "v1" or not newline:
            raise JobError(f"{name} is of version {first.strip()!r}, and v1 is known")
        text = rest
    return kafka_offsets(name, text)


def kafka_offsets(name: str, text: str) -> dict[NamedPartition, int]:
    """Offsets in the form of Spark's Kafka source.

    Raises:
        JobError: they have another form, or are not resolved.
    """
    try:
        found = parse_offsets(name, text)
    except ValueError as error:
        raise JobError(f"{name} is not of Spark's Kafka source: {error}") from error
    if unresolved := [named for named, offset in found.items() if offset < 0]:
        raise JobError(f"{name} has no offset of {unresolved[0]}")
    return found


def chosen_sources(count: int, wanted: Collection[int] | None) -> list[int]:
    """The sources that move: all, or *wanted*.

    Raises:
        JobError: there is no such source.
    """
    if wanted is None:
        return list(range(count))
    if outside := [source for source in wanted if not 0 <= source < count]:
        raise JobError(f"the query has sources 0 to {count - 1}, not {outside[0]}")
    return sorted(set(wanted))


def uncovered(
    moves: Sequence[SourceMove],
    logs: Mapping[NamedPartition, tuple[int, int]],
    *,
    include_tail: bool,
) -> list[str]:
    """What of the checkpoint is not in the log at the location, a sentence each.

    Args:
        logs: log start and sealed end by partition.
        include_tail: the query reads what is not sealed, too.
    """
    found = []
    for move in moves:
        for named, start in sorted(move.start.items()):
            if named not in logs:
                found.append(f"{named}: the topic has no such partition at the location")
                continue
            log_start, sealed_end = logs[named]
            end = max(start, (move.end or {}).get(named, start))
            if start < log_start:
                found.append(
                    f"{named}: the query goes on at {start}, and offsets {start} to "
                    f"{log_start - 1} are gone: retention or DeleteRecords removed them"
                )
            if end > sealed_end and not include_tail:
                found.append(
                    f"{named}: the query has read to {end}, and offsets to {sealed_end} are "
                    f"sealed: run `driftlog segments seal {named.topic}`, or give the query the "
                    "option includeTail and say so with --include-tail"
                )
        found += [
            f"{named}: the topic has no such partition at the location"
            for named in sorted((move.end or {}).keys() - move.start.keys() - logs.keys())
        ]
    return found
