"""A model of what sessions leave in a bucket: flushes, takeovers, sealing, consolidation,
collecting, one random step after the other.  Flushes are committed or not.

It knows what was committed, which a restore must find without any flush record.
"""

from array import array
from dataclasses import dataclass, field, replace
from itertools import accumulate
from random import Random
from typing import Final
from uuid import UUID

from driftlog_agents.restore.evidence import FlushEvidence
from driftlog_metadata.schema.model import TopicPartition
from driftlog_tiering.formats.flush_object import Footer, RestoreFacts
from driftlog_tiering.formats.layout import FlushObjectKey
from driftlog_tiering.formats.manifest import LeaderEpoch, empty_manifest

TOPIC: Final = UUID(int=7)
TPS: Final = [TopicPartition(TOPIC, number) for number in range(2)]


@dataclass(frozen=True, slots=True)
class Batch:
    partition: int
    epoch: int
    base: int
    end: int
    epoch_start: int


@dataclass(slots=True)
class Flush:
    seq: int
    batches: list[Batch]
    stored: bool = False


@dataclass(slots=True)
class Session:
    name: str
    committed: int = 0
    next_seq: int = 1
    live: bool = True
    flushes: dict[int, Flush] = field(default_factory=dict)


@dataclass(slots=True)
class Led:
    """A partition: its committed log, and its leader's log end."""

    leader: Session | None = None
    epoch: int = -1
    epoch_start: int = 0
    log_end: int = 0
    committed: list[Batch] = field(default_factory=list)


class Bucket:
    """See the module.

    Args:
        facts: footers have what format level 2 adds.
    """

    def __init__(self, seed: int, *, facts: bool) -> None:
        self.rng = Random(seed)
        self._facts = facts
        self._sessions = [Session(f"s{number}") for number in range(4)]
        self._partitions = [Led() for _ in TPS]
        self.manifests = {tp: empty_manifest("t", tp) for tp in TPS}
        self.objects: dict[str, tuple[FlushObjectKey, Footer]] = {}
        self.heads: dict[str, int] = {}
        self._named: dict[str, dict[str, Flush]] = {s.name: {} for s in self._sessions}
        """By session and object: what the flush records name."""
        self._count = 0
        self.told = [0] * len(TPS)
        """Ends of what is in any stored flush, by partition."""

    def run(self, steps: int) -> None:
        """Take so many steps."""
        seldom = (self._take, self._seal, self._consolidate, self._collect, self._die)
        often = (self._flush, self._put, self._commit)
        for _ in range(steps):
            self.rng.choice(seldom + often * 5)()

    def committed(self, number: int) -> list[Batch]:
        """What must come back of a partition: the committed batches above its manifest."""
        end = self.manifests[TPS[number]].end
        return [batch for batch in self._partitions[number].committed if batch.end > end]

    def remove(self, batch: Batch) -> None:
        """The objects that have *batch* are gone."""
        for name, (_, footer) in list(self.objects.items()):
            batches = zip(*(footer.columns[n] for n in (1, 2, 3)), strict=True)
            if (batch.partition, batch.epoch, batch.base) in batches:
                del self.objects[name]

    def evidence(self) -> FlushEvidence:
        """What a restore reads."""
        found = FlushEvidence(self.manifests)
        keys = list(self.objects)
        self.rng.shuffle(keys)
        for name in keys:
            found.add(name, *self.objects[name])
        for session, head in self.heads.items():
            found.final_head(session, head)
        for one in self._sessions:
            found.settle(one.name)
        return found

    # ── Steps ──

    def _take(self) -> None:
        """A session claims a partition: of a dead one, or of one that has nothing in flight."""
        led = self.rng.choice(self._partitions)
        session = self.rng.choice([s for s in self._sessions if s.live] or [None])
        if session is None or led.leader is session:
            return
        end = led.committed[-1].end if led.committed else 0
        if led.leader is not None and led.leader.live and led.log_end != end:
            return
        led.leader, led.epoch = session, led.epoch + 1
        led.epoch_start = led.log_end = end

    def _flush(self) -> None:
        session = self.rng.choice(self._sessions)
        mine = [n for n, led in enumerate(self._partitions) if led.leader is session]
        if not session.live or not mine:
            return
        batches: list[Batch] = []
        for number in mine:
            led = self._partitions[number]
            for _ in range(self.rng.randint(0, 2)):
                end = led.log_end + self.rng.randint(1, 3)
                batches.append(Batch(number, led.epoch, led.log_end, end, led.epoch_start))
                led.log_end = end
        if batches:
            session.flushes[session.next_seq] = Flush(session.next_seq, batches)
            session.next_seq += 1

    def _put(self) -> None:
        """Some flush of a session is stored, perhaps twice, and perhaps after the session's end."""
        session = self.rng.choice(self._sessions)
        waiting = [f for f in session.flushes.values() if f.seq > session.committed]
        if waiting:
            flush = self.rng.choice(waiting)
            flush.stored = True
            self._store(session, flush, committed=session.committed)

    def _store(
        self, session: Session, flush: Flush, *, committed: int, place: tuple[int, int] = (0, 0)
    ) -> str:
        self._count += 1
        key = FlushObjectKey(session.name, flush.seq, f"{self._count:x}", *place)
        name = f"{session.name}/{flush.seq}.{place}-{self._count}"
        self.objects[name] = (key, self._footer(session, flush, committed, place))
        for batch in flush.batches:
            self.told[batch.partition] = max(self.told[batch.partition], batch.end)
        return name

    def _footer(
        self, session: Session, flush: Flush, committed: int, place: tuple[int, int]
    ) -> Footer:
        return footer_of(
            session.name, flush.seq, flush.batches, committed, place if self._facts else None
        )

    def _commit(self) -> None:
        session = self.rng.choice(self._sessions)
        flush = session.flushes.get(session.committed + 1)
        if not session.live or flush is None or not flush.stored:
            return
        session.committed = flush.seq
        names = [
            name
            for name, (key, _) in self.objects.items()
            if (key.session_id, key.seq, key.level) == (session.name, flush.seq, 0)
        ]
        self._named[session.name][self.rng.choice(names)] = flush
        for batch in flush.batches:
            log = self._partitions[batch.partition].committed
            assert batch.base == (log[-1].end if log else 0)
            log.append(batch)

    def _seal(self) -> None:
        number = self.rng.randrange(len(TPS))
        above = self.committed(number)
        if not above:
            return
        sealed = above[: self.rng.randint(1, len(above))]
        manifest = self.manifests[TPS[number]]
        epochs = list(manifest.leader_epochs)
        for batch in sealed:
            if not epochs or epochs[-1].epoch < batch.epoch:
                epochs.append(LeaderEpoch(batch.epoch, batch.base))
        self.manifests[TPS[number]] = replace(
            manifest,
            version=manifest.version + 1,
            end=sealed[-1].end,
            leader_epochs=tuple(epochs),
        )

    def _consolidate(self) -> None:
        """Some neighbouring flush records of a session become one or two objects; perhaps the
        transaction fails."""
        session = self.rng.choice(self._sessions)
        named = self._named[session.name]
        names = list(named)[: self.rng.randint(2, 4)]
        if len(names) < 2:
            return
        batches = [
            batch for name in names for batch in named[name].batches if self._unsealed(batch)
        ]
        seq = max(named[name].seq for name in names)
        cut = self.rng.randint(0, len(batches))
        made: dict[str, Flush] = {}
        for index, part in enumerate((batches[:cut], batches[cut:])):
            if part:
                flush = Flush(seq, part, stored=True)
                made[self._store(session, flush, committed=seq, place=(1, index))] = flush
        if self.rng.random() < 0.8:
            rest = {name: flush for name, flush in named.items() if name not in names}
            self._named[session.name] = {**made, **rest}

    def _unsealed(self, batch: Batch) -> bool:
        return batch.end > self.manifests[TPS[batch.partition]].end

    def _collect(self) -> None:
        """Records of sealed flushes go, and objects without a record."""
        for session in self._sessions:
            named = self._named[session.name]
            for name in list(named):
                if not any(map(self._unsealed, named[name].batches)):
                    del named[name]
            for name, (key, _) in list(self.objects.items()):
                may_be_committed = session.live and key.seq > session.committed
                mine = key.session_id == session.name
                if mine and name not in named and not may_be_committed and self.rng.random() < 0.5:
                    del self.objects[name]

    def _die(self) -> None:
        """A session ends; another one finds out its last commit."""
        if self.rng.random() < 0.8:
            return
        session = self.rng.choice(self._sessions)
        if session.live:
            session.live = False
        elif self.rng.random() < 0.5:
            self.heads[session.name] = session.committed


def footer_of(
    session_id: str,
    seq: int,
    unordered: list[Batch],
    committed: int = 0,
    place: tuple[int, int] | None = (0, 0),
) -> Footer:
    """The footer of an object of batches of the topic; *place* None: of format level 1."""
    batches = sorted(unordered, key=lambda b: (b.partition, b.base, b.epoch))
    count = len(batches)
    lengths = array("i", [10] * count)
    columns = (
        array("i", [0] * count),
        array("i", [b.partition for b in batches]),
        array("i", [b.epoch for b in batches]),
        array("q", [b.base for b in batches]),
        array("i", [b.end - b.base - 1 for b in batches]),
        array("h", [0] * count),
        array("q", [-1] * count),
        array("h", [-1] * count),
        array("i", [-1] * count),
        array("q", [0] * count),
        array("i", accumulate(lengths[:-1], initial=0)),
        lengths,
        array("q", [0] * count),
    )
    facts = None
    if place is not None:
        starts = array("q", [b.epoch_start for b in batches])
        facts = RestoreFacts(("t",), starts, array("q", [0] * count), *place)
    return Footer(session_id, seq, committed, (TOPIC,), columns, facts)
