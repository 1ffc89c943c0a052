"""`driftlog cost`: dollars a month, of a workload beside Kafka's, or of this cluster.

The formulas and prices are those of `driftlog.cost`.

Shell.
"""

import argparse
import asyncio
import json
import time
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from driftlog.cli.common.errors import OK, CommandError, UsageError
from driftlog.cli.common.output import Progress, complain, no_extra, plural, print_json, print_table
from driftlog.cli.common.parsers import (
    Commands,
    Parser,
    add_command,
    add_group,
    key_value,
    natural,
    positive,
)
from driftlog.cli.connection import agent_http
from driftlog.cli.connection.connection import add_connection_options
from driftlog.cli.connection.http_addresses import http_addresses
from driftlog.cost.bill import MIB, Bill, BillGroup
from driftlog.cost.cluster_bill import Counters, NoCountersError, cluster_bill, read_counters
from driftlog.cost.kafka_bill import kafka_bill
from driftlog.cost.prices import PriceError, Prices, read_prices
from driftlog.cost.workload import Workload
from driftlog.cost.workload_bill import driftlog_bill
from driftlog.errors import DriftlogError

_ANSWER_S: Final = 10.0

_SHORT_S: Final = 600.0
"""A shorter time says little about a month: it may have an agent's start, or no sealing."""

_SHORT_UPTIME: Final = (
    "an agent started a short time ago: the bill counts the requests of its start as if they went "
    "on for a month; --seconds N counts from now on"
)
_SHORT_WINDOW: Final = (
    "the window is short: the bill counts what happened in it as if it went on for a month"
)


def add_commands(commands: Commands) -> None:
    """Add the commands of this file."""
    cost = add_group(commands, "cost", help="dollars a month: of a workload, or of this cluster")
    workload = add_command(
        cost,
        "workload",
        _workload,
        help="what a workload costs a month, beside a tuned Kafka",
        description="Print what a workload costs a month on driftlog and on Apache Kafka: "
        "requests, storage, metadata store, machines, traffic between zones.  No cluster is asked.",
        examples="  driftlog cost workload --write 10 --fan-out 3\n"
        "  driftlog cost workload --write 100 --price machine_hour=0.05 --json\n",
    )
    workload.add_argument(
        "--write",
        type=_amount,
        required=True,
        metavar="MIB",
        help="MiB a second that producers send, compressed",
    )
    workload.add_argument(
        "--fan-out",
        type=_amount,
        default=1.0,
        metavar="N",
        help="how often each byte is read (default: 1)",
    )
    workload.add_argument(
        "--cold-share",
        type=_share,
        default=0.0,
        metavar="SHARE",
        help="share of the reads that are of old records, 0 to 1 (default: 0)",
    )
    workload.add_argument(
        "--retention-hours",
        type=positive,
        default=168,
        metavar="HOURS",
        help="how long records stay (default: 168)",
    )
    workload.add_argument(
        "--partitions",
        type=positive,
        default=100,
        metavar="N",
        help="partitions that have records (default: 100)",
    )
    _add_zones(workload)
    workload.add_argument(
        "--sealed-ratio",
        type=_amount,
        default=1.0,
        metavar="RATIO",
        help="bytes of Parquet for each byte that producers send (default: 1)",
    )
    _add_options(workload)
    cluster = add_command(
        cost,
        "cluster",
        _cluster,
        help="what this cluster spends a month, from its own counters",
        description="Print what the cluster spends a month at the rate of its agents' counters of "
        "requests: since the start of each agent, or in the next seconds.",
        examples="  driftlog cost cluster --bootstrap-server 127.0.0.1:9092\n"
        "  driftlog cost cluster --seconds 60 --store s3://bucket/prefix\n",
    )
    cluster.add_argument(
        "--seconds",
        type=natural,
        default=0,
        metavar="N",
        help="count for so many seconds (default: what the agents have counted since their start)",
    )
    where = cluster.add_mutually_exclusive_group()
    where.add_argument(
        "--store",
        metavar="LOCATION",
        help="list the objects at this location, to add their storage: a LIST for each 1,000",
    )
    where.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="the same for the directory of the agent that holds its objects",
    )
    _add_zones(cluster)
    _add_options(cluster)
    add_connection_options(cluster)


def _add_zones(parser: Parser) -> None:
    parser.add_argument("--zones", type=positive, default=3, metavar="N", help="zones (default: 3)")


def _add_options(parser: Parser) -> None:
    parser.add_argument(
        "--prices", type=Path, metavar="FILE", help="JSON of prices that replace the built-in ones"
    )
    parser.add_argument(
        "--price",
        action="append",
        default=[],
        type=key_value,
        metavar="NAME=VALUE",
        help="replace one price; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with each line")


def _amount(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return found


def _share(text: str) -> float:
    found = _amount(text)
    if found > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is more than 1")
    return found


def _prices(options: argparse.Namespace) -> Prices:
    built_in = files("driftlog.cost").joinpath("prices.json").read_text()
    try:
        given = {} if options.prices is None else _given(options.prices.read_text())
        return read_prices(built_in, given, dict(options.price))
    except (PriceError, OSError) as error:
        raise UsageError(str(error)) from error


def _given(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise PriceError(f"--prices: {error}") from error
    if not isinstance(found, dict):
        raise PriceError("--prices: no JSON object")
    return found


# ── A workload ──


def _workload(options: argparse.Namespace) -> int:
    prices = _prices(options)
    load = Workload(
        write_bytes_per_s=options.write * MIB,
        fan_out=options.fan_out,
        cold_share=options.cold_share,
        retention_s=options.retention_hours * 3600.0,
        partitions=options.partitions,
        zones=options.zones,
        sealed_ratio=options.sealed_ratio,
    )
    _print(options, prices, driftlog_bill(load, prices), kafka_bill(load, prices))
    return OK


# ── This cluster ──


def _cluster(options: argparse.Namespace) -> int:
    prices = _prices(options)
    errors: list[str] = []
    addresses = http_addresses(options, errors)
    counted = {address: _counters(address) for address in addresses}
    options.notice.rests()
    if options.seconds:
        progress = Progress()
        while (left := options.seconds - progress.seconds) > 0:
            if progress.due():
                progress.show(f"counting for {left:.0f} s …")
            time.sleep(min(left, 0.2))
        progress.clear()
        counted = {address: _counters(address).since(counted[address]) for address in addresses}
    for error in errors:
        complain(error)
    try:
        stored = _stored_bytes(options)
    except ImportError as error:
        return no_extra(error, "the storage of the objects", ("agent", "spark"))
    agents = list(counted.values())
    found = cluster_bill(agents, prices, zones=options.zones, stored_bytes=stored)
    _print(options, prices, found)
    if not options.json:
        covered = [agent.seconds for agent in agents]
        longest = max(covered, default=0.0)
        complain(
            f"from the counters of {plural(len(agents), 'agent')} over {longest:,.0f} s"
            + ("" if stored is not None else "; --store LOCATION adds the objects' storage")
        )
        if min(covered, default=_SHORT_S) < _SHORT_S:
            complain(_SHORT_WINDOW if options.seconds else _SHORT_UPTIME)
    return OK


def _counters(address: str) -> Counters:
    try:
        return read_counters(agent_http.get_text(address, "/metrics", _ANSWER_S))
    except NoCountersError as error:
        raise CommandError(f"{address}: {error}") from error


def _stored_bytes(options: argparse.Namespace) -> int | None:
    """The size of all objects; None: the options name no location.

    Raises:
        ImportError: an extra is not installed.
        UsageError: the location is none.
        CommandError: there is no driftlog bucket, or it does not answer.
    """
    location = options.store or (options.dir and str(options.dir / "objects"))
    if location is None:
        return None
    from driftlog.bucket.sealed_topics import open_bucket  # noqa: PLC0415

    async def listed() -> int:
        async with open_bucket(location) as store:
            return sum([info.size_bytes async for page in store.list("") for info in page.objects])

    try:
        return asyncio.run(listed())
    except ValueError as error:
        raise UsageError(str(error)) from error
    except DriftlogError as error:
        raise CommandError(str(error)) from error


# ── Output ──


def _print(options: argparse.Namespace, prices: Prices, *bills: Bill) -> None:
    if options.json:
        print_json({"prices": asdict(prices), "bills": [_document(one) for one in bills]})
        return
    titles = ("$ a month", *(one.of for one in bills))
    columns = [
        _aligned([*(_dollars(one.of_group(group)) for group in BillGroup), _dollars(one.dollars)])
        for one in bills
    ]
    names = [*(group.value for group in BillGroup), "in all"]
    print_table(titles, list(zip(names, *columns, strict=True)))
    for one in bills:
        lines = sorted(one.lines, key=lambda line: -line.dollars)
        print()
        print_table(
            (one.of, "", "", "$ a month"),
            [
                (line.what, quantity, line.unit, dollars)
                for line, quantity, dollars in zip(
                    lines,
                    _aligned([f"{line.quantity:,.1f}" for line in lines]),
                    _aligned([_dollars(line.dollars) for line in lines]),
                    strict=True,
                )
            ],
        )
    complain(f"prices: {prices.source} ({prices.date})")


def _aligned(texts: list[str]) -> list[str]:
    """To the right."""
    width = max(map(len, texts), default=0)
    return [text.rjust(width) for text in texts]


def _dollars(value: float) -> str:
    return f"{value:,.2f}"


def _document(found: Bill) -> dict[str, Any]:
    return {
        "of": found.of,
        "dollars": found.dollars,
        "groups": {group.value: found.of_group(group) for group in BillGroup},
        "lines": [
            {
                "group": line.group.value,
                "what": line.what,
                "quantity": line.quantity,
                "unit": line.unit,
                "price": line.price,
                "dollars": line.dollars,
            }
            for line in found.lines
        ],
    }
