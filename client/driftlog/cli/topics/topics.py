"""`driftlog topics`: list, describe, create, alter, delete; `record_deletion` deletes records.

Shell.
"""

import argparse
import fnmatch
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
    TopicMetadata,
)

from driftlog.cli.common.errors import FAILED, OK, CommandError, UsageError
from driftlog.cli.common.output import Bad, complain, plural, print_json, print_table, size, title
from driftlog.cli.common.parsers import (
    Commands,
    Parser,
    add_command,
    add_group,
    flatten,
    key_values,
    positive,
)
from driftlog.cli.configs.config_notes import config_notes, say_notes
from driftlog.cli.connection.cluster_client import EARLIEST, LATEST, ClusterClient, Offset
from driftlog.cli.connection.connection import add_connection_options, result_of, write_failure
from driftlog.cli.topics import record_deletion

_URL_SAFE: Final = str.maketrans("+/", "-_")
"""librdkafka writes topic ids in standard base64, Kafka in base64 for URLs."""

_BYTES: Final = ("retention.bytes", "segment.bytes", "max.message.bytes")


def add_commands(commands: Commands) -> None:
    """Add the commands of this file."""
    topics = add_group(commands, "topics", help="list, describe, create, alter and delete topics")

    listing = add_command(topics, "list", _list, help="list topics")
    listing.add_argument(
        "patterns",
        nargs="*",
        metavar="PATTERN",
        help="list only topics with these names; * and ? are wildcards",
    )
    _topic_option(listing)
    listing.add_argument(
        "--exclude-internal", action="store_true", help="leave out topics whose names start with __"
    )
    listing.add_argument("-q", "--quiet", action="store_true", help="print names only, one a line")
    _reading(listing)

    describe = add_command(
        topics,
        "describe",
        _describe,
        help="show partitions, leaders, offsets and configs of topics",
        description="Show the partitions, leaders, offsets and set configs of topics; of all "
        "topics if none is named.  A config that does nothing yet is marked.",
    )
    describe.add_argument("names", nargs="*", metavar="TOPIC")
    _topic_option(describe)
    describe.add_argument(
        "--unavailable-partitions", action="store_true", help="show only partitions without leader"
    )
    _reading(describe)

    create = add_command(
        topics,
        "create",
        _create,
        help="create topics",
        examples="  driftlog topics create flights --partitions 6 --config retention.ms=86400000\n",
    )
    create.add_argument("names", nargs="*", metavar="TOPIC")
    _topic_option(create)
    create.add_argument(
        "-p",
        "--partitions",
        type=positive,
        metavar="N",
        help="number of partitions (default: the cluster's num.partitions)",
    )
    create.add_argument(
        "-r",
        "--replication-factor",
        type=positive,
        metavar="N",
        help="replication factor (default: the cluster's default.replication.factor)",
    )
    _config_option(create, "set a config of the new topic; may be repeated")
    create.add_argument("--if-not-exists", action="store_true", help="accept an existing topic")
    create.add_argument(
        "--dry-run", action="store_true", help="only check whether the topic could be created"
    )
    add_connection_options(create)

    alter = add_command(
        topics, "alter", _alter, help="add partitions to topics, change their configs"
    )
    alter.add_argument("names", nargs="*", metavar="TOPIC")
    _topic_option(alter)
    alter.add_argument(
        "-p",
        "--partitions",
        type=positive,
        metavar="N",
        help="new number of partitions; it cannot decrease",
    )
    _config_option(alter, "set a config; may be repeated")
    alter.add_argument(
        "--delete-config",
        action="append",
        metavar="NAME",
        help="reset a config to its default; may be repeated",
    )
    alter.add_argument("--if-exists", action="store_true", help="accept a missing topic")
    add_connection_options(alter)

    delete = add_command(topics, "delete", _delete, help="delete topics with all their records")
    delete.add_argument("names", nargs="*", metavar="TOPIC")
    _topic_option(delete)
    delete.add_argument("--if-exists", action="store_true", help="accept a missing topic")
    add_connection_options(delete)

    record_deletion.add_commands(topics)


def _topic_option(parser: Parser) -> None:
    """Add --topic, as in Kafka's scripts."""
    parser.add_argument("-t", "--topic", action="append", metavar="TOPIC", help="as TOPIC")


def _config_option(parser: Parser, what: str) -> None:
    parser.add_argument(
        "-c", "--config", action="append", type=key_values, metavar="NAME=VALUE", help=what
    )


def _reading(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection_options(parser)


def _names(options: argparse.Namespace, *, must: bool) -> list[str]:
    names = list(dict.fromkeys([*options.names, *(options.topic or [])]))
    if must and not names:
        raise UsageError(f"no topic is named: `{options.parser.prog} TOPIC`")
    return names


# ── Reading ──


def _list(options: argparse.Namespace) -> int:
    cluster = ClusterClient(options)
    patterns = [*options.patterns, *(options.topic or [])]
    found = [
        topic
        for name, topic in cluster.topics([]).items()
        if (not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))
        and not (options.exclude_internal and name.startswith("__"))
    ]
    if options.json:
        print_json(
            [
                {
                    "topic": topic.topic,
                    "partitions": len(topic.partitions),
                    "replication_factor": _replication_factor(topic),
                    "internal": str(topic.topic).startswith("__"),
                }
                for topic in found
            ]
        )
    elif options.quiet:
        for topic in found:
            print(topic.topic)
    elif found:
        rows = [(t.topic, len(t.partitions), _replication_factor(t)) for t in found]
        print_table(("topic", "partitions", "replicas"), rows)
    else:
        complain("there are no topics" + (" of such a name" if patterns else " yet"))
    return OK


def _replication_factor(topic: TopicMetadata) -> int:
    return max((len(p.replicas) for p in topic.partitions.values()), default=0)


def _describe(options: argparse.Namespace) -> int:
    cluster = ClusterClient(options)
    topics = cluster.topics(_names(options, must=False))
    led = [
        (name, id_)
        for name, t in topics.items()
        for id_, p in t.partitions.items()
        if p.leader >= 0
    ]
    earliest = cluster.offsets(dict.fromkeys(led, EARLIEST))
    latest = cluster.offsets(dict.fromkeys(led, LATEST))
    ids = _topic_ids(cluster, list(topics))
    configs = _set_configs(cluster, list(topics))
    with_configs = next((name for name, found in configs.items() if found), None)
    notes = {} if with_configs is None else config_notes(cluster, "topic", with_configs)
    described: list[dict[str, Any]] = [
        {
            "topic": name,
            "topic_id": ids.get(name),
            "replication_factor": _replication_factor(topic),
            "configs": configs[name],
            "config_notes": {config: notes[config] for config in configs[name] if config in notes},
            "partitions": [
                {
                    "partition": id_,
                    "leader": part.leader if part.leader >= 0 else None,
                    "replicas": list(part.replicas),
                    "isr": list(part.isrs),
                    "earliest_offset": _offset(earliest.get((name, id_))),
                    "latest_offset": _offset(latest.get((name, id_))),
                }
                for id_, part in sorted(topic.partitions.items())
                if not options.unavailable_partitions or part.leader < 0
            ],
        }
        for name, topic in topics.items()
    ]
    if options.unavailable_partitions:
        described = [topic for topic in described if topic["partitions"]]
    if options.json:
        print_json(described)
        return OK
    if not described:
        complain("every partition has a leader" if topics else "there are no topics yet")
    for at, topic in enumerate(described):
        if at:
            print()
        _print_topic(topic)
    return OK


def _print_topic(topic: dict[str, Any]) -> None:
    parts = topic["partitions"]
    records = sum(
        p["latest_offset"] - p["earliest_offset"] for p in parts if p["latest_offset"] is not None
    )
    title(
        f"{topic['topic']}  {plural(len(parts), 'partition')}, replication factor "
        f"{topic['replication_factor']}, {plural(records, 'offset')} in use"
        + (f", id {topic['topic_id']}" if topic["topic_id"] else "")
    )
    for name, value in topic["configs"].items():
        note = topic["config_notes"].get(name)
        print(f"  {name}={value}{_unit(name, value)}{f'  [{note}]' if note else ''}")
    rows = [
        (
            p["partition"],
            Bad("none") if p["leader"] is None else str(p["leader"]),
            ",".join(map(str, p["replicas"])),
            ",".join(map(str, p["isr"])),
            p["earliest_offset"],
            p["latest_offset"],
        )
        for p in parts
    ]
    print_table(("partition", "leader", "replicas", "isr", "earliest", "latest"), rows)


def _unit(name: str, value: str | None) -> str:
    """A long number in words: ``  (7 days)``."""
    if value is None or not value.isdecimal():
        return ""
    amount = int(value)
    if name in _BYTES and amount >= 1024:
        return f"  ({size(amount)})"
    if name.endswith(".ms"):
        for ms, unit in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute")):
            if amount >= ms and amount % ms == 0:
                return f"  ({plural(amount // ms, unit)})"
    return ""


def _offset(answer: Offset | CommandError | None) -> int | None:
    return answer.offset if isinstance(answer, Offset) else None


def _topic_ids(cluster: ClusterClient, names: list[str]) -> dict[str, str]:
    """Topic ids by name; a cluster without topic ids gives none."""
    if not names:
        return {}
    asked = cluster.admin.describe_topics(TopicCollection(names), request_timeout=cluster.timeout)
    found = {}
    for name, future in asked.items():
        try:
            found[name] = str(future.result().topic_id).translate(_URL_SAFE)
        except KafkaException:
            continue
    return found


def _set_configs(cluster: ClusterClient, names: list[str]) -> dict[str, dict[str, str | None]]:
    """The configs set on the topics themselves."""
    if not names:
        return {}
    asked = cluster.admin.describe_configs(
        [ConfigResource(ResourceType.TOPIC, name) for name in names],
        request_timeout=cluster.timeout,
    )
    return {
        resource.name: {
            entry.name: entry.value
            for entry in sorted(result_of(future, resource.name).values(), key=lambda e: e.name)
            if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        }
        for resource, future in asked.items()
    }


# ── Writing ──


def _create(options: argparse.Namespace) -> int:
    names = _names(options, must=True)
    cluster = ClusterClient(options)
    configs = dict(flatten(options.config))
    new = [
        NewTopic(
            name,
            num_partitions=options.partitions or -1,
            replication_factor=options.replication_factor or -1,
            config=configs,
        )
        for name in names
    ]
    asked = cluster.admin.create_topics(
        new,
        request_timeout=cluster.timeout,
        operation_timeout=cluster.timeout,
        validate_only=options.dry_run,
    )
    status = OK
    created: str | None = None
    for name, future in asked.items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                if options.if_not_exists:
                    print(f"topic {name} exists already")
                    continue
                complain(f"topic {name!r} exists already; --if-not-exists makes that no error")
            else:
                text, failed = write_failure(error, "created")
                complain(f"topic {name!r}: {text}")
                status = max(status, failed)
                continue
            status = max(status, FAILED)
        else:
            created = name
            print(f"topic {name} {'could be created' if options.dry_run else 'is created'}")
    if configs and created is not None and not options.dry_run:
        say_notes(configs, config_notes(cluster, "topic", created))
    return status


def _alter(options: argparse.Namespace) -> int:
    names = _names(options, must=True)
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in flatten(options.config)
    ] + [
        ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE)
        for name in options.delete_config or []
    ]
    if not entries and options.partitions is None:
        raise UsageError("nothing to alter: give --partitions, --config or --delete-config")
    cluster = ClusterClient(options)
    names = _present(cluster, names, gone_is_fine=options.if_exists)
    if not names:
        return OK
    status = OK
    if options.partitions is not None:
        grown = cluster.admin.create_partitions(
            [NewPartitions(name, options.partitions) for name in names],
            request_timeout=cluster.timeout,
            operation_timeout=cluster.timeout,
        )
        for name, future in grown.items():
            done = f"has {plural(options.partitions, 'partition')}"
            status = max(status, _said(future, name, "altered", done))
    if entries:
        altered = cluster.admin.incremental_alter_configs(
            [
                ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
                for name in names
            ],
            request_timeout=cluster.timeout,
        )
        for resource, future in altered.items():
            done = f"has {plural(len(entries), 'config')} altered"
            status = max(status, _said(future, resource.name, "altered", done))
        if options.config and status == OK:
            notes = config_notes(cluster, "topic", names[0])
            say_notes((name for name, _ in flatten(options.config)), notes)
    return status


def _delete(options: argparse.Namespace) -> int:
    names = _names(options, must=True)
    cluster = ClusterClient(options)
    names = _present(cluster, names, gone_is_fine=options.if_exists)
    if not names:
        return OK
    asked = cluster.admin.delete_topics(
        names, request_timeout=cluster.timeout, operation_timeout=cluster.timeout
    )
    status = OK
    for name, future in asked.items():
        status = max(status, _said(future, name, "deleted", "is deleted"))
    return status


def _present(cluster: ClusterClient, names: list[str], *, gone_is_fine: bool) -> list[str]:
    metadata = cluster.metadata()
    if not gone_is_fine:
        return list(cluster.topics(names, metadata))
    for name in names:
        if name not in metadata.topics:
            print(f"topic {name} does not exist")
    return [name for name in names if name in metadata.topics]


def _said(future: Any, name: str, verb: str, done: str) -> int:
    try:
        future.result()
    except KafkaException as error:
        text, status = write_failure(error, verb)
        complain(f"topic {name!r}: {text}")
        return status
    print(f"topic {name} {done}")
    return OK
