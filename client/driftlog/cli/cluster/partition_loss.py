"""`driftlog partitions`: offline partitions, their reasons, and advice; accepting a loss.

The agents tell what is lost, and accept it: each for the partitions that it should serve.
Shell.
"""

import argparse
import sys
import time
import urllib.parse
from typing import Any, Final

from driftlog.cli.common.errors import FAILED, OK, CommandError
from driftlog.cli.common.output import complain, plural, print_json, print_table
from driftlog.cli.common.parsers import Commands, add_command, add_group, topic_partitions
from driftlog.cli.connection import agent_http
from driftlog.cli.connection.agent_http import Refusal
from driftlog.cli.connection.connection import add_connection_options
from driftlog.cli.connection.http_addresses import http_addresses
from driftlog_agents.process_log.escapes import escaped

_ANSWER_S: Final = 660.0
_TIMEOUT_HELP: Final = f"time limit of each answer of an agent (default: {_ANSWER_S:g})"
_NOT_HERE: Final = 421
"""HTTP status: another agent should serve the partition."""
_LOOKS: Final = 5
_LOOK_S: Final = 2.0
"""Time in which an agent that claimed a partition finds out that it is offline."""


def add_commands(commands: Commands) -> None:
    """Add the commands of this file."""
    partitions = add_group(
        commands, "partitions", help="list offline partitions; accept the loss of their data"
    )
    offline = add_command(
        partitions,
        "offline",
        _offline,
        help="list partitions that need an operator, the reason and the repair",
    )
    offline.add_argument("--json", action="store_true", help="print JSON")
    add_connection_options(offline, timeout_help=_TIMEOUT_HELP)
    accept = add_command(
        partitions,
        "accept-loss",
        _accept,
        help="accept the loss of committed data, so that a partition continues without them",
        description="Show the data that an offline partition has lost, or the missing segments "
        "of an online one; ask; and let the partition continue without them.  Existing data are "
        "kept.  Lost offsets stay empty: no record gets them again.  The agent writes a note of "
        "it to the bucket, under audit/.  This cannot be undone: restore lost objects or the "
        "newer metadata store first, if they exist.  A missing manifest or producer snapshot, "
        "and a damaged segment, must be restored.",
        examples="  driftlog partitions accept-loss flights --dry-run\n"
        "  driftlog partitions accept-loss flights:3 --yes\n",
    )
    accept.add_argument(
        "names",
        nargs="+",
        type=topic_partitions,
        metavar="TOPIC[:PARTITION,…]",
        help="the offline partitions of a topic, or these partitions",
    )
    does = accept.add_mutually_exclusive_group()
    does.add_argument("--dry-run", action="store_true", help="only show what is lost")
    does.add_argument("--yes", action="store_true", help="do not ask")
    accept.add_argument("--json", action="store_true", help="print JSON, and ask nothing")
    add_connection_options(accept, timeout_help=_TIMEOUT_HELP)


def _answer_s(options: argparse.Namespace) -> float:
    """Time for each answer: an operator may think for longer than --timeout between two of them."""
    return options.timeout.seconds or _ANSWER_S


# ── Offline ──


def _offline(options: argparse.Namespace) -> int:
    errors: list[str] = []
    addresses = http_addresses(options, errors)
    found = [at for _, at in _find_offline(addresses, _answer_s(options), errors)]
    found.sort(key=lambda at: (at["topic"], at["partition"]))
    if options.json:
        print_json(found)
    else:
        rows = [(at["topic"], at["partition"], at["reason"]) for at in found]
        print_table(("topic", "partition", "reason"), rows)
    for message in dict.fromkeys(errors):
        complain(message)
    return FAILED if errors else OK


def _find_offline(
    addresses: list[str], answer_s: float, errors: list[str]
) -> list[tuple[str, dict[str, Any]]]:
    """(Agent's address, offline partition) of each."""
    found: list[tuple[str, dict[str, Any]]] = []
    for address in addresses:
        try:
            answer = agent_http.get(address, "/partitions/offline", answer_s)
        except CommandError as error:
            errors.append(str(error))
        else:
            found += [(address, at) for at in answer["offline"]]
    return found


# ── Accepting ──


def _accept(options: argparse.Namespace) -> int:
    errors: list[str] = []
    addresses = http_addresses(options, errors)
    options.notice.rests()
    answer_s = _answer_s(options)
    wanted = _wanted(options.names, addresses, answer_s, errors)
    shown: list[tuple[str, str, int, dict[str, Any]]] = []
    if wanted and not options.json:
        print("driftlog: searching for lost data (up to a minute) …", file=sys.stderr, flush=True)
    for (topic, partition), at in wanted.items():
        try:
            address, plan = _examine([*at, *addresses], topic, partition, answer_s)
        except CommandError as error:
            errors.append(str(error))
            continue
        if plan["reasons"]:
            shown.append((address, topic, partition, plan))
        else:
            complain(f"{topic} [{partition}]: nothing is lost")
    if not options.json:
        _show(shown)
    done: dict[tuple[str, int], dict[str, Any]] = {}
    if shown and not options.dry_run and (options.yes or _is_sure(options, shown)):
        for address, topic, partition, plan in shown:
            try:
                done[topic, partition] = _let_go(
                    address, addresses, topic, partition, plan, answer_s
                )
            except CommandError as error:
                errors.append(str(error))
    if options.json:
        print_json(
            [
                {"topic": topic, "partition": partition, **plan}
                | {"accepted": (topic, partition) in done, **done.get((topic, partition), {})}
                for _, topic, partition, plan in shown
            ]
        )
    else:
        for (topic, partition), answer in done.items():
            print(
                f"{topic} [{partition}] continues at offset {answer['goes_on_at']}: "
                f"{answer['audit']}"
            )
    not_accepted = bool(shown) and not done and not errors and not options.dry_run
    if not_accepted:
        complain("nothing was changed: answer yes, or run the command again with --yes")
    for message in dict.fromkeys(errors):
        complain(message)
    return FAILED if errors or not_accepted else OK


def _wanted(
    names: list[tuple[str, list[int] | None]],
    addresses: list[str],
    answer_s: float,
    errors: list[str],
) -> dict[tuple[str, int], list[str]]:
    """The named partitions, or the offline ones of a topic named alone; each with the agents that
    report it as offline."""
    offline: dict[tuple[str, int], list[str]] = {}
    for address, at in _find_offline(addresses, answer_s, errors):
        offline.setdefault((at["topic"], at["partition"]), []).append(address)
    wanted: dict[tuple[str, int], list[str]] = {}
    for topic, numbers in names:
        if numbers is None:
            numbers = sorted(partition for name, partition in offline if name == topic)
            if not numbers:
                complain(
                    f"no partition of {topic!r} is offline; to check an online partition, "
                    f"name it: {topic}:0"
                )
        wanted |= {(topic, number): offline.get((topic, number), []) for number in numbers}
    return wanted


def _examine(
    addresses: list[str], topic: str, partition: int, answer_s: float
) -> tuple[str, dict[str, Any]]:
    """The address of the agent that should serve the partition, and the loss that it reports.

    Raises:
        CommandError: no agent should, or it refuses.
    """
    for address in dict.fromkeys(addresses):
        try:
            return address, agent_http.get(address, _path(topic, partition), answer_s)
        except Refusal as answer:
            if answer.code != _NOT_HERE:
                raise
    raise CommandError(f"no agent leads {topic} [{partition}] at the moment: try again")


def _let_go(
    address: str,
    addresses: list[str],
    topic: str,
    partition: int,
    plan: dict[str, Any],
    answer_s: float,
) -> dict[str, Any]:
    """Accept *plan*: at *address*, or at the agent that leads the partition by now.

    Raises:
        CommandError: no agent accepts the loss.
    """
    for _ in range(_LOOKS):
        try:
            return agent_http.post(address, _path(topic, partition), plan, answer_s)
        except Refusal as answer:
            if answer.code != _NOT_HERE:
                raise
        # The leader released the partition to do this, and the agent of its placement was faster.
        time.sleep(_LOOK_S)
        address, now = _examine(addresses, topic, partition, answer_s)
        if not _is_same(now, plan):
            raise CommandError(
                f"{topic} [{partition}]: the partition has changed: run the command again"
            )
    raise CommandError(f"{topic} [{partition}] moves from agent to agent: try again")


def _is_same(now: dict[str, Any], shown: dict[str, Any]) -> bool:
    """Whether both report the same loss; a served partition is sealed further meanwhile."""
    names = ("reasons", "objects", "lost") if shown.get("serves") else set(now) | set(shown)
    return all(now.get(name) == shown.get(name) for name in names)


def _show(shown: list[tuple[str, str, int, dict[str, Any]]]) -> None:
    rows = [
        (topic, partition, base, end - 1, end - base)
        for _, topic, partition, plan in shown
        for base, end in plan["lost"]
    ]
    for _, topic, partition, plan in shown:
        for reason in plan["reasons"]:
            print(f"{topic} [{partition}]: {escaped(reason, len(reason))}")
        if not plan["lost"]:
            print(f"{topic} [{partition}]: no known record is lost")
        if plan.get("serves"):
            print(f"{topic} [{partition}]: the partition is online; all other records are kept")
        else:
            print(f"{topic} [{partition}]: new records begin at offset {plan['goes_on_at']}")
    if rows:
        print_table(("topic", "partition", "first lost", "last lost", "offsets"), rows)


def _is_sure(options: argparse.Namespace, shown: list[Any]) -> bool:
    """Ask the operator, unless --yes."""
    if options.json or not sys.stdin.isatty():
        return False
    what = plural(len(shown), "partition")
    try:
        answer = input(f"Accept this loss for good, and let {what} continue without it?  [yes/no] ")
    except EOFError:
        print()
        return False
    return answer.strip().lower() == "yes"


# ── Agents ──


def _path(topic: str, partition: int) -> str:
    return f"/topics/{urllib.parse.quote(topic, safe='')}/{partition}/loss"
