"""A bucket that is less than S3 promises, and unknown_keys that write into it.

    stale listings     an object may be missing from listings for some seconds after its PUT
    doubled writes     a proxy sends a PUT twice: the copy acts up to a minute later
    late requests      what travels for seconds elsewhere travels for up to a minute
    foreign objects    keys that no driftlog writes, among ours: they stay as they are, and hide
                       nothing

Each has seeds of its own, and draws from a `Random` of its own: all other seeds keep their
schedules.  Listings are stale until the faults are over.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from driftlog_metadata.schema.keys import SESSIONS_PREFIX
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats import layout
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_store import Listing
from tests.simulation.faults import FaultyObjects, Network, now
from tests.simulation.final_log import read_topics
from tests.simulation.loop import NOBODY
from tests.support.memory_object_store import MemoryObjectStore

if TYPE_CHECKING:
    from tests.simulation.world import World

_OF: Final = 100
_STALE: Final = (4, 21, 28, 62, 85)
_DOUBLED: Final = (13, 36, 65, 82, 98)
_LATE: Final = (27, 31, 75, 88, 92)
_FOREIGN: Final = (3, 6, 33, 44, 72, 95)
"""Of a hundred seeds: of one agent, and of several."""

_LAGS_MS: Final = (0, 0, 300, 3_000, 9_000)
_DOUBLED_SHARE: Final = 0.2
_COPIES_AFTER_S: Final = (0.01, 1.0, 10.0, 60.0)
_LATEST_MS: Final = 60_000.0
_MOST_FOREIGN: Final = 24
_MANIFESTS: Final = 0.3


def latest_ms(seed: int) -> float | None:
    """For how long a late request may travel; None: as in all other seeds."""
    return _LATEST_MS if seed % _OF in _LATE else None


def has_foreign_objects(seed: int) -> bool:
    """Whether unknown_keys write into the bucket."""
    return seed % _OF in _FOREIGN


def bucket_of(
    world: "World", network: Network, hidden: Callable[[str], bool] = lambda _: False
) -> FaultyObjects:
    """The bucket as one process of the seed sees it; *hidden*: see `FaultyObjects`."""
    name = f"bucket {network.process.name} {world.seed}"
    found = FaultyObjects(world.bucket, network, world.withheld, hidden)
    if world.seed % _OF in _STALE:
        return StaleObjects(found, Random(name), lambda: not world.calm)
    if world.seed % _OF in _DOUBLED:
        return DoubledObjects(found, Random(name))
    return found


class StaleObjects(FaultyObjects):
    """Its listings may lack what was put a moment ago; requests by name do not.

    Args:
        goes_on: whether they are stale now.
    """

    def __init__(self, usual: FaultyObjects, rng: Random, goes_on: Callable[[], bool]) -> None:
        super().__init__(*usual.parts)
        self._rng = rng
        self._goes_on = goes_on

    async def list(
        self, prefix: str, *, start_after: str = "", page_size: int = 1000
    ) -> AsyncIterator[Listing]:
        lag_ms = self._rng.choice(_LAGS_MS) if self._goes_on() else 0
        left: list[Listing] = []
        async for page in super().list(prefix, start_after=start_after):
            until_ms = page.store_now_ms - lag_ms
            there = tuple(info for info in page.objects if info.modified_ms <= until_ms)
            left.append(Listing(there, page.store_now_ms))
        for page in left:
            pages = range(0, max(len(page.objects), 1), page_size)
            for at in pages:
                yield Listing(page.objects[at : at + page_size], page.store_now_ms)


class DoubledObjects(FaultyObjects):
    """Some of its writes act twice."""

    def __init__(self, usual: FaultyObjects, rng: Random) -> None:
        super().__init__(*usual.parts)
        self._rng = rng

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        whole = [b"".join(body)]
        await self._network.request(
            f"put {key}", self._twice(lambda: self._store.put(key, whole), key, whole), writes=True
        )

    async def create(self, key: str, body: Sequence[Buffer]) -> None:
        whole = [b"".join(body)]

        def create() -> Coroutine[None, None, None]:
            return self._store.create(key, whole)

        await self._network.request(f"create {key}", self._twice(create, key, None), writes=True)

    def _twice(
        self,
        write: Callable[[], Coroutine[None, None, None]],
        key: str,
        over: list[bytes] | None,
    ) -> Callable[[], Coroutine[None, None, None]]:
        """*over*: what the copy writes over the object, or anew where it is gone; None: the copy
        is refused where the object is there."""
        store = self._store

        def again() -> None:
            if over is not None:
                # Past what watches the bucket, or refuses: nobody deletes, and no agent asks.
                now(MemoryObjectStore.delete(store, [key]))
                now(MemoryObjectStore.put(store, key, over))
            else:
                now(write())  # AlreadyExistsError is told to nobody

        async def act() -> None:
            await write()  # what is refused is not sent twice
            if self._rng.random() < _DOUBLED_SHARE:
                after_s = self._rng.choice(_COPIES_AFTER_S)
                asyncio.get_running_loop().call_later(after_s, again, context=NOBODY)

        return act


class ForeignObjects:
    """What unknown_keys put among our objects, and must find again."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"foreign {world.seed}")
        self._among_manifests = Random(f"foreign manifests {world.seed}")
        self.bodies: dict[str, bytes] = {}

    async def run(self) -> None:
        """Put one after the other, until cancelled."""
        while True:
            for key in await self._names():
                if len(self.bodies) < _MOST_FOREIGN and key not in self.bodies:
                    body = self._rng.randbytes(self._rng.randint(0, 40))
                    await MemoryObjectStore.put(self._world.bucket, key, [body])
                    self.bodies[key] = body
                    self._world.note("foreign object")
            await asyncio.sleep(self._rng.uniform(1, 15))

    async def _names(self) -> list[str]:
        """Some that look like ours, in folders that are there; also before the newest manifest."""
        rng = self._rng
        names = ["README.txt", "cluster.json.bak", "flush/notes.txt", "flush/-/a.flush"]
        names += ["topics/index.html", "topics/_delta_log/00000000000000000000.json", "zzz"]
        snapshot = self._world.metadata.snapshot(SESSIONS_PREFIX)
        live = [kv.key.removeprefix(SESSIONS_PREFIX) for kv in snapshot]
        for session in rng.sample(live, min(1, len(live))):
            folder = layout.session_prefix(session)
            names += [f"{folder}{1:020d}.flush", f"{folder}{1:020d}-0.flush.tmp", f"{folder}~"]
        topics = list((await read_topics(self._world)).values())
        for topic in rng.sample(topics, min(1, len(topics))):
            folder = layout.topic_prefix(topic.name, topic.topic_id)
            names += [f"{folder}desktop.ini", f"{folder}topic/{1:020d}.json~", f"{folder}topic/z"]
            names += [f"{folder}00000/copy of 1.parquet", f"{folder}00000/producers/old.snapshot"]
            # Before and behind the newest manifest, which is the first of ours in its folder.
            names += [f"{folder}00000/manifest/!", f"{folder}00000/manifest/newest.json"]
            names += [f"{folder}00000/manifest-lists/0"]
            names += [f"topics/{topic.name}/notes", f"{folder}00007/{0:020d}.parquet"]
        chosen = rng.sample(names, rng.randint(1, 4))
        for topic in topics:
            tp = TopicPartition(topic.topic_id, self._among_manifests.randrange(2))
            if self._among_manifests.random() < _MANIFESTS:
                chosen.append(f"{layout.manifest_prefix(topic.name, tp)}.DS_Store")
        return chosen

    async def check(self) -> None:
        """They are there, as they were put."""
        for key, body in self.bodies.items():
            there, error = now(self._world.bucket.get(key))
            self._world.expect(there == body, f"a stranger's {key} is {there!r}: {error!r}")
