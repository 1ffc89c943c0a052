"""Deletes expired offsets, groups without offsets and members, and offsets of deleted topics.

    every `offsets.retention.check.interval.ms` ──▶ expired offsets, then empty groups
    a topic was deleted, or loaded offsets have an unknown topic ──▶ in the store? ──▶ delete them

A view of the cluster may be behind, so it only triggers the check: a topic is deleted when a
linearizable read, made after its offsets were read, does not find it.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorShard#cleanupGroupMetadata.
Shell.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

import structlog

from driftlog_agents.cluster.view import ClusterView
from driftlog_agents.configs.group_settings import GroupSettings
from driftlog_agents.foundation.loop_slices import sliced
from driftlog_agents.groups.coordinator.group_runtime import ServedGroup
from driftlog_agents.log.session.session import Session
from driftlog_agents.protocol.errors import RefusedError
from driftlog_metadata.schema.codec import decode_at, decode_topic
from driftlog_metadata.schema.keys import TOPICS_PREFIX
from driftlog_metadata.stores.errors import CorruptError

_BREATHE_GROUPS: Final = 200
"""Groups that are checked before the task yields to the event loop."""


class ForgottenOffsets:
    """See the module.  `run` while the session lives.

    Args:
        groups: the loaded groups, by id.
        counted: counts by metric name.
    """

    def __init__(
        self,
        *,
        session: Session,
        view: ClusterView,
        groups: Mapping[str, ServedGroup],
        settings: GroupSettings,
        counted: Counter[str],
        clock_ms: Callable[[], float],
    ) -> None:
        self._session = session
        self._view = view
        self._groups = groups
        self._settings = settings
        self._counted = counted
        self._clock_ms = clock_ms
        self._log = structlog.get_logger()
        self._look = asyncio.Event()

    def look(self) -> None:
        """Check for offsets of deleted topics soon."""
        self._look.set()

    async def run(self) -> None:
        """Delete such offsets and groups, until cancelled.

        Raises:
            FencedError: the session ended.
        """
        interval_ms = self._settings.offsets_retention_check_interval_ms
        next_ms = self._clock_ms() + interval_ms
        while True:
            try:
                async with asyncio.timeout((next_ms - self._clock_ms()) / 1000):
                    await self._look.wait()
            except TimeoutError:
                next_ms = self._clock_ms() + interval_ms
                await self._forget_expired()
            self._look.clear()
            await self._forget_topics()

    async def _forget_expired(self) -> None:
        retention_ms = self._settings.offsets_retention_ms
        topics = self._view.topics
        expired = 0

        def name_of(topic_id: UUID) -> str:
            entry = topics.get(topic_id)
            return "" if entry is None else entry.topic.name

        for number, group in enumerate(list(self._groups.values())):
            if number % _BREATHE_GROUPS == _BREATHE_GROUPS - 1:
                await asyncio.sleep(0)
            if group.dropped is None:
                try:
                    expired += await group.expire(retention_ms, name_of)
                except RefusedError as error:
                    self._interrupted(group, error)
        self._counted["driftlog_group_offsets_expired"] += expired
        if expired:
            self._log.info("group_offsets_expired", offsets=expired)

    async def _forget_topics(self) -> None:
        unknown_keys: dict[UUID, list[ServedGroup]] = {}
        async for group in sliced(list(self._groups.values())):
            for topic_id in group.offsets.topic_ids:
                if topic_id not in self._view.topics:
                    unknown_keys.setdefault(topic_id, []).append(group)
        if not unknown_keys:
            return
        try:
            there = {
                decode_at(kv.key, kv.value, decode_topic).topic_id
                async for kv in sliced(await self._session.read_prefix(TOPICS_PREFIX))
            }
        except CorruptError:
            return  # The watch logs it; an unreadable topic is not deleted.
        for topic_id in unknown_keys.keys() - there:
            for group in unknown_keys[topic_id]:
                if group.dropped is None:
                    try:
                        await group.store(group.offsets.forget_topic(topic_id))
                    except RefusedError as error:
                        self._interrupted(group, error)

    def _interrupted(self, group: ServedGroup, error: RefusedError) -> None:
        self._log.info("group_not_tidied", group=group.group_id, reason=str(error))
