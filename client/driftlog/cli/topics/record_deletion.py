"""`driftlog topics delete-records`: deletes the records before an offset or a time.

Shell.
"""

import argparse
from typing import Any, Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    ConfigResource,
    ResourceType,
)

from driftlog.cli.common.errors import FAILED, OK, CommandError, UsageError
from driftlog.cli.common.output import complain, plural, print_json, print_table
from driftlog.cli.common.parsers import At, Commands, add_command, moment, natural, topic_partitions
from driftlog.cli.connection.cluster_client import EARLIEST, LATEST, ClusterClient, for_time
from driftlog.cli.connection.connection import add_connection_options, write_failure

_END: Final = -1
"""In DeleteRecords: the high watermark at the time of the request."""


def add_commands(commands: Commands) -> None:
    """Add the command of this file."""
    delete = add_command(
        commands,
        "delete-records",
        _delete,
        help="delete the oldest records of topics",
        description="Delete the records before an offset or a time.  Without --execute the command "
        "only shows what it would delete.",
        examples="  driftlog topics delete-records flights --before-datetime 2026-11-01\n"
        "  driftlog topics delete-records flights:0,2 --before-offset 1000 --execute\n"
        "  driftlog topics delete-records flights --all --execute\n",
    )
    delete.add_argument("names", nargs="*", type=topic_partitions, metavar="TOPIC[:N,…]")
    delete.add_argument(
        "-t",
        "--topic",
        action="append",
        type=topic_partitions,
        metavar="TOPIC[:N,…]",
        help="as TOPIC",
    )
    before = delete.add_argument_group("which").add_mutually_exclusive_group(required=True)
    before.add_argument(
        "--before-offset",
        type=natural,
        metavar="N",
        help="delete the records of each partition with offsets below N",
    )
    before.add_argument(
        "--before-datetime",
        type=moment,
        metavar="TIME",
        help="delete the records before the first one that is not older than TIME: "
        "2026-11-22T01:02:03, in UTC unless it ends with an offset",
    )
    before.add_argument("--all", action="store_true", help="delete all records")
    does = delete.add_mutually_exclusive_group()
    does.add_argument(
        "--dry-run", action="store_true", help="only show what would be deleted (default)"
    )
    does.add_argument(
        "--execute", action="store_true", help="delete; deleted records cannot be restored"
    )
    delete.add_argument("--json", action="store_true", help="print JSON")
    add_connection_options(delete)


def _delete(options: argparse.Namespace) -> int:
    named = [*options.names, *(options.topic or [])]
    if not named:
        raise UsageError(f"no topic is named: `{options.parser.prog} TOPIC`")
    cluster = ClusterClient(options)
    wanted = cluster.partitions(named)
    earliest = cluster.known_offsets(dict.fromkeys(wanted, EARLIEST))
    latest = cluster.known_offsets(dict.fromkeys(wanted, LATEST))
    starts = _new_starts(cluster, options, earliest, latest)
    status = OK
    for name in _compact_only(cluster, {topic for topic, _ in wanted}):
        complain(
            f"{name}: its cleanup.policy is compact without delete, so no record is deleted by its "
            "offset. Produce a record without a value to remove a key, or set "
            "cleanup.policy=compact,delete"
        )
        starts |= {at: earliest[at] for at in wanted if at[0] == name}
        status = FAILED
    if options.execute:
        moved = {at: start for at, start in starts.items() if start > earliest[at]}
        failed, done = _execute(cluster, dict.fromkeys(moved, _END) if options.all else moved)
        status = max(status, failed)
        starts = {at: done.get(at, earliest[at]) for at in wanted}
    rows = [(*at, earliest[at], start, start - earliest[at]) for at, start in starts.items()]
    if options.json:
        names = ("topic", "partition", "earliest_offset", "new_earliest_offset", "offsets")
        print_json(
            [dict(zip(names, row, strict=True)) | {"executed": options.execute} for row in rows]
        )
    else:
        print_table(("topic", "partition", "earliest", "new earliest", "offsets"), rows)
    if not options.execute:
        count = sum(row[-1] for row in rows)
        complain(f"nothing is deleted yet: --execute deletes {plural(count, 'offset')}")
    return status


def _compact_only(cluster: ClusterClient, names: set[str]) -> list[str]:
    """The topics of *names* whose records no broker deletes by offset (POLICY_VIOLATION)."""
    asked = cluster.admin.describe_configs(
        [ConfigResource(ResourceType.TOPIC, name) for name in sorted(names)],
        request_timeout=cluster.timeout,
    )
    found = []
    for resource, future in asked.items():
        try:
            policy = future.result()["cleanup.policy"].value
        except KafkaException:  # the user may not see configs: the broker decides
            continue
        if "compact" in policy and "delete" not in policy:
            found.append(resource.name)
    return found


def _new_starts(
    cluster: ClusterClient,
    options: argparse.Namespace,
    earliest: dict[At, int],
    latest: dict[At, int],
) -> dict[At, int]:
    """The new start of each log, never before its start now.

    Raises:
        CommandError: an offset lies beyond the end, which Kafka refuses.
    """
    if options.all:
        return latest
    if options.before_datetime is not None:
        found = cluster.known_offsets(dict.fromkeys(earliest, for_time(options.before_datetime)))
        return {at: offset if offset >= 0 else latest[at] for at, offset in found.items()}
    for (topic, partition), end in latest.items():
        if options.before_offset > end:
            raise CommandError(
                f"{topic} [{partition}] ends at {end}, below {options.before_offset}: "
                f"name its partitions one by one ({topic}:{partition}), or delete --all"
            )
    return {at: max(options.before_offset, start) for at, start in earliest.items()}


def _execute(cluster: ClusterClient, starts: dict[At, int]) -> tuple[int, dict[At, int]]:
    """Delete the records; returns the exit status, and the new starts of the logs."""
    if not starts:
        return OK, {}
    asked: dict[Any, Any] = cluster.admin.delete_records(
        [TopicPartition(*at, offset) for at, offset in starts.items()],
        request_timeout=cluster.timeout,
        operation_timeout=cluster.timeout,
    )
    status, done = OK, {}
    for tp, future in asked.items():
        try:
            done[tp.topic, tp.partition] = future.result().low_watermark
        except KafkaException as error:
            text, failed = write_failure(error, "deleted")
            complain(f"{tp.topic} [{tp.partition}]: {text}")
            status = max(status, failed)
    return status, done
