"""`driftlog configs`: shows and alters configs of topics, brokers and groups.

Shell.
"""

import argparse
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from driftlog.cli.common.errors import OK, CommandError, UsageError
from driftlog.cli.common.output import complain, plural, print_json, print_table, title
from driftlog.cli.common.parsers import (
    Commands,
    Parser,
    add_command,
    add_group,
    flatten,
    key_values,
)
from driftlog.cli.configs.config_notes import config_notes, no_effect, say_notes
from driftlog.cli.connection.cluster_client import ClusterClient, any_broker
from driftlog.cli.connection.connection import add_connection_options, result_of, write_failure
from driftlog.cli.connection.wire import BROKER_CONFIGS, GROUP_CONFIGS, Wire
from driftlog.cli.groups.group_descriptions import listings
from driftlog.common.similar_names import similar

_KINDS: Final = {"topics": "topic", "brokers": "broker", "groups": "group"}
_RESOURCES: Final = {"topic": ResourceType.TOPIC, "broker": ResourceType.BROKER}
_TYPES: Final = {"broker": BROKER_CONFIGS, "group": GROUP_CONFIGS}
_SOURCES: Final = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "start of the broker",
    5: "default",
    6: "logger",
    7: "client metrics",
    8: "group",
}
_AT_START: Final = 4
_SET: Final = frozenset({1, 2, 3, _AT_START, 8})
"""Sources of values that are set, not defaults."""


def add_commands(commands: Commands) -> None:
    """Add the commands of this file."""
    configs = add_group(
        commands, "configs", help="describe and alter configs of topics, brokers and groups"
    )
    describe = add_command(
        configs,
        "describe",
        _describe,
        help="show the configs that are set, or all",
        examples="  driftlog configs describe --topic flights --all\n"
        "  driftlog configs describe --broker 1 --all --json\n",
    )
    _entity_options(describe)
    describe.add_argument("-a", "--all", action="store_true", help="show defaults, too")
    describe.add_argument("--json", action="store_true", help="print JSON")
    add_connection_options(describe)

    alter = add_command(
        configs,
        "alter",
        _alter,
        help="set or reset configs, change lists",
        examples="  driftlog configs alter --topic flights --add-config retention.ms=3600000\n"
        "  driftlog configs alter --topic flights --append-config cleanup.policy=compact\n"
        "  driftlog configs alter --topic flights --delete-config retention.ms --dry-run\n",
    )
    _entity_options(alter)
    for name, what in (
        ("add", "set a config"),
        ("append", "append values to a list"),
        ("subtract", "remove values from a list"),
    ):
        alter.add_argument(
            f"--{name}-config",
            action="append",
            type=key_values,
            metavar="NAME=VALUE[,…]",
            help=f"{what}; [a,b] is a list; may be repeated",
        )
    alter.add_argument(
        "--delete-config",
        action="append",
        type=_names,
        metavar="NAME[,…]",
        help="reset a config to its default; may be repeated",
    )
    alter.add_argument(
        "--dry-run", action="store_true", help="only check whether the configs could be altered"
    )
    add_connection_options(alter)


def _entity_options(parser: Parser) -> None:
    for kind in _KINDS.values():
        parser.add_argument(
            f"--{kind}",
            action="append",
            metavar="ID" if kind == "broker" else kind.upper(),
            help=f"this {kind}; may be repeated",
        )
    parser.add_argument(
        "--all-brokers",
        action="store_true",
        help="what is set on all brokers at once, and holds where a broker has nothing else",
    )
    parser.add_argument(
        "--entity-default",
        action="store_true",
        help="the same, with --entity-type brokers, as in Kafka's scripts",
    )
    parser.add_argument(
        "--entity-type",
        choices=sorted(_KINDS),
        help="type of --entity-name, as in Kafka's scripts; alone: all of that type",
    )
    parser.add_argument(
        "--entity-name",
        action="append",
        metavar="NAME",
        help="name of a topic or group, or id of a broker",
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@dataclass(frozen=True, slots=True)
class _Entity:
    kind: str
    name: str
    """Empty: of all brokers."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else f"all {self.kind}s"

    @property
    def by_wire(self) -> bool:
        """Whether librdkafka has no request for it."""
        return self.kind == "group" or not self.name


def _entities(cluster: ClusterClient, options: argparse.Namespace) -> list[_Entity]:
    """The entities that the options name.

    Raises:
        UsageError: they name none.
        CommandError: one does not exist.
    """
    found = [_Entity(kind, n) for kind in _KINDS.values() for n in getattr(options, kind) or []]
    if options.entity_name and not options.entity_type:
        raise UsageError(
            "--entity-name needs a type: give --entity-type, or --topic, --broker, --group"
        )
    if options.entity_default and options.entity_type != "brokers":
        raise UsageError("--entity-default needs --entity-type brokers")
    if options.all_brokers or options.entity_default:
        found.append(_Entity("broker", ""))
    elif options.entity_type:
        kind = _KINDS[options.entity_type]
        names = options.entity_name or _all(cluster, kind)
        found += [_Entity(kind, name) for name in names]
    if not found:
        raise UsageError(
            "no entity is named: give --topic TOPIC, --broker ID, --all-brokers or --group GROUP"
        )
    metadata = cluster.metadata()
    cluster.topics([e.name for e in found if e.kind == "topic"] or list(metadata.topics), metadata)
    brokers = {"", *map(str, metadata.brokers)}
    for entity in found:
        if entity.kind == "broker" and entity.name not in brokers:
            there = ", ".join(map(str, sorted(metadata.brokers)))
            raise CommandError(f"broker {entity.name!r} does not exist: {there}")
    return list(dict.fromkeys(found))


def _all(cluster: ClusterClient, kind: str) -> list[str]:
    match kind:
        case "topic":
            return list(cluster.topics([]))
        case "broker":
            return [str(id_) for id_ in sorted(cluster.metadata().brokers)]
        case _:
            return [str(group.group_id) for group in listings(cluster)]


# ── Reading ──


@dataclass(frozen=True, slots=True)
class _Config:
    name: str
    value: str | None
    source: int
    is_read_only: bool
    is_sensitive: bool
    note: str | None = None
    """The note that the config has no effect."""


def _describe(options: argparse.Namespace) -> int:
    cluster = ClusterClient(options)
    entities = _entities(cluster, options)
    found = _read(cluster, entities)
    shown = {
        entity: sorted(
            (c for c in found[entity] if options.all or _is_set(entity, c)), key=lambda c: c.name
        )
        for entity in entities
    }
    if options.json:
        print_json(
            [
                {
                    "type": entity.kind,
                    "name": entity.name,
                    "configs": [
                        {
                            "name": config.name,
                            "value": config.value,
                            "source": _SOURCES.get(config.source, "unknown"),
                            "read_only": config.is_read_only,
                            "sensitive": config.is_sensitive,
                            "note": config.note,
                        }
                        for config in configs
                    ],
                }
                for entity, configs in shown.items()
            ]
        )
        return OK
    for at, (entity, configs) in enumerate(shown.items()):
        if at:
            print()
        what = plural(len(configs), "config") + ("" if options.all else " set")
        title(f"{entity}  {what}")
        if configs:
            print_table(
                ("name", "value", "from", ""),
                [
                    (
                        config.name,
                        "(hidden)" if config.is_sensitive else config.value,
                        _SOURCES.get(config.source, "unknown"),
                        "; ".join(filter(None, ("read-only" * config.is_read_only, config.note))),
                    )
                    for config in configs
                ],
            )
    return OK


def _is_set(entity: _Entity, config: _Config) -> bool:
    """Whether it was set for *entity*; a value from a broker's start counts for brokers only."""
    return config.source in _SET and (entity.kind == "broker" or config.source != _AT_START)


def _read(cluster: ClusterClient, entities: list[_Entity]) -> dict[_Entity, list[_Config]]:
    """The configs of each entity.

    Raises:
        CommandError: the cluster does not return them.
    """
    found: dict[_Entity, list[_Config]] = {}
    topics = [entity for entity in entities if entity.kind == "topic"]
    # One call for all topics, one for each broker: librdkafka takes one broker in a call.
    calls = [topics] if topics else []
    calls += [[entity] for entity in entities if entity.kind == "broker" and entity.name]
    asked: dict[_Entity, Any] = {}
    for call in calls:
        futures = cluster.admin.describe_configs(
            [ConfigResource(_RESOURCES[e.kind], e.name) for e in call],
            request_timeout=cluster.timeout,
        )
        by_name = {resource.name: future for resource, future in futures.items()}
        asked |= {entity: by_name[entity.name] for entity in call}
    notes_of: dict[str, dict[str, str]] = {}
    for entity, future in asked.items():
        configs = result_of(future, f"{entity.kind} {entity.name!r}")
        if entity.kind not in notes_of:
            notes_of[entity.kind] = config_notes(cluster, entity.kind, entity.name)
        notes = notes_of[entity.kind]
        found[entity] = [
            _Config(c.name, c.value, c.source, c.is_read_only, c.is_sensitive, notes.get(c.name))
            for c in configs.values()
        ]
    others = [entity for entity in entities if entity.by_wire]
    if others:
        with Wire(cluster.options, any_broker(cluster)) as wire:
            for entity in others:
                found[entity] = [
                    _Config(
                        c.name,
                        c.value,
                        c.source,
                        c.is_read_only,
                        c.is_sensitive,
                        no_effect(c.documentation),
                    )
                    for c in wire.describe_configs(_TYPES[entity.kind], entity.name)
                ]
    return found


# ── Writing ──


def _alter(options: argparse.Namespace) -> int:
    changes: list[tuple[str, AlterConfigOpType, str | None]] = [
        *((n, AlterConfigOpType.SET, v) for n, v in flatten(options.add_config)),
        *((n, AlterConfigOpType.DELETE, None) for n in flatten(options.delete_config)),
        *((n, AlterConfigOpType.APPEND, v) for n, v in flatten(options.append_config)),
        *((n, AlterConfigOpType.SUBTRACT, v) for n, v in flatten(options.subtract_config)),
    ]
    if not changes:
        raise UsageError(
            "nothing to alter: give --add-config, --delete-config, --append-config or "
            "--subtract-config"
        )
    cluster = ClusterClient(options)
    entities = _entities(cluster, options)
    status = OK
    altered: dict[str, str] = {}
    for entity in entities:
        try:
            _change(cluster, entity, changes, dry_run=options.dry_run)
        except CommandError as error:
            known = {config.name for config in _read(cluster, [entity])[entity]}
            unknown = [name for name, _, _ in changes if name not in known]
            hint = similar(unknown[0], known) if unknown and known else ""
            named = f"{entity.kind} {entity.name!r}" if entity.name else str(entity)
            complain(f"{named}: {error}{hint}")
            status = max(status, error.status)
        else:
            could = "could be" if options.dry_run else "is"
            are = could if entity.name else could.replace("is", "are")
            print(f"{entity} {are} altered")
            altered[entity.kind] = entity.name
    names = [n for n, op, _ in changes if op is not AlterConfigOpType.DELETE]
    if names:
        for kind, name in altered.items():
            if not name:
                continue  # a config without an effect is not stored there
            say_notes(names, config_notes(cluster, kind, name))
    return status


def _change(
    cluster: ClusterClient,
    entity: _Entity,
    changes: list[tuple[str, AlterConfigOpType, str | None]],
    *,
    dry_run: bool,
) -> None:
    """Alter one entity.

    Raises:
        CommandError: the cluster refuses.
    """
    if entity.by_wire:
        with Wire(cluster.options, any_broker(cluster)) as wire:
            try:
                wire.alter_configs(
                    _TYPES[entity.kind],
                    entity.name,
                    [(name, operation.value, value) for name, operation, value in changes],
                    validate_only=dry_run,
                )
            except CommandError as error:
                raise CommandError(f"not altered: {error}") from error
        return
    entries = [ConfigEntry(name, v, incremental_operation=op) for name, op, v in changes]
    resource = ConfigResource(_RESOURCES[entity.kind], entity.name, incremental_configs=entries)
    futures = cluster.admin.incremental_alter_configs(
        [resource], request_timeout=cluster.timeout, validate_only=dry_run
    )
    for future in futures.values():
        try:
            future.result()
        except KafkaException as error:
            text, status = write_failure(error, "altered")
            failure = CommandError(text)
            failure.status = status
            raise failure from error
