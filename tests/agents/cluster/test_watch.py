"""The watch keeps the view true through compactions and refused reads, and tells each listener."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from driftlog_agents.cluster.view import PREFIXES, TopicEntry
from driftlog_agents.cluster.watch import ClusterWatch
from driftlog_metadata.schema.codec import encode_agent, encode_leader, encode_topic
from driftlog_metadata.schema.keys import (
    AGENTS_PREFIX,
    LEADERS_PREFIX,
    TOPICS_PREFIX,
    agent_key,
    leader_key,
    topic_key,
)
from driftlog_metadata.schema.model import Agent, Leader, Topic, TopicPartition
from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_metadata.stores.store import CompactedError, Delete, MetadataStore, Put, Watch
from tests.agents.log.lives import now_ms, on_virtual_time
from tests.support.memory_store import MemoryMetadataStore

T = UUID(int=7, version=4)


class Weather:
    """A store whose reads fail when they are told to, and whose watches can be cut off."""

    def __init__(self) -> None:
        self.store = MemoryMetadataStore(lambda: int(now_ms()))
        self.fates: list[Exception | None] = []
        """Of the next reads of topics; None: no answer, ever."""
        self.reads: list[tuple[float, str]] = []
        self.cuts: dict[str, asyncio.Future[Exception]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def get_prefix(self, prefix: str, *, keys_only: bool = False) -> Any:
        self.reads.append((now_ms(), prefix))
        if prefix == TOPICS_PREFIX and self.fates:
            fate = self.fates.pop(0)
            if fate is None:
                await asyncio.Event().wait()
            raise cast(Exception, fate)
        return await self.store.get_prefix(prefix, keys_only=keys_only)

    def watch(self, prefix: str, start_revision: int) -> Watch:
        self.cuts[prefix] = asyncio.get_running_loop().create_future()
        return cast(Watch, _Cut(self.store.watch(prefix, start_revision), self.cuts[prefix]))

    async def put(self, topic: Topic) -> int:
        """A topic's key; its revision."""
        return (
            await self.store.txn((), [Put(topic_key(topic.name), encode_topic(topic))])
        ).revision


class _Cut:
    """A watch that ends with an error when it is told to."""

    def __init__(self, watch: Watch, cut: asyncio.Future[Exception]) -> None:
        self._watch = watch
        self._cut = cut

    def __aiter__(self) -> "_Cut":
        return self

    async def __anext__(self) -> Any:
        following = asyncio.ensure_future(self._watch.__anext__())
        try:
            await asyncio.wait((following, self._cut), return_when=asyncio.FIRST_COMPLETED)
            if self._cut.done():
                raise self._cut.result()
            return following.result()
        finally:
            following.cancel()

    async def aclose(self) -> None:
        await self._watch.aclose()


class Subject:
    """A watch that runs, and what it told of topics."""

    def __init__(self, weather: Weather) -> None:
        self.watch = ClusterWatch(cast(MetadataStore, weather))
        self.view = self.watch.view
        self.told: list[tuple[str, str]] = []
        self.watch.watch_topics(self._on_topic)

    def _on_topic(self, old: TopicEntry | None, new: TopicEntry | None) -> None:
        # It is in the view already when it is told.
        assert new is None or self.view.topics[new.topic.topic_id] == new
        self.told.append((_said(old), _said(new)))


def _said(entry: TopicEntry | None) -> str:
    return "" if entry is None else f"{entry.topic.name}{entry.topic.partitions}"


def topic(partitions: int = 1, *, name: str = "t", number: int = 7) -> Topic:
    return Topic(name=name, topic_id=UUID(int=number, version=4), partitions=partitions)


def agent(node: int) -> Agent:
    return Agent(
        node_id=node,
        session_id=f"{node:032x}",
        listeners=(),
        http_address="",
        rack=None,
        started_at_ms=0,
    )


@asynccontextmanager
async def watching(weather: Weather) -> AsyncIterator[Subject]:
    subject = Subject(weather)
    running = asyncio.get_running_loop().create_task(subject.watch.run())
    try:
        yield subject
    finally:
        running.cancel()
        await asyncio.wait((running,))
        assert running.cancelled()


async def settle() -> None:
    await asyncio.sleep(0.05)


@on_virtual_time
async def test_it_is_told_exactly_what_became_of_topics() -> None:
    """
    What is there at first, what is made, changed and deleted; what did not change is not told.
    """
    weather = Weather()
    await weather.put(topic(1))
    async with watching(weather) as subject:
        await subject.watch.loaded()
        await weather.put(topic(2))
        await weather.put(topic(1, name="u", number=8))
        await weather.store.txn((), [Delete(topic_key("t"))])
        await weather.put(topic(3, number=9))
        await settle()
        weather.cuts[TOPICS_PREFIX].set_result(CompactedError(99))
        await settle()

    assert [("", "t1"), ("t1", "t2"), ("", "u1"), ("t2", ""), ("", "t3")] == subject.told


@pytest.mark.parametrize(
    "error", [CompactedError(99), UnavailableError("x"), OutcomeUnknownError("x")]
)
@on_virtual_time
async def test_what_a_watch_missed_is_found_by_reading_again(error: Exception) -> None:
    """
    At once after a compaction, after a moment where the store refuses; and then it is followed.
    Other prefixes are not read again.
    """
    weather = Weather()
    await weather.put(topic(1))
    await weather.put(topic(1, name="u", number=8))
    async with watching(weather) as subject:
        await subject.watch.loaded()
        await settle()
        began, reads = now_ms(), len(weather.reads)
        weather.cuts[TOPICS_PREFIX].set_result(error)
        await weather.put(topic(5))
        await weather.store.txn((), [Delete(topic_key("u"))])
        weather.store.compact(weather.store.revision)
        await subject.watch.until(lambda: T in subject.view.topics and ("u1", "") in subject.told)
        took = now_ms() - began
        assert [TOPICS_PREFIX] == [prefix for _, prefix in weather.reads[reads:]]
        await weather.put(topic(6))
        await subject.watch.until(lambda: ("t5", "t6") in subject.told)

    assert sorted([("", "t1"), ("", "u1"), ("t1", "t5"), ("u1", ""), ("t5", "t6")]) == sorted(
        subject.told
    )
    assert (took < 100) == isinstance(error, CompactedError)
    assert took < 500


@on_virtual_time
async def test_reads_that_fail_are_repeated_ever_slower_and_others_are_followed_meanwhile() -> None:
    """
    Refused, lost, or without an answer for ten seconds; once it works it is quick again.
    """
    weather = Weather()
    weather.fates += [UnavailableError("x"), OutcomeUnknownError("x"), None]
    weather.fates += [UnavailableError("x")] * 5
    async with watching(weather) as subject:
        with capture_logs() as lines:
            await settle()
            assert subject.view.loaded == {prefix for prefix in PREFIXES if prefix != TOPICS_PREFIX}
            tp = TopicPartition(T, 0)
            leader = encode_leader(Leader("1" * 32, 3))
            await weather.store.txn((), [Put(leader_key(tp), leader)])
            await settle()
            assert 3 == subject.view.leaders[tp].leader.leader_epoch
            assert not subject.view.complete
            await subject.watch.loaded()
        times = [at for at, prefix in weather.reads if prefix == TOPICS_PREFIX]
        weather.cuts[TOPICS_PREFIX].set_result(UnavailableError("x"))
        before = now_ms()
        await settle()
        await asyncio.sleep(0.3)
        again = [at for at, prefix in weather.reads if prefix == TOPICS_PREFIX][-1]

    gaps = [round(b - a) for a, b in pairwise(times)]
    assert [200, 400, 10_800, 1_600, 2_000, 2_000, 2_000, 2_000] == gaps
    assert 8 == sum(line["event"] == "cluster_read_repeated" for line in lines)
    assert 200 == round(again - before)


@on_virtual_time
async def test_who_waits_is_asked_after_every_change_and_gives_up_in_time() -> None:
    """
    Also when what it waits for is elsewhere, and somebody says that it came.
    """
    weather = Weather()
    here: list[int] = []
    async with watching(weather) as subject:
        watch = subject.watch
        await watch.loaded()
        assert await watch.until(lambda: True, 0)
        began = now_ms()
        assert not await watch.until(lambda: False, 2.5)
        assert 2_500 == round(now_ms() - began)
        waiting = asyncio.ensure_future(watch.until(lambda: 2 in subject.view.agents, 60))
        elsewhere = asyncio.ensure_future(watch.until(lambda: bool(here), 60))
        await settle()
        for node in (1, 2):
            assert not waiting.done()
            said = agent(node)
            await weather.store.txn((), [Put(agent_key(node), encode_agent(said))])
            await settle()
        assert waiting.done()
        assert await waiting
        here.append(1)
        await settle()
        assert not elsewhere.done()
        watch.wake()

        assert await elsewhere
        with watch.changes() as changed:
            pass
        watch.wake()
        assert not changed.is_set()  # who has left is told of nothing


@on_virtual_time
async def test_a_value_that_cannot_be_read_is_reported_once_and_when_it_changes() -> None:
    """
    Not with every event that comes behind it; repaired and damaged again, it is said again.
    """
    weather = Weather()
    key = agent_key(1)
    good = encode_agent(agent(1))
    async with watching(weather) as subject:
        await subject.watch.loaded()
        with capture_logs() as lines:
            for value in (b"?", b"?", good, b"?", b"!"):
                await weather.store.txn((), [Put(key, value)])
                await weather.store.txn((), [Put(agent_key(2), good)])
                await settle()
            weather.cuts[AGENTS_PREFIX].set_result(CompactedError(99))
            await settle()

    assert [(key, "metadata_key_unreadable")] * 3 == [
        (e["key"], e["event"]) for e in lines if e["log_level"] == "error"
    ]


@on_virtual_time
async def test_a_read_that_takes_long_is_given_longer_until_it_is_answered() -> None:
    """
    Each deadline is twice the last; a large prefix would never be read otherwise.
    """
    weather = Weather()
    weather.fates = [None, None, None]
    async with watching(weather) as subject:
        await subject.watch.loaded()

    begun_s = [at_ms / 1000 for at_ms, prefix in weather.reads if prefix == TOPICS_PREFIX]
    assert [10, 20, 40] == [round(b - a, -1) for a, b in pairwise(begun_s)]


@on_virtual_time
async def test_a_read_is_repeated_soon_however_long_the_store_was_silent() -> None:
    """
    One answer that is lost after a long silence costs less than a minute, not as long again.
    """
    weather = Weather()
    weather.fates = [None] * 10
    async with watching(weather) as subject:
        await subject.watch.loaded()

    begun_s = [at_ms / 1000 for at_ms, prefix in weather.reads if prefix == TOPICS_PREFIX]
    assert max(b - a for a, b in pairwise(begun_s)) < 60


@on_virtual_time
async def test_a_large_read_does_not_hold_up_the_event_loop() -> None:
    """
    It is shown in slices, between which others have their turns; keys that are gone go as well.
    """
    weather = Weather()
    count = 5_000
    for at in range(0, count, 100):
        puts = [
            Put(leader_key(TopicPartition(T, n)), encode_leader(Leader("1" * 32, 0)))
            for n in range(at, at + 100)
        ]
        await weather.store.txn((), puts)
    turns: list[int] = []

    async with watching(weather) as subject:
        while not subject.view.complete:
            turns.append(len(subject.view.leaders))
            await asyncio.sleep(0)
        await weather.store.txn((), [Delete(leader_key(TopicPartition(T, 0)))])
        weather.cuts[LEADERS_PREFIX].set_result(CompactedError("gone"))
        await settle()

        assert len(turns) > count / 500
        assert max(b - a for a, b in pairwise(turns)) <= 500
        assert count - 1 == len(subject.view.leaders)


@on_virtual_time
async def test_a_topic_of_a_large_read_is_told_before_others_see_it() -> None:
    """
    Another task never finds a topic in the view whose change it was not told.
    """
    weather = Weather()
    count = 1_500
    for number in range(count):
        await weather.put(topic(name=f"t{number}", number=number))
    seen: list[tuple[int, int]] = []

    async with watching(weather) as subject:
        while not subject.view.complete:
            seen.append((len(subject.view.topics), len(subject.told)))
            await asyncio.sleep(0)

    assert {0, 500, 1_000} <= {there for there, _ in seen}
    assert [there for there, _ in seen] == [told for _, told in seen]
