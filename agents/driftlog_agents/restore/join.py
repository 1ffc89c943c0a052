"""Joins the batches of one partition above its manifest: at each offset the highest leader epoch.

    possible objects ──batches──▶ by base offset, the highest epoch of each
    manifest's end ──▶ batch ──▶ batch ──▶ … the first offset without a batch

Batches are joined, and not objects: a rewrite and its originals hold the same batches, up to 60
objects share a sequence, and an object may hold batches of which only some are still needed.

An object that was never committed and is not refuted may stand at the end.  It loses against a
later leader: that one begins where everything committed before it ends.

Behind a gap nothing is joined.  The gap is a loss if all flushes before an object behind it were
committed: a leader's batches follow each other, and its first one follows everything committed.

Pure.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from driftlog_agents.restore.evidence import UnsealedObject
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats.flush_object import Footer

_EPOCH: Final = 2
_BASE: Final = 3
_LAST: Final = 4


class JoinedRun(NamedTuple):
    """Neighbouring batches ``[first, first + count)`` of one object."""

    object_key: str
    footer: Footer
    first: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which has no caller
    base: int
    end: int


class _Batch(NamedTuple):
    epoch: int
    place: tuple[int, int]
    source: int
    index: int  # type: ignore[assignment]  # shadows tuple.index, which has no caller
    end: int


class UnsealedBatches:
    """The batches of possible objects above the manifests of their partitions."""

    def __init__(self, objects: Iterable[UnsealedObject]) -> None:
        self._objects = list(objects)
        self._slices: dict[TopicPartition, list[tuple[int, int, int]]] = {}
        """Object, first batch and batch after the last."""
        for number, one in enumerate(self._objects):
            for s in one.footer.slices():
                tp = TopicPartition(s.topic_id, s.partition)
                self._slices.setdefault(tp, []).append((number, s.first, s.first + s.count))

    def join(self, tp: TopicPartition, start: int, epoch: int = -1) -> list[JoinedRun]:
        """The joined batches of *tp* from *start*, where its manifest ends, to the first gap.

        *epoch*: the manifest's newest; batches of older ones are in no log above it.
        """
        best = self._best(tp, start)
        runs: list[JoinedRun] = []
        at, source, index = start, -1, -1
        while (batch := best.pop(at, None)) is not None and batch.epoch >= epoch:
            epoch = batch.epoch
            if (batch.source, batch.index) == (source, index + 1):
                runs[-1] = runs[-1]._replace(count=runs[-1].count + 1, end=batch.end)
            else:
                one = self._objects[batch.source]
                runs.append(JoinedRun(one.object_key, one.footer, batch.index, 1, at, batch.end))
            at, source, index = batch.end, batch.source, batch.index
        return runs

    def first_behind_gap(
        self, tp: TopicPartition, start: int, epoch: int, runs: Sequence[JoinedRun]
    ) -> tuple[int, str] | None:
        """The first batch behind a loss above *runs*, and its object; None: there is none.

        *start*, *epoch*: as for `join`.
        """
        if runs:
            last = runs[-1]
            start, epoch = last.end, last.footer.columns[_EPOCH][last.first + last.count - 1]
        behind: list[tuple[int, str]] = []
        for source, first, stop in self._slices.get(tp, ()):
            one = self._objects[source]
            if not one.follows_committed:
                continue
            epochs, bases = one.footer.columns[_EPOCH], one.footer.columns[_BASE]
            behind += [
                (bases[index], one.object_key)
                for index in range(first, stop)
                if bases[index] > start and epochs[index] >= epoch
            ]
        return min(behind, default=None)

    def _best(self, tp: TopicPartition, start: int) -> dict[int, _Batch]:
        best: dict[int, _Batch] = {}
        for source, first, stop in self._slices.get(tp, ()):
            one = self._objects[source]
            epochs, bases, deltas = (one.footer.columns[n] for n in (_EPOCH, _BASE, _LAST))
            for index in range(first, stop):
                base = bases[index]
                if base < start:
                    continue
                batch = _Batch(epochs[index], one.place, source, index, base + deltas[index] + 1)
                known = best.get(base)
                if known is None or batch[:3] > known[:3]:
                    best[base] = batch
        return best
