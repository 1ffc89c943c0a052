"""An administrator: makes topics, changes them, deletes them and makes them again.

What it asks for may be cut in half by whatever happens to the agent; what it was told is kept
for the end.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.topics.service import Topics
from driftlog_agents.topics.validation import NewTopic
from driftlog_metadata.schema.model import Topic

if TYPE_CHECKING:
    from tests.simulation.world import World

_NAMES = ("a", "c", "d")
"""Never b: something is to be produced from the first second to the last."""

_PATIENCE_S = 20.0
"""Then a request to an agent that does not answer is given up."""

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
    unsure: set[UUID] = field(default_factory=set)
    """Whose configs are not known any more: nobody waited for an answer."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.5, 5))
            nodes = self.world.nodes
            process = (nodes[0] if len(nodes) == 1 else self.rng.choice(nodes)).process
            if process.serving:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PATIENCE_S if self.world.many else None):
                        await process.do(self._change(process.broker.topics))

    async def _change(self, topics: Topics) -> None:
        try:
            match self.rng.choice(("create", "alter", "alter", "extend", "delete", "again")):
                case "create":
                    await self._create(topics, self.rng.choice(_NAMES))
                case "alter":
                    await self._alter(topics)
                case "extend":
                    await self._extend(topics)
                case "delete":
                    await self._delete(topics, self.rng.choice(_NAMES))
                case "again":
                    name = self.rng.choice(_NAMES)
                    await self._delete(topics, name)
                    await self._create(topics, name)
        except RefusedError as error:
            self.world.expect(error.code in _REFUSED, f"an admin was refused: {error}")

    def _there(self, topics: Topics, name: str) -> Topic:
        topic = topics.by_name.get(name)
        if topic is None:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic

    async def _create(self, topics: Topics, name: str) -> None:
        new = NewTopic(name=name, partitions=self.rng.randint(1, 2), configs=self._some_configs())
        topic = await topics.create(new)
        self.world.count("topics made")
        self.made[topic.topic_id] = topic
        self.configs[topic.topic_id] = topic.configs
        self.world.produce_to(topic, batches=15)

    async def _delete(self, topics: Topics, name: str) -> None:
        topic = self._there(topics, name)
        self.dying.add(topic.topic_id)
        await topics.delete(topic)
        self.world.count("topics deleted")
        self.deleted.add(topic.topic_id)

    async def _alter(self, topics: Topics) -> None:
        topic = self._there(topics, self.rng.choice(("b", *_NAMES)))
        configs = self._some_configs()
        self.configs.pop(topic.topic_id, None)
        try:
            changed = await topics.alter_configs(topic, lambda _: configs)
        except asyncio.CancelledError:
            if self.world.many:
                self.unsure.add(topic.topic_id)  # an agent that is slow may do it yet
            raise
        self.world.count("topics changed")
        if topic.topic_id not in self.unsure:
            self.configs[topic.topic_id] = changed.configs

    async def _extend(self, topics: Topics) -> None:
        topic = self._there(topics, self.rng.choice(_NAMES))
        if topic.partitions < 3:
            try:
                await topics.create_partitions(topic, topic.partitions + 1)
            except RefusedError as error:
                # An agent that was cut off has not seen yet what another one did (seed 552).
                if self.world.many and error.code is ErrorCode.INVALID_PARTITIONS:
                    return
                raise
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
