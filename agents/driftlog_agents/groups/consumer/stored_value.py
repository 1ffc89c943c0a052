"""Stored format of a group of KIP-848: JSON objects in UTF-8, one for the group, some for members.

    ""            {"version":1, "kind":"consumer", "epoch":n, "assignment_epoch":n,
                   "metadata_hash":s, "regexes":{pattern:[topic name, …]},
                   "topics":[topic id, …], "target":{member id:{index of topic:ranges}}}
    "members/nn"  {"version":1, "members":[{"member_id":s, "instance_id":s or null,
                   "rack_id":s or null, "client_id":s, "client_host":s,
                   "rebalance_timeout_ms":n, "topic_names":[s, …], "topic_regex":s,
                   "server_assignor":s or null, "epoch":n, "previous_epoch":n, "state":s,
                   "assigned":{topic id:{assignment epoch:ranges}}, "pending": the same,
                   "classic":null or {"session_timeout_ms":n,
                                      "protocols":[[name, base64], …]}}, …]}

*ranges* are partitions as ``0-3,7``.  Members are spread over 32 pages by the CRC-32 of their ids.
So any change of a group writes at most 33 keys and fits a transaction, even when 1,000 members time
out at once.  A step of one member writes a page with a thirty-second of the members.

A value format is a stored format: add a version, never edit one in place.

Source of its content: ConsumerGroupMemberMetadataValue.json and its neighbours.
Pure.
"""

import json
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from uuid import UUID

from driftlog_agents.groups.consumer.assignors import Partition
from driftlog_agents.groups.consumer.state import (
    ClassicMember,
    ConsumerGroupMember,
    Head,
    MemberState,
    Partitions,
)
from driftlog_metadata.stores.errors import CorruptError, UnsupportedFormatError

KIND: Final = "consumer"
HEAD: Final = ""
_VERSION: Final = 1
_MAX_RANGE: Final = 1_000_000
"""Most partitions of a range: a damaged value must not fill the memory."""


def encode_head(head: Head, target: bytes | None = None) -> bytes:
    """The value of the group itself; *target*: a previous `encode_target` of its target."""
    fields = _json(
        {
            "version": _VERSION,
            "kind": KIND,
            "epoch": head.epoch,
            "assignment_epoch": head.assignment_epoch,
            "metadata_hash": head.metadata_hash,
            "regexes": {pattern: sorted(names) for pattern, names in head.regexes.items()},
        }
    )
    return b"%b,%b" % (fields[:-1], (encode_target(head.target) if target is None else target)[1:])


def encode_target(target: Mapping[str, frozenset[Partition]]) -> bytes:
    """Encode the target: the large part of the group's value, which changes rarely."""
    return GroupEncoder().target(target)


def decode_head(data: bytes) -> Head:
    """Invert :func:`encode_head`.

    Raises:
        UnsupportedFormatError: *data* has a newer format.
        CorruptError: *data* is not a group of KIP-848.
    """
    value = _fields("group", data)
    try:
        assert value["kind"] == KIND, "another kind"
        topics = [UUID(topic) for topic in value["topics"]]
        return Head(
            epoch=_int(value["epoch"]),
            assignment_epoch=_int(value["assignment_epoch"]),
            metadata_hash=_str(value["metadata_hash"]),
            regexes={
                pattern: frozenset(map(_str, names)) for pattern, names in value["regexes"].items()
            },
            target={
                member: frozenset(
                    (topics[int(i)], p) for i, text in assigned.items() for p in _numbers(text)
                )
                for member, assigned in value["target"].items()
            },
        )
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CorruptError(f"not a consumer group ({error!r}): {data[:200]!r}") from error


def encode_page(members: Iterable[ConsumerGroupMember]) -> bytes:
    """The value of a page of members."""
    return GroupEncoder().page(members)


class GroupEncoder:
    """Encodes the values of one group, and caches the encoded members and shares.

    A page has hundreds of members and a target thousands of shares; few change at a time.
    """

    def __init__(self) -> None:
        self._members: dict[str, tuple[ConsumerGroupMember, bytes]] = {}
        self._target: tuple[object, bytes] = (None, b"")
        self._topics: list[UUID] = []
        self._topics_of: dict[frozenset[Partition], frozenset[UUID]] = {}
        self._shares: dict[frozenset[Partition], bytes] = {}
        self._ids: dict[str, bytes] = {}

    def page(self, members: Iterable[ConsumerGroupMember]) -> bytes:
        """As `encode_page`."""
        parts: list[bytes] = []
        for member in sorted(members, key=lambda m: m.member_id):
            known = self._members.get(member.member_id)
            if known is None or known[0] is not member:
                known = self._members[member.member_id] = member, _json(_member_value(member))
            parts.append(known[1])
        return b'{"version":%d,"members":[%b]}' % (_VERSION, b",".join(parts))

    def forget(self, member_id: str) -> None:
        """Drop the cached encoding of a removed member."""
        self._members.pop(member_id, None)

    def target(self, target: Mapping[str, frozenset[Partition]]) -> bytes:
        """As `encode_target`."""
        if self._target[0] is not target:
            self._target = target, self._encoded(target)
        return self._target[1]

    def _encoded(self, target: Mapping[str, frozenset[Partition]]) -> bytes:
        known = self._topics_of
        self._topics_of = {
            share: known.get(share) or frozenset(topic for topic, _ in share)
            for share in target.values()
        }
        topics = sorted(frozenset[UUID]().union(*self._topics_of.values()))
        if topics != self._topics:
            self._topics, self._shares = topics, {}
        index = {topic: str(i) for i, topic in enumerate(topics)}
        shares = self._shares
        self._shares = {
            share: shares.get(share)
            or _json({index[topic]: _ranges(ps) for topic, ps in _by_topic(share).items()})
            for share in self._topics_of
        }
        self._ids = {member: self._ids.get(member) or _json(member) for member in target}
        members = b",".join(
            b"%b:%b" % (self._ids[member], self._shares[share]) for member, share in target.items()
        )
        names = _json([str(topic) for topic in topics])
        return b'{"topics":%b,"target":{%b}}' % (names, members)


def decode_page(data: bytes) -> list[ConsumerGroupMember]:
    """Invert :func:`encode_page`.

    Raises:
        UnsupportedFormatError: *data* has a newer format.
        CorruptError: *data* is not a page of members.
    """
    value = _fields("page of members", data)
    try:
        return [_member(member) for member in value["members"]]
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CorruptError(f"not a page of members ({error!r}): {data[:200]!r}") from error


def _member_value(member: ConsumerGroupMember) -> dict[str, object]:
    classic = member.classic
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "topic_names": sorted(member.topic_names),
        "topic_regex": member.topic_regex,
        "server_assignor": member.server_assignor,
        "epoch": member.epoch,
        "previous_epoch": member.previous_epoch,
        "state": member.state.value,
        "assigned": _partitions_value(member.assigned),
        "pending": _partitions_value(member.pending),
        "classic": None
        if classic is None
        else {
            "session_timeout_ms": classic.session_timeout_ms,
            "protocols": [[name, b64encode(sent).decode()] for name, sent in classic.protocols],
        },
    }


def _member(value: Mapping[str, Any]) -> ConsumerGroupMember:
    classic = value["classic"]
    return ConsumerGroupMember(
        member_id=_str(value["member_id"]),
        instance_id=_optional(value["instance_id"]),
        rack_id=_optional(value["rack_id"]),
        client_id=_str(value["client_id"]),
        client_host=_str(value["client_host"]),
        rebalance_timeout_ms=_int(value["rebalance_timeout_ms"]),
        topic_names=frozenset(map(_str, value["topic_names"])),
        topic_regex=_str(value["topic_regex"]),
        server_assignor=_optional(value["server_assignor"]),
        epoch=_int(value["epoch"]),
        previous_epoch=_int(value["previous_epoch"]),
        state=MemberState(value["state"]),
        assigned=_partitions(value["assigned"]),
        pending=_partitions(value["pending"]),
        classic=None
        if classic is None
        else ClassicMember(
            session_timeout_ms=_int(classic["session_timeout_ms"]),
            protocols=tuple(
                (_str(name), b64decode(sent, validate=True)) for name, sent in classic["protocols"]
            ),
        ),
    )


# ── Partitions ──


def _partitions_value(partitions: Partitions) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for (topic, partition), epoch in sorted(partitions.items()):
        found[str(topic)][str(epoch)].append(partition)
    return {t: {e: _ranges(ps) for e, ps in epochs.items()} for t, epochs in found.items()}


def _partitions(value: Mapping[str, Mapping[str, str]]) -> Partitions:
    return {
        (UUID(topic), partition): int(epoch)
        for topic, epochs in value.items()
        for epoch, text in epochs.items()
        for partition in _numbers(text)
    }


def _by_topic(partitions: Iterable[Partition]) -> dict[UUID, list[int]]:
    found: dict[UUID, list[int]] = defaultdict(list)
    for topic, partition in sorted(partitions):
        found[topic].append(partition)
    return found


def _ranges(numbers: Iterable[int]) -> str:
    """Ascending *numbers* as ``0-3,7``."""
    runs: list[list[int]] = []
    for n in numbers:
        assert n >= 0, f"no partition: {n}"
        if runs and runs[-1][1] == n - 1 and n - runs[-1][0] < _MAX_RANGE:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _numbers(text: str) -> Iterator[int]:
    for run in text.split(","):
        first, dash, last = run.partition("-")
        numbers = range(int(first), int(last if dash else first) + 1)
        assert len(numbers) <= _MAX_RANGE, f"not partitions: {run}"
        yield from numbers


# ── JSON ──


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _fields(what: str, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (RecursionError, ValueError) as error:
        raise CorruptError(f"not a {what} ({error}): {data[:200]!r}") from error
    version = value.get("version") if isinstance(value, dict) else None
    if isinstance(version, int) and version > _VERSION:
        raise UnsupportedFormatError(
            f"this {what} has format version {version}, and this driftlog reads up to "
            f"{_VERSION}: upgrade it: {data[:200]!r}"
        )
    if version != _VERSION:
        raise CorruptError(f"not a {what} (no version): {data[:200]!r}")
    assert isinstance(value, dict)
    return value


def _int(value: object) -> int:
    assert type(value) is int, f"not a number: {value!r}"
    return value


def _str(value: object) -> str:
    assert isinstance(value, str), f"not a string: {value!r}"
    return value


def _optional(value: object) -> str | None:
    return None if value is None else _str(value)
