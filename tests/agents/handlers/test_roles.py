"""What clients are told beside an agent that only seals, also by that agent.

If it failed: clients would produce to it for ever, or wait for replicas that never come.
"""

from pathlib import Path
from typing import Any

from driftlog_agents.protocol.errors import ErrorCode
from driftlog_agents.protocol.messages import (
    describe_cluster,
    describe_quorum,
    find_coordinator,
    metadata,
)
from driftlog_metadata.schema.model import Role
from tests.agents.network.serving import Client, Serving, eventually
from tests.simulation.batches import make_batch

SERVE, SEAL = frozenset({Role.SERVE}), frozenset({Role.SEAL})


async def described(client: Client) -> Any:
    """Metadata of topic ``t``."""
    topic = metadata.MetadataRequestTopic(name="t")
    return await client.call(metadata.API, 12, metadata.MetadataRequest(topics=[topic]))


async def answers(client: Client) -> dict[str, Any]:
    """What it says about brokers, by API."""
    told = await described(client)
    cluster = await client.call(describe_cluster.API, 0, describe_cluster.DescribeClusterRequest())
    asked_of = describe_quorum.DescribeQuorumRequest
    asked = find_coordinator.FindCoordinatorRequest(key="g", coordinator_keys=["g"])
    found = await client.call(find_coordinator.API, 4, asked)
    quorum = await client.call(
        describe_quorum.API,
        2,
        asked_of(
            topics=[
                asked_of.TopicData(
                    topic_name="__cluster_metadata",
                    partitions=[asked_of.PartitionData(partition_index=0)],
                )
            ]
        ),
    )
    voters = quorum.topics[0].partitions[0]
    (topic,) = told.topics
    return {
        "brokers": [broker.node_id for broker in told.brokers],
        "described": [broker.broker_id for broker in cluster.brokers],
        "controllers": [told.controller_id, cluster.controller_id],
        "coordinator": [found.coordinators[0].node_id],
        "leaders": [partition.leader_id for partition in topic.partitions],
        "replicas": [partition.replica_nodes for partition in topic.partitions],
        "quorum": [r.replica_id for r in (*voters.current_voters, *voters.observers)],
    }


async def test_clients_see_only_agents_that_serve(tmp_path: Path) -> None:
    """
    Whichever agent they ask; the other one refuses records, and leads nothing when it is alone.
    """
    async with (
        Serving(tmp_path / "seal", roles=SEAL) as seal,
        seal.client() as at_seal,
    ):
        async with (
            Serving(tmp_path / "serve", beside=seal, roles=SERVE) as serve,
            serve.client() as at_serve,
        ):
            await at_serve.create("t", 3)
            await eventually(lambda: "t" in seal.process.broker.topics.by_name)
            node = serve.process.broker.node_id
            expected = {
                "brokers": [node],
                "described": [node],
                "controllers": [node, node],
                "coordinator": [node],
                "leaders": [node] * 3,
                "replicas": [[node]] * 3,
                "quorum": [node],
            }
            assert expected == await answers(at_seal)
            assert expected == await answers(at_serve)
            assert (True, (0, 1)) == (
                seal.process.collects_flush_objects(),
                seal.process.listing_share(),
            )
            assert (False, None) == (
                serve.process.collects_flush_objects(),
                serve.process.listing_share(),
            )
            refused = await at_seal.produce("t", {0: make_batch([b"v"])})
            assert ErrorCode.NOT_LEADER_OR_FOLLOWER == refused[0].error_code
            taken = await at_serve.produce("t", {0: make_batch([b"v"])})
            assert (0, 0) == (taken[0].error_code, taken[0].base_offset)
        alone = await described(at_seal)

        assert ([], -1) == (alone.brokers, alone.controller_id)
        assert [(-1, [])] * 3 == [
            (p.leader_id, p.replica_nodes) for p in alone.topics[0].partitions
        ]
        assert [] == list(seal.engine.logs())
