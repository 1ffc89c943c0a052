"""A start whose stores fail: repeated for a while, and refused at once where that cannot help."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from driftlog_agents.foundation.start_retry import ANSWER_S, PATIENCE_S, patiently
from driftlog_agents.log.local.disk import AgentDisk
from driftlog_agents.log.objects.bucket_probe import probe_bucket
from driftlog_agents.process.composition.cluster_identity import (
    WrongClusterError,
    join_cluster,
    look_first,
    node_id,
)
from driftlog_metadata.schema.keys import node_id_key
from driftlog_metadata.stores.errors import (
    CorruptError,
    DeclinedError,
    OutcomeUnknownError,
    UnavailableError,
)
from driftlog_metadata.stores.etcd.etcd_errors import EtcdRefusedError
from driftlog_metadata.stores.store import Put
from driftlog_tiering.formats import layout
from driftlog_tiering.stores.object_store import (
    AccessDeniedError,
    AlreadyExistsError,
    BucketNotFoundError,
    Listing,
    NotFoundError,
    ObjectInfo,
)
from tests.agents.log.lives import World, now_ms, on_virtual_time
from tests.agents.log.test_claims import opened
from tests.support.memory_object_store import MemoryObjectStore
from tests.support.memory_store import MemoryMetadataStore


class Asked:
    """What a store does with the next requests, in turn; then it answers."""

    def __init__(self, *fates: Exception | None) -> None:
        self.fates = list(fates)
        self.times = 0

    async def __call__(self) -> str:
        self.times += 1
        if self.fates:
            fate = self.fates.pop(0)
            if fate is None:
                await asyncio.Event().wait()
            raise cast(Exception, fate)
        return "answer"


@on_virtual_time
async def test_what_passes_is_waited_for_and_said_once() -> None:
    """
    Resets, throttling, and no answer.
    """
    ask = Asked(OutcomeUnknownError("reset"), UnavailableError("slow down"), TimeoutError())

    with capture_logs() as lines:
        assert "answer" == await patiently(ask, "s3://bucket")

    assert 4 == ask.times
    assert [("start_delayed", "s3://bucket", "reset")] == [
        (line["event"], line["store"], line["error"]) for line in lines
    ]


@pytest.mark.parametrize("error", [UnavailableError("not there"), OutcomeUnknownError("reset")])
@on_virtual_time
async def test_what_does_not_pass_is_refused_in_the_end(error: Exception) -> None:
    """
    With the store's own words.
    """
    ask = Asked(*[error] * 1000)
    began_ms = now_ms()

    with pytest.raises(type(error), match=str(error)):
        await patiently(ask, "s3://bucket")

    assert PATIENCE_S <= (now_ms() - began_ms) / 1000 < PATIENCE_S + 3
    assert 5 < ask.times < 20


@on_virtual_time
async def test_a_store_that_is_silent_is_asked_once() -> None:
    """
    For longer than what fails is repeated.
    """
    ask = Asked(None, None)
    began_ms = now_ms()

    with pytest.raises(OutcomeUnknownError, match="no answer in 20 s"):
        await patiently(ask, "s3://bucket")

    assert ANSWER_S * 1000 == pytest.approx(now_ms() - began_ms)
    assert 1 == ask.times


@pytest.mark.parametrize("kind", [AccessDeniedError, BucketNotFoundError, EtcdRefusedError])
@on_virtual_time
async def test_what_a_store_declines_is_refused_at_once(kind: type[DeclinedError]) -> None:
    """
    Wrong credentials, a wrong bucket: it says what to do, and asking again does not help.
    """
    ask = Asked(kind("check your credentials"))
    began_ms = now_ms()

    with pytest.raises(kind, match="check your credentials"):
        await patiently(ask, "s3://bucket")

    assert (1, 0.0) == (ask.times, now_ms() - began_ms)


@on_virtual_time
async def test_who_gives_up_is_heard_by_what_fails_in_its_own_way() -> None:
    """
    A store that ends a request with an error of its own when its caller is cancelled.
    """
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise UnavailableError("the connection was closed") from None

    start = asyncio.ensure_future(patiently(ask, "s3://bucket"))
    await asyncio.sleep(1)
    start.cancel()
    await asyncio.wait([start], timeout=5)

    assert 1 == asked
    assert isinstance(start.exception(), UnavailableError)


class Flaky:
    """A store of which every method fails at first: refused, or done and not answered."""

    def __init__(self, store: Any, *, acts: bool) -> None:
        self._store = store
        self._acts = acts
        self.failed: set[str] = set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)

        async def call(*args: Any) -> Any:
            if name in self.failed:
                return await method(*args)
            self.failed.add(name)
            if self._acts:
                with contextlib.suppress(NotFoundError):
                    await method(*args)
            raise OutcomeUnknownError("reset")

        return call

    async def list(self, prefix: str) -> AsyncIterator[Listing]:
        if "list" not in self.failed:
            self.failed.add("list")
            raise OutcomeUnknownError("reset")
        async for page in self._store.list(prefix):
            yield page


class NodeFile:
    """A disk that has nothing but what is saved."""

    def __init__(self) -> None:
        self.saved: dict[str, bytes] = {}
        self.left: list[str] = []

    def sessions(self) -> list[str]:
        return self.left

    def load(self, name: str) -> bytes | None:
        return self.saved.get(name)

    async def save(self, name: str, data: bytes) -> None:
        self.saved[name] = data


def stores() -> tuple[MemoryMetadataStore, MemoryObjectStore]:
    """Of a cluster that is not there yet."""
    return MemoryMetadataStore(lambda: 0), MemoryObjectStore(lambda: 0)


@pytest.mark.parametrize("acts", [False, True])
@on_virtual_time
async def test_a_cluster_is_made_once_however_often_its_stores_fail(acts: bool) -> None:
    """
    Each request may be repeated: the agents that come later find the same cluster.
    """
    metadata, objects = stores()
    flaky: list[Any] = [Flaky(store, acts=acts) for store in (metadata, objects)]

    await look_first(flaky[1], "s3://bucket", has_metadata=False)
    flaky[1].failed.clear()
    made = await join_cluster(flaky[0], flaky[1], "s3://bucket", Random(1))
    failed = [sorted(one.failed) for one in flaky]
    flaky[0].failed.clear()
    number = await node_id(flaky[0], cast(AgentDisk, NodeFile()), made)

    assert [["get", "get_prefix", "txn"], ["create", "get", "list"]] == failed
    assert made == await join_cluster(metadata, objects, "s3://bucket", Random(2))
    assert (2 if acts else 1) == number


@on_virtual_time
async def test_a_mark_that_is_there_and_not_shown_yet_is_asked_for_again() -> None:
    """
    Its own, whose answer was lost, on a store with a node that is behind.
    """

    class Behind(MemoryObjectStore):
        hides = 0

        async def create(self, key: str, body: Any) -> None:
            await super().create(key, body)
            self.hides = 3
            raise AlreadyExistsError(key)

        async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
            if self.hides:
                self.hides -= 1
                raise NotFoundError(key)
            return await super().get(key, start, end)

    metadata, _ = stores()
    objects = Behind(lambda: 0)

    made = await join_cluster(metadata, objects, "s3://bucket", Random(1))

    assert made == await join_cluster(metadata, objects, "s3://bucket", Random(2))


@on_virtual_time
async def test_agents_with_buckets_of_their_own_are_no_cluster() -> None:
    """
    Whether they start together or one after the other: what one of them has put, the others would
    take for lost.
    """
    metadata, objects = stores()

    async def start(bucket: MemoryObjectStore, seed: int) -> int:
        made = await join_cluster(metadata, bucket, f"bucket {seed}", Random(seed))
        return await node_id(metadata, cast(AgentDisk, NodeFile()), made)

    together = [start(objects, 1), start(objects, 2), start(stores()[1], 3)]
    told = await asyncio.gather(*together, return_exceptions=True)

    assert [1, 2] == told[:2]
    assert isinstance(told[2], WrongClusterError)
    with pytest.raises(WrongClusterError, match="need the same --store"):
        await start(stores()[1], 4)
    assert 3 == await start(objects, 5)


@on_virtual_time
async def test_a_first_start_that_was_cut_off_is_finished_by_the_next() -> None:
    """
    Who made the cluster and did not mark its bucket gave no node id to anybody.
    """
    metadata, objects = stores()
    made = await join_cluster(metadata, stores()[1], "s3://bucket", Random(1))
    began = asyncio.get_running_loop().time()

    assert made == await join_cluster(metadata, objects, "s3://bucket", Random(2))
    assert 5 == pytest.approx(asyncio.get_running_loop().time() - began, abs=0.6)


@on_virtual_time
async def test_a_node_id_is_the_first_that_nobody_ever_had() -> None:
    """
    Found in one read, however many agents have come and gone.
    """
    metadata, objects = stores()
    made = await join_cluster(metadata, objects, "s3://bucket", Random(1))
    for number in (1, 2, 3, 5):
        await metadata.txn((), [Put(node_id_key(number), b"{}")])
    asked = metadata.txn
    tries = []

    async def counted(*args: Any) -> Any:
        tries.append(args)
        return await asked(*args)

    metadata.txn = counted  # type: ignore[assignment, method-assign]

    assert [4, 6] == [await node_id(metadata, cast(AgentDisk, NodeFile()), made) for _ in "ab"]
    assert 2 == len(tries)


@on_virtual_time
async def test_a_bucket_that_lost_its_mark_is_refused_for_topics_not_for_strangers_keys() -> None:
    """
    What is no topic's key under /topics says nothing of the location.
    """
    metadata, objects = stores()
    made = await join_cluster(metadata, objects, "s3://bucket", Random(1))
    await metadata.txn((), [Put("/driftlog/v1/topics/a/note", b"")])

    assert made == await join_cluster(metadata, stores()[1], "s3://other", Random(2))
    await metadata.txn((), [Put("/driftlog/v1/topics/a", b"")])
    with pytest.raises(WrongClusterError, match="check the location"):
        await join_cluster(metadata, stores()[1], "s3://other", Random(2))


class Markers(MemoryObjectStore):
    """A bucket with folder markers, which the memory store itself does not take."""

    async def list(self, prefix: str, **options: Any) -> AsyncIterator[Listing]:
        async for page in super().list(prefix, **options):
            markers = tuple(ObjectInfo(key, 0, 0) for key in ("", "a/b/", "flush/"))
            yield Listing(markers + page.objects, page.store_now_ms)


OBJECT = f"flush/{7:032x}/{1:020d}-{9:016x}.flush"


@pytest.mark.parametrize("known", ["nothing", "the cluster's key"])
@on_virtual_time
async def test_no_cluster_is_made_where_there_are_objects(known: str) -> None:
    """
    They may be all that is left of one whose cluster.json is gone: the refusal names one of them
    and the way out, and nothing is written.
    """
    metadata, objects = stores()
    if known != "nothing":
        await join_cluster(metadata, stores()[1], "s3://other", Random(1))
    await objects.put(OBJECT, [b"acknowledged"])
    before = metadata.snapshot()

    for start in (
        lambda: join_cluster(metadata, objects, "s3://bucket", Random(2)),
        lambda: look_first(objects, "s3://bucket", has_metadata=False),
    ):
        with pytest.raises(WrongClusterError, match=f"{OBJECT}.*metadata store") as error:
            await start()
        assert "choose an empty location" in str(error.value)

    assert before == metadata.snapshot()
    with pytest.raises(NotFoundError):
        await objects.get(layout.CLUSTER_KEY)


@on_virtual_time
async def test_folder_markers_and_probes_of_agents_are_no_objects() -> None:
    """
    A console leaves markers; a start that was refused leaves probes.
    """
    metadata, objects = stores()[0], Markers(lambda: 0)
    assert await probe_bucket(objects, 1, f"{7:016x}") is None

    made = await join_cluster(metadata, objects, "s3://bucket", Random(1))

    assert made == await join_cluster(metadata, objects, "s3://bucket", Random(2))


@on_virtual_time
async def test_a_mark_that_was_lost_can_be_put_back_as_the_refusal_says() -> None:
    """
    The metadata store that knows the cluster's id tells what was in it.
    """
    metadata, objects = stores()
    made = await join_cluster(metadata, objects, "s3://bucket", Random(1))
    await node_id(metadata, cast(AgentDisk, NodeFile()), made)
    await objects.put(OBJECT, [b"acknowledged"])
    await objects.delete([layout.CLUSTER_KEY])

    with pytest.raises(WrongClusterError) as error:
        await join_cluster(metadata, objects, "s3://bucket", Random(2))
    body = str(error.value).partition("exactly this in it: ")[2]
    await objects.put(layout.CLUSTER_KEY, [body.encode()])

    assert "\n" not in body  # a log shows it as two characters, which are copied then
    assert made == await join_cluster(metadata, objects, "s3://bucket", Random(2))


@pytest.mark.parametrize(("ends", "waits_s"), [("at once", 0), ("soon", 6), ("on this disk", 0)])
@on_virtual_time
async def test_a_node_id_is_used_once_its_last_session_is_over(ends: str, waits_s: float) -> None:
    """
    At once where that was on this disk, which is locked: a kill costs no wait.
    """
    world, disk = World(), NodeFile()
    made = await join_cluster(world.metadata, MemoryObjectStore(lambda: 0), "d", Random(1))
    number = await node_id(world.metadata, cast(AgentDisk, disk), made)
    session = await opened(world, number)
    if ends == "at once":
        await session.close()
    if ends == "on this disk":
        disk.left = [session.session_id]
    loop = asyncio.get_running_loop()
    loop.call_later(5.9, lambda: asyncio.ensure_future(session.close()))
    began = loop.time()

    assert number == await node_id(world.metadata, cast(AgentDisk, disk), made)

    assert waits_s == loop.time() - began


@on_virtual_time
async def test_an_agent_on_a_copy_of_a_directory_does_not_start() -> None:
    """
    It would hide the other one, and be hidden.
    """
    world, disk = World(), NodeFile()
    made = await join_cluster(world.metadata, MemoryObjectStore(lambda: 0), "d", Random(1))
    number = await node_id(world.metadata, cast(AgentDisk, disk), made)
    await opened(world, number)

    with (
        capture_logs() as lines,
        pytest.raises(WrongClusterError, match="perhaps on a copy of it"),
    ):
        await node_id(world.metadata, cast(AgentDisk, disk), made)

    assert ["node_id_in_use"] == [line["event"] for line in lines]


def indented(body: bytes) -> bytes:
    """As people like to read it."""
    return json.dumps(json.loads(body), indent=2).encode()


@pytest.mark.parametrize(
    "edit",
    [
        lambda body: body + b"\n",
        lambda body: body.replace(b"\n", b"\r\n"),
        lambda body: body.strip(),
        indented,
        lambda body: b"\xef\xbb\xbf" + indented(body),
    ],
    ids=["a newline more", "DOS", "no newline", "indented", "a byte order mark"],
)
@on_virtual_time
async def test_a_mark_that_went_through_an_editor_is_read(edit: Callable[[bytes], bytes]) -> None:
    """
    Whitespace that JSON does not mind is no damage.  Another id is, whatever stands around it.
    """
    metadata, objects = stores()
    made = await join_cluster(metadata, objects, "s3://bucket", Random(1))
    body = await objects.get(layout.CLUSTER_KEY)
    await objects.delete([layout.CLUSTER_KEY])
    await objects.put(layout.CLUSTER_KEY, [edit(body)])

    assert made == await join_cluster(metadata, objects, "s3://bucket", Random(2))
    other = body.replace(made.cluster_id.encode(), b"a-" + made.cluster_id.encode())
    await objects.delete([layout.CLUSTER_KEY])
    await objects.put(layout.CLUSTER_KEY, [edit(other)])
    with pytest.raises(CorruptError, match="crc32"):
        await join_cluster(metadata, objects, "s3://bucket", Random(2))
