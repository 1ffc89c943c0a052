"""What clients are told of a cluster of two agents: by each of them, through each listener, and as
partitions change hands.

Two agents in this process, on one metadata store and one bucket; ``OUTSIDE`` is a listener that
only the first one has.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from driftlog_agents.log.partition.partition import State
from driftlog_agents.network.listeners import ListenAt
from driftlog_agents.protocol.messages import (
    create_topics,
    describe_cluster,
    describe_log_dirs,
    describe_topic_partitions,
    fetch,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from driftlog_metadata.schema.model import SessionStage, TopicPartition
from tests.agents.network.serving import Client, Serving, eventually, producing
from tests.simulation.batches import make_batch

PARTITIONS = 8
NOT_LEADER = 6
FENCED = 74
UNKNOWN_EPOCH = 75


class Pair:
    """Two agents that share the partitions of topic ``t``, and a client of each."""

    def __init__(self, agents: tuple[Serving, Serving], clients: tuple[Client, Client]) -> None:
        self.agents = agents
        self.clients = clients
        self.nodes = tuple(agent.process.broker.node_id for agent in agents)
        self.topic_id: UUID = agents[0].process.broker.topics.by_name["t"].topic_id

    def led_by(self, which: int) -> list[int]:
        """Partitions that one of them leads."""
        entry = self.agents[which].engine.topics["t"]
        return [log.partition for log in entry.logs if log is not None]

    def epoch(self, which: int, partition: int) -> int:
        """The leader epoch of a partition that is led there."""
        return self.agents[which].log("t", partition).leader_epoch


@asynccontextmanager
async def pair(path: Path) -> AsyncIterator[Pair]:
    """Two agents, the second one in another zone; each leads some of the partitions."""
    both = (ListenAt(name="INSIDE", port=0), ListenAt(name="OUTSIDE", port=0))
    async with (
        Serving(path / "a", listeners=both, rack="zone-1") as a,
        Serving(path / "b", listeners=both[:1], rack="zone-2", beside=a) as b,
        a.client() as one,
        b.client() as two,
    ):
        await one.create("t", PARTITIONS)
        agents = Pair((a, b), (one, two))
        await eventually(lambda: agents.led_by(0) != [] != agents.led_by(1))
        await eventually(lambda: len(agents.led_by(0) + agents.led_by(1)) == PARTITIONS)
        yield agents


def outside(agents: Pair) -> Client:
    """A client of the first agent, through the listener that only that one has."""
    return Client(agents.agents[0].ports[1])


async def described(client: Client, version: int = 12) -> Any:
    """Metadata of topic ``t``."""
    name = metadata.MetadataRequestTopic(name="t")
    return await client.call(metadata.API, version, metadata.MetadataRequest(topics=[name]))


def leaders(answer: Any) -> list[tuple[int, int, int]]:
    """(error code, leader, leader epoch) of each partition of one topic."""
    (topic,) = answer.topics
    found = {
        p.partition_index: (p.error_code, p.leader_id, p.leader_epoch) for p in topic.partitions
    }
    return [found[number] for number in sorted(found)]


# ── The cluster ──


async def test_any_agent_names_all_agents_and_the_leader_of_every_partition(
    tmp_path: Path,
) -> None:
    """
    Both say the same, in Metadata and in the describing APIs: addresses and racks, one controller,
    the leaders as they are; the replicas are the topic's, as far as there are agents, in sync.
    """
    async with pair(tmp_path) as agents:
        await agents.clients[0].call(create_topics.API, 7, making("r", replicas=3))
        told = [await described(client) for client in agents.clients]
        clusters = [
            await client.call(describe_cluster.API, 0, describe_cluster.DescribeClusterRequest())
            for client in agents.clients
        ]
        paged = [
            await client.call(
                describe_topic_partitions.API,
                0,
                describe_topic_partitions.DescribeTopicPartitionsRequest(
                    topics=[describe_topic_partitions.TopicRequest(name="t")]
                ),
            )
            for client in agents.clients
        ]
        replicated = [
            await client.call(
                metadata.API,
                12,
                metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="r")]),
            )
            for client in agents.clients
        ]
        expected = {
            agent.process.broker.node_id: ("127.0.0.1", agent.port, rack)
            for agent, rack in zip(agents.agents, ("zone-1", "zone-2"), strict=True)
        }
        led = [
            (0, agents.nodes[which], agents.epoch(which, partition))
            for partition in range(PARTITIONS)
            for which in (0, 1)
            if partition in agents.led_by(which)
        ]

    for answer in told:
        assert expected == {b.node_id: (b.host, b.port, b.rack) for b in answer.brokers}
        assert led == leaders(answer)
    for answer in clusters:
        assert expected == {b.broker_id: (b.host, b.port, b.rack) for b in answer.brokers}
    assert {min(expected)} == {answer.controller_id for answer in (*told, *clusters)}
    assert [led, led] == [leaders(answer) for answer in paged]
    for answer in replicated:
        (partition,) = answer.topics[0].partitions
        assert partition.leader_id == partition.replica_nodes[0]
        assert sorted(expected) == sorted(partition.replica_nodes)
        assert partition.isr_nodes == partition.replica_nodes
        assert [] == partition.offline_replicas
    assert replicated[0].topics == replicated[1].topics


async def controllers(agents: Pair) -> set[int]:
    """Whom both name, in Metadata and in DescribeCluster."""
    asked = describe_cluster.DescribeClusterRequest()
    named = [(await described(client)).controller_id for client in agents.clients]
    clusters = [await client.call(describe_cluster.API, 0, asked) for client in agents.clients]
    return {*named, *(answer.controller_id for answer in clusters)}


async def test_who_leaves_is_no_controller_and_changes_topics_to_the_end(tmp_path: Path) -> None:
    """
    The bucket is slow when the lower node leaves: all name the other one.  Whoever still asks the
    one that leaves has the change made, an answer with the end of its connection, and no error.
    """
    async with pair(tmp_path) as agents:
        (a, b), client = agents.agents, agents.clients[0]
        before = await controllers(agents)
        a.objects.writes_of = ".flush"
        a.objects.writes.close()
        async with a.client() as producer:
            producer.send_produce("t", {agents.led_by(0)[0]: make_batch([b"x"])})
            await eventually(lambda: a.objects.writes.waiting > 0)
            a.process.stop()
            await eventually(lambda: not a.engine.ready.is_set())
            await eventually(
                lambda: (
                    b.process.broker.view.sessions[a.engine.session.session_id].said.stage
                    is SessionStage.LEAVING
                )
            )
            during = await controllers(agents)
            client.send(create_topics.API, 7, making("late", replicas=1))
            await eventually(lambda: "late" in b.process.broker.topics.by_name)
            a.objects.writes.open()
            _, answer = await client.receive()
            ended = await client.closed()
            await a.running
        after = (await described(agents.clients[1])).controller_id

    assert ({agents.nodes[0]}, {agents.nodes[1]}) == (before, during)
    assert ([0], True) == ([topic.error_code for topic in answer.topics], ended)
    assert agents.nodes[1] == after


async def test_an_agent_without_the_listener_is_left_out(tmp_path: Path) -> None:
    """
    Who came in through OUTSIDE cannot reach the other agent: it is no broker to them, and what it
    leads has no leader that they could ask; version 5 has another word for that.
    """
    async with pair(tmp_path) as agents, outside(agents) as client:
        new, old = await described(client), await described(client, 5)
        theirs = agents.led_by(1)

    assert [agents.nodes[0]] == [broker.node_id for broker in new.brokers]
    assert agents.nodes[0] == new.controller_id
    for answer, code in ((new, 72), (old, 5)):
        for partition in answer.topics[0].partitions:
            away = partition.partition_index in theirs
            assert (code if away else 0) == partition.error_code
            assert (-1 if away else agents.nodes[0]) == partition.leader_id
            assert ([agents.nodes[1]] if away else []) == partition.offline_replicas


async def test_a_new_topic_says_how_many_replicas_there_can_be(tmp_path: Path) -> None:
    """
    Three are asked for, and there are two agents; a manual assignment may name both, and nobody
    who is not there.
    """
    async with pair(tmp_path) as agents:
        client = agents.clients[1]
        three = await client.call(create_topics.API, 7, making("three", replicas=3))
        both = await client.call(create_topics.API, 7, making("both", assigned=[*agents.nodes]))
        more = await client.call(create_topics.API, 7, making("more", assigned=[*agents.nodes, 99]))
        known = [agent.process.broker.topics.by_name for agent in agents.agents]

    assert (0, 2) == (three.topics[0].error_code, three.topics[0].replication_factor)
    assert (0, 2) == (both.topics[0].error_code, both.topics[0].replication_factor)
    assert 39 == more.topics[0].error_code
    assert "broker 99" in (more.topics[0].error_message or "")
    assert [{"t", "three", "both"}] * 2 == [set(topics) for topics in known]


def making(
    name: str, *, replicas: int = -1, assigned: list[int] | None = None
) -> create_topics.CreateTopicsRequest:
    """A topic of one partition."""
    assignment = create_topics.CreatableReplicaAssignment(
        partition_index=0, broker_ids=assigned or []
    )
    topic = create_topics.CreatableTopic(
        name=name,
        num_partitions=-1 if assigned else 1,
        replication_factor=replicas,
        assignments=[assignment] if assigned else [],
    )
    return create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=30_000)


async def test_each_agent_says_what_is_in_the_logs_that_it_leads(tmp_path: Path) -> None:
    """
    Tools ask all of them: together they describe every partition once.
    """
    async with pair(tmp_path) as agents:
        found = []
        for client in agents.clients:
            answer = await client.call(
                describe_log_dirs.API, 4, describe_log_dirs.DescribeLogDirsRequest(topics=None)
            )
            (directory,) = answer.results
            found.append([p.partition_index for t in directory.topics for p in t.partitions])
        led = [agents.led_by(0), agents.led_by(1)]

    assert led == [sorted(numbers) for numbers in found]


async def test_a_partition_that_is_claimed_and_not_read_yet_has_no_leader(tmp_path: Path) -> None:
    """
    The store says who leads it, and that agent cannot serve it yet, as nobody can: clients wait,
    instead of asking an agent that sends them away.  The other agent goes by the store.
    """
    async with pair(tmp_path) as agents:
        partition = agents.led_by(1)[0]
        epoch = agents.epoch(1, partition)
        logs = agents.agents[1].engine.topics["t"].logs
        log, logs[partition] = logs[partition], None
        told = [leaders(await described(client))[partition] for client in agents.clients]
        logs[partition] = log

    assert [(0, agents.nodes[1], epoch), (5, -1, epoch)] == told


async def test_while_a_partition_is_handed_over_clients_stay_until_it_is_released(
    tmp_path: Path,
) -> None:
    """
    Who hands it over takes nothing any more, and names itself, as the other does: if the two named
    each other, a client would go to and fro.  Once it is released, both name who will lead, under
    the epoch that there is: a new one is not made yet.
    """
    async with pair(tmp_path) as agents:
        partition = agents.led_by(1)[0]
        broker = agents.agents[1].process.broker
        log, view, logs = (
            agents.agents[1].log("t", partition),
            broker.view,
            agents.agents[1].engine.topics["t"].logs,
        )
        plan, state = view.plan, log.state
        view.plan = {**plan, TopicPartition(agents.topic_id, partition): agents.nodes[0]}
        log.state = State.CLOSED
        during = [leaders(await described(client))[partition] for client in agents.clients]
        refused = await agents.clients[1].call(
            produce.API, 10, producing("t", {partition: make_batch([b"x"])})
        )
        logs[partition] = None  # and it has not heard of its own release
        released = leaders(await described(agents.clients[1]))[partition]
        logs[partition], view.plan, log.state = log, plan, state

    (answer,) = refused.responses[0].partition_responses
    assert [(0, agents.nodes[1], log.leader_epoch)] * 2 == during
    assert (NOT_LEADER, -1) == (answer.error_code, answer.current_leader.leader_id)
    assert [] == refused.node_endpoints
    assert (0, agents.nodes[0], log.leader_epoch) == released


# ── Not the leader ──


async def test_who_produces_to_another_agent_is_told_who_leads(tmp_path: Path) -> None:
    """
    From version 10 on, with its address at the client's listener, in an answer of one batch and
    in one of several; through OUTSIDE it has none, and version 9 has no place for either.
    """
    async with pair(tmp_path) as agents, outside(agents) as client:
        partition, other = agents.led_by(1)[:2]
        mine = agents.led_by(0)[0]
        leader = (agents.nodes[1], agents.epoch(1, partition))
        address = (agents.nodes[1], "127.0.0.1", agents.agents[1].port, "zone-2")

        def request(*partitions: int) -> produce.ProduceRequest:
            return producing("t", {number: make_batch([b"x"]) for number in partitions})

        one = await agents.clients[0].call(produce.API, 10, request(partition))
        several = await agents.clients[0].call(produce.API, 11, request(mine, partition, other))
        unreachable = await client.call(produce.API, 10, request(partition))
        old = await agents.clients[0].call(produce.API, 9, request(partition))
        unknown = await agents.clients[0].call(produce.API, 10, request(PARTITIONS))

    said = {p.index: p for p in several.responses[0].partition_responses}
    (alone,) = one.responses[0].partition_responses
    assert 0 == said[mine].error_code
    assert produce.LeaderIdAndEpoch() == said[mine].current_leader
    for answer in (alone, said[partition]):
        told = answer.current_leader
        assert (NOT_LEADER, leader) == (answer.error_code, (told.leader_id, told.leader_epoch))
    assert NOT_LEADER == said[other].error_code
    for response in (one, several):
        assert [address] == [(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints]
    (outer,) = unreachable.responses[0].partition_responses
    assert leader == (outer.current_leader.leader_id, outer.current_leader.leader_epoch)
    assert [] == unreachable.node_endpoints
    (before,) = old.responses[0].partition_responses
    assert (NOT_LEADER, -1) == (before.error_code, before.current_leader.leader_id)
    assert 3 == unknown.responses[0].partition_responses[0].error_code
    assert [] == unknown.node_endpoints


def reading(
    agents: Pair,
    version: int,
    partition: int,
    *,
    offset: int = 0,
    current: int = -1,
    last: int = -1,
    max_wait_ms: int = 0,
) -> fetch.FetchRequest:
    """A Fetch request of one partition."""
    asked = fetch.FetchPartition(
        partition=partition,
        fetch_offset=offset,
        current_leader_epoch=current,
        last_fetched_epoch=last,
        partition_max_bytes=1 << 20,
    )
    by_id = version >= 13
    topic = fetch.FetchTopic(
        topic="" if by_id else "t",
        topic_id=agents.topic_id if by_id else UUID(int=0),
        partitions=[asked],
    )
    return fetch.FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, topics=[topic], rack_id="zone-2"
    )


async def fetched(client: Client, version: int, request: fetch.FetchRequest) -> Any:
    """The one partition of the answer, and the addresses beside it."""
    response = await client.call(fetch.API, version, request)
    (data,) = response.responses[0].partitions
    return data, [(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints]


async def test_who_fetches_from_another_agent_is_told_who_leads(tmp_path: Path) -> None:
    """
    From version 16 on; epochs are looked at by the leader alone.  No replica is preferred, in
    whatever zone the client is.
    """
    async with pair(tmp_path) as agents:
        one, two = agents.clients
        partition = agents.led_by(1)[0]
        epoch = agents.epoch(1, partition)
        address = (agents.nodes[1], "127.0.0.1", agents.agents[1].port, "zone-2")

        elsewhere = [
            await fetched(one, version, reading(agents, version, partition, current=current))
            for version, current in ((16, -1), (17, epoch), (16, epoch + 1), (15, -1))
        ]
        ahead = await fetched(two, 16, reading(agents, 16, partition, current=epoch + 1))
        right = await fetched(two, 16, reading(agents, 16, partition, current=epoch))

    assert [NOT_LEADER] * 4 == [data.error_code for data, _ in elsewhere]
    leader = fetch.LeaderIdAndEpoch(leader_id=agents.nodes[1], leader_epoch=epoch)
    none = fetch.LeaderIdAndEpoch()
    assert [leader] * 3 + [none] == [data.current_leader for data, _ in elsewhere]
    assert [[address]] * 3 + [[]] == [nodes for _, nodes in elsewhere]
    assert (UNKNOWN_EPOCH, none, []) == (ahead[0].error_code, ahead[0].current_leader, ahead[1])
    assert (0, none, []) == (right[0].error_code, right[0].current_leader, right[1])
    assert -1 == right[0].preferred_read_replica


async def test_of_a_partition_that_nobody_leads_nothing_is_said(tmp_path: Path) -> None:
    """
    No hint at all, and not one of leader -1 and an epoch: beside the address of another partition's
    leader librdkafka reads past its memory for that one, and the client is gone (its issue 5280).
    """
    async with pair(tmp_path) as agents:
        partition = agents.led_by(1)[0]
        two = agents.clients[1]
        logs = agents.agents[1].engine.topics["t"].logs
        log, logs[partition] = logs[partition], None
        data, _ = await fetched(two, 16, reading(agents, 16, partition))
        answer = await two.call(produce.API, 10, producing("t", {partition: make_batch([b"x"])}))
        logs[partition] = log

    (told,) = answer.responses[0].partition_responses
    assert (NOT_LEADER, fetch.LeaderIdAndEpoch()) == (data.error_code, data.current_leader)
    assert (NOT_LEADER, produce.LeaderIdAndEpoch()) == (told.error_code, told.current_leader)


async def test_offsets_are_told_by_the_leader_alone(tmp_path: Path) -> None:
    """
    ListOffsets and OffsetForLeaderEpoch: not the leader first, then the epochs.
    """
    async with pair(tmp_path) as agents:
        partition = agents.led_by(1)[0]
        epoch = agents.epoch(1, partition)
        asked = [(0, -1), (0, epoch + 1), (1, epoch), (1, epoch + 1)]
        codes = []
        for which, current in asked:
            client = agents.clients[which]
            listed = await client.call(list_offsets.API, 7, latest(partition, current))
            ended = await client.call(offset_for_leader_epoch.API, 3, end_of(partition, 0, current))
            codes.append(
                (
                    listed.topics[0].partitions[0].error_code,
                    ended.topics[0].partitions[0].error_code,
                )
            )
        none = await agents.clients[0].call(list_offsets.API, 7, latest(PARTITIONS, -1))

    expected = [NOT_LEADER, NOT_LEADER, 0, UNKNOWN_EPOCH]
    assert [(code, code) for code in expected] == codes
    assert 3 == none.topics[0].partitions[0].error_code


def latest(partition: int, current: int) -> list_offsets.ListOffsetsRequest:
    asked = list_offsets.ListOffsetsPartition(
        partition_index=partition, current_leader_epoch=current, timestamp=-1
    )
    return list_offsets.ListOffsetsRequest(
        topics=[list_offsets.ListOffsetsTopic(name="t", partitions=[asked])]
    )


def end_of(
    partition: int, epoch: int, current: int = -1
) -> offset_for_leader_epoch.OffsetForLeaderEpochRequest:
    asked = offset_for_leader_epoch.OffsetForLeaderPartition(
        partition=partition, current_leader_epoch=current, leader_epoch=epoch
    )
    return offset_for_leader_epoch.OffsetForLeaderEpochRequest(
        topics=[offset_for_leader_epoch.OffsetForLeaderTopic(topic="t", partitions=[asked])]
    )


# ── A partition that moves ──


async def test_a_partition_that_moves_keeps_its_epochs_and_tells_who_waits(tmp_path: Path) -> None:
    """
    The second agent leaves: a fetch that waits there is told at once, Metadata has no trace of it,
    epochs go up, and where each ended is exact, for who asks and for who fetches with one.  Who
    still goes by the old epoch is fenced, and told the new one.
    """
    async with pair(tmp_path) as agents:
        one, two = agents.clients
        partition = agents.led_by(1)[0]
        first = agents.epoch(1, partition)
        await two.produce("t", {partition: make_batch([b"x"] * 3)})
        waiting = two.send(
            fetch.API, 16, reading(agents, 16, partition, offset=3, max_wait_ms=60_000)
        )
        b = agents.agents[1]
        b.process.stop()
        number, told = await two.receive()
        await b.running
        await eventually(lambda: len(agents.led_by(0)) == PARTITIONS)
        second = agents.epoch(0, partition)
        await one.produce("t", {partition: make_batch([b"x"] * 2)})

        seen = await described(one)
        ends = [
            (await one.call(offset_for_leader_epoch.API, 3, end_of(partition, epoch)))
            .topics[0]
            .partitions[0]
            for epoch in (first, second, second + 1)
        ]
        reads = [
            await fetched(one, 16, reading(agents, 16, partition, offset=offset, last=last))
            for offset, last in ((3, first), (4, first), (4, second), (5, second), (5, second + 1))
        ]
        log = agents.agents[0].log("t", partition)
        log.state = State.LOADING  # what it has of the tail is all that this needs
        reads.append(await fetched(one, 16, reading(agents, 16, partition, offset=4, last=first)))
        log.state = State.ONLINE
        fenced = {
            version: await fetched(one, version, reading(agents, version, partition, current=first))
            for version in (15, 16)
        }
        listed = await one.call(list_offsets.API, 7, latest(partition, first))
        ended = await one.call(offset_for_leader_epoch.API, 3, end_of(partition, first, first))

    assert waiting == number
    assert NOT_LEADER == told.responses[0].partitions[0].error_code
    assert [agents.nodes[0]] == [broker.node_id for broker in seen.brokers]
    assert [(0, agents.nodes[0])] * PARTITIONS == [(code, who) for code, who, _ in leaders(seen)]
    assert second > first
    assert [
        (first, 3),
        (second, 5),
        (-1, -1),
    ] == [(end.leader_epoch, end.end_offset) for end in ends]
    assert [0, 0, 0, 0, 1, 0] == [data.error_code for data, _ in reads]
    diverging = [(d.diverging_epoch.epoch, d.diverging_epoch.end_offset) for d, _ in reads]
    assert [(-1, -1), (first, 3), (-1, -1), (-1, -1), (-1, -1), (first, 3)] == diverging
    leader = fetch.LeaderIdAndEpoch(leader_id=agents.nodes[0], leader_epoch=second)
    address = (agents.nodes[0], "127.0.0.1", agents.agents[0].port, "zone-1")
    assert (FENCED, leader) == (fenced[16][0].error_code, fenced[16][0].current_leader)
    assert [address] == fenced[16][1]
    assert (FENCED, fetch.LeaderIdAndEpoch()) == (
        fenced[15][0].error_code,
        fenced[15][0].current_leader,
    )
    assert FENCED == listed.topics[0].partitions[0].error_code
    assert FENCED == ended.topics[0].partitions[0].error_code
