"""Puts snapshots of all groups into the bucket: a restore from the bucket alone puts them back.
They have the configs of brokers and groups, too.

    every minute: the keys of all groups ──changed──▶ their values, at one revision
        ──▶ groups/{cluster}/{revision}; now and then, all but the newest three go

1. One agent of the cluster puts them.  Two at once do no harm: a snapshot is created once, and is
   named by the revision, so the newest one is the newest, whatever the clocks of agents say.
2. Nothing is put while no group and no config changes: a key that was put has a larger revision,
   and a key that was deleted leaves one key less.  An agent that begins to put them, or begins
   again, puts one: another agent may have put groups that are gone.  Without groups and configs it
   puts one only if the bucket has one: of this cluster, or of the cluster that was restored.
3. No snapshot is put into a bucket, or read from a metadata store, that is not the cluster's.
4. A snapshot has groups of the revision in its name, and configs of that revision or a newer one:
   they are read after the groups.  Where one changed meanwhile, the agent puts another snapshot
   next time: of two snapshots of a revision, one with its configs and one with newer ones, the
   first that is put stays.  Groups do not wait until configs are left alone: clients alter them.
5. No snapshot is put by an agent whose metadata store is older than one that is there: it would
   count as older, and be deleted at once.

Shell.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from driftlog_agents.cluster.newer_objects import newer_group_snapshot
from driftlog_agents.log.garbage.common.garbage_objects import Deleter, Garbage, GarbageReason
from driftlog_agents.log.garbage.deletions import ConfirmedStores
from driftlog_metadata.schema.keys import CONFIGS_PREFIX, GROUPS_PREFIX
from driftlog_metadata.stores.errors import CorruptError, FencedError, StoreError
from driftlog_metadata.stores.store import KeyValue
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.group_snapshot import encode_in_parts
from driftlog_tiering.foundation.types import Offload
from driftlog_tiering.stores.object_store import AlreadyExistsError

GROUP_SNAPSHOT_INTERVAL_MS: Final = 60_000.0
"""Longer: a restore forgets the offsets of a longer time; shorter: more PUTs."""

_KEPT: Final = 3
"""More than one: the newest may be damaged."""

_DELETES_EVERY: Final = 10
"""Snapshots between two listings of old ones.  More: fewer requests, more old snapshots."""

_DEADLINE_S: Final = 30.0

_READ_DEADLINE_S: Final = 600.0
"""Of all groups: the store reads them in pages, each of which has a deadline of its own."""


class GroupSnapshots:
    """See the module.

    Args:
        deleter: deletes old snapshots.
    """

    def __init__(
        self,
        *,
        stores: ConfirmedStores,
        cluster_id: str,
        offload: Offload,
        deleter: Deleter,
    ) -> None:
        self._metadata = stores.metadata
        self._objects = stores.objects
        self._cluster_id = cluster_id
        self._offload = offload
        self._deleter = deleter
        self._confirm = stores.confirm
        self._seen: tuple[int, int] | None = None
        """Largest revision and number of the keys of the last snapshot; None: another agent may
        have put one since, or a config has changed."""
        self._puts = 0
        self._is_checked = False
        self._log = structlog.get_logger()

    async def run(self, is_wanted: Callable[[], bool], interval_ms: float) -> None:
        """Put a snapshot every *interval_ms* until cancelled, while *is_wanted*."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            if not is_wanted():
                self._seen = None
                continue
            try:
                await self.put()
            except (StoreError, CorruptError, TimeoutError) as error:
                self._log.warning(
                    "group_snapshot_failed",
                    error=str(error) or repr(error),
                    advice="retrying; a restore from the bucket has older offsets until then",
                )

    async def put(self) -> str | None:
        """Put a snapshot, if a group has changed since the last one; returns its key.

        Raises:
            FencedError: a store is not the cluster's, or the metadata store is an old backup.
            CorruptError, StoreError, TimeoutError: a store; nothing is forgotten.
        """
        _, before = await self._read(CONFIGS_PREFIX, keys_only=True)
        _, kvs = await self._read(GROUPS_PREFIX, keys_only=True)
        there = [*before, *kvs]
        if self._seen is None and not there and not await self._is_one_there():
            self._seen = _seen(there)
        if _seen(there) == self._seen:
            return None
        revision, kvs = await self._read(GROUPS_PREFIX, keys_only=False)
        _, configs = await self._read(CONFIGS_PREFIX, keys_only=False)
        seen = _seen([*configs, *kvs]) if _seen(configs) == _seen(before) else None
        body = await self._offload(_encode, self._cluster_id, revision, kvs, configs)
        assert not kvs, "the values would be kept beside their encoded bytes"
        key = layout.group_snapshot_key(self._cluster_id, revision)
        await self._confirm()
        if not self._is_checked:
            wrong = await newer_group_snapshot(self._objects, self._metadata, self._cluster_id)
            if wrong:
                raise FencedError(wrong)
            self._is_checked = True
        try:
            async with asyncio.timeout(_DEADLINE_S):
                await self._objects.create(key, body)
        except AlreadyExistsError:
            pass  # of the same revision: another agent's, or an attempt without an answer
        self._seen = seen
        self._puts += 1
        if self._puts % _DELETES_EVERY == 1:
            await self._delete_old()
        return key

    async def _read(self, prefix: str, *, keys_only: bool) -> tuple[int, list[KeyValue]]:
        async with asyncio.timeout(_READ_DEADLINE_S):
            return await self._metadata.get_prefix(prefix, keys_only=keys_only)

    async def _is_one_there(self) -> bool:
        """Whether the bucket has a snapshot of groups, of any cluster."""
        async with asyncio.timeout(_DEADLINE_S):
            async for page in self._objects.list(layout.GROUPS_PREFIX):
                if page.objects:
                    return True
        return False

    async def _delete_old(self) -> None:
        """The listing begins with the newest."""
        keys: list[str] = []
        async with asyncio.timeout(_DEADLINE_S):
            async for page in self._objects.list(layout.groups_prefix(self._cluster_id)):
                keys += [info.key for info in page.objects if _is_snapshot(info.key)]
        old = [Garbage(key, 0, GarbageReason.REPLACED) for key in keys[_KEPT:]]
        if old:
            await self._deleter.delete(old)


def _seen(kvs: list[KeyValue]) -> tuple[int, int]:
    return max((kv.mod_revision for kv in kvs), default=0), len(kvs)


def _encode(
    cluster_id: str, revision: int, groups: list[KeyValue], configs: list[KeyValue]
) -> list[bytes]:
    """The parts of the snapshot; both lists are empty then."""
    values, of_configs = _taken(groups, GROUPS_PREFIX), _taken(configs, CONFIGS_PREFIX)
    return list(encode_in_parts(cluster_id, revision, values, of_configs))


def _taken(kvs: list[KeyValue], prefix: str) -> Iterator[tuple[str, bytes]]:
    """Take each value out of *kvs*: its memory is free once it is encoded."""
    kvs.reverse()
    while kvs:
        kv = kvs.pop()
        yield kv.key.removeprefix(prefix), kv.value


def _is_snapshot(key: str) -> bool:
    try:
        layout.parse_group_snapshot_key(key)
    except ValueError:
        return False
    return True
