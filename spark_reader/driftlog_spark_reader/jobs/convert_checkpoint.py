"""A checkpoint of Spark's Kafka source becomes one of the format driftlog: `convert_checkpoint`.

    checkpoint ──▶ read its last offsets ──▶ inside the log? ──▶ copy to TARGET.part ──▶ TARGET

The offsets of both sources have one form, so the files are copied as they are, with those of state
stores and other sources.  With a location, the newest offsets get the ids of their topics and the
sealed ends: a topic that is made again before the next batch is known.  The original is never
changed: the old query can go on with it.

Root.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from driftlog_spark_reader.bucket.hadoop_files import HadoopFiles
from driftlog_spark_reader.bucket.hadoop_folders import HadoopFolders
from driftlog_spark_reader.common.errors import JobError
from driftlog_spark_reader.jobs.checkpoint import (
    NO_OFFSET,
    OFFSET_LINES,
    Restart,
    SourceMove,
    chosen_sources,
    kafka_offsets,
    parse_initial_offsets,
    parse_offset_log,
    restart,
    uncovered,
)
from driftlog_spark_reader.options.arguments import batch_options
from driftlog_spark_reader.options.bounds import NamedPartition, offsets_json
from driftlog_spark_reader.options.resolution import LogEnds
from driftlog_spark_reader.query.ranges import THREADS, PartitionState, read_states
from driftlog_spark_reader.source.stream_offsets import ByPartition
from driftlog_spark_reader.source.stream_position import Position, encode, sealed_behind

_PART = ".part"


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was copied, and where the query goes on."""

    source: str
    target: str
    restart: Restart
    moves: tuple[SourceMove, ...]
    files: int
    size_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "source": self.source,
            "target": self.target,
            "files": self.files,
            "bytes": self.size_bytes,
            "next_batch": self.restart.batch,
            "runs_again": self.restart.planned is not None,
            "sources": [
                {
                    "source": move.source,
                    "next_offsets": offsets_json(move.start),
                    "batch_end": None if move.end is None else offsets_json(move.end),
                    "starting_offsets": starting_offsets(move),
                }
                for move in self.moves
            ],
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"copied {self.files:,} files, {self.size_bytes:,} bytes, to {self.target}"
        again = ", which runs again" if self.restart.planned is not None else ""
        yield f"the query goes on with batch {self.restart.batch}{again}"
        for move in self.moves:
            for topic, offsets in offsets_json(move.start).items():
                at = ", ".join(
                    f"{partition} at {offset:,}" for partition, offset in offsets.items()
                )
                yield f"source {move.source}, topic {topic}: partition {at}"
            if (wanted := starting_offsets(move)) is not None:
                yield (
                    f"source {move.source}: no batch is committed; give the query the option "
                    f"startingOffsets with exactly {wanted}"
                )


def starting_offsets(move: SourceMove) -> str | None:
    """The option that the query needs beside the checkpoint; None: it needs none."""
    return json.dumps(offsets_json(move.start)) if move.needs_start else None


def convert_checkpoint(
    spark: SparkSession,
    source: str,
    target: str,
    *,
    location: str | None = None,
    sources: Collection[int] | None = None,
    include_tail: bool = False,
) -> Conversion:
    """Copy the checkpoint *source* to *target*, for the same query with the format driftlog.

    The query is stopped before.  Where a batch was planned and is not committed, it runs again
    with the same id and the same records.

    Args:
        spark: a classic session; its Hadoop settings reach both, and *location*.
        source: the query's ``checkpointLocation``.
        target: a new one.
        location: of the log; the offsets are checked against it, and get the ids of its topics.
        sources: those that move, by their number in the query, from 0 on; None: all.
        include_tail: the query will have the option includeTail: offsets that are not sealed yet
            are no fault.

    Raises:
        JobError: *source* is no such checkpoint, *target* exists, the query still runs, or its
            offsets are not in the log.
        StorageError: a file cannot be read or written.
        ReadTopicError: the topics cannot be read at *location*.
    """
    old, new = HadoopFolders(spark, source), HadoopFolders(spark, target)
    part = f"{new.root}{_PART}"
    if new.root == old.root or new.root.startswith(f"{old.root}/"):
        raise JobError(f"{target} is in the checkpoint: give a target outside of it")
    if new.exists():
        raise JobError(f"{target} exists: give a target that does not, or delete it")
    checkpoint = old.files
    before = _state(checkpoint)
    if "metadata" not in checkpoint.names(""):
        raise JobError(f"{source} is no checkpoint of a stream: it has no file `metadata`")
    found = restart(*before)
    moves = _moves(checkpoint, found, sources)
    states: Mapping[NamedPartition, PartitionState] = {}
    if location is not None:
        states = _checked(spark, location, moves, include_tail=include_tail)

    staged = HadoopFolders(spark, part)
    if others := sorted(set(staged.files.names("")) - set(checkpoint.names(""))):
        raise JobError(f"{part} has other files ({others[0]}): delete it, or give another target")
    staged.delete("")  # of a run that died
    staged.copy_from(old, "")
    files, size_bytes = staged.size()
    if _state(checkpoint) != before or (files, size_bytes) != old.size():
        staged.delete("")
        raise JobError(
            f"{source} changed while it was copied: stop the query, and convert its checkpoint then"
        )
    for batch in (found.before, found.planned):
        if batch is not None and states:
            _write_positions(staged, f"offsets/{batch}", [move.source for move in moves], states)
    new.rename_here(staged)
    return Conversion(old.root, new.root, found, tuple(moves), files, size_bytes)


def _state(checkpoint: HadoopFiles) -> tuple[list[str], list[str]]:
    return sorted(checkpoint.names("offsets")), sorted(checkpoint.names("commits"))


def _moves(
    checkpoint: HadoopFiles, found: Restart, wanted: Collection[int] | None
) -> list[SourceMove]:
    before = _offset_log(checkpoint, found.before)
    planned = _offset_log(checkpoint, found.planned)
    known = [name for name in checkpoint.names("sources") if name.isdecimal()]
    count = len(before or planned or known)
    if not count:
        raise JobError(f"{checkpoint.root} has no offsets: start the query anew instead")
    moves = []
    for source in chosen_sources(count, wanted):
        text = before[source] if before else None
        end = planned[source] if planned else None
        hint = _hint(count)
        moves.append(
            SourceMove(
                source,
                _initial(checkpoint, source, hint)
                if text is None
                else _kafka(f"source {source} in offsets/{found.before}", text, hint),
                None
                if end is None
                else _kafka(f"source {source} in offsets/{found.planned}", end, hint),
                needs_start=text is None,
            )
        )
    return moves


def _hint(count: int) -> str:
    return (
        "; if other sources of the query are Kafka's, name them with --source" if count > 1 else ""
    )


def _kafka(name: str, text: str, hint: str) -> ByPartition:
    try:
        return kafka_offsets(name, text)
    except JobError as error:
        raise JobError(f"{error}{hint}") from error


def _initial(checkpoint: HadoopFiles, source: int, hint: str) -> ByPartition:
    name = f"sources/{source}/0"
    body = checkpoint.read(name)
    if body is None:
        raise JobError(
            f"{name} is missing, so source {source} is not Spark's Kafka source, or it has no "
            f"offsets yet{hint}"
        )
    try:
        return parse_initial_offsets(name, body)
    except JobError as error:
        raise JobError(f"{error}{hint}") from error


def _offset_log(checkpoint: HadoopFiles, batch: str | None) -> list[str | None] | None:
    if batch is None:
        return None
    name = f"offsets/{batch}"
    body = checkpoint.read(name)
    if body is None:
        raise JobError(f"{checkpoint.path(name)} is missing")
    return parse_offset_log(name, body)


def _write_positions(
    staged: HadoopFolders,
    name: str,
    sources: Collection[int],
    states: Mapping[NamedPartition, PartitionState],
) -> None:
    """Give the offsets of these sources what a stream of the format logs beside them."""
    body = staged.files.read(name)
    assert body is not None
    lines = body.decode(errors="surrogateescape").split("\n")
    sealed = {named: state.manifest.end for named, state in states.items()}
    ids = {named.topic: str(state.topic.topic_id) for named, state in states.items()}
    for source in sources:
        text = lines[OFFSET_LINES + source]
        if text.strip() != NO_OFFSET:
            offsets = kafka_offsets(name, text)
            # Kafka's source has read these offsets, or seen that the log ends there: also those
            # that are not sealed.
            read = {named: LogEnds(0, offset) for named, offset in offsets.items()}
            behind = sealed_behind(offsets, sealed, read, Position({}))
            lines[OFFSET_LINES + source] = json.dumps(encode(Position(offsets, ids, sealed=behind)))
    staged.write(name, "\n".join(lines).encode(errors="surrogateescape"))


def _checked(
    spark: SparkSession, location: str, moves: list[SourceMove], *, include_tail: bool
) -> dict[NamedPartition, PartitionState]:
    """The partitions, once their logs are known to have the offsets."""
    topics = sorted({named.topic for move in moves for named in {**move.start, **(move.end or {})}})
    if not topics:
        return {}
    options, _ = batch_options(location, topics)
    with (
        closing(HadoopFiles(spark, location)) as files,
        ThreadPoolExecutor(THREADS, thread_name_prefix="manifests") as pool,
    ):
        states = read_states(files, options, pool)
    logs: dict[NamedPartition, tuple[int, int]] = {
        named: (state.log.start, state.log.end) for named, state in states.items()
    }
    if faults := uncovered(moves, logs, include_tail=include_tail):
        raise JobError(f"nothing is converted: {'; '.join(faults)}")
    return states
