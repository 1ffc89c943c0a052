"""The keyspace: every key that the service writes, and nothing else.

    /driftlog/v1/cluster                             Cluster          its level rises
    /driftlog/v1/restore                             Restore          until it is discarded
    /driftlog/v1/node_ids/{node_id}                  NodeIdUse
    /driftlog/v1/agents/{node_id}                    Agent            on the session's lease
    /driftlog/v1/sessions/{session_id}               the fence        on the session's lease
    /driftlog/v1/releases/{session_id}               AgentRelease     on the session's lease
    /driftlog/v1/secrets/{session_id}                its secret       on the session's lease
    /driftlog/v1/heads/{session_id}                  Head
    /driftlog/v1/flushes/{session_id}/{seq:020d}     FlushRecord
    /driftlog/v1/flushes/{session_id}/{seq:020d}.{level}.{index}     FlushRecord, consolidated
    /driftlog/v1/topics/{name}                       Topic
    /driftlog/v1/deleted/{topic_id}                  Topic            tombstone
    /driftlog/v1/imports/{topic_id}                  Topic            a bulk import, until it ends
    /driftlog/v1/leaders/{topic_id}/{partition}      Leader           on no lease
    /driftlog/v1/partitions/{topic_id}/{partition}   PartitionState
    /driftlog/v1/producer_ids                        ProducerIdBlock
    /driftlog/v1/configs/brokers                     configs of all brokers
    /driftlog/v1/configs/brokers/{node_id}           configs of a broker
    /driftlog/v1/configs/groups/{group}              configs of a group
    /driftlog/v1/groups/{group}                      the group, and its coordinator
    /driftlog/v1/groups/{group}/members/{member_id}            a member, of groups of KIP-848
    /driftlog/v1/groups/{group}/offsets/{topic_id}/{page}      256 partitions a page

Reserved for features that are not built yet; no other key may stand there:

    /driftlog/v1/transactions/{transactional_id}                    transaction state
    /driftlog/v1/acls  /driftlog/v1/users  /driftlog/v1/quotas      security

Strings are percent-encoded: of their UTF-8 bytes only ``A-Z a-z 0-9 . _ - ~`` stand for
themselves, all others are ``%XX`` in upper case (RFC 3986, unreserved characters), so no
string can reach another one's key.  A group's id may be empty (old clients commit under
it): it is a lone ``%``.  Topic ids are canonical uuid text, numbers decimal
without leading zeros but for ``seq``, whose 20 digits make key order commit order.  A
record that replaces others stands under the last ``seq`` that it replaces, with a level ≥ 1.
A parser accepts exactly what its function writes.

A key format is a stored format: add a version, never edit one in place.
Pure.
"""

import re
from binascii import a2b_qp
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from driftlog_metadata.schema.model import ConfigsOwner, TopicPartition

ROOT: Final = "/driftlog/v1"

CLUSTER_KEY: Final = f"{ROOT}/cluster"
PRODUCER_IDS_KEY: Final = f"{ROOT}/producer_ids"
RESTORE_KEY: Final = f"{ROOT}/restore"

NODE_IDS_PREFIX: Final = f"{ROOT}/node_ids/"
AGENTS_PREFIX: Final = f"{ROOT}/agents/"
SESSIONS_PREFIX: Final = f"{ROOT}/sessions/"
RELEASES_PREFIX: Final = f"{ROOT}/releases/"
SECRETS_PREFIX: Final = f"{ROOT}/secrets/"
HEADS_PREFIX: Final = f"{ROOT}/heads/"
FLUSHES_PREFIX: Final = f"{ROOT}/flushes/"
TOPICS_PREFIX: Final = f"{ROOT}/topics/"
DELETED_PREFIX: Final = f"{ROOT}/deleted/"
IMPORTS_PREFIX: Final = f"{ROOT}/imports/"
CONFIGS_PREFIX: Final = f"{ROOT}/configs/"
LEADERS_PREFIX: Final = f"{ROOT}/leaders/"
PARTITIONS_PREFIX: Final = f"{ROOT}/partitions/"
GROUPS_PREFIX: Final = f"{ROOT}/groups/"

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")
_ESCAPES: Final = {byte: f"%{byte:02X}" for byte in range(256) if not _UNRESERVED.match(chr(byte))}
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,9}")
_SEQ = re.compile(r"[0-9]{20}")
_EMPTY: Final = "%"
"""No string escapes to it."""


# ── Node ids ──


def node_id_key(node_id: int) -> str:
    """Key that allocates a node id: the agent that creates it keeps the id until the id is
    unused for a week."""
    return NODE_IDS_PREFIX + _int32(node_id)


def parse_node_id_key(key: str) -> int:
    """Invert :func:`node_id_key`.

    Raises:
        ValueError: *key* is not a node id's key of this version.
    """
    return _parse_int32(key, NODE_IDS_PREFIX)


# ── Agents and their sessions ──


def agent_key(node_id: int) -> str:
    """Key of a live agent."""
    return AGENTS_PREFIX + _int32(node_id)


def parse_agent_key(key: str) -> int:
    """Invert :func:`agent_key`: the node id.

    Raises:
        ValueError: *key* is not an agent's key of this version.
    """
    return _parse_int32(key, AGENTS_PREFIX)


def session_key(session_id: str) -> str:
    """Key that fences: while it has the revision it was created with, the session lives."""
    return SESSIONS_PREFIX + _escape(session_id)


def parse_session_key(key: str) -> str:
    """Invert :func:`session_key`: the session id.

    Raises:
        ValueError: *key* is not a session's key of this version.
    """
    return _parse_string(key, SESSIONS_PREFIX)


def release_key(session_id: str) -> str:
    """Key of the release that the session's agent runs, and of the format level that it knows."""
    return RELEASES_PREFIX + _escape(session_id)


def secret_key(session_id: str) -> str:
    """Key of what a request to the session's agent repeats, to prove that its sender reads this
    keyspace."""
    return SECRETS_PREFIX + _escape(session_id)


def head_key(session_id: str) -> str:
    """Key of the last flush sequence that the session committed."""
    return HEADS_PREFIX + _escape(session_id)


def parse_head_key(key: str) -> str:
    """Invert :func:`head_key`: the session id.

    Raises:
        ValueError: *key* is not a head's key of this version.
    """
    return _parse_string(key, HEADS_PREFIX)


def flushes_prefix(session_id: str) -> str:
    """Prefix of the session's flush records, in commit order."""
    return f"{FLUSHES_PREFIX}{_escape(session_id)}/"


def flush_key(session_id: str, seq: int, level: int = 0, index: int = 0) -> str:
    """Key whose presence commits the session's flush *seq* (0 ≤ seq < 2^63).

    *level* ≥ 1: the *index*-th record of those that replace flush records up to *seq*.
    """
    if not 0 <= seq <= INT64_MAX:
        raise ValueError(f"not a flush sequence: {seq}")
    key = f"{flushes_prefix(session_id)}{seq:020d}"
    if level == index == 0:
        return key
    if not level:
        raise ValueError(f"a flush of its own has no index: {index}")
    return f"{key}.{_int32(level)}.{_int32(index)}"


class FlushRecordKey(NamedTuple):
    """The parts of a flush record's key; *level* 0: a flush as it was committed."""

    session_id: str
    seq: int
    level: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which has no caller


def parse_flush_key(key: str) -> FlushRecordKey:
    """Invert :func:`flush_key`.

    Raises:
        ValueError: *key* is not a flush record's key of this version.
    """
    session_id, slash, name = _rest(key, FLUSHES_PREFIX).partition("/")
    seq, *place = name.split(".")
    if not slash or not _SEQ.fullmatch(seq) or int(seq) > INT64_MAX or len(place) not in (0, 2):
        raise ValueError(f"not a flush key: {key!r}")
    level, index = [_decimal(number, key) for number in place] or (0, 0)
    if place and not level:
        raise ValueError(f"not a flush key: {key!r}")
    return FlushRecordKey(_unescape(session_id, key), int(seq), level, index)


# ── Topics ──


def topic_key(name: str) -> str:
    """Key of a topic, by name: two topics of one name cannot be created."""
    return TOPICS_PREFIX + _escape(name)


def parse_topic_key(key: str) -> str:
    """Invert :func:`topic_key`: the topic's name.

    Raises:
        ValueError: *key* is not a topic's key of this version.
    """
    return _parse_string(key, TOPICS_PREFIX)


def deleted_key(topic_id: UUID) -> str:
    """Key of a deleted topic's tombstone, which stays until its objects are deleted."""
    return f"{DELETED_PREFIX}{topic_id}"


def parse_deleted_key(key: str) -> UUID:
    """Invert :func:`deleted_key`: the topic id.

    Raises:
        ValueError: *key* is not a tombstone's key of this version.
    """
    return _parse_uuid(_rest(key, DELETED_PREFIX), key)


def import_key(topic_id: UUID) -> str:
    """Key of a bulk import: the topic that it will be; its importer puts it again and again."""
    return f"{IMPORTS_PREFIX}{topic_id}"


def parse_import_key(key: str) -> UUID:
    """Invert :func:`import_key`: the topic id.

    Raises:
        ValueError: *key* is not an import's key of this version.
    """
    return _parse_uuid(_rest(key, IMPORTS_PREFIX), key)


# ── Partitions ──


def leaders_prefix(topic_id: UUID) -> str:
    """Prefix of the leader keys of all partitions of a topic."""
    return f"{LEADERS_PREFIX}{topic_id}/"


def leader_key(tp: TopicPartition) -> str:
    """Key of the partition's leader."""
    return leaders_prefix(tp.topic_id) + _int32(tp.partition)


def parse_leader_key(key: str) -> TopicPartition:
    """Invert :func:`leader_key`.

    Raises:
        ValueError: *key* is not a leader's key of this version.
    """
    return _parse_partition(key, LEADERS_PREFIX)


def partitions_prefix(topic_id: UUID) -> str:
    """Prefix of the state of all partitions of a topic."""
    return f"{PARTITIONS_PREFIX}{topic_id}/"


def partition_key(tp: TopicPartition) -> str:
    """Key of the partition's state in the bucket."""
    return partitions_prefix(tp.topic_id) + _int32(tp.partition)


def parse_partition_key(key: str) -> TopicPartition:
    """Invert :func:`partition_key`.

    Raises:
        ValueError: *key* is not a partition's key of this version.
    """
    return _parse_partition(key, PARTITIONS_PREFIX)


# ── Configs ──


def configs_key(owner: ConfigsOwner) -> str:
    """Key of the configs that are set on *owner*; without it none are set."""
    if owner.group_id is not None:
        return f"{CONFIGS_PREFIX}groups/{_escape(owner.group_id)}"
    brokers = f"{CONFIGS_PREFIX}brokers"
    return brokers if owner.node_id is None else f"{brokers}/{_int32(owner.node_id)}"


def parse_configs_key(key: str) -> ConfigsOwner:
    """Invert :func:`configs_key`.

    Raises:
        ValueError: *key* is not a key of configs of this version.
    """
    match _rest(key, CONFIGS_PREFIX).split("/"):
        case ["brokers"]:
            return ConfigsOwner()
        case ["brokers", node_id]:
            return ConfigsOwner(node_id=_decimal(node_id, key))
        case ["groups", group]:
            return ConfigsOwner(group_id=_unescape(group, key))
        case _:
            raise ValueError(f"not a key of configs: {key!r}")


# ── Groups ──


@lru_cache(maxsize=8)  # A request makes the keys of its group's pages and members of it.
def group_key(group_id: str) -> str:
    """Key of a group; its mod revision fences the previous coordinator."""
    return GROUPS_PREFIX + (_escape(group_id) if group_id else _EMPTY)


def group_prefix(group_id: str) -> str:
    """Prefix of all keys of a group except its own."""
    return f"{group_key(group_id)}/"


def group_member_key(group_id: str, member_id: str) -> str:
    """Key of a member of a group of KIP-848."""
    return f"{group_prefix(group_id)}members/{_escape(member_id)}"


def group_offsets_key(group_id: str, topic_id: UUID, page: int) -> str:
    """Key of the offsets that a group committed for 256 partitions of a topic."""
    return f"{group_prefix(group_id)}offsets/{topic_id}/{_int32(page)}"


class GroupKey(NamedTuple):
    """The parts of a group's key: its own, a member's, or that of a page of offsets."""

    group_id: str
    member_id: str | None = None
    topic_id: UUID | None = None
    page: int = 0


def parse_group_key(key: str) -> GroupKey:
    """Invert :func:`group_key`, :func:`group_member_key` and :func:`group_offsets_key`.

    Raises:
        ValueError: *key* is not a group's key of this version.
    """
    group, *parts = _rest(key, GROUPS_PREFIX).split("/")
    group_id = "" if group == _EMPTY else _unescape(group, key)
    match parts:
        case []:
            return GroupKey(group_id)
        case ["members", member]:
            return GroupKey(group_id, member_id=_unescape(member, key))
        case ["offsets", topic_id, page]:
            return GroupKey(group_id, topic_id=_parse_uuid(topic_id, key), page=_decimal(page, key))
        case _:
            raise ValueError(f"not a group's key: {key!r}")


# ── Components ──


# Clients choose names of 32,767 bytes: a call for each byte would take 50 ms.


def _escape(text: str) -> str:
    """Percent-encode; ValueError for an empty string or one that UTF-8 cannot encode."""
    if not text:
        raise ValueError("an empty string has no key")
    return text.encode().decode("latin-1").translate(_ESCAPES)


def _unescape(escaped: str, key: str) -> str:
    try:
        # Quoted-printable (RFC 2045) has = in place of %, and is decoded in C.  Whatever it makes
        # of what `_escape` does not write is found by the comparison.
        text = a2b_qp(escaped.replace("%", "=")).decode()
        canonical = _escape(text) == escaped
    except ValueError:
        canonical = False
    if not canonical:
        raise ValueError(f"not percent-encoded as keys are: {key!r}")
    return text


def _int32(number: int) -> str:
    if not 0 <= number <= INT32_MAX:
        raise ValueError(f"not a positive int32: {number}")
    return str(number)


def _rest(key: str, prefix: str) -> str:
    if not key.startswith(prefix):
        raise ValueError(f"not under {prefix}: {key!r}")
    return key.removeprefix(prefix)


def _parse_string(key: str, prefix: str) -> str:
    return _unescape(_rest(key, prefix), key)


def _parse_int32(key: str, prefix: str) -> int:
    return _decimal(_rest(key, prefix), key)


def _parse_partition(key: str, prefix: str) -> TopicPartition:
    topic_id, _, partition = _rest(key, prefix).partition("/")
    return TopicPartition(_parse_uuid(topic_id, key), _decimal(partition, key))


def _parse_uuid(text: str, key: str) -> UUID:
    try:
        topic_id = UUID(text)
    except ValueError:
        topic_id = None
    if topic_id is None or str(topic_id) != text:
        raise ValueError(f"not a canonical uuid in {key!r}")
    return topic_id


def _decimal(text: str, key: str) -> int:
    if not _DECIMAL.fullmatch(text) or int(text) > INT32_MAX:
        raise ValueError(f"not a positive int32 in {key!r}")
    return int(text)
