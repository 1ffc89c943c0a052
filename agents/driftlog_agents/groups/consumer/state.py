"""State of a group of KIP-848: epochs, the target, and the partitions of each member.

    group epoch        increases with every change of subscriptions, members or topics
    assignment epoch   the group epoch that the target was computed for
    member epoch       the assignment epoch that the member has reached

Every change goes through `put`, `remove` and `head`, which journal the previous value: `undo_to`
reverts changes that could not be stored, `changes_since` returns the changes to store.

tests/agents/groups/consumer/test_machine_schedules.py checks these invariants:

1. A partition has at most one owner, which is assigned it or has yet to revoke it.
2. The group epoch, the assignment epoch and the epochs of partitions never decrease.

Source: org.apache.kafka.coordinator.group.modern.consumer.ConsumerGroup, ConsumerGroupMember.
Pure.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Final
from zlib import crc32

from driftlog_agents.groups.consumer.assignors import Partition
from driftlog_agents.groups.sizes import ELEMENT_BYTES, count, text_bytes, texts_bytes
from driftlog_agents.groups.topic_metadata import ClusterTopics

Partitions = Mapping[Partition, int]
"""Partitions, each with the epoch at which it was assigned.  Never changed in place."""

NOTHING: Partitions = {}

_PAGES: Final = 32

PARTITION_BYTES: Final = 200
"""Memory of a partition in the target, and of one that a member has (measured: 270 to 380 for
both)."""


class MemberState(StrEnum):
    """Progress of a member towards the target."""

    STABLE = "stable"
    """It has all partitions of its epoch's target."""
    UNREVOKED = "unrevoked"
    """It must revoke partitions first; it stays at its epoch until a heartbeat confirms that."""
    UNRELEASED = "unreleased"
    """It is at the target's epoch, and waits for partitions that others have yet to revoke."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMember:
    """Fields of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """(name, subscription) of each protocol, as the member sent them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMember:
    """A member of the group; None and -1: the member has not sent it."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topic_names: frozenset[str] = frozenset()
    topic_regex: str = ""
    server_assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Partitions = field(default_factory=dict)
    pending: Partitions = field(default_factory=dict)
    """Partitions that it has yet to revoke."""
    classic: ClassicMember | None = None

    @property
    def said_bytes(self) -> int:
        """Memory that the group keeps from its client."""
        said = (self.member_id, self.instance_id, self.rack_id, self.client_id, self.client_host)
        sent = self.classic.protocols if self.classic is not None else ()
        names = texts_bytes((*said, self.topic_regex, *self.topic_names))
        return names + sum(2 * ELEMENT_BYTES + text_bytes(name) + len(data) for name, data in sent)

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        """Whether it has all partitions of the target of that epoch."""
        return self.state is MemberState.STABLE and self.epoch == assignment_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The state of the group without its members; epoch 1 of a new group has an empty target."""

    epoch: int = 1
    assignment_epoch: int = 1
    metadata_hash: str = ""
    """Hash of the subscribed topics at the last change of the epoch."""
    target: Mapping[str, frozenset[Partition]] = field(default_factory=dict)
    regexes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Matching topics by pattern; patterns that are not matched yet are absent."""
    assigned_at_ms: int | None = None
    """When the target was computed; not stored, because the clocks of agents differ."""


_Change = tuple[str, ConsumerGroupMember | None] | Head


def page_of(member_id: str) -> str:
    """The name of the page that stores a member (`consumer/stored_value`)."""
    return f"members/{crc32(member_id.encode()) % _PAGES:02d}"


class ConsumerGroupState:
    """See the module."""

    def __init__(self) -> None:
        self._head = Head()
        self._members: dict[str, ConsumerGroupMember] = {}
        self._pages: dict[str, dict[str, ConsumerGroupMember]] = {}
        self._static: dict[str, str] = {}
        self._owners: dict[Partition, str] = {}
        self._names: Counter[str] = Counter()
        self._named = 0
        """The sum of `_names`."""
        self._patterns: Counter[str] = Counter()
        self._assignors: Counter[str] = Counter()
        self._journal: list[_Change] = []
        self.size_bytes = 0
        """Memory that the group keeps from its members."""
        self.subscriptions = 0
        """Increases when a member subscribes to other topics by their names."""

    # ── Queries ──

    @property
    def head(self) -> Head:
        return self._head

    @head.setter
    def head(self, head: Head) -> None:
        self._journal.append(self._head)
        self._head = head

    @property
    def members(self) -> Mapping[str, ConsumerGroupMember]:
        return self._members

    def page(self, name: str) -> Iterable[ConsumerGroupMember]:
        """The members of the page *name*."""
        return self._pages.get(name, {}).values()

    def static_member(self, instance_id: str | None) -> ConsumerGroupMember | None:
        """The member with this instance id, if any."""
        member_id = self._static.get(instance_id) if instance_id is not None else None
        return None if member_id is None else self._members[member_id]

    def owner_of(self, partition: Partition) -> str | None:
        """The member that is assigned the partition or has yet to revoke it; None: no member."""
        return self._owners.get(partition)

    @property
    def owned(self) -> int:
        """The number of partitions that members are assigned or have yet to revoke."""
        return len(self._owners)

    def subscribers_of(self, pattern: str) -> int:
        """The number of members that subscribe to a pattern."""
        return self._patterns[pattern]

    @property
    def patterns(self) -> frozenset[str]:
        """Patterns that members subscribe to."""
        return frozenset(self._patterns)

    def assignor(self, default: str) -> str:
        """The assignor that most members request; *default*: none requests one."""
        return max(sorted(self._assignors), key=self._assignors.__getitem__, default=default)

    def names_of(self, member: ConsumerGroupMember) -> frozenset[str]:
        """Names of topics that a member subscribes to; the topics may not exist."""
        return member.topic_names | self._head.regexes.get(member.topic_regex, frozenset())

    def is_subscribed_to(self, name: str) -> bool:
        """Whether any member subscribes to the topic *name*."""
        return name in self._names or any(
            name in self._head.regexes.get(pattern, ())
            for pattern in tuple(self._patterns)  # A thread may be deciding.
        )

    def unsubscribed(self, names: Iterable[str]) -> set[str]:
        """Those of *names* to which no member subscribes: `is_subscribed_to`, for many names."""
        left = {name for name in names if name not in self._names}
        for pattern in tuple(self._patterns):  # A thread may be deciding.
            left -= self._head.regexes.get(pattern, frozenset())
        return left

    def subscribed_names(self) -> set[str]:
        """Names of topics that any member subscribes to."""
        names = set(self._names)
        for pattern in tuple(self._patterns):  # A thread may be deciding.
            names |= self._head.regexes.get(pattern, frozenset())
        return names

    @property
    def named(self) -> int:
        """The number of names that members subscribe to, each once for every such member."""
        regexes = self._head.regexes
        matched = sum(n * len(regexes.get(p, ())) for p, n in self._patterns.items())
        return self._named + matched

    def hash_of_topics(self, topics: ClusterTopics) -> str:
        """A hash of the subscribed topics' names, ids and partition counts; empty: no topic."""
        digest = blake2b(digest_size=8)
        found = [topics.by_name[n] for n in self.subscribed_names() if n in topics.by_name]
        for topic in sorted(found, key=lambda t: t.name):
            digest.update(f"{topic.name}/{topic.topic_id}/{topic.partitions};".encode())
        return digest.hexdigest() if found else ""

    @property
    def name(self) -> str:
        """The group's state, by Kafka's name."""
        if not self._members:
            return "Empty"
        if self._head.epoch > self._head.assignment_epoch:
            return "Assigning"
        epoch = self._head.assignment_epoch
        stable = all(member.is_reconciled_to(epoch) for member in self._members.values())
        return "Stable" if stable else "Reconciling"

    # ── Changes ──

    def put(self, member: ConsumerGroupMember) -> None:
        """Add or replace a member."""
        self._journal.append((member.member_id, self._members.get(member.member_id)))
        self._set(member.member_id, member)

    def remove(self, member_id: str) -> None:
        """Remove a member; the caller removes its target from the head."""
        self._journal.append((member_id, self._members[member_id]))
        self._set(member_id, None)

    @property
    def mark(self) -> int:
        """The current position in the journal, for `undo_to`, `changes_since`; until `forget`."""
        return len(self._journal)

    def undo_to(self, mark: int) -> None:
        """Revert all changes since *mark*."""
        while len(self._journal) > mark:
            change = self._journal.pop()
            if isinstance(change, Head):
                self._head = change
            else:
                self._set(*change)

    def changes_since(self, mark: int) -> tuple[bool, set[str]]:
        """Whether the head has changed, and the ids of changed members."""
        was: dict[str, ConsumerGroupMember | None] = {}
        head: Head | None = None
        for change in self._journal[mark:]:
            if isinstance(change, Head):
                head = head or change
            else:
                was.setdefault(*change)
        changed = {m for m, member in was.items() if member != self._members.get(m)}
        return head is not None and head != self._head, changed

    def forget(self) -> None:
        """Clear the journal: no later `undo_to` goes back further."""
        self._journal.clear()

    # ── Indexes ──

    def _set(self, member_id: str, member: ConsumerGroupMember | None) -> None:
        old = self._members.pop(member_id, None)
        if old is None or member is None or old.topic_names != member.topic_names:
            self.subscriptions += 1
        page = self._pages.setdefault(page_of(member_id), {})
        page.pop(member_id, None)
        if old is not None:
            self._index(old, -1)
            self.size_bytes -= old.said_bytes
            for partition in _all_partitions(old):
                if self._owners.get(partition) == member_id:
                    del self._owners[partition]
            if old.instance_id is not None and self._static.get(old.instance_id) == member_id:
                del self._static[old.instance_id]
        if member is not None:
            self._members[member_id] = page[member_id] = member
            self._index(member, +1)
            self.size_bytes += member.said_bytes
            for partition in _all_partitions(member):
                assert partition not in self._owners, "two members have one partition"
                self._owners[partition] = member_id
            if member.instance_id is not None:
                self._static[member.instance_id] = member_id

    def _index(self, member: ConsumerGroupMember, by: int) -> None:
        count(self._names, member.topic_names, by)
        self._named += by * len(member.topic_names)
        count(self._patterns, [member.topic_regex] if member.topic_regex else [], by)
        count(self._assignors, [member.server_assignor] if member.server_assignor else [], by)


def _all_partitions(member: ConsumerGroupMember) -> Iterator[Partition]:
    yield from member.assigned
    yield from member.pending
