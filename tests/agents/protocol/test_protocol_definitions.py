"""Every definition of ours against Kafka's own, field by field and version by version.

Both sides are brought into one form, `Flat`: what a version has on the wire, in order.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID

import pytest

from driftlog_agents.protocol.api import Api, ApiKey
from driftlog_agents.protocol.consumer_protocol import (
    LATEST_VERSION,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from driftlog_agents.protocol.requests.registry import API
from driftlog_agents.protocol.schema import Array, Struct, Type, all_fields
from driftlog_agents.protocol.types import Blob, Fixed, parse_versions
from tests.agents.protocol.kafka_definitions import definition

MESSAGES = [
    pytest.param(api, kind, id=f"{api.name}{kind}")
    for api in API.values()
    for kind in ("Request", "Response")
]


@dataclass(frozen=True, slots=True)
class Flat:
    """One field of one version.  *path* has the names above it, arrays marked ``[]``."""

    path: str
    type: str
    nullable: bool
    tag: int | None
    default: object


@pytest.mark.parametrize(("api", "kind"), MESSAGES)
def test_definitions_are_kafkas(api: Api[Any, Any], kind: str) -> None:
    """
    In each version: the same fields in the same order, of the same types, null where
    Kafka's may be, under the same tags, with the same defaults.
    """
    theirs = definition(f"{api.name}{kind}")
    cls = api.request if kind == "Request" else api.response

    for version in api.versions:
        assert list(_theirs(theirs, version)) == list(_ours(cls, version, ""))


@pytest.mark.parametrize("cls", [ConsumerProtocolAssignment, ConsumerProtocolSubscription])
def test_the_consumer_protocol_is_kafkas(cls: type[Any]) -> None:
    """
    What members of a group tell each other has the same fields in each version.
    """
    theirs = definition(cls.__name__)
    first, last = parse_versions(theirs["validVersions"])

    assert (0, LATEST_VERSION) == (first, last)
    assert "none" == theirs["flexibleVersions"]
    for version in range(first, last + 1):
        assert list(_theirs(theirs, version)) == list(_ours(cls, version, ""))


@pytest.mark.parametrize(("api", "kind"), MESSAGES)
def test_versions_and_keys_are_kafkas(api: Api[Any, Any], kind: str) -> None:
    """
    Key, class names and flexible versions are the same; our versions start where Kafka's do
    and end there, but for those that Kafka itself calls unstable.
    """
    theirs = definition(f"{api.name}{kind}")
    first, last = parse_versions(theirs["validVersions"])
    unstable = 1 if definition(f"{api.name}Request").get("latestVersionUnstable") else 0

    assert api.key == theirs["apiKey"]
    assert (api.request if kind == "Request" else api.response).__name__ == theirs["name"]
    assert range(first, last + 1 - unstable) == api.versions
    flexible = parse_versions(theirs["flexibleVersions"])
    assert [flexible[0] <= v <= flexible[1] for v in api.versions] == [
        api.is_flexible(v) for v in api.versions
    ]


def test_the_key_of_every_api_is_kafkas() -> None:
    """
    `ApiKey` has the name and number of every request in the jar, and no other.
    """
    import zipfile

    from tests.agents.protocol.kafka_definitions import jar

    with zipfile.ZipFile(jar()) as archive:
        names = [
            match[1]
            for path in archive.namelist()
            if (match := re.fullmatch(r"common/message/(\w+)Request\.json", path))
        ]

    assert {definition(f"{name}Request")["apiKey"]: name for name in names} == {
        key: key.kafka_name for key in ApiKey
    }


def test_what_is_served_is_what_was_promised() -> None:
    """
    The versions we advertise are those of the first release.
    """
    expected = {
        "ApiVersions": (0, 4),
        "Metadata": (0, 13),
        "Produce": (0, 11),
        "Fetch": (4, 17),
        "ListOffsets": (1, 11),
        "InitProducerId": (0, 5),
        "OffsetForLeaderEpoch": (2, 4),
        "CreateTopics": (2, 7),
        "DeleteTopics": (1, 6),
        "CreatePartitions": (0, 3),
        "DescribeConfigs": (1, 4),
        "AlterConfigs": (0, 2),
        "IncrementalAlterConfigs": (0, 1),
        "DescribeCluster": (0, 2),
        "DescribeTopicPartitions": (0, 0),
        "DescribeLogDirs": (1, 5),
    }

    advertised = {
        api.name: (api.advertised[0], api.advertised[-1]) for api in API.values() if api.served
    }

    assert expected.items() <= advertised.items()
    assert list(API[ApiKey.PRODUCE].served) == list(range(3, 14))


# ── Ours ──


def _ours(cls: type[Any], version: int, above: str) -> Iterator[Flat]:
    for field in all_fields(cls):
        if not field.is_in(version):
            continue
        path = f"{above}{field.name}"
        yield Flat(
            path,
            _type_of_ours(field.type),
            field.may_be_null(version),
            field.tag,
            _default_of_ours(field.type, field.default),
        )
        inner = field.type.element if isinstance(field.type, Array) else field.type
        if isinstance(inner, Struct):
            yield from _ours(inner.cls, version, f"{path}.")


def _type_of_ours(kind: Type) -> str:
    match kind:
        case Fixed() | Blob():
            return kind.name
        case Array():
            return f"[]{_type_of_ours(kind.element)}"
        case Struct():
            return kind.cls.__name__


def _default_of_ours(kind: Type, default: object) -> object:
    if isinstance(kind, Struct) and default is not None:
        plain = type(default)(**{f.name: _field_default(f) for f in fields(kind.cls)})
        return "all defaults" if default == plain else default
    return default


def _field_default(field: Any) -> object:
    return field.default_factory() if callable(field.default_factory) else field.default


# ── Kafka's ──


def _theirs(definition: dict[str, Any], version: int) -> Iterator[Flat]:
    common = {
        f"[]{known['name']}": known["fields"] for known in definition.get("commonStructs", [])
    }
    common |= {name.removeprefix("[]"): inner for name, inner in common.items()}
    yield from _their_fields(definition["fields"], version, "", common)


def _their_fields(
    entries: list[dict[str, Any]], version: int, above: str, common: dict[str, Any]
) -> Iterator[Flat]:
    for entry in entries:
        if not _has(entry.get("versions", "none"), version):
            continue
        assert set(entry) <= KNOWN, (
            f"a property of definitions that this test does not know: {entry}"
        )
        path = f"{above}{_snake_case(entry['name'])}"
        tagged = _has(entry.get("taggedVersions", "none"), version)
        yield Flat(
            path,
            entry["type"],
            _has(entry.get("nullableVersions", "none"), version),
            entry["tag"] if tagged else None,
            _default_of_theirs(entry),
        )
        inner = entry.get("fields") or common.get(entry["type"], [])
        yield from _their_fields(inner, version, f"{path}.", common)


KNOWN = {
    "name",
    "type",
    "versions",
    "nullableVersions",
    "taggedVersions",
    "tag",
    "default",
    "fields",
    "about",  # documentation
    "ignorable",  # whether Kafka's writers refuse what a version does not have: ours leave it out
    "mapKey",  # how Java keeps it
    "entityType",  # what it means
    "zeroCopy",  # how Java keeps it
}


def _has(versions: str, version: int) -> bool:
    first, last = parse_versions(versions)
    return first <= version <= last


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _default_of_theirs(entry: dict[str, Any]) -> object:
    """Kafka's default as Python says it (MessageGenerator: FieldSpec#fieldDefault)."""
    kind, default = entry["type"], entry.get("default")
    if default == "null":
        return None
    match kind:
        case "bool":
            return str(default).lower() == "true"
        case "int8" | "int16" | "int32" | "int64" | "uint16" | "uint32":
            return int(str(default or 0), 0)
        case "float64":
            return float(default or 0)
        case "string":
            return default or ""
        case "bytes":
            return b""
        case "uuid":
            assert default is None
            return UUID(int=0)
        case "records":
            return None
        case _ if kind.startswith("[]"):
            assert default is None
            return []
        case _:
            return "all defaults"
