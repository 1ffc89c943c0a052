"""The commands of the jobs that rewrite topics: `driftlog spark compact`, `merge`, `repartition`.

Root.
"""

import argparse

from driftlog.cli.common.errors import FAILED, OK
from driftlog.cli.common.output import complain, number, plural, print_json, print_table, size
from driftlog.cli.common.parsers import Commands, Parser, key_value, partitions, positive
from driftlog.cli.connection.connection import (
    add_connection_options,
    bootstrap,
    connect,
    properties,
)
from driftlog.cli.segments.bucket_location import location_of
from driftlog_spark_reader.rewrites.repartition import repartition_topic
from driftlog_spark_reader.rewrites.rewrite_topics import (
    FACTOR,
    MAP_BYTES,
    Rewrites,
    compact_topics,
    merge_topics,
)
from driftlog_spark_reader.sessions.command_session import add_job, session_of
from driftlog_tiering.compaction.rewrite_report import Outcome, RewriteReport

_MIB = 1024 * 1024


def add_compact(commands: Commands) -> None:
    """Add `compact`."""
    job = add_job(
        commands,
        "compact",
        _compact,
        help="keep the newest record of each key in compacted topics",
        description="Compact the partitions of compacted topics that are due, one in each task of "
        "Spark, beside the agents: what an agent's cleaner does, on more machines.  Executors need "
        "driftlog, and the bucket's credentials in AWS_* variables.  A job that ends early is run "
        "again.  Exit status 1: a partition failed, or was void.",
        examples="  driftlog spark compact users --store s3://bucket/prefix --min-dirty-ratio 0\n",
    )
    _add_topics(job, "default: all topics whose own cleanup.policy has compact")
    job.add_argument(
        "--min-dirty-ratio",
        type=float,
        metavar="RATIO",
        help="in place of the topics' min.cleanable.dirty.ratio; 0: all that has something new",
    )
    job.add_argument(
        "--memory",
        type=positive,
        metavar="MIB",
        default=MAP_BYTES // _MIB,
        help="for the keys of one partition, 24 bytes each (default: %(default)s)",
    )


def add_merge(commands: Commands) -> None:
    """Add `merge`."""
    job = add_job(
        commands,
        "merge",
        _merge,
        help="make larger segments of small ones",
        description="Merge small neighbouring segments, one partition in each task of Spark, "
        "beside the agents; also in partitions that are not written any more.  Executors need "
        "driftlog, and the bucket's credentials in AWS_* variables.  A job that ends early is run "
        "again.  Exit status 1: a partition failed, or was void.",
        examples="  driftlog spark merge --store s3://bucket/prefix --factor 4\n",
    )
    _add_topics(job, "default: all")
    job.add_argument(
        "--factor",
        type=positive,
        metavar="N",
        default=FACTOR,
        help="small segments at the end of a partition that become one (default: %(default)s)",
    )


def add_repartition(commands: Commands) -> None:
    """Add `repartition`."""
    job = add_job(
        commands,
        "repartition",
        _repartition,
        help="copy a topic by key into a new one with other partitions",
        description="Write the sealed records of SOURCE to the new topic TARGET: each where "
        "Kafka's default partitioner sends its key, and each key in its order.  A job that ends "
        "early leaves no topic, and is run again.  Executors need driftlog, and the bucket's "
        "credentials in AWS_* variables.",
        examples="  driftlog spark repartition users users-24 --partitions 24 --store "
        "s3://bucket/prefix\n",
    )
    job.add_argument("source", metavar="SOURCE", help="a topic")
    job.add_argument("target", metavar="TARGET", help="a name that no topic has")
    job.add_argument(
        "-p", "--partitions", type=positive, metavar="N", required=True, help="of TARGET"
    )
    job.add_argument(
        "-c",
        "--config",
        type=key_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of TARGET, over those that SOURCE has of its own; may be repeated",
    )
    add_connection_options(job)


def _add_topics(job: Parser, default: str) -> None:
    job.add_argument("topics", nargs="*", metavar="TOPIC", help=default)
    job.add_argument("--partitions", type=partitions, metavar="N,…", help="only these")


def _compact(options: argparse.Namespace) -> int:
    location = location_of(options)
    found = compact_topics(
        session_of(options, location),
        location,
        options.topics or None,
        partitions=options.partitions,
        min_dirty_ratio=options.min_dirty_ratio,
        map_bytes=options.memory * _MIB,
        progress=_tell,
    )
    return _ended(found, as_json=options.json)


def _merge(options: argparse.Namespace) -> int:
    location = location_of(options)
    found = merge_topics(
        session_of(options, location),
        location,
        options.topics or None,
        partitions=options.partitions,
        factor=options.factor,
        progress=_tell,
    )
    return _ended(found, as_json=options.json)


def _repartition(options: argparse.Namespace) -> int:
    location = location_of(options)
    connect(options)
    found = repartition_topic(
        session_of(options, location),
        location,
        options.source,
        options.target,
        partitions=options.partitions,
        bootstrap_servers=bootstrap(options),
        configs=dict(options.config),
        client_config=_client_config(options),
    )
    if options.json:
        print_json(found.to_dict())
        return OK
    print(
        f"{plural(found.records, 'record')} of {found.source} in "
        f"{plural(found.partitions, 'partition')} and {plural(found.segments, 'segment')} of "
        f"{found.target}, {size(found.bytes)}"
    )
    return OK


def _client_config(options: argparse.Namespace) -> dict[str, str]:
    """The properties that the user gives."""
    found = properties(options)
    return {name: value for name, value in found.items() if name != "bootstrap.servers"}


def _tell(done: int, count: int, report: RewriteReport) -> None:
    reason = f" ({report.reason})" if report.outcome is Outcome.CLEAN else ""
    complain(f"{_name(report)}: {report.outcome}{reason}, {done} of {count}")


def _ended(found: Rewrites, *, as_json: bool) -> int:
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)
    for each in found.partitions:
        if each.outcome not in (Outcome.DONE, Outcome.CLEAN):
            complain(f"{_name(each)}: {each.outcome}: {each.reason}")
    return FAILED if found.unfinished else OK


def _print(found: Rewrites) -> None:
    if not found.partitions:
        print("there is no topic to work on")
        return
    print_table(
        ["PARTITION", "OUTCOME", "RECORDS", "BYTES", "SEGMENTS"],
        [
            (
                _name(each),
                str(each.outcome),
                _change(number(each.records_before), number(each.records)),
                _change(size(each.bytes_before), size(each.bytes)),
                _change(number(each.segments_before), number(each.segments)),
            )
            for each in found.partitions
        ],
    )
    done = [each for each in found.partitions if each.outcome is Outcome.DONE]
    gone = sum(each.records_before - each.records for each in done)
    print(
        f"{plural(len(done), 'partition')} of {len(found.partitions)}: {plural(gone, 'record')} "
        f"and {plural(sum(e.segments_before - e.segments for e in done), 'segment')} fewer"
    )


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _name(report: RewriteReport) -> str:
    return f"{report.topic}-{report.partition}"
