"""Consumer groups: options that name them, and requests that read them.

Shell.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    ConsumerGroupDescription,
    ConsumerGroupListing,
)

from driftlog.cli.common.errors import CommandError, UsageError
from driftlog.cli.common.output import Progress, plural
from driftlog.cli.common.parsers import Parser
from driftlog.cli.connection.cluster_client import ClusterClient
from driftlog.cli.connection.connection import reason, result_of
from driftlog.common.similar_names import similar

STATES: Final = {
    "PreparingRebalance": ConsumerGroupState.PREPARING_REBALANCING,
    "CompletingRebalance": ConsumerGroupState.COMPLETING_REBALANCING,
    "Stable": ConsumerGroupState.STABLE,
    "Dead": ConsumerGroupState.DEAD,
    "Empty": ConsumerGroupState.EMPTY,
}
_AT_ONCE: Final = 64
"""Groups whose offsets are requested at a time."""

_NOT_YET: Final = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
"""A coordinator is loading or changing: librdkafka returns these errors and does not retry."""
_PAUSE_S: Final = 0.2

_NOBODY: Final[Any] = None
"""The coordinator of a group that does not exist."""

TYPES: Final = {"classic": ConsumerGroupType.CLASSIC, "consumer": ConsumerGroupType.CONSUMER}


def add_group_options(parser: Parser) -> None:
    """Add the groups' arguments: words, or the options of Kafka's scripts."""
    parser.add_argument("names", nargs="*", metavar="GROUP")
    parser.add_argument("-g", "--group", action="append", metavar="GROUP", help="as GROUP")
    parser.add_argument("--all-groups", action="store_true", help="all groups")


def group_names(options: argparse.Namespace) -> list[str]:
    """The named groups, each once."""
    return list(dict.fromkeys([*options.names, *(options.group or [])]))


def state_name(state: object) -> str:
    """The state's name in Kafka."""
    return next((name for name, known in STATES.items() if known is state), "Unknown")


def type_name(kind: object) -> str:
    """The name of the group's protocol."""
    return "consumer" if kind is ConsumerGroupType.CONSUMER else "classic"


def listings(cluster: ClusterClient, **filters: Any) -> list[ConsumerGroupListing]:
    """The existing groups, in the order of their names.

    Raises:
        CommandError: some brokers do not list theirs.
    """
    answer = result_of(
        cluster.admin.list_consumer_groups(request_timeout=cluster.timeout, **filters)
    )
    for error in answer.errors or []:
        raise CommandError(reason(error))
    return sorted(answer.valid or [], key=lambda group: str(group.group_id))


def describe(cluster: ClusterClient, names: Sequence[str]) -> dict[str, ConsumerGroupDescription]:
    """The groups of *names*; a group that does not exist has the state Dead.

    Raises:
        CommandError: one cannot be described.
    """
    found: dict[str, ConsumerGroupDescription] = {}
    until = time.monotonic() + cluster.timeout
    while left := [name for name in names if name not in found]:
        asked = cluster.admin.describe_consumer_groups(left, request_timeout=cluster.timeout)
        for name, future in asked.items():
            try:
                found[name] = future.result()
            except KafkaException as error:
                code = error.args[0].code()
                if code in _NOT_YET and time.monotonic() < until:
                    continue
                if code != KafkaError.GROUP_ID_NOT_FOUND:
                    raise CommandError(f"group {name!r}: {reason(error)}") from error
                found[name] = ConsumerGroupDescription(
                    name, False, [], "", ConsumerGroupState.DEAD, _NOBODY
                )
        if len(found) < len(set(names)):
            time.sleep(_PAUSE_S)
    return {name: found[name] for name in names}


def committed(
    cluster: ClusterClient, names: Sequence[str]
) -> dict[str, dict[tuple[str, int], int]]:
    """The offsets of these groups.

    Raises:
        CommandError: one group's offsets are not known.
    """
    found = {}
    progress = Progress()
    try:
        for at in range(0, len(names), _AT_ONCE):
            if progress.due():
                progress.show(f"reading offsets of groups: {at:,} of {len(names):,} …")
            # librdkafka takes one group in a call.
            asked = {
                name: cluster.admin.list_consumer_group_offsets(
                    [ConsumerGroupTopicPartitions(name)], request_timeout=cluster.timeout
                )[name]
                for name in names[at : at + _AT_ONCE]
            }
            for name, future in asked.items():
                answer = result_of(future, f"group {name!r}")
                found[name] = {
                    (tp.topic, tp.partition): tp.offset
                    for tp in answer.topic_partitions or []
                    if tp.error is None and tp.offset >= 0
                }
    finally:
        progress.clear()
    return found


def existing(
    cluster: ClusterClient, options: argparse.Namespace
) -> dict[str, ConsumerGroupDescription]:
    """The groups that *options* name.

    Raises:
        UsageError: none is named.
        CommandError: one does not exist; the message has similar names.
    """
    names = group_names(options)
    if options.all_groups:
        names = [str(group.group_id) for group in listings(cluster)]
    elif not names:
        raise UsageError(f"no group is named: give `{options.parser.prog} GROUP`, or --all-groups")
    found = describe(cluster, names)
    dead = [name for name, group in found.items() if group.state is ConsumerGroupState.DEAD]
    if dead:
        there = [str(group.group_id) for group in listings(cluster)]
        missing = [name for name in dead if name not in there]
        if missing:
            raise CommandError(f"group {missing[0]!r} does not exist{similar(missing[0], there)}")
    return found


def busy(group: ConsumerGroupDescription) -> str:
    """The message for a group that is not changed because it has members, with advice."""
    members = sorted({f"{m.client_id} at {m.host}" for m in group.members})
    who = f": {', '.join(members[:5])}{', …' if len(members) > 5 else ''}" if members else ""
    return (
        f"group {group.group_id!r} is in use ({state_name(group.state)}, "
        f"{plural(len(group.members), 'member')}{who}).  Stop its members, or wait until their "
        f"sessions end; `driftlog groups describe {group.group_id} --members` shows them"
    )
