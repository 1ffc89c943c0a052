"""A topic is altered again and again beside a restore, through agents of the old cluster.

    alter ──▶ answered ──▶ alter … ── agents are killed, frozen ── the restore reads the file

1. At every moment the newest file of the topic has every change that was answered.
2. So has the restored topic; and once the restore has waited, no change is answered.

Listings may lack what was just put (`bucket_faults`), while old files are deleted.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Final

from driftlog_agents.protocol.errors import RefusedError
from driftlog_agents.topics.service import Topics
from driftlog_metadata.schema.codec import decode_topic
from driftlog_metadata.schema.keys import topic_key
from driftlog_metadata.schema.model import Topic
from driftlog_tiering.formats import bucket_files, layout
from tests.simulation.faults import now
from tests.support.memory_store import MemoryMetadataStore

if TYPE_CHECKING:
    from tests.simulation.world import World

_FIRST, _END = 25_000, 30_000

_PATIENCE_S: Final = 20.0
"""Then a change through an agent that does not answer is given up; it may be made yet."""

_FOREVER_MS: Final = 10**12
"""Retention of which nothing expires; each change adds 1."""


def has_altered_topic(seed: int) -> bool:
    """Whether a seed with a restore is one."""
    return _FIRST <= seed < _END


class RestoredTopics:
    """See the module."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"altered {world.seed}")
        self._answered = -1
        """The largest number that was answered; no number is given twice."""
        self._may_answer = True

    async def run(self) -> None:
        """Alter the topic until cancelled."""
        for number in range(1_000_000):
            await asyncio.sleep(self._rng.choice((0.0, 0.1, 1.0)))
            process = self._rng.choice(self._world.nodes).process
            if process.serving:
                with contextlib.suppress(TimeoutError, RefusedError):
                    async with asyncio.timeout(_PATIENCE_S):
                        await process.do(self._alter(process.broker.topics, number))
            self.check()

    async def watch(self) -> None:
        """Compare the newest file with the answers, until cancelled."""
        while True:
            await asyncio.sleep(0.05)
            self.check()

    async def _alter(self, topics: Topics, number: int) -> None:
        topic = topics.by_name.get(self._topic.name)
        if topic is None:
            return
        # A change that was given up is made later, and takes nothing back.
        changed = await topics.alter_configs(
            topic,
            lambda now: {
                "retention.ms": str(max(_FOREVER_MS + number, _number(now) + _FOREVER_MS))
            },
        )
        if _number(changed.configs) == number:
            self._world.expect(self._may_answer, "a topic was altered after the restore")
            self._world.count("topics altered beside a restore")
            self._answered = number
            self.check()

    def waited(self) -> None:
        """The restore has waited until the old agents have stopped."""
        self._may_answer = False

    # ── The oracle ──

    @property
    def _topic(self) -> Topic:
        return self._world.first_topics[0]

    def check(self) -> None:
        """The newest file has what was answered."""
        if self._answered < 0:
            return
        world = self._world
        keys = now(_keys(world, self._topic))[0]
        world.expect(bool(keys), "topic file: an altered topic has none")
        body, _ = now(world.bucket.get(keys[-1]))
        found = _number(bucket_files.decode_topic(body).topic.configs)
        world.expect(
            found >= self._answered,
            f"topic file: {self._answered} was answered, and the newest has {found}",
        )

    async def check_restored(self, metadata: MemoryMetadataStore) -> None:
        """The restored store has what was answered."""
        kv = await metadata.get(topic_key(self._topic.name))
        assert kv is not None
        found = _number(decode_topic(kv.value).configs)
        self._world.expect(
            found >= self._answered,
            f"topic file: {self._answered} was answered, and the restored topic has {found}",
        )


def _number(configs: Mapping[str, str]) -> int:
    return int(configs.get("retention.ms", _FOREVER_MS - 1)) - _FOREVER_MS


async def _keys(world: "World", topic: Topic) -> list[str]:
    keys: list[str] = []
    prefix = layout.topic_file_prefix(topic.name, topic.topic_id)
    async for page in world.bucket.list(prefix):
        keys += [info.key for info in page.objects]
    return keys
