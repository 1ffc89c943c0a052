"""Edits of manifests commit once, on a store that refuses requests and loses answers."""

import asyncio
import random
import selectors
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import UUID

import pytest

from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import Cluster, TopicPartition
from driftlog_metadata.stores.errors import OutcomeUnknownError, UnavailableError
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import (
    AddSegments,
    Edit,
    LeaderEpoch,
    Manifest,
    ReplaceSegments,
    SegmentRef,
    SetLogStart,
    empty_manifest,
)
from driftlog_tiering.formats.manifest_codec import (
    CorruptManifestError,
    decode_manifest,
    encode_manifest,
)
from driftlog_tiering.formats.manifests import (
    MissingManifestError,
    OtherClusterError,
    StaleManifestError,
    VoidEditError,
    commit_edit,
    iter_segments,
    load_at_least,
    load_newest,
)
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_store import Listing, ObjectInfo, ObjectStore
from tests.support.clusters import AUTHOR
from tests.support.memory_object_store import MemoryObjectStore

TP = TopicPartition(UUID("6f1d2b7e-0000-4000-8000-00000000002a"), 7)
EMPTY = empty_manifest("flights", TP)

T = TypeVar("T")


# ── Virtual time ──


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Waiting costs nothing: whenever nobody can run, the clock jumps to the next timer."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Virtual seconds."""
        return self.now


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everybody waits for ever")
        self._loop.now += max(0.0, timeout)
        return super().select(0)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run *main* in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def now_ms() -> int:
    """The virtual clock."""
    return int(asyncio.get_running_loop().time() * 1000)


class UnreliableStore:
    """A store behind a network: late, refusing, losing requests, answers, or both.

    A request whose answer is lost may arrive long after its sender has given it up.
    """

    def __init__(self, behind: ObjectStore, rng: random.Random, unreliability: float) -> None:
        self.behind = behind
        self.rng = rng
        self.unreliability = unreliability
        self.late: list[Coroutine[Any, Any, object]] = []
        self.created: list[str] = []

    async def _travel(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            await asyncio.sleep(self.rng.random() * 0.1)
        except asyncio.CancelledError:
            self.late.append(call)  # its sender gave up, and it travels on
            raise
        fate = self.rng.random() / self.unreliability if self.unreliability else 1.0
        if fate < 0.25:
            call.close()
            raise UnavailableError("503")
        if fate < 0.5:
            call.close()
            raise OutcomeUnknownError("the request was lost")
        if fate < 0.75:
            self.late.append(call)
            raise OutcomeUnknownError("the request is late")
        answer = await call
        if fate < 1.0:
            raise OutcomeUnknownError("the answer was lost")
        await asyncio.sleep(self.rng.random() * 0.1)
        return answer

    async def deliver_one_late(self) -> None:
        """Let a random late request arrive."""
        if self.late:
            call = self.late.pop(self.rng.randrange(len(self.late)))
            await asyncio.gather(call, return_exceptions=True)

    async def put(self, key: str, body: Sequence[Buffer]) -> None:
        raise AssertionError("manifests and lists are created")

    async def create(self, key: str, body: Sequence[Buffer]) -> None:
        self.created.append(key)
        await self._travel(self.behind.create(key, body))

    async def get(self, key: str, start: int = 0, end: int | None = None) -> Buffer:
        return await self._travel(self.behind.get(key, start, end))

    async def stat(self, key: str) -> ObjectInfo:
        return await self._travel(self.behind.stat(key))

    async def list(
        self, prefix: str, *, start_after: str = "", page_size: int = 1000
    ) -> AsyncIterator[Listing]:
        async for page in self.behind.list(prefix, start_after=start_after, page_size=page_size):
            yield page

    async def delete(self, keys: Sequence[str]) -> None:
        raise AssertionError("an editor deletes nothing")

    async def close(self) -> None:
        """Nothing."""


# ── Edits ──


def segment(base: int, end: int, nonce: str = "a", max_timestamp_ms: int = -1) -> SegmentRef:
    """A segment of one record per offset."""
    return SegmentRef(
        key=layout.segment_key("flights", TP, base, end, nonce),
        base=base,
        end=end,
        size_bytes=100,
        records=end - base,
        raw_bytes=1_000,
        min_timestamp_ms=max_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
    )


def add(*segments: SegmentRef) -> AddSegments:
    """An edit that adds neighbours."""
    return AddSegments(
        base=segments[0].base,
        end=segments[-1].end,
        segments=segments,
        leader_epochs=(LeaderEpoch(0, segments[0].base),),
        producers=None,
    )


async def commit(store: ObjectStore, manifest: Manifest, edit: Edit, nonce: str) -> Manifest:
    """`commit_edit` with a minute for it."""
    return await commit_edit(
        store,
        manifest,
        edit,
        nonce,
        author=AUTHOR,
        read_at_ms=now_ms(),
        deadline_ms=now_ms() + 60_000,
        now_ms=now_ms,
    )


async def named(store: ObjectStore, manifest: Manifest) -> list[SegmentRef]:
    """The segments that *manifest* names."""
    return [found async for found in iter_segments(store, manifest)]


def test_there_is_no_manifest_before_the_first_edit() -> None:
    """
    A partition without segments has nothing in the bucket, and that is no damage.
    """

    async def main() -> tuple[Manifest | None, Manifest]:
        store = MemoryObjectStore(now_ms)
        return await load_newest(store, "flights", TP), await load_at_least(store, "flights", TP, 0)

    assert (None, EMPTY) == run(main())


def test_the_newest_version_is_found() -> None:
    """
    Of twelve versions the last is loaded, with one listed key.
    """

    async def main() -> tuple[Manifest, Manifest | None]:
        store = MemoryObjectStore(now_ms)
        manifest = EMPTY
        for i in range(12):
            manifest = await commit(store, manifest, add(segment(i, i + 1)), f"n{i}")
        return manifest, await load_newest(store, "flights", TP)

    committed, found = run(main())

    assert committed == found
    assert 12 == committed.version


def test_a_loser_applies_its_edit_to_what_won() -> None:
    """
    An editor that is two versions behind commits on top of them, and undoes nothing.
    """

    async def main() -> Manifest:
        store = MemoryObjectStore(now_ms)
        first = await commit(store, EMPTY, add(segment(0, 10)), "a")
        second = await commit(store, first, add(segment(10, 20)), "b")
        await commit(store, second, add(segment(20, 30)), "c")
        return await commit(store, first, SetLogStart(10), "d")

    manifest = run(main())

    assert (4, 10, 30, (segment(10, 20), segment(20, 30))) == (
        manifest.version,
        manifest.log_start,
        manifest.end,
        manifest.segments,
    )


def test_a_listing_that_is_behind_proves_no_absence() -> None:
    """
    The version that the metadata store names is asked for itself; what is missing is told as that.
    """

    class Behind(MemoryObjectStore):
        """Its listings show nothing."""

        async def list(
            self, prefix: str, *, start_after: str = "", page_size: int = 1000
        ) -> AsyncIterator[Listing]:
            yield Listing((), 0)

    async def main() -> Manifest:
        store = Behind(now_ms)
        first = await commit(store, EMPTY, add(segment(0, 10)), "a")
        found = await load_at_least(store, first.topic, first.tp, 1)
        with pytest.raises(MissingManifestError) as caught:
            await load_at_least(store, first.topic, first.tp, 2)
        assert layout.manifest_key(first.topic, first.tp, 2) == caught.value.key
        return found

    assert 10 == run(main()).end


def test_of_two_sealers_of_one_range_one_is_void() -> None:
    """
    The second leader that seals the same offsets learns it, and who won.
    """

    async def main() -> VoidEditError:
        store = MemoryObjectStore(now_ms)
        await commit(store, EMPTY, add(segment(0, 10, "a")), "a")
        with pytest.raises(VoidEditError) as caught:
            await commit(store, EMPTY, add(segment(0, 10, "b")), "b")
        return caught.value

    assert (segment(0, 10, "a"),) == run(main()).manifest.segments


def test_an_edit_is_void_only_if_the_newest_version_says_so() -> None:
    """
    An edit that fits a later version than the one its editor holds is committed on that.
    """

    async def main() -> Manifest:
        store = MemoryObjectStore(now_ms)
        first = await commit(store, EMPTY, add(segment(0, 10)), "a")
        await commit(store, first, add(segment(10, 20)), "b")
        return await commit(store, first, add(segment(20, 30)), "c")

    assert 30 == run(main()).end


def test_exists_with_my_own_nonce_is_success() -> None:
    """
    The answer to a create was lost and others have committed since: the edit is found, not
    made again, and not taken for void.
    """

    async def main() -> tuple[Manifest, Manifest, Manifest | None]:
        store = MemoryObjectStore(now_ms)
        edit = AddSegments(base=0, end=10, segments=(), leader_epochs=(), producers=None)
        lost = await commit(store, EMPTY, edit, "mine")
        await commit(store, lost, add(segment(10, 20)), "theirs")
        again = await commit(store, EMPTY, edit, "mine")
        return lost, again, await load_newest(store, "flights", TP)

    lost, again, newest = run(main())

    assert lost == again
    assert newest is not None
    assert 2 == newest.version


def test_an_edit_that_is_there_already_is_not_committed_twice() -> None:
    """
    Whoever repeats an edit from a newer manifest, under whatever nonce, adds no version.
    """

    async def main() -> tuple[Manifest, Manifest]:
        store = MemoryObjectStore(now_ms)
        first = await commit(store, EMPTY, add(segment(0, 10)), "a")
        second = await commit(store, first, add(segment(10, 20)), "b")
        return second, await commit(store, second, add(segment(0, 10)), "c")

    second, again = run(main())

    assert second == again


def test_another_clusters_author_is_told_to_stop() -> None:
    """
    It is not a void edit, after which a sealer adopts the newest manifest and goes on.
    """

    async def main() -> None:
        store = MemoryObjectStore(now_ms)
        await commit(store, EMPTY, add(segment(0, 10)), "a")
        await commit_edit(
            store,
            EMPTY,
            add(segment(0, 10)),
            "b",
            author=Cluster("another", 1),
            read_at_ms=0,
            deadline_ms=now_ms() + 60_000,
            now_ms=now_ms,
        )

    with pytest.raises(OtherClusterError, match="another"):
        run(main())


def test_an_old_manifest_is_refused() -> None:
    """
    Its successor may have been collected, and then "if none exists" protects nothing.
    """

    async def main() -> None:
        await asyncio.sleep(Grace().named_within_ms / 1000 + 1)
        await commit_edit(
            MemoryObjectStore(now_ms),
            EMPTY,
            SetLogStart(0),
            "a",
            author=AUTHOR,
            read_at_ms=0,
            deadline_ms=now_ms() + 60_000,
            now_ms=now_ms,
        )

    with pytest.raises(StaleManifestError):
        run(main())


class DownStore(MemoryObjectStore):
    """Reads work; every create fails as it is told to."""

    error: Exception = UnavailableError("503")
    only: str = ""

    async def create(self, key: str, body: Sequence[Buffer]) -> None:
        """Fail."""
        if self.only in key:
            raise self.error
        await super().create(key, body)


@pytest.mark.parametrize(
    ("only", "error", "expected"),
    [
        ("/manifest/", OutcomeUnknownError("reset"), OutcomeUnknownError),
        ("/manifest-lists/", OutcomeUnknownError("reset"), UnavailableError),
    ],
)
def test_a_deadline_says_whether_it_may_have_happened(
    only: str, error: Exception, expected: type[Exception]
) -> None:
    """
    Only a manifest that was sent may have been committed; a list is nothing without it.
    """

    async def main() -> int:
        store = DownStore(now_ms)
        store.only, store.error = only, error
        segments = [segment(i, i + 1) for i in range(1_001)]
        with pytest.raises(expected):
            await commit(store, EMPTY, add(*segments), "a")
        return now_ms()

    assert 50_000 < run(main()) <= 60_000


class SuspendedStore(MemoryObjectStore):
    """The process is suspended when it has the answer to a create."""

    suspended_ms = 0
    keys: tuple[str, ...] = ()

    async def create(self, key: str, body: Sequence[Buffer]) -> None:
        """Answer."""
        await super().create(key, body)
        self.keys += (key,)
        self.suspended_ms += Grace().ms


def test_no_request_begins_after_the_deadline() -> None:
    """
    The collector has deleted the objects that the edit would add, where the process was suspended
    between the PUT of a list and that of the manifest.
    """

    async def main() -> tuple[str, ...]:
        store = SuspendedStore(now_ms)
        segments = [segment(i, i + 1) for i in range(1_001)]
        with pytest.raises(OutcomeUnknownError, match="deadline"):
            await commit_edit(
                store,
                EMPTY,
                add(*segments),
                "a",
                author=AUTHOR,
                read_at_ms=now_ms(),
                deadline_ms=now_ms() + 60_000,
                now_ms=lambda: now_ms() + store.suspended_ms,
            )
        return store.keys

    (only,) = run(main())
    assert "/manifest-lists/" in only


def test_lost_manifests_are_told() -> None:
    """
    The metadata store names a version that the bucket does not have: damage, not an empty log.
    """

    async def main() -> None:
        store = MemoryObjectStore(now_ms)
        await commit(store, EMPTY, add(segment(0, 10)), "a")
        await load_at_least(store, "flights", TP, 2)

    with pytest.raises(CorruptManifestError, match="missing"):
        run(main())


def test_strange_objects_before_the_newest_manifest_hide_nothing() -> None:
    """
    They are told, passed over, and cost one LIST; where there is no manifest behind them, there is
    none.
    """

    async def main() -> None:
        store = MemoryObjectStore(now_ms)
        prefix = layout.manifest_prefix("flights", TP)
        strange = [f"{prefix}.DS_Store", *(f"{prefix}-{n:04d}" for n in range(1_500))]
        for key in strange:
            await store.put(key, [b""])
        told: list[str] = []
        nothing = await load_newest(store, "flights", TP, told.append)
        assert (None, sorted(strange)) == (nothing, told)
        assert await load_at_least(store, "flights", TP, 0) == EMPTY
        for version in (1, 2):
            body = encode_manifest(replace(EMPTY, version=version, nonce="a"))
            await store.put(layout.manifest_key("flights", TP, version), [body])
        await store.put(f"{prefix}zzz", [b""])
        told.clear()

        newest = await load_newest(store, "flights", TP, told.append)

        assert newest is not None
        assert (2, sorted(strange)) == (newest.version, told)
        assert newest == await load_at_least(store, "flights", TP, 2)

    run(main())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        encode_manifest(replace(EMPTY, version=1, nonce="a"))[:-5],
        encode_manifest(replace(EMPTY, version=2, nonce="a")),
        encode_manifest(replace(EMPTY, version=1, nonce="a", topic="other")),
    ],
)
def test_a_damaged_manifest_is_named(body: bytes) -> None:
    """
    Cut, empty, or under another's key: the error names the object.
    """

    async def main() -> None:
        store = MemoryObjectStore(now_ms)
        await store.put(layout.manifest_key("flights", TP, 1), [body])
        await load_newest(store, "flights", TP)

    with pytest.raises(CorruptManifestError, match=r"manifest/9{19}8\.json"):
        run(main())


def test_a_missing_list_is_named() -> None:
    """
    Who follows the tree to a list that is gone is told which, and skips nothing silently.
    """

    async def main() -> None:
        store = MemoryObjectStore(now_ms)
        segments = [segment(i, i + 1) for i in range(1_001)]
        manifest = await commit(store, EMPTY, add(*segments), "a")
        await store.delete([manifest.lists[0].key])
        await named(store, manifest)

    with pytest.raises(CorruptManifestError, match=r"manifest-lists/.*missing"):
        run(main())


def test_segments_are_found_by_offset_and_by_time() -> None:
    """
    Ranges and predicates prune the tree: the same segments as from a plain list.
    """
    segments = [segment(2 * i, 2 * i + 1, max_timestamp_ms=i % 700) for i in range(2_500)]

    async def main() -> tuple[list[SegmentRef], list[SegmentRef]]:
        store = MemoryObjectStore(now_ms)
        manifest = await commit(store, EMPTY, add(*segments), "a")
        by_offset = [s async for s in iter_segments(store, manifest, 901, 1_004)]
        late = iter_segments(store, manifest, keep=lambda e: e.max_timestamp_ms >= 698)
        by_time = [s async for s in late]
        return by_offset, by_time

    by_offset, by_time = run(main())

    assert segments[451:502] == by_offset
    assert [s for s in segments if s.max_timestamp_ms >= 698] == by_time


# ── Every schedule ──


@dataclass
class World:
    """Editors of one partition that share a bucket and nothing else."""

    seed: int
    unreliability: float
    outcomes: dict[str, tuple[Edit, Manifest | Exception]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.bucket = MemoryObjectStore(now_ms)
        self.store = UnreliableStore(self.bucket, self.rng, self.unreliability)

    async def run(self) -> None:
        """Two sealers of the same range, a compactor and a retention job, then late requests."""
        async with asyncio.TaskGroup() as editors:
            for name in ("sealer", "rival", "compactor", "retention"):
                editors.create_task(self._edit(name))
            editors.create_task(self._deliver())
        while self.store.late:
            await self.store.deliver_one_late()

    async def _deliver(self) -> None:
        for _ in range(100):
            await asyncio.sleep(self.rng.random())
            await self.store.deliver_one_late()

    async def _edit(self, name: str) -> None:
        manifest = EMPTY
        read_at_ms = now_ms()
        for i in range(12):
            nonce = f"{name}{i}"
            edit = self._next_edit(name, nonce, manifest)
            deadline_ms = now_ms() + self.rng.choice((300, 3_000, 600_000))
            started_at_ms = now_ms()
            try:
                manifest = await commit_edit(
                    self.store,
                    manifest,
                    edit,
                    nonce,
                    author=AUTHOR,
                    read_at_ms=read_at_ms,
                    deadline_ms=deadline_ms,
                    now_ms=now_ms,
                )
                read_at_ms = started_at_ms
                self.outcomes[nonce] = edit, manifest
            except (VoidEditError, UnavailableError, OutcomeUnknownError) as error:
                self.outcomes[nonce] = edit, error
                newest = await load_newest(self.bucket, "flights", TP)
                manifest, read_at_ms = newest or EMPTY, started_at_ms

    def _next_edit(self, name: str, nonce: str, manifest: Manifest) -> Edit:
        match name:
            case "sealer" | "rival":
                # Many in one go, so that lists are spilled under faults as well.
                end = manifest.end + self.rng.choice((1, 2, 400))
                return add(*(segment(i, i + 1, nonce) for i in range(manifest.end, end)))
            case "compactor" if len(manifest.segments) > 1:
                at = self.rng.randrange(len(manifest.segments) - 1)
                replaced = manifest.segments[at : at + 2]
                merged = segment(replaced[0].base, replaced[1].end, nonce)
                return ReplaceSegments(replaced=replaced, added=(merged,))
            case _:
                return SetLogStart(min(manifest.end, manifest.log_start + self.rng.randrange(3)))

    async def versions(self) -> list[Manifest]:
        """Every version that was ever committed, in order."""
        newest = await load_newest(self.bucket, "flights", TP)
        found = []
        if newest is not None:
            for version in range(1, newest.version + 1):
                body = await self.bucket.get(layout.manifest_key("flights", TP, version))
                found.append(decode_manifest(body))
        return found


@pytest.mark.parametrize("seed", range(24))
def test_every_edit_happens_once_or_not_at_all_and_its_editor_is_told_the_truth(seed: int) -> None:
    """
    Four editors race while the store refuses, loses and delays: what was reported committed
    is that version, what was reported void or unavailable is in none, and every version
    names its log from log start to end without a gap, through lists that are all there.
    """
    world = World(seed, unreliability=random.Random(seed).choice((0.0, 0.1, 0.4)))

    async def main() -> tuple[list[Manifest], dict[int, list[SegmentRef]]]:
        await world.run()
        versions = await world.versions()
        return versions, {v.version: await named(world.bucket, v) for v in versions}

    versions, trees = run(main())
    by_nonce = {version.nonce: version for version in versions}

    assert len(by_nonce) == len(versions)
    for nonce, (edit, outcome) in world.outcomes.items():
        match outcome:
            case VoidEditError() | UnavailableError():
                assert nonce not in by_nonce
            case Manifest() if nonce in by_nonce or not isinstance(edit, SetLogStart):
                assert by_nonce[nonce] == outcome
    for version in versions:
        covered = [o for s in trees[version.version] for o in range(s.base, s.end)]
        first = covered[0] if covered else version.end
        assert list(range(first, version.end)) == covered
        assert first <= version.log_start
        assert all(s.end > version.log_start for s in trees[version.version])


def test_a_list_of_another_attempt_has_another_name() -> None:
    """
    An edit that is applied again to another version never writes other contents under a name.
    """

    async def main() -> list[str]:
        store = UnreliableStore(MemoryObjectStore(now_ms), random.Random(1), 0.0)
        segments = [segment(i, i + 1) for i in range(1_001)]
        first = await commit(store, EMPTY, add(*segments), "a")
        await commit(store, first, SetLogStart(1), "b")
        edit = ReplaceSegments(replaced=tuple(segments[5:7]), added=(segment(5, 7, "c"),))
        await commit(store, first, edit, "c")
        return [key for key in store.created if "manifest-lists" in key and "-c." in key]

    keys = [layout.parse_segment_list_key(key) for key in run(main())]

    assert [(2, 0, 500), (3, 0, 500)] == [(key.version, key.base, key.end) for key in keys]
