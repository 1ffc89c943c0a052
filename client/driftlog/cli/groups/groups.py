"""`driftlog groups`: list, describe, delete; offsets are moved in `group_offsets`.

Shell.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    ConsumerGroupDescription,
)

from driftlog.cli.common.errors import OK
from driftlog.cli.common.output import (
    Bad,
    Cell,
    complain,
    number,
    plural,
    print_json,
    print_table,
    title,
)
from driftlog.cli.common.parsers import Commands, Parser, add_command, add_group
from driftlog.cli.connection.cluster_client import LATEST, ClusterClient, Offset
from driftlog.cli.connection.connection import add_connection_options, write_failure
from driftlog.cli.groups import group_offsets
from driftlog.cli.groups.group_descriptions import (
    STATES,
    TYPES,
    add_group_options,
    busy,
    committed,
    describe,
    existing,
    listings,
    state_name,
    type_name,
)
from driftlog.common.similar_names import similar


def add_commands(commands: Commands) -> None:
    """Add the commands of this file, and of `group_offsets`."""
    groups = add_group(
        commands,
        "groups",
        help="list, describe and delete consumer groups; reset and delete their offsets",
    )

    listing = add_command(groups, "list", _list, help="list groups")
    listing.add_argument(
        "--state",
        type=_states,
        metavar="STATE[,…]",
        help=f"list only groups in these states: {', '.join(STATES)}",
    )
    listing.add_argument("--type", choices=sorted(TYPES), help="list only groups of this protocol")
    listing.add_argument("-q", "--quiet", action="store_true", help="print names only, one a line")
    _reading(listing)

    describe = add_command(
        groups,
        "describe",
        _describe,
        help="show offsets and lag, members or state of groups",
        description="Show committed offsets, lag and reading member of each partition; or the "
        "members, or the state.",
        examples="  driftlog groups describe billing\n"
        "  driftlog groups describe --all-groups --state\n",
    )
    add_group_options(describe)
    what = describe.add_mutually_exclusive_group()
    what.add_argument(
        "--offsets", action="store_true", help="show committed offsets and lag (default)"
    )
    what.add_argument("--members", action="store_true", help="show the members")
    what.add_argument(
        "--state",
        action="store_true",
        help="show state, coordinator, assignor and the number of members",
    )
    describe.add_argument(
        "--verbose", action="store_true", help="with --members: show the partitions of each member"
    )
    _reading(describe)

    delete = add_command(
        groups, "delete", _delete, help="delete groups without members, with their offsets"
    )
    add_group_options(delete)
    add_connection_options(delete)

    group_offsets.add_commands(groups)


def _reading(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection_options(parser)


def _states(text: str) -> set[ConsumerGroupState]:
    found = set()
    lower = {name.lower(): state for name, state in STATES.items()}
    for name in text.split(","):
        if name.strip().lower() not in lower:
            raise argparse.ArgumentTypeError(
                f"unknown state {name.strip()!r}{similar(name.strip(), STATES)}"
            )
        found.add(lower[name.strip().lower()])
    return found


# ── Reading ──


def _list(options: argparse.Namespace) -> int:
    cluster = ClusterClient(options)
    filters: dict[str, Any] = {}
    if options.state:
        filters["states"] = options.state
    if options.type:
        filters["types"] = {TYPES[options.type]}
    found = listings(cluster, **filters)
    if options.json:
        print_json(
            [
                {
                    "group": group.group_id,
                    "type": type_name(group.type),
                    "state": state_name(group.state),
                    "simple": group.is_simple_consumer_group,
                }
                for group in found
            ]
        )
    elif options.quiet:
        for group in found:
            print(group.group_id)
    elif found:
        print_table(
            ("group", "type", "state"),
            [(g.group_id, type_name(g.type), state_name(g.state)) for g in found],
        )
    else:
        complain("no groups" + (" of that kind" if filters else " yet"))
    return OK


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A partition that a group has committed or reads."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    member: Any

    @property
    def lag(self) -> int | None:
        """The number of offsets that are not committed yet."""
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


def _describe(options: argparse.Namespace) -> int:
    cluster = ClusterClient(options)
    groups = existing(cluster, options)
    parts = {} if options.state else _partitions(cluster, groups)
    if options.json:
        print_json([_as_json(group, parts.get(name)) for name, group in groups.items()])
        return OK
    if options.state:
        print_table(
            ("group", "coordinator", "type", "assignor", "state", "members"),
            [
                (
                    name,
                    _node(group.coordinator),
                    type_name(group.type),
                    group.partition_assignor or None,
                    state_name(group.state),
                    len(group.members),
                )
                for name, group in groups.items()
            ],
        )
        return OK
    for at, (name, group) in enumerate(groups.items()):
        if at:
            print()
        lag = sum(part.lag or 0 for part in parts[name])
        fresh = sum(part.committed is None for part in parts[name])
        title(
            f"{name}  {state_name(group.state)}, {plural(len(group.members), 'member')}, "
            f"lag {number(lag)}"
            + (f", and {plural(fresh, 'partition')} without a committed offset" if fresh else "")
        )
        if options.members:
            _print_members(group, verbose=options.verbose)
        elif parts[name]:
            _print_offsets(parts[name])
        else:
            complain(f"group {name!r} has no committed offsets yet")
    return OK


def _print_offsets(parts: list[GroupPartition]) -> None:
    print_table(
        ("topic", "partition", "committed", "end", "lag", "member", "host", "client id"),
        [
            (
                part.topic,
                part.partition,
                part.committed,
                part.end,
                part.lag,
                part.member.member_id if part.member else None,
                part.member.host if part.member else None,
                part.member.client_id if part.member else None,
            )
            for part in parts
        ],
    )


def _print_members(group: ConsumerGroupDescription, *, verbose: bool) -> None:
    if not group.members:
        complain(f"group {group.group_id!r} has no members")
        return
    rows: list[tuple[Cell, ...]] = []
    for member in sorted(group.members, key=lambda m: (m.client_id, m.member_id)):
        has = _assigned(member)
        row: tuple[Cell, ...] = (
            member.member_id,
            member.group_instance_id,
            member.host,
            member.client_id,
            len(has) if has else Bad("0"),
        )
        rows.append((*row, _ranges(has)) if verbose else row)
    titles = ("member", "instance id", "host", "client id", "partitions")
    print_table((*titles, "which") if verbose else titles, rows)


def _ranges(has: list[tuple[str, int]]) -> str:
    """``flights(0,1,2), trains(0)``."""
    topics: dict[str, list[int]] = {}
    for topic, partition in has:
        topics.setdefault(topic, []).append(partition)
    return ", ".join(f"{t}({','.join(map(str, found))})" for t, found in topics.items()) or "none"


def _assigned(member: Any) -> list[tuple[str, int]]:
    given = member.assignment.topic_partitions if member.assignment else []
    return sorted((tp.topic, tp.partition) for tp in given)


def _partitions(
    cluster: ClusterClient, groups: Mapping[str, ConsumerGroupDescription]
) -> dict[str, list[GroupPartition]]:
    """By group: committed or assigned partitions, with the ends of their logs, from one request."""
    offsets = committed(cluster, list(groups))
    readers = {
        name: {at: member for member in group.members for at in _assigned(member)}
        for name, group in groups.items()
    }
    every = {at for name in groups for at in (*offsets[name], *readers[name])}
    there = cluster.metadata().topics
    led = [at for at in sorted(every) if at[0] in there and at[1] in there[at[0]].partitions]
    ends = cluster.offsets(dict.fromkeys(led, LATEST))

    def one(name: str, at: tuple[str, int]) -> GroupPartition:
        end = ends.get(at)
        return GroupPartition(
            *at,
            committed=offsets[name].get(at),
            end=end.offset if isinstance(end, Offset) else None,
            member=readers[name].get(at),
        )

    return {
        name: [one(name, at) for at in sorted({*offsets[name], *readers[name]})] for name in groups
    }


def _node(node: Any) -> str | None:
    return None if node is None else f"{node.host}:{node.port} ({node.id})"


def _as_json(group: ConsumerGroupDescription, parts: list[GroupPartition] | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "group": group.group_id,
        "type": type_name(group.type),
        "state": state_name(group.state),
        "assignor": group.partition_assignor or None,
        "coordinator": group.coordinator.id if group.coordinator else None,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "assignment": [{"topic": t, "partition": p} for t, p in _assigned(member)],
            }
            for member in group.members
        ],
    }
    if parts is not None:
        found["lag"] = sum(part.lag or 0 for part in parts)
        found["offsets"] = [
            {
                "topic": part.topic,
                "partition": part.partition,
                "committed_offset": part.committed,
                "end_offset": part.end,
                "lag": part.lag,
                "member_id": part.member.member_id if part.member else None,
            }
            for part in parts
        ]
    return found


# ── Deleting ──


def _delete(options: argparse.Namespace) -> int:
    cluster = ClusterClient(options)
    groups = existing(cluster, options)
    if not groups:
        complain("there are no groups")
        return OK
    asked = cluster.admin.delete_consumer_groups(list(groups), request_timeout=cluster.timeout)
    status = OK
    for name, future in asked.items():
        try:
            future.result()
        except KafkaException as error:
            text, failed = write_failure(error, "deleted")
            status = max(status, failed)
            if error.args[0].code() == KafkaError.NON_EMPTY_GROUP:
                complain(busy(describe(cluster, [name])[name]))
            else:
                complain(f"group {name!r}: {text}")
        else:
            print(f"group {name} is deleted")
    return status
