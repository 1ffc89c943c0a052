"""When sealed garbage is collected: else it stays, or idle partitions cost requests for ever."""

import asyncio
from collections import Counter

import pytest
from structlog.testing import capture_logs

from driftlog_agents.foundation.offload import inline
from driftlog_agents.log.garbage.common.metadata_reads import CollectorReads
from driftlog_agents.log.garbage.common.object_pages import ObjectPages
from driftlog_agents.log.garbage.common.put_times import PutTimes
from driftlog_agents.log.garbage.common.request_retry import request_retry
from driftlog_agents.log.garbage.sealed.collection import SealedCollection
from driftlog_agents.log.session.unknown_keys import UnknownKeys
from driftlog_metadata.schema.grace import HOUR_MS, Grace
from tests.agents.log.garbage.sealed.partition_history import PARTITION, History
from tests.tiering.formats.test_manifests import VirtualTimeLoop

GRACE = Grace(HOUR_MS)


class Agent:
    """A collection on the history's stores; its clock is the loop's, and the bucket's, too."""

    def __init__(self, history: History, share: tuple[int, int] | None = (0, 1)) -> None:
        self.history = history
        self.share = share
        self.collection = SealedCollection(
            metadata=CollectorReads(history.metadata, request_retry(1_000)),
            pages=ObjectPages(history.bucket, request_retry(1_000), 0, PutTimes(GRACE)),
            deleter=history.deletions,
            grace=GRACE,
            unknown_keys=UnknownKeys(),
            offload=inline,
            share=lambda: self.share,
        )

    async def live(self, hours: float, *edited: object) -> None:
        """Collect every few minutes."""
        await self.collection.collect(edited)  # type: ignore[arg-type]
        for _ in range(round(hours * 20)):
            await asyncio.sleep(180)
            self.history.now_h += 0.05
            await self.collection.collect(())


def on_virtual_time(main: object) -> None:
    """Run it; waiting costs nothing."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main)  # type: ignore[arg-type]


def test_an_edit_is_collected_a_grace_later_without_a_listing() -> None:
    """
    An agent that lists nothing walks what it has edited.
    """

    async def main() -> None:
        history = await History().begin()
        await history.seal()
        await history.delete_records(10)
        agent = Agent(history, share=None)
        await agent.live(0.9, PARTITION)
        before = await history.versions()
        await agent.live(0.3)

        assert [1, 2] == before
        assert [2] == await history.versions()

    on_virtual_time(main())


def test_an_idle_partition_costs_one_look_and_then_nothing() -> None:
    """
    The first listing of a process judges what is there; the next ones ask for pages only.
    """

    async def main() -> None:
        history = await History().begin()
        await history.seal()
        history.now_h += 2
        agent = Agent(history)
        await agent.live(1)
        first = len(history.bucket.gets)
        await agent.live(20)

        assert 0 < first == len(history.bucket.gets)
        assert agent.collection.listed_ms > history.now_ms() - 2.1 * HOUR_MS

    on_virtual_time(main())


def test_a_listing_hands_idle_partitions_with_superseded_versions_to_a_walk() -> None:
    """
    Edits of an agent that has ended meanwhile: no agent has noticed them.
    """

    async def main() -> None:
        history = await History().begin()
        await history.seal()
        await history.delete_records(10)
        history.now_h += 2
        await Agent(history).live(0.5)

        assert [2] == await history.versions()

    on_virtual_time(main())


@pytest.mark.parametrize(("share", "goes"), [((0, 2), False), ((1, 2), True), (None, False)])
def test_each_agent_lists_its_share(share: tuple[int, int] | None, goes: bool) -> None:
    """
    Together they list every topic, and each topic once.
    """

    async def main() -> None:
        history = await History().begin()
        await history.seal()
        await history.put_segment(10, 20)
        history.now_h += 2
        await Agent(history, share).live(0.5)

        assert goes is (1 == len(history.bucket.deleted))

    on_virtual_time(main())


def test_a_busy_partition_is_walked_by_its_leader_only() -> None:
    """
    The agent that lists it, and one that has led it before, leave it to the leader: else each walk
    is paid two or three times.
    """

    async def main() -> None:
        history = await History().begin()
        await history.seal()
        history.now_h += 2
        leader, before, lister = Agent(history, None), Agent(history, None), Agent(history)
        await before.collection.collect([PARTITION])
        walks: Counter[str] = Counter()
        for _ in range(100):
            await history.seal()
            for name, agent in (("leader", leader), ("before", before), ("lister", lister)):
                history.bucket.lists.clear()
                await agent.collection.collect([PARTITION] if agent is leader else ())
                walks[name] += sum("/manifest/" in prefix for prefix in history.bucket.lists)
            await asyncio.sleep(360)
            history.now_h += 0.1

        assert walks["leader"] > 50
        assert walks["before"] <= 3
        assert walks["lister"] <= 7  # each listing reads the names of what is new
        assert len(await history.versions()) <= 13

    on_virtual_time(main())


def test_an_agent_without_a_share_lists_as_soon_as_it_has_one() -> None:
    """
    It joins the view a moment after its start: that must not cost a day.
    """

    async def main() -> None:
        history = await History().begin()
        await history.seal()
        await history.put_segment(10, 20)
        history.now_h += 2
        agent = Agent(history, None)
        await agent.live(0.3)
        agent.share = (0, 1)
        await agent.live(0.1)

        assert 1 == len(history.bucket.deleted)

    on_virtual_time(main())


def test_what_a_missing_list_named_is_found_by_the_next_listing() -> None:
    """
    The store does not find a list of a superseded version for a while: the version goes, and what
    was in the list is named by nothing any more.  A listing that has judged it judges it again.
    """

    async def main() -> None:
        history = await History().begin()
        await history.seal(count=1, segments=1_600)
        (ref,) = history.newest.lists[:1]
        history.now_h += 2
        agent = Agent(history)
        await agent.live(0.5)  # all is named, and was judged
        await history.delete_records(1_600)
        history.bucket.hidden.add(ref.key)
        await agent.live(1.2, PARTITION)
        left = [key for key in await history.keys() if key.endswith(".parquet")]
        await agent.live(2)

        assert 1_000 == len(left) or 500 == len(left)
        assert [] == [key for key in await history.keys() if key.endswith(".parquet")]

    on_virtual_time(main())


def test_damage_is_told_and_tried_again_later() -> None:
    """
    A partition whose newest version is damaged keeps everything, and stops no other one.
    """

    async def main() -> None:
        history = await History().begin()
        await history.seal()
        await history.delete_records(10)
        history.now_h += 2
        await history.bucket.delete([history.newest.key])
        history.bucket.deleted.clear()
        with capture_logs() as lines:
            await Agent(history).live(3)

        assert [] == history.bucket.deleted
        assert "partition_not_collected" in [line["event"] for line in lines]

    on_virtual_time(main())


def test_a_failed_delete_is_repeated_at_the_next_look() -> None:
    """
    The walk is still scheduled when the bucket takes deletes again.
    """

    async def main() -> None:
        history = await History().begin()
        await history.seal()
        await history.delete_records(10)
        history.now_h += 2
        agent = Agent(history, share=None)
        await agent.live(0.9, PARTITION)
        history.bucket.deletes_fail = True
        await agent.live(0.2)  # other partitions would be walked
        assert [1, 2] == await history.versions()
        history.bucket.deletes_fail = False
        await agent.live(0.2)

        assert [2] == await history.versions()

    on_virtual_time(main())
