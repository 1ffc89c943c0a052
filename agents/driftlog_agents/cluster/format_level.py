"""Raises the cluster's format level, when all live agents know the new one.

    read cluster, agents, their releases ──▶ all know it? ──yes──▶ one transaction: raised,
              ▲                                  ╳ no              or an agent came meanwhile
              └────────────────────────────────────────────────────┘
    raised ──▶ the bucket's next cluster file, with the level: jobs read it there

An agent of an older release that comes after the raise does not start, and one that was between two
sessions opens none: the cluster's key has another value than the one that it has read.  The file is
written after the key: no job writes a format that an agent may not know.  A raise to the level that
there is writes a file that is missing.

Shell.
"""

from dataclasses import dataclass
from typing import Final

from driftlog_agents.foundation.retry import NO_ANSWER, Retry
from driftlog_metadata.schema.codec import (
    decode_agent,
    decode_agent_release,
    decode_at,
    decode_cluster,
)
from driftlog_metadata.schema.keys import (
    AGENTS_PREFIX,
    CLUSTER_KEY,
    RELEASES_PREFIX,
    parse_agent_key,
    release_key,
)
from driftlog_metadata.schema.model import RELEASES, AgentRelease
from driftlog_metadata.stores.errors import DeclinedError, FencedError, UnavailableError
from driftlog_metadata.stores.store import Get, GetPrefix, KeyValue
from driftlog_metadata.transactions import session_transactions as transactions
from driftlog_metadata.witness.witnessed_store import WitnessedStore
from driftlog_tiering.formats import bucket_files, layout
from driftlog_tiering.formats.cluster_files import newest_cluster_file
from driftlog_tiering.stores.object_store import AlreadyExistsError, ObjectStore

FIRST: Final = AgentRelease(RELEASES[0], 1)
"""What an agent knows that does not say it."""

_RETRY: Final = Retry(wait_s=0.2, longest_wait_s=0.2, errors=(AlreadyExistsError, *NO_ANSWER))
"""A cluster file that exists already: a restore or a change of grace was faster, or an answer was
lost."""


@dataclass(frozen=True, slots=True)
class AgentBehind:
    """A live agent that does not know the level."""

    node_id: int
    knows: AgentRelease


async def raise_level(
    store: WitnessedStore, level: int, *, validate_only: bool = False
) -> AgentBehind | None:
    """Raise the cluster's level to *level*, or only look (*validate_only*); returns an agent that
    does not know it, if there is one.  Repeats what has no answer until it is cancelled.

    Raises:
        FencedError: the metadata store is not the one that this process has seen.
        CorruptError: a key cannot be read.
    """
    return await _RETRY.run(lambda: _try(store, level, validate_only=validate_only))


async def write_level(objects: ObjectStore, cluster_id: str, level: int) -> None:
    """Write that the cluster has *level* into the bucket's next cluster file, where the newest one
    does not say it.  Repeats what has no answer until it is cancelled.

    Raises:
        DeclinedError: the bucket does not allow it; an operator repairs that.
        FencedError: the bucket is another cluster's.
        NotFoundError: the bucket has no cluster file.
        CorruptError: it is damaged.
    """

    async def write() -> None:
        number, body = await newest_cluster_file(objects)
        there = bucket_files.decode_cluster(body)
        if there.cluster_id != cluster_id:
            raise FencedError(f"the bucket is of cluster {there.cluster_id} now")
        if there.format_version < level:
            key = layout.cluster_key(number + 1)
            await objects.create(key, [bucket_files.with_level(body, level)])

    await _RETRY.run(write, _raise_declined)


async def _raise_declined(error: Exception) -> None:
    if isinstance(error, DeclinedError):
        raise error


async def _try(store: WitnessedStore, level: int, *, validate_only: bool) -> AgentBehind | None:
    """An agent that is behind; None: the level is reached, or could be.

    Raises:
        UnavailableError: an agent came meanwhile; besides, as `raise_level`.
    """
    read = await store.txn(
        (), [Get(CLUSTER_KEY), GetPrefix(AGENTS_PREFIX), GetPrefix(RELEASES_PREFIX)]
    )
    at, agents, releases = read.reads
    store.witness.read_cluster(at)
    store.witness.check()
    cluster = decode_at(CLUSTER_KEY, at[0].value, decode_cluster)
    if cluster.format_version >= level:
        return None
    behind = _behind(agents, releases, level)
    if behind is not None or validate_only:
        return behind
    txn = transactions.raise_level(cluster, at[0].mod_revision, level, read.revision)
    raised = await store.txn(txn.compares, txn.then)
    if not raised.succeeded:
        raise UnavailableError("the agents have changed")
    store.witness.read_cluster(raised.reads[1])
    return None


def _behind(
    agents: tuple[KeyValue, ...], releases: tuple[KeyValue, ...], level: int
) -> AgentBehind | None:
    known = {kv.key: decode_at(kv.key, kv.value, decode_agent_release) for kv in releases}
    for kv in agents:
        session_id = decode_at(kv.key, kv.value, decode_agent).session_id
        knows = known.get(release_key(session_id), FIRST)
        if knows.format_level < level:
            return AgentBehind(parse_agent_key(kv.key), knows)
    return None
