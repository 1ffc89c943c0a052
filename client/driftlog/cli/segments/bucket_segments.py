"""`driftlog segments list|describe`: what the manifests in the bucket name, with no agent asked.

Root.
"""

import argparse
import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from driftlog.cli.common.errors import OK, CommandError, UsageError, similar
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
from driftlog.cli.common.parsers import Commands, Parser, add_command, flatten, partitions

STORE_VARIABLE: Final = "DRIFTLOG_STORE"
_AT_ONCE: Final = 16
"""Partitions whose manifests are read at a time."""


def add_commands(segments: Commands) -> None:
    """The commands of this file."""
    listing = add_command(
        segments,
        "list",
        _list,
        help="the sealed segments of a topic",
        description="The sealed segments of a topic, as the newest manifests in the bucket name "
        "them.  No agent is asked.",
        examples="  driftlog segments list flights --store s3://bucket/prefix\n"
        "  driftlog segments list flights --dir /tmp/log      the DIR of `driftlog dev`\n",
    )
    listing.add_argument("topic", metavar="TOPIC")
    listing.add_argument(
        "-p", "--partition", action="append", type=partitions, metavar="N", help="only these"
    )
    _options(listing)
    describe = add_command(
        segments,
        "describe",
        _describe,
        help="how much of each partition is sealed",
        description="How much of each partition is sealed, as the newest manifests in the bucket "
        "say; of all topics where none is named.",
    )
    describe.add_argument("topics", nargs="*", metavar="TOPIC")
    _options(describe)


def _options(parser: Parser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--store",
        metavar="LOCATION",
        help="where the objects are: s3://bucket/prefix or a directory (default: the variable "
        f"{STORE_VARIABLE})",
    )
    where.add_argument(
        "--dir", type=Path, metavar="DIR", help="the agent's directory, with its objects in it"
    )
    parser.add_argument("--json", action="store_true", help="for programs")


def _location(options: argparse.Namespace) -> str:
    location = options.store or (options.dir and str(options.dir / "objects"))
    location = location or os.environ.get(STORE_VARIABLE)
    if not location:
        raise UsageError("where are the objects?  Give --store LOCATION, or --dir DIR of the agent")
    if "://" not in location and not Path(location).is_dir():
        raise CommandError(f"there is no directory {location}")
    return str(location)


def _list(options: argparse.Namespace) -> int:
    try:
        found = asyncio.run(_read(_location(options), [options.topic]))
    except ImportError as error:
        return no_extra(error)
    wanted = set(flatten(options.partition))
    parts = [p for p in found[0]["partitions"] if not wanted or p["partition"] in wanted]
    missing = wanted - {p["partition"] for p in parts}
    if missing:
        raise CommandError(f"{options.topic} has no partition {min(missing)}")
    rows = [{"partition": p["partition"], **s} for p in parts for s in p["segments"]]
    if options.json:
        print_json(rows)
    elif rows:
        print_table(
            ("partition", "base", "end", "records", "size", "from", "to", "object"),
            [
                (
                    row["partition"],
                    row["base"],
                    row["end"],
                    row["records"],
                    size(row["size_bytes"]),
                    _time(row["min_timestamp_ms"]),
                    _time(row["max_timestamp_ms"]),
                    row["key"],
                )
                for row in rows
            ],
        )
    else:
        complain(
            f"nothing of {options.topic} is sealed yet: `driftlog segments seal {options.topic}` "
            f"does it now"
        )
    return OK


def _describe(options: argparse.Namespace) -> int:
    try:
        found = asyncio.run(_read(_location(options), options.topics))
    except ImportError as error:
        return no_extra(error)
    for topic in found:
        for part in topic["partitions"]:
            segments = part.pop("segments")
            part["segments"] = len(segments)
            part["records"] = sum(segment["records"] for segment in segments)
            part["size_bytes"] = sum(segment["size_bytes"] for segment in segments)
    if options.json:
        print_json(found)
        return OK
    for at, topic in enumerate(found):
        if at:
            print()
        parts = topic["partitions"]
        title(
            f"{topic['topic']}  {number(sum(p['records'] for p in parts))} sealed records, "
            f"{size(sum(p['size_bytes'] for p in parts))} in "
            f"{plural(sum(p['segments'] for p in parts), 'segment')}, id {topic['topic_id']}"
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


def _time(timestamp_ms: int) -> str | None:
    if timestamp_ms < 0:
        return None
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


# ── The bucket ──


async def _read(location: str, names: list[str]) -> list[dict[str, Any]]:
    """These topics, or all; each with its partitions and what their manifests name.

    Raises:
        ImportError: the extra is not installed.
        CommandError: a topic is not there, or an object is missing or damaged.
    """
    from driftlog_metadata.stores.errors import CorruptError, StoreError  # noqa: PLC0415  # an extra
    from driftlog_tiering.formats import layout  # noqa: PLC0415
    from driftlog_tiering.stores.locations import open_object_store  # noqa: PLC0415
    from driftlog_tiering.stores.object_store import NotFoundError  # noqa: PLC0415

    try:
        store = open_object_store(location)
    except ValueError as error:
        raise UsageError(str(error)) from error
    progress = Progress()
    try:
        try:
            await store.get(layout.CLUSTER_KEY)
        except NotFoundError as error:
            raise CommandError(
                f"no driftlog bucket at {location}: there is no {layout.CLUSTER_KEY}; the location "
                f"is the one that the agents keep their objects in"
            ) from error
        topics = await _topics(store, location, names)
        found = []
        for topic in topics:
            if progress.due():
                progress.show(f"reading manifests of {topic.name} …")
            gate = asyncio.Semaphore(_AT_ONCE)
            parts = await asyncio.gather(
                *(_partition(store, topic, id_, gate) for id_ in range(topic.partitions))
            )
            found.append(
                {"topic": topic.name, "topic_id": str(topic.topic_id), "partitions": parts}
            )
    except (StoreError, CorruptError) as error:
        raise CommandError(f"{location}: {error}") from error
    else:
        return found
    finally:
        progress.clear()
        await store.close()


async def _topics(store: Any, location: str, names: list[str]) -> list[Any]:
    """The newest version of each live topic."""
    from driftlog_tiering.formats import layout  # noqa: PLC0415
    from driftlog_tiering.formats.bucket_files import decode_topic  # noqa: PLC0415

    there = await _folders(store, layout.TOPICS_PREFIX)
    for name in names:
        if name not in there:
            raise CommandError(f"there is no topic {name!r} at {location}{similar(name, there)}")
    found = []
    for name in names or there:
        live = 0
        for id_ in await _folders(store, layout.topic_name_prefix(name)):
            topic_id = _uuid(id_)
            if topic_id is None:
                continue  # somebody else's folder
            files = layout.topic_file_prefix(name, topic_id)
            keys = [info.key async for page in store.list(files) for info in page.objects]
            versions = [key for key in keys if _is_topic_file(key)]
            if versions and layout.deleted_key(name, topic_id) not in keys:
                found.append(decode_topic(await store.get(max(versions))).topic)
                live += 1
        if names and not live:
            raise CommandError(f"topic {name!r} is deleted, and its objects are going")
    return found


def _uuid(text: str) -> UUID | None:
    try:
        found = UUID(text)
    except ValueError:
        return None
    return found if str(found) == text else None


def _is_topic_file(key: str) -> bool:
    from driftlog_tiering.formats import layout  # noqa: PLC0415

    try:
        layout.parse_topic_key(key)
    except ValueError:
        return False
    return True


async def _folders(store: Any, prefix: str) -> list[str]:
    """What stands between *prefix* and the next slash: a request for each.  An object directly
    under *prefix* is nobody's of ours."""
    found: list[str] = []
    after = ""
    while True:
        keys: list[str] = []
        async for page in store.list(prefix, start_after=after, page_size=1):
            keys = [info.key for info in page.objects]
            break
        if not keys:
            return found
        name, slash, _ = keys[0].removeprefix(prefix).partition("/")
        if slash:
            found.append(name)
        after = f"{prefix}{name}0" if slash else keys[0]  # 0: the character behind the slash


async def _partition(store: Any, topic: Any, id_: int, gate: asyncio.Semaphore) -> dict[str, Any]:
    from driftlog_metadata.schema.model import TopicPartition  # noqa: PLC0415  # an extra
    from driftlog_tiering.formats.manifests import iter_segments, load_newest  # noqa: PLC0415

    tp = TopicPartition(topic.topic_id, id_)
    async with gate:
        manifest = await load_newest(store, topic.name, tp)
        if manifest is None:
            return {
                "partition": id_,
                "log_start": 0,
                "sealed_end": 0,
                "manifest": None,
                "segments": [],
            }
        return {
            "partition": id_,
            "log_start": manifest.log_start,
            "sealed_end": manifest.end,
            "manifest": manifest.key,
            "segments": [
                {
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
                async for segment in iter_segments(store, manifest)
            ],
        }
