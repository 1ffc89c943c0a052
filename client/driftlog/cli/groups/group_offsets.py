"""`driftlog groups reset-offsets|delete-offsets`: where an idle group continues.

    which groups ──▶ are they idle? ──▶ which partitions ──▶ the new offset of each ──▶ --execute

Shell.
"""

import argparse
import csv
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)

from driftlog.cli.common.errors import FAILED, OK, CommandError, UsageError
from driftlog.cli.common.output import complain, print_json, print_table
from driftlog.cli.common.parsers import At, Commands, Parser, add_command, moment, topic_partitions
from driftlog.cli.common.times import parse_duration
from driftlog.cli.connection.cluster_client import (
    EARLIEST,
    LATEST,
    ClusterClient,
    any_broker,
    for_time,
)
from driftlog.cli.connection.connection import add_connection_options, write_failure
from driftlog.cli.connection.wire import Wire
from driftlog.cli.groups.group_descriptions import (
    add_group_options,
    busy,
    committed,
    describe,
    existing,
    group_names,
    listings,
)
from driftlog.common.similar_names import similar

_IDLE: Final = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)


def add_commands(commands: Commands) -> None:
    """Add the commands of this file."""
    reset = add_command(
        commands,
        "reset-offsets",
        _reset,
        help="move the committed offsets of groups without members",
        description="Move the committed offsets of groups without members.  Without --execute the "
        "command only shows the new offsets.",
        examples="  driftlog groups reset-offsets billing --topic flights --to-earliest\n"
        "  driftlog groups reset-offsets billing --all-topics --to-datetime "
        "2026-11-22T00:00:00 --execute\n"
        "  driftlog groups reset-offsets billing --topic flights:0,2 --shift-by -100 --execute\n"
        "  driftlog groups reset-offsets billing --all-topics --to-current --export > saved.csv\n"
        "  driftlog groups reset-offsets billing --from-file saved.csv --execute\n",
    )
    add_group_options(reset)
    _topic_options(reset)
    to = reset.add_argument_group("where to").add_mutually_exclusive_group(required=True)
    to.add_argument("--to-earliest", action="store_true", help="move to the first record")
    to.add_argument(
        "--to-latest", action="store_true", help="move to the end, behind the last record"
    )
    to.add_argument("--to-current", action="store_true", help="keep the committed offset")
    to.add_argument("--to-offset", type=_offset, metavar="N", help="move to offset N")
    to.add_argument(
        "--shift-by", type=int, metavar="N", help="move by N offsets, back if N is negative: -100"
    )
    to.add_argument(
        "--to-datetime",
        type=moment,
        metavar="TIME",
        help="move to the first record that is not older than TIME: 2026-11-22T01:02:03, in UTC "
        "unless it ends with an offset",
    )
    to.add_argument(
        "--by-duration",
        type=_duration,
        metavar="DURATION",
        help="move to the first record of the last DURATION: PT2H, P1D",
    )
    to.add_argument(
        "--from-file",
        type=Path,
        metavar="FILE",
        help="move to the offsets of a CSV file of --export; -: standard input",
    )
    does = reset.add_mutually_exclusive_group()
    does.add_argument("--dry-run", action="store_true", help="only show the new offsets (default)")
    does.add_argument("--execute", action="store_true", help="commit the new offsets")
    shown = reset.add_mutually_exclusive_group()
    shown.add_argument("--export", action="store_true", help="print CSV, for --from-file")
    shown.add_argument("--json", action="store_true", help="print JSON")
    add_connection_options(reset)

    delete = add_command(
        commands,
        "delete-offsets",
        _delete,
        help="delete the committed offsets of topics that a group does not read",
    )
    add_group_options(delete)
    _topic_options(delete)
    add_connection_options(delete)


def _topic_options(parser: Parser) -> None:
    parser.add_argument(
        "-t",
        "--topic",
        action="append",
        type=topic_partitions,
        metavar="TOPIC[:N,…]",
        help="topic, or some of its partitions; may be repeated",
    )
    parser.add_argument(
        "--all-topics", action="store_true", help="all topics with committed offsets of the group"
    )


def _offset(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no offset: 0 or more")
    return int(text)


def _duration(text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


# ── Moving ──


def _reset(options: argparse.Namespace) -> int:
    names = group_names(options)
    if options.from_file is None and not (options.topic or options.all_topics):
        raise UsageError("no topic is named: give --topic TOPIC or --all-topics")
    rows = None if options.from_file is None else _read_file(options.from_file, names)
    if rows is not None and any(name for name, _, _ in rows):
        names = names or list(dict.fromkeys(name for name, _, _ in rows if name))
    cluster = ClusterClient(options)
    if options.all_groups:
        names = [str(group.group_id) for group in listings(cluster)]
    if not names:
        raise UsageError(
            "no group is named: give `driftlog groups reset-offsets GROUP`, or --all-groups"
        )
    # A group that does not exist yet may get offsets to begin at.
    described = describe(cluster, names)
    for group in described.values():
        if group.state not in _IDLE:
            raise CommandError(busy(group))
    _say_new_ones(cluster, [n for n, g in described.items() if g.state is ConsumerGroupState.DEAD])
    moves = []
    for name, current in committed(cluster, names).items():
        if rows is None:
            moved = _new_offsets(cluster, options, _wanted(cluster, options, current), current)
        else:
            wanted = {at: offset for of, at, offset in rows if of in (None, name)}
            moved = _within(cluster, wanted)
        moves += [(name, at, current.get(at), offset) for at, offset in sorted(moved.items())]
    status = _execute(cluster, moves) if options.execute else OK
    _print(options, moves, several=len(names) > 1)
    if not options.execute and not options.export:
        complain("nothing is changed yet: --execute commits these offsets")
    return status


def _say_new_ones(cluster: ClusterClient, dead: list[str]) -> None:
    """Name the groups that will be created: a typo looks like a new group."""
    there = [str(group.group_id) for group in listings(cluster)] if dead else []
    for name in dead:
        if name not in there:
            complain(
                f"group {name!r} does not exist yet: --execute creates it{similar(name, there)}"
            )


def _wanted(
    cluster: ClusterClient, options: argparse.Namespace, current: Mapping[At, int]
) -> list[At]:
    """The partitions that the options name.

    Raises:
        CommandError: one does not exist.
    """
    there = cluster.metadata().topics
    found: dict[At, None] = {}
    if options.all_topics:
        found |= dict.fromkeys(at for at in current if at[0] in there)
        if not found:
            raise CommandError("the group has no offsets yet: name topics with --topic")
    return list(found | dict.fromkeys(cluster.partitions(options.topic or [])))


def _new_offsets(
    cluster: ClusterClient, options: argparse.Namespace, wanted: list[At], current: Mapping[At, int]
) -> dict[At, int]:
    """The new offset of each partition, by the rules of Kafka's tool.

    Raises:
        CommandError: an offset is not known.
    """
    if options.to_earliest:
        return cluster.known_offsets(dict.fromkeys(wanted, EARLIEST))
    latest = cluster.known_offsets(dict.fromkeys(wanted, LATEST))
    if options.to_latest:
        return latest
    if options.to_current:
        return {at: current.get(at, latest[at]) for at in wanted}
    if options.to_offset is not None:
        return _within(cluster, dict.fromkeys(wanted, options.to_offset))
    if options.shift_by is not None:
        missing = [at for at in wanted if at not in current]
        if missing:
            topic, partition = missing[0]
            raise CommandError(
                f"{topic} [{partition}] has no committed offset to shift: leave it out, "
                "or begin with --to-earliest, --to-latest or --to-offset"
            )
        return _within(cluster, {at: current[at] + options.shift_by for at in wanted})
    moment = options.to_datetime
    if moment is None:
        moment = round(time.time() * 1000) - options.by_duration
    found = cluster.known_offsets(dict.fromkeys(wanted, for_time(moment)))
    return {at: offset if offset >= 0 else latest[at] for at, offset in found.items()}


def _within(cluster: ClusterClient, wanted: Mapping[At, int]) -> dict[At, int]:
    """*wanted*, limited to each log's first offset and end; prints what it changes."""
    cluster.topics(list(dict.fromkeys(topic for topic, _ in wanted)))
    earliest = cluster.known_offsets(dict.fromkeys(wanted, EARLIEST))
    latest = cluster.known_offsets(dict.fromkeys(wanted, LATEST))
    found = {}
    for at, offset in wanted.items():
        found[at] = min(max(offset, earliest[at]), latest[at])
        if found[at] != offset:
            complain(
                f"{at[0]} [{at[1]}] has offsets {earliest[at]} to {latest[at]}: {found[at]}, not "
                f"{offset}"
            )
    return found


def _read_file(file: Path, names: list[str]) -> list[tuple[str | None, At, int]]:
    """Rows of ``topic,partition,offset`` or ``group,topic,partition,offset``.

    Raises:
        CommandError: it cannot be read.
        UsageError: a row has another form.
    """
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file}: {getattr(error, 'strerror', None) or error}") from error
    found: list[tuple[str | None, At, int]] = []
    for number, row in enumerate(csv.reader(text.splitlines()), 1):
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        if len(cells) not in (3, 4) or not (cells[-1].isdecimal() and cells[-2].isdecimal()):
            raise UsageError(
                f"{file}, line {number}: the line is not topic,partition,offset or "
                "group,topic,partition,offset"
            )
        group = cells[0] if len(cells) == 4 else None
        if group is None and len(names) != 1:
            raise UsageError(f"{file}, line {number} names no group: give one")
        found.append((group, (cells[-3], int(cells[-2])), int(cells[-1])))
    return found


def _execute(cluster: ClusterClient, moves: list[tuple[str, At, int | None, int]]) -> int:
    status = OK
    for name in dict.fromkeys(name for name, _, _, _ in moves):
        parts = [TopicPartition(*at, offset) for of, at, _, offset in moves if of == name]
        asked = cluster.admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(name, parts)], request_timeout=cluster.timeout
        )
        try:
            answer = asked[name].result()
        except KafkaException as error:
            # A member may have joined in between.
            group = describe(cluster, [name])[name]
            text, failed = write_failure(error, "moved")
            complain(busy(group) if group.members else f"group {name!r}: {text}")
            status = max(status, failed)
            continue
        for tp in answer.topic_partitions or []:
            if tp.error is not None:
                text, failed = write_failure(tp.error, "moved")
                complain(f"group {name!r}, {tp.topic} [{tp.partition}]: {text}")
                status = max(status, failed)
    return status


def _print(
    options: argparse.Namespace, moves: list[tuple[str, At, int | None, int]], *, several: bool
) -> None:
    if options.export:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        for name, at, _, offset in moves:
            writer.writerow([*([name] if several else []), *at, offset])
    elif options.json:
        print_json(
            [
                {
                    "group": name,
                    "topic": topic,
                    "partition": partition,
                    "committed_offset": before,
                    "new_offset": offset,
                    "executed": options.execute,
                }
                for name, (topic, partition), before, offset in moves
            ]
        )
    else:
        print_table(
            ("group", "topic", "partition", "committed", "new offset"),
            [(name, *at, before, offset) for name, at, before, offset in moves],
        )


# ── Forgetting ──


def _delete(options: argparse.Namespace) -> int:
    if not (options.topic or options.all_topics):
        raise UsageError("no topic is named: give --topic TOPIC or --all-topics")
    cluster = ClusterClient(options)
    status = OK
    for name, current in committed(cluster, list(existing(cluster, options))).items():
        found = dict.fromkeys(current if options.all_topics else ())
        for topic, which in options.topic or []:
            has = [at for at in sorted(current) if at[0] == topic]
            if not has:
                there = {other for other, _ in current}
                raise CommandError(
                    f"group {name!r} has no offsets of topic {topic!r}{similar(topic, there)}"
                )
            found |= dict.fromkeys(has if which is None else ((topic, p) for p in which))
        if not found:
            complain(f"group {name!r} has no offsets")
            continue
        status |= _forget(options, cluster, name, list(found))
    return status


def _forget(
    options: argparse.Namespace, cluster: ClusterClient, name: str, wanted: list[At]
) -> int:
    parts: dict[str, list[int]] = {}
    for topic, partition in wanted:
        parts.setdefault(topic, []).append(partition)
    address = any_broker(cluster)
    with Wire(options, address) as wire:
        coordinator = wire.find_coordinator(name)
    with Wire(options, coordinator) as wire:
        answers = wire.delete_offsets(name, parts)
    status = OK
    for (topic, partition), error in sorted(answers.items()):
        if error is None:
            print(f"group {name} has no offset of {topic} [{partition}] any more")
        elif "GROUP_SUBSCRIBED_TO_TOPIC" in error:
            complain(
                f"group {name!r} reads {topic} now: stop its members first; `driftlog groups "
                f"describe {name} --members` shows them"
            )
            status = FAILED
        else:
            complain(f"group {name!r}, {topic} [{partition}]: {error}")
            status = FAILED
    return status
