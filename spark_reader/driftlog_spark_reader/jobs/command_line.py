"""The jobs' command line: `driftlog spark JOB …`, or `python -m driftlog_spark_reader.jobs JOB …`.

The session is made here, so every option of Spark is a --conf.  What a job prints goes to standard
output; progress, Spark's log and errors go to standard error.

Root.
"""

import argparse
import shutil
import sys
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from driftlog import DriftlogError
from driftlog.cli.common.errors import FAILED, INTERRUPTED, OK, CommandError, UsageError
from driftlog.cli.common.output import complain, plural, print_json, print_table, size
from driftlog.cli.common.parsers import (
    Commands,
    Parser,
    add_commands,
    key_value,
    moment,
    natural,
    new_parser,
    parse,
    partitions,
    positive,
)
from driftlog.cli.segments.bucket_location import location_of
from driftlog_spark_reader.common.errors import (
    ImportTopicError,
    JobError,
    ReadTopicError,
    SessionError,
)
from driftlog_spark_reader.jobs import chart, chart_png
from driftlog_spark_reader.jobs.audit import PartitionAudit, TopicAudit, audit_topic
from driftlog_spark_reader.jobs.convert_checkpoint import convert_checkpoint
from driftlog_spark_reader.jobs.export import FORMATS, export_topic
from driftlog_spark_reader.jobs.export_plan import Unit
from driftlog_spark_reader.jobs.stats import TopicStats, topic_stats
from driftlog_spark_reader.rewrites.commands import add_compact, add_merge, add_repartition
from driftlog_spark_reader.sessions.command_session import add_job, session_of


def main(arguments: list[str] | None = None) -> int:
    """Run a job; returns its exit status: 0, 1 failed or a finding, 2 a wrong command line."""
    line = sys.argv[1:] if arguments is None else arguments
    options = parse(parser(), parser(), line)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except CommandError as error:
        complain(str(error))
        return error.status
    except (
        JobError,
        ReadTopicError,
        ImportTopicError,
        SessionError,
        DriftlogError,
        ValueError,
    ) as error:
        complain(str(error))
        return FAILED
    except (PySparkException, Py4JError) as error:
        complain(f"Spark: {str(error).partition('JVM stacktrace')[0].strip()}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def parser() -> Parser:
    """The grammar."""
    whole = new_parser("driftlog spark", "Jobs on Spark, safe beside live agents.")
    commands = add_commands(whole)
    for add in (
        _add_convert_checkpoint,
        _add_stats,
        _add_audit,
        _add_export,
        add_compact,
        add_merge,
        add_repartition,
    ):
        add(commands)
    return whole


def _optional_location(options: argparse.Namespace) -> str | None:
    try:
        return location_of(options)
    except CommandError:
        return None


# ── convert-checkpoint ──


def _add_convert_checkpoint(commands: Commands) -> None:
    job = add_job(
        commands,
        "convert-checkpoint",
        _convert_checkpoint,
        help="move a query from Spark's Kafka source to the format driftlog",
        description="Copy the checkpoint of a stopped query to TARGET, which does not exist, and "
        "check that the log has its offsets.  The same query with format driftlog goes on there, "
        "without a gap or a repeat.  SOURCE is not changed.",
        examples="  driftlog spark convert-checkpoint s3a://b/checkpoints/old "
        "s3a://b/checkpoints/new --store s3://bucket/prefix\n",
    )
    job.add_argument("source", metavar="SOURCE", help="the query's checkpointLocation")
    job.add_argument("target", metavar="TARGET", help="a new one")
    job.add_argument(
        "--source",
        dest="sources",
        type=natural,
        action="append",
        metavar="N",
        help="a source of the query that is Kafka's, from 0 on (default: all are)",
    )
    job.add_argument(
        "--include-tail",
        action="store_true",
        help="the query will have the option includeTail: it reads what is not sealed, too",
    )


def _convert_checkpoint(options: argparse.Namespace) -> int:
    location = _optional_location(options)
    spark = session_of(options, location, options.source, options.target)
    found = convert_checkpoint(
        spark,
        options.source,
        options.target,
        location=location,
        sources=options.sources,
        include_tail=options.include_tail,
    )
    if location is None:
        complain("the offsets are not compared with the log: --store or --dir names it")
    if options.json:
        print_json(found.to_dict())
    else:
        print("\n".join(found.lines()))
    return OK


# ── stats ──


def _add_stats(commands: Commands) -> None:
    job = add_job(
        commands,
        "stats",
        _stats,
        help="count records, bytes, keys and times of a topic",
        description="Count the sealed records of a topic by partition, and draw them by time.",
        examples="  driftlog spark stats flights --store s3://bucket/prefix --png flights.png\n",
    )
    _add_topic_options(job)
    job.add_argument(
        "--exact", action="store_true", help="count distinct keys exactly (default: within ~1 %%)"
    )
    job.add_argument(
        "--buckets", type=positive, metavar="N", help="of time (default: the terminal's width)"
    )
    job.add_argument("--png", metavar="FILE", help="draw the chart there, too (matplotlib)")


def _add_topic_options(job: Parser) -> None:
    job.add_argument("topic", metavar="TOPIC")
    job.add_argument("--partitions", type=partitions, metavar="N,…", help="only these")
    job.add_argument("--since", type=moment, metavar="TIME", help="of the oldest records")
    job.add_argument("--until", type=moment, metavar="TIME", help="of the first that are left out")


def _stats(options: argparse.Namespace) -> int:
    if options.png:
        chart_png.check_matplotlib()
    location = location_of(options)
    columns = shutil.get_terminal_size().columns
    found = topic_stats(
        session_of(options, location),
        location,
        options.topic,
        partitions=options.partitions,
        since=options.since,
        until=options.until,
        exact_keys=options.exact,
        buckets=options.buckets or chart.columns_for_bars(columns, [10], 10**9),
    )
    if options.json:
        print_json(found.to_dict())
    else:
        _print_stats(found)
    if options.png and found.histogram is not None:
        chart_png.write_png(found.histogram, options.topic, options.png)
    elif options.png:
        complain(f"there are no records, and {options.png} is not written")
    return OK


def _print_stats(found: TopicStats) -> None:
    titles = ["PARTITION", "RECORDS", "KEY BYTES", "VALUE BYTES", "KEYS", "NO KEY", "TOMBSTONES"]
    rows = [
        (
            str(each.partition),
            each.records,
            each.key_bytes,
            each.value_bytes,
            each.distinct_keys,
            each.without_key,
            each.without_value,
            *(
                None if time is None else chart.moment(time)
                for time in (each.min_timestamp_ms, each.max_timestamp_ms)
            ),
        )
        for each in found.partitions
    ]
    print_table([*titles, "OLDEST", "NEWEST"], rows)
    about = "" if found.keys_are_exact else "about "
    print(
        f"{plural(found.records, 'record')}, {about}{plural(found.distinct_keys, 'distinct key')}, "
        f"{plural(found.files, 'file')} of {size(found.file_bytes)}"
    )
    if found.histogram is not None:
        print()
        print("\n".join(chart.lines(found.histogram)))


# ── audit ──

_GAPS_SHOWN: Final = 20


def _add_audit(commands: Commands) -> None:
    job = add_job(
        commands,
        "audit",
        _audit,
        help="check that no sealed record is lost, there twice, or other than elsewhere",
        description="Read every sealed record of a topic: offsets without a record are named, "
        "offsets with two records are a fault, and a digest of each partition is printed, which "
        "is the same for the same records in other files.  Exit status 1: there is a fault.",
        examples="  driftlog spark audit flights --store s3://bucket/prefix\n"
        "  driftlog spark audit flights --store s3://bucket/prefix --compare-bootstrap old:9092\n",
    )
    job.add_argument("topic", metavar="TOPIC")
    job.add_argument("--partitions", type=partitions, metavar="N,…", help="only these")
    job.add_argument(
        "--compare-bootstrap",
        metavar="HOST:PORT",
        help="of a cluster that must have the same records at the same offsets; Spark needs its "
        "Kafka source",
    )
    job.add_argument(
        "--compare-conf",
        type=key_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a property of its consumer, such as security.protocol=SSL; may be repeated",
    )
    job.add_argument("--compare-topic", metavar="TOPIC", help="its topic, if the name differs")
    job.add_argument(
        "--require-dense", action="store_true", help="an offset without a record is a fault"
    )


def _audit(options: argparse.Namespace) -> int:
    location = location_of(options)
    compare = None
    if options.compare_bootstrap:
        compare = {"kafka.bootstrap.servers": options.compare_bootstrap}
        compare |= {f"kafka.{name}": value for name, value in options.compare_conf}
    elif options.compare_conf or options.compare_topic:
        raise UsageError("--compare-conf and --compare-topic need --compare-bootstrap")
    found = audit_topic(
        session_of(options, location),
        location,
        options.topic,
        partitions=options.partitions,
        compare=compare,
        compare_topic=options.compare_topic,
        require_dense=options.require_dense,
    )
    if options.json:
        print_json(found.to_dict())
    else:
        _print_audit(found)
    for fault in found.faults:
        complain(fault)
    return audit_status(found)


def audit_status(found: TopicAudit) -> int:
    """The exit status: 1 if there is a fault."""
    return FAILED if found.faults else OK


def _print_audit(found: TopicAudit) -> None:
    print_table(
        ["PARTITION", "START", "END", "RECORDS", "OFFSETS", "DIGEST"],
        [
            (
                str(each.partition),
                each.start,
                each.end,
                each.records,
                "dense" if each.is_dense else f"{plural(each.missing, 'offset')} without a record",
                each.digest,
            )
            for each in found.partitions
        ],
    )
    for each in found.partitions:
        if each.gaps:
            print(f"partition {each.partition} has no record at {_gaps(each)}")
    if found.compared_with is not None and not found.faults:
        print(f"the records are those of {found.compared_with}")


def _gaps(each: PartitionAudit) -> str:
    named = [f"{gap.start}-{gap.end - 1}" for gap in each.gaps[:_GAPS_SHOWN]]
    is_all = each.gaps_are_all and len(named) == len(each.gaps)
    return ", ".join(named) + ("" if is_all else ", … (--json has more)")


# ── export ──


def _add_export(commands: Commands) -> None:
    job = add_job(
        commands,
        "export",
        _export,
        help="write a range of times to plain Parquet or JSON",
        description="Write the sealed records of a topic to TARGET, in folders by day or hour "
        "(UTC) and partition.  The first run fixes which records; if it ends early, run it again: "
        "it does what is missing.  A second run on a TARGET stops the first.",
        examples="  driftlog spark export flights s3a://lake/flights --store s3://bucket/prefix "
        "--since 2026-11-01 --until 2026-11-08\n",
    )
    _add_topic_options(job)
    job.add_argument("target", metavar="TARGET", help="a folder that only this export writes to")
    job.add_argument("--format", choices=FORMATS, default="parquet", help="default: parquet")
    job.add_argument(
        "--unit",
        choices=[unit.value for unit in Unit],
        default="day",
        help="of time, whose records are written in one step (default: day)",
    )
    job.add_argument("--text", action="store_true", help="keys and values are strings (UTF-8)")
    job.add_argument(
        "--option",
        type=key_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of Spark's writer, such as compression=zstd; may be repeated",
    )
    job.add_argument(
        "--skip-expired",
        action="store_true",
        help="go on without records that retention removed since the first run, and without those "
        "that cannot be decoded",
    )


def _export(options: argparse.Namespace) -> int:
    location = location_of(options)
    found = export_topic(
        session_of(options, location, options.target),
        location,
        options.topic,
        options.target,
        format=options.format,
        unit=options.unit,
        since=options.since,
        until=options.until,
        partitions=options.partitions,
        text=options.text,
        options=dict(options.option),
        skip_expired=options.skip_expired,
        progress=lambda number, count, name: complain(f"{name}: {number} of {count}"),
    )
    if options.json:
        print_json(found.to_dict())
        return OK
    before = f"; {found.units_before:,} were done before" if found.units_before else ""
    units = plural(found.units, options.unit)
    print(f"{units} at {found.target}{before}; {plural(found.records, 'record')} written now")
    return OK
