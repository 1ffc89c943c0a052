"""An administrator: makes topics, changes them, deletes them and makes them again.

What it asks for may be cut in half by whatever happens to the agent; what it was told is kept
for the end.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.topics import NewTopic
from driftlog_metadata.model import Topic

if TYPE_CHECKING:
    from tests.simulation.world import World

_NAMES = ("a", "c", "d")
"""Never b: something is to be produced from the first second to the last."""

_REFUSED = {
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.TOPIC_ALREADY_EXISTS,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


@dataclass(slots=True, eq=False)
class Admin:
    """See the module."""

    world: "World"
    rng: Random
    made: dict[UUID, Topic] = field(default_factory=dict)
    """Which it was told are there."""
    dying: set[UUID] = field(default_factory=set)
    """Whose deletion it asked for: what they hold is owed to nobody."""
    deleted: set[UUID] = field(default_factory=set)
    configs: dict[UUID, Mapping[str, str]] = field(default_factory=dict)
    """What they must be; absent while an answer is missing."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.5, 5))
            if self.world.process.serving:
                await self.world.process.do(self._change())

    async def _change(self) -> None:
        try:
            match self.rng.choice(("create", "alter", "alter", "extend", "delete", "again")):
                case "create":
                    await self._create(self.rng.choice(_NAMES))
                case "alter":
                    await self._alter()
                case "extend":
                    await self._extend()
                case "delete":
                    await self._delete(self.rng.choice(_NAMES))
                case "again":
                    name = self.rng.choice(_NAMES)
                    await self._delete(name)
                    await self._create(name)
        except RefusedError as error:
            self.world.expect(error.code in _REFUSED, f"an admin was refused: {error}")

    def _there(self, name: str) -> Topic:
        topic = self.world.process.broker.topics.by_name.get(name)
        if topic is None:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic

    async def _create(self, name: str) -> None:
        new = NewTopic(name=name, partitions=self.rng.randint(1, 2), configs=self._some_configs())
        topic = await self.world.process.broker.topics.create(new)
        self.world.count("topics made")
        self.made[topic.topic_id] = topic
        self.configs[topic.topic_id] = topic.configs
        self.world.produce_to(topic, batches=15)

    async def _delete(self, name: str) -> None:
        topic = self._there(name)
        self.dying.add(topic.topic_id)
        await self.world.process.broker.topics.delete(topic)
        self.world.count("topics deleted")
        self.deleted.add(topic.topic_id)

    async def _alter(self) -> None:
        topic = self._there(self.rng.choice(("b", *_NAMES)))
        configs = self._some_configs()
        self.configs.pop(topic.topic_id, None)
        changed = await self.world.process.broker.topics.alter_configs(topic, lambda _: configs)
        self.world.count("topics changed")
        self.configs[topic.topic_id] = changed.configs

    async def _extend(self) -> None:
        topic = self._there(self.rng.choice(_NAMES))
        if topic.partitions < 3:
            await self.world.process.broker.topics.create_partitions(topic, topic.partitions + 1)
            self.world.count("topics extended")

    def _some_configs(self) -> dict[str, str]:
        """Sometimes ones that make the agent look into batches, or stamp them."""
        configs: dict[str, str] = {}
        if self.rng.random() < 0.5:
            configs["message.timestamp.type"] = "LogAppendTime"
        if self.rng.random() < 0.5:
            configs["compression.type"] = self.rng.choice(("gzip", "zstd", "uncompressed"))
        return configs

    # ── At the end ──

    def check(self, there: Mapping[UUID, Topic]) -> None:
        """What it was told, against the topics that are *there*."""
        for topic_id, topic in self.made.items():
            if topic_id not in self.dying:
                self.world.expect(topic_id in there, f"{topic.name} was made and is not there")
        for topic_id in self.deleted:
            self.world.expect(topic_id not in there, f"{topic_id} was deleted and is there")
        for topic_id, configs in self.configs.items():
            if topic_id in there:
                self.world.expect(
                    there[topic_id].configs == configs,
                    f"{there[topic_id]} was to have {configs}",
                )
