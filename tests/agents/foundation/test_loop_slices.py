"""Requests that arrive together share the event loop: their work is not done in one iteration."""

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.foundation.fair_queue import Client
from driftlog_agents.foundation.loop_slices import (
    SLICE_S,
    call_all,
    each,
    each_within,
    measure_by,
    off_the_loop,
    sliced,
    time_for_large,
    time_to_work,
    work_for,
)
from driftlog_agents.handlers.api import (
    consumer_group_describe,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_topic_partitions,
    elect_leaders,
    leave_group,
    list_config_resources,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
    reassignments,
)
from driftlog_agents.protocol.messages import alter_partition_reassignments as ar
from driftlog_agents.protocol.messages import consumer_group_describe as cd
from driftlog_agents.protocol.messages import create_topics as ct
from driftlog_agents.protocol.messages import delete_groups as dg
from driftlog_agents.protocol.messages import delete_records as dr
from driftlog_agents.protocol.messages import delete_topics as dt
from driftlog_agents.protocol.messages import describe_topic_partitions as tp
from driftlog_agents.protocol.messages import elect_leaders as el
from driftlog_agents.protocol.messages import leave_group as lg
from driftlog_agents.protocol.messages import list_config_resources as lr
from driftlog_agents.protocol.messages import list_offsets as lo
from driftlog_agents.protocol.messages import metadata as md
from driftlog_agents.protocol.messages import offset_commit as oc
from driftlog_agents.protocol.messages import offset_fetch as of
from driftlog_agents.protocol.messages import offset_for_leader_epoch as oe
from tests.agents.handlers.asking import create, new
from tests.agents.handlers.test_consumer_groups_api import join
from tests.agents.network.serving import eventually, one_in_a_slice
from tests.support.engine import RunningAgent

ITEM_S = SLICE_S / 5
"""What an item takes."""


class Clock:
    """Time that work takes; and the turns of the loop, with what was worked in each."""

    def __init__(self) -> None:
        self.now_s = 1.0
        self.turns: list[list[Any]] = [[]]
        measure_by(asyncio.get_running_loop(), lambda: self.now_s)
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self.turns.append([])
        if len(self.turns) < 10_000:
            asyncio.get_running_loop().call_soon(self._turn)

    def work(self, item: Any, cost_s: float = ITEM_S) -> None:
        """Take as long as *item* takes."""
        self.now_s += cost_s
        self.turns[-1].append(item)

    def busiest(self) -> int:
        """Items of the turn that has most."""
        return max(map(len, self.turns))


async def test_requests_share_the_slice_of_a_turn() -> None:
    """
    Forty at once work no longer in one turn of the loop than one does, and none is left behind.
    """
    clock = Clock()

    async def request(number: int) -> None:
        async for _ in sliced(range(20)):
            clock.work(number)

    await asyncio.gather(*map(request, range(40)))

    worked = [item for turn in clock.turns for item in turn]
    assert dict.fromkeys(range(40), 20) == {n: worked.count(n) for n in range(40)}
    assert clock.busiest() <= 6
    assert len(clock.turns) > 2 * 40 * 20 / 6  # sockets and timers run between two slices


async def test_topics_of_one_partition_do_not_begin_a_slice_each() -> None:
    """
    Nested loops share it, too; loops over nothing take time all the same.
    """
    clock = Clock()
    async for topic in sliced(range(100)):
        async for partition in sliced([topic]):
            clock.work(partition)
    async for _ in sliced(range(100)):
        clock.now_s += ITEM_S
        async for _ in sliced(()):
            pass

    assert clock.busiest() <= 6
    assert len(clock.turns) > 60


async def test_short_calls_share_a_slice_and_one_that_fails_costs_no_other() -> None:
    """
    Forty lists take turns; the errors are in the first slice and in later ones.
    """
    clock = Clock()

    def call(number: int) -> None:
        clock.work(number)
        if number in (0, 39):
            raise ValueError("a bug")

    with capture_logs() as lines:
        for number in range(40):
            call_all(partial(call, n) for n in [number] * 20)
        at_once = len(clock.turns[-1])
        for _ in range(200):
            await asyncio.sleep(0)
        call_all(partial(clock.work, number) for number in range(3))

    assert 0 < at_once <= 6
    assert clock.busiest() <= 6
    worked = [item for turn in clock.turns for item in turn]
    assert 5 < worked.index(1) < worked.index(39)
    assert dict.fromkeys(range(40), 20) == Counter(worked[:-3])
    assert [0, 1, 2] == worked[-3:]
    assert ["waiter_bug"] * 40 == [line["event"] for line in lines]


async def test_calls_go_on_behind_one_that_ends_its_caller() -> None:
    """
    A cancelled caller, for one: what is left is called, and so is what others call later.
    """
    called: list[int] = []

    def call(number: int) -> None:
        called.append(number)
        if number == 1:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        call_all(partial(call, number) for number in range(3))
    call_all(partial(call, number) for number in range(10, 12))
    for _ in range(10):
        await asyncio.sleep(0)

    assert [0, 1, 2, 10, 11] == sorted(called)


async def test_a_small_request_does_not_wait_for_all_large_ones() -> None:
    """
    Twenty large ones work; one that comes has a slice when one or two of them have had theirs.
    """
    clock = Clock()

    async def request(number: int) -> None:
        await time_for_large()
        async for _ in sliced(range(100)):
            clock.work(number)

    large = [asyncio.create_task(request(number)) for number in range(20)]
    for _ in range(30):
        await asyncio.sleep(0)
    before = sum(map(len, clock.turns))

    await asyncio.create_task(time_to_work())

    between = sum(map(len, clock.turns)) - before
    assert between <= 3 * 6
    await asyncio.gather(*large)


async def test_small_requests_of_a_crowd_delay_those_of_others_by_a_turn_or_two() -> None:
    """
    A hundred connections of one address ask again and again for what takes a whole slice, as small
    requests; one of another address has each of its own served soon, and none is left behind.
    """
    clock, crowd = Clock(), "crowd"
    served = 0

    async def ask(client: Client, cost_s: float) -> None:
        work_for(client)
        await time_to_work()
        clock.work(client, cost_s)

    async def hostile() -> None:
        nonlocal served
        client = Client(crowd)
        for _ in range(20):
            await asyncio.create_task(ask(client, SLICE_S))
            served += 1

    tasks = [asyncio.create_task(hostile()) for _ in range(100)]
    good = Client("good")
    waited = []
    for _ in range(20):
        begun = len(clock.turns)
        await asyncio.create_task(ask(good, ITEM_S))
        waited.append(len(clock.turns) - begun)
    await asyncio.gather(*tasks)

    assert max(waited) <= 4
    assert 100 * 20 == served


async def test_who_works_for_hours_is_served_as_soon_as_a_crowd_comes() -> None:
    """
    A client with large requests only, for a long time; then a crowd has small and large ones, and
    a small one of that client is served in a few turns.
    """
    clock = Clock()
    worked = Client("worked")

    async def large(client: Client, items: int) -> None:
        work_for(client)
        await time_for_large()
        async for _ in sliced(range(items)):
            clock.work(client, SLICE_S)

    async def small(client: Client) -> None:
        work_for(client)
        await time_to_work()
        clock.work(client)

    await asyncio.gather(large(worked, 300), large(worked, 300))
    crowd = [asyncio.create_task(large(Client("crowd"), 20)) for _ in range(50)]
    for _ in range(10):
        await asyncio.sleep(0)
    begun = len(clock.turns)
    await asyncio.create_task(small(worked))
    waited = len(clock.turns) - begun
    await asyncio.gather(*crowd)

    assert waited <= 6


async def test_who_gives_up_keeps_nobody_waiting() -> None:
    """
    A request that is cancelled while it waits, or when its turn comes, passes it on.
    """
    clock = Clock()

    async def request(number: int) -> None:
        async for _ in sliced(range(20)):
            clock.work(number)

    requests = [asyncio.create_task(request(number)) for number in range(10)]
    for _ in range(3):
        await asyncio.sleep(0)
    for cancelled in requests[1:9]:
        cancelled.cancel()
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await asyncio.gather(*requests, return_exceptions=True)

    assert not requests[0].cancelled()
    assert not requests[9].cancelled()
    assert 20 == sum(turn.count(9) for turn in clock.turns)


async def test_each_has_as_many_workers_as_it_needs() -> None:
    """
    What waits for nobody is done by a few; what waits, by as many as are allowed, in its order.
    """
    clock = Clock()
    workers: set[asyncio.Task[Any] | None] = set()
    waiting = most = 0

    async def at_once(number: int) -> int:
        workers.add(asyncio.current_task())
        clock.work(number)
        return -number

    async def slowly(number: int) -> int:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        for _ in range(100):
            await asyncio.sleep(0)
        waiting -= 1
        return -number

    first = await each(range(200), at_once, 100)
    second = await each(range(200), slowly, 20)

    assert [[-n for n in range(200)]] * 2 == [first, second]
    assert clock.busiest() <= 6
    assert len(workers) < 60
    assert 20 == most


async def test_what_has_its_time_is_not_waited_for_longer() -> None:
    """
    What is done before the deadline stays; what waits is cancelled, and what is left is not begun.
    """
    done, cancelled = [], []

    async def work(number: int) -> None:
        if number >= 3:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(number)
        done.append(number)

    await each_within(0.05, range(10), work, 2)

    assert [0, 1, 2] == done
    assert [3, 4] == sorted(cancelled)


# ── Handlers ──

N = 400
NAMES = [f"t{n}" for n in range(N)]
T0 = "there"

REQUESTS: dict[str, tuple[Any, int, Any]] = {
    "DeleteRecords": (
        delete_records.handle,
        2,
        dr.DeleteRecordsRequest(
            timeout_ms=1000,
            topics=[
                dr.DeleteRecordsTopic(
                    name=T0,
                    partitions=[
                        dr.DeleteRecordsPartition(partition_index=n, offset=0) for n in range(N)
                    ],
                )
            ],
        ),
    ),
    "OffsetForLeaderEpoch": (
        offset_for_leader_epoch.handle,
        4,
        oe.OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                oe.OffsetForLeaderTopic(
                    topic=name,
                    partitions=[
                        oe.OffsetForLeaderPartition(
                            partition=0, leader_epoch=0, current_leader_epoch=-1
                        )
                    ],
                )
                for name in NAMES
            ],
        ),
    ),
    "ListOffsets": (
        list_offsets.handle,
        7,
        lo.ListOffsetsRequest(
            replica_id=-1,
            topics=[
                lo.ListOffsetsTopic(
                    name=name,
                    partitions=[lo.ListOffsetsPartition(partition_index=0, timestamp=-2)],
                )
                for name in NAMES
            ],
        ),
    ),
    "OffsetFetch": (
        offset_fetch.handle,
        5,
        of.OffsetFetchRequest(
            group_id="g",
            topics=[
                of.OffsetFetchRequestTopic(name=T0, partition_indexes=list(range(N))),
            ],
        ),
    ),
    "OffsetCommit": (
        offset_commit.handle,
        7,
        oc.OffsetCommitRequest(
            group_id="g",
            topics=[
                oc.OffsetCommitRequestTopic(
                    name="unknown",
                    partitions=[
                        oc.OffsetCommitRequestPartition(partition_index=n, committed_offset=1)
                        for n in range(N)
                    ],
                )
            ],
        ),
    ),
    "CreateTopics": (
        create_topics.handle,
        7,
        ct.CreateTopicsRequest(
            timeout_ms=1000,
            validate_only=True,
            topics=[
                ct.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
                for name in NAMES
            ],
        ),
    ),
    "DeleteTopics": (
        delete_topics.handle,
        5,
        dt.DeleteTopicsRequest(topic_names=NAMES, timeout_ms=1000),
    ),
    "DeleteGroups": (
        delete_groups.handle,
        2,
        dg.DeleteGroupsRequest(groups_names=NAMES),
    ),
    "LeaveGroup": (
        leave_group.handle,
        4,
        lg.LeaveGroupRequest(
            group_id="g", members=[lg.MemberIdentity(member_id=name) for name in NAMES]
        ),
    ),
    "ConsumerGroupDescribe": (
        consumer_group_describe.handle,
        1,
        cd.ConsumerGroupDescribeRequest(group_ids=NAMES),
    ),
    "OffsetFetch of groups": (
        offset_fetch.handle,
        8,
        of.OffsetFetchRequest(
            groups=[of.OffsetFetchRequestGroup(group_id=name, topics=None) for name in NAMES]
        ),
    ),
    "Metadata": (
        metadata.handle,
        9,
        md.MetadataRequest(
            topics=[md.MetadataRequestTopic(name=name) for name in NAMES],
            allow_auto_topic_creation=False,
        ),
    ),
    "DescribeTopicPartitions": (
        describe_topic_partitions.handle,
        0,
        tp.DescribeTopicPartitionsRequest(
            topics=[tp.TopicRequest(name=name) for name in NAMES], response_partition_limit=2000
        ),
    ),
    "ElectLeaders": (
        elect_leaders.handle,
        2,
        el.ElectLeadersRequest(
            election_type=0,
            timeout_ms=1000,
            topic_partitions=[el.TopicPartitions(topic=T0, partitions=[0] * N)],
        ),
    ),
    "AlterPartitionReassignments": (
        reassignments.alter,
        0,
        ar.AlterPartitionReassignmentsRequest(
            timeout_ms=1000,
            topics=[
                ar.ReassignableTopic(
                    name=T0,
                    partitions=[
                        ar.ReassignablePartition(partition_index=0, replicas=[7]) for _ in range(N)
                    ],
                )
            ],
        ),
    ),
}


class Tasks:
    """Counts the tasks that are made while it is entered."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> "Tasks":
        loop = asyncio.get_running_loop()

        def make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
            self.count += 1
            return asyncio.Task(work, loop=loop, **options)

        loop.set_task_factory(make)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().set_task_factory(None)


def ticking() -> Iterator[float]:
    """A clock that goes on by a fiftieth of a slice whenever somebody looks."""
    now_s = 1.0
    while True:
        now_s += SLICE_S / 50
        yield now_s


@pytest.mark.parametrize("api", REQUESTS)
async def test_a_handler_works_in_slices_and_makes_no_task_of_each_element(
    tmp_path: Path, api: str
) -> None:
    """
    Of four hundred elements: the loop has its turns between them, and what memory knows takes
    hardly a task.
    """
    handle, version, request = REQUESTS[api]
    async with RunningAgent(tmp_path, settings=BrokerSettings(location="here")) as agent:
        await create_topics.handle(
            agent.broker,
            ct.CreateTopicsRequest(
                timeout_ms=10_000,
                topics=[ct.CreatableTopic(name=T0, num_partitions=1, replication_factor=1)],
            ),
            agent.context(7),
        )
        clock = ticking()
        measure_by(asyncio.get_running_loop(), lambda: next(clock))
        turns = 0

        def turn() -> None:
            nonlocal turns
            turns += 1
            if not done.done():
                asyncio.get_running_loop().call_soon(turn)

        with Tasks() as tasks:
            done = asyncio.ensure_future(handle(agent.broker, request, agent.context(version)))
            asyncio.get_running_loop().call_soon(turn)
            await done

    assert turns >= 8
    # Groups are looked up in the store, each by a task of the coordinator.
    looked_up = N if "roup" in api else 0
    assert tasks.count < looked_up + 100


async def turns_of(work: Awaitable[Any]) -> int:
    """Iterations of the loop until *work* is done, where each item takes a slice."""
    one_in_a_slice()
    turns, done = 0, asyncio.ensure_future(work)
    while not done.done():
        await asyncio.sleep(0)
        turns += 1
    await done
    return turns


async def test_what_one_group_or_cluster_has_much_of_is_answered_in_slices(tmp_path: Path) -> None:
    """
    Members of one group, names that a group with many patterns is asked for, resources with
    configs: one request stalled the loop for 65 to 175 ms.
    """
    n = 60
    async with RunningAgent(tmp_path) as agent:
        await create(agent, *(new(f"t{i}") for i in range(n)))
        for i in range(n):
            await join(agent, f"m{i}", subscribed_topic_names=["t0"])
        names = [f"none-{i}" for i in range(n)]
        context = agent.context
        described = await turns_of(
            consumer_group_describe.handle(
                agent.broker, cd.ConsumerGroupDescribeRequest(group_ids=["g"]), context(1)
            )
        )
        listed = await turns_of(
            list_config_resources.handle(
                agent.broker, lr.ListConfigResourcesRequest(resource_types=[2]), context(1)
            )
        )
        assert agent.broker.groups is not None
        subscribed = await turns_of(agent.broker.groups.groups["g"].subscribed(names))

    assert described >= n
    assert listed >= n
    assert subscribed >= n


async def test_the_partitions_of_one_topic_are_searched_for_a_leader_in_slices(
    tmp_path: Path,
) -> None:
    """
    ElectLeaders of all partitions, where a topic has 10,000: it stalled the loop for 35 ms.
    """
    n = 200
    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("wide", n))
        every = el.ElectLeadersRequest(topic_partitions=None)
        turns = await turns_of(elect_leaders.handle(agent.broker, every, agent.context(2)))
    assert turns >= n


async def test_large_requests_hold_up_nobody_who_needs_a_thread() -> None:
    """
    A hundred of them wait to be decoded, one after the other: what the event loop's own threads
    are asked for (a file, a name, the fitness of the agent) is done meanwhile.
    """
    go_on, threads = threading.Event(), set[str]()

    def decode() -> None:
        threads.add(threading.current_thread().name)
        go_on.wait()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(100):
            tasks.create_task(off_the_loop(decode))
        await eventually(lambda: bool(threads))
        try:
            async with asyncio.timeout(10):
                done = await asyncio.to_thread(lambda: "done")
        finally:
            go_on.set()

    assert "done" == done
    assert 1 == len(threads)


async def test_the_thread_serves_clients_in_turns() -> None:
    """
    Fifty tasks of a client wait for the thread, and then one of another: it comes after the call
    that runs and one more at most.
    """
    go_on, order = threading.Event(), list[str]()

    def run(address: str) -> None:
        assert go_on.wait(10)
        order.append(address)

    async def ask(address: str) -> None:
        work_for(Client(address))
        await off_the_loop(run, address)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(50):
            tasks.create_task(ask("10.0.0.1"))
        tasks.create_task(ask("10.0.0.2"))
        await asyncio.sleep(0)
        go_on.set()

    assert 51 == len(order)
    assert "10.0.0.2" in order[:3]
