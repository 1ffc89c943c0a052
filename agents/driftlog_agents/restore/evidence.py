"""What the footers of all flush objects prove: which objects were never committed.

    footers ──▶ by session: the last flush that was committed for sure
            ──▶ by partition: first offset of each leader epoch, largest end, log start
    final heads, epochs ──▶ refuted objects; all others are possible, and are served

No flush record is left, so it is not known which objects were committed.  Every acknowledged flush
is in the bucket.  Serving only what a later footer proves would lose the last flush of each
session.  So an object is served unless it is refuted:

1. its session has a final head below its sequence, and no footer proves that a later flush than
   the final head was committed (an agent on an old backup has put that head); or
2. it is not known to be committed, and has a record at or after the first offset of a later leader
   epoch: a leader begins where everything committed before it ends; or
3. an earlier flush of its session is refuted: a session commits in the order of sequences.

A flush is known to be committed if a footer of its session names it, or a later flush, as
committed, or a final head does.  Where the first offset of an epoch is not known, the first batch
of the epoch bounds it.  No rule asks that a session's earlier flushes are there: they may be
sealed, and collected.

Pure.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from driftlog_agents.log.session.producer_id_ranges import SeenProducerIds
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats.flush_object import NOT_KNOWN, Footer
from driftlog_tiering.formats.layout import FlushObjectKey
from driftlog_tiering.formats.manifest import Manifest

_EPOCH: Final = 2
_BASE: Final = 3
_LAST: Final = 4
_PRODUCER: Final = 6
"""Columns of a footer, by number."""

_NEVER: Final = 2**63 - 1


class Reach(NamedTuple):
    """How far the batches of one leader epoch reach in one object."""

    tp: TopicPartition
    epoch: int
    end: int


@dataclass(slots=True)
class PartitionFacts:
    """What all footers say of one partition, refuted objects included: their offsets were given
    out, and their epochs were led."""

    end: int = 0
    """Largest end of a slice, or of a sealed object."""
    leader_epoch: int = -1
    log_start: int = 0
    starts: dict[int, int] = field(default_factory=dict)
    """Leader epoch → an upper bound of its first offset."""

    def begins(self, epoch: int, offset: int) -> None:
        """Note that *epoch* begins at or below *offset*."""
        self.starts[epoch] = min(offset, self.starts.get(epoch, _NEVER))
        self.leader_epoch = max(self.leader_epoch, epoch)


class UnsealedObject(NamedTuple):
    """An object with a slice that ends above its partition's manifest."""

    object_key: str
    place: tuple[int, int]
    """Level and sequence: of equal batches those of the largest place are read."""
    footer: Footer
    follows_committed: bool = False
    """Whether all earlier flushes of its session are known to be committed."""


@dataclass(slots=True)
class _Object:
    key: str
    reaches: tuple[Reach, ...]


@dataclass(slots=True)
class _Session:
    committed: int = 0
    """Every flush up to it is known to be committed."""
    final_head: int = _NEVER
    objects: dict[int, list[_Object]] = field(default_factory=dict)
    """By sequence; those that are known to be committed are left out after `settle`."""


class FlushEvidence:
    """See the module.

    Args:
        manifests: the newest of each partition.
        restored: leader epochs that a restore has given to empty ranges: they begin where it joined
            nothing, and refute nothing.
        is_wanted: whether a partition is to be restored: only then are its batches kept.
    """

    def __init__(
        self,
        manifests: Mapping[TopicPartition, Manifest],
        restored: Collection[tuple[TopicPartition, int]] = (),
        is_wanted: Callable[[TopicPartition], bool] = lambda _: True,
    ) -> None:
        self._restored = restored
        self._is_wanted = is_wanted
        self._ends = {tp: manifest.end for tp, manifest in manifests.items()}
        self._sessions: dict[str, _Session] = {}
        self._unsealed: list[UnsealedObject] = []
        self.partitions: dict[TopicPartition, PartitionFacts] = {}
        self.topic_names: dict[bytes, str] = {}
        """Names of topics by the bytes of their ids, as far as footers have them."""
        self.producer_ids = SeenProducerIds()
        self.objects = 0
        for manifest in manifests.values():
            self.sealed(manifest)

    def sealed(self, manifest: Manifest) -> None:
        """Take in what a manifest proves."""
        facts = self.partitions.setdefault(manifest.tp, PartitionFacts())
        facts.log_start = max(facts.log_start, manifest.log_start)
        for entry in manifest.leader_epochs:
            if (manifest.tp, entry.epoch) in self._restored:
                facts.leader_epoch = max(facts.leader_epoch, entry.epoch)
            else:
                facts.begins(entry.epoch, entry.start_offset)

    def reached(self, tp: TopicPartition, end: int) -> None:
        """Sealed objects of the partition end at *end*, whatever its manifest says."""
        facts = self.partitions.setdefault(tp, PartitionFacts())
        facts.end = max(facts.end, end)

    def add(self, object_key: str, key: FlushObjectKey, footer: Footer) -> None:
        """Take in an object of the bucket."""
        self.objects += 1
        session = self._sessions.setdefault(key.session_id, _Session())
        session.committed = max(session.committed, footer.committed_seq)
        reaches: list[Reach] = []
        unsealed = False
        for tp, epoch, first, stop in _runs(footer):
            end = footer.columns[_BASE][stop - 1] + footer.columns[_LAST][stop - 1] + 1
            reaches.append(Reach(tp, epoch, end))
            unsealed |= end > self._ends.get(tp, 0) and self._is_wanted(tp)
            facts = self.partitions.setdefault(tp, PartitionFacts())
            facts.end = max(facts.end, end)
            facts.begins(epoch, footer.columns[_BASE][first])
            if footer.facts is None:
                continue
            start = footer.facts.epoch_starts[first]
            if start != NOT_KNOWN:
                facts.begins(epoch, start)
            facts.log_start = max(facts.log_start, *footer.facts.log_starts[first:stop])
        if footer.facts is not None:
            for topic_id, name in zip(footer.topic_ids, footer.facts.topic_names, strict=True):
                if name:
                    self.topic_names[topic_id.bytes] = name
        for producer_id in set(footer.columns[_PRODUCER]):
            self.producer_ids.saw(producer_id)
        session.objects.setdefault(key.seq, []).append(_Object(object_key, tuple(reaches)))
        if unsealed:
            self._unsealed.append(UnsealedObject(object_key, (key.level, key.seq), footer))

    def final_head(self, session_id: str, head: int) -> None:
        """The session's last committed flush was *head*."""
        session = self._sessions.setdefault(session_id, _Session())
        known = session.final_head
        session.final_head = head if known == _NEVER else max(known, head)
        session.committed = max(session.committed, head)

    def settle(self, session_id: str) -> None:
        """All objects of the session are added: what is known to be committed needs no proof."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.objects = {
                seq: objects for seq, objects in session.objects.items() if seq > session.committed
            }

    @property
    def sessions(self) -> int:
        """How many sessions have objects or final heads."""
        return len(self._sessions)

    def refuted(self) -> dict[str, str]:
        """The keys of refuted objects, and why they are."""
        limits = {tp: _Limits(facts.starts) for tp, facts in self.partitions.items()}
        found: dict[str, str] = {}
        for session_id in self._sessions:
            found.update(self._refuted_of(session_id, limits))
        return found

    def _refuted_of(
        self, session_id: str, limits: Mapping[TopicPartition, "_Limits"]
    ) -> Iterator[tuple[str, str]]:
        session = self._sessions[session_id]
        reason = ""
        for seq in sorted(session.objects):
            if seq <= session.committed:
                continue
            if session.committed <= session.final_head < seq:
                reason = reason or f"the session's last commit was flush {session.final_head}"
            for one in () if reason else session.objects[seq]:
                for tp, epoch, end in one.reaches:
                    start = limits[tp].first_after(epoch)
                    if end > start:
                        reason = (
                            f"flush {seq} reaches {end} of {tp.topic_id}/{tp.partition} in leader "
                            f"epoch {epoch}, and a later epoch begins at or below {start}"
                        )
            if reason:
                for one in session.objects[seq]:
                    yield one.key, reason

    def possible(self, refuted: Mapping[str, str]) -> list[UnsealedObject]:
        """The objects with unsealed slices that are not refuted."""
        return [
            one._replace(follows_committed=self._follows_committed(one))
            for one in self._unsealed
            if one.object_key not in refuted
        ]

    def _follows_committed(self, one: UnsealedObject) -> bool:
        _, seq = one.place
        return seq <= self._sessions[one.footer.session_id].committed + 1


def _runs(footer: Footer) -> Iterator[tuple[TopicPartition, int, int, int]]:
    """(partition, leader epoch, first batch, batch after the last) of each run of one epoch."""
    topics, partitions, epochs = footer.columns[:3]
    first = 0
    places = zip(topics, partitions, epochs, strict=True)
    for (topic, partition, epoch), run in groupby(places):
        stop = first + sum(1 for _ in run)
        yield TopicPartition(footer.topic_ids[topic], partition), epoch, first, stop
        first = stop


class _Limits:
    """Where later epochs begin: for an epoch, the smallest first offset of those above it."""

    def __init__(self, starts: Mapping[int, int]) -> None:
        self._entries: list[tuple[int, int]] = []
        """(epoch, smallest first offset from it on), descending by epoch."""
        least = _NEVER
        for epoch in sorted(starts, reverse=True):
            least = min(least, starts[epoch])
            self._entries.append((epoch, least))

    def first_after(self, epoch: int) -> int:
        least = _NEVER
        for known, start in self._entries:
            if known <= epoch:
                break
            least = start
        return least
