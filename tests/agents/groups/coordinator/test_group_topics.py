"""If this fails, a topic that is created or deleted beside very many stalls the event loop."""

import asyncio
from collections.abc import Callable
from typing import Any, cast
from uuid import UUID

from driftlog_agents.cluster.view import TopicEntry
from driftlog_agents.cluster.watch import ClusterWatch
from driftlog_agents.groups.coordinator.group_topics import GroupTopics
from driftlog_metadata.schema.model import Topic

MANY = 2_000


class Subject(GroupTopics):
    """With a view of as many topics, and no groups."""

    def __init__(self, topics: int) -> None:
        self.cluster = ClusterWatch(cast(Any, None))
        self.offloaded = 0
        self.looks = 0
        super().__init__(self.cluster, {}, cast(Any, self), self._off_the_loop)
        for i in range(topics):
            self.create(i)

    async def _off_the_loop(self, fn: Callable[..., Any], *args: Any) -> Any:
        self.offloaded += 1
        await asyncio.sleep(0)
        return fn(*args)

    def look(self) -> None:
        """A topic is gone."""
        self.looks += 1

    def create(self, number: int) -> None:
        """The view has one more."""
        topic = Topic(name=f"t{number}", topic_id=UUID(int=number + 1), partitions=1)
        self.cluster.view.topics[topic.topic_id] = TopicEntry(topic, number, number)
        self.cluster.view.topics_version += 1


async def test_very_many_topics_are_read_off_the_loop_once() -> None:
    """
    A thousand members that name a new topic need one update.
    """
    subject = Subject(MANY)
    await asyncio.gather(*(subject.know([f"t{MANY - 1}"]) for _ in range(100)))

    assert (1, MANY) == (subject.offloaded, len(subject.current.by_name))
    await subject.know(["there is none"])
    assert 1 == subject.offloaded, "nothing has changed since"


async def test_a_topic_of_a_later_request_is_not_missed() -> None:
    """
    It is created while the topics before it are read: its member would be assigned nothing.
    """
    subject = Subject(MANY)
    first = asyncio.create_task(subject.know(["t0"]))
    await asyncio.sleep(0)
    subject.create(MANY)
    await subject.know([f"t{MANY}"])
    await first

    assert f"t{MANY}" in subject.current.by_name


async def test_offsets_are_looked_at_where_a_topic_is_gone() -> None:
    """
    Else they stay for ever; without a topic that is gone, nothing is read.
    """
    subject = Subject(2)
    await subject.know(["t0"])
    subject.create(2)
    await subject.know(["t2"])
    before = subject.looks
    del subject.cluster.view.topics[UUID(int=1)]
    subject.create(3)
    await subject.know(["t3"])

    assert (0, 1, 0) == (before, subject.looks, subject.offloaded)
