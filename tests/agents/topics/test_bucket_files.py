"""Topic files of agents: a restore would take a topic for deleted, or give it configs that were
changed since; or the bucket would keep a file for each change for ever."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import TypeVar, cast

import pytest
from structlog.testing import capture_logs

from driftlog_agents.cluster.cluster_file import ClusterFile
from driftlog_agents.log.log_session import Engine
from driftlog_agents.topics.bucket_files import KEPT, SETTLED_MS, TopicBucketFiles
from driftlog_agents.topics.host import TopicHost
from driftlog_metadata.schema.codec import encode_topic
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.keys import topic_key
from driftlog_metadata.schema.model import Cluster, Topic
from driftlog_metadata.stores.store import Put
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.bucket_files import TopicFile, decode_topic, encode_cluster
from driftlog_tiering.formats.bucket_files import encode_topic as encode_topic_file
from driftlog_tiering.formats.manifests import OtherClusterError
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_store import AccessDeniedError, Listing, ObjectStore
from tests.agents.log.lives import Bucket, Life, World, now_ms, on_virtual_time
from tests.simulation.faults import now
from tests.support.clusters import AUTHOR


@dataclass
class Host:
    """What topic files use of an agent."""

    objects: ObjectStore
    engine: Engine
    wall_ms: Callable[[], int]


async def begin() -> tuple[World, Life, TopicBucketFiles]:
    """A cluster with a topic that has a file, whose agent looks at the newest cluster file."""
    world = World()
    await world.bucket.put(layout.CLUSTER_KEY, [encode_cluster(AUTHOR)])
    world.ownership = lambda: ClusterFile(world.bucket, AUTHOR.cluster_id, Grace(), now_ms)
    life = await world.start()
    host = Host(world.bucket, life.engine, world.wall_ms)
    files = TopicBucketFiles(cast(TopicHost, host))
    await files.create(life.engine, world.topics["t"])
    return world, life, files


Change = Callable[[TopicBucketFiles, Engine, Topic], Awaitable[None]]


@pytest.mark.parametrize(
    "change",
    [
        TopicBucketFiles.mark_deleted,
        TopicBucketFiles.update,
        lambda files, engine, topic: files.create(engine, replace(topic, name="new")),
    ],
    ids=["delete", "alter", "create"],
)
def test_an_agent_of_a_restored_cluster_writes_no_topic_file(change: Change) -> None:
    """
    It has flushed nothing since, so the write of the file is its first look.
    """

    @on_virtual_time
    async def run() -> None:
        world, life, files = await begin()
        topic = replace(world.topics["t"], configs={"retention.ms": "1000"})
        await world.metadata.txn((), [Put(topic_key("t"), encode_topic(topic))])
        await world.bucket.put(layout.cluster_key(1), [encode_cluster(Cluster("restored"))])
        await asyncio.sleep(61)
        before = world.bucket.keys("topics/")

        with pytest.raises(OtherClusterError):
            await change(files, life.engine, topic)

        assert before == world.bucket.keys("topics/")

    run()


@on_virtual_time
async def test_a_topic_file_waits_for_the_look() -> None:
    """
    It is written when the bucket gives the cluster file.
    """
    world, life, files = await begin()
    await asyncio.sleep(61)
    world.bucket.manifests.clear()  # reads of anything but flush objects are refused
    marking = asyncio.get_running_loop().create_task(
        files.mark_deleted(life.engine, world.topics["t"])
    )
    await asyncio.sleep(100)
    before = world.bucket.keys("deleted.json")
    world.bucket.manifests.set()
    await marking

    assert not before
    assert 1 == len(world.bucket.keys("deleted.json"))


# ── Versions ──

T = TypeVar("T")


class Slow:
    """The way of one agent to a bucket, which takes time before a request acts, and before it is
    answered.  A write acts also when nobody waits for it any more."""

    def __init__(self, altered: "Altered", rng: Random) -> None:
        self._altered = altered
        self._bucket = altered.world.bucket
        self._rng = rng
        self.listed = asyncio.Event()
        """A listing was answered."""
        self.creates = asyncio.Event()
        """Cleared: creates wait."""
        self.creates.set()
        self.gets = asyncio.Event()
        """Cleared: reads wait."""
        self.gets.set()
        self.may_delete = True

    async def create(self, key: str, body: Sequence[Buffer]) -> None:
        await self.creates.wait()
        await asyncio.shield(self._acts(lambda: self._bucket.create(key, body)))

    async def delete(self, keys: Sequence[str]) -> None:
        if not self.may_delete:
            raise AccessDeniedError("the policy does not allow this")
        await asyncio.shield(self._acts(lambda: self._bucket.delete(keys)))

    async def get(self, key: str) -> Buffer:
        await self.gets.wait()
        return await self._acts(lambda: self._bucket.get(key))

    async def list(self, prefix: str) -> AsyncIterator[Listing]:
        await self._travel()
        async for page in self._bucket.list(prefix):
            yield page
        self.listed.set()
        await self._travel()

    async def _acts(self, request: Callable[[], Awaitable[T]]) -> T:
        await self._travel()
        try:
            return await request()
        finally:
            self._altered.check()
            await self._travel()

    async def _travel(self) -> None:
        await asyncio.sleep(self._rng.choice((0.0, 0.01, 0.1, 1.0)))


@dataclass
class Altered:
    """A topic whose key several agents change, and what its newest file is compared with."""

    world: World
    life: Life
    configs: list[Mapping[str, str]] = field(default_factory=list)
    """All that the key has had, in order."""
    answered: int = 0
    """The index of the newest ones that were answered."""

    @classmethod
    async def begin(cls) -> "Altered":
        """The topic as it was created."""
        world = World()
        altered = cls(world, await world.start())
        files, _ = altered.agent(Random(0))
        altered.configs.append(world.topics["t"].configs)
        await files.create(altered.life.engine, world.topics["t"])
        return altered

    def agent(self, rng: Random) -> tuple[TopicBucketFiles, Slow]:
        """The topic files of one more agent, and its way to the bucket."""
        way = Slow(self, rng)
        host = Host(cast(ObjectStore, way), self.life.engine, self.world.wall_ms)
        return TopicBucketFiles(cast(TopicHost, host)), way

    async def alter(self, files: TopicBucketFiles, configs: Mapping[str, str]) -> None:
        """One change through one agent, until it is answered."""
        topic = replace(self.world.topics["t"], configs=configs)
        await self.world.metadata.txn((), [Put(topic_key("t"), encode_topic(topic))])
        at = len(self.configs)
        self.configs.append(configs)
        await files.update(self.life.engine, topic)
        self.answered = max(self.answered, at)
        self.check()

    def check(self) -> None:
        """The newest file has every change that was answered."""
        if self.keys:
            assert self.newest().configs in self.configs[self.answered :]

    @property
    def keys(self) -> list[str]:
        """Of the versions, ascending."""
        return self.world.bucket.keys("/topic/")

    def keys_since(self, put_ms: float) -> list[str]:
        """Of the versions that were put since then."""
        infos = ((key, now(self.world.bucket.stat(key))[0]) for key in self.keys)
        return [key for key, info in infos if info.modified_ms >= put_ms]

    def newest(self) -> Topic:
        """By the newest file."""
        body, _ = now(self.world.bucket.get(self.keys[-1]))
        return decode_topic(body).topic

    def versions(self) -> list[int]:
        """The numbers of the versions, ascending."""
        return [layout.parse_topic_key(key).version for key in self.keys]


def retention(number: int) -> dict[str, str]:
    """Configs that no other number has."""
    return {"retention.ms": str(number)}


@on_virtual_time
async def test_old_versions_go_and_the_newest_and_the_oldest_that_compacts_stay() -> None:
    """
    A client that alters a topic in a loop would fill the bucket, and each change lists them all.
    What was compacted once explains gaps to `driftlog verify`.
    """
    altered = await Altered.begin()
    files, _ = altered.agent(Random(1))
    for number in range(2, 80):
        compacts = {"cleanup.policy": "compact"} if number in (5, 6, 40) else {}
        await altered.alter(files, retention(number) | compacts)
        await asyncio.sleep(SETTLED_MS / 6000)
        assert len(altered.keys) <= 2 * KEPT + 8

    versions = altered.versions()
    assert 5 == versions[0]
    assert [*range(80 - KEPT, 80)] == versions[-KEPT:]
    assert [*range(versions[1], 80)] == versions[1:]
    assert not {6, 40} & set(versions)


@on_virtual_time
async def test_versions_that_older_agents_have_left_go_with_the_next_changes() -> None:
    """
    A bucket may have thousands: one change deletes some of them, so none takes long.
    """
    altered = await Altered.begin()
    files, way = altered.agent(Random(1))
    way.may_delete = False
    for number in range(2, 200):
        await altered.alter(files, retention(number))
    assert 199 == len(altered.keys)
    await asyncio.sleep(SETTLED_MS / 1000)
    way.may_delete = True
    counts = []
    for _ in range(8):
        await files.repair(altered.life.engine, altered.world.topics["t"])
        counts.append(len(altered.keys))

    assert (
        min(before - after for before, after in zip([199, *counts], counts[:5], strict=False)) > 9
    )
    assert 2 * KEPT >= counts[-1]


@on_virtual_time
async def test_a_listing_that_lacks_what_was_just_put_frees_no_number() -> None:
    """
    A writer would create a version that was deleted, which is not the newest, and be answered.
    """
    altered = await Altered.begin()
    files, _ = altered.agent(Random(1))
    for number in range(2, 60):
        await altered.alter(files, retention(number))
    altered.world.bucket.hidden_keys = set(altered.keys_since(now_ms() - SETTLED_MS))
    assert len(altered.world.bucket.hidden_keys) > KEPT
    await asyncio.gather(
        altered.alter(files, retention(60)), _shown_in(altered.world.bucket, seconds=5)
    )

    assert retention(60) == altered.newest().configs


@on_virtual_time
async def test_a_change_back_is_not_answered_behind_a_version_that_a_listing_lacks() -> None:
    """
    A restore would take the configs that the client has just taken back.
    """
    altered = await Altered.begin()
    files, _ = altered.agent(Random(1))
    await altered.alter(files, retention(1))
    await altered.alter(files, retention(2))
    altered.world.bucket.hidden_keys = {altered.keys[-1]}
    await asyncio.gather(
        altered.alter(files, retention(1)), _shown_in(altered.world.bucket, seconds=5)
    )

    assert retention(1) == altered.newest().configs


async def _shown_in(bucket: Bucket, *, seconds: float) -> None:
    await asyncio.sleep(seconds)
    bucket.hidden_keys = set()


@on_virtual_time
async def test_an_agent_that_may_not_delete_changes_topics_all_the_same() -> None:
    """
    It says so; an agent that may deletes what is left.
    """
    altered = await Altered.begin()
    files, way = altered.agent(Random(1))
    way.may_delete = False
    with capture_logs() as logs:
        for number in range(2, 22):
            await altered.alter(files, retention(number))
            await asyncio.sleep(SETTLED_MS / 1000)

    assert retention(21) == altered.newest().configs
    assert {"old_topic_files_left"} == {entry["event"] for entry in logs}


@on_virtual_time
async def test_a_writer_that_was_held_up_hides_no_later_change() -> None:
    """
    The later change is back to what the newest file had: without a version of its own, the other
    one would come after it.
    """
    altered = await Altered.begin()
    slow, way = altered.agent(Random(1))
    files, _ = altered.agent(Random(2))
    await altered.alter(files, retention(1))
    way.creates.clear()
    held_up = asyncio.get_running_loop().create_task(altered.alter(slow, retention(2)))
    await way.listed.wait()
    await asyncio.sleep(5)
    await altered.alter(files, retention(1))
    way.creates.set()
    await held_up

    assert retention(1) == altered.newest().configs


@on_virtual_time
async def test_a_writer_whose_number_was_deleted_meanwhile_writes_no_newest_version() -> None:
    """
    It was held up before its create while others wrote so many versions that its own went.
    """
    altered = await Altered.begin()
    slow, way = altered.agent(Random(1))
    files, _ = altered.agent(Random(2))
    way.creates.clear()
    held_up = asyncio.get_running_loop().create_task(altered.alter(slow, retention(2)))
    await way.listed.wait()
    await asyncio.sleep(5)
    for number in range(3, 40):
        await altered.alter(files, retention(number))
        await asyncio.sleep(10)
    assert 2 not in altered.versions()
    way.creates.set()
    await held_up

    assert 2 in altered.versions()
    assert retention(39) == altered.newest().configs


@pytest.mark.parametrize("seed", range(60))
def test_the_newest_file_has_every_answered_change_at_every_moment(seed: int) -> None:
    """
    Agents change a topic at once, and are killed anywhere: whatever of their requests acts then,
    and when.
    """

    @on_virtual_time
    async def run() -> None:
        rng = Random(seed)
        altered = await Altered.begin()
        numbers = iter(range(1_000))

        async def agent() -> None:
            files, _ = altered.agent(rng)
            for _ in range(rng.randint(1, 12)):
                with suppress(TimeoutError):  # it is killed
                    async with asyncio.timeout(rng.choice((0.5, 2.0, 5.0, 60.0, 60.0))):
                        if rng.random() < 0.2:
                            await files.repair(altered.life.engine, altered.world.topics["t"])
                        else:
                            await altered.alter(files, retention(next(numbers)))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(rng.randint(2, 6)):
                tasks.create_task(agent())
        files, _ = altered.agent(rng)
        await asyncio.sleep(10)
        await files.repair(altered.life.engine, altered.world.topics["t"])

        assert altered.configs[-1] == altered.newest().configs

    run()


@on_virtual_time
async def test_a_version_that_goes_between_listing_and_read_is_no_damage() -> None:
    """
    The agent lists again: an operator would look for damage that is none.
    """
    altered = await Altered.begin()
    topic, bucket = altered.world.topics["t"], altered.world.bucket
    slow, way = altered.agent(Random(3))
    way.gets.clear()
    with capture_logs() as logs:
        late = asyncio.get_running_loop().create_task(slow.repair(altered.life.engine, topic))
        await way.listed.wait()
        for version in (2, 3):
            key = layout.topic_key("t", topic.topic_id, version)
            await bucket.create(key, [encode_topic_file(TopicFile(version, topic))])
        await bucket.delete(altered.keys[:-1])
        way.gets.set()
        await late

    assert not logs
    assert [3] == altered.versions()
