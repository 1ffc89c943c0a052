"""Without it an agent writes a new format before all agents know it, or needs a restart for it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from structlog.testing import capture_logs

from driftlog_agents.configs.definitions import ResourceType
from driftlog_agents.handlers.api import describe_configs, update_features
from driftlog_agents.handlers.common.api_versions_table import FORMAT_FEATURE
from driftlog_agents.log.compaction.compaction_looks import CompactionSettings
from driftlog_agents.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from driftlog_agents.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
)
from driftlog_metadata.schema.codec import encode_cluster
from driftlog_metadata.schema.keys import CLUSTER_KEY
from driftlog_metadata.schema.model import Cluster, TopicPartition
from driftlog_metadata.stores.sqlite_store import SqliteMetadataStore
from driftlog_metadata.stores.store import Put
from driftlog_tiering.compaction.sealed_partition import read_cluster
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.flush_object import Footer, decode_footer
from driftlog_tiering.formats.manifest import Manifest
from driftlog_tiering.formats.manifests import load_newest
from tests.agents.handlers.asking import create, new
from tests.agents.log.lives import make_batch
from tests.support.engine import PATIENT, RunningAgent


async def footer(agent: RunningAgent, seq: int) -> Footer:
    """Of the flush *seq*."""
    objects = agent.broker.objects
    async for page in objects.list(layout.FLUSH_PREFIX):
        for info in page.objects:
            if layout.parse_flush_key(info.key).seq == seq:
                body = bytes(await objects.get(info.key))
                return decode_footer(body[body.rindex(b"DLFF") :])
    raise AssertionError(f"no flush {seq}")


async def newest(agent: RunningAgent) -> Manifest:
    """Of the only partition."""
    log = agent.log("t", 0)
    tp = TopicPartition(log.topic_id, log.partition)
    found = await load_newest(agent.broker.objects, "t", tp)
    assert found is not None
    return found


async def make_cluster_of_level_1(folder: Path) -> None:
    """The metadata store of an agent that starts on *folder*."""
    store = await SqliteMetadataStore.open(folder / "metadata.db", lambda: 0)
    await store.txn((), [Put(CLUSTER_KEY, encode_cluster(Cluster("a-cluster", 1)))])
    await store.close()


async def raise_level(agent: RunningAgent) -> None:
    """To level 2."""
    update = FeatureUpdateKey(feature=FORMAT_FEATURE, max_version_level=2)
    request = UpdateFeaturesRequest(feature_updates=[update])
    await update_features.handle(agent.broker, request, agent.context(2))


async def documentation(agent: RunningAgent) -> str:
    """Of the topic's cleanup.policy, as DescribeConfigs has it."""
    resource = DescribeConfigsResource(
        resource_type=ResourceType.TOPIC, resource_name="t", configuration_keys=["cleanup.policy"]
    )
    request = DescribeConfigsRequest(resources=[resource], include_documentation=True)
    answer = await describe_configs.handle(agent.broker, request, agent.context(4))
    (config,) = answer.results[0].configs
    assert config.documentation is not None
    return config.documentation


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what the agent does in the background."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_new_formats_are_written_from_the_raise_on(tmp_path: Path) -> None:
    """
    In one session: flushes and manifests before it are of level 1, those after it of level 2.
    """
    await make_cluster_of_level_1(tmp_path)
    batch = make_batch([b"v" * 100] * 3)

    async with RunningAgent(tmp_path) as agent:
        await create(agent, new("t"))
        await agent.append("t", 0, batch)
        await agent.seal("t", 0)
        before = await footer(agent, 1), await newest(agent)
        await raise_level(agent)
        await agent.append("t", 0, batch)
        await agent.seal("t", 0)
        after = await footer(agent, 2), await newest(agent)
        sessions = agent.sessions
        in_bucket, _ = await read_cluster(agent.broker.objects)

    assert 1 == sessions
    assert (None, 1) == (before[0].facts, before[1].format_version)
    facts = after[0].facts
    assert facts is not None
    assert (("t",), [0], [0]) == (
        facts.topic_names,
        list(facts.epoch_starts),
        list(facts.log_starts),
    )
    old, sealed = after[1].segments
    assert (2, "a-cluster") == (after[1].format_version, after[1].cluster_id)
    assert 2 == in_bucket.format_version
    assert (old.raw_bytes, len(batch)) == (old.received_bytes, sealed.received_bytes)


async def test_a_compacted_topic_of_a_cluster_of_level_1_says_that_it_waits(tmp_path: Path) -> None:
    """
    The log says it once and DescribeConfigs always; after the raise the topic is compacted.
    """
    await make_cluster_of_level_1(tmp_path)
    settings = replace(PATIENT, compaction=CompactionSettings(backoff_ms=100))

    with capture_logs() as lines:
        async with RunningAgent(tmp_path, engine=settings) as agent:
            await create(agent, new("t", cleanup_policy="compact"))
            await agent.append("t", 0, make_batch([b"v"]))
            await agent.seal("t", 0)
            await until(lambda: any(line["event"] == "compaction_deferred" for line in lines))
            before = await documentation(agent)
            engine = agent.broker.engine
            assert engine is not None
            compactions = engine.counters.compactions
            await raise_level(agent)
            await until(lambda: engine.counters.compactions > 0)
            after = await documentation(agent)

    assert 0 == compactions
    assert ["t"] == [line["topic"] for line in lines if line["event"] == "compaction_deferred"]
    assert "compact does nothing until the format level of the cluster, which is 1, is 2" in before
    assert before.startswith(after)
    assert "does nothing until" not in after
