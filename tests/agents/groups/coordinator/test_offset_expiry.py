"""If this fails, the deletion of a topic stalls the event loop of an agent with many groups."""

import asyncio
import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from driftlog_agents.cluster.view import ClusterView, TopicEntry
from driftlog_agents.configs.group_settings import GroupSettings
from driftlog_agents.foundation.loop_slices import SLICE_S, measure_by
from driftlog_agents.groups.coordinator.offset_expiry import ForgottenOffsets
from driftlog_metadata.schema.model import Topic
from driftlog_metadata.stores.store import KeyValue

GROUPS, GONE = 1_000, UUID(int=9)


class Offsets:
    """Of one topic that is there, and of one that is gone."""

    topic_ids = frozenset({UUID(int=1), GONE})

    def forget_topic(self, topic_id: UUID) -> UUID:
        """What is stored for it."""
        return topic_id


class Subject(ForgottenOffsets):
    """Of very many groups with offsets."""

    def __init__(self) -> None:
        self.forgotten: list[UUID] = []
        self.done = asyncio.Event()
        view = ClusterView()
        topic = Topic(name="t", topic_id=UUID(int=1), partitions=1)
        view.topics[topic.topic_id] = TopicEntry(topic, 1, 1)
        group = SimpleNamespace(offsets=Offsets(), dropped=None, store=self._store)
        super().__init__(
            session=cast(Any, self),
            view=view,
            groups=cast(Any, dict.fromkeys(map(str, range(GROUPS)), group)),
            settings=GroupSettings(),
            counted=Counter(),
            clock_ms=lambda: 0.0,
        )

    async def read_prefix(self, prefix: str) -> list[KeyValue]:
        """No topic is there."""
        return []

    async def _store(self, topic_id: UUID) -> None:
        self.forgotten.append(topic_id)
        if len(self.forgotten) == GROUPS:
            self.done.set()


async def test_very_many_groups_are_looked_through_in_slices() -> None:
    """
    And the offsets of the deleted topic go, of every group.
    """
    clock = itertools.count(0.0, SLICE_S / 100)
    measure_by(asyncio.get_running_loop(), lambda: next(clock))
    subject = Subject()
    running = asyncio.create_task(subject.run())
    subject.look()
    turns = 0
    while not subject.done.is_set():
        turns += 1
        await asyncio.sleep(0)
    running.cancel()

    assert {GONE} == set(subject.forgotten)
    assert turns >= GROUPS / 100
