"""`driftlog partitions`: what is offline, why, and the way out; and going on without what is gone.

The agents say what is lost, and do it: each what it is to serve.
Shell.
"""

import argparse
import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final

from driftlog.cli.connection import add_bootstrap_option, bootstrap
from driftlog.cli.errors import FAILED, OK, CommandError
from driftlog.cli.http_addresses import CHANGE_HEADERS, http_addresses
from driftlog.cli.output import complain, plural, print_json, print_table
from driftlog.cli.parsers import Commands, add_command, add_group, topic_partitions

_TIMEOUT_S: Final = 660
_NOT_HERE: Final = 421
"""Another agent is to serve it."""
_LOOKS: Final = 5
_LOOK_S: Final = 2.0
"""Until an agent that has claimed a partition knows that it is offline."""


class _Answer(CommandError):
    """An agent's refusal."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def add_commands(commands: Commands) -> None:
    """The commands of this file."""
    partitions = add_group(commands, "partitions", help="partitions that are offline")
    offline = add_command(
        partitions,
        "offline",
        _offline,
        help="partitions that need an operator, why, and the way out",
    )
    offline.add_argument("--json", action="store_true", help="for programs")
    add_bootstrap_option(offline)
    accept = add_command(
        partitions,
        "accept-loss",
        _accept,
        help="go on without committed data that are gone for good",
        description="Show what an offline partition has lost, or which segments of one that is "
        "served are gone, ask, and let it go on without that.  "
        "All that is there is kept; lost offsets stay empty, and no record gets them again; what "
        "was done is noted in the bucket, under audit/.  There is no way back: bring lost objects "
        "or the newer metadata store back first, if there are any.  A manifest or a producer "
        "snapshot that is gone, and a segment that is damaged, must be put back.",
        examples="  driftlog partitions accept-loss flights --dry-run\n"
        "  driftlog partitions accept-loss flights:3 --yes\n",
    )
    accept.add_argument(
        "names",
        nargs="+",
        type=topic_partitions,
        metavar="TOPIC[:PARTITION,…]",
        help="those of its partitions that are offline, or these",
    )
    does = accept.add_mutually_exclusive_group()
    does.add_argument("--dry-run", action="store_true", help="only say what is lost")
    does.add_argument("--yes", action="store_true", help="do not ask")
    accept.add_argument("--json", action="store_true", help="for programs; asks nothing")
    add_bootstrap_option(accept)


# ── Offline ──


def _offline(options: argparse.Namespace) -> int:
    errors: list[str] = []
    found = [at for _, at in _find_offline(http_addresses(bootstrap(options), errors), errors)]
    found.sort(key=lambda at: (at["topic"], at["partition"]))
    if options.json:
        print_json(found)
    else:
        rows = [(at["topic"], at["partition"], at["reason"]) for at in found]
        print_table(("topic", "partition", "reason"), rows)
    for message in dict.fromkeys(errors):
        complain(message)
    return FAILED if errors else OK


def _find_offline(addresses: list[str], errors: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """(Address of its agent, what is offline there)."""
    found: list[tuple[str, dict[str, Any]]] = []
    for address in addresses:
        try:
            answer = _ask(address, "/partitions/offline")
        except CommandError as error:
            errors.append(str(error))
        else:
            found += [(address, at) for at in answer["offline"]]
    return found


# ── Accepting ──


def _accept(options: argparse.Namespace) -> int:
    errors: list[str] = []
    addresses = http_addresses(bootstrap(options), errors)
    wanted = _wanted(options.names, addresses, errors)
    shown: list[tuple[str, str, int, dict[str, Any]]] = []
    if wanted and not options.json:
        print("driftlog: looking for what is lost (up to a minute) …", file=sys.stderr, flush=True)
    for (topic, partition), at in wanted.items():
        try:
            address, plan = _examine([*at, *addresses], topic, partition)
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
                done[topic, partition] = _let_go(address, addresses, topic, partition, plan)
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
            print(f"{topic} [{partition}] goes on at {answer['goes_on_at']}: {answer['audit']}")
    not_accepted = bool(shown) and not done and not errors and not options.dry_run
    if not_accepted:
        complain("nothing was changed: answer with the whole word yes, or run it again with --yes")
    for message in dict.fromkeys(errors):
        complain(message)
    return FAILED if errors or not_accepted else OK


def _wanted(
    names: list[tuple[str, list[int] | None]], addresses: list[str], errors: list[str]
) -> dict[tuple[str, int], list[str]]:
    """What is named, and of a topic alone, what is offline; with the agents that say that it is
    offline there."""
    offline: dict[tuple[str, int], list[str]] = {}
    for address, at in _find_offline(addresses, errors):
        offline.setdefault((at["topic"], at["partition"]), []).append(address)
    wanted: dict[tuple[str, int], list[str]] = {}
    for topic, numbers in names:
        if numbers is None:
            numbers = sorted(partition for name, partition in offline if name == topic)
            if not numbers:
                complain(
                    f"no partition of {topic!r} is offline; to look at one that is served, or that "
                    f"no agent knows, name it: {topic}:0"
                )
        wanted |= {(topic, number): offline.get((topic, number), []) for number in numbers}
    return wanted


def _examine(addresses: list[str], topic: str, partition: int) -> tuple[str, dict[str, Any]]:
    """The agent that is to serve the partition, and what it says is lost.

    Raises:
        CommandError: none does, or it refuses.
    """
    for address in dict.fromkeys(addresses):
        try:
            return address, _ask(address, _path(topic, partition))
        except _Answer as answer:
            if answer.code != _NOT_HERE:
                raise
    raise CommandError(f"no agent is to serve {topic} [{partition}] just now: try again")


def _let_go(
    address: str, addresses: list[str], topic: str, partition: int, plan: dict[str, Any]
) -> dict[str, Any]:
    """Accept *plan*: at *address*, or at the agent that leads the partition by now.

    Raises:
        CommandError: no agent does it.
    """
    for _ in range(_LOOKS):
        try:
            return _ask(address, _path(topic, partition), plan)
        except _Answer as answer:
            if answer.code != _NOT_HERE:
                raise
        # The leader gave it back to do this, and the agent that it is placed on was faster.
        time.sleep(_LOOK_S)
        address, now = _examine(addresses, topic, partition)
        if not _is_same(now, plan):
            raise CommandError(f"{topic} [{partition}]: something has changed: look again")
    raise CommandError(f"{topic} [{partition}] moves from agent to agent: try again")


def _is_same(now: dict[str, Any], shown: dict[str, Any]) -> bool:
    """Whether the same is lost; one that is served is sealed further meanwhile."""
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
            print(f"{topic} [{partition}]: {reason}")
        if not plan["lost"]:
            print(f"{topic} [{partition}]: no record that is known of is lost")
        if plan.get("serves"):
            print(f"{topic} [{partition}]: it is served; all other records stay as they are")
        else:
            print(f"{topic} [{partition}]: new records begin at offset {plan['goes_on_at']}")
    if rows:
        print_table(("topic", "partition", "first lost", "last lost", "offsets"), rows)


def _is_sure(options: argparse.Namespace, shown: list[Any]) -> bool:
    """Ask a person; a program says --yes."""
    if options.json or not sys.stdin.isatty():
        return False
    what = plural(len(shown), "partition")
    try:
        answer = input(f"Give this up for good, and let {what} go on without it?  [yes/no] ")
    except EOFError:
        print()
        return False
    return answer.strip().lower() == "yes"


# ── Agents ──


def _path(topic: str, partition: int) -> str:
    return f"/topics/{urllib.parse.quote(topic, safe='')}/{partition}/loss"


def _ask(address: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """GET, or POST *body*.

    Raises:
        CommandError: it refuses, or does not answer.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://{address}{path}", data, {"Content-Type": "application/json"} | CHANGE_HEADERS
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as error:
        try:
            message = json.load(error).get("error", str(error))
        except ValueError:
            message = f"{address}: {error} (an old agent?)"
        raise _Answer(error.code, message) from error
    except OSError as error:
        raise CommandError(f"{address} does not answer: {error}") from error
