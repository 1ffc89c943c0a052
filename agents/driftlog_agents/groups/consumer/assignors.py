"""Assignors: they compute the target, which partitions each member of a consumer group gets.

    uniform   equal shares, with as few moves as possible (the default)
    range     a range of partitions per topic, the same range in topics of the same size

`uniform` starts from the previous target, not from the partitions that members have now; `range`
uses neither.  Members are ordered by their ids, so every agent computes the same target.  Apache
Kafka uses the order of a hash map, so only the choice between equal members may differ from it.

Source: org.apache.kafka.coordinator.group.assignor.UniformAssignor, RangeAssignor (4.3).
Pure.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final
from uuid import UUID

Partition = tuple[UUID, int]
"""A partition of a topic by id."""

Target = dict[str, frozenset[Partition]]
"""The partitions of each member; members without partitions are included."""

_MAX_ROUNDS: Final = 16
"""Most rounds over all topics that balance members of different subscriptions.  One or two suffice
if the subscribers of a topic have equal subscriptions; in chains of overlaps, each round halves the
imbalance."""


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """A member as an assignor sees it.

    Args:
        topics: the existing topics that it subscribes to.
        previous: its partitions in the previous target.
    """

    topics: frozenset[UUID]
    previous: frozenset[Partition] = frozenset()
    instance_id: str | None = None


Assignor = Callable[[Mapping[str, MemberSpec], Mapping[UUID, int]], Target]
"""Maps members, and the partition count of each topic, to the target."""


def uniform(members: Mapping[str, MemberSpec], partitions: Mapping[UUID, int]) -> Target:
    """Balance first (equal subscriptions: loads differ by one at most), then minimise moves."""
    if not members:
        return {}
    subscriptions = {spec.topics for spec in members.values()}
    if len(subscriptions) == 1:
        return _uniform_of_equals(members, subscriptions.pop(), partitions)
    return _Balancer(members, partitions).target()


def range_(members: Mapping[str, MemberSpec], partitions: Mapping[UUID, int]) -> Target:
    """Members in order (static ones first, by instance id) get consecutive partitions of each
    topic; if the division has a remainder, the first members get one more."""
    in_order = sorted(members, key=lambda m: _range_order(m, members[m]))
    subscribers: dict[UUID, list[str]] = defaultdict(list)
    for member in in_order:
        for topic in members[member].topics:
            subscribers[topic].append(member)
    target: dict[str, list[Partition]] = {member: [] for member in in_order}
    for topic, having in subscribers.items():
        share, more = divmod(partitions[topic], len(having))
        start = 0
        for i, member in enumerate(having if share else having[:more]):
            end = start + share + (i < more)
            target[member] += [(topic, p) for p in range(start, end)]
            start = end
    return {member: frozenset(assigned) for member, assigned in target.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": range_}
"""Assignors by their names in requests and in `group.consumer.assignors`."""


def _range_order(member: str, spec: MemberSpec) -> tuple[bool, str, str]:
    return (spec.instance_id is None, spec.instance_id or "", member)


def _uniform_of_equals(
    members: Mapping[str, MemberSpec], topics: frozenset[UUID], partitions: Mapping[UUID, int]
) -> Target:
    free = {(topic, p) for topic in topics for p in range(partitions[topic])}
    share, more = divmod(len(free), len(members))
    kept: dict[str, list[Partition]] = {}
    for member in sorted(members):
        previous = members[member].previous
        # Skip an empty *previous*: the intersection may walk all slots of an emptied *free*.
        mine = sorted(previous & free) if previous else []
        free.difference_update(mine)
        kept[member] = mine
    # The remainder goes to the members that keep the most partitions: fewest moves.
    by_load = sorted(kept, key=lambda m: -len(kept[m]))
    quota = {member: share + (i < more) for i, member in enumerate(by_load)}
    for member, mine in kept.items():
        free.update(mine[quota[member] :])
        del mine[quota[member] :]
    rest = iter(sorted(free))
    for member, mine in kept.items():
        mine += [next(rest) for _ in range(quota[member] - len(mine))]
    return {member: frozenset(mine) for member, mine in kept.items()}


class _Balancer:
    """The uniform assignor for members with different subscriptions."""

    def __init__(self, members: Mapping[str, MemberSpec], partitions: Mapping[UUID, int]) -> None:
        self._names = sorted(members)
        self._partitions = partitions
        self._load = [0] * len(self._names)
        self._subscribers: dict[UUID, list[int]] = defaultdict(list)
        for i, name in enumerate(self._names):
            for topic in members[name].topics:
                self._subscribers[topic].append(i)
        self._owner: dict[UUID, list[int]] = {
            topic: [-1] * partitions[topic] for topic in self._subscribers
        }
        for i, name in enumerate(self._names):
            for topic, p in members[name].previous:
                if topic in members[name].topics and p < partitions[topic]:
                    self._give(topic, p, i)

    def target(self) -> Target:
        topics = sorted(self._subscribers, key=self._order)
        for topic in topics:
            self._assign_free(topic)
        for _ in range(_MAX_ROUNDS):
            if not sum(self._even_out(topic) for topic in topics):
                break
        found: dict[str, list[Partition]] = {name: [] for name in self._names}
        for topic, owners in self._owner.items():
            for p, owner in enumerate(owners):
                found[self._names[owner]].append((topic, p))
        return {name: frozenset(assigned) for name, assigned in found.items()}

    def _order(self, topic: UUID) -> tuple[float, int, UUID]:
        """Sort key: most partitions per subscriber first; later topics balance the loads."""
        subscribers = len(self._subscribers[topic])
        return (-self._partitions[topic] / subscribers, subscribers, topic)

    def _give(self, topic: UUID, partition: int, member: int) -> None:
        owner = self._owner[topic][partition]
        if owner >= 0:
            self._load[owner] -= 1
        self._owner[topic][partition] = member
        self._load[member] += 1

    def _assign_free(self, topic: UUID) -> None:
        lows = [(self._load[i], i) for i in self._subscribers[topic]]
        heapify(lows)
        for p, owner in enumerate(self._owner[topic]):
            if owner < 0:
                load, member = heappop(lows)
                self._give(topic, p, member)
                heappush(lows, (load + 1, member))

    def _even_out(self, topic: UUID) -> int:
        """Move partitions from the most to the least loaded subscriber; return the moves."""
        owned: dict[int, list[int]] = defaultdict(list)
        for p, owner in enumerate(self._owner[topic]):
            owned[owner].append(p)
        lows = [(self._load[i], i) for i in self._subscribers[topic]]
        highs = [(-self._load[i], i) for i in self._subscribers[topic]]
        heapify(lows)
        heapify(highs)
        moved = 0
        while True:
            low = self._first(lows, 1, lambda _: True)
            high = self._first(highs, -1, lambda i: bool(owned[i]))
            if high is None or low is None or self._load[high] - self._load[low] <= 1:
                return moved
            partition = owned[high].pop()
            owned[low].append(partition)
            self._give(topic, partition, low)
            moved += 1
            for member in (low, high):
                heappush(lows, (self._load[member], member))
                heappush(highs, (-self._load[member], member))

    def _first(
        self, heap: list[tuple[int, int]], sign: int, suits: Callable[[int], bool]
    ) -> int | None:
        """The first member of *heap* whose recorded load is current, and that *suits*."""
        while heap:
            load, member = heap[0]
            if load * sign == self._load[member] and suits(member):
                return member
            heappop(heap)
        return None
