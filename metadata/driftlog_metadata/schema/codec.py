"""How the values of `driftlog_metadata.schema.model` are stored in the metadata store.

Compact JSON in UTF-8, one object per value, in exactly this order (a value has one
encoding, so that it can be compared by its bytes); ``v`` is the format's version:

    Cluster          {"v":1,"cluster_id":s,"format_version":1}  or
                     {"v":2,"cluster_id":s,"format_version":n from 2 on,"release":s}
    Agent            {"v":1,"node_id":n,"session_id":s,"listeners":[[name,host,port],…],
                      "http_address":s,"rack":s or null,"started_at_ms":n}  or, without a role,
                     {"v":2,…,"roles":["serve" or "seal"]}
    AgentRelease     {"v":1,"release":s,"level":n}
    secret           {"v":1,"secret":s}
    LiveSession      {"v":1,"node_id":n,"stage":s,"topics":revision}
    Head             {"v":1,"head":n}  or  {"v":1,"head":"closed"}
    NodeIdUse        {"v":1,"directory":"…" or null,"unused_since_ms":n or null}; first releases: {}
    EndedHead        {"v":2,"head":n or "closed","ended_ms":n}
    FlushRecord      {"v":1,"object":s,"size":bytes,"footer":first byte}
    Topic            {"v":1,"name":s,"topic_id":uuid,"partitions":n,"configs":{s:s,…}}  or
                     {"v":2,"name":s,"topic_id":uuid,"partitions":n,"replicas":n from 2 on,
                      "configs":{s:s,…}}
    configs          {"v":1,"configs":{s:s,…}}, not empty
    Leader           {"v":1,"session_id":s or null,"epoch":n}
    PartitionState   {"v":1,"sealed_end":offset,"manifest":version,"log_start":offset,
                      "sessions":[s,…]}
    ProducerIdBlock  {"v":1,"first":producer id,"size":n,"node_id":n}

Numbers ``n`` are not negative and fit an int64, node ids, ports and partition counts
an int32, replication factors an int16.  Configs stand in the order of their names.  The release of
a cluster is the first one that knows its format version.  An ended head replaces the head under its
key, as version 2.  A topic of one replica is of version 1.  A tombstone is a topic without configs.

A decoder raises `UnsupportedFormatError` for a larger ``v`` and `CorruptError` for
all other bytes that no encoder writes: not JSON, a field missing, unknown, of another type
or out of range.

A value format is a stored format: add a version, never edit one in place.
Pure.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar
from uuid import UUID

from driftlog_metadata.schema.keys import INT32_MAX, INT64_MAX
from driftlog_metadata.schema.model import (
    ALL_ROLES,
    CLOSED,
    FORMAT_VERSION,
    RELEASES,
    Agent,
    AgentRelease,
    Cluster,
    EndedHead,
    FlushRecord,
    Leader,
    Listener,
    LiveSession,
    NodeIdUse,
    PartitionState,
    ProducerIdBlock,
    Restore,
    Role,
    SessionStage,
    Topic,
)
from driftlog_metadata.stores.errors import CorruptError, UnsupportedFormatError

T = TypeVar("T")

_INT16_MAX: Final = 2**15 - 1

_CLUSTER_FIELDS: Final = (
    ("cluster_id", "format_version"),
    ("cluster_id", "format_version", "release"),
)
_HEAD_CLOSED: Final = "closed"
_HEAD_FIELDS: Final = (("head",), ("head", "ended_ms"))
_SESSION_FIELDS: Final = (
    ("node_id", "stage", "topics"),
    ("node_id", "stage", "topics", "asks", "proofs"),
)
_TOPIC_FIELDS: Final = (
    ("name", "topic_id", "partitions", "configs"),
    ("name", "topic_id", "partitions", "replicas", "configs"),
)


def decode_at(key: str, data: bytes, decode: Callable[[bytes], T]) -> T:
    """*decode* the value of *key*; errors name the key.

    Raises:
        UnsupportedFormatError, CorruptError: what *decode* raises, and names *key*.
    """
    try:
        return decode(data)
    except CorruptError as error:
        raise type(error)(f"{key}: {error}") from error


# ── Values ──


def encode_cluster(cluster: Cluster) -> bytes:
    """Encode the value of the cluster's key."""
    level = cluster.format_version
    release = cluster.needs_release or RELEASES[level - 1]
    return _encode(
        min(level, 2),
        cluster_id=cluster.cluster_id,
        format_version=level,
        **({"release": release} if level > 1 else {}),
    )


def decode_cluster(data: bytes) -> Cluster:
    """Invert :func:`encode_cluster`.

    A cluster with a larger ``format_version`` than `FORMAT_VERSION` is decoded: the agent that
    joins it decides whether to start.

    Raises:
        UnsupportedFormatError: a newer format.
        CorruptError: not a cluster.
    """
    fields = _Fields("cluster", data, *_CLUSTER_FIELDS)
    level = fields.number("format_version")
    if level < 1 or (fields.version > 1) != (level > 1):
        raise fields.corrupt(f"its format version is {level}")
    release = fields.string("release") if fields.version > 1 else None
    return Cluster(fields.string("cluster_id"), level, release if level > FORMAT_VERSION else None)


def encode_restore(restore: Restore) -> bytes:
    """Encode the value of the key of a restore."""
    return _encode(
        **{"from": restore.from_id},
        to=restore.to_id,
        file=restore.cluster_file,
        run=restore.run,
        listed_ms=restore.listed_ms,
    )


def decode_restore(data: bytes) -> Restore:
    """Invert :func:`encode_restore`.

    Raises:
        UnsupportedFormatError: a newer format.
        CorruptError: not a restore.
    """
    fields = _Fields("restore", data, ("from", "to", "file", "run", "listed_ms"))
    listed = fields.raw("listed_ms")
    return Restore(
        fields.string("from"),
        fields.string("to"),
        fields.number("file"),
        fields.string("run"),
        None if listed is None else fields.number("listed_ms"),
    )


def encode_agent(agent: Agent) -> bytes:
    """Encode the value of an agent's key; only version 2 has the roles of one that lacks some."""
    assert agent.roles, "an agent without a role"
    lacks = agent.roles != ALL_ROLES
    roles = {"roles": [role for role in Role if role in agent.roles]} if lacks else {}
    return _encode(
        2 if lacks else 1,
        node_id=agent.node_id,
        session_id=agent.session_id,
        listeners=[[at.name, at.host, at.port] for at in agent.listeners],
        http_address=agent.http_address,
        rack=agent.rack,
        started_at_ms=agent.started_at_ms,
        **roles,
    )


def decode_agent(data: bytes) -> Agent:
    """Invert :func:`encode_agent`.

    Raises:
        UnsupportedFormatError: a newer format.
        CorruptError: not an agent.
    """
    names = ("node_id", "session_id", "listeners", "http_address", "rack", "started_at_ms")
    fields = _Fields("agent", data, names, (*names, "roles"))
    return Agent(
        node_id=fields.number("node_id", INT32_MAX),
        session_id=fields.string("session_id"),
        listeners=tuple(_listener(fields, item) for item in fields.items("listeners")),
        http_address=fields.string("http_address"),
        rack=fields.string_or_null("rack"),
        started_at_ms=fields.number("started_at_ms"),
        roles=ALL_ROLES if fields.version == 1 else _roles(fields),
    )


def _roles(fields: "_Fields") -> frozenset[Role]:
    names = fields.items("roles")
    found = frozenset(role for role in Role if role in names)
    if names != [role for role in Role if role in found] or found in (frozenset(), ALL_ROLES):
        raise fields.corrupt(f"not the roles of an agent that lacks some: {names!r}")
    return found


def _listener(fields: "_Fields", item: object) -> Listener:
    match item:
        case [str(name), str(host), int(port)] if type(port) is int and 0 <= port < 65536:
            return Listener(name, host, port)
        case _:
            raise fields.corrupt(f"not a listener: {item!r}")


def encode_agent_release(knows: AgentRelease) -> bytes:
    """Encode the value of the key that says an agent's release."""
    return _encode(release=knows.release, level=knows.format_level)


def decode_agent_release(data: bytes) -> AgentRelease:
    """Invert :func:`encode_agent_release`.

    Raises:
        UnsupportedFormatError: a newer format.
        CorruptError: not an agent's release.
    """
    fields = _Fields("release of an agent", data, ("release", "level"))
    return AgentRelease(fields.string("release"), fields.number("level"))


def encode_secret(secret: str) -> bytes:
    """Encode the value of the key of a session's secret."""
    return _encode(secret=secret)


def decode_secret(data: bytes) -> str:
    """Invert :func:`encode_secret`.

    Raises:
        UnsupportedFormatError: a newer format.
        CorruptError: not a secret.
        Neither shows the value.
    """
    return _Fields("secret", data, ("secret",), hides=True).string("secret")


def encode_live_session(session: LiveSession) -> bytes:
    """Encode the value of a session's key."""
    more = {"asks": int(session.asks), "proofs": session.proofs}
    return _encode(
        2 if any(more.values()) else 1,
        node_id=session.node_id,
        stage=session.stage.value,
        topics=session.topics_revision,
        **(more if any(more.values()) else {}),
    )


def decode_live_session(data: bytes) -> LiveSession:
    """Invert :func:`encode_live_session`.

    Raises:
        UnsupportedFormatError: a newer format.
        CorruptError: not a session.
    """
    fields = _Fields("session", data, *_SESSION_FIELDS)
    more = fields.version > 1
    asks = more and fields.number("asks", 1) > 0
    proofs = fields.number("proofs") if more else 0
    if more and not asks and not proofs:
        raise fields.corrupt("it asks nothing and proves nothing, and so is of version 1")
    try:
        stage = SessionStage(fields.string("stage"))
    except ValueError as error:
        raise fields.corrupt("no such stage") from error
    return LiveSession(
        node_id=fields.number("node_id", INT32_MAX),
        stage=stage,
        topics_revision=fields.number("topics"),
        asks=asks,
        proofs=proofs,
    )


def encode_head(head: int) -> bytes:
    """Encode a session's head: its last committed flush sequence, or `CLOSED`."""
    return _encode(head=_head(head))


def decode_head(data: bytes) -> int:
    """Invert :func:`encode_head`; also of an ended one.

    Raises:
        UnsupportedFormatError: a newer format.
        CorruptError: not a head.
    """
    fields = _Fields("head", data, *_HEAD_FIELDS)
    if fields.raw("head") == _HEAD_CLOSED:
        return CLOSED
    return fields.number("head")


def encode_ended_head(ended: EndedHead) -> bytes:
    """Encode the head of a session that is over, with the time at which an agent
    saw its end."""
    return _encode(2, head=_head(ended.head), ended_ms=ended.ended_ms)


def decode_ended_head(data: bytes) -> EndedHead | None:
    """Invert :func:`encode_ended_head`; None: a head of version 1, whose
    end no agent has recorded.

    Raises:
        UnsupportedFormatError: a newer format.
        CorruptError: not a head.
    """
    head = decode_head(data)
    fields = _Fields("head", data, *_HEAD_FIELDS)
    return None if fields.version == 1 else EndedHead(head, fields.number("ended_ms"))


def encode_node_id_use(use: NodeIdUse) -> bytes:
    """Encode the value of a node id's key."""
    return _encode(directory=use.directory, unused_since_ms=use.unused_since_ms)


def decode_node_id_use(data: bytes) -> NodeIdUse:
    """Invert :func:`encode_node_id_use`; also of ``{}``, the value of the first releases.

    Raises:
        UnsupportedFormatError: a newer format.
        CorruptError: not the use of a node id.
    """
    if data == b"{}":
        return NodeIdUse()
    fields = _Fields("use of a node id", data, ("directory", "unused_since_ms"))
    unused = fields.raw("unused_since_ms")
    return NodeIdUse(
        fields.string_or_null("directory"),
        None if unused is None else fields.number("unused_since_ms"),
    )


def _head(head: int) -> int | str:
    assert head >= CLOSED, "neither a sequence nor CLOSED"
    return _HEAD_CLOSED if head == CLOSED else head


def encode_flush_record(record: FlushRecord) -> bytes:
    """Encode the value that commits a flush object, about 140 bytes."""
    return _encode(object=record.object_key, size=record.size_bytes, footer=record.footer_start)


def decode_flush_record(data: bytes) -> FlushRecord:
    """Invert :func:`encode_flush_record`.

    Raises:
        UnsupportedFormatError: a newer format.
        CorruptError: not a flush record, or its footer starts behind the object's end.
    """
    fields = _Fields("flush record", data, ("object", "size", "footer"))
    size_bytes = fields.number("size")
    return FlushRecord(
        object_key=fields.string("object"),
        size_bytes=size_bytes,
        footer_start=fields.number("footer", size_bytes),
    )


def encode_topic(topic: Topic) -> bytes:
    """Encode the value of a topic's key."""
    assert 1 <= topic.replication_factor <= _INT16_MAX, "no replication factor of Kafka's"
    replicas = {} if topic.replication_factor == 1 else {"replicas": topic.replication_factor}
    return _encode(
        2 if replicas else 1,
        name=topic.name,
        topic_id=str(topic.topic_id),
        partitions=topic.partitions,
        **replicas,
        configs=dict(sorted(topic.configs.items())),
    )


def encode_tombstone(topic: Topic) -> bytes:
    """Encode a deleted topic's tombstone: the topic without its configs, which may be long."""
    return encode_topic(replace(topic, configs={}))


def decode_topic(data: bytes) -> Topic:
    """Decode the value of a topic's key, or of its tombstone.

    Raises:
        UnsupportedFormatError: a newer format.
        CorruptError: not a topic.
    """
    fields = _Fields("topic", data, *_TOPIC_FIELDS)
    replicas = 1 if fields.version == 1 else fields.number("replicas", _INT16_MAX)
    if fields.version > 1 and replicas < 2:
        raise fields.corrupt("'replicas' is below 2, and fewer are of version 1")
    return Topic(
        name=fields.string("name"),
        topic_id=fields.uuid("topic_id"),
        partitions=fields.number("partitions", INT32_MAX),
        replication_factor=replicas,
        configs=fields.strings_by_name("configs"),
    )


def encode_configs(configs: Mapping[str, str]) -> bytes:
    """Encode the value of a key of configs; where none are set there is no key."""
    assert configs
    return _encode(configs=dict(sorted(configs.items())))


def decode_configs(data: bytes) -> dict[str, str]:
    """Invert :func:`encode_configs`.

    Raises:
        UnsupportedFormatError: a newer format.
        CorruptError: no configs.
    """
    fields = _Fields("value of configs", data, ("configs",))
    configs = fields.strings_by_name("configs")
    if not configs:
        raise fields.corrupt("'configs' is empty")
    return configs


def encode_leader(leader: Leader) -> bytes:
    """Encode the value of a leader's key."""
    return _encode(session_id=leader.session_id, epoch=leader.leader_epoch)


def decode_leader(data: bytes) -> Leader:
    """Invert :func:`encode_leader`.

    Raises:
        UnsupportedFormatError: a newer format.
        CorruptError: not a leader.
    """
    fields = _Fields("leader", data, ("session_id", "epoch"))
    return Leader(fields.string_or_null("session_id"), fields.number("epoch", INT32_MAX))


def encode_partition_state(state: PartitionState) -> bytes:
    """Encode the value of a partition's key."""
    return _encode(
        sealed_end=state.sealed_end,
        manifest=state.manifest_version,
        log_start=state.log_start,
        sessions=list(state.sessions),
    )


def decode_partition_state(data: bytes) -> PartitionState:
    """Invert :func:`encode_partition_state`.

    Raises:
        UnsupportedFormatError: a newer format.
        CorruptError: not a partition's state.
    """
    names = ("sealed_end", "manifest", "log_start", "sessions")
    fields = _Fields("partition state", data, names)
    return PartitionState(
        sealed_end=fields.number("sealed_end"),
        manifest_version=fields.number("manifest"),
        log_start=fields.number("log_start"),
        sessions=fields.strings("sessions"),
    )


def encode_producer_id_block(block: ProducerIdBlock) -> bytes:
    """Encode the value of the key that allocates producer ids."""
    return _encode(first=block.first_producer_id, size=block.size, node_id=block.node_id)


def decode_producer_id_block(data: bytes) -> ProducerIdBlock:
    """Invert :func:`encode_producer_id_block`.

    Raises:
        UnsupportedFormatError: a newer format.
        CorruptError: not a block of producer ids.
    """
    fields = _Fields("producer id block", data, ("first", "size", "node_id"))
    return ProducerIdBlock(
        first_producer_id=fields.number("first"),
        size=fields.number("size"),
        node_id=fields.number("node_id", INT32_MAX),
    )


# ── JSON ──


def _encode(version: int = 1, /, **fields: object) -> bytes:
    """ValueError for a string that UTF-8 cannot encode."""
    value = {"v": version, **fields}
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class _Fields:
    """One decoded JSON object, read field by field with its types checked.

    *versions*: the fields of version 1, of version 2, …
    *hides*: no error shows the value.
    """

    def __init__(
        self, what: str, data: bytes, *versions: tuple[str, ...], hides: bool = False
    ) -> None:
        self._what = what
        self._data = data
        self._shown = "" if hides else f": {data[:200]!r}"
        self._fields = self._parse()
        self.version = version = self.number("v")
        if version > len(versions):
            raise UnsupportedFormatError(
                f"this {what} has format version {version}, and this driftlog reads up to "
                f"{len(versions)}: upgrade it{self._shown}"
            )
        if version < 1:
            raise self.corrupt(f"no version {version}")
        names = versions[version - 1]
        if self._fields.keys() != {"v", *names}:
            raise self.corrupt(f"fields {sorted(self._fields)}, not {sorted(names)}")

    def _parse(self) -> Mapping[str, Any]:
        try:
            text = self._data.decode()
            parsed = json.loads(text)
            json.dumps(parsed, ensure_ascii=False).encode()  # refuses lone surrogates (\uXXXX)
        except (ValueError, RecursionError) as error:
            raise self.corrupt(str(error)) from error
        if not isinstance(parsed, dict):
            raise self.corrupt("not a JSON object")
        return parsed

    def corrupt(self, why: str) -> CorruptError:
        return CorruptError(f"not a {self._what} ({why}){self._shown}")

    def raw(self, name: str) -> object:
        if name not in self._fields:
            raise self.corrupt(f"no field {name!r}")
        return self._fields[name]

    def number(self, name: str, largest: int = INT64_MAX) -> int:
        value = self.raw(name)
        if type(value) is not int or not 0 <= value <= largest:
            raise self.corrupt(f"{name!r} is not an integer in [0, {largest}]")
        return value

    def string(self, name: str) -> str:
        value = self.raw(name)
        if not isinstance(value, str):
            raise self.corrupt(f"{name!r} is not a string")
        return value

    def string_or_null(self, name: str) -> str | None:
        return None if self.raw(name) is None else self.string(name)

    def uuid(self, name: str) -> UUID:
        text = self.string(name)
        try:
            value = UUID(text)
        except ValueError as error:
            raise self.corrupt(f"{name!r} is not a uuid") from error
        if str(value) != text:
            raise self.corrupt(f"{name!r} is not a canonical uuid")
        return value

    def items(self, name: str) -> list[object]:
        value = self.raw(name)
        if not isinstance(value, list):
            raise self.corrupt(f"{name!r} is not a list")
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        values = self.items(name)
        if not all(isinstance(value, str) for value in values):
            raise self.corrupt(f"{name!r} is not a list of strings")
        return tuple(str(value) for value in values)

    def strings_by_name(self, name: str) -> dict[str, str]:
        value = self.raw(name)
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise self.corrupt(f"{name!r} is not an object of strings")
        return value
