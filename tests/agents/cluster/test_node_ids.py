"""A node id stays with its directory while that is used, and another agent gets it a week later."""

import json
from random import Random
from typing import cast

import pytest
from structlog.testing import capture_logs

from driftlog_agents.cluster.node_ids import HOUR_MS, NodeIds
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.process.composition.cluster_identity import node_id
from driftlog_metadata.schema.codec import decode_node_id_use, encode_configs, encode_node_id_use
from driftlog_metadata.schema.keys import CONFIGS_PREFIX, agent_key, configs_key, node_id_key
from driftlog_metadata.schema.model import Cluster, ConfigsOwner, NodeIdUse
from driftlog_metadata.stores.errors import FencedError
from driftlog_metadata.stores.store import Delete, Put
from tests.agents.foundation.test_start_retry import NodeFile
from tests.support.memory_store import MemoryMetadataStore

CLUSTER = Cluster("a-cluster")
DAY_H = 24


class World:
    """A metadata store, directories, and a collector that looks every two hours."""

    def __init__(self) -> None:
        self.now_h = 1_000
        self.metadata = MemoryMetadataStore(lambda: 0)
        self.ids = NodeIds(self.metadata, confirm=self.confirm)
        self.went_back = False
        """The store is not the one that was seen."""
        self.rng = Random(1)

    async def confirm(self) -> None:
        if self.went_back:
            raise FencedError("the metadata store went back")

    async def start(self, disk: NodeFile) -> int:
        """An agent on *disk*: its node id."""
        return await node_id(self.metadata, cast(AgentDisk, disk), CLUSTER, rng=self.rng)

    async def live(self, hours: int, *numbers: int) -> None:
        """Time goes by, while agents of *numbers* have sessions."""
        await self.metadata.txn((), [Put(agent_key(n), b"") for n in numbers])
        for _ in range(hours // 2):
            self.now_h += 2
            await self.ids.collect(self.now_h * HOUR_MS)
        await self.metadata.txn((), [Delete(agent_key(n)) for n in numbers])

    async def use(self, number: int) -> NodeIdUse | None:
        kv = await self.metadata.get(node_id_key(number))
        return None if kv is None else decode_node_id_use(kv.value)


async def test_ids_of_directories_that_are_gone_are_given_to_others() -> None:
    """
    A week after the last agent on them; however many came and went, the ids are few.
    """
    world = World()
    for _ in range(30):
        number = await world.start(NodeFile())
        await world.live(10, number)
        await world.live(8 * DAY_H)

    assert 1 == number
    assert [] == world.metadata.snapshot(node_id_key(2)[:-1])


@pytest.mark.parametrize("ids", [1, 150])
async def test_the_configs_of_a_broker_go_with_its_id(ids: int) -> None:
    """
    Another machine gets the id, and would start with them; those of all brokers stay.
    """
    world = World()
    for _ in range(ids):
        number = await world.start(NodeFile())
        key = configs_key(ConfigsOwner(node_id=number))
        await world.metadata.txn((), [Put(key, encode_configs({"log.retention.ms": "5"}))])
    of_all = configs_key(ConfigsOwner())
    await world.metadata.txn((), [Put(of_all, encode_configs({"max.connections": "5"}))])
    await world.live(6 * DAY_H)
    assert await world.metadata.get(key) is not None
    await world.live(2 * DAY_H)

    assert [of_all] == [kv.key for kv in world.metadata.snapshot(CONFIGS_PREFIX)]


@pytest.mark.parametrize("due", ["marked", "unmarked", "deleted"])
async def test_a_store_that_went_back_has_no_id_marked_or_deleted(due: str) -> None:
    """
    What it says of agents and ids is of another time.
    """
    world = World()
    number = await world.start(NodeFile())
    if due != "marked":
        await world.live(8)
    before = await world.use(number)
    world.went_back = True
    with pytest.raises(FencedError):
        await world.live(*{"marked": (8,), "unmarked": (8, number), "deleted": (8 * DAY_H,)}[due])

    assert before == await world.use(number)


async def test_the_id_of_a_directory_that_is_used_again_within_a_week_is_kept() -> None:
    """
    However often: the mark goes with the start, and begins anew.
    """
    world, disk = World(), NodeFile()
    number = await world.start(disk)
    for _ in range(4):
        await world.live(6 * DAY_H)
        assert number == await world.start(disk)
        assert (await world.use(number) or NodeIdUse(None, 1)).unused_since_ms is None


async def test_an_agent_that_is_without_a_session_for_a_moment_now_and_then_keeps_its_id() -> None:
    """
    A mark that was made in such a moment goes when its agent lives again.
    """
    world = World()
    number = await world.start(NodeFile())
    for _ in range(5):
        await world.live(6, number)
        await world.live(8)
        await world.live(3 * DAY_H, number)

    assert await world.use(number) is not None


@pytest.mark.parametrize("taken", [False, True])
async def test_a_directory_whose_id_was_given_up_gets_a_new_one(taken: bool) -> None:
    """
    Whether or not another one has it by now; the log says so.
    """
    world, disk = World(), NodeFile()
    number = await world.start(disk)
    await world.live(8 * DAY_H)
    other = await world.start(NodeFile()) if taken else None

    with capture_logs() as lines:
        again = await world.start(disk)

    assert ["node_id_given_up"] == [line["event"] for line in lines]
    assert again != other
    assert again == await world.start(disk)
    assert (number if not taken else 2) == again


async def test_ids_of_before_are_kept() -> None:
    """
    Their values and files say nothing of the directory.
    """
    world, disk = World(), NodeFile()
    disk.saved["node_id.json"] = json.dumps({"node_id": 5, "cluster_id": "a-cluster"}).encode()
    await world.metadata.txn((), [Put(node_id_key(5), b"{}")])

    assert 5 == await world.start(disk)
    await world.live(2)
    assert 5 == await world.start(disk)


async def test_a_start_beside_the_collector_is_not_robbed() -> None:
    """
    The delete compares the key as it was marked, and that no agent is there.
    """
    world, disk = World(), NodeFile()
    number = await world.start(disk)
    await world.live(6 * DAY_H)
    ask = world.metadata.txn

    async def beside(*arguments: object) -> object:
        if any(isinstance(op, Delete) for op in arguments[1]):  # type: ignore[attr-defined]
            world.metadata.txn = ask  # type: ignore[method-assign]
            await world.start(disk)
        return await ask(*arguments)  # type: ignore[arg-type]

    world.metadata.txn = beside  # type: ignore[assignment, method-assign]
    for _ in range(20):
        world.now_h += 2
        await world.ids.collect(world.now_h * HOUR_MS)

    assert number == await world.start(disk)


def test_uses_are_read_as_they_were_written() -> None:
    """
    Values round-trip; those of before say nothing.
    """
    for use in (NodeIdUse(), NodeIdUse("ab", 5), NodeIdUse("ab")):
        assert use == decode_node_id_use(encode_node_id_use(use))
    assert NodeIdUse() == decode_node_id_use(b"{}")
