"""Manifests in the bucket: find the newest, commit an edit, follow the tree of lists.

    commit_edit ──▶ apply ──▶ create lists ──▶ create manifest v + 1 ──▶ the new manifest
                     ▲                               │ exists: read it
                     │                               ├─ my nonce ──▶ my lost attempt was taken
                     └── the newest after it ◀───────┘ another's

1. A manifest version is created with "if none exists", so of any number of editors one wins
   each version, and a version is never overwritten.
2. A lost answer is repeated under the same name with the same nonce.  "Exists" with my nonce is
   success, whatever was committed after it; "exists" with another nonce means that my
   attempt did not happen and never will, late copies included.
3. A loser applies its edit again to what won, or learns that it is void.  It deletes nothing:
   its lists may be those of an attempt that won and whose answer was lost.
4. Lists are stored before the manifest that names them.
5. No edit is based on a manifest that was read more than grace / 2 ago: the collector removes
   versions after their grace, and then "if none exists" protects nothing.

Shell.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.schema.model import Cluster, TopicPartition
from driftlog_metadata.stores.errors import FencedError, OutcomeUnknownError, UnavailableError
from driftlog_tiering.formats import layout
from driftlog_tiering.formats.manifest import (
    Edit,
    Manifest,
    SegmentList,
    SegmentListRef,
    SegmentRef,
    empty_manifest,
    overlaps,
)
from driftlog_tiering.formats.manifest_codec import (
    CorruptManifestError,
    decode_manifest,
    decode_segment_list,
    encode_manifest,
    encode_segment_list,
)
from driftlog_tiering.formats.manifest_edits import (
    AlreadyApplied,
    Applied,
    NeedsLists,
    OtherCluster,
    Void,
    apply,
)
from driftlog_tiering.foundation.types import Buffer
from driftlog_tiering.stores.object_keys import MAX_PAGE_SIZE
from driftlog_tiering.stores.object_store import AlreadyExistsError, NotFoundError, ObjectStore

ATTEMPT_TIMEOUT_MS: Final = 10_000
"""After this an answer counts as lost.  Shorter: more repeats; longer: a dead peer costs more."""

_FIRST_BACKOFF_MS: Final = 50
_MAX_BACKOFF_MS: Final = 2_000

_T = TypeVar("_T")


class VoidEditError(FencedError):
    """The edit does not apply to the newest manifest: nothing of it was or will be committed.

    ``manifest`` is that newest one.
    """

    def __init__(self, reason: str, manifest: Manifest) -> None:
        super().__init__(f"{manifest.key}: {reason}")
        self.manifest = manifest


class OtherClusterError(FencedError):
    """The newest manifest is another cluster's: the author commits nothing any more, and stops."""


class MissingManifestError(CorruptManifestError):
    """A named manifest or list is not in the bucket: lost, or invisible for a moment."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key = key


class StaleManifestError(UnavailableError):
    """The manifest was read too long ago to base an edit on: read it again; use a new nonce."""


def _pass_over(_: str) -> None:
    """Ignore an unrecognised object."""


async def newest_version(
    store: ObjectStore,
    topic: str,
    tp: TopicPartition,
    strange: Callable[[str], object] = _pass_over,
) -> int | None:
    """Version of the newest manifest, None before the first: one LIST of one key.

    *strange* receives the key of each object before it that is no manifest.  Such an object hides
    no manifest, and costs one more LIST, of a thousand keys.
    """
    prefix, after = layout.manifest_prefix(topic, tp), ""
    for page_size in (1, MAX_PAGE_SIZE):
        async for page in store.list(prefix, start_after=after, page_size=page_size):
            for info in page.objects:
                try:
                    return layout.parse_manifest_key(info.key).version
                except ValueError:
                    strange(info.key)
                    after = info.key
            if page_size == 1:
                break
        if not after:
            break
    return None


async def load_newest(
    store: ObjectStore,
    topic: str,
    tp: TopicPartition,
    strange: Callable[[str], object] = _pass_over,
) -> Manifest | None:
    """The newest manifest, None before the first: one LIST of one key and one GET.

    *strange*: see `newest_version`.

    Raises:
        MissingManifestError: a LIST shows it, a GET does not.
        CorruptManifestError: it is damaged, or another partition's.
    """
    version = await newest_version(store, topic, tp, strange)
    if version is None:
        return None
    manifest = await load_version(store, topic, tp, version)
    if manifest is None:
        key = layout.manifest_key(topic, tp, version)
        raise MissingManifestError(key, "missing: listed, but not there")
    return manifest


async def load_at_least(
    store: ObjectStore,
    topic: str,
    tp: TopicPartition,
    version: int,
    strange: Callable[[str], object] = _pass_over,
) -> Manifest:
    """The newest manifest, at least *version*, which is the metadata store's.

    With version 0 there may be no manifest: then this is the empty one.  *strange*: see
    `newest_version`.

    Raises:
        MissingManifestError: neither a LIST nor a GET shows it.
        CorruptManifestError: it is damaged.
    """
    newest = await load_newest(store, topic, tp, strange) or empty_manifest(topic, tp)
    if newest.version >= version:
        return newest
    # A LIST proves no absence: the key is known, so GET the object itself.
    named = await load_version(store, topic, tp, version)
    if named is None:
        raise MissingManifestError(
            layout.manifest_key(topic, tp, version),
            f"missing; the newest manifest there is version {newest.version}",
        )
    return named


async def load_following(store: ObjectStore, manifest: Manifest) -> Manifest | None:
    """The version after *manifest*, by its key; None: there is none (yet).

    Raises:
        CorruptManifestError: it is damaged.
    """
    return await load_version(store, manifest.topic, manifest.tp, manifest.version + 1)


async def commit_edit(
    store: ObjectStore,
    manifest: Manifest,
    edit: Edit,
    nonce: str,
    *,
    author: Cluster,
    read_at_ms: int,
    deadline_ms: int,
    now_ms: Callable[[], int],
    wanted: Callable[[], bool] = lambda: True,
    grace: Grace | None = None,
) -> Manifest:
    """Make *edit* part of the partition's manifest; return the version that it is part of.

    May be repeated, with the same arguments, after an unknown outcome.  *manifest* is the newest
    that the caller knows (`empty_manifest` before the first), and *read_at_ms* when the read or
    commit that gave it was begun; *nonce* is of this edit and of no other, ``[0-9A-Za-z]{1,64}``.
    *author*: the cluster that edits, at its present level.
    Failed requests are repeated until *deadline_ms*, and while the edit is *wanted*: no request
    begins after that.  *now_ms* is a clock that counts suspended time.  *grace* is the cluster's;
    None: the default.  The caller ensures that the PUTs of the objects that the edit adds began
    less than grace / 2 ago.

    Raises:
        VoidEditError: it does not apply to the newest manifest, and nothing was committed.
        OtherClusterError: the partition is another cluster's.
        UnavailableError: the deadline passed, or it is not wanted, and nothing was committed.
        OutcomeUnknownError: the same, but it may have been committed.
        StaleManifestError: *manifest* was read more than grace / 2 ago.
        CorruptManifestError: a manifest or list that is needed is damaged or missing.
    """
    stale_at_ms = read_at_ms + (grace or Grace()).named_within_ms
    if now_ms() > stale_at_ms:
        raise StaleManifestError(f"{manifest.key}: read more than grace / 2 ago")
    editor = _Editor(store, edit, nonce, author, min(deadline_ms, stale_at_ms), now_ms, wanted)
    return await editor.commit(manifest)


async def iter_segments(
    store: ObjectStore,
    manifest: Manifest,
    base: int = 0,
    end: int | None = None,
    *,
    keep: Callable[[SegmentRef | SegmentListRef], bool] = lambda _: True,
) -> AsyncIterator[SegmentRef]:
    """The segments that hold offsets of ``[base, end)``, ascending; None: to the manifest's end.

    Segments below log start are left out.  *keep* prunes: an entry that it refuses is
    skipped, a list with everything under it (so it must be true of a list if it
    could be of a segment in it: ``lambda e: e.max_timestamp_ms >= t``).

    Raises:
        CorruptManifestError: a list is damaged or missing.
    """
    base = max(base, manifest.log_start)
    end = manifest.end if end is None else end
    pending: list[SegmentRef | SegmentListRef] = [*manifest.lists, *manifest.segments]
    pending.reverse()
    while pending:
        entry = pending.pop()
        if not overlaps(entry, base, end) or not keep(entry):
            continue
        if isinstance(entry, SegmentRef):
            yield entry
        else:
            content = await load_list(store, entry)
            pending.extend(reversed((*content.lists, *content.segments)))


async def load_list(store: ObjectStore, ref: SegmentListRef) -> SegmentList:
    """Read one list object.  It never changes, so it may be cached under its key.

    Raises:
        CorruptManifestError: it is damaged or missing.
    """
    try:
        body = await store.get(ref.key)
    except NotFoundError as error:
        raise MissingManifestError(ref.key, "missing") from error
    return decode_segment_list(body, ref)


async def load_version(
    store: ObjectStore, topic: str, tp: TopicPartition, version: int
) -> Manifest | None:
    """One version; None: it is not there.

    Raises:
        CorruptManifestError: it is damaged, or another partition's.
    """
    key = layout.manifest_key(topic, tp, version)
    try:
        body = await store.get(key)
    except NotFoundError:
        return None
    return decode_version(body, topic, tp, version)


def decode_version(body: Buffer, topic: str, tp: TopicPartition, version: int) -> Manifest:
    """The version of which *body* is the object.

    Raises:
        CorruptManifestError: it is damaged, or another one's.
    """
    key = layout.manifest_key(topic, tp, version)
    try:
        manifest = decode_manifest(body)
    except CorruptManifestError as error:
        raise CorruptManifestError(f"{key}: {error}") from error
    if (manifest.topic, manifest.tp, manifest.version) != (topic, tp, version):
        raise CorruptManifestError(f"{key}: it is the manifest of {manifest.key}")
    return manifest


class _Editor:
    """One `commit_edit`."""

    def __init__(
        self,
        store: ObjectStore,
        edit: Edit,
        nonce: str,
        author: Cluster,
        deadline_ms: int,
        now_ms: Callable[[], int],
        wanted: Callable[[], bool],
    ) -> None:
        self._store = store
        self._edit = edit
        self._nonce = nonce
        self._author = author
        self._deadline_ms = deadline_ms
        self._now_ms = now_ms
        self._wanted = wanted
        self._lists: dict[str, SegmentList] = {}
        self._may_have_happened = False

    async def commit(self, manifest: Manifest) -> Manifest:
        while manifest.nonce != self._nonce:
            step = await self._apply(manifest)
            match step:
                case AlreadyApplied():
                    return manifest
                case Applied():
                    if await self._create(step):
                        return step.manifest
                    winner = await self._repeat(self._load_winner, manifest)
                    self._may_have_happened = False  # The winner is my attempt, or mine failed.
                    manifest = await self._catch_up(winner)
                case OtherCluster():
                    raise OtherClusterError(
                        f"{manifest.key} is of cluster {step.cluster_id}, and the edit of "
                        f"{self._author.cluster_id}: the bucket has another cluster's log"
                    )
                case Void():
                    newest = await self._catch_up(manifest)
                    if newest is manifest:
                        raise VoidEditError(step.reason, manifest)
                    manifest = newest
        return manifest

    async def _apply(self, manifest: Manifest) -> Applied | AlreadyApplied | Void | OtherCluster:
        while True:
            step = apply(manifest, self._edit, self._nonce, self._author, self._lists)
            if not isinstance(step, NeedsLists):
                return step
            for ref in step.refs:
                self._lists[ref.key] = await self._repeat(load_list, self._store, ref)

    async def _create(self, step: Applied) -> bool:
        """Store the lists, then the manifest; False: one of its name exists, another's or mine."""
        manifest = step.manifest
        for key, content in step.lists.items():
            body = encode_segment_list(manifest, content)
            # An existing list is my own lost attempt's: its content is a function of its name.
            await self._repeat(self._create_object, key, body)
        self._may_have_happened = True
        return await self._repeat(self._create_object, manifest.key, encode_manifest(manifest))

    async def _create_object(self, key: str, body: bytes) -> bool:
        try:
            await self._store.create(key, [body])
        except AlreadyExistsError:
            return False
        return True

    async def _load_winner(self, manifest: Manifest) -> Manifest:
        winner = await self._load_next(manifest)
        if winner is None:
            raise UnavailableError(f"the version after {manifest.key} exists, and is not found")
        return winner

    async def _load_next(self, manifest: Manifest) -> Manifest | None:
        return await load_following(self._store, manifest)

    async def _catch_up(self, manifest: Manifest) -> Manifest:
        """The newest version, or the first from *manifest* on that is mine."""
        while manifest.nonce != self._nonce:
            following = await self._repeat(self._load_next, manifest)
            if following is None:
                break
            manifest = following
        return manifest

    async def _repeat(self, call: Callable[..., Awaitable[_T]], *args: object) -> _T:
        """Await ``call(*args)``, which is idempotent, until it is answered or the deadline."""
        backoff_ms = _FIRST_BACKOFF_MS
        while True:
            if not self._wanted():
                raise self._given_up("not wanted any more")
            left_ms = self._deadline_ms - self._now_ms()
            if left_ms <= 0:  # the process was suspended: a timeout of 0 still begins the request
                raise self._given_up("the deadline has passed")
            try:
                async with asyncio.timeout(min(ATTEMPT_TIMEOUT_MS, left_ms) / 1000):
                    return await call(*args)
            except (UnavailableError, OutcomeUnknownError, TimeoutError) as error:
                if self._now_ms() + backoff_ms >= self._deadline_ms:
                    raise self._given_up(repr(error)) from error
            await asyncio.sleep(backoff_ms / 1000)
            backoff_ms = min(2 * backoff_ms, _MAX_BACKOFF_MS)

    def _given_up(self, why: str) -> UnavailableError | OutcomeUnknownError:
        failed = OutcomeUnknownError if self._may_have_happened else UnavailableError
        return failed(f"manifest edit {self._nonce}: {why}")
