"""A topic is seen with a part of its imported records, or none is served behind them.

Importers are this test: they write real segments and manifests; agents are real.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from aiohttp import ClientSession
from structlog.testing import capture_logs

from benchmarks.batches import encode_batch
from driftlog_agents.configs.agent_settings import BrokerSettings
from driftlog_agents.configs.limits import Limits
from driftlog_agents.network.listeners import take
from driftlog_agents.process.http_api import HttpApi
from driftlog_agents.protocol.errors import ErrorCode, RefusedError
from driftlog_agents.topics.imports import MOST_IMPORTS
from driftlog_agents.topics.service import Topics
from driftlog_agents.topics.validation import NewTopic
from driftlog_metadata.schema.codec import encode_topic
from driftlog_metadata.schema.keys import deleted_key, import_key, topic_key
from driftlog_metadata.schema.model import Topic
from driftlog_metadata.stores.errors import UnavailableError
from driftlog_metadata.stores.store import Put
from driftlog_tiering.formats import layout
from tests.agents.network.serving import Serving, eventually
from tests.support.sealed_topics import Message, SealedTopic

LIMIT_S = 30.0
ENDS = [3, 0]
FILE = "00000000000000000001.json"


def topics(agent: Serving) -> Topics:
    return agent.process.broker.topics


async def begun(agent: Serving, name: str = "t") -> Topic:
    """An import of two partitions."""
    new = NewTopic(name=name, partitions=2, configs={"retention.ms": "-1"})
    return await topics(agent).begin_import(new, client="", timeout_s=LIMIT_S)


async def written(agent: Serving, topic: Topic) -> None:
    """Its first partition has three records, in two segments."""
    cluster = agent.engine.session.author
    sealed = SealedTopic(str(agent.bucket), topic.name, 2, topic.topic_id, cluster=cluster)
    messages = [Message(1_000 + n, value=b"v%d" % n) for n in range(3)]
    await asyncio.to_thread(sealed.seal, 0, 0, messages[:2], messages[2:])


async def published(agent: Serving, topic: Topic) -> Topic:
    return await topics(agent).publish_import(
        topic.name, topic.topic_id, ENDS, client="", timeout_s=LIMIT_S
    )


async def keys_of(agent: Serving, topic: Topic) -> set[str]:
    """Its files' names."""
    folder = agent.bucket / layout.topic_file_prefix(topic.name, topic.topic_id)
    return {path.name for path in folder.iterdir()}


async def code_of(work: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(RefusedError) as refused:
        await work
    return refused.value.code


async def test_an_import_is_a_topic_when_it_is_published_and_producers_go_on_behind_it(
    tmp_path: Path,
) -> None:
    """
    Before, no client sees it; then all of its records are there, in both partitions.
    """
    async with Serving(tmp_path) as agent, agent.client() as client:
        topic = await begun(agent)
        await written(agent, topic)
        await topics(agent).imports.renew(agent.engine, topic.topic_id)
        assert "t" not in topics(agent).by_name

        assert topic == await published(agent, topic)

        assert (3, 3) == (agent.log("t").sealed_end, agent.log("t").high_watermark)
        assert 0 == agent.log("t", 1).high_watermark
        batch = encode_batch([b"x"], timestamp_ms=1).data
        answer = await client.produce("t", {0: batch})
        assert 4 == agent.log("t").high_watermark, answer
        assert {"import.json", FILE} == await keys_of(agent, topic)
        assert await agent.metadata_store.get(import_key(topic.topic_id)) is None


async def test_a_publication_may_be_repeated(tmp_path: Path) -> None:
    """
    Its answer was lost.
    """
    async with Serving(tmp_path) as agent:
        topic = await begun(agent)
        await written(agent, topic)

        assert topic == await published(agent, topic)
        assert topic == await published(agent, topic)


@pytest.mark.parametrize("file", ["/manifest/", "/topic/0"])
async def test_a_session_that_ends_within_a_publication_is_followed_by_one_that_does_it(
    tmp_path: Path, file: str
) -> None:
    """
    The first one waits for the bucket, before the partitions' keys and before the topic's.
    """
    async with Serving(tmp_path) as agent:
        topic = await begun(agent)
        await written(agent, topic)
        gate = agent.objects.writes if file == "/topic/0" else agent.objects.reads
        agent.objects.reads_of = agent.objects.writes_of = file
        gate.close()
        publication = asyncio.create_task(published(agent, topic))
        await eventually(lambda: gate.waiting == 1)
        await agent.lose_session()
        gate.error = UnavailableError("the bucket is gone for a while")
        gate.open()
        await asyncio.sleep(0)
        gate.error = None

        assert topic == await publication
        assert 3 == agent.log("t").high_watermark


async def test_a_publication_that_another_agent_makes_meanwhile_is_done(tmp_path: Path) -> None:
    """
    The importer repeats a request that took long, at another agent: its import is published.
    """
    async with Serving(tmp_path / "a") as agent, Serving(tmp_path / "b", beside=agent) as other:
        topic = await begun(agent)
        await written(agent, topic)
        agent.objects.reads_of = "/manifest/"
        agent.objects.reads.close()
        first = asyncio.create_task(published(agent, topic))
        await eventually(lambda: agent.objects.reads.waiting == 1)
        second = asyncio.create_task(published(other, topic))
        await eventually(lambda: "t" in topics(other).by_name)
        agent.objects.reads.open()

        assert topic == await first
        assert topic == await second


async def test_a_name_that_a_client_takes_meanwhile_is_refused(tmp_path: Path) -> None:
    """
    At the beginning and at the publication, where no reader of the bucket may take the import for
    a topic from then on; the client's topic stays as it is.
    """
    async with Serving(tmp_path) as agent, agent.client() as client:
        await client.create("taken")
        assert ErrorCode.TOPIC_ALREADY_EXISTS is await code_of(begun(agent, "taken"))
        topic = await begun(agent)
        await written(agent, topic)
        await client.create("t")

        assert ErrorCode.TOPIC_ALREADY_EXISTS is await code_of(published(agent, topic))

        kept = topics(agent).by_name["t"]
        assert kept.topic_id != topic.topic_id
        assert "deleted.json" in await keys_of(agent, topic)
        assert await agent.metadata_store.get(deleted_key(topic.topic_id)) is not None


async def test_of_two_imports_of_one_name_one_is_a_topic(tmp_path: Path) -> None:
    """
    Both are published at one moment, by two agents: the other one is deleted, though its file was
    there.
    """
    async with Serving(tmp_path / "a") as agent, Serving(tmp_path / "b", beside=agent) as other:
        first, second = await begun(agent), await begun(other)
        for topic in (first, second):
            await written(agent, topic)
        agent.objects.writes_of = "/topic/0"
        agent.objects.writes.close()
        publication = asyncio.create_task(published(agent, first))
        await eventually(lambda: agent.objects.writes.waiting == 1)
        assert second == await published(other, second)
        agent.objects.writes.open()

        assert ErrorCode.TOPIC_ALREADY_EXISTS is await code_of(publication)

        assert {"import.json", FILE, "deleted.json"} == await keys_of(agent, first)
        assert {"import.json", FILE} == await keys_of(agent, second)


async def test_imports_count_as_partitions_when_they_begin_and_when_they_are_published(
    tmp_path: Path,
) -> None:
    """
    driftlog.max.partitions: an import would be a way around it.
    """
    limits = Limits(driftlog_max_partitions=5)
    async with (
        Serving(tmp_path, broker=BrokerSettings(limits=limits)) as agent,
        agent.client() as client,
    ):
        first = await begun(agent)
        second = await begun(agent, "u")
        assert ErrorCode.POLICY_VIOLATION is await code_of(begun(agent, "v"))
        await topics(agent).imports.abandon(agent.engine, second.topic_id, "")
        await begun(agent, "v")
        await written(agent, first)
        await client.create("taken", 4)

        assert ErrorCode.POLICY_VIOLATION is await code_of(published(agent, first))

        await topics(agent).delete(topics(agent).by_name["taken"])
        assert first == await published(agent, first)


async def test_there_are_not_more_open_imports_than_the_metadata_store_should_hold(
    tmp_path: Path,
) -> None:
    """
    Each has a key that a client of the HTTP port can make, and that stays for a grace.
    """
    async with Serving(tmp_path) as agent:
        ids = [UUID(int=number, version=4) for number in range(MOST_IMPORTS - 1)]
        for topic_id in ids:
            value = encode_topic(Topic(name="t", topic_id=topic_id, partitions=1))
            await agent.metadata_store.txn((), [Put(import_key(topic_id), value)])
        last = await begun(agent)

        with pytest.raises(RefusedError, match=f"{MOST_IMPORTS} imports are open") as refused:
            await begun(agent)

        assert ErrorCode.POLICY_VIOLATION is refused.value.code
        await topics(agent).imports.abandon(agent.engine, last.topic_id, "")
        await begun(agent)


async def test_an_abandoned_import_is_no_topic_any_more(tmp_path: Path) -> None:
    """
    It has a tombstone and its mark, by which the collector deletes it; the name is free.
    """
    async with Serving(tmp_path) as agent:
        topic = await begun(agent)
        await written(agent, topic)
        imports = topics(agent).imports

        await imports.abandon(agent.engine, topic.topic_id, "")

        assert {"import.json", "deleted.json"} == await keys_of(agent, topic)
        assert await agent.metadata_store.get(deleted_key(topic.topic_id)) is not None
        assert ErrorCode.UNKNOWN_TOPIC_ID is await code_of(published(agent, topic))
        renewal = imports.renew(agent.engine, topic.topic_id)
        assert ErrorCode.UNKNOWN_TOPIC_ID is await code_of(renewal)
        again = await begun(agent)
        await written(agent, again)
        assert again == await published(agent, again)


async def test_an_import_whose_manifests_say_something_else_is_refused(tmp_path: Path) -> None:
    """
    The importer wrote to another bucket, or another cluster's manifests: records would be lost.
    """
    async with Serving(tmp_path) as agent:
        nothing = await begun(agent)
        assert ErrorCode.INVALID_REQUEST is await code_of(published(agent, nothing))
        foreign = await begun(agent)
        sealed = SealedTopic(str(agent.bucket), "t", 2, foreign.topic_id)
        messages = [Message(n, value=b"x") for n in range(3)]
        await asyncio.to_thread(sealed.seal, 0, 0, messages)
        assert ErrorCode.INVALID_REQUEST is await code_of(published(agent, foreign))
        fewer = await begun(agent)
        ends = topics(agent).publish_import("t", fewer.topic_id, [0], client="", timeout_s=LIMIT_S)
        assert ErrorCode.INVALID_REQUEST is await code_of(ends)

        assert await agent.metadata_store.get(topic_key("t")) is None


async def test_an_import_goes_over_the_http_port(tmp_path: Path) -> None:
    """
    As the importer of the Spark package asks; refusals have statuses that it knows.
    """
    async with Serving(tmp_path) as agent, ClientSession() as session:
        http = HttpApi(agent.observed)
        sockets = await take("127.0.0.1", 0, "--http-listener")
        await http.start(sockets)
        url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/imports"

        async def post(path: str, body: object) -> tuple[int, dict[str, Any]]:
            headers = {"X-Driftlog": "test"}
            async with session.post(f"{url}{path}", json=body, headers=headers) as answer:
                return answer.status, await answer.json()

        asked: Callable[..., dict[str, Any]] = lambda **more: {  # noqa: E731
            "topic": "t",
            "partitions": 2,
            "configs": {},
            **more,
        }
        status, answer = await post("", asked())
        assert 200 == status
        topic_id = answer["topic_id"]
        assert agent.engine.session.author.cluster_id == answer["cluster_id"]
        assert 2 == answer["format_level"]
        await written(agent, Topic(name="t", topic_id=UUID(topic_id), partitions=2))
        assert (200, {}) == await post(f"/{topic_id}/renew", {})
        assert 400 == (await post(f"/{topic_id}/publish", {"topic": "t", "ends": [3]}))[0]
        assert 400 == (await post(f"/{topic_id}/publish", {"topic": "t"}))[0]
        done = {"topic": "t", "ends": ENDS}
        assert (200, {}) == await post(f"/{topic_id}/publish", done)
        assert 404 == (await post(f"/{topic_id}/abandon", {}))[0]
        assert 409 == (await post("", asked()))[0]
        assert 400 == (await post("", asked(topic="a b")))[0]
        assert 400 == (await post("", asked(topic="u", partitions=True)))[0]
        assert 400 == (await post("", asked(topic="u", configs={"no.such": "1"})))[0]
        for name in ("", "\ud800"):
            assert 400 == (await post(f"/{topic_id}/publish", {"topic": name, "ends": []}))[0]
        assert 400 == (await post("", asked(topic="u", configs={"segment.ms": "\ud800"})))[0]
        assert 400 == (await post("/no-id/renew", {}))[0]
        await http.stop()


async def test_imports_that_are_given_up_at_once_are_few_a_minute(tmp_path: Path) -> None:
    """
    Each leaves a key and two objects for a grace: 50 a second filled what topics may have, and no
    topic could be created.  The log says who asks.
    """
    async with Serving(tmp_path) as agent, ClientSession() as session:
        http = HttpApi(agent.observed)
        sockets = await take("127.0.0.1", 0, "--http-listener")
        await http.start(sockets)
        url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/imports"

        async def post(path: str, body: object) -> tuple[int, dict[str, Any]]:
            headers = {"X-Driftlog": "test"}
            async with session.post(f"{url}{path}", json=body, headers=headers) as answer:
                return answer.status, await answer.json()

        statuses, said = [], ""
        with capture_logs() as lines:
            for n in range(21):
                body = {"topic": f"t{n}", "partitions": 1, "configs": {}}
                status, answer = await post("", body)
                statuses.append(status)
                if status == 200:
                    assert 200 == (await post(f"/{answer['topic_id']}/abandon", {}))[0]
                else:
                    said = answer["error"]
        await http.stop()

    events = [line["event"] for line in lines if line.get("client") == "127.0.0.1"]
    assert [*[200] * 20, 429] == statuses
    assert "20 imports began at this agent within a minute: try again in " in said
    assert ["import_begun", "import_abandoned"] * 20 == events


@pytest.mark.parametrize("name", ["", "\ud800", "a/b", "x" * 250])
async def test_a_publication_with_no_topic_name_is_refused_and_the_agent_goes_on(
    tmp_path: Path, name: str
) -> None:
    """
    Any client of the HTTP port can send it.
    """
    async with Serving(tmp_path) as agent, agent.client() as client:
        publication = topics(agent).publish_import(
            name, UUID(int=7), [], client="", timeout_s=LIMIT_S
        )
        assert ErrorCode.INVALID_TOPIC_EXCEPTION is await code_of(publication)

        await client.create("after")
