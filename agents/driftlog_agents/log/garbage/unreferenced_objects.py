"""Which flush objects are garbage: the collector remembers since when it has seen them unnamed.

Flush objects become garbage nearly in the order in which they were written, so the collector
remembers runs of neighbours in a listing: a few numbers for hundreds of thousands of keys.

    listing   a1 a2 a3 a4 a5 a6      named: a3
    runs      [a1, a2] since 5       [a4, a6] since 9

Stored as JSON in the agent's directory (``garbage.json``), times in ms of the store's clock:

    {"v":1,"seen_ms":n,"runs":[[first key,last key,since],…],"topics":{topic id:since,…}}

``topics``: since when only its mark was left of a deleted topic.

Pure.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from driftlog_agents.log.garbage.common.garbage_objects import (
    Garbage,
    GarbageReason,
    SessionObjects,
)
from driftlog_metadata.schema.grace import Grace
from driftlog_metadata.stores.errors import CorruptError
from driftlog_tiering.stores.object_store import ObjectInfo

HOUR_MS: Final = 3_600_000

_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSettings:
    """When garbage is deleted, and how much at once."""

    grace: Grace = field(default_factory=Grace)
    """The cluster's."""

    interval_ms: int = 900_000
    """Time between two passes, at most grace / 12.  Shorter: more LIST requests; the grace period
    stays the same."""

    max_gap_ms: int = 2 * HOUR_MS
    """After a longer time without a pass the grace period of every unnamed object begins again."""

    pause_ms: float = 50.0
    """Pause between two pages of a listing: other requests go first."""

    request_deadline_ms: float = 30_000.0

    retry_wait_ms: float = 1_000.0
    """Between two attempts of a request."""


@dataclass(frozen=True, slots=True)
class KeyRun:
    """Neighbours in a listing, *first* to *last* included; all unnamed since *since_ms*."""

    first: str
    last: str
    since_ms: int


@dataclass(slots=True)
class UnreferencedObjects:
    """The findings of earlier passes.  ``seen_ms``: time of the last pass."""

    seen_ms: int = 0
    runs: list[KeyRun] = field(default_factory=list)
    topics: dict[str, int] = field(default_factory=dict)

    def since(self, key: str) -> int | None:
        """Since when *key* is known to be unnamed."""
        i = bisect_right(self.runs, key, key=lambda run: run.first) - 1
        if i < 0 or key > self.runs[i].last:
            return None
        return self.runs[i].since_ms

    def encode(self) -> bytes:
        """The bytes of ``garbage.json``."""
        return json.dumps(
            {
                "v": _VERSION,
                "seen_ms": self.seen_ms,
                "runs": [[run.first, run.last, run.since_ms] for run in self.runs],
                "topics": self.topics,
            },
            separators=(",", ":"),
        ).encode()


def decode_sightings(data: bytes) -> UnreferencedObjects:
    """Inverts `UnreferencedObjects.encode`.

    Raises:
        CorruptError: damaged, or of a newer version; starting without it costs only time.
    """
    try:
        match json.loads(data):
            case {
                "v": 1,
                "seen_ms": int(seen_ms),
                "runs": list(runs),
                "topics": dict(topics),
            }:
                found = UnreferencedObjects(
                    seen_ms=seen_ms,
                    runs=[_run(run) for run in runs],
                    topics={str(name): int(since) for name, since in topics.items()},
                )
            case _:
                raise ValueError("not of version 1")
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptError(f"garbage.json: {error}") from error
    firsts = [run.first for run in found.runs]
    if firsts != sorted(firsts):
        raise CorruptError("garbage.json: runs that do not ascend")
    return found


def _run(run: object) -> KeyRun:
    match run:
        case [str(first), str(last), int(since_ms)] if first <= last:
            return KeyRun(first, last, since_ms)
        case _:
            raise ValueError(f"not a run: {run!r}")


class Pass:
    """One pass over all flush objects, in the order of their keys.

    Args:
        before: the findings of earlier passes.  Older than *max_gap_ms* when this one begins, they
            are ignored: an object may have been named meanwhile.
        restored_ms: what was put until then stays for a restore.
    """

    def __init__(
        self, before: UnreferencedObjects, restored_ms: float, *, grace_ms: int, max_gap_ms: int
    ) -> None:
        self._before = before
        self._counts: bool | None = None
        """Whether the findings before count; None: this pass has not seen a page."""
        self._restored_ms = restored_ms
        self._grace_ms = grace_ms
        self._max_gap_ms = max_gap_ms
        self._runs: list[KeyRun] = []
        self._joins = False
        self._has_flushes = ""
        """The last session that has an object beside its final head."""
        self._page: list[ObjectInfo] = []
        """Objects of the present page that the deletion of topics waits for."""
        self.oldest_flush_ms: int | None = None
        """When the oldest flush object was put that stays; None: there is none."""
        self.named_objects = 0
        self.unnamed_objects = 0

    def judged(self, objects: SessionObjects) -> SessionObjects:
        """The next *objects*, without those that stay for a restore."""
        kept, others = objects.split(self._restored_ms)
        if kept or others.flushes:
            self._has_flushes = objects.session_id
        self.named_objects += len(kept)
        self._page += kept + others.flushes
        return others

    def garbage(
        self, objects: Iterable[ObjectInfo], keep: Callable[[str], bool], now_ms: int
    ) -> list[Garbage]:
        """Returns those of the next *objects* that may be deleted; remembers every unnamed one.

        *keep*: whether the object of a key is named, or may still be.
        """
        gone: list[Garbage] = []
        for info in objects:
            if keep(info.key):
                self.named_objects += 1
                self._joins = False
                continue
            since_ms = self._since(info.key, now_ms)
            if since_ms is None:
                since_ms = now_ms
            if now_ms - since_ms >= self._grace_ms and now_ms - info.modified_ms >= self._grace_ms:
                gone.append(_unrecorded(info))
            self.unnamed_objects += 1
            self._remember(info.key, since_ms)
        return gone

    def unjudged(self, objects: Iterable[ObjectInfo], now_ms: int) -> None:
        """The next *objects* stay, and nobody knows whether they are named; what is remembered of
        them counts in the next pass."""
        for info in objects:
            self.named_objects += 1
            since_ms = self._since(info.key, now_ms)
            if since_ms is None:
                self._joins = False
            else:
                self._remember(info.key, since_ms)

    def _since(self, key: str, now_ms: int) -> int | None:
        if self._counts is None:
            self._counts = now_ms - self._before.seen_ms <= self._max_gap_ms
        return self._before.since(key) if self._counts else None

    def final_heads(self, judged: SessionObjects, now_ms: int) -> list[Garbage]:
        """The final heads that may be deleted: those of a session that has no other object."""
        if self._has_flushes == judged.session_id:
            return []
        heads = judged.final_heads
        return [_unrecorded(o) for o in heads if now_ms - o.modified_ms >= self._grace_ms]

    def end_page(self, deleted: Collection[str]) -> None:
        """The objects with *deleted* keys were deleted; the others of the page stay."""
        stay = [info.modified_ms for info in self._page if info.key not in deleted]
        if self.oldest_flush_ms is not None:
            stay.append(self.oldest_flush_ms)
        self.oldest_flush_ms = min(stay, default=None)
        self._page.clear()

    def _remember(self, key: str, since_ms: int) -> None:
        """Adds the key to a run, even if it is to be deleted: the delete may fail."""
        if self._joins and self._runs[-1].since_ms == since_ms:
            self._runs[-1] = KeyRun(self._runs[-1].first, key, since_ms)
        else:
            self._runs.append(KeyRun(key, key, since_ms))
        self._joins = True

    def end(self, now_ms: int) -> UnreferencedObjects:
        """The findings for the next pass; topics are unchanged."""
        return UnreferencedObjects(now_ms, self._runs, dict(self._before.topics))


def _unrecorded(info: ObjectInfo) -> Garbage:
    return Garbage(info.key, info.size_bytes, GarbageReason.NO_RECORD)
