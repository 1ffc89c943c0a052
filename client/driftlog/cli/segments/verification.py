"""`driftlog verify`: compares every sealed object with what its manifest says, and only reads.

Exit status 1 means damage; anything that kept the command from looking is 2.

Shell.
"""

import argparse
import asyncio
from typing import TYPE_CHECKING, Any, Final

from driftlog.cli.common.errors import FAILED, OK, USAGE, CommandError
from driftlog.cli.common.output import (
    Progress,
    complain,
    no_extra,
    plural,
    print_json,
    print_table,
    size,
)
from driftlog.cli.common.parsers import Commands, add_command, flatten, partitions, positive
from driftlog.cli.common.topic_names import topic_id_text
from driftlog.cli.segments.bucket_location import EXTRAS, add_location_options, location_of
from driftlog.errors import DriftlogError

if TYPE_CHECKING:
    from driftlog.bucket.verification import Verification
    from driftlog_tiering.verification.findings import PartitionReport

_MIB: Final = 1024 * 1024

_TOPIC_FILE: Final = (
    "an agent writes a new one when it starts; without the metadata store, bring the object back"
)


class NotVerifiedError(CommandError):
    """Nothing is known about the log: exit status 1 would say that it is damaged."""

    status = USAGE


def add_commands(commands: Commands) -> None:
    """Add the commands of this file."""
    verify = add_command(
        commands,
        "verify",
        _verify,
        help="check the sealed objects of topics for damage",
        description="Read the manifests, lists and segments of topics from the bucket, and compare "
        "names, sizes, footers, counts, offsets, the CRC of each row group, and the producer "
        "snapshot; of all topics if none is named.  The command only reads, and needs no agent.  "
        "Exit status 1: damage; 2: wrong use, or the bucket does not answer.",
        examples="  driftlog verify --store s3://bucket/prefix\n"
        "  driftlog verify flights --dir /tmp/log --deep      the DIR of `driftlog dev`\n",
    )
    verify.add_argument("topics", nargs="*", metavar="TOPIC")
    verify.add_argument(
        "-p",
        "--partition",
        action="append",
        type=partitions,
        metavar="N[,N]",
        help="verify only these partitions",
    )
    verify.add_argument(
        "--deep", action="store_true", help="decode every row, too: several times the CPU time"
    )
    verify.add_argument(
        "--max-rate",
        type=positive,
        metavar="MIB",
        help="read at most so many MiB a second (default: no limit)",
    )
    verify.add_argument(
        "--requests",
        type=positive,
        default=16,
        metavar="N",
        help="requests at once; each takes up to 4 MiB of memory (default: 16)",
    )
    add_location_options(verify)


def _verify(options: argparse.Namespace) -> int:
    location = location_of(options)
    progress = Progress()
    try:
        found = _read(options, location, progress)
    except ImportError as error:
        no_extra(error, "`driftlog verify`", EXTRAS)
        return USAGE
    finally:
        progress.clear()
    if options.json:
        print_json(_document(found))
    else:
        _print(found)
        read = found.requests.got_bytes
        complain(
            f"{plural(len(found.reports), 'partition')}, {size(read)} read in "
            f"{progress.seconds:.1f} s ({size(read / progress.seconds)}/s) by "
            f"{_sent(found)}: "
            + (f"{plural(found.damaged, 'damaged range')}" if found.damaged else "no damage")
        )
    return FAILED if found.damaged else OK


def _read(options: argparse.Namespace, location: str, progress: Progress) -> "Verification":
    """Verify.

    Raises:
        ImportError: the extra is not installed.
        NotVerifiedError: the location, a topic or a partition is none, or the store failed.
    """
    from driftlog.bucket.verification import verify_topics  # noqa: PLC0415  # an extra
    from driftlog_tiering.verification.object_reads import ReadLimits  # noqa: PLC0415

    def show(found: "Verification") -> None:
        if progress.due():
            read = found.requests.got_bytes
            progress.show(
                f"{len(found.reports)} of {plural(found.partitions, 'partition')} verified, "
                f"{size(read)} read, {size(read / progress.seconds)}/s, "
                f"{plural(found.damaged, 'damaged range')} …"
            )

    limits = ReadLimits(
        at_once=options.requests,
        bytes_per_s=options.max_rate and options.max_rate * _MIB,
    )
    try:
        return asyncio.run(
            verify_topics(
                location,
                options.topics,
                partitions=set(flatten(options.partition)),
                deep=options.deep,
                limits=limits,
                progressed=show,
            )
        )
    except (ValueError, DriftlogError) as error:
        raise NotVerifiedError(str(error)) from error


def _document(found: "Verification") -> dict[str, Any]:
    return {
        "damaged": found.damaged,
        "read_bytes": found.requests.got_bytes,
        "requests": {kind: count for kind, count in sorted(found.requests.sent.items()) if count},
        "topic_files": [
            {"object": key, "detail": detail, "advice": _TOPIC_FILE}
            for key, detail in found.topic_files.items()
        ],
        "partitions": [_partition(report) for report in found.reports],
    }


def _partition(report: "PartitionReport") -> dict[str, Any]:
    counts = {
        "log_start": report.log_start,
        "sealed_end": report.end,
        "segments": report.segments,
        "undecodable_segments": report.undecodable,
        "lists": report.lists,
        "records": report.records,
        "size_bytes": report.size_bytes,
        "gap_offsets": report.gap_offsets,
    }
    return {
        "topic": report.topic,
        "topic_id": topic_id_text(report.topic_id),
        "partition": report.partition,
        "manifest": report.manifest,
        **(dict.fromkeys(counts) if report.is_unknown else counts),
        "damaged": report.damaged,
        "damage": [
            {
                "kind": one.kind.value,
                "base": one.base,
                "end": one.end,
                "object": one.key,
                "detail": one.detail,
                "advice": one.advice,
            }
            for one in report.damage
        ],
    }


def _print(found: "Verification") -> None:
    if found.reports:
        print_table(
            ("partition", "log start", "sealed end", "segments", "records", "size", "gaps", ""),
            [(report.name, *_counts(report), _verdict(report)) for report in found.reports],
        )
    for report in found.reports:
        for one in report.damage:
            print(f"{report.name}: {one}")
        if report.more_damage:
            print(f"{report.name}: and {plural(report.more_damage, 'damaged range')} more")
    for key, detail in found.topic_files.items():
        print(f"{key}: {detail}")
    for advice in _advice(found):
        print(f"what to do: {advice}")


def _counts(report: "PartitionReport") -> tuple[int | str | None, ...]:
    """The cells; None and ``-``: unknown."""
    if report.is_unknown:
        return None, None, None, None, "-", None
    return (
        report.log_start,
        report.end,
        report.segments,
        report.records,
        size(report.size_bytes),
        report.gap_offsets,
    )


def _advice(found: "Verification") -> list[str]:
    """What to do about the damage: each advice once, with the kinds that it is for."""
    kinds: dict[str, list[str]] = {}
    for report in found.reports:
        for one in report.damage:
            of = kinds.setdefault(one.advice, [])
            if one.kind not in of:
                of.append(one.kind)
    lines = [f"{', '.join(of)}: {advice}" for advice, of in kinds.items()]
    return [*lines, f"topic file: {_TOPIC_FILE}"] if found.topic_files else lines


def _sent(found: "Verification") -> str:
    """``12 GET, 4 LIST``."""
    sent = found.requests.sent
    return ", ".join(f"{count:,} {kind.upper()}" for kind, count in sorted(sent.items()) if count)


def _verdict(report: "PartitionReport") -> str:
    if report.damaged:
        return plural(report.damaged, "damaged range")
    if report.is_deleted:
        return "deleted meanwhile"
    return "right" if report.manifest else "nothing is sealed"
