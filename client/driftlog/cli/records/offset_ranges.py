"""The start and the end of a consumer without a group, in each partition.

Shell.
"""

import argparse
import time
from dataclasses import dataclass

from confluent_kafka import OFFSET_STORED

from driftlog.cli.common.output import complain
from driftlog.cli.common.parsers import flatten
from driftlog.cli.connection.cluster_client import EARLIEST, LATEST, ClusterClient, for_time
from driftlog.cli.records.positions import AtOffset, FromTime, Position, Where


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets ``[start, end)`` of a partition; *end* None: without an end."""

    topic: str
    partition: int
    start: int
    end: int | None

    @property
    def is_empty(self) -> bool:
        """Whether there is no record to wait for."""
        return self.end is not None and self.start >= self.end


def ranges(
    cluster: ClusterClient,
    options: argparse.Namespace,
    names: list[str],
    first: Position | None,
    until_ms: int | None,
) -> list[Range]:
    """The offsets of *first* and *until_ms* in each partition of *names*.

    Raises:
        CommandError: a topic or partition does not exist, or has no leader.
    """
    which = flatten(options.partition) or None
    at = cluster.partitions((name, which) for name in names)
    earliest = cluster.known_offsets(dict.fromkeys(at, EARLIEST))
    latest = cluster.known_offsets(dict.fromkeys(at, LATEST))
    starts = _starts(cluster, at, first, earliest, latest, quiet=options.quiet)
    ends: dict[tuple[str, int], int | None] = dict.fromkeys(at)
    if until_ms is not None:
        found = cluster.known_offsets(dict.fromkeys(at, for_time(until_ms)))
        over = until_ms <= time.time() * 1000
        for tp, offset in found.items():
            # There is no record at or after that time yet, and perhaps never one.
            ends[tp] = offset if offset >= 0 else latest[tp] if over else None
    return [Range(*tp, starts[tp], ends[tp]) for tp in at]


def _starts(
    cluster: ClusterClient,
    at: list[tuple[str, int]],
    first: Position | None,
    earliest: dict[tuple[str, int], int],
    latest: dict[tuple[str, int], int],
    *,
    quiet: bool,
) -> dict[tuple[str, int], int]:
    match first:
        case Where.BEGINNING:
            return earliest
        case Where.STORED:
            return dict.fromkeys(at, OFFSET_STORED)
        case FromTime(timestamp_ms):
            found = cluster.known_offsets(dict.fromkeys(at, for_time(timestamp_ms)))
            return {tp: offset if offset >= 0 else latest[tp] for tp, offset in found.items()}
        case AtOffset(offset) if offset < 0:
            return {tp: max(earliest[tp], latest[tp] + offset) for tp in at}
        case AtOffset(offset):
            starts = {tp: min(max(offset, earliest[tp]), latest[tp]) for tp in at}
            for (topic, partition), start in starts.items():
                if start != offset and not quiet:
                    there = f"{earliest[topic, partition]} to {latest[topic, partition]}"
                    complain(
                        f"{topic} [{partition}] has offsets {there}: beginning at {start}, not at "
                        f"{offset}"
                    )
            return starts
        case _:
            return latest
