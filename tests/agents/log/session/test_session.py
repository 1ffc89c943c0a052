"""A session and its lease: kept, lost, stopped for a loop that stands still, never brought back."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from driftlog_agents.log.session.commit_outcome import CommitOutcome
from driftlog_agents.log.session.keep_alive import KeepAlive, Renewing
from driftlog_agents.log.session.lease import SessionSettings
from driftlog_agents.log.session.session import Session
from driftlog_metadata.schema.keys import head_key, session_key
from driftlog_metadata.schema.model import Agent, FlushRecord
from driftlog_metadata.stores.errors import FencedError, StoreError, UnavailableError
from driftlog_metadata.stores.store import LeaseNotFoundError, MetadataStore, Put
from tests.agents.log.lives import now_ms, on_virtual_time
from tests.support.clusters import in_cluster, witnessed
from tests.support.memory_store import MemoryMetadataStore

TTL_MS = 6_000


class Store:
    """The memory store, whose keep-alives wait at a gate; they are done when it opens."""

    def __init__(self) -> None:
        self.behind = MemoryMetadataStore(lambda: int(now_ms()))
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)

    async def keep_alive(self, lease_id: int) -> None:
        await self.behind.keep_alive(lease_id)
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1


class Elsewhere:
    """As the thread, on this loop; *ticks*: the agent's loop goes on."""

    def __init__(self, store: Store) -> None:
        self.store = cast(MetadataStore, store)
        self.ticks = True

    async def __call__(self, renewing: Renewing, tick: Callable[[], None]) -> None:
        renewal = asyncio.create_task(renewing(self.store))
        try:
            while not renewal.done():
                if self.ticks:
                    tick()
                await asyncio.wait([renewal], timeout=0.25)
            renewal.result()
        finally:
            renewal.cancel()


class Subject:
    """An open session whose keep-alives run."""

    def __init__(self, *, elsewhere: bool, store: Store | None = None) -> None:
        self.store = store or Store()
        self.elsewhere = Elsewhere(self.store)
        keep_alive: KeepAlive | None = self.elsewhere if elsewhere else None
        self._witnessed = witnessed(cast(MetadataStore, self.store))
        self.session = self.another(7, keep_alive)
        self.keeping: asyncio.Task[None]

    def another(self, number: int, keep_alive: KeepAlive | None = None) -> Session:
        """A session of the same process."""
        return Session(
            store=self._witnessed,
            agent=Agent(
                node_id=1,
                session_id=f"{number:032x}",
                listeners=(),
                http_address="localhost:9644",
                rack=None,
                started_at_ms=0,
            ),
            settings=SessionSettings(ttl_ms=TTL_MS),
            now_ms=now_ms,
            keep_alive=keep_alive,
        )

    async def open(self) -> "Subject":
        await in_cluster(self.store.behind)
        await self.session.open()
        self.keeping = asyncio.create_task(self.session.keep_alive())
        return self

    async def key_is_there(self) -> bool:
        """Whether the store still knows the session."""
        return await self.store.get(session_key(self.session.session_id)) is not None

    async def ended(self) -> str:
        """What ended it."""
        with pytest.raises(FencedError) as error:
            await self.keeping
        return str(error.value)


each_way = pytest.mark.parametrize("elsewhere", [False, True], ids=["on the loop", "elsewhere"])


@each_way
@on_virtual_time
async def test_a_session_is_kept_for_as_long_as_it_is_renewed(elsewhere: bool) -> None:
    """
    By the store and by its own clock, which runs from when a keep-alive was sent.
    """
    subject = await Subject(elsewhere=elsewhere).open()
    lasts: list[float] = []
    for _ in range(100):
        await asyncio.sleep(0.7)
        lasts.append(subject.session.valid_until_ms - now_ms())

    assert await subject.key_is_there()
    assert subject.session.alive
    assert TTL_MS * 2 / 3 <= min(lasts) <= max(lasts) <= TTL_MS
    subject.keeping.cancel()


@pytest.mark.parametrize("acted", [False, True])
@on_virtual_time
async def test_a_session_that_was_long_in_opening_lives(acted: bool) -> None:
    """
    Its lease may be from the first attempt, of which nobody heard: it is renewed before it counts,
    or the session would be over as soon as it has begun.
    """
    subject = Subject(elsewhere=False)
    grant = subject.store.behind.grant_lease
    until_ms = now_ms() + 5_000

    async def slow(lease_id: int, ttl_ms: int) -> None:
        if acted or now_ms() >= until_ms:
            with contextlib.suppress(StoreError):  # it is there
                await grant(lease_id, ttl_ms)
        if now_ms() < until_ms:
            raise UnavailableError("away")

    subject.store.behind.grant_lease = slow  # type: ignore[method-assign]
    await subject.open()

    assert TTL_MS - 500 <= subject.session.valid_until_ms - now_ms() <= TTL_MS
    await asyncio.sleep(5)
    assert subject.session.alive
    subject.keeping.cancel()


class SlowStore(Store):
    """It needs so long for each request, and does none that nobody waits for any more."""

    seconds = 1.5

    def __getattr__(self, name: str) -> Any:
        ask = getattr(self.behind, name)

        async def slowly(*args: Any) -> Any:
            await asyncio.sleep(self.seconds)
            return await ask(*args)

        return slowly

    async def keep_alive(self, lease_id: int) -> None:
        await asyncio.sleep(self.seconds)
        await self.behind.keep_alive(lease_id)


@each_way
@on_virtual_time
async def test_a_store_that_needs_longer_than_a_request_is_given_is_given_longer(
    elsewhere: bool,
) -> None:
    """
    After a few that had no answer; and no longer, once it is as it was.
    """
    slow = SlowStore()
    subject = Subject(elsewhere=elsewhere, store=slow)
    began_ms = now_ms()
    await subject.open()
    opened_ms = now_ms() - began_ms
    await asyncio.sleep(60)
    there = await subject.session.read(session_key(subject.session.session_id))
    slow.seconds = 0.1
    await subject.session.read("k")
    slow.seconds = 1e9
    asked_ms = now_ms()
    with pytest.raises(FencedError):
        await subject.session.read("k")

    assert opened_ms <= 15_000
    assert there is not None
    assert subject.session.outage.failures >= 4
    assert now_ms() - asked_ms <= TTL_MS + 4_000
    await subject.ended()


@each_way
@on_virtual_time
async def test_a_lease_that_is_gone_ends_the_session(elsewhere: bool) -> None:
    """
    At the next keep-alive; and nothing is served from then on.
    """
    subject = await Subject(elsewhere=elsewhere).open()
    await asyncio.sleep(10)
    await subject.store.revoke_lease(subject.session.lease_id)
    with pytest.raises(LeaseNotFoundError):
        await subject.keeping

    assert (False, 0.0) == (subject.session.alive, subject.session.valid_until_ms)


@each_way
@on_virtual_time
async def test_a_store_that_does_not_answer_ends_the_session_by_the_own_clock(
    elsewhere: bool,
) -> None:
    """
    Not before the last good keep-alive is a time to live old, and no later than a retry after.
    """
    subject = await Subject(elsewhere=elsewhere).open()
    await asyncio.sleep(10)
    until_ms = subject.session.valid_until_ms
    subject.store.gate.clear()
    await subject.ended()

    assert until_ms <= now_ms() <= until_ms + 1_200
    assert not subject.session.alive


@on_virtual_time
async def test_a_loop_that_stands_still_for_a_moment_keeps_its_session() -> None:
    """
    Five sixths of a time to live, again and again: its keep-alives go out from elsewhere.
    """
    subject = await Subject(elsewhere=True).open()
    for _ in range(10):
        subject.elsewhere.ticks = False
        await asyncio.sleep(TTL_MS / 1000 * 5 / 6)
        subject.elsewhere.ticks = True
        await asyncio.sleep(0.3)
        assert subject.session.alive

    assert await subject.key_is_there()
    subject.keeping.cancel()


@on_virtual_time
async def test_a_loop_that_stands_still_for_a_whole_time_to_live_is_given_up() -> None:
    """
    Its session is over before its lease is, and the lease is revoked: others need not wait for it.
    """
    subject = await Subject(elsewhere=True).open()
    await asyncio.sleep(10)
    subject.elsewhere.ticks = False
    await asyncio.sleep(TTL_MS / 1000 - 0.3)
    before = (subject.session.alive, await subject.key_is_there())
    await asyncio.sleep(TTL_MS / 3000 + 0.3)
    after = (subject.session.alive, await subject.key_is_there())
    subject.elsewhere.ticks = True
    reason = await subject.ended()

    assert ((True, True), (False, False)) == (before, after)
    assert "event loop stood still" in reason


async def _committed_dead(session: Session) -> None:
    record = FlushRecord(object_key="flush/x", size_bytes=2, footer_start=1)
    assert CommitOutcome.DEAD is await session.commit(5, record)  # out of turn: not its head


async def _closed(session: Session) -> None:
    await session.close()


async def _failed(session: Session) -> None:
    session.end("as the test has it")


@each_way
@pytest.mark.parametrize("end", [_committed_dead, _closed, _failed])
@on_virtual_time
async def test_an_answer_that_comes_after_the_end_does_not_bring_a_session_back(
    elsewhere: bool, end: Callable[[Session], Awaitable[None]]
) -> None:
    """
    The keep-alive was on its way when a commit was refused, the lease revoked, or a bug found.
    """
    subject = await Subject(elsewhere=elsewhere).open()
    subject.store.gate.clear()
    while not subject.store.waiting:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert subject.session.alive
    await end(subject.session)
    subject.store.gate.set()
    for _ in range(5):  # turns of the loop in which the answer arrives
        await asyncio.sleep(0)
        assert (False, 0.0) == (subject.session.alive, subject.session.valid_until_ms)
    assert subject.store.waiting == 0
    with contextlib.suppress(asyncio.TimeoutError):
        await subject.ended()

    assert (False, 0.0) == (subject.session.alive, subject.session.valid_until_ms)


async def _head_that_cannot_be_read(subject: Subject) -> None:
    head = head_key(subject.session.session_id)
    await subject.store.txn((), [Put(head, b"{}")])


@on_virtual_time
async def test_a_head_that_cannot_be_read_ends_the_session_and_not_the_agent() -> None:
    """
    What a refused commit came to is not known: nothing more is committed under that head, and the
    next session of the process begins.
    """
    subject = await Subject(elsewhere=False).open()
    record = FlushRecord(object_key="o", size_bytes=2, footer_start=1)
    assert CommitOutcome.COMMITTED is await subject.session.commit(1, record)
    await _head_that_cannot_be_read(subject)

    with capture_logs() as lines:
        outcome = await subject.session.commit(2, record)
    after = subject.another(8)
    with capture_logs() as opened:
        await after.open()

    assert CommitOutcome.DEAD is outcome
    assert "head" in await subject.ended()
    assert after.alive
    for said in (lines, opened):
        (line,) = (line for line in said if line["log_level"] == "error")
        assert head_key(subject.session.session_id) in line["error"]
