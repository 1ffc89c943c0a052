"""The values that the metadata store holds.

`driftlog_metadata.schema.keys` says under which key each of them stands, and
`driftlog_metadata.schema.codec` how it is stored.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from uuid import UUID

RELEASES: Final = ("0.1.0", "0.2.0")
"""The first release that knows each format level, from level 1 on."""

FORMAT_VERSION: Final = len(RELEASES)
"""Newest format level that this release knows: of all stored formats together.  An agent refuses a
cluster with a larger one.

| level | what it adds |
|---|---|
| 1 | |
| 2 | manifests of format 2, footers of version 4, final heads, imports, dynamic configs, roles |

Each value also has a version of its own (`codec`).
"""

FOOTER_FACTS_LEVEL: Final = 2
"""Format level from which on footers are of version 4."""

FINAL_HEADS_LEVEL: Final = 2
"""Format level from which on the bucket has the final heads of ended sessions."""

COMPACTION_LEVEL: Final = 2
"""Format level from which on topics are compacted: older manifests have no place for cleaned end
and horizons."""

IMPORT_LEVEL: Final = 2
"""Format level from which on topics are imported: older agents collect no import that ended, and
older readers take its folder for a damaged topic."""

CONFIGS_LEVEL: Final = 2
"""Format level from which on brokers and groups have configs: an older agent would not follow
them."""

ROLES_LEVEL: Final = 2
"""Format level from which on an agent may lack a role: an older agent would take it for one that
leads, or could not read its key."""

CLOSED: Final = -1
"""Value of a closed head: the session can never commit again."""


@dataclass(frozen=True, slots=True)
class EndedHead:
    """The head of a session that is over.  ``ended_ms``: when an agent first saw that, by
    the clock of the object store; the head is kept for a while from then on."""

    head: int
    ended_ms: int


@dataclass(frozen=True, slots=True)
class NodeIdUse:
    """Which data directory has a node id.  ``directory``: its random id; None: not known, an agent
    of the first releases took it.  ``unused_since_ms``: since when no agent with it was seen, by
    the clock of the object store; None: one lives, or no agent has checked."""

    directory: str | None = None
    unused_since_ms: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A partition of a topic *by id*: a topic created again under its name is another one."""

    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """The identity that the bucket's ``cluster.json`` repeats.

    ``format_version``: the cluster's level, which only rises, when all live agents know the next
    one.  No object and no value of a newer format is written before.
    """

    cluster_id: str
    format_version: int = FORMAT_VERSION
    needs_release: str | None = None
    """The first release that knows a level that this one does not know; None: it knows it."""


@dataclass(frozen=True, slots=True)
class Restore:
    """A restore from the bucket: cluster *from_id* comes back as *to_id*.

    ``cluster_file``: number of the cluster file that it creates.  ``run``: a random name of the
    newest run, which alone may write.  ``listed_ms``: when it had listed the flush objects, by the
    clock of the object store: the collector keeps those that were there then.  None: the restore is
    not finished.
    """

    from_id: str
    to_id: str
    cluster_file: int
    run: str
    listed_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Listener:
    """Where clients reach an agent: Kafka's advertised listener."""

    name: str
    host: str
    port: int


class Role(StrEnum):
    """What an agent is for."""

    SERVE = "serve"
    """It leads partitions and coordinates groups: clients see it as a broker."""
    SEAL = "seal"
    """It works on what is sealed, or is to be sealed, of its own partitions and of those whose
    leaders lack the role; and it collects garbage."""


ALL_ROLES: Final = frozenset(Role)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A live agent, on its session's lease.  ``roles``: not empty."""

    node_id: int
    session_id: str
    listeners: tuple[Listener, ...]
    http_address: str
    rack: str | None
    started_at_ms: int
    roles: frozenset[Role] = ALL_ROLES


@dataclass(frozen=True, slots=True)
class AgentRelease:
    """The release of a live agent, and the newest format level that it knows; on its session's
    lease.  Agents of the first release have none: they know level 1.

    It is no part of `Agent`, whose value the first release reads: that refuses a field that it
    does not know, and the agent would count as absent.
    """

    release: str = ""
    format_level: int = FORMAT_VERSION


class SessionStage(StrEnum):
    """The stage of a session: partitions are placed on sessions that serve."""

    STARTING = "starting"
    SERVING = "serving"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSession:
    """The state that a live session reports in its fencing key."""

    node_id: int
    stage: SessionStage = SessionStage.STARTING
    topics_revision: int = 0
    """The newest revision of a topic's key that its agent has seen."""
    asks: bool = False
    """The session cannot commit, and asks whether other sessions can."""
    proofs: int = 0
    """How often the session found that it can commit, when others asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushRecord:
    """The one key that commits a flush object.

    The footer is the byte range ``[footer_start, size_bytes)`` of the object.
    """

    object_key: str
    size_bytes: int
    footer_start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic and the configs that were set on it (never the defaults).

    The bucket replicates; *replication_factor* is the one requested.  Clients see it, but no more
    replicas than there are agents.
    """

    name: str
    topic_id: UUID
    partitions: int
    replication_factor: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigsOwner:
    """What configs are set on: a broker, a group, or, with neither, all brokers."""

    node_id: int | None = None
    group_id: str | None = None


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of a partition; *session_id* None: released, there is no leader."""

    session_id: str | None
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The state of a partition in the bucket, and the sessions whose flushes continue it.

    *Sealed* means below ``sealed_end``, and nothing else.  ``manifest_version``
    is 0 before the first manifest.  ``sessions``: those that have led since the sealed
    end, oldest first.
    """

    sealed_end: int = 0
    manifest_version: int = 0
    log_start: int = 0
    sessions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlock:
    """The last block of producer ids that was handed out; the next one starts at its end.

    ``[first_producer_id, first_producer_id + size)`` belong to *node_id*.
    Source: org.apache.kafka.server.common.ProducerIdsBlock.
    """

    first_producer_id: int
    size: int
    node_id: int
