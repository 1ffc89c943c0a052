"""`driftlog segments list|describe`: the segments that the bucket's manifests name, without agents.

Shell.
"""

import argparse
import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from driftlog.cli.common.errors import OK, CommandError, UsageError
from driftlog.cli.common.output import (
    Progress,
    complain,
    no_extra,
    number,
    plural,
    print_json,
    print_table,
    size,
    title,
)
from driftlog.cli.common.parsers import Commands, add_command, flatten, partitions
from driftlog.cli.common.topic_names import topic_id_text
from driftlog.cli.segments.bucket_location import EXTRAS, add_location_options, location_of
from driftlog.errors import DriftlogError

if TYPE_CHECKING:
    from driftlog.bucket.sealed_topics import SealedPartition, SealedTopic
    from driftlog_tiering.formats.manifest import SegmentRef


def add_commands(segments: Commands) -> None:
    """Add the commands of this file."""
    listing = add_command(
        segments,
        "list",
        _list,
        help="list the segments of a topic",
        description="List the segments of a topic, as the newest manifest of each partition in the "
        "bucket names them.  The command reads the bucket and needs no agent.",
        examples="  driftlog segments list flights --store s3://bucket/prefix\n"
        "  driftlog segments list flights --dir /tmp/log      the DIR of `driftlog dev`\n"
        "  driftlog segments list flights --paths             for other readers of Parquet\n",
    )
    listing.add_argument("topic", metavar="TOPIC")
    listing.add_argument(
        "-p",
        "--partition",
        action="append",
        type=partitions,
        metavar="N[,N]",
        help="list only these partitions",
    )
    listing.add_argument(
        "--paths",
        action="store_true",
        help="print the full location of each file, one a line; with --json also the log start of "
        "each partition: records with lower offsets are deleted",
    )
    add_location_options(listing)
    describe = add_command(
        segments,
        "describe",
        _describe,
        help="show how much of each partition is sealed",
        description="Show how much of each partition is sealed, as the newest manifests in the "
        "bucket say; of all topics if none is named.",
    )
    describe.add_argument("topics", nargs="*", metavar="TOPIC")
    add_location_options(describe)


def _read(location: str, names: list[str]) -> "list[SealedTopic]":
    """The topics of *names*, or all if it is empty.

    Raises:
        ImportError: the extra is not installed.
        UsageError: *location* is no location.
        CommandError: a topic does not exist, or an object is missing or damaged.
    """
    from driftlog.bucket.sealed_topics import read_topics  # noqa: PLC0415  # an extra

    progress = Progress()

    def show(topic: str) -> None:
        if progress.due():
            progress.show(f"reading manifests of {topic} …")

    try:
        return asyncio.run(read_topics(location, names, show))
    except ValueError as error:
        raise UsageError(str(error)) from error
    except DriftlogError as error:
        raise CommandError(str(error)) from error
    finally:
        progress.clear()


# ── List ──


def _list(options: argparse.Namespace) -> int:
    location = location_of(options)
    try:
        (topic,) = _read(location, [options.topic])
    except ImportError as error:
        return no_extra(error, "`driftlog segments list`", EXTRAS)
    wanted = set(flatten(options.partition))
    parts = [p for p in topic.partitions if not wanted or p.partition in wanted]
    missing = wanted - {p.partition for p in parts}
    if missing:
        raise CommandError(f"{options.topic} has no partition {min(missing)}")
    if options.paths:
        _print_paths(location, parts, json=options.json)
    elif options.json:
        print_json([_segment(p, s) for p in parts for s in p.segments])
    elif any(p.segments for p in parts):
        print_table(
            ("partition", "base", "end", "records", "size", "from", "to", "object"),
            [
                (
                    part.partition,
                    segment.base,
                    segment.end,
                    segment.records,
                    size(segment.size_bytes),
                    _time(segment.min_timestamp_ms),
                    _time(segment.max_timestamp_ms),
                    segment.key,
                )
                for part in parts
                for segment in part.segments
            ],
        )
    if not any(p.segments for p in parts):
        complain(
            f"{options.topic} has no sealed records above its log start"
            if any(p.manifest is not None for p in parts)
            else f"nothing of {options.topic} is sealed yet: `driftlog segments seal "
            f"{options.topic}` seals it now"
        )
    return OK


def _segment(part: "SealedPartition", segment: "SegmentRef") -> dict[str, Any]:
    return {
        "partition": part.partition,
        "base": segment.base,
        "end": segment.end,
        "records": segment.records,
        "size_bytes": segment.size_bytes,
        "raw_bytes": segment.raw_bytes,
        "min_timestamp_ms": segment.min_timestamp_ms,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "kind": segment.kind.value,
        "codec": segment.codec,
        "key": segment.key,
    }


def _print_paths(location: str, parts: "list[SealedPartition]", *, json: bool) -> None:
    from driftlog.bucket.sealed_topics import full_location  # noqa: PLC0415  # an extra

    paths = {
        part.partition: [full_location(location, segment.key) for segment in part.segments]
        for part in parts
    }
    if json:
        print_json(
            [
                {
                    "partition": part.partition,
                    "log_start": part.log_start,
                    "sealed_end": part.sealed_end,
                    "manifest": part.manifest and full_location(location, part.manifest),
                    "paths": paths[part.partition],
                }
                for part in parts
            ]
        )
    else:
        for found in paths.values():
            for path in found:
                print(path)
    for part in parts:
        if part.segments and part.segments[0].base < part.log_start:
            complain(
                f"partition {part.partition} begins at offset {part.log_start}: its first "
                "file has deleted records, with lower offsets; leave them out"
            )
        raw = sum(segment.kind != "parquet" for segment in part.segments)
        if raw:
            complain(
                f"partition {part.partition}: {plural(raw, 'file')} named *.raw are no Parquet: "
                f"their batches could not be decoded"
            )


def _time(timestamp_ms: int) -> str | None:
    if timestamp_ms < 0:
        return None
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


# ── Describe ──


def _describe(options: argparse.Namespace) -> int:
    try:
        topics = _read(location_of(options), options.topics)
    except ImportError as error:
        return no_extra(error, "`driftlog segments describe`", EXTRAS)
    found: list[dict[str, Any]] = [
        {
            "topic": topic.name,
            "topic_id": topic_id_text(topic.topic_id),
            "partitions": [
                {
                    "partition": part.partition,
                    "log_start": part.log_start,
                    "sealed_end": part.sealed_end,
                    "manifest": part.manifest,
                    "segments": len(part.segments),
                    "records": sum(segment.records for segment in part.segments),
                    "size_bytes": sum(segment.size_bytes for segment in part.segments),
                }
                for part in topic.partitions
            ],
        }
        for topic in topics
    ]
    if options.json:
        print_json(found)
        return OK
    for at, described in enumerate(found):
        if at:
            print()
        parts = described["partitions"]
        title(
            f"{described['topic']}  {number(sum(p['records'] for p in parts))} sealed records, "
            f"{size(sum(p['size_bytes'] for p in parts))} in "
            f"{plural(sum(p['segments'] for p in parts), 'segment')}, id {described['topic_id']}"
        )
        print_table(
            ("partition", "log start", "sealed end", "segments", "records", "size", "manifest"),
            [
                (
                    p["partition"],
                    p["log_start"],
                    p["sealed_end"],
                    p["segments"],
                    p["records"],
                    size(p["size_bytes"]),
                    p["manifest"],
                )
                for p in parts
            ],
        )
    return OK
